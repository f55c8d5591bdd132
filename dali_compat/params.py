"""Per-sample arguments of every step: geometry and random draws, on the host, for a whole batch at once.

Each function takes the image sizes that reach it, (N, 2) int64 as (height, width) in pixels, and returns the arrays its
kernel wants together with the sizes after it. Sizes are known before anything is decoded (headers.py), so all geometry
is torchvision's own arithmetic, vectorised with numpy, and the engines only carry it out.

Random draws are keyed by (seed, stream, position): the same on every device, whatever the batch size, the thread
count and the prefetch depth, and reachable at any position of an epoch without drawing what comes before it. The
generator is numpy's Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import functools
import random
from contextlib import contextmanager
from typing import Callable

import numpy as np
import torch

from .plan import Draw, Step

Arrays = dict[str, np.ndarray]

_DRAWS: dict[str, tuple[int, Callable]] = {}


class ImageTooSmall(ValueError):
    """An image does not suit a transform; torchvision raises ValueError with the same words.

    ``row`` is its place in the batch."""

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


class Randoms:
    """Uniform numbers in [0, 1) for samples ``position .. position + count - 1`` of an epoch.

    Args:
        seed: the epoch's base seed, as torch's iterator draws it.
        position: how many samples of the epoch came before.
        count: batch size.
    """

    def __init__(self, seed: int, position: int, count: int):
        self.seed, self.position, self.count = seed, position, count

    def __call__(self, stream: int, k: int) -> np.ndarray:
        """(count, k) float64 of a step's stream; row i depends on seed, stream and position + i alone."""
        blocks = -(-k // 4)  # one step of the counter gives four numbers
        philox = np.random.Philox(key=[self.seed, stream], counter=self.position * blocks)
        return np.random.Generator(philox).random((self.count, 4 * blocks))[:, :k]


@contextmanager
def own_generators(seed: int, position: int):
    """Within it torch (CPU), random and numpy draw from generators seeded by (seed, position); after it they are where
    they were. So a collate_fn that mixes images leaves the sampler's next order alone, as it does in torch's workers."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    own = int(np.random.SeedSequence([seed, position]).generate_state(1)[0])
    torch.default_generator.manual_seed(own)
    random.seed(own)
    np.random.seed(own)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def compute(steps: tuple[Step, ...], sizes: np.ndarray, randoms: Randoms, rows: np.ndarray | slice) -> list[Arrays]:
    """The arrays of each step for ``rows`` of a batch; ``sizes`` is (N, 2) for these rows."""
    arrays = []
    for step in steps:
        if step.draw is None:
            arrays.append({})
            continue
        uniforms, _ = _lookup(step.draw)
        u = randoms(step.stream, uniforms)[rows] if uniforms else None
        values, sizes = _run(step.draw, sizes, u)
        arrays.append(values)
    return arrays


def is_random(step: Step) -> bool:
    """Whether a step's arguments are drawn."""
    return step.draw is not None and _lookup(step.draw)[0] > 0


def _lookup(draw: Draw) -> tuple[int, Callable]:
    uniforms, function = _DRAWS[draw.name]
    return uniforms(**dict(draw.args)) if callable(uniforms) else uniforms, function


def _run(draw: Draw, sizes, u):
    return _DRAWS[draw.name][1](sizes, u, **dict(draw.args))


def _draw(uniforms=0):
    """Registers a function under its name; ``uniforms`` is how many numbers a sample takes."""

    def decorate(function):
        _DRAWS[function.__name__] = uniforms, function
        return function

    return decorate


def _window(start, shape) -> tuple[Arrays, np.ndarray]:
    start, shape = np.asarray(start).astype(np.int64), np.asarray(shape).astype(np.int64)
    return {"start": start.astype(np.int32), "shape": shape.astype(np.int32)}, shape


@_draw()
def resize(sizes, u, *, size, max_size=None):
    """torchvision.transforms.functional._compute_resized_output_size: the long edge is truncated, not rounded."""
    if size is not None and len(size) == 2:
        new = np.broadcast_to(np.array(size, np.int64), sizes.shape)
    else:
        short, long = sizes.min(1), sizes.max(1)
        if size is None:
            new_short, new_long = (max_size * short / long).astype(np.int64), np.full_like(long, max_size)
        else:
            new_short, new_long = np.full_like(short, size[0]), (size[0] * long / short).astype(np.int64)
            if max_size is not None:
                over = new_long > max_size
                new_short = np.where(over, (max_size * new_short / new_long).astype(np.int64), new_short)
                new_long = np.where(over, max_size, new_long)
        height_is_short = sizes[:, 0] < sizes[:, 1]
        new = np.stack(
            [np.where(height_is_short, new_short, new_long), np.where(height_is_short, new_long, new_short)], 1
        )
    if (new < 1).any():
        row = int((new < 1).any(1).argmax())
        raise ImageTooSmall(row, f"height and width must be > 0, but Resize gives {tuple(new[row].tolist())}")
    return {"size": new.astype(np.float32)}, new


@functools.cache
def _pillow_may_start_vertically() -> bool:
    """Pillow >= 13 runs the vertical pass first where that is cheaper; asked of the code rather than of its version."""
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 40), dtype=np.uint8))
    both = image.resize((37, 50), Image.BILINEAR)
    vertical_first = image.resize((40, 50), Image.BILINEAR).resize((37, 50), Image.BILINEAR)
    return both.tobytes() == vertical_first.tobytes()


