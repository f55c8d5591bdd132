"""What runs in Python, sample by sample: transforms without a translation.

Each gets what torchvision would give it, a PIL image or a CHW tensor on the CPU. With workers they run in processes, as
torch's loader runs them; without, in the caller's thread. Either way torch, random and numpy are seeded by the sample's
place in the epoch, so that a function which draws gives the same for one seed, whatever the number of workers.

Images go to the processes, and come back, in memory that is shared with them (shared.py): a batch is copied there at
once, and back. What has no place there travels with the message: the results of the first batches, for nobody knows how
large they are, and what is not alike.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
import torch.multiprocessing
from torch._utils import ExceptionWrapper

from .packed import Packed, as_tensor, copy, kind_of, pack, pack_into, split
from .params import own_generators
from .parcel import Parcel, parcel
from .plan import Call, ImageSpec
from .shared import Place, Slot, aligned
from .worker import in_worker, run, start_worker


class Calls:
    """Runs functions on the samples of an epoch.

    Args:
        seed: of the epoch.
        loader: its num_workers, multiprocessing_context and worker_init_fn are honoured.
        device: where images come from and go to.
        depth: batches in the processes' hands.
    """

    def __init__(self, seed: int, loader, device: torch.device, depth: int):
        self._seed, self._workers = seed, loader.num_workers
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._start = loader.num_workers, loader.worker_init_fn, loader.dataset
        self._device, self._depth = device, depth
        self._pools: dict[Call, _Pool] = {}

    def prepare(self, call: Call) -> None:
        """Start the call's processes: best before DALI's threads are at work, for they are forked."""
        if self._workers:
            self._pool(call).executor.submit(int)

    def submit(self, call: Call, images, kind: str, positions: list[int]) -> Called:
        """Set them to work. ``images``: of that kind, on the device, as pack() takes them; or, where it is "", a list
        of samples as they are."""
        size = max(1, -(-len(positions) // (2 * self._workers or 1)))
        chunks = [slice(start, start + size) for start in range(0, len(positions), size)]
        if not self._workers:
            return Called([_done(self._here, call, images[chunk], kind, positions[chunk]) for chunk in chunks])
        return self._pool(call).submit(images, kind, positions, chunks)

    def close(self) -> None:
        while self._pools:
            self._pools.popitem()[1].close()

    def _here(self, call: Call, images, kind: str, positions: list[int]) -> list:
        with own_generators(self._seed, positions[0]):
            return run(call.functions, self._seed, pack(images, kind).unpack() if kind else images, positions)

    def _pool(self, call: Call) -> _Pool:
        if call not in self._pools:
            self._pools[call] = _Pool(call, self._seed, self._context, self._start, self._device, self._depth)
        return self._pools[call]


class Called:
    """A batch in Python's hands: futures of its parts, in order, and the memory that they share, if there is any."""

    def __init__(self, futures: list[Future], pool: _Pool | None = None, slot: Slot | None = None):
        self._futures, self._pool, self._slot = futures, pool, slot
        self._over = False

    @property
    def done(self) -> bool:
        """Whether no process will touch its shared memory again."""
        return self._over and all(future.done() for future in self._futures)

    def cancel(self) -> None:
        self._over = True
        for future in self._futures:
            future.cancel()

    def images(self, device: torch.device) -> tuple[ImageSpec, torch.Tensor | list[torch.Tensor]] | None:
        """What the functions have given, and what that is: (N, C, H, W) on the device, or a list of (C, H, W) where
        sizes differ; None where they have given something else, or not all the same.

        Raises:
            Exception: what a function has raised, with the worker's traceback in its text, as torch's loader raises it.
            RuntimeError: a worker has died.
        """
        parts = [_packed(part) for part in self._parts()]
        specs = {part and part.spec and part.spec.but(size=None) for part in parts}
        if None in specs or len(specs) != 1:
            return None
        made = self._on(device, parts)
        spec = specs.pop()
        if spec.kind == "pil":
            made = made.movedim(-1, -3) if isinstance(made, torch.Tensor) else [one.movedim(-1, -3) for one in made]
        return spec.but(size=tuple(made.shape[-2:])) if isinstance(made, torch.Tensor) else spec, made

    def tensor(self, device: torch.device) -> torch.Tensor | None:
        """What torch's default_collate would make of tensors that are no images (ten crops, stacked), on the device;
        None where it has to see for itself. Raises what images() does."""
        parts = self._parts()
        if not all(isinstance(part, Packed) and not part.kind for part in parts):
            return None
        made = self._on(device, parts) if len({part.dtype for part in parts}) == 1 else None
        return made if isinstance(made, torch.Tensor) else None

    def samples(self) -> list:
        """The same as the functions have given it. Raises what images() does."""
        results: list = []
        for part in self._parts():
            if isinstance(part, Packed):
                part = part.unpack(self._slot and self._slot.bytes)
            results += part.unpack() if isinstance(part, Parcel) else part
        self._over = True
        return results

    def _parts(self) -> list[Packed | Parcel | list]:
        parts = []
        for future in self._futures:
            try:
                made = future.result()
            except BrokenProcessPool as error:
                raise RuntimeError(
                    "a DataLoader worker process exited unexpectedly (a function of yours ended it, or the system did, "
                    "for want of memory perhaps); iter(loader) starts new ones"
                ) from error
            if isinstance(made, ExceptionWrapper):
                made.reraise()
            parts.append(made)
        return parts

    def _on(self, device: torch.device, parts: list[Packed]) -> torch.Tensor | list[torch.Tensor]:
        """All of them, one tensor where their shape is one."""
        if self._pool is not None:
            self._pool.room = max(self._pool.room, *(math.ceil(part.size / len(part.shapes)) for part in parts))
        shapes = {shape for part in parts for shape in part.shapes}
        made = self._uniform(parts, shapes.pop(), device) if len(shapes) == 1 else self._ragged(parts, device)
        if self._slot is not None:
            self._slot.being_read()
        self._over = True
        return made

    def _uniform(self, parts: list[Packed], shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        made = torch.empty((sum(len(part.shapes) for part in parts), *shape), dtype=parts[0].dtype, device=device)
        for part, to in zip(parts, made.split([len(part.shapes) for part in parts])):
            copy(to, self._values(part).view(to.shape))
        return made

    def _ragged(self, parts: list[Packed], device: torch.device) -> list[torch.Tensor]:
        images: list = []
        for part in parts:
            values = self._values(part)
            made = torch.empty_like(values, device=device)
            copy(made, values)
            images += split(made, part.shapes)
        return images

    def _values(self, part: Packed) -> torch.Tensor:
        return self._slot.bytes(part.values).view(part.dtype) if isinstance(part.values, Place) else part.values


@dataclass
class _Kept:
    """What the next epoch takes over from a call.

    Attributes:
        slots: all, lent ones too: an iterator that ends as garbage gives back what must not be garbage with it.
        spare: those that no pool has.
        room: bytes that a result takes, at most, as far as it is known; 0 before.
    """

    slots: list[Slot] = field(default_factory=list)
    spare: list[Slot] = field(default_factory=list)
    room: int = 0

    def take(self, count: int, device: torch.device) -> list[Slot]:
        """Slots of this process, new ones too; fewer where the system gives none."""
        taken: list[Slot] = []
        while self.spare and len(taken) < count:
            slot = self.spare.pop()
            if slot.own:
                slot.wait()  # no process is born with events
                taken.append(slot)
            else:
                self.slots.remove(slot)
        try:
            while len(taken) < count:
                self.slots.append(Slot(device))
                taken.append(self.slots[-1])
        except OSError:
            pass
        return taken


_kept: WeakKeyDictionary[Call, _Kept] = WeakKeyDictionary()


class _Pool:
    """The processes of a call for an epoch, and the memory that they share: ``depth`` slots.

    A slot holds a batch: its images, and behind them room for what the functions give.

    Attributes:
        executor: of the processes.
        room: bytes that a result has taken, at most.
    """

    def __init__(self, call: Call, seed: int, context, start: tuple, device: torch.device, depth: int):
        self._kept = _kept.setdefault(call, _Kept())
        self.room = self._kept.room
        self._slots = self._kept.take(depth, device)
        self._lent: dict[int, Called] = {}
        workers = start[0]
        numbers = context.SimpleQueue()
        for number in range(workers):
            numbers.put(number)
        arguments = (call.functions, seed, self._slots, numbers, *start)
        self.executor = ProcessPoolExecutor(workers, context, start_worker, arguments)

    def submit(self, images, kind: str, positions: list[int], chunks: list[slice]) -> Called:
        number = self._free() if kind else None
        samples, rooms = None, [None] * len(chunks)
        if number is not None:
            try:
                samples, rooms = self._written(number, images, kind, chunks)
            except OSError:  # no memory to share
                number = None
        if samples is None:
            samples = [pack(images[chunk], kind) if kind else parcel(list(images[chunk])) for chunk in chunks]
        futures = [self._submitted(s, positions[c], r) for s, c, r in zip(samples, chunks, rooms)]
        if number is None:
            return Called(futures, self)
        called = self._lent[number] = Called(futures, self, self._slots[number])
        return called

    def close(self) -> None:
        """What is still in use nobody gets: it goes when the last process has let go of it."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._kept.room = max(self._kept.room, self.room)
        for number, slot in enumerate(self._slots):
            if self._is_free(number):
                self._kept.spare.append(slot)
            else:
                self._kept.slots.remove(slot)
        self._slots, self._lent = [], {}

    def _free(self) -> int | None:
        return next(filter(self._is_free, range(len(self._slots))), None)

    def _is_free(self, number: int) -> bool:
        return number not in self._lent or self._lent[number].done

    def _written(self, number: int, images, kind: str, chunks: list[slice]) -> tuple[list[Packed], list[Place]]:
        """The images in a slot, and room for the results of each chunk."""
        sizes = [image.numel() * image.itemsize for image in images]
        bounds = [0]
        for chunk in chunks:
            bounds.append(bounds[-1] + sum(sizes[chunk]))
        end, rooms = aligned(bounds[-1]), []
        for chunk in chunks:
            rooms.append(Place(number, end, end + self.room * len(sizes[chunk])))
            end = aligned(rooms[-1].end)
        self._slots[number].reserve(end)
        place = Place(number, 0, bounds[-1])
        whole = pack_into(self._slots[number].bytes(place), place, images, kind)
        places = [Place(number, *between) for between in zip(bounds, bounds[1:])]
        return [whole._replace(values=p, shapes=whole.shapes[chunk]) for p, chunk in zip(places, chunks)], rooms

    def _submitted(self, samples, positions: list[int], room: Place | None) -> Future:
        try:
            return self.executor.submit(in_worker, samples, positions, room)
        except BrokenProcessPool as error:
            return _done(_raise, error)


def _packed(part) -> Packed | None:
    """Results of the caller's thread, too, where they are images and alike."""
    if isinstance(part, list):
        kind = kind_of(part)
        return pack([as_tensor(one) for one in part], kind) if kind else None
    return part if isinstance(part, Packed) else None


def _raise(error: Exception):
    raise error


def _done(function, *args) -> Future:
    future: Future = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:
        future.set_exception(error)
    return future
