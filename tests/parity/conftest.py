"""Devices and images of the parity tests."""

import contextlib
import os

import numpy as np
import pytest
import torch
from helpers import ALL, make_image
from PIL import Image

from dali_compat.engine.dali import warm


def pytest_collection_modifyitems(config, items):
    """Run only every third GPU case unless REPETITIONS=all, since building a pipeline on a GPU takes most of a
    second."""
    if ALL:
        return
    here = os.path.dirname(__file__)
    gpu = [item for item in items if item.get_closest_marker("gpu") and str(item.path).startswith(here)]
    left_out = set(gpu) - set(gpu[::3])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="package", autouse=True)
def engine_stays_open():
    """Keep a GPU's JPEG engine open between pipelines, since opening it takes long."""
    with contextlib.ExitStack() as stack:
        if torch.cuda.is_available():
            with contextlib.suppress(RuntimeError):  # nvJPEG is missing
                stack.callback(warm.Handle(torch.cuda.current_device()).close)
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def lossless_root(tmp_path_factory):
    """12 PNGs, which all devices decode to the same pixels, so that only the transform is compared."""
    rng = np.random.default_rng(3)
    return _folder(tmp_path_factory, [tuple(rng.integers(60, 181, 2)) for _ in range(12)])


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
    """Images of degenerate sizes."""
    return _folder(tmp_path_factory, [(1, 1), (1, 37), (41, 1), (2, 2), (3, 500), (500, 3), (5, 7)])


@pytest.fixture
def pictures(request, device):
    """On the CPU, JPEGs, which DALI decodes to PIL's pixels; on a GPU, PNGs."""
    return request.getfixturevalue("image_root" if device == "cpu" else "lossless_root")


def _folder(factory, sizes):
    root, rng = factory.mktemp("pictures"), np.random.default_rng(4)
    (root / "class_a").mkdir()
    for i, (height, width) in enumerate(sizes):
        Image.fromarray(make_image(rng, int(height), int(width))).save(
            root / "class_a" / f"{i:02d} {height}x{width}.png"
        )
    return root
