"""Apply steps to images of different sizes on a GPU, with few kernel launches.

On a GPU, launching an operation for one image takes longer than running it. Training also becomes slower, because the
launching thread competes for the GIL with the thread that trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..plan import Step
from .kernels import apply_step, rows_of
from .pixels import resample
from .pixels.lists import of_similar_size, put, stack_if_uniform
from .pixels.transform import fill_color
from .resize import resizes_as_pillow

Values = dict[str, np.ndarray]


def run_leading(steps: Sequence[Step], images: list[torch.Tensor], arrays: Sequence[Values]) -> tuple[int, Any]:
    """Apply the leading steps that can run together. ``images`` (C, H, W) are on a GPU.

    Returns:
        The number of steps that were applied, which may be 0, and the images after these steps.
    """
    count = next((number for number, step in enumerate(steps) if not _takes_frames(step)), len(steps))
    if count:
        made = in_frames(steps[:count], images, arrays)
        if count == len(steps):  # users get contiguous tensors, without the frames
            made = [image.clone(memory_format=torch.contiguous_format) for image in made]
        return count, stack_if_uniform(made)
    return _resize_windows(steps, images, arrays)


def _takes_frames(step: Step) -> bool:
    return step.operation.takes_frames and step.kwargs.get("like", "pil") == "pil"


def in_frames(steps: Sequence[Step], images: list[torch.Tensor], arrays: Sequence[Values]) -> list[torch.Tensor]:
    """Apply steps to batches of images that are padded with black to equal sizes. Return views of the results, without
    the padding. Images that skip all steps are returned as they are."""
    changed = list(images)
    used = np.flatnonzero(np.any([values.get("flag", np.ones(len(images))) for values in arrays[: len(steps)]], 0))
    for of_used, height, width in of_similar_size([images[row] for row in used]):
        rows = used[of_used]
        some = [images[row] for row in rows]
        frames = some[0].new_zeros(len(some), len(some[0]), height, width)
        put(frames, some)
        area = np.array([image[0].numel() for image in some])
        for step, values in zip(steps, arrays, strict=False):
            frames = apply_step(step, frames, rows_of(values, rows) | {"area": area})
        for row, image, frame in zip(rows, some, frames, strict=True):
            changed[row] = frame[:, : image.shape[1], : image.shape[2]]
    return changed


def _resize_windows(steps: Sequence[Step], images: list[torch.Tensor], arrays: Sequence[Values]) -> tuple[int, Any]:
    """Run a leading crop or pad, flips and a resize at once, without storing padded images. Return a count and images,
    as run_leading() does."""
    sizes = np.array([image.shape[-2:] for image in images])
    windows = resample.InputWindows(np.zeros_like(sizes), sizes, np.zeros(sizes.shape, bool))
    for number, (step, values) in enumerate(zip(steps, arrays, strict=True)):
        how = step.kwargs
        if step.op == "flip":
            windows.flips[:, ["vertical", "horizontal"].index(how["axis"])] ^= values.get("flag", np.ones(1)) > 0
        elif "flag" in values:
            break
        elif step.op in ("crop", "pad") and not number and how.get("mode", "constant") == "constant":
            fill = fill_color(images[0], how["fill"]) if step.op == "pad" else None
            start, shape = (values[name].astype(np.int64) for name in ("start", "shape"))
            windows = resample.InputWindows(start, shape, windows.flips, fill)
        elif step.op == "resize" and number:
            size = values["size"].astype(np.int64)
            if not resizes_as_pillow(images[0], size[0], how["interpolation"], how["like"]):
                break
            return number + 1, stack_if_uniform(resample.resize_each(images, size, **how, windows=windows))
        else:
            break
    return 0, images
