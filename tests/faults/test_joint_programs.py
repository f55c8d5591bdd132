"""Random transforms of images with masks, boxes and points, with both loaders."""

import time

import pytest
import torch

from faults import joint_programs
from faults.joint_programs import compared, make_files

PROGRAMS = 15


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("joint")
    made = make_files(root)
    time.sleep(0.05)  # what was written just now is read by the data set itself
    return made


@pytest.mark.alike
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_programs(files, seed):
    outcomes = [compared(seed * 1_000_000 + number, files) for number in range(PROGRAMS)]
    wrong = [text for text, _ in outcomes if text]
    assert not wrong, "\n".join(wrong)
    assert sum(route == "DALI" for _, route in outcomes) > PROGRAMS / 2


@pytest.mark.filterwarnings("ignore")
def test_what_differs_is_found(files, monkeypatch):
    """An image, a mask or a box of ours that is changed a little."""

    class Altered(joint_programs.DataLoader):
        def __iter__(self):
            for samples in super().__iter__():
                yield [_altered(sample) for sample in samples]

    monkeypatch.setattr(joint_programs, "DataLoader", Altered)
    found = [compared(seed, files) for seed in range(12)]
    assert all(text for text, route in found if route != "error") and len(found) > 8


def _altered(value):
    if isinstance(value, torch.Tensor):
        return (value + 1).as_subclass(type(value)) if value.is_floating_point() else value.flip(0)
    if isinstance(value, dict):
        return {key: _altered(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_altered, value))
    return value.transpose(0) if hasattr(value, "transpose") else value
