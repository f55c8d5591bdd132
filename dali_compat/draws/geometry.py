"""Sizes and windows: torchvision's own arithmetic, vectorised."""

from __future__ import annotations

import numpy as np

from .laws import coin, rand, whole
from .registry import Arrays, ImageTooSmall, dictates, draws


def window(start, shape) -> tuple[Arrays, np.ndarray]:
    start, shape = np.asarray(start).astype(np.int32), np.asarray(shape).astype(np.int64, copy=False)
    return {"start": start, "shape": shape.astype(np.int32)}, shape


def resized(new) -> tuple[Arrays, np.ndarray]:
    if (new < 1).any():
        row = int((new < 1).any(1).argmax())
        raise ImageTooSmall(row, f"height and width must be > 0, but Resize gives {tuple(new[row].tolist())}")
    return {"size": new.astype(np.float32)}, new


@draws()
def resize(sizes, u, *, size, max_size=None):
    """torchvision.transforms.functional._compute_resized_output_size."""
    if size is not None and len(size) == 2:
        return resized(np.broadcast_to(np.array(size, np.int64), sizes.shape))
    return resized(_by_edges(sizes, size and size[0], max_size))


def _by_edges(sizes, size, max_size) -> np.ndarray:
    """Its rule where the short edge (``size``: one for all or for each) or the long edge is given: the other edge is
    truncated, not rounded."""
    short, long = sizes.min(1), sizes.max(1)
    if size is None:
        new_short, new_long = (max_size * short / long).astype(np.int64), np.full_like(long, max_size)
    else:
        new_short = np.broadcast_to(np.asarray(size, np.int64), short.shape)
        new_long = (new_short * long / short).astype(np.int64)
        if max_size is not None:
            over = new_long > max_size
            new_short = np.where(over, (max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(over, max_size, new_long)
    height_is_short = sizes[:, 0] < sizes[:, 1]
    return np.stack([np.where(height_is_short, new_short, new_long), np.where(height_is_short, new_long, new_short)], 1)


@draws()
def center_crop(sizes, u, *, size):
    """torchvision.transforms.functional.center_crop: half to even within the image, zeros around it where too small."""
    excess = sizes - np.array(size)
    return window(np.where(excess >= 0, np.rint(excess / 2), -(-excess // 2)), np.broadcast_to(size, sizes.shape))


@draws()
def pad(sizes, u, *, padding):
    """padding: (left, top, right, bottom), as torchvision's Pad counts."""
    left, top, right, bottom = padding
    start = np.broadcast_to([-top, -left], sizes.shape)
    return window(start, np.add(sizes, [top + bottom, left + right]))


@draws()
def pad_if_needed(sizes, u, *, size, axis):
    """The padding that RandomCrop(pad_if_needed=True) adds on both sides of one axis (0 vertical, 1 horizontal)."""
    missing = np.zeros_like(sizes)
    missing[:, axis] = np.maximum(size[axis] - sizes[:, axis], 0)
    return window(-missing, sizes + 2 * missing)


@draws(uniforms=2)
def random_crop(sizes, u, *, size):
    """torchvision.transforms.RandomCrop.get_params, after its padding."""
    room = sizes - np.array(size)
    if (room < 0).any():
        row = int((room < 0).any(1).argmax())
        have = tuple(sizes[row].tolist())
        raise ImageTooSmall(row, f"Required crop size {tuple(size)} is larger than input image size {have}")
    return window(np.floor(u * (room + 1)), np.broadcast_to(size, sizes.shape))


@dictates(random_crop)
def random_crop_answers(row, step):
    return [("window", row)]


@draws(uniforms=22)
def random_resized_crop(sizes, u, *, scale, ratio):
    """torchvision.transforms.RandomResizedCrop.get_params: ten tries, then a central crop within ``ratio``."""
    height, width = sizes[:, :1].astype(float), sizes[:, 1:].astype(float)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :10])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u[:, 10:20])
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
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
    if (shape < 1).any():
        row = int((shape < 1).any(1).argmax())
        have, of = (tuple(pair[row].astype(int).tolist()) for pair in (shape, sizes))
        raise ImageTooSmall(row, f"RandomResizedCrop takes {have} of an image of {of}: no width has the ratio {ratio}")
    return window(start, shape)


@dictates(random_resized_crop)
def random_resized_crop_answers(row, step):
    return [("window", row)]


# ---- torchvision.transforms.v2 alone; its arithmetic is float32 where a torch.rand is in it


@draws(uniforms=4)
def zoom_out(sizes, u, *, side_range, p):
    """torchvision.transforms.v2.RandomZoomOut.make_params: a canvas, and the image somewhere on it."""
    canvas = (_scale(u[:, 1:2], side_range) * sizes.astype(np.float32)).astype(np.int64)
    canvas = np.where(u[:, :1] < p, canvas, sizes)
    left_top = rand(u[:, 2:4]) * (canvas - sizes)[:, ::-1].astype(np.float32)
    return window(-left_top[:, ::-1].astype(np.int64), canvas)


@dictates(zoom_out)
def zoom_out_answers(row, step):
    """An image that stays as it is gets no border, too."""
    return [coin(True), ("window", row)] if dict(step.draw.args)["p"] else [coin(False)]


@draws(uniforms=1)
def scale_jitter(sizes, u, *, target_size, scale_range):
    """torchvision.transforms.v2.ScaleJitter.make_params (which divides the target's width by the image's height)."""
    fit = np.minimum(target_size[1] / sizes[:, :1], target_size[0] / sizes[:, 1:]).astype(np.float32)
    return resized((sizes.astype(np.float32) * (fit * _scale(u, scale_range))).astype(np.int64))


@dictates(scale_jitter)
def scale_jitter_answers(row, step):
    return [("size", row["size"].astype(int).tolist())]


@draws(uniforms=1)
def random_shortest_size(sizes, u, *, min_size, max_size=None):
    """torchvision.transforms.v2.RandomShortestSize.make_params; ``min_size`` is a tuple to choose from."""
    scale = np.array(min_size)[whole(u, 0, len(min_size))] / sizes.min(1, keepdims=True)
    if max_size is not None:
        scale = np.minimum(scale, max_size / sizes.max(1, keepdims=True))
    return resized((sizes * scale).astype(np.int64))


@dictates(random_shortest_size)
def random_shortest_size_answers(row, step):
    return [("size", row["size"].astype(int).tolist())]


@draws(uniforms=1)
def random_resize(sizes, u, *, min_size, max_size):
    """torchvision.transforms.v2.RandomResize.make_params: a short edge below ``max_size``."""
    return resized(_by_edges(sizes, whole(u[:, 0], min_size, max_size), None))


@dictates(random_resize)
def random_resize_answers(row, step):
    return [("whole", int(row["size"].min()))]


def _scale(u, interval) -> np.ndarray:
    low, high = interval
    return np.float32(low) + rand(u) * np.float32(high - low)


@draws()
def five_crop(sizes, u, *, size):
    """torchvision.transforms.functional.five_crop's check."""
    if (sizes < np.array(size)).any():
        row = int((sizes < np.array(size)).any(1).argmax())
        message = f"Requested crop size {tuple(size)} is bigger than input size {tuple(sizes[row].tolist())}"
        raise ImageTooSmall(row, message)
    return {}, np.broadcast_to(np.array(size, np.int64), sizes.shape)
