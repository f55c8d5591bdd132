"""The resident route: data sets of arrays (data/arrays.py) are copied to the device once, and transformed there."""

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
from ..runtime.messages import in_bytes
from ..translate import translate
from ..translate.lower import key_of, lower

SHARE = 0.5  # of the device's free memory, which the images may take
# Batches are computed together until their output has so many bytes. A CPU keeps 16 MiB in its cache. A GPU takes
# longer to begin than to compute, so it takes 1 GiB, or a 64th of its memory where that is less; making them takes 2.5
# times as much.
_TOGETHER = {"cuda": 1 << 30, "cpu": 16 << 20}
_TOGETHER_SHARE = 1 / 64
_AT_A_TIME = 64 << 20  # bytes of images that are copied and brought into order at a time


class _Pixels:
    """The images of an array on a device, (N, C, H, W). Loaders of the same array share them: random_split's, say."""

    def __init__(self, of: Any, images: torch.Tensor, device: torch.device):
        self.of = of  # while this lives no other object gets its id()
        self.images = _copy(images, device)


_shared: WeakValueDictionary[tuple, _Pixels] = WeakValueDictionary()


class _Targets:
    """The targets of a data set, as they were when an epoch began.

    Attributes:
        table: on the device, or None where they are no tensor.
    """

    def __init__(self, dataset: data.Dataset, device: torch.device):
        self._raw, table = raw_targets(dataset), target_table(dataset)
        self._compat = getattr(dataset, "compat", None)  # QMNIST's: labels, or vectors
        self._copy = _copied(self._raw)
        self.table = None if table is None else table.to(device, copy=True)

    def still(self, dataset: data.Dataset) -> bool:
        """Returns whether they are the same; lists and arrays may have changed in place."""
        raw, compat = raw_targets(dataset), getattr(dataset, "compat", None)
        return raw is self._raw and compat == self._compat and self.table is not None and _equal(raw, self._copy)


@dataclass
class Held:
    """A data set on the device.

    Attributes:
        dataset: whose images they are.
        array: its ``data``.
        plan: of its transform.
        images: (N, C, H, W) on the host.
        key: what the copy on the device hangs on.
        pixels, targets: on the device; None before an epoch begins.
    """

    dataset: Any
    array: Any
    plan: Plan
    images: torch.Tensor
    key: tuple
    pixels: _Pixels | None = None
    targets: _Targets | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def on_device(self) -> torch.Tensor:
        """The images there, once an epoch has begun."""
        assert self.pixels is not None
        return self.pixels.images

    @property
    def table(self) -> torch.Tensor | None:
        """The targets there; None where they are no tensor."""
        return None if self.targets is None else self.targets.table

    @property
    def bytes(self) -> int:
        return self.images.numel()


