"""Run transforms without a translation in Python, sample by sample, in this process or in worker processes.

Each transform gets the input that torchvision would give it, a PIL image or a CHW tensor on the CPU. With workers it
runs in processes, as in torch's loader; without, in the caller's thread. In both cases torch, random and numpy are
seeded by the sample's place in the epoch, so that random results depend on the seed, not on the number of workers.

Samples and results travel in shared memory (shared_memory.py), into which a whole batch is copied at once. Data without
a place there travels with the message. These are the results of the first batches, whose size is not known beforehand,
and all data if the system provides no shared memory.

Processes that died, that hang, or whose exchange was cut short by an interrupt are abandoned, with all memory that they
may still write to. The next batch starts new ones.

- worker: runs the functions.
- processes: starts, feeds, monitors and ends the processes.
- samples: the data that travels. shared_memory: the memory for it.
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
    """A batch that Python functions transform.

    It holds the answers of its parts in order, and their shared memory, if any. Without processes it holds the result
    of its only part.

    Attributes:
        infos: the ``info`` of each image, set by images(); empty if there are none.
    """

    def __init__(self, answers: list, counts: list[int], pool: Any = None, slot: Slot | None = None):
        self._answers, self._counts, self._pool, self._slot = answers, counts, pool, slot
        self._made: list[Packed | Parcel | list] = []  # results of the first answers
        self._over = False
        self.infos: list[Any] = []

    @property
    def done(self) -> bool:
        """True if no process will access its shared memory again."""
        return self._over and all(answer.there for answer in self._answers)

    @property
    def workers_lost(self) -> bool:
        """True if processes died or do not answer, which is not the fault of a sample."""
        return self._pool is not None and not self._pool.usable

    def cancel(self) -> None:
        self._over, self._made = True, []

    def images(self, device: torch.device) -> tuple[ImageSpec, torch.Tensor | list[torch.Tensor]] | None:
        """Return the ImageSpec and the images that the functions returned, on the device.

        The images are a tensor (N, C, H, W), or a list of (C, H, W) if sizes differ. Return None if the results are not
        all images of the same kind.

        Raises:
            Exception: a function raised it; its text contains the worker's traceback, as in torch's loader.
            RuntimeError: a worker died.
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
        """Return the stack of tensors that are not images (such as ten crops), on the device.

        It equals the result of torch's default_collate. Return None if the results are anything else. Errors are those
        of images().
        """
        parts = [part for part in self._parts() if isinstance(part, Packed) and not part.kind]
        if len(parts) < len(self._made):
            return None
        made = self._on(device, parts) if len({part.dtype for part in parts}) == 1 else None
        return made if isinstance(made, torch.Tensor) else None

    def samples(self) -> list:
        """Return the results as the functions returned them. Errors are those of images()."""
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
        """Return all images, as one tensor if their shapes are equal."""
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
        assert self._slot is not None  # the slot of the place
        return self._slot.bytes(part.values).view(part.dtype)


def _packed(part) -> Packed | None:
    """Return the packed results of a part; None if they are not images or tensors of one kind."""
    if isinstance(part, list):
        kind = kind_of(part)
        return pack([as_tensor(one) for one in part], kind, infos_of(part)) if kind else None
    return part if isinstance(part, Packed) else None


_stores: WeakKeyDictionary[Call, SlotStore] = WeakKeyDictionary()  # kept for the next epoch


class Calls:
    """Runs functions on the samples of an epoch.

    Args:
        seed: seed of the epoch.
        loader: provides num_workers, multiprocessing_context, worker_init_fn and timeout.
        device: device of the images before and after.
        depth: number of batches in flight; each view of a batch counts as one.
    """

    def __init__(self, seed: int, loader, device: torch.device, depth: int):
        self._seed, self._workers, context = seed, loader.num_workers, loader.multiprocessing_context
        start = loader.num_workers, loader.worker_init_fn, loader.dataset
        self._new_pool = partial(Pool, seed, device, depth, context, loader.timeout, start)
        self._pools: dict[tuple[int, ...], Pool] = {}  # by id() of the functions, which views may share

    def prepare(self, call: Call) -> None:
        """Start the call's processes. Since they are forked, this is best done before DALI's threads run.

        Raises:
            OSError: the system has no more processes or file descriptors.
        """
        if self._workers:
            self._pool(call)

    def submit(self, call: Call, images, kind: str, positions: list[int], infos: Sequence[Any] = ()) -> Called:
        """Start transforming a batch.

        Args:
            call: the functions.
            images: images of ``kind`` on the device, as in pack(); a list of samples if ``kind`` is "".
            kind: kind of the images, or "".
            positions: places of the samples in the epoch.
            infos: ``info`` of PIL images.

        Raises:
            RuntimeError: a worker died.
            OSError: the system has no more processes or file descriptors.
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
    """The processes that run one call's functions in an epoch, with ``depth`` slots of shared memory.

    A slot holds the samples of a batch, followed by room for the results. The store keeps slots for the next epoch.
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
        """True if all processes are alive and in step."""
        self._processes.look()
        return not self._processes.trouble

    def submit(self, images, kind: str, positions: list[int], seed: tuple[int, ...], infos: Sequence[Any]) -> Called:
        """Send chunks of a batch to the processes; as Calls.submit()."""
        size = max(1, -(-len(positions) // (2 * self._workers)))
        chunks = [slice(start, start + size) for start in range(0, len(positions), size)]
        parts = [images[chunk] if kind else Pieces(list(images[chunk])) for chunk in chunks]
        counts = [len(positions[chunk]) for chunk in chunks]
        number = next(filter(self._is_free, range(len(self._slots))), None)
        samples: list
        rooms: Sequence[Place | None]
        try:
            samples, rooms = self._written(number, images, kind, parts, counts)
        except OSError:  # no shared memory
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
            self._lent[number] = called  # before a process can use it
        self._processes.ask(messages, answers)
        return called

    def receive(self, answer: Answer, count: int) -> Packed | Parcel | ExceptionWrapper:
        """Return the results of ``count`` samples.

        Raises:
            RuntimeError: a worker died, or none answered within the loader's timeout.
        """
        self._processes.wait(answer, self._timeout)
        made = pickle.loads(answer.message or b"")  # wait() has set it
        if not isinstance(made, ExceptionWrapper):
            self._store.room = max(self._store.room, math.ceil(made.size / count))
        return made

    def close(self) -> None:
        """End the processes. Memory in use is freed when the last process releases it."""
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
        """Write the samples of each chunk to a slot. Return them, and the places for their results.

        Raises:
            OSError: there is no shared memory, or no free slot.
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
    """Return the number of bytes of a chunk, which is Pieces or images on the device."""
    return part.size if isinstance(part, Pieces) else sum(image.numel() * image.itemsize for image in part)
