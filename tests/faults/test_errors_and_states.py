"""A few rounds of errors_and_states.py, and wrong states that it must detect."""

import itertools

import pytest

from faults import errors_and_states
from faults.errors_and_states import PLACES, DataLoader, check_round, round_of, write_images


def rounds_of(route):
    """Yield numbers of rounds: one without an error, and one for each of the route's places.

    Every other round has workers.
    """
    number = -1
    for turn, place in enumerate(["", *PLACES[route]]):
        wanted = route, place, turn % 2 == 1
        number = next(number for number in itertools.count(number + 1) if _kind(number) == wanted)
        yield number


def _kind(number):
    one = round_of(number)
    return one.route, one.fault.place, one.workers > 0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("levels")
    write_images(root)
    return root


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("route", PLACES)
def test_state_after_an_error_counts_the_batches_that_the_loop_received(root, route):
    wrong = [check_round(number, root)[0] for number in rounds_of(route)]
    assert not any(wrong), "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
def test_state_that_counts_an_extra_batch_is_detected(root, monkeypatch):
    class Miscounting(DataLoader):
        def state_dict(self):
            state = super().state_dict()
            if state["epoch"] and state["epoch"]["given"]:
                state["epoch"] |= {"given": state["epoch"]["given"] + 1, "last": [0, 0]}
                state["epoch"]["samples"] += self.batch_size or 0
            return state

    monkeypatch.setattr(errors_and_states, "DataLoader", Miscounting)
    for route in PLACES:
        assert any(check_round(number, root)[0] for number in rounds_of(route)), route
