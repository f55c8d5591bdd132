"""Attributes and file position after load() in a custom data set equal Pillow's."""

import io
import time

import numpy as np
import pytest
from helpers import make_image
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms.functional import to_tensor

from contract.both import ours, stock
from contract.test_own_datasets import real

FORMATS = {
    "jpg": {"quality": 80, "dpi": (72, 72), "comment": b"made up"},
    "progressive.jpg": {"progressive": True},
    "png": {"dpi": (72, 72), "compress_level": 1},
    "bmp": {},
    "ppm": {},
}


def attributes(image):
    """Return all attributes but the core: the type if the repr has an address, and the closed state of files."""
    found = {}
    for name, value in vars(image).items():
        if name in ("im", "_im"):
            continue
        text = repr(value)
        if " at 0x" in text:
            text = type(value).__name__
        found[name] = f"{text} {value.closed}" if isinstance(value, io.IOBase) else text
    return sorted(found.items())


def from_path(path):
    image = Image.open(path)
    image.load()
    return image, attributes(image)


def from_users_file(path):
    with open(path, "rb") as file:
        image = Image.open(file)
        image.load()
        return image, [attributes(image), file.tell(), file.read(9)]


def from_bytes(path):
    with open(path, "rb") as file:
        encoded = io.BytesIO(file.read())
    image = Image.open(encoded)
    image.load()
    return image, [attributes(image), encoded.tell(), encoded.closed]


def within_a_context(path):
    with Image.open(path) as image:
        image.load()
        inside = attributes(image)
    return image, [inside, attributes(image)]


def converted_within_a_context(path):
    with Image.open(path) as image:
        made = image.convert("RGB")
    return made, [attributes(image), attributes(made)]


def converted_within_the_context_of_a_file(path):
    with open(path, "rb") as file, Image.open(file) as image:
        made = image.convert("RGB")
        inside = [attributes(image), file.tell()]
    return made, [inside, attributes(image), attributes(made)]


WAYS_TO_OPEN = (
    from_path,
    from_users_file,
    from_bytes,
    within_a_context,
    converted_within_a_context,
    converted_within_the_context_of_a_file,
)


class OpensInSeveralWays(Dataset):
    """Opens the file in another way in each sample, twice in each way."""

    def __init__(self, path):
        self.path = str(path)

    def __len__(self):
        return 2 * len(WAYS_TO_OPEN)

    def __getitem__(self, index):
        how = WAYS_TO_OPEN[index // 2]
        image, left = how(self.path)
        return to_tensor(image), how.__name__, left


@pytest.mark.parametrize("name", FORMATS)
def test_attributes_of_a_deferred_image_equal_those_of_a_loaded_one(tmp_path, name):
    path = tmp_path / f"photo.{name}"
    Image.fromarray(make_image(np.random.default_rng(3), 61, 83)).save(path, **FORMATS[name])
    time.sleep(0.05)  # files written just now are not deferred
    loader = ours(OpensInSeveralWays(path), None, device="cpu", exact=True)
    mine, theirs = list(loader), list(stock(OpensInSeveralWays(path), None))
    assert real(loader) == 0 and loader.explain().startswith("DALI route")
    for (image, *left), (its_image, *its) in zip(mine, theirs, strict=True):
        assert left == its
        assert image.equal(its_image), left
