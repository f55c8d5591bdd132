"""The comparer and the reference find what is wrong with an image."""

import math

import numpy as np
import pytest
import torch
from helpers import make_image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_compat import DALIImageFolder
from parity.compare import Error, as_tensors, assert_same, error
from parity.drawn import dictated, reference
from parity.run import epoch, plan_of


def _picture(seed=0, height=60, width=80) -> torch.Tensor:
    return torch.from_numpy(make_image(np.random.default_rng(seed), height, width)).permute(2, 0, 1)


WRONG = {
    "one pixel down": lambda x: x.roll(1, 1),
    "one pixel right": lambda x: x.roll(1, 2),
    "channels swapped": lambda x: x.flip(0),
    "flipped": lambda x: x.flip(2),
    "upside down": lambda x: x.flip(1),
    "black": torch.zeros_like,
    "another picture": lambda x: _picture(1),
    "darker by one level": lambda x: (x.int() - 1).clamp(min=0).to(x.dtype),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_wrong_images_are_far_off(name, dtype):
    """Farther than any limit of a resize: .3 of 255."""
    right, wrong = _picture(), WRONG[name](_picture())
    if dtype == torch.float32:
        right, wrong = right / 255, wrong / 255
    found = error([wrong, right], [right, right])
    assert found.mean > 0.3, found
    with pytest.raises(AssertionError):
        assert_same([wrong], [right])


def test_same_images_have_no_error():
    assert error([_picture(), _picture(1)], [_picture(), _picture(1)]) == Error(0, 0)


def test_one_wrong_value_is_the_maximum():
    wrong = _picture()
    wrong[1, 30, 40] ^= 0x80
    assert error([_picture(), wrong], [_picture()] * 2) == Error(128 / (2 * 3 * 60 * 80), 128)
    with pytest.raises(AssertionError):
        assert_same([wrong], [_picture()])


def test_the_mean_counts_values_not_images():
    small, large = torch.zeros(3, 1, 1), torch.zeros(3, 10, 10)
    assert error([small + 1, large], [small, large]).mean == pytest.approx(255 / 101)


def test_units():
    """Floats are 0..1; normalisation is undone channel by channel; unscaled floats are levels already."""
    std, zero = (0.5, 0.25, 0.125), torch.zeros(3, 2, 2)
    wrong = torch.stack([zero[0], zero[0], zero[0] + 1])
    assert error([wrong], [zero]).max == 255
    assert error([wrong], [zero], std=std) == Error(255 * 0.125 / 3, 255 * 0.125)
    assert error([wrong], [zero], levels=1).max == 1
    assert error([wrong.to(torch.uint8)], [zero.to(torch.uint8)]).max == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.int16),
        lambda x: x[:, :-1],
        lambda x: x.permute(1, 2, 0),
        lambda x: x[:1],
        lambda x: x[None],
        lambda x: x[:, :0],
    ],
)
def test_another_shape_or_dtype_is_refused(wrong):
    with pytest.raises(AssertionError):
        error([wrong(_picture())], [_picture()])


def test_missing_images_are_refused():
    for mine, theirs in (([], []), ([_picture()], []), ([_picture()], [_picture()] * 2)):
        with pytest.raises(AssertionError):
            error(mine, theirs)


def test_not_a_number_is_within_nothing():
    wrong = torch.zeros(3, 4, 4)
    wrong[0, 0, 0] = math.nan
    for images in ([wrong, torch.zeros(3, 4, 4)], [torch.zeros(3, 4, 4), wrong]):
        assert not error(images, [torch.zeros(3, 4, 4)] * 2).within(1e9, 1e9)


def test_as_tensors_gives_plain_tensors():
    (plain,) = as_tensors([tv_tensors.Image(_picture())])
    assert type(plain) is torch.Tensor and torch.equal(plain, _picture())


RANDOM = {
    "v1 RandomCrop": v1.RandomCrop(40),
    "v2 RandomCrop": v2.RandomCrop(40),
    "v1 RandomResizedCrop": v1.RandomResizedCrop(40),
    "v2 RandomResizedCrop": v2.RandomResizedCrop(40),
    "v1 RandomHorizontalFlip": v1.Compose([v1.CenterCrop(50), v1.RandomHorizontalFlip()]),
    "v2 RandomVerticalFlip": v2.Compose([v2.CenterCrop(50), v2.RandomVerticalFlip()]),
    "v1 RandomGrayscale": v1.Compose([v1.CenterCrop(50), v1.RandomGrayscale(0.5)]),
}


@pytest.mark.parametrize("name", RANDOM)
def test_the_reference_follows_the_draws(name, image_root):
    """Another seed gives other images, so that agreement says something; torchvision's classes are as they were after it."""
    transform = v2.Compose([RANDOM[name], v2.PILToTensor()])
    paths = [path for path, _ in DALIImageFolder(image_root).samples]
    before = [vars(c).get(n) for c in (v1.RandomCrop, v2.RandomCrop) for n in ("get_params", "make_params")] + [torch.rand]
    first, again, other = (reference(transform, plan_of(transform), paths, seed) for seed in (1, 1, 2))
    assert_same(first, again)
    assert error(first, other).mean > 1
    after = [vars(c).get(n) for c in (v1.RandomCrop, v2.RandomCrop) for n in ("get_params", "make_params")] + [torch.rand]
    assert before == after


def test_the_reference_notices_another_order_of_draws():
    from collections import deque

    row = {"flag": np.int32(1)}
    with dictated(deque([("bernoulli", row)])), pytest.raises(AssertionError, match="random_crop"):
        v1.RandomCrop(5)(_picture())
    with dictated(deque()), pytest.raises(IndexError):
        v1.RandomHorizontalFlip()(_picture())


def test_an_epoch_against_another_seed_is_wrong(image_root, monkeypatch):
    """The whole chain of the parity tests fails where the engine draws something else than the reference."""
    from dali_compat import iterator

    own = iterator.Epoch.__init__
    monkeypatch.setattr(iterator.Epoch, "__init__", lambda self, loader, route, seed: own(self, loader, route, seed + 1))
    transform = v2.Compose([v2.RandomResizedCrop(40), v2.PILToTensor()])
    assert error(*epoch(image_root, transform, "cpu", True, most=6)).mean > 1
