"""Unusual transforms give the same result, or the same error, as in torchvision."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import assert_same_pixels, error_of, ours, stock
from dali_compat import DALIImageFolder, DataLoader

F32 = torch.float32
CROPS = v2.FiveCrop(20)
TENSORS = v2.PILToTensor()
# Given several plain tensors, v2 transforms only the first one.
AS_TORCHVISION = {
    "crops, then a dtype": v2.Compose([CROPS, TENSORS, v2.ToDtype(F32, scale=True)]),
    "crops of a tensor": v2.Compose([TENSORS, CROPS, v2.RandomInvert(1.0)]),
    "crops, normalized": v2.Compose([CROPS, v2.ToTensor(), v2.Normalize([0.5], [0.5])]),
    "crops that are no images any more": v2.Compose([CROPS, v2.ToImage(), v2.ToPureTensor(), v2.RandomInvert(1.0)]),
    "crops, within a container": v2.Compose([CROPS, TENSORS, v2.RandomApply([v2.RandomInvert(1.0)], 1.0)]),
    "crops that stay images": v2.Compose(
        [CROPS, v2.ToImage(), v2.ToDtype(F32, scale=True), v2.Normalize([0.5], [0.5])]
    ),
    "a window of half a pixel": T.Compose([T.CenterCrop((20.5, 30)), T.PILToTensor()]),
    "a threshold below all": T.Compose([T.CenterCrop(30), T.PILToTensor(), T.RandomSolarize(-3, 1.0)]),
}
REFUSED = {
    "crops for v1": T.Compose([T.FiveCrop(20), T.PILToTensor()]),
    "crops for a policy": v2.Compose([CROPS, v2.AutoAugment(), TENSORS]),
    "floats for v1": T.Compose([T.CenterCrop(30), T.ToTensor(), T.RandomPosterize(4, 1.0)]),
    "more bits than a byte has": v2.Compose([v2.CenterCrop(30), v2.PILToTensor(), v2.RandomPosterize(9, 1.0)]),
    "more bits, of floats": v2.Compose([v2.CenterCrop(30), v2.ToTensor(), v2.RandomPosterize(9, 1.0)]),
    "more bits, for v1": T.Compose([T.CenterCrop(30), T.PILToTensor(), T.RandomPosterize(9, 1.0)]),
    "floats to equalize": T.Compose([T.CenterCrop(30), T.ToTensor(), T.RandomEqualize(1.0)]),
    "a threshold above all": T.Compose([T.CenterCrop(30), T.ToTensor(), T.RandomSolarize(128, 1.0)]),
}


def _leaves(loader) -> list[torch.Tensor]:
    return [image for images, _ in loader for image in (images if isinstance(images, (list, tuple)) else [images])]


@pytest.mark.parametrize("case", AS_TORCHVISION)
def test_pixels_of_unusual_transforms_equal_torchvisions(image_root, case):
    dataset = DALIImageFolder(image_root, AS_TORCHVISION[case])
    mine = DataLoader(dataset, 1, exact=True, device="cpu", fallback="silent")
    assert_same_pixels(_leaves(mine), _leaves(stock(ImageFolder(image_root, AS_TORCHVISION[case]))))


@pytest.mark.parametrize("case", REFUSED)
def test_errors_of_unusual_transforms_equal_torchvisions(image_root, case):
    mine = DataLoader(DALIImageFolder(image_root, REFUSED[case]), 5, device="cpu", fallback="silent")
    mine, theirs = (error_of(list, loader) for loader in (mine, stock(ImageFolder(image_root, REFUSED[case]), 5)))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


@pytest.mark.parametrize("fill", [0, 0.5, (1, 2, 3)])
@pytest.mark.parametrize("normalize", [False, True])
def test_zoom_out_after_conversion_uses_the_fill_unchanged(image_root, fill, normalize):
    """After a conversion the fill has other units, and zero is no longer black."""
    after = [v2.Normalize([0.5], [0.25])] if normalize else []
    transform = v2.Compose([v2.CenterCrop(30), v2.ToTensor(), *after, v2.RandomZoomOut(fill, (2, 2), p=1.0)])
    loader = DataLoader(DALIImageFolder(image_root, transform), 24, exact=True, device="cpu", fallback="silent")
    (images, _), *_ = loader
    assert images.shape == (24, 3, 60, 60)
    expected = torch.tensor(fill if isinstance(fill, tuple) else (fill,) * 3, dtype=F32)
    assert ((images == expected[:, None, None]).all(1).sum((1, 2)) >= 60 * 60 - 30 * 30).all()


@pytest.fixture
def tiny_images(tmp_path):
    """Images of 1 x 1 and 9 x 1, and an ordinary one."""
    (tmp_path / "a").mkdir()
    for i, shape in enumerate([(30, 40), (1, 1), (9, 1)]):
        Image.fromarray(np.full((*shape, 3), 90 + i, np.uint8)).save(tmp_path / "a" / f"{i}.png")
    return tmp_path


def test_random_perspective_of_one_pixel_with_p_0_equals_torchvisions(tiny_images):
    """A perspective of a single pixel does not exist, but p=0 never applies it."""
    transform = T.Compose([T.RandomPerspective(p=0.0), T.Resize((8, 8)), T.PILToTensor()])
    mine = ours(DALIImageFolder(tiny_images, transform), 3, exact=True, device="cpu")
    assert_same_pixels(_leaves(mine), _leaves(stock(ImageFolder(tiny_images, transform), 3)))


def test_crop_without_pixels_raises_an_error_with_the_path(tiny_images):
    """torchvision returns a black image instead."""
    transform = T.Compose([T.RandomResizedCrop(8, ratio=(5, 6)), T.PILToTensor()])
    dataset = DALIImageFolder(tiny_images, transform)
    error = error_of(list, ours(dataset, 3, device="cpu"))
    assert (
        type(error) is ValueError
        and "too small for RandomResizedCrop with ratio=(5, 6)" in str(error)
        and "1.png" in str(error)
    )
    with pytest.warns(match="is skipped"):
        ((images, labels),) = ours(dataset, 3, device="cpu", on_error="skip")
    assert len(labels) == len(images) == 1


def _sparse(image):
    return image.to_sparse()


def _with_grad(image):
    return image.requires_grad_()


def _with_attribute(image):
    image.note = "mine"
    return image


@pytest.mark.parametrize("function", [_sparse, _with_grad, _with_attribute])
def test_layout_grad_and_attributes_of_returned_tensors_are_kept(image_root, function):
    transform = T.Compose([T.CenterCrop(20), T.ToTensor(), function])
    dataset = DALIImageFolder(image_root, transform)
    mine = DataLoader(dataset, 5, exact=True, device="cpu", fallback="silent", collate_fn=list)
    theirs = stock(ImageFolder(image_root, transform), 5, collate_fn=list)
    for (a, label), (b, other) in zip(sum(mine, []), sum(theirs, []), strict=True):
        assert label == other and (a.layout, a.requires_grad, vars(a)) == (b.layout, b.requires_grad, vars(b))
        assert torch.equal(a.to_dense(), b.to_dense())
