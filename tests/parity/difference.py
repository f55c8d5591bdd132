"""Measure the difference between the loader's images and torchvision's, in levels of 0..255."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves
from torchvision import transforms as v1
from torchvision.datasets.folder import IMG_EXTENSIONS, pil_loader

from dali_compat.data.folder import DALIImageFolder
from dali_compat.engine.planes.engines import known_engine
from dali_compat.loader import DataLoader
from dali_compat.plan import Plan
from dali_compat.routes import FallbackRoute
from dali_compat.routes.dali import DaliRoute

from .reference import reference

BATCH = 16
_KEPT = 256  # number of decoded images to keep in memory
_LOOKS, _PATIENCE = 5, 300  # number of epochs that compare a JPEG engine's pixels, and a time limit in seconds for each


class Mismatch(Exception):
    """The shapes or dtypes of our images differ from torchvision's."""


class PixelErrors:
    """Accumulate absolute differences over all values of all images, in levels."""

    def __init__(self):
        self._sum, self._count, self._max, self._worst, self.images = 0.0, 0, 0.0, 0.0, 0

    def add(self, mine: Any, theirs: Any, unit: np.ndarray) -> None:
        """Add one sample: an image (a tensor or a PIL image), or a structure of images."""
        mine, theirs = tree_leaves(mine), tree_leaves(theirs)
        if len(mine) != len(theirs):
            raise Mismatch(f"{len(mine)} images in a sample, torchvision gives {len(theirs)}")
        total, count = 0.0, 0
        for a, b in zip(map(as_tensor, mine), map(as_tensor, theirs), strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Mismatch(f"{tuple(a.shape)} {a.dtype}, torchvision gives {tuple(b.shape)} {b.dtype}")
            count += a.numel()
            if not torch.equal(a, b):  # costs a tenth of computing the difference
                difference = (a.double() - b.double()).abs().numpy() * along(unit, a)
                total += difference.sum()
                self._max = float(np.maximum(self._max, difference.max(initial=0)))  # propagates NaN
        self._sum, self._count, self.images = self._sum + total, self._count + count, self.images + 1
        self._worst = float(np.maximum(self._worst, total / max(count, 1)))

    def result(self) -> dict[str, float]:
        return {"mean": float(self._sum / max(self._count, 1)), "max": self._max, "worst_image_mean": self._worst}


def as_tensor(image) -> torch.Tensor:
    if isinstance(image, Image.Image):
        return v1.functional.pil_to_tensor(image)
    return torch.as_tensor(image).detach().cpu().as_subclass(torch.Tensor)


def along(numbers: np.ndarray, image: torch.Tensor) -> np.ndarray:
    """Return the numbers of the channels as (C, 1, 1) if the image has these channels."""
    has_them = image.ndim >= 3 and image.shape[-3] == numbers.size
    return numbers.reshape(-1, 1, 1) if has_them else np.asarray(numbers.mean())


def levels(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return the (unit, offset) of each channel that undo a plan's conversions and normalizations, in levels of
    0..255."""
    unit: np.ndarray = np.ones(1)
    offset: np.ndarray = np.zeros(1)
    one = plan.chains[0]  # views have the same conversions
    before = one.takes
    for step in one.steps:
        if step.op == "normalize":
            offset = offset + unit * np.array(step.kwargs["mean"])
            unit = unit * np.array(step.kwargs["std"])
        elif step.op in ("to_dtype", "tensor_to_pil") and step.kwargs.get("like") != "cast":
            was, now = before.dtype.is_floating_point, step.gives.dtype.is_floating_point
            unit = unit * 255.0 ** (now - was)
        before = step.gives
    return unit, offset


# ---- the pictures


class Pictures:
    """Evenly chosen images of a folder, with or without class folders."""

    def __init__(self, folder: Path, most: int | None = None):
        if not folder.is_dir():
            raise SystemExit(f"parity: {folder} is not a folder")
        root = folder
        if not any(path.is_dir() for path in folder.iterdir()):  # no class folders: all images form one class
            self._around = tempfile.TemporaryDirectory(prefix="dali_compat_parity_")
            root = Path(self._around.name)
            (root / "all").symlink_to(folder.resolve())
        try:
            self._all = DALIImageFolder(root, allow_empty=True)
        except FileNotFoundError as error:
            raise SystemExit(f"parity: {error}") from None
        found = self._all.samples
        if not found:
            raise SystemExit(f"parity: {folder} has no images ({' '.join(IMG_EXTENSIONS)})")
        chosen = np.linspace(0, len(found) - 1, min(most or len(found), len(found))).round().astype(int)
        self.folder, self.samples = folder, [found[i] for i in chosen]
        self._decoded: dict[str, Image.Image] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def dataset(self, transform) -> DALIImageFolder:
        dataset = copy.copy(self._all)
        dataset.transform, dataset.samples = transform, self.samples
        return dataset

    def batches(self):
        """Yield (index of the first image, images decoded as by torchvision)."""
        for start in range(0, len(self), BATCH):
            paths = [path for path, _ in self.samples[start : start + BATCH]]
            images = [self._decoded.get(path) or pil_loader(path) for path in paths]
            if len(self) <= _KEPT:
                self._decoded.update(zip(paths, images, strict=True))
            yield start, images

    def facts(self) -> dict[str, Any]:
        sizes = [os.path.getsize(path) for path, _ in self.samples]
        return {"folder": str(self.folder), "images": len(self), "mean_bytes": round(sum(sizes) / len(sizes))}


# ---- measuring


class _Stream:
    """Batches of one epoch of this package. With ``exact``, a GPU's JPEG engine decodes the files that it may.

    Attributes:
        jpegs: A description of how many files that engine decodes; "" without an engine.
    """

    jpegs = ""

    def __init__(self, pictures: Pictures, transform, device, exact: bool):
        self.loader = DataLoader(
            pictures.dataset(transform), BATCH, collate_fn=_images, device=device, exact=exact, fallback="silent"
        )
        route = self._begin()
        if route.uses_jpeg_engine:
            see(self.loader.__iter__, self.loader.explain, route.device)
            self.jpegs = route.compared_jpegs
            route = self._begin()
        self.seed, self.plan, self.device = int(self.batches._base_seed), route.plans[0], route.device

    def _begin(self) -> DaliRoute:
        torch.manual_seed(0)
        self.batches = iter(self.loader)
        route = self.loader._route
        if isinstance(route, FallbackRoute):
            raise SystemExit(f"parity: {route.reason}")
        assert isinstance(route, DaliRoute)  # the data set is an image folder
        return route

    @property
    def key(self) -> tuple:
        return tuple((one.steps, one.dali, one.batch) for one in self.plan.chains)


def see(epoch: Callable[[], Iterable], account: Callable[[], str], device: torch.device) -> None:
    """Run whole epochs, up to a limit, until a GPU's JPEG engine was compared with Pillow's pixels for every file.

    An epoch that drops its last batch skips some files.

    Args:
        epoch: Returns the batches of one epoch.
        account: The loader's explain().
    """
    for _ in range(_LOOKS):
        deque(epoch(), 0)
        engine = known_engine(device)
        if engine is not None and not isinstance(engine, str):
            engine.wait_for_comparisons(_PATIENCE)
        if "not been compared yet" not in account():
            return


def _images(samples) -> list:
    return [image for image, _ in samples]


def measure(
    pictures: Pictures,
    transforms: list[Callable],
    device: str | None,
    tensors: Callable | None = None,
    keep: Callable = lambda *_: None,
) -> tuple[dict, list[Plan]]:
    """Measure the default and exact=True for a transform in one or several forms, and keep the largest errors.

    Forms with equal plans are loaded once.

    Args:
        tensors: The last form on tensors instead of PIL images, to measure torchvision's difference between the two.
        keep: Called as ``keep(mine, theirs, exact)`` with every sample of the first form.

    Returns:
        {"default": ..., "exact": ..., "tensors": ...}, as PixelErrors.result(), and the plan of each form. "tensors" is
        None if not requested or not supported by torchvision. "jpegs" describes how many files a GPU's JPEG engine
        decoded with exact=True.

    Raises:
        Mismatch: Shapes or dtypes differ.
    """
    errors = {exact: [PixelErrors() for _ in transforms] for exact in (False, True)}
    apart = PixelErrors()
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        streams = {exact: _streams(pictures, transforms, device, exact, stack) for exact in (False, True)}
        plans = [stream.plan for stream in streams[False]]
        units = [levels(plan)[0] for plan in plans]
        seed = streams[False][0].seed
        for start, images in pictures.batches():
            wanted = [reference(way, plan, images, seed, start) for way, plan in zip(transforms, plans, strict=True)]
            for exact, of_ways in streams.items():
                made = {id(stream): next(stream.batches) for stream in dict.fromkeys(of_ways)}
                for i, stream in enumerate(of_ways):
                    for mine, theirs in zip(made[id(stream)], wanted[i], strict=True):
                        errors[exact][i].add(mine, theirs, units[i])
                        if i == 0:
                            keep(mine, theirs, exact)
            if tensors is not None:
                tensors = _add_tensors(apart, tensors, plans[-1], images, seed, start, wanted[-1], units[-1])
    worst = {exact: _largest([e.result() for e in found]) for exact, found in errors.items()}
    result: dict[str, Any] = {"default": worst[False], "exact": worst[True]}
    result |= {"tensors": apart.result() if tensors else None, "jpegs": streams[True][0].jpegs}
    return result, plans


def _add_tensors(errors, tensors, plan, images, seed, start, wanted, unit) -> Callable | None:
    """Return the transform of tensors, or None if torchvision has none."""
    try:
        for made, theirs in zip(reference(tensors, plan, images, seed, start), wanted, strict=True):
            errors.add(made, theirs, unit)
    except Exception:
        return None
    return tensors


def _streams(pictures, transforms, device, exact, stack) -> list[_Stream]:
    by_plan: dict[tuple, _Stream] = {}
    streams = []
    for transform in transforms:
        stream = _Stream(pictures, transform, device, exact)
        known = by_plan.setdefault(stream.key, stream)
        if known is stream:
            stack.callback(stream.loader.close)
        else:
            stream.loader.close()
        streams.append(known)
    return streams


def _largest(results: list[dict]) -> dict:
    return {name: max(result[name] for result in results) for name in results[0]}
