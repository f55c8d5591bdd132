"""Runs transforms without a translation in Python, sample by sample.

Each gets what torchvision would give it, a PIL image or a CHW tensor on the CPU. With workers they run in processes, as
torch's loader runs them; without, in the caller's thread. Either way torch, random and numpy are seeded by the sample's
place in the epoch, so that a function which draws gives the same for one seed, whatever the number of workers.

Samples go to the processes, and come back, in memory that is shared with them (shared_memory.py): a batch is copied
there at once, and back. What has no place there travels with the message: the results of the first batches, for nobody
knows how large they are, and all where the system has no such memory.

Processes that have died, that hang, or whose exchange an interrupt has cut short, are given up with all the memory that
they may still write to; the next batch starts new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.multiprocessing

from ..plan import Call
from ..randoms import own_generators
from .called import Called
from .images import pack
from .pool import Pool
from .processes import Processes
from .shared_memory import Slot, SlotStore
from .worker import run, work

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
        self._seed, self._workers, self._timeout = seed, loader.num_workers, loader.timeout
        self._context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._start = loader.num_workers, loader.worker_init_fn, loader.dataset
        self._device, self._depth = device, depth
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
        seed = call.seed(self._seed)
        size = max(1, -(-len(positions) // (2 * self._workers)))
        chunks = [slice(start, start + size) for start in range(0, len(positions), size)]
        return self._pool(call).submit(images, kind, positions, chunks, seed, infos)

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
            store = _stores.setdefault(call, SlotStore())
            start = partial(self._processes, call)
            self._pools[key] = Pool(store, start, self._device, self._depth, self._timeout)
        return self._pools[key]

    def _processes(self, call: Call, slots: list[Slot]) -> Processes:
        arguments = call.functions, self._seed, slots, *self._start
        return Processes(self._context, self._workers, work, arguments)
