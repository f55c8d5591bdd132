"""The processes of one call, and the memory through which samples travel to them and back."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from .called import Called
from .images import Packed, pack, pack_into
from .processes import Answer, Processes
from .samples import Parcel, Pieces, dumps
from .shared_memory import Place, Slot, SlotStore, aligned


class Pool:
    """The processes that run one call's functions in an epoch, and the memory that they share: ``depth`` slots.

    A slot holds a batch: its samples, and behind them room for what the functions give.

    Args:
        store: keeps slots from one epoch to the next.
        start: starts the processes, which write to these slots.
        device: where images come from and go to.
        depth: batches in the processes' hands.
        timeout: seconds without an answer, as Processes.wait() takes them.
    """

    def __init__(
        self,
        store: SlotStore,
        start: Callable[[list[Slot]], Processes],
        device: torch.device,
        depth: int,
        timeout: float,
    ):
        self._store, self._timeout = store, timeout
        self._lent: dict[int, Called] = {}
        self._slots = store.take(self, depth, device)
        self._processes = start(self._slots)

    @property
    def usable(self) -> bool:
        """True if the processes are well."""
        self._processes.look()
        return not self._processes.trouble

    def submit(
        self,
        images,
        kind: str,
        positions: list[int],
        chunks: list[slice],
        seed: tuple[int, ...],
        infos: Sequence[Any],
    ) -> Called:
        """Set the processes to work on the ``chunks`` of a batch; as Calls.submit()."""
        parts = [images[chunk] if kind else Pieces(list(images[chunk])) for chunk in chunks]
        counts = [len(positions[chunk]) for chunk in chunks]
        number = self._free()
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
        for number, slot in enumerate(self._slots):
            self._store.give_back(slot, self._is_free(number))
        self._slots, self._lent = [], {}

    def _free(self) -> int | None:
        return next(filter(self._is_free, range(len(self._slots))), None)

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
            return [part.parcel_in(slot.bytes(place), place) for part, place in zip(parts, places, strict=True)], rooms
        place = Place(number, 0, places[-1].end)
        whole = pack_into(slot.bytes(place), place, images, kind)
        shapes = [whole.shapes[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]
        return [whole._replace(values=place, shapes=some) for place, some in zip(places, shapes, strict=True)], rooms


def _size(part) -> int:
    """Bytes of a chunk's samples: images on the device, or Pieces."""
    return part.size if isinstance(part, Pieces) else sum(image.numel() * image.itemsize for image in part)