@_draw()
def center_crop(sizes, u, *, size):
    """torchvision.transforms.functional.center_crop: half to even within the image, zeros around it where too small."""
    excess = sizes - np.array(size)
    return _window(np.where(excess >= 0, np.rint(excess / 2), -(-excess // 2)), np.broadcast_to(size, sizes.shape))


@_draw()
def pad(sizes, u, *, padding):
    """padding: (left, top, right, bottom), as torchvision's Pad counts."""
    left, top, right, bottom = padding
    start = np.broadcast_to([-top, -left], sizes.shape)
    return _window(start, sizes + [top + bottom, left + right])


@_draw()
def pad_if_needed(sizes, u, *, size, axis):
    """The padding that RandomCrop(pad_if_needed=True) adds on both sides of one axis (0 vertical, 1 horizontal)."""
    missing = np.zeros_like(sizes)
    missing[:, axis] = np.maximum(size[axis] - sizes[:, axis], 0)
    return _window(-missing, sizes + 2 * missing)


@_draw(uniforms=2)
def random_crop(sizes, u, *, size):
    """torchvision.transforms.RandomCrop.get_params, after its padding."""
    room = sizes - np.array(size)
    if (room < 0).any():
        row = int((room < 0).any(1).argmax())
        have = tuple(sizes[row].tolist())
        raise ImageTooSmall(row, f"Required crop size {tuple(size)} is larger than input image size {have}")
    return _window(np.floor(u * (room + 1)), np.broadcast_to(size, sizes.shape))


@_draw(uniforms=22)
def random_resized_crop(sizes, u, *, scale, ratio):
    """torchvision.transforms.RandomResizedCrop.get_params: ten tries, then a central crop within ``ratio``."""
    height, width = sizes[:, :1].astype(float), sizes[:, 1:].astype(float)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :10])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u[:, 10:20])
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (0 < w) & (w <= width) & (0 < h) & (h <= height)
    rows, first = np.arange(len(sizes)), fits.argmax(1)
    shape = np.stack([h[rows, first], w[rows, first]], 1)
    start = np.floor(u[:, 20:22] * (sizes - shape + 1))

    none = ~fits.any(1)
    if none.any():
        height, width, in_ratio = height[:, 0], width[:, 0], (width / height)[:, 0]
        too_narrow, too_wide = in_ratio < min(ratio), in_ratio > max(ratio)
        fallback_h = np.where(too_narrow, np.rint(width / min(ratio)), height)
        fallback_w = np.where(too_wide, np.rint(height * max(ratio)), width)
        fallback = np.stack([fallback_h, fallback_w], 1)
        shape[none] = fallback[none]
        start[none] = ((sizes - fallback) // 2)[none]
    return _window(start, shape)


@_draw(uniforms=1)
def bernoulli(sizes, u, *, p):
    """``torch.rand(1) < p`` of every transform that is applied or not."""
    return {"flag": (u[:, 0] < p).astype(np.int32)}, sizes


@_draw(uniforms=lambda resize, crop, passes: _lookup(crop)[0] if crop else 0)
def resize_lowered(sizes, u, *, resize, crop, passes):
    """A resize, of which perhaps only the window of a crop is wanted, as one or two calls of DALI's resize.

    A call takes an output ``size`` and the region of its input that this size covers, in (fractional) pixels.
    ``passes`` is "one", or for one axis after the other "as Pillow" or "width first".
    """
    _, full = _run(resize, sizes, None)
    start, shape = np.zeros_like(full), full
    if crop is not None:
        window, shape = _run(crop, full, u)
        start = window["start"]
    per_pixel = sizes / full
    roi_start, roi_end = start * per_pixel, (start + shape) * per_pixel
    if passes == "one":
        calls = {"size": shape} if crop is None else {"size": shape, "roi_start": roi_start, "roi_end": roi_end}
    else:
        vertical = (_vertical_first(sizes, full) & (passes == "as Pillow"))[:, None]
        first = np.concatenate([vertical, ~vertical], 1)  # true on the axis of the first pass
        calls = {
            "size": np.where(first, shape, sizes),
            "roi_start": np.where(first, roi_start, 0),
            "roi_end": np.where(first, roi_end, sizes),
            "second_size": shape,
            "second_roi_start": np.where(first, 0, roi_start),
            "second_roi_end": np.where(first, shape, roi_end),
        }
    return {name: array.astype(np.float32) for name, array in calls.items()}, shape


def _vertical_first(sizes, new) -> np.ndarray:
    """Pillow resizes in two passes; which one goes first depends on its version and the sizes (PARITY: measured)."""
    shrink = sizes - new
    return (shrink[:, 0] > 0) & (shrink[:, 0] > 2 * shrink[:, 1]) & _pillow_may_start_vertically()
