"""Runs transforms without a translation in Python, sample by sample, in this process or in others.

Each gets what torchvision would give it, a PIL image or a CHW tensor on the CPU. With workers they run in processes, as
torch's loader runs them; without, in the caller's thread. Either way torch, random and numpy are seeded by the sample's
place in the epoch, so that a function which draws gives the same for one seed, whatever the number of workers.

Samples go to the processes, and come back, in memory that is shared with them (shared_memory.py): a batch is copied
there at once, and back. What has no place there travels with the message: the results of the first batches, for nobody
knows how large they are, and all where the system has no such memory.

Processes that have died, that hang, or whose exchange an interrupt has cut short, are given up with all the memory that
they may still write to; the next batch starts new ones.

- worker: the functions at work.
- processes: how they are started, asked, watched and ended, whatever they do.
- samples: what travels there and back. shared_memory: in which memory.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.multiprocessing
from torch._utils import ExceptionWrapper

from ..plan import Call, ImageSpec
from ..randoms import own_generators
from .processes import Answer, Processes
from .samples import Packed, Parcel, Pieces, as_tensor, copy, dumps, infos_of, kind_of, pack, split
from .shared_memory import Place, Slot, SlotStore, aligned
from .worker import run, work


class Called:
    """A batch in Python's hands: the answers of its parts, in order, and the memory that they share, if there is any;
    or, without processes, what its one part has given.

    Attributes:
        infos: of each of its images() the ``info``, once these were asked for; empty where they have none.
    """

    def __init__(self, answers: list, counts: list[int], pool: Any = None, slot: Slot | None = None):
        self._answers, self._counts, self._pool, self._slot = answers, counts, pool, slot
        self._made: list[Packed | Parcel | list] = []  # of the first answers
        self._over = False
        self.infos: list[Any] = []

    @property
    def done(self) -> bool:
        """True if no process will touch its shared memory again."""
        return self._over and all(answer.there for answer in self._answers)

    @property
    def workers_lost(self) -> bool:
        """True if processes have died, or do not answer: that is no fault of a sample."""
        return self._pool is not None and not self._pool.usable

    def cancel(self) -> None:
        self._over, self._made = True, []

    def images(self, device: torch.device) -> tuple[ImageSpec, torch.Tensor | list[torch.Tensor]] | None:
        """Returns what the functions have given, and its ImageSpec: (N, C, H, W) on the device, or a list of (C, H, W)
        where sizes differ; None where they have given something else, or not all the same.

        Raises:
            Exception: what a function has raised, with the worker's traceback in its text, as torch's loader raises it.
            RuntimeError: a worker has died.
        """
        parts, specs = [], set()
        for answer in self._parts():
            part = _packed(answer)
            if part is None or part.spec is None:
                return None
            parts.append(part)
            specs.add(part.spec.but(size=None))
        if len(specs) != 1:
            return None
        if any(part.infos for part in parts):
            self.infos = list(chain.from_iterable(part.infos or [{}] * len(part.shapes) for part in parts))
        made = self._on(device, parts)
        spec = specs.pop()
        if spec.kind == "pil":
            made = made.movedim(-1, -3) if isinstance(made, torch.Tensor) else [one.movedim(-1, -3) for one in made]
        return spec.but(size=tuple(made.shape[-2:])) if isinstance(made, torch.Tensor) else spec, made

    def tensor(self, device: torch.device) -> torch.Tensor | None:
        """Returns what torch's default_collate would make of tensors that are no images (ten crops, stacked), on the
        device; None where it has to see for itself. Raises what images() does."""
        parts = [part for part in self._parts() if isinstance(part, Packed) and not part.kind]
        if len(parts) < len(self._made):
            return None
        made = self._on(device, parts) if len({part.dtype for part in parts}) == 1 else None
        return made if isinstance(made, torch.Tensor) else None

    def samples(self) -> list:
        """The same as the functions have given it. Raises what images() does."""
        results: list = []
        shared = None if self._slot is None else self._slot.bytes
        for part in self._parts():
            results += part if isinstance(part, list) else part.unpack(shared)
        self.cancel()
        return results

    def _parts(self) -> list[Packed | Parcel | list]:
        for answer, count in list(zip(self._answers, self._counts, strict=True))[len(self._made) :]:
            made = answer if self._pool is None else self._pool.receive(answer, count)
            if isinstance(made, ExceptionWrapper):
                made.reraise()
            elif isinstance(made, Exception):
                raise made
            else:
                self._made.append(made)
        return self._made

    def _on(self, device: torch.device, parts: list[Packed]) -> torch.Tensor | list[torch.Tensor]:
        """All of them, one tensor where their shape is one."""
        shapes = [shape for part in parts for shape in part.shapes]
        with nullcontext() if self._slot is None else self._slot.read():
            values = [self._values(part) for part in parts]
            made = torch.empty(sum(map(len, values)), dtype=parts[0].dtype, device=device)
            for given, to in zip(values, made.split(list(map(len, values))), strict=True):
                copy(to, given)
        self.cancel()
        return made.view(len(shapes), *shapes[0]) if len(set(shapes)) == 1 else split(made, shapes)

    def _values(self, part: Packed) -> torch.Tensor:
        if not isinstance(part.values, Place):
            return part.values
        assert self._slot is not None  # whose place it is
        return self._slot.bytes(part.values).view(part.dtype)


def _packed(part) -> Packed | None:
    """Results of the caller's thread, too, where they are images and alike."""
    if isinstance(part, list):
        kind = kind_of(part)
        return pack([as_tensor(one) for one in part], kind, infos_of(part)) if kind else None
    return part if isinstance(part, Packed) else None


