"""Pixels do not depend on autocast or on the float32 matmul precision, which the user sets for a model."""

import contextlib

import pytest
import torch
from torchvision import transforms as T

from contract.arrays import labels, pictures
from contract.both import ours
from dali_compat import DALIArrayDataset, DALIImageFolder
from dali_compat.ops.pixels import transform as module
from dali_compat.ops.pixels.transform import product

START = T.Resize((20, 20)), T.ToTensor()
CHAINS = {
    "affine": T.Compose([*START, T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5)]),
    "perspective": T.Compose([*START, T.RandomPerspective(p=1)]),
    "blur": T.Compose([*START, T.GaussianBlur(5)]),
    "blur of bytes": T.Compose([START[0], T.GaussianBlur(5), START[1]]),
}


@contextlib.contextmanager
def matmul_precision(name):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast(device):
    return torch.autocast(device, torch.bfloat16)


def batches(dataset, device, **arguments):
    torch.manual_seed(0)
    return [images for images, _ in ours(dataset, 5, exact=True, device=device, **arguments)]


def assert_unchanged(dataset, device, context, **arguments):
    expected = batches(dataset, device, **arguments)
    with context:
        found = batches(dataset, device, **arguments)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_pixels_do_not_change_under_autocast(image_root, chain, num_workers, device):
    assert_unchanged(DALIImageFolder(image_root, CHAINS[chain]), device, autocast(device), num_workers=num_workers)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chain", CHAINS)
def test_pixels_do_not_change_with_lower_matmul_precision(image_root, chain, device):
    """A rounding error in a coordinate may move a pixel at an edge, so a few pixels may differ."""
    dataset = DALIImageFolder(image_root, CHAINS[chain])
    expected = batches(dataset, device)
    with matmul_precision("medium"):
        found = batches(dataset, device)
    for one, other in zip(found, expected, strict=True):
        assert ((one - other).abs() > 1e-4).float().mean() < 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_pixels_of_arrays_do_not_change_under_autocast(device):
    chain = T.Compose([T.ToTensor(), *CHAINS["affine"].transforms[2:], T.GaussianBlur(3)])
    assert_unchanged(DALIArrayDataset(pictures(40, 32, 32, 3), labels(), chain), device, autocast(device))


@pytest.mark.parametrize("count", [(), (4,)])
def test_product_is_computed_in_double_if_float32_may_be_rounded(monkeypatch, count):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*count, 30, 30, generator=generator) for _ in range(2))
    expected = a.double() @ b.double()
    torch.testing.assert_close(product(a, b).double(), expected, rtol=1e-5, atol=1e-5)
    for name in ("high", "medium"):
        with matmul_precision(name):
            assert module._may_be_rounded() and torch.equal(product(a, b), expected.float())
            assert torch.equal(product(a.double(), b.double()), expected)
    assert not module._may_be_rounded()
