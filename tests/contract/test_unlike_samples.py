"""If default_collate cannot combine the samples of a batch, the error names two of them, with and without workers."""

import pytest
import torch
import torch.utils.data as data
from PIL import Image

from dali_compat import DataLoader


class Samples(data.Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.make(index)


def sizes(index):
    return torch.zeros(3, 40 + 5 * (index == 6), 50), index


def channels(index):
    return torch.zeros(1 if index == 6 else 3, 4, 4), index


def boxes(index):
    return torch.zeros(3, 4, 4), {"boxes": torch.zeros(2 + (index == 6), 4)}


def keys(index):
    return {"a": 1} if index == 6 else {"a": 1, "b": 2}


def lengths(index):
    return (1, 2, 3)[: 2 + (index == 6)]


def missing(index):
    return None if index == 6 else torch.zeros(3)


def pictures(index):
    return Image.new("RGB", (4, 4)), index


MESSAGES = {
    sizes: "the images of a batch must have the same height x width (index 4: 40 x 50; index 6: 45 x 50). Resize(n)",
    channels: "index 4 has torch.float32 of shape (3, 4, 4), index 6 has torch.float32 of shape (1, 4, 4) at [0]",
    boxes: "index 4 has torch.float32 of shape (2, 4), index 6 has torch.float32 of shape (3, 4) at [1]['boxes']",
    keys: "index 4 has a number, index 6 has no value at ['b']",
    lengths: "index 4 has no value, index 6 has a number at [2]",
    missing: "index 4 has torch.float32 of shape (3,), index 6 has NoneType. Return a sample without None",
    pictures: "found <class 'PIL.Image.Image'>. Add ToTensor() or v2.ToImage() to the transform",
}


@pytest.mark.parametrize("make, num_workers", [*((make, 0) for make in MESSAGES), (sizes, 2), (keys, 2)])
def test_error_names_samples_that_differ_after_torchs_message(make, num_workers):
    options = {"num_workers": num_workers, "sampler": [4, 5, 6, 7]}
    with pytest.raises((RuntimeError, TypeError, KeyError, AttributeError)) as theirs:
        next(iter(data.DataLoader(Samples(make), 4, **options)))
    with pytest.raises(theirs.type) as ours:
        next(iter(DataLoader(Samples(make), 4, device="cpu", fallback="silent", **options)))
    assert MESSAGES[make] in str(ours.value)
    if not num_workers:
        assert str(theirs.value).strip("'") in str(ours.value)


def test_error_names_samples_whose_dtypes_differ_in_workers():
    def make(index):
        return torch.zeros(3, dtype=torch.float32 if index == 6 else torch.uint8)

    loader = DataLoader(Samples(make), 4, num_workers=1, sampler=[4, 5, 6, 7], device="cpu", fallback="silent")
    with pytest.raises(TypeError, match=r"index 4 has torch\.uint8 .* index 6 has torch\.float32"):
        next(iter(loader))