_stores: WeakKeyDictionary[Call, SlotStore] = WeakKeyDictionary()  # what the next epoch takes over


class Calls:
    """Runs functions on the samples of an epoch.

    Args:
        seed: of the epoch.
        loader: its num_workers, multiprocessing_context, worker_init_fn and timeout are honoured.
        device: where images come from and go to.
        depth: batches in the processes' hands; each view of a batch is one.
    """

    def __init__(self, seed: int, loader, device: torch.device, depth: int):
        self._seed, self._workers, context = seed, loader.num_workers, loader.multiprocessing_context
        start = loader.num_workers, loader.worker_init_fn, loader.dataset
        self._new_pool = partial(Pool, seed, device, depth, context, loader.timeout, start)
        self._pools: dict[tuple[int, ...], Pool] = {}  # of functions, by their id(): views may share them

    def prepare(self, call: Call) -> None:
        """Start the call's processes: best before DALI's threads are at work, for they are forked.

        Raises:
            OSError: the system gives no more processes, or descriptors.
        """
        if self._workers:
            self._pool(call)

    def submit(self, call: Call, images, kind: str, positions: list[int], infos: Sequence[Any] = ()) -> Called:
        """Set them to work. ``images``: of that kind, on the device, as pack() takes them; or, where it is "", a list
        of samples as they are. ``infos``: of PIL images.

        Raises:
            RuntimeError: a worker has died just now.
            OSError: the system gives no more processes, or descriptors.
        """
        if not self._workers:
            return Called([self._here(call, images, kind, positions, infos)], [len(positions)])
        return self._pool(call).submit(images, kind, positions, call.seed(self._seed), infos)

    def close(self) -> None:
        while self._pools:
            self._pools.popitem()[1].close()

    def _here(self, call: Call, images, kind: str, positions: list[int], infos: Sequence[Any]) -> list | Exception:
        try:
            with own_generators(self._seed, positions[0]):
                samples = pack(images, kind, infos).unpack() if kind else images
                return run(call.functions, call.seed(self._seed), samples, positions)
        except Exception as error:
            return error

    def _pool(self, call: Call) -> Pool:
        key = tuple(map(id, call.functions))
        if key in self._pools and not self._pools[key].usable:
            self._pools.pop(key).close()
        if key not in self._pools:
            self._pools[key] = self._new_pool(call)
        return self._pools[key]


