"""Replace the random functions that torchvision's transforms use by functions that return given numbers."""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import autoaugment, v2
from torchvision.transforms.v2 import _auto_augment

from dali_compat.inspection.replaced import STANDS_FOR
from dali_compat.ops.pixels import squares

_MAKE_PARAMS = "make_params" if "make_params" in vars(v2.RandomCrop) else "_get_params"  # torchvision 0.20


class Disagreement(AssertionError):
    """torchvision requests other random numbers than the plan has drawn."""


@contextlib.contextmanager
def dictated(numbers):
    """Make torchvision's random functions return ``numbers.take(*kinds)``, which must have one of these kinds.

    While ``numbers.speaks`` is False, they draw as usual.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, answer in _sources(numbers):
            own = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, _either(numbers, answer, own, isinstance(owner, type))))
        yield


def _either(numbers, answer, own, of_class: bool):
    def replacement(*args, **kwargs):
        return (answer if numbers.speaks else own)(*args, **kwargs)

    setattr(replacement, STANDS_FOR, own)  # marks it as torchvision's function for translations made in the meantime
    is_static = of_class and own.__name__ == "get_params"
    return staticmethod(replacement) if is_static else replacement


def _sources(numbers):
    """Return (owner, name, replacement) of each random function."""
    take = numbers.take

    def rand(*size, **_):
        size = _size(size)
        if numbers.kind == "operation":  # the policy's name and magnitude are given, so these numbers do not matter
            return torch.zeros(size)
        if numbers.kind == "field":
            key, axis = take("field")
            return squares.uniforms(np.array([key]), 2 * size.numel(), torch.device("cpu")).view(2, *size)[axis]
        return torch.full(size, take("coin"))

    def randint(*args, low=0, high=None, size=None, **_):
        *bounds, size = args if size is None else (*args, size)
        low, high = bounds if len(bounds) == 2 else (low, bounds[0] if bounds else high)
        if numbers.kind in ("operation", "window"):
            return torch.zeros(tuple(size), dtype=torch.long)
        return torch.full(tuple(size), _within(take("whole"), low, high - 1))

    def uniform(tensor, low=0.0, high=1.0, **_):
        value = take("uniform")
        slack = 0.5 if isinstance(value, np.integer) else 1e-6 * max(abs(low), abs(high))  # shifts are already rounded
        return tensor.fill_(float(_within(value, low - slack, high + slack)))

    def randperm(n, **_):
        order = take("order")
        if sorted(order) != list(range(n)):
            raise Disagreement(f"{order} is no order of {n}")
        return torch.tensor(order)

    def shuffle(items):
        items[:] = [items[i] for i in randperm(len(items)).tolist()]

    def choices(items, weights=None, **_):
        return [items[take("choice")]]

    def multinomial(weights, count, **_):
        return torch.tensor([_within(take("choice"), 0, len(weights) - 1)])

    def randn_like(image, dtype=None, **_):
        pixels = squares.normals(np.array([take("noise")]), image.numel(), torch.device("cpu"))
        return pixels.view(image.shape).to(dtype or image.dtype)

    def dirichlet(self, params):
        return torch.tensor([take("dirichlet")], dtype=torch.float32)

    def operate(own, image, args, kwargs):
        operation = take("operation")
        return image if operation is None else own(image, *operation, *args, **kwargs)

    own_v1, own_v2 = autoaugment._apply_op, _auto_augment._AutoAugmentBase._apply_image_or_video_transform

    def apply_v1(image, op_name, magnitude, *args, **kwargs):
        return operate(own_v1, image, args, kwargs)

    def apply_v2(self, image, transform_id, magnitude, *args, **kwargs):
        return operate(lambda *given, **named: own_v2(self, *given, **named), image, args, kwargs)

    yield from ((torch, f.__name__, f) for f in (rand, randint, randperm, multinomial, randn_like))
    yield from ((random, f.__name__, f) for f in (shuffle, choices))
    yield torch.Tensor, "uniform_", uniform
    yield autoaugment, "_apply_op", apply_v1
    yield _auto_augment._AutoAugmentBase, "_apply_image_or_video_transform", apply_v2
    yield from ((kind.AugMix, "_sample_dirichlet", dirichlet) for kind in (v1, v2))
    yield from _windows(take)


def _windows(take):
    """Replace the functions that retry until a window fits."""

    def window(height: int, width: int) -> tuple[int, int, int, int]:
        row = take("window")
        (top, left), (h, w) = row["start"].tolist(), row["shape"].tolist()
        if not (0 <= top <= height - h and 0 <= left <= width - w):
            raise Disagreement(f"a window of {h} x {w} at {top}, {left} in an image of {height} x {width}")
        return top, left, h, w

    def crop(image, *_):
        return window(*_height_width(image))

    own_crop = getattr(v2.RandomCrop, _MAKE_PARAMS)

    def random_crop(self, images):
        params = own_crop(self, images)  # its padding is geometry, not random
        pad_left, pad_top, pad_right, pad_bottom = params["padding"]
        height, width = _height_width(images[0])
        top, left, h, w = window(height + pad_top + pad_bottom, width + pad_left + pad_right)
        if (params["height"], params["width"]) != (h, w):
            raise Disagreement(f"a window of {h} x {w} instead of {params['height']} x {params['width']}")
        return params | {"top": top, "left": left, "needs_crop": True}

    def resized_crop(self, images):
        return dict(zip(("top", "left", "height", "width"), crop(images[0]), strict=True))

    def erasing(image, scale, ratio, value=None):
        return _erasing(take("window"), image, value)

    def v2_erasing(self, images):
        return dict(zip("ijhwv", _erasing(take("window"), images[0], self.value), strict=True))

    def zoom_out(self, images):
        row, (height, width) = take("window"), _height_width(images[0])
        (top, left), (h, w) = (-row["start"]).tolist(), row["shape"].tolist()
        padding = [left, top, w - width - left, h - height - top]
        if min(padding) < 0:
            raise Disagreement(f"an image of {height} x {width} in a canvas of {h} x {w} at {top}, {left}")
        return {"padding": padding}

    def size(self, images):
        return {"size": tuple(take("size"))}

    yield v1.RandomCrop, "get_params", crop
    yield v1.RandomResizedCrop, "get_params", crop
    yield v1.RandomErasing, "get_params", erasing
    yield v2.RandomCrop, _MAKE_PARAMS, random_crop
    yield v2.RandomResizedCrop, _MAKE_PARAMS, resized_crop
    yield v2.RandomErasing, _MAKE_PARAMS, v2_erasing
    yield v2.RandomZoomOut, _MAKE_PARAMS, zoom_out
    yield v2.ScaleJitter, _MAKE_PARAMS, size
    yield v2.RandomShortestSize, _MAKE_PARAMS, size


def _erasing(row, image, value):
    """Return RandomErasing's result for a window that was found."""
    (top, left), (h, w) = row["start"].tolist(), row["shape"].tolist()
    if value is not None:
        return top, left, h, w, torch.tensor(value)[:, None, None]
    pixels = squares.normals(row["key"][None], image.numel(), torch.device("cpu")).view(image.shape)
    return top, left, h, w, pixels[..., top : top + h, left : left + w]


def _height_width(image) -> tuple[int, int]:
    return image.size[::-1] if isinstance(image, Image.Image) else tuple(image.shape[-2:])


def _size(size) -> torch.Size:
    """Return the size that torch.rand's arguments give."""
    return torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)


def _within(value, low, high):
    if not low <= value <= high:
        raise Disagreement(f"{value} is not between {low} and {high}")
    return value
