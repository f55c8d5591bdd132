"""The definition of a plan's pipeline: the nodes of its inputs, and those of its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, types

from ...data.header import STATED
from ...data.sources import DECODED, PATHS, PIXELS_ON_GPU, Form
from ...ops.draws import Arrays
from ...plan import Plan
from . import graph
from .transfer import COPIES_IMAGES, IMAGES, Feed

_TYPES = {"float32": types.FLOAT, "int32": types.INT32, "uint8": types.UINT8}


def states(form: Form) -> bool:
    """Returns whether a pipeline of this form returns what files state of their sizes."""
    return form.given == PATHS and not form.reads


def define(
    plan: Plan, form: Form, device: torch.device, feed: Feed, template: list[Arrays], load: float
) -> dict[str, Any]:
    """The nodes of a pipeline's outputs, by the names that Received.of() knows; the last, "numbers", of its samples.
    It is called while DALI's pipeline is the current one.

    Args:
        plan, form, device, load: as DecodePipeline's.
        feed: gives its inputs.
        template: the arguments of some batch's steps: how many inputs there are, and their types.
    """
    arrays = [array for step in template for array in step.values()]
    if states(form):
        arrays.append(np.zeros((1, 1), np.int32))  # where they state their sizes
    images, numbers, *inputs = _inputs(form, device, feed, arrays)
    rest = iter(inputs)
    nodes = [{name: next(rest) for name in step} for step in template]
    outputs = {}
    if form.given == PATHS:
        outputs["encoded"] = images = fn.io.file.read(images, dont_use_mmap=True)
        outputs["lengths"] = images.shape()
    if states(form):
        outputs["stated"] = graph.part_of(images, next(rest), STATED)
    if not form.reads:
        outputs |= _pixels(plan, form, device, images, nodes, load)
    outputs["numbers"] = numbers
    return outputs


def _inputs(form: Form, device: torch.device, feed: Feed, arrays: list[np.ndarray]) -> list:
    """The nodes of the images, of the samples' numbers, and of the arrays."""
    pixels = form.given in DECODED
    dtypes = [types.UINT8, types.INT64] + [_TYPES[array.dtype.name] for array in arrays]
    ndim = [3 if pixels else 1, 0] + [array.ndim - 1 for array in arrays]
    layout = ["HWC" if pixels else "", ""] + [""] * len(arrays)
    if form.given == PATHS:
        return feed.source(dtypes, ndim, layout)
    if form.given == PIXELS_ON_GPU:
        images = feed.source(dtypes[:1], ndim[:1], None, torch.cuda.Stream(device))
    else:
        images = feed.source(dtypes[:1], ndim[:1], layout[:1], copies=COPIES_IMAGES)
    return images + feed.source(dtypes[1:], ndim[1:], layout[1:])


def _pixels(
    plan: Plan, form: Form, device: torch.device, given: Any, nodes: list[dict[str, Any]], load: float
) -> dict[str, Any]:
    """The outputs that are pixels: what the steps make of the images, ``nodes`` being those of their arguments."""
    rest = iter(nodes)
    chains = [[(step, next(rest)) for step in chain.dali] for chain in plan.chains]
    steps = [] if plan.views else chains[0]
    where, window = "mixed" if device.type == "cuda" else "cpu", None
    if _begins_with_a_window(steps):
        window = steps.pop(0)[1]
    kept = {}
    if form.given in DECODED:
        images = graph.decoded(given, where, form.given == PIXELS_ON_GPU, window)
    elif form.keep or form.fancy:  # nvJPEG before 13.2 warns of every window that it decodes so
        images = graph.decode(given, where, plan.exact, form.fancy, load=load)
        kept = {"decoded": images} if form.keep else {}
        images = images if window is None else graph.crop(images, window, inside=True)
    else:
        images = graph.decode(given, where, plan.exact, window=window, load=load)
    made = [_view(images, chain, where) if plan.views else _after(images, chain) for chain in chains]
    return {f"{IMAGES}{number}": one for number, one in enumerate(made)} | kept


def _begins_with_a_window(steps) -> bool:
    return bool(steps) and steps[0][0].op == "crop" and steps[0][0].kwargs["inside"]


def _view(images, steps, where: str):
    """_after(), where the first step may be a window."""
    if where == "cpu" and _begins_with_a_window(steps):
        return _after(graph.decoded(images, where, False, steps[0][1]), steps[1:])
    return _after(images, steps)


def _after(images, steps):
    """Images after the steps of one chain."""
    for step, arrays in steps:
        images = getattr(graph, step.op)(images, arrays, **step.kwargs)
    return images
