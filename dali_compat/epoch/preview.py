"""Implementation of DataLoader.preview()."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ..data.base_datasets import leaves_of
from .on_error import Errors
from .progress import load_object_states, object_states
from .samplers import sampler_generators

_SIDE, _GAP, _TITLE = 224, 6, 20  # pixels
_BACKGROUND, _INK = "#161b22", "#ffffff"
_COLOURS = ("#f85149", "#3fb950", "#58a6ff", "#d29922", "#bc8cff", "#39c5cf", "#ff9bce", "#e3b341")
_LABELS, _BOXES, _MASKS = ("label", "labels", "target", "targets"), ("boxes", "bboxes", "bbox"), ("mask", "masks")


class PreviewSample(NamedTuple):
    """Images of a sample, with the boxes (x1, y1, x2, y2), masks and labels to draw on them."""

    images: list[Any]
    boxes: list[list[float]]
    masks: list[np.ndarray]
    labels: list[Any]


def preview(loader: Any, count: int) -> Image.Image:
    """Return a picture of the next epoch's first ``count`` samples. The states of all generators are restored
    afterwards.

    Raises:
        ValueError: a batch has no images, there is no batch, or ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"count of preview() must be 1 or more, got {count}")
    generators = sampler_generators(loader, all_of_them=True)
    before, clone, users = generators.states(), copy.copy(loader), object_states(loader)
    vars(clone).update(_iterator=None, _errors=Errors(loader.on_error, loader.on_error_in_python))
    try:
        samples: list[PreviewSample] = []
        for batch in clone:
            found = [sample for one in _each(batch) if (sample := _sample(one)).images]
            if not found:
                raise ValueError(f"preview() found no images in a batch of type {type(batch).__name__}")
            samples += found
            if len(samples) >= count:
                break
    finally:
        generators.set(before)
        load_object_states(loader, users)
        clone.close()
    if not samples:
        raise ValueError("preview() found no images, because the loader returned no batch")
    leaf = leaves_of(loader.dataset)[0]
    names, normalized = getattr(leaf, "classes", None), _normalization(getattr(leaf, "transform", None))
    return _sheet([_drawn(sample, names, normalized) for sample in samples[:count]])


