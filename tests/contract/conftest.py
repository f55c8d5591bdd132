"""Data sets of the contract tests."""

import pytest
from helpers import make_folder

from contract.both import EXACT, RANDOM, SMALL
from dali_compat import DALIImageFolder


@pytest.fixture
def folder(image_root):
    """A folder of 24 images in three classes, resized to 16 x 16, whose samples include their index."""
    return DALIImageFolder(image_root, SMALL, return_index=True)


@pytest.fixture
def exact_folder(image_root):
    """The same folder with a transform whose pixels equal torchvision's on the CPU."""
    return DALIImageFolder(image_root, EXACT, return_index=True)


@pytest.fixture
def random_folder(image_root):
    """The same folder with a random crop and flip."""
    return DALIImageFolder(image_root, RANDOM, return_index=True)


@pytest.fixture
def own_root(tmp_path):
    """A folder of 2 x 4 plain JPEGs for a test to damage."""
    return make_folder(tmp_path / "own", classes=2, per_class=4, special=False)


@pytest.fixture
def photos_or_images(request):
    """Real photos if DATA names a folder, synthetic images otherwise."""
    import os

    return os.environ.get("DATA") or request.getfixturevalue("image_root")
