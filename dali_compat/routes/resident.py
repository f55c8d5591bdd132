"""The resident route for arrays (data/arrays.py). Images are copied to the device once and transformed there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.utils.data as data

from ..data.arrays import images_of, raw_targets, spec_of, target_table
from ..data.base_datasets import leaves_of
from ..errors import Unsupported
from ..plan import Options, Plan
from ..runtime.device import free_memory
from ..runtime.internals import version_of
from ..runtime.messages import in_bytes
from ..translate import translate
from ..translate.lower import lower

SHARE = 0.5  # largest share of the device's free memory for the images
# Size in bytes of the images that are computed together. 16 MiB fit in a CPU's cache. On a GPU, computing fewer images
# would take less time than launching the kernels. The computation uses 2.5 times as much memory.
_CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 16 << 20}
_CHUNK_SHARE = 1 / 64  # share of a GPU's memory, if this is less
_AT_A_TIME = 64 << 20  # bytes to copy to the device at a time


class _Pixels:
    """A copy of an array's images on a device, (N, C, H, W). All loaders of the array share it."""

    def __init__(self, of: Any, images: torch.Tensor, device: torch.device):
        self.of = of  # keeps its id() from being reused
        self.images = _copy(images, device)


_shared: WeakValueDictionary[tuple, _Pixels] = WeakValueDictionary()


class _Targets:
    """The targets of a data set on the device, and a copy of the originals to detect changes."""

    def __init__(self, dataset: data.Dataset, device: torch.device):
        self._raw, table = raw_targets(dataset), target_table(dataset)
        self._compat = getattr(dataset, "compat", None)  # of QMNIST; whether targets are labels or vectors
        self._copy = _copied(self._raw)
        self.table = None if table is None else table.to(device, copy=True)  # None as in target_table()

    def is_current(self, dataset: data.Dataset) -> bool:
        """Return True if the targets are on the device, and were neither replaced nor modified in place."""
        raw, compat = raw_targets(dataset), getattr(dataset, "compat", None)
        return raw is self._raw and compat == self._compat and self.table is not None and _equal(raw, self._copy)


@dataclass
class ResidentDataset:
    dataset: Any
    array: Any  # the data set's attribute ``data``
    plan: Plan  # plan of the data set's transform
    images: torch.Tensor  # (N, C, H, W) on the host
    key: tuple  # cache key of the copy on the device
    pixels: _Pixels | None = None  # the copy on the device; None before an epoch begins
    targets: _Targets | None = None  # None before an epoch begins

    def __len__(self) -> int:
        return len(self.images)

    @property
    def on_device(self) -> torch.Tensor:
        """The images on the device. The first epoch copies them."""
        assert self.pixels is not None
        return self.pixels.images

    @property
    def table(self) -> torch.Tensor | None:
        return None if self.targets is None else self.targets.table

    @property
    def bytes(self) -> int:
        return self.images.numel()