class Pool:
    """The processes that run one call's functions in an epoch, and the memory that they share: ``depth`` slots.

    A slot holds a batch: its samples, and behind them room for what the functions give. The store keeps slots from one
    epoch to the next.
    """

    def __init__(
        self, seed: int, device: torch.device, depth: int, context: Any, timeout: float, start: tuple, call: Call
    ):
        self._store, self._timeout = _stores.setdefault(call, SlotStore()), timeout
        self._lent: dict[int, Called] = {}
        self._slots = self._store.take(depth, device)
        context, arguments = context or torch.multiprocessing.get_context(), (call.functions, seed, self._slots, *start)
        self._workers, *_ = start
        self._processes = Processes(context, range(self._workers), work, arguments)

    @property
    def usable(self) -> bool:
        """True if the processes are well."""
        self._processes.look()
        return not self._processes.trouble

    def submit(self, images, kind: str, positions: list[int], seed: tuple[int, ...], infos: Sequence[Any]) -> Called:
        """Sets the processes to work on chunks of a batch; as Calls.submit()."""
        size = max(1, -(-len(positions) // (2 * self._workers)))
        chunks = [slice(start, start + size) for start in range(0, len(positions), size)]
        parts = [images[chunk] if kind else Pieces(list(images[chunk])) for chunk in chunks]
        counts = [len(positions[chunk]) for chunk in chunks]
        number = next(filter(self._is_free, range(len(self._slots))), None)
        samples: list
        rooms: Sequence[Place | None]
        try:
            samples, rooms = self._written(number, images, kind, parts, counts)
        except OSError:  # no memory to share
            samples = [pack(part, kind) if kind else part.parcel() for part in parts]
            number, rooms = None, [None] * len(chunks)
        if infos:
            samples = [one._replace(infos=infos[chunk]) for one, chunk in zip(samples, chunks, strict=True)]
        messages = [
            dumps((sample, positions[chunk], room, seed))
            for sample, chunk, room in zip(samples, chunks, rooms, strict=True)
        ]
        answers = [Answer() for _ in messages]
        called = Called(answers, counts, self, None if number is None else self._slots[number])
        if number is not None:
            self._lent[number] = called  # before a process knows of it
        self._processes.ask(messages, answers)
        return called

    def receive(self, answer: Answer, count: int) -> Packed | Parcel | ExceptionWrapper:
        """Returns what a process has made of ``count`` samples.

        Raises:
            RuntimeError: a worker has died, or none has answered for the loader's timeout.
        """
        self._processes.wait(answer, self._timeout)
        made = pickle.loads(answer.message or b"")  # it is there
        if not isinstance(made, ExceptionWrapper):
            self._store.room = max(self._store.room, math.ceil(made.size / count))
        return made

    def close(self) -> None:
        """Ends the processes. Memory still in use is freed when the last process has let go of it."""
        self._processes.close()
        slots, self._slots = self._slots, []
        for number, slot in enumerate(slots):
            if self._is_free(number):  # else a process may still write there
                self._store.give_back(slot)
        self._lent = {}

    def _is_free(self, number: int) -> bool:
        return number not in self._lent or self._lent[number].done

    def _written(
        self, number: int | None, images, kind: str, parts: list, counts: list[int]
    ) -> tuple[list, list[Place]]:
        """The samples of each chunk in a slot, and room there for its results.

        Raises:
            OSError: there is no memory to share, or none free.
        """
        if number is None:
            raise OSError("every slot is in use")
        slot, begins = self._slots[number], accumulate(map(_size, parts), initial=0)
        places = [Place(number, *between) for between in pairwise(begins)]
        begins = accumulate((aligned(self._store.room * count) for count in counts), initial=aligned(places[-1].end))
        rooms = [Place(number, *between) for between in pairwise(begins)]
        slot.reserve(rooms[-1].end)
        if not kind:
            return [part.parcel(slot.bytes, place) for part, place in zip(parts, places, strict=True)], rooms
        place = Place(number, 0, places[-1].end)
        whole = pack(images, kind, (), slot.bytes, place)
        shapes = [whole.shapes[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]
        return [whole._replace(values=place, shapes=some) for place, some in zip(places, shapes, strict=True)], rooms


def _size(part) -> int:
    """Bytes of a chunk's samples: images on the device, or Pieces."""
    return part.size if isinstance(part, Pieces) else sum(image.numel() * image.itemsize for image in part)