@dataclass
class ResidentRoute:
    """The data set is on the device; torch transforms it there.

    Attributes:
        device: where batches come out.
        depth: batches that Python works on at a time, where a plan calls it.
        plans: one a distinct transform, in the order of the data set's leaves.
        held: the leaves, by id().
    """

    device: torch.device
    depth: int
    plans: list[Plan]
    held: dict[int, Held]

    def close(self) -> None:
        """Iterators that are under way keep what they need."""
        self.held = {}

    @property
    def all_plans(self) -> list[Plan]:
        """The same: arrays have one number of channels."""
        return self.plans

    @property
    def memory(self) -> int:
        """Bytes of pixels that are kept: copies of the arrays, which other loaders of these share."""
        held = list(self.held.values())
        return sum(one.bytes for one in held if one.pixels is not None and self._copies(one))

    @property
    def together(self) -> int:
        """The number of samples that are computed together; 1 where their size is not known: one batch, then."""
        if any(s.gives.size is None and s.op != "crop" for plan in self.plans for c in plan.chains for s in c.batch):
            return 1
        most = max(sum(map(_most, plan.chains)) for plan in self.plans)
        budget = _TOGETHER[self.device.type]
        if self.device.type == "cuda" and torch.cuda.is_initialized():  # explain() must not start CUDA
            total = torch.cuda.get_device_properties(self.device).total_memory
            budget = min(budget, int(_TOGETHER_SHARE * total))
        return max(1, budget // most)

    def check(self, before: ResidentRoute | None) -> None:
        """Checks that what is not on the device yet may go there, now that ``before`` gives its place.

        Raises:
            Unsupported: it takes too much.
        """
        missing = {one.key: one.bytes for one in self.held.values() if one.pixels is None and self._copies(one)}
        if not missing:
            return
        kept = {one.key for one in self.held.values()}
        old = {one.key: one.bytes for one in before.held.values() if one.pixels} if before else {}
        left = sum(size for key, size in old.items() if key not in kept)
        needed, room = sum(missing.values()), int(SHARE * (free_memory(self.device) + left))
        if needed > room:
            raise Unsupported(
                f"its images take {in_bytes(needed)}, and more than {SHARE:.0%} of the free memory of {self.device}, "
                f"{in_bytes(room)}, is not taken for them; free some, or take device='cpu'"
            )

    def load(self, before: ResidentRoute | None) -> None:
        """Bring to the device what is not there yet; ``before`` keeps nothing."""
        if before is not None:
            before.close()
        for one in self.held.values():
            if one.pixels is None:
                one.pixels = _shared.get(one.key) or _Pixels(one.array, one.images, self.device)
                _shared[one.key] = one.pixels
            if one.targets is None or not one.targets.still(one.dataset):
                one.targets = _Targets(one.dataset, self.device)

    def _copies(self, one: Held) -> bool:
        return self.device.type != "cpu" or not one.images.is_contiguous()

    def describe(self) -> str:
        """The first line of an explanation."""
        sets = [
            f"{len(held)} images of {held.images.shape[3]}x{held.images.shape[2]}, {in_bytes(held.bytes)}"
            for held in self.held.values()
        ]
        return (
            f"resident on {self.device}: {' + '.join(sets)}; up to {self.together} samples are transformed together, "
            "and batches are slices of these"
        )


def resident_route(loader, device: torch.device, depth: int, before, start: bool) -> ResidentRoute:
    """The route for a loader whose data set has leaves that hold arrays. ``before`` and ``start`` as choose() has them.

    Raises:
        Unsupported: naming what is in the way.
    """
    if device.type not in _TOGETHER:
        raise Unsupported(f"arrays are kept on CPUs and CUDA GPUs, not on {device}")
    before = before if isinstance(before, ResidentRoute) and before.device == device else None
    known = {key_of(plan): plan for plan in before.plans} if before else {}
    options = Options(loader.exact, loader.memory_format == torch.channels_last, device.type == "cuda")
    held = {}
    for dataset in leaves_of(loader.dataset):
        if id(dataset) not in held:
            images, array = images_of(dataset), dataset.data
            plan = lower(translate(dataset.transform, spec_of(images), views=True), options, decoded=True)
            plan, key = known.setdefault(key_of(plan), plan), _key(array, images, device)
            calls = plan.calls or dataset.target_transform is not None
            if calls and loader.on_error_in_python and loader.on_error != "raise":
                raise Unsupported(
                    "on_error_in_python with a function on arrays: torch's loader calls it sample by sample"
                )
            held[id(dataset)] = Held(dataset, array, plan, images, key, _shared.get(key))
    route = ResidentRoute(device, depth, list(dict.fromkeys(one.plan for one in held.values())), held)
    if before:
        for number, one in before.held.items():
            if number in held and held[number].dataset is one.dataset:
                held[number].targets = one.targets
    if start or device.type == "cpu" or torch.cuda.is_initialized():
        route.check(before)
    if start:
        with torch.inference_mode(False):  # what is kept serves every mode
            route.load(before)
    return route


def _key(array, images: torch.Tensor, device: torch.device) -> tuple:
    """The same for the same pixels: an array, as long as it lives, or a tensor as it is now."""
    counts = isinstance(array, torch.Tensor) and not array.is_inference()
    return id(array), array._version if counts else None, images.shape, images.stride(), device


def _copy(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """(N, C, H, W), contiguous, on the device; images that are so already stay what they are."""
    if device.type == "cpu":
        return images.contiguous()
    made = torch.empty(images.shape, dtype=images.dtype, device=device)
    count = max(1, _AT_A_TIME // max(1, images[:1].numel()))
    for begin in range(0, len(images), count):
        made[begin : begin + count] = images[begin : begin + count].to(device)
    return made


def _most(plan: Plan) -> int:
    """Bytes of an image where it is largest."""
    return max(map(_bytes, (plan.takes, *(s.gives for s in plan.batch))))


def _bytes(spec) -> int:
    """Returns the bytes of one image, as float32 at least: kernels compute in that."""
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
