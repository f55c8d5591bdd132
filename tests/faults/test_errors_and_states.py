"""A few rounds of errors_and_states.py, and errors that it must notice."""

import pytest

from faults import errors_and_states
from faults.errors_and_states import PLACES, DataLoader, compared, drawn, write_images

ROUNDS = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("levels")
    write_images(root)
    return root


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("route", PLACES)
def test_a_state_after_an_error_counts_what_the_loop_has_had(root, route):
    numbers = (number for number in range(1_000_000) if drawn(number).route == route)
    wrong = [compared(number, root)[0] for number, _ in zip(numbers, range(ROUNDS), strict=False)]
    assert not any(wrong), "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_counts_a_batch_too_many_is_found(root, monkeypatch):
    class Counting(DataLoader):
        def state_dict(self):
            state = super().state_dict()
            if state["epoch"] and state["epoch"]["given"]:
                state["epoch"] |= {"given": state["epoch"]["given"] + 1, "last": [0, 0]}
                state["epoch"]["samples"] += self.batch_size or 0
            return state

    monkeypatch.setattr(errors_and_states, "DataLoader", Counting)
    for route in PLACES:
        numbers = (number for number in range(1_000_000) if drawn(number).route == route)
        assert any(compared(number, root)[0] for number, _ in zip(numbers, range(ROUNDS), strict=False)), route
