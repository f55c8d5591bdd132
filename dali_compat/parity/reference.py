"""torchvision as the reference: its own transform objects, given the numbers that a plan of ours has drawn.

The transform runs as it is, on PIL images, one after another. While it runs, what torchvision draws from answers with
what compute() has drawn for that image: torch.rand and its kin, random.shuffle and random.choices, the get_params and
make_params of windows, and the operations of AutoAugment and its kin, whose name and magnitude are then ours. No engine
of this package takes part. Draws that torchvision does not ask for, in their order, are an error.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

from ..draws import Randoms, compute, is_random, own_generators
from ..draws.registry import lookup, run
from ..lower import continued
from ..plan import Plan, Step
from ..workers.images import spec_of
from .dictation import Disagreement, dictated


def reference(transform: Callable, plan: Plan, images: Iterable, seed: int = 0, position: int = 0) -> list:
    """What torchvision's transform gives for images ``position``, ``position + 1`` ... of an epoch.

    Args:
        transform: takes a PIL image.
        plan: made of the transform (or of one that draws the same); its steps say what is drawn.
        images: paths, or PIL images.
        seed: the epoch's base seed.

    Raises:
        Disagreement: torchvision draws something else than the plan, or in another order.
    """
    numbers = _Numbers()
    results = []
    with dictated(numbers):
        for place, image in enumerate(images, position):
            image = image if isinstance(image, Image.Image) else pil_loader(image)
            results.append(_one(transform, plan, image, numbers, seed, place))
    return results


def _one(transform, plan: Plan, image, numbers: _Numbers, seed: int, position: int):
    """One image; functions without a translation draw for themselves, as calls.py lets them."""

    def called(functions, image):
        numbers.finish()
        with numbers.silent(), own_generators(seed, position):
            for function in functions:
                image = function(image)
        return image

    numbers.draw(plan, image, seed, position)
    waiting = [transform]
    while waiting and plan.call is not None:
        transform, call = waiting.pop(), plan.call
        if transform is call.functions[0] and len(waiting) + 1 == len(call.functions) + len(call.rest):
            image = called(call.functions, image)
            spec, waiting = spec_of(image), list(reversed(call.rest))
            if spec is None:
                return called(call.rest, image)
            plan = continued(plan, spec.but(size=None))
            numbers.draw(plan, image, seed, position)
        elif type(transform) in (v1.Compose, v2.Compose, nn.Sequential):
            waiting += reversed(list(getattr(transform, "transforms", transform)))
        elif transform is not None:
            image = transform(image)
    for transform in reversed(waiting):
        image = transform(image) if transform is not None else image
    numbers.finish()
    return image


# ---- what is drawn for one image


class _Numbers:
    """Answers to what torchvision asks for, in its order: pairs of a kind and a value."""

    def __init__(self):
        self._left: deque[tuple[str, Any]] = deque()
        self._thread = threading.get_ident()
        self._silent = False

    def draw(self, plan: Plan, image, seed: int, position: int) -> None:
        size = image.size[::-1] if isinstance(image, Image.Image) else image.shape[-2:]
        sizes, randoms = np.array([tuple(size)], np.int64), Randoms(seed, position, 1)
        chosen: dict[int, np.ndarray] = {}
        for step, arrays in zip(plan.steps, compute(plan.steps, sizes, randoms, slice(None)), strict=True):
            if not is_random(step) or not all(_is_open(gate, chosen) for gate in step.when):
                continue
            if step.op == "choose":
                assert step.draw is not None  # it is random
                arrays, _ = run(step.draw, sizes, randoms(step.stream, lookup(step.draw)[0]))
                chosen[step.stream] = next(iter(arrays.values()))[0]
            self._left += _answers(step, {name: array[0] for name, array in arrays.items()})

    @property
    def kind(self) -> str:
        return self._left[0][0] if self._left else "nothing"

    def take(self, *kinds: str):
        if self.kind not in kinds:
            raise Disagreement(f"torchvision asks for {' or '.join(kinds)} where the plan has {self.kind}")
        return self._left.popleft()[1]

    def finish(self) -> None:
        if self._left:
            left = [kind for kind, _ in self._left]
            self._left.clear()
            raise Disagreement(f"torchvision has not asked for {', '.join(left)}")

    @contextlib.contextmanager
    def silent(self):
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    @property
    def speaks(self) -> bool:
        """Loaders may draw at the same time, in threads of their own."""
        return not self._silent and threading.get_ident() == self._thread


def _is_open(gate, chosen) -> bool:
    choice = chosen.get(gate.stream)
    return choice is not None and (choice if choice.ndim == 0 else choice[gate.rank]) == gate.value


def _answers(step: Step, row: dict) -> list[tuple[str, Any]]:
    """``row``: the step's arrays for one image."""
    assert step.draw is not None
    name, args = step.draw.name, dict(step.draw.args)
    if name in ("bernoulli", "bernoulli_with"):
        return [_coin(row["flag"])]
    if name == "choice":
        return [("choice", int(row["choice"]))]
    if name in ("order", "channel_permutation"):
        return [("order", row["order"].tolist())]
    if name == "color_jitter":
        factors = [
            ("uniform", row[factor]) for factor in ("brightness", "contrast", "saturation", "hue") if factor in row
        ]
        return [("order", row["order"].tolist()), *factors]
    if name == "photometric_distort":
        return _photometric_distort(row)
    if name == "rotation":
        return [("uniform", row["angle"])]
    if name == "affine_parameters":
        shears = len(args["shear"] or ()) // 2
        given = {"translate": 2 * (args["translate"] is not None), "scale": args["scale"] is not None, "shear": shears}
        values = [value for key, count in given.items() for value in np.atleast_1d(row[key])[:count]]
        return [("uniform", row["angle"]), *(("uniform", value) for value in values)]
    if name == "perspective_points":
        return [_coin(row["flag"]), *(("whole", int(v)) for v in row["endpoints"].flat if row["flag"])]
    if name == "blur_sigma":
        return [("uniform", row["sigma"][0])]
    if name == "jpeg_quality":
        return [("whole", int(row["quality"]))]
    if name in ("random_crop", "random_resized_crop"):
        return [("window", row)]
    if name == "erasing":
        return [_coin(row["flag"]), *([("window", row)] if row["flag"] else [])]
    if name == "zoom_out":  # an image that stays as it is gets no border, too
        return [_coin(True), ("window", row)] if args["p"] else [_coin(False)]
    if name in ("scale_jitter", "random_shortest_size"):
        return [("size", row["size"].astype(int).tolist())]
    if name == "random_resize":
        return [("whole", int(row["size"].min()))]
    if name == "random_key":
        return [("field", (row["key"], i)) for i in (0, 1)] if step.op == "elastic" else [("noise", row["key"])]
    if name in ("auto_augment", "rand_augment", "trivial_augment_wide"):
        applied = row.get("flag", 1) or name != "auto_augment"
        return [("operation", (step.kwargs["names"][row["which"]], float(row["magnitude"])) if applied else None)]
    if name == "aug_mix":
        return _aug_mix(row, step.kwargs["names"], random_depth=args["chain_depth"] <= 0)
    raise NotImplementedError(f"torchvision draws no {name!r}: a translation of one's own cannot be compared")


