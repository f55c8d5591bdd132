"""Define the DALI pipeline of a plan (a transform's steps), from its input nodes to its output nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, types

from ...data.header import ON_ITS_SIDE, SIZE_FIELD
from ...data.sources import PATHS, Form
from ...ops.draws import Arrays
from ...plan import Plan, Step
from . import graph
from .transfer import COPIES_IMAGES, IMAGES, Feed

_MIRRORED = (3, 4, 6, 7), (2, 3, 7, 8)  # EXIF orientations that reverse rows, or columns
_TYPES = {"float32": types.FLOAT, "int32": types.INT32, "uint8": types.UINT8}


def has_size_field(form: Form) -> bool:
    """Return True if a pipeline of this form returns the header bytes that contain the image size."""
    return form.input == PATHS and not form.reads


def define(
    plan: Plan, form: Form, device: torch.device, feed: Feed, template: list[Arrays], load: float
) -> dict[str, Any]:
    """Create the nodes of a pipeline. Return its output nodes by name, as Received.from_outputs() expects them.

    Call this in a ``with pipeline:`` block. The last output, "numbers", contains the sample numbers.

    Args:
        plan, form, device, load: see DecodePipeline.
        template: step arguments of any batch. They determine the number and dtypes of the inputs.
    """
    arrays = [array for step in template for array in step.values()]
    if has_size_field(form):
        arrays.append(np.zeros((1, 1), np.int32))  # offset of the size field in a file
    images, numbers, *inputs = _inputs(form, feed, arrays)
    rest = iter(inputs)
    nodes = [{name: next(rest) for name in step} for step in template]
    outputs = {}
    if form.input == PATHS:
        outputs["encoded"] = images = fn.io.file.read(images, dont_use_mmap=True)
        outputs["lengths"] = images.shape()
    if has_size_field(form):
        outputs["size_field"] = graph.part_of(images, next(rest), SIZE_FIELD)
    if not form.reads:
        outputs |= _pixels(plan, form, device, images, nodes, load)
    outputs["numbers"] = numbers
    return outputs


def _inputs(form: Form, feed: Feed, arrays: list[np.ndarray]) -> list:
    """Return the input nodes of the images, of the sample numbers, and of each array."""
    dtypes = [types.UINT8, types.INT64] + [_TYPES[array.dtype.name] for array in arrays]
    ndim = [1, 0] + [array.ndim - 1 for array in arrays]
    if form.input == PATHS:
        return feed.source(dtypes, ndim)
    images = feed.source(dtypes[:1], ndim[:1], copies=COPIES_IMAGES)
    return images + feed.source(dtypes[1:], ndim[1:])


def _pixels(
    plan: Plan, form: Form, device: torch.device, given: Any, nodes: list[dict[str, Any]], load: float
) -> dict[str, Any]:
    """Return the output nodes of the images by name. ``given`` is the images' input node, and ``nodes`` has the
    argument nodes of each step."""
    turned = nodes[-1] if form.turns else None
    rest = iter(nodes)
    chains = [[(step, next(rest)) for step in chain.dali] for chain in plan.chains]
    steps = [] if plan.views else chains[0]
    where, window = "mixed" if device.type == "cuda" else "cpu", None
    if _begins_with_a_window(steps):
        window = steps.pop(0)[1]
    whole = form.keep or form.fancy  # nvJPEG before 13.2 warns about each window decoded with fancy upsampling
    images = graph.decode(given, where, plan.exact, form.fancy, None if whole else window, load)
    images = images if turned is None else graph.rotate(images, turned)
    kept = {"decoded": images} if form.keep else {}
    images = graph.crop(images, window, inside=True) if whole and window is not None else images
    made = [_view(images, chain, where) if plan.views else _after(images, chain) for chain in chains]
    return {f"{IMAGES}{number}": one for number, one in enumerate(made)} | kept


def _begins_with_a_window(steps) -> bool:
    return bool(steps) and _is_window(steps[0][0])


def _is_window(step: Step) -> bool:
    return step.op == "crop" and bool(step.kwargs["inside"])


def rotation_arrays(
    plan: Plan, form: Form, arrays: list[Arrays], orientations: np.ndarray, sizes: np.ndarray
) -> list[Arrays]:
    """Return the arrays of a plan's steps, followed by the arguments of graph.rotate().

    If the decoder crops to the window of the first step, this window is converted to coordinates of the unrotated
    image.

    Args:
        orientations: (N,) EXIF orientations.
        sizes: (N, 2), (height, width) of the rotated images.
    """
    on_side = (orientations >= ON_ITS_SIDE)[:, None]
    mirrored = np.stack([np.isin(orientations, numbers) for numbers in _MIRRORED], 1)  # rows, columns
    decoded = np.where(on_side, sizes[:, ::-1], sizes)
    if plan.dali and not (plan.views or form.keep or form.fancy) and _is_window(plan.dali[0]):
        start, sizes = arrays[0]["start"], arrays[0]["shape"]
        start, shape = (np.where(on_side, one[:, ::-1], one) for one in (start, sizes))
        start = np.where(mirrored, decoded - start - shape, start).astype(np.int32)
        arrays, decoded = [{"start": start, "shape": shape}, *arrays[1:]], shape
    matrix = np.zeros((len(sizes), 3, 3), np.float32)
    matrix[:, 2, 2] = 1
    for axis in range(2):  # x and y in the unrotated image
        flips = mirrored[:, 1 - axis]
        matrix[np.arange(len(sizes)), axis, np.where(on_side[:, 0], 1 - axis, axis)] = 1 - 2 * flips
        matrix[:, axis, 2] = flips * decoded[:, 1 - axis]
    return [*arrays, {"matrix": matrix, "size": sizes.astype(np.float32)}]


def _view(images, steps, where: str):
    """Run the steps of one view (one of a sample's several images)."""
    if where == "cpu" and _begins_with_a_window(steps):  # faster than graph.crop()
        return _after(graph.window(images, **steps[0][1]), steps[1:])
    return _after(images, steps)


def _after(images, steps):
    for step, arrays in steps:
        images = getattr(graph, step.op)(images, arrays, **step.kwargs)
    return images