@dataclass
class ResidentRoute:
    device: torch.device
    depth: int
    plans: list[Plan]  # one per distinct transform, in order
    datasets: dict[int, ResidentDataset]  # leaves of the data set, by id()

    def close(self) -> None:
        """Release the copies on the device. Active iterators keep theirs."""
        self.datasets = {}

    @property
    def memory(self) -> int:
        """Bytes of the arrays' copies on the device. Other loaders may share them."""
        datasets = list(self.datasets.values())
        return sum(one.bytes for one in datasets if one.pixels is not None and self._copies(one))

    @property
    def samples_at_once(self) -> int:
        """Number of samples to compute together. It is 1 if a step may return images of an unknown size."""
        if any(s.gives.size is None and s.op != "crop" for plan in self.plans for c in plan.chains for s in c.batch):
            return 1
        most = max(sum(map(_max_image_bytes, plan.chains)) for plan in self.plans)
        budget = _CHUNK_BYTES[self.device.type]
        if self.device.type == "cuda" and torch.cuda.is_initialized():  # explain() must not initialize CUDA
            total = torch.cuda.get_device_properties(self.device).total_memory
            budget = min(budget, int(_CHUNK_SHARE * total))
        return max(1, budget // most)

    def check(self, before: ResidentRoute | None) -> None:
        """Raise Unsupported if the device lacks memory for the images that are not on it yet. Memory that only the
        previous route ``before`` uses counts as free."""
        missing = {one.key: one.bytes for one in self.datasets.values() if one.pixels is None and self._copies(one)}
        if not missing:
            return
        kept = {one.key for one in self.datasets.values()}
        old = {one.key: one.bytes for one in before.datasets.values() if one.pixels} if before else {}
        left = sum(size for key, size in old.items() if key not in kept)
        needed, room = sum(missing.values()), int(SHARE * (free_memory(self.device) + left))
        if needed > room:
            raise Unsupported(
                f"the images take {in_bytes(needed)}, but the limit is {in_bytes(room)}, {SHARE:.0%} of the free "
                f"memory of {self.device}; free some memory, or use device='cpu'"
            )

    def load(self, before: ResidentRoute | None) -> None:
        """Close the previous route ``before``, and copy the images and targets that are not on the device yet."""
        if before is not None:
            before.close()
        for one in self.datasets.values():
            if one.pixels is None:
                one.pixels = _shared.get(one.key) or _Pixels(one.array, one.images, self.device)
                _shared[one.key] = one.pixels
            if one.targets is None or not one.targets.is_current(one.dataset):
                one.targets = _Targets(one.dataset, self.device)

    def _copies(self, one: ResidentDataset) -> bool:
        return self.device.type != "cpu" or not one.images.is_contiguous()

    def describe(self) -> str:
        """Return the first line of explain()."""
        sets = [
            f"{len(one)} images of {one.images.shape[3]}x{one.images.shape[2]}, {in_bytes(one.bytes)}"
            for one in self.datasets.values()
        ]
        return (
            f"resident on {self.device}: {' + '.join(sets)}; up to {self.samples_at_once} samples are transformed "
            "together, and batches are slices of these"
        )


def resident_route(loader, device: torch.device, depth: int, before, start: bool) -> ResidentRoute:
    """Return the resident route for a loader. Raise Unsupported, with the reason, if it cannot be used. ``before`` and
    ``start`` are as for choose()."""
    if device.type not in _CHUNK_BYTES:
        raise Unsupported(f"arrays can be kept on a CPU or a CUDA GPU, not on {device}; pass another device")
    before = before if isinstance(before, ResidentRoute) and before.device == device else None
    known = {plan.key: plan for plan in before.plans} if before else {}
    options = Options(loader.exact, loader.memory_format == torch.channels_last, device.type == "cuda")
    datasets = {}
    for dataset in leaves_of(loader.dataset):
        if id(dataset) not in datasets:
            images, array = images_of(dataset), dataset.data
            plan = lower(translate(dataset.transform, spec_of(images), views=True), options, decoded=True)
            plan, key = known.setdefault(plan.key, plan), _key(array, images, device)
            if dataset.target_transform is not None and loader.on_error_in_python and loader.on_error != "raise":
                raise Unsupported(
                    "on_error_in_python=True needs torch's loader, which calls target_transform sample by sample"
                )
            datasets[id(dataset)] = ResidentDataset(dataset, array, plan, images, key, _shared.get(key))
    route = ResidentRoute(device, depth, list(dict.fromkeys(one.plan for one in datasets.values())), datasets)
    if before:
        for number, one in before.datasets.items():
            if number in datasets and datasets[number].dataset is one.dataset:
                datasets[number].targets = one.targets
    if start or device.type == "cpu" or torch.cuda.is_initialized():
        route.check(before)
    if start:
        with torch.inference_mode(False):  # normal tensors, which can be used in every mode
            route.load(before)
    return route


def _key(array, images: torch.Tensor, device: torch.device) -> tuple:
    """Return a cache key for the copy of an array on the device. If a tensor is modified in place, its key changes,
    except for inference tensors."""
    counts = isinstance(array, torch.Tensor) and not array.is_inference()
    return id(array), version_of(array) if counts else None, images.shape, images.stride(), device


def _copy(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return contiguous (N, C, H, W) images on the device, copied if necessary."""
    if device.type == "cpu":
        return images.contiguous()
    made = torch.empty(images.shape, dtype=images.dtype, device=device)
    count = max(1, _AT_A_TIME // max(1, images[:1].numel()))
    for begin in range(0, len(images), count):
        made[begin : begin + count] = images[begin : begin + count].to(device)
    return made


def _max_image_bytes(plan: Plan) -> int:
    """Return the largest size in bytes of an image before or after a step."""
    return max(map(_image_bytes, (plan.takes, *(s.gives for s in plan.batch))))


def _image_bytes(spec) -> int:
    """Return the size in bytes of one image. Kernels compute in float32 or wider, so a value takes at least 4 bytes."""
    height, width = spec.size or (0, 0)
    return spec.channels * height * width * max(4, spec.dtype.itemsize)


def _copied(targets: Any) -> Any:
    if isinstance(targets, torch.Tensor):
        return targets.clone()
    return targets.copy() if isinstance(targets, np.ndarray) else list(targets)


def _equal(targets: Any, copy: Any) -> bool:
    if isinstance(targets, torch.Tensor):
        return torch.equal(targets, copy)
    return np.array_equal(targets, copy) if isinstance(targets, np.ndarray) else list(targets) == copy
