"""timm's transforms with the random numbers that a plan of dali_compat has drawn."""

import contextlib
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import timm.data.auto_augment as aa
import timm.data.random_erasing as erasing
import timm.data.transforms as tt
import torch

from dali_compat.ops.draws import compute, uniforms_of
from dali_compat.ops.pixels import squares
from dali_compat.ops.timm_operations import UNIFORMS
from dali_compat.randoms import Randoms


def reference(transform, steps, image, seed: int, position: int):
    """Return timm's transform of one image of an epoch."""
    with dictated(steps, image.size[::-1], seed, position):
        return transform(image)


@contextlib.contextmanager
def dictated(steps, size, seed: int, position: int):
    """Make timm and torchvision draw the numbers that ``steps`` draw for an image of this size."""
    randoms = Randoms(seed, position, 1)
    arrays = compute(steps, np.array([size], np.int64), randoms, slice(None))
    rows = [{name: array[0] for name, array in values.items()} for values in arrays]
    own = {step.stream: randoms(step.stream, uniforms_of(step.draw))[0] for step in steps if step.draw is not None}
    named = {step.draw.name: (step, row, own[step.stream]) for step, row in zip(steps, rows, strict=True) if step.draw}
    patches = [mock.patch.object(torch, "rand", _never)]
    if "random_resized_crop" in named:
        row = named["random_resized_crop"][1]
        window = (*row["start"].tolist(), *row["shape"].tolist())
        patches.append(mock.patch.object(tt.RandomResizedCropAndInterpolation, "get_params", return_value=window))
    if "with_choice" in named:
        choice = named["with_choice"][1]["choice"]
        patches.append(mock.patch.object(tt, "random", SimpleNamespace(choice=lambda modes: modes[choice])))
    if "bernoulli" in named:
        flag = named["bernoulli"][1]["flag"]
        patches.append(mock.patch.object(torch, "rand", return_value=torch.tensor([0.0 if flag else 1.0])))
    policy = next((named[name] for name in named if name.startswith(("timm_rand", "timm_auto"))), None)
    if policy is not None:
        patches += _of_policy(_Policy(policy[0].draw, policy[2]))
    if "timm_erasing" in named:
        step, _, numbers = named["timm_erasing"]
        patches += _of_erasing(_Erasing(dict(step.draw.args), numbers, step.op))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _never(*_, **__):
    raise AssertionError("a number is drawn that no step has drawn")


# ---- policies


class _Policy:
    """A replacement for np.random and Python's random that returns the numbers of a step."""

    def __init__(self, drawn, numbers):
        self.args, self.name = dict(drawn.args), drawn.name
        self._u, self._ops, self._own = numbers, 0, None

    # np.random

    def choice(self, ops, count=None, replace=True, p=None):
        if count is None:  # Python's choice, of sub-policies or interpolations
            at = self._u[0] if self._own is None else self._own[4]
            return ops[int(at * len(ops))]
        assert count == self.args["layers"] and replace is (p is None)
        left, chosen = list(range(len(ops))), []
        for u in self._u[:count]:
            weights = [1.0 if p is None else p[i] for i in left]
            sums = np.cumsum(weights) / sum(weights)
            chosen.append(left[int(np.searchsorted(sums, u, "right"))])
            if p is not None:
                left.remove(chosen[-1])
        return [ops[i] for i in chosen]

    # Python's random, within an operation

    def begin(self, op):
        at = self.args.get("layers", 1) + UNIFORMS * self._ops
        self._own, self._coin, self._ops = self._u[at : at + UNIFORMS].tolist(), op.prob < 1, self._ops + 1

    def end(self):
        self._own = None

    def random(self):
        at, self._coin = (0 if self._coin else 3), False
        return self._own[at]

    def uniform(self, low, high):
        return low + (high - low) * self._own[1 if low == 0 else 5]

    def gauss(self, mu, sigma):
        return mu + math.cos(self._own[1] * 2 * math.pi) * math.sqrt(-2 * math.log(1 - self._own[2])) * sigma


class _Numpy:
    """numpy with a different np.random."""

    def __init__(self, its):
        self.random = its

    def __getattr__(self, name):
        return getattr(np, name)


def _of_policy(numbers):
    own = aa.AugmentOp.__call__

    def called(self, image):
        numbers.begin(self)
        try:
            return own(self, image)
        finally:
            numbers.end()

    yield mock.patch.object(aa, "np", _Numpy(numbers))
    yield mock.patch.object(aa, "random", numbers)
    yield mock.patch.object(aa.AugmentOp, "__call__", called)


# ---- RandomErasing


class _Erasing:
    """A replacement for Python's random."""

    def __init__(self, args, numbers, op):
        self._u, self._op, self._window = numbers, op, -1
        self._counted = args["counts"][0] == args["counts"][1]

    def begin(self):
        """Begin a window."""
        self._window += 1
        self._own, self._tried, self.place = self._u[2 + 23 * self._window :][:23], 0, []

    def random(self):
        return self._u[0]

    def randint(self, low, high):
        if not self._counted:
            self._counted = True
            return low + int(self._u[1] * (high - low + 1))
        self.place.append(low + int(self._own[20 + len(self.place)] * (high - low + 1)))
        return self.place[-1]

    def uniform(self, low, high):
        """Return the area and aspect of each try in turn."""
        at, self._tried = self._tried // 2 + 10 * (self._tried % 2), self._tried + 1
        return low + (high - low) * self._own[at]

    def pixels(self, count):
        return squares.normals(np.array([int(self._own[22] * 2**53)]), count, torch.device("cpu"))[0]


def _of_erasing(numbers):
    own = erasing.RandomErasing._erase

    def counted(stop):
        if stop == 10:  # the tries of a window
            numbers.begin()
        return range(stop)

    def erase(self, image, *args):
        def fill(per_pixel, rand_color, size, **_):
            if rand_color:
                return numbers.pixels(size[0]).view(-1, 1, 1)
            if not per_pixel:
                return torch.zeros(size[0], 1, 1)
            top, left = numbers.place
            return numbers.pixels(image.numel()).view(image.shape)[:, top : top + size[1], left : left + size[2]]

        with mock.patch.object(erasing, "_get_pixels", fill):
            return own(self, image, *args)

    yield mock.patch.object(erasing, "random", numbers)
    yield mock.patch.object(erasing, "range", counted, create=True)
    yield mock.patch.object(erasing.RandomErasing, "_erase", erase)
