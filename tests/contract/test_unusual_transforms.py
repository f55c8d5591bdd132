"""Transforms as few people write them: what torchvision makes of them, however odd, or its error."""

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
# Of several plain tensors v2 takes the first for the image, and leaves the others alone
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
    "floats to equalize": T.Compose([T.CenterCrop(30), T.ToTensor(), T.RandomEqualize(1.0)]),
    "a threshold above all": T.Compose([T.CenterCrop(30), T.ToTensor(), T.RandomSolarize(128, 1.0)]),
}


def _leaves(loader) -> list[torch.Tensor]:
    return [image for images, _ in loader for image in (images if isinstance(images, (list, tuple)) else [images])]


@pytest.mark.parametrize("case", AS_TORCHVISION)
def test_pixels_are_torchvisions(image_root, case):
    dataset = DALIImageFolder(image_root, AS_TORCHVISION[case])
    mine = DataLoader(dataset, 1, exact=True, device="cpu", fallback="silent")
    assert_same_pixels(_leaves(mine), _leaves(stock(ImageFolder(image_root, AS_TORCHVISION[case]))))


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_torchvisions(image_root, case):
    mine = DataLoader(DALIImageFolder(image_root, REFUSED[case]), 5, device="cpu", fallback="silent")
    mine, theirs = (error_of(list, loader) for loader in (mine, stock(ImageFolder(image_root, REFUSED[case]), 5)))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


@pytest.mark.parametrize("fill", [0, 0.5, (1, 2, 3)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_canvas_has_the_fill_that_is_given(image_root, fill, normalize):
    """Behind a conversion the fill is in other units, and zero is no longer black."""
    after = [v2.Normalize([0.5], [0.25])] if normalize else []
    transform = v2.Compose([v2.CenterCrop(30), v2.ToTensor(), *after, v2.RandomZoomOut(fill, (2, 2), p=1.0)])
    loader = DataLoader(DALIImageFolder(image_root, transform), 24, exact=True, device="cpu", fallback="silent")
    (images, _), *_ = loader
    assert images.shape == (24, 3, 60, 60)
    wanted = torch.tensor(fill if isinstance(fill, tuple) else (fill,) * 3, dtype=F32)
    assert ((images == wanted[:, None, None]).all(1).sum((1, 2)) >= 60 * 60 - 30 * 30).all()


@pytest.fixture
def a_pixel(tmp_path):
    """Images of 1 x 1 and of 9 x 1, among others."""
    (tmp_path / "a").mkdir()
    for i, shape in enumerate([(30, 40), (1, 1), (9, 1)]):
        Image.fromarray(np.full((*shape, 3), 90 + i, np.uint8)).save(tmp_path / "a" / f"{i}.png")
    return tmp_path


def test_a_perspective_that_nobody_draws(a_pixel):
    """There is none of a pixel; with p=0 nobody asks for it."""
    transform = T.Compose([T.RandomPerspective(p=0.0), T.Resize((8, 8)), T.PILToTensor()])
    mine = ours(DALIImageFolder(a_pixel, transform), 3, exact=True, device="cpu")
    assert_same_pixels(_leaves(mine), _leaves(stock(ImageFolder(a_pixel, transform), 3)))


def test_a_window_without_pixels_is_an_error_with_its_path(a_pixel):
    """torchvision makes a black image of it."""
    transform = T.Compose([T.RandomResizedCrop(8, ratio=(5, 6)), T.PILToTensor()])
    dataset = DALIImageFolder(a_pixel, transform)
    error = error_of(list, ours(dataset, 3, device="cpu"))
    assert type(error) is ValueError and "no width has the ratio (5, 6)" in str(error) and "1.png" in str(error)
    with pytest.warns(match="is skipped"):
        ((images, labels),) = ours(dataset, 3, device="cpu", on_error="skip")
    assert len(labels) == len(images) == 1


def _sparse(image):
    return image.to_sparse()


def _with_grad(image):
    return image.requires_grad_()


def _named(image):
    image.note = "mine"
    return image


@pytest.mark.parametrize("function", [_sparse, _with_grad, _named])
def test_tensors_that_are_more_than_their_values(image_root, function):
    """They come as the function has given them."""
    transform = T.Compose([T.CenterCrop(20), T.ToTensor(), function])
    dataset = DALIImageFolder(image_root, transform)
    mine = DataLoader(dataset, 5, exact=True, device="cpu", fallback="silent", collate_fn=list)
    theirs = stock(ImageFolder(image_root, transform), 5, collate_fn=list)
    for (a, label), (b, other) in zip(sum(mine, []), sum(theirs, []), strict=True):
        assert label == other and (a.layout, a.requires_grad, vars(a)) == (b.layout, b.requires_grad, vars(b))
        assert torch.equal(a.to_dense(), b.to_dense())
