"""What every test can use: the gpu marker, a time limit, and folders of images."""

import os
from pathlib import Path

import pytest
import torch
from helpers import make_folder
from torchvision.transforms import v2

if not hasattr(v2.Transform, "make_params"):  # its name since torchvision 0.21
    v2.Transform.make_params = lambda self, inputs: self._get_params(inputs)

SHARED_IMAGES = Path(__file__).resolve().parents[2] / "shared" / "images"
SECONDS = 300


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        if not item.get_closest_marker("timeout"):
            # a thread, not a signal: a hang inside DALI never returns to Python to see the signal
            item.add_marker(pytest.mark.timeout(SECONDS, method="thread"))


@pytest.fixture(scope="session")
def image_root(tmp_path_factory) -> Path:
    """An ImageFolder root: 3 classes x 8 images of varied sizes;
    one gray JPEG, one progressive JPEG, one PNG with alpha."""
    return make_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def photos() -> Path:
    """Real photos as an ImageFolder root: the folder that DATA names, or this checkout's."""
    return Path(os.environ["DATA"]) if os.environ.get("DATA") else _shared("photos")


@pytest.fixture(scope="session")
def odd() -> Path:
    """A folder of unusual image files, where this checkout has them."""
    return _shared("odd")


def _shared(name: str) -> Path:
    folder = SHARED_IMAGES / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder
