"""Data sets of the contract tests."""

import pytest
from helpers import make_folder

from contract.both import EXACT, RANDOM, SMALL
from dali_compat import DALIImageFolder


@pytest.fixture
def folder(image_root):
    """24 images of three classes, 16 x 16; samples carry their index."""
    return DALIImageFolder(image_root, SMALL, return_index=True)


@pytest.fixture
def exact_folder(image_root):
    """The same, of pixels that must be equal to torchvision's on the CPU."""
    return DALIImageFolder(image_root, EXACT, return_index=True)


@pytest.fixture
def random_folder(image_root):
    """The same, with a random window and a random flip."""
    return DALIImageFolder(image_root, RANDOM, return_index=True)


@pytest.fixture
def own_root(tmp_path):
    """A folder of 2 x 4 plain JPEGs that a test may damage."""
    return make_folder(tmp_path / "own", classes=2, per_class=4, special=False)


@pytest.fixture
def photos_or_images(request):
    """Real photos where they are, drawn ones elsewhere."""
    import os

    return os.environ.get("DATA") or request.getfixturevalue("image_root")
