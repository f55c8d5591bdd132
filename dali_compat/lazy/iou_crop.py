"""The window that RandomIoUCrop draws: torchvision's random numbers and arithmetic, to the last bit, of all trials at
once. torchvision tries some thirty windows a sample, each with a dozen operations on small tensors, which take longer
than the sample's pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import _geometry
from torchvision.transforms.v2 import functional as F

MAKER = "make_params" if hasattr(v2.Transform, "make_params") else "_get_params"
_really = getattr(v2.RandomIoUCrop, MAKER)
_SIZE, _TRIED = (330, 470), 12
_LEAST = 16  # of a side: no window is without pixels


def params(transform, flat_inputs, really: Callable[..., Any] = _really) -> Any:
    """Returns what its own method gives."""
    boxes = _geometry.get_bounding_boxes(flat_inputs)
    height, width = _geometry.query_size(flat_inputs)
    is_common = boxes.dtype == torch.float32 and boxes.ndim == 2 and len(boxes) and min(height, width) >= _LEAST
    if really is not _really or not is_common or transform.min_scale * _LEAST < 1 or not _is_the_same():
        return really(transform, flat_inputs)
    with np.errstate(all="ignore"):
        return _drawn(transform, height, width, boxes)


def _drawn(transform, height: int, width: int, boxes) -> dict[str, Any]:
    plain = boxes.as_subclass(torch.Tensor)
    corners = F.convert_bounding_box_format(plain, boxes.format, tv_tensors.BoundingBoxFormat.XYXY).numpy()
    while True:
        overlap = transform.options[int(torch.randint(low=0, high=len(transform.options), size=(1,)))]
        if overlap >= 1.0:
            return {}
        made = _tried(transform, height, width, corners, np.float32(overlap))
        if made is not None:
            return made


def _tried(transform, height: int, width: int, corners: np.ndarray, overlap) -> dict[str, Any] | None:
    """The first of ``trials`` windows that fits. A trial takes two random numbers, and two more if its sides are near
    enough to a square. So it may begin at any other number: all are computed as if it did."""
    before = torch.get_rng_state()
    drawn = torch.rand(4 * transform.trials)
    pairs = drawn.numpy().reshape(-1, 2)
    scales = np.float32(transform.min_scale) + np.float32(transform.max_scale - transform.min_scale) * pairs
    image = np.array([width, height], np.float32)
    sides = (image * scales).astype(np.int64)
    ratios = sides[:, 0] / sides[:, 1]
    is_near = (transform.min_aspect_ratio <= ratios) & (ratios <= transform.max_aspect_ratio)
    starts = ((image - sides).astype(np.float32) * np.roll(pairs, -1, 0)).astype(np.int64)
    windows = np.concatenate([starts, starts + sides], 1).astype(np.float32)[:, None]
    centres = np.float32(0.5) * (corners[:, :2] + corners[:, 2:])
    within = ((windows[..., :2] < centres) & (centres < windows[..., 2:])).all(-1)
    common = np.minimum(corners[:, 2:], windows[..., 2:]) - np.maximum(corners[:, :2], windows[..., :2])
    common = np.maximum(common, 0).prod(-1)
    areas = (corners[:, 2:] - corners[:, :2]).prod(-1) + (windows[..., 2:] - windows[..., :2]).prod(-1)
    most = np.where(within, common / (areas - common), -np.inf).max(1)
    fits = within.any(1) & ~(most < overlap)

    found, at, near = None, 0, is_near.tolist()
    for _ in range(transform.trials):
        if found is None:
            found = at if near[at] and fits[at] else None
            at += 1 + near[at]
    torch.set_rng_state(before)
    torch.rand(2 * at)  # those that torchvision takes
    if found is None:
        return None
    (left, top), (w, h) = starts[found].tolist(), sides[found].tolist()
    return {"top": top, "left": left, "height": h, "width": w, "is_within_crop_area": torch.from_numpy(within[found])}


@functools.cache
def _is_the_same() -> bool:
    """Returns whether this torchvision's method gives the same, and draws as often: asked of the code rather than of
    its version."""
    with torch.random.fork_rng(devices=[]):
        try:
            return all(map(_agrees, range(_TRIED)))
        except Exception:  # it has other attributes
            return False


def _agrees(seed: int) -> bool:
    generator, transform = torch.Generator().manual_seed(seed), v2.RandomIoUCrop()
    corners, sides = torch.rand(2, 3, 2, generator=generator) * 200
    boxes = torch.cat([corners, corners + 20 + sides / 2], 1)
    boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=_SIZE)
    torch.default_generator.manual_seed(seed)
    theirs = _really(transform, [torch.empty(3, *_SIZE, dtype=torch.uint8), boxes])
    after = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    with np.errstate(all="ignore"):
        ours = _drawn(transform, *_SIZE, boxes)
    same = theirs.keys() == ours.keys() and all(torch.equal(*map(torch.as_tensor, (ours[k], theirs[k]))) for k in ours)
    return same and torch.equal(torch.get_rng_state(), after)
