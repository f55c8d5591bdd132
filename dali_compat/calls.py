"""What runs in Python, sample by sample: transforms without a translation.

Each gets what torchvision would give it, a PIL image or a CHW tensor on the CPU. With workers they run in processes, as
torch's loader runs them; without, in the caller's thread. Either way torch, random and numpy are seeded by the sample's
place in the epoch, so that a function which draws gives the same for one seed, whatever the number of workers.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing
from PIL import Image
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torchvision import tv_tensors

from .params import own_generators, seed_generators
from .parcel import Parcel, parcel
from .plan import Call, ImageSpec


class Packed(NamedTuple):
    """Images of one kind and dtype in one tensor, which passes between processes without a copy.

    Attributes:
        values: (sum of sizes,) of all pixels; a PIL image's as (H, W, C), a tensor's as (C, H, W), views' before it.
        shapes: of each image.
        kind: as in ImageSpec.
    """

    values: torch.Tensor
    shapes: list[tuple[int, ...]]
    kind: str

    def unpack(self) -> list:
        sizes = [math.prod(shape) for shape in self.shapes]
        return [as_sample(part.view(shape), self.kind) for part, shape in zip(self.values.split(sizes), self.shapes)]


def pack(images, kind: str) -> Packed:
    """``images``: tensor (N, C, H, W) or a list of (C, H, W), on any device; of several views, (V, C, H, W)."""
    images = [image.movedim(-3, -1) if kind == "pil" else image for image in images]
    values = torch.cat([image.reshape(-1) for image in images]).cpu()
    return Packed(values, [tuple(image.shape) for image in images], kind)


def as_sample(image: torch.Tensor, kind: str):
    """What torchvision would hold: of a PIL image ``image`` is (H, W, C), of a tensor (C, H, W); of views a tuple."""
    if image.ndim == 4:
        return tuple(as_sample(view, kind) for view in image)
    if kind == "pil":
        return Image.fromarray(image.squeeze(-1).numpy() if image.shape[-1] == 1 else image.numpy())
    return tv_tensors.Image(image) if kind == "Image" else image


def spec_of(result: Any) -> ImageSpec | None:
    """The image that a function has given, or None where it is something else (a tuple of views, a dict)."""
    if isinstance(result, Image.Image):
        channels = {"RGB": 3, "L": 1}.get(result.mode)
        return ImageSpec(channels=channels, size=result.size[::-1]) if channels else None
    if type(result) not in (torch.Tensor, tv_tensors.Image) or result.ndim != 3 or result.shape[0] not in (1, 3):
        return None
    kind = "Image" if isinstance(result, tv_tensors.Image) else "tensor"
    return ImageSpec(kind, result.dtype, channels=result.shape[0], size=tuple(result.shape[1:]))


class Calls:
    """Runs functions on the samples of an epoch.

    Args:
        seed: of the epoch.
        loader: its num_workers, multiprocessing_context and worker_init_fn are honoured.
    """

    def __init__(self, seed: int, loader):
        self._seed, self._workers = seed, loader.num_workers
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._start = loader.worker_init_fn, loader.dataset
        self._pools: dict[Call, ProcessPoolExecutor] = {}

    def prepare(self, call: Call) -> None:
        """Start the call's processes: best before DALI's threads are at work, for they are forked."""
        if self._workers:
            self._pool(call).submit(int)

    def submit(self, call: Call, images, kind: str, positions: list[int]) -> list[Future]:
        """Futures of lists of results, in order. ``images``: pack()'s, or a list of samples as they are."""
        size = max(1, -(-len(positions) // (2 * self._workers or 1)))
        futures = []
        for start in range(0, len(positions), size):
            part, where = images[start : start + size], positions[start : start + size]
            samples = pack(part, kind) if kind else list(part)
            if self._workers:
                samples = samples if kind else parcel(samples)
                futures.append(self._submitted(call, samples, where))
            else:
                futures.append(_done(self._here, call.functions, samples, where))
        return futures

    def close(self) -> None:
        while self._pools:
            self._pools.popitem()[1].shutdown(wait=False, cancel_futures=True)

    def _here(self, functions, samples, positions) -> list:
        with own_generators(self._seed, positions[0]):
            return _run(functions, self._seed, samples, positions)

    def _submitted(self, call: Call, samples, positions) -> Future:
        try:
            return self._pool(call).submit(_in_worker, samples, positions)
        except BrokenProcessPool as error:
            return _done(_raise, error)

    def _pool(self, call: Call) -> ProcessPoolExecutor:
        if call not in self._pools:
            numbers = self._context.SimpleQueue()
            for number in range(self._workers):
                numbers.put(number)
            start = (call.functions, self._seed, numbers, self._workers, *self._start)
            self._pools[call] = ProcessPoolExecutor(self._workers, self._context, _start_worker, start)
        return self._pools[call]


def results_of(futures: list[Future]) -> list:
    """
    Raises:
        Exception: what a function has raised, with the worker's traceback in its text, as torch's loader raises it.
        RuntimeError: a worker has died.
    """
    results: list = []
    for future in futures:
        try:
            made = future.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a DataLoader worker process exited unexpectedly (a function of yours ended it, or the system did, for "
                "want of memory perhaps); iter(loader) starts new ones"
            ) from error
        if isinstance(made, ExceptionWrapper):
            made.reraise()
        results += made.unpack() if isinstance(made, (Packed, Parcel)) else made
    return results


def _raise(error: Exception):
    raise error


def _done(function, *args) -> Future:
    future: Future = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:
        future.set_exception(error)
    return future


def _run(functions, seed: int, samples, positions) -> list:
    results = []
    samples = samples.unpack() if isinstance(samples, (Packed, Parcel)) else samples
    for sample, position in zip(samples, positions, strict=True):
        seed_generators(seed, position)
        for function in functions:
            sample = function(sample)
        results.append(sample)
    return results


# ---- in a worker process

_state: tuple = ()  # functions, seed, and what worker_init_fn has raised


def _start_worker(functions, seed, numbers, workers, init, dataset) -> None:
    """As torch's worker loop begins: one thread, its seed, get_worker_info() and worker_init_fn."""
    global _state
    number = numbers.get()
    torch.set_num_threads(1)
    seed_generators(seed, number)
    info = _utils.worker.WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
    _utils.worker._worker_info = info
    error = None
    try:
        if init is not None:
            init(number)
    except Exception:
        error = _wrapped()
    _state = functions, seed, error


def _in_worker(samples: Packed | Parcel, positions: list[int]) -> Packed | Parcel | ExceptionWrapper:
    """What the functions give; or their error as text, for not every exception can be unpickled."""
    functions, seed, error = _state
    if error is not None:
        return error
    try:
        results = _run(functions, seed, samples, positions)
        specs = {spec and spec.but(size=None) for spec in map(spec_of, results)}
        if len(specs) != 1 or None in specs:
            return parcel(results)
        return pack([as_tensor(result) for result in results], specs.pop().kind)
    except Exception:
        return _wrapped()


def _wrapped() -> ExceptionWrapper:
    return ExceptionWrapper(where=f"in DataLoader worker process {_utils.worker._worker_info.id}")


def as_tensor(result) -> torch.Tensor:
    """(C, H, W) of a PIL image or a tensor."""
    if isinstance(result, Image.Image):
        pixels = torch.from_numpy(np.array(result))
        return pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)
    return result.as_subclass(torch.Tensor)