def _is_batch(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.ndim == 4 and part.shape[1] in (1, 3, 4)


def _is_image(part: Any) -> bool:
    if isinstance(part, Image.Image):
        return True
    return isinstance(part, torch.Tensor) and part.ndim == 3 and part.shape[0] in (1, 3, 4) and not _kind(part)


def _kind(part: Any) -> str:
    """Return "boxes" for torchvision's BoundingBoxes, "masks" for its Mask, otherwise ""."""
    return {"BoundingBoxes": "boxes", "Mask": "masks"}.get(type(part).__name__, "")


def _leaves(part: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, leaf) for the leaves of a nested batch or sample. The key is that of the innermost dictionary."""
    if isinstance(part, Mapping):
        for name, inner in part.items():
            yield from _leaves(inner, str(name))
    elif isinstance(part, (list, tuple)):
        for inner in part:
            yield from _leaves(inner, key)
    else:
        yield key, part


def _has(part: Any, found: Any) -> bool:
    return any(found(leaf) for key, leaf in _leaves(part) if key not in _MASKS)


def _each(batch: Any) -> Iterator[Any]:
    """Yield the samples of a collated batch, or of a list of samples."""
    stacked = [len(leaf) for _, leaf in _leaves(batch) if _is_batch(leaf)]
    columns = batch if isinstance(batch, (list, tuple)) else []
    with_images = [part for part in columns if _has(part, _is_image)]
    several = with_images if len(with_images) in (0, len(columns)) else with_images[0]
    count = stacked[0] if stacked else len(several)
    for row in range(count):
        yield _row(batch, row, count)


def _row(part: Any, row: int, count: int) -> Any:
    if isinstance(part, Mapping):
        return {name: _row(inner, row, count) for name, inner in part.items()}
    if isinstance(part, torch.Tensor):
        return part[row] if part.ndim and len(part) == count else part
    if not isinstance(part, (list, tuple)):
        return part
    images = [_has(inner, _is_image) for inner in part]
    of_samples = len(part) == count and not _has(part, _is_batch) and all(images) == any(images)
    return part[row] if of_samples else [_row(inner, row, count) for inner in part]


def _sample(one: Any) -> PreviewSample:
    """Return the images, boxes, masks and labels of a sample, recognized by class, key and shape."""
    found = PreviewSample([], [], [], [])
    for key, part in _leaves(one):
        kind, array = _kind(part), None if isinstance(part, (Image.Image, str)) else _array(part)
        if kind == "boxes" or key in _BOXES or (array is not None and array.ndim == 2 and array.shape[1] == 4):
            found.boxes.extend(_corners(array, str(getattr(part, "format", ""))) if array is not None else [])
        elif kind == "masks" or key in _MASKS or (found.images and _is_mask(array, found.images[0])):
            if array is not None:
                found.masks.extend(array if array.ndim == 3 else [array])
        elif _is_image(part):
            found.images.append(part)
        elif key in ("", *_LABELS) and (array is None or array.ndim < 2):
            found.labels.append(part if array is None else array)
    return found


def _array(part: Any) -> np.ndarray | None:
    array = np.asarray(part.detach().cpu().float() if isinstance(part, torch.Tensor) else part)
    return array if array.dtype.kind in "biuf" else None


def _is_mask(array: np.ndarray | None, image: Any) -> bool:
    size = image.size[::-1] if isinstance(image, Image.Image) else tuple(image.shape[-2:])
    return array is not None and array.ndim >= 2 and array.shape[-2:] == size and array.shape[:-2] in ((), (1,))


def _corners(boxes: np.ndarray, form: str) -> list[list[float]]:
    first, second = boxes.reshape(-1, 4)[:, :2], boxes.reshape(-1, 4)[:, 2:]
    if "CXCYWH" in form:
        first = first - second / 2
    return np.concatenate([first, first + second if "WH" in form else second], 1).tolist()


def _normalization(transform: Any) -> tuple[Any, Any] | None:
    """Return (mean, std) of a transform's last Normalize, or None if it has none."""
    parts = getattr(transform, "transforms", None) or [transform]
    found = [(t.mean, t.std) for t in parts if hasattr(t, "mean") and hasattr(t, "std")]
    return found[-1] if found else None


def _pixels(image: Any, normalized: tuple[Any, Any] | None) -> Image.Image:
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    values = image.detach().cpu()[:3]
    if values.is_floating_point():
        values = values.float()
        if normalized is not None and len(normalized[0]) in (1, len(values)):
            mean, std = (torch.as_tensor(one, dtype=torch.float32).view(-1, 1, 1) for one in normalized)
            values = values * std + mean
        elif values.min() < 0 or values.max() > 1:
            values = (values - values.min()) / (values.max() - values.min()).clamp(min=1e-6)
        values = values * 255
    levels = values.round().clamp(0, 255).to(torch.uint8) if values.is_floating_point() else values.to(torch.uint8)
    return Image.fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _drawn(sample: PreviewSample, names: Sequence[Any] | None, normalized: tuple[Any, Any] | None) -> Image.Image:
    """Return a picture of a sample, with its images side by side below its labels."""
    cells = []
    for image in sample.images:
        picture = _pixels(image, normalized)
        scale = _SIDE / max(picture.size)
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        cell = picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR)
        for number, mask in enumerate(sample.masks, 1):
            marks = mask.astype(int) * (number if len(sample.masks) > 1 else 1)
            for value in np.unique(marks[marks > 0])[:64]:
                where = Image.fromarray(((marks == value) * 110).astype(np.uint8)).resize(size)
                cell.paste(_COLOURS[(value - 1) % len(_COLOURS)], (0, 0), where)
        pen = ImageDraw.Draw(cell)
        for number, box in enumerate(sample.boxes):
            pen.rectangle([side * scale for side in box], outline=_COLOURS[number % len(_COLOURS)], width=2)
        cells.append(cell)
    sheet = Image.new("RGB", (len(cells) * (_SIDE + _GAP) - _GAP, _TITLE + _SIDE), _BACKGROUND)
    for number, cell in enumerate(cells):
        sheet.paste(cell, (number * (_SIDE + _GAP), _TITLE))
    title = ", ".join(_named(label, names) for label in sample.labels)
    ImageDraw.Draw(sheet).text((4, 2), title[:32], fill=_INK, font=ImageFont.load_default(14))
    return sheet


def _named(label: Any, names: Sequence[Any] | None) -> str:
    """Return a label as text. Class numbers, and the entries of a multi-hot vector that are 1, become class names."""
    if not isinstance(label, np.ndarray):
        return str(label)
    values, known = label.reshape(-1), len(names or ())
    if label.ndim and names and len(values) == known and set(values.tolist()) <= {0, 1}:
        return ", ".join(str(name) for name, value in zip(names, values, strict=True) if value)
    return ", ".join(
        str(names[int(value)]) if names and value == int(value) and 0 <= value < known else f"{value:g}"
        for value in values[:4]
    )


def _sheet(cells: list[Image.Image]) -> Image.Image:
    (width, height) = cells[0].size
    across = max(1, round(math.sqrt(len(cells) * height / width)))
    down = math.ceil(len(cells) / across)
    sheet = Image.new("RGB", (across * (width + _GAP) + _GAP, down * (height + _GAP) + _GAP), _BACKGROUND)
    for number, cell in enumerate(cells):
        sheet.paste(cell, (_GAP + number % across * (width + _GAP), _GAP + number // across * (height + _GAP)))
    return sheet