def _coin(yes) -> tuple[str, float]:
    """For ``torch.rand(1) < p``, whichever p."""
    return "coin", 0.0 if yes else 1.0


def _photometric_distort(row):
    before, after = (float(row[f"contrast_{when}"]) for when in ("before", "after"))
    contrast = after if np.isnan(before) else before
    answers: list[tuple[str, Any]] = []
    for factor in (row["brightness"], contrast, row["saturation"], row["hue"]):
        answers += [_coin(False)] if np.isnan(factor) else [_coin(True), ("uniform", factor)]
    answers.append(_coin(not np.isnan(before)))
    order = row["order"].tolist()
    return answers + ([_coin(False)] if order[0] < 0 else [_coin(True), ("order", order)])


def _aug_mix(row, names, random_depth: bool):
    # torchvision multiplies the chains' weights by the second of the first two, which ours contain already
    answers = [("dirichlet", [row["mix"][0], 1.0]), ("dirichlet", row["mix"][1:].tolist())]
    for which, magnitudes in zip(row["which"], row["magnitude"].tolist(), strict=True):
        chain = [
            ("operation", (names[op], magnitude)) for op, magnitude in zip(which, magnitudes, strict=True) if op >= 0
        ]
        answers += [*([("whole", len(chain))] if random_depth else []), *chain]
    return answers
