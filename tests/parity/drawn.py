"""torchvision as the reference, random transforms included: its own transform objects, given the numbers that we drew."""

import contextlib
from collections import deque
from unittest import mock

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.params import Randoms, compute
from dali_compat.plan import Plan

_RANDOM = {"random_crop", "random_resized_crop", "bernoulli"}


def parameters(plan: Plan, paths, seed: int = 0, position: int = 0) -> list[dict]:
    """The arrays of every step for samples ``position...`` of the epoch with this seed."""
    return compute(plan.steps, sizes_of(paths), Randoms(seed, position, len(paths)), slice(None))


def sizes_of(paths):
    import numpy as np

    return np.array([Image.open(path).size[::-1] for path in paths], np.int64)


def rows_of(arrays: list[dict], i: int) -> list[dict]:
    return [{name: array[i] for name, array in step.items()} for step in arrays]


def reference(transform, plan: Plan, paths, seed: int = 0) -> list[torch.Tensor]:
    """What torchvision's transform makes of the files when it draws what an epoch of ours with this seed draws."""
    arrays = parameters(plan, paths, seed)
    images = []
    for i, path in enumerate(paths):
        draws = deque((s.draw.name, row) for s, row in zip(plan.steps, rows_of(arrays, i)) if s.draw and s.draw.name in _RANDOM)
        with Image.open(path) as file, dictated(draws):
            images.append(transform(file.convert("RGB")))
        assert not draws, f"torchvision has not asked for {[name for name, _ in draws]}"
    return images


@contextlib.contextmanager
def dictated(draws: deque):
    """torchvision takes its random parameters from ``draws``: (name, arrays of one row), in the order of the transforms."""

    def take(*names):
        name, row = draws.popleft()
        assert name in names, f"torchvision draws one of {names} where the plan has {name}"
        return {key: [int(v) for v in value] if value.ndim else int(value) for key, value in row.items()}

    def window(image, *args):
        row = take("random_crop", "random_resized_crop")
        return (*row["start"], *row["shape"])

    def resized_crop(self, inputs):
        top, left, height, width = window(None)
        return {"top": top, "left": left, "height": height, "width": width}

    own_params = v2.RandomCrop.make_params

    def crop(self, inputs):
        top, left, height, width = window(None)
        params = own_params(self, inputs)  # its padding is geometry, not chance
        assert (params["height"], params["width"]) == (height, width)
        return params | {"top": top, "left": left, "needs_crop": True}

    def rand(count):
        assert count == 1
        return torch.tensor([0.0 if take("bernoulli")["flag"] else 1.0])

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (v1.RandomCrop, "get_params", staticmethod(window)),
            (v1.RandomResizedCrop, "get_params", staticmethod(window)),
            (v2.RandomCrop, "make_params", crop),
            (v2.RandomResizedCrop, "make_params", resized_crop),
            (torch, "rand", rand),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
