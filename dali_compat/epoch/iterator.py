"""One epoch: torch's sampler gives indices, and batches come in the sampler's order, whoever makes them."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..eager import eager
from ..ending import until_the_end, wait_for_daemons
from ..errors import OutOfStep
from ..forked import keep
from .batch import Batch
from .epoch import Epoch, R
from .on_error import NOTHING
from .progress import Progress, skipped
from .samplers import Indices, may_draw

B = TypeVar("B", bound=Batch)


class OrderedIterator(_BaseDataLoaderIter, Generic[R, B]):
    """Iterates once over a loader; made by ``iter(loader)``.

    With workers, indices are drawn on torch's own schedule: num_workers * prefetch_factor batches ahead. Without, they
    are drawn from the first next() on, ``route.depth`` batches ahead (torch: none ahead), for DALI works on as many at
    a time.

    An exception that comes from outside, such as Ctrl-C's, may stop next() anywhere. The next call then makes again
    what was under way, from its indices, so that no batch is lost or mixed with another.
    """

    def __init__(self, loader, route: R):
        self._progress: Progress = loader._history.begin(loader)
        pinned, loader.pin_memory = loader.pin_memory, False  # it has no effect here, and torch may warn of it
        try:
            super().__init__(loader)
        finally:
            loader.pin_memory = pinned
        self._progress.seeded(int(self._base_seed))
        self._ahead = max(loader.num_workers * (loader.prefetch_factor or 0), route.depth)
        self._may_draw = may_draw(self._index_sampler, unknown=sys.maxsize)
        self._drawn: deque[B] = deque()
        self._begin(loader, route)

    def _reset(self, loader, first_iter=False) -> None:
        """persistent_workers: torch keeps the iterator, and its base seed, for the next epoch."""
        self._progress = loader._history.begin(loader, before=self._progress)
        super()._reset(loader, first_iter)
        if self._pid == os.getpid():
            self._abandon()
        else:
            self._leave_to_the_parent()
        self._begin(loader, loader._choose_dali_route())

    def _begin(self, loader, route: R) -> None:
        # torch's persistent workers draw on where they were; here the next epoch takes the next seed
        self._pid = os.getpid()
        self._epoch = self._epoch_of(loader, route)
        _alive.add(self)
        self._position = 0  # samples whose indices are drawn
        self._taken = 0  # batches that are over: handed out, failed, or left out by on_error
        self._first = 0  # batches that were over before this iterator: a loaded state says so
        self._made: tuple[B, Any] | None = None  # the next batch, which nobody has got yet
        self._exhausted = self._drawing = False
        self._whole = True  # the last call came to its end
        self._epoch.meter.follow(self)
        if self._progress.again:
            self._go_on(loader)
        self._progress.settle()
        if self._num_workers:
            self._draw_indices()

    def _go_on(self, loader) -> None:
        """Begins behind the last batch that was given, as a state says. What had been drawn by then is drawn now."""
        progress, drawn, exhausted = self._progress, self._progress.drawn, self._progress.exhausted
        self._sampler_iter = progress.drawn_again(loader, self._sampler_iter, self._skipped)
        self._position, self._taken, self._first = progress.samples, progress.given, progress.given
        progress.drawn, progress.exhausted = progress.given, False
        while progress.drawn < drawn + exhausted and not self._exhausted:
            self._draw_one()

    def _skipped(self, sampler, samples: int) -> Iterator[Any]:
        """The batches of a BatchSampler without so many of its first samples."""
        return skipped(sampler, samples)

    def _epoch_of(self, loader, route: R) -> Epoch[R]:
        """What this epoch's batches share."""
        raise NotImplementedError

    def _batch(self, *args) -> B:
        """A batch of Batch's arguments."""
        raise NotImplementedError

    def _indices(self, index) -> Indices:
        """The indices of one batch, from what the sampler gave; it may fill one tensor time and again."""
        index = index.clone() if isinstance(index, torch.Tensor) else index
        return list(index) if self._auto_collation else [index]

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("this iterator belongs to the parent process; call iter(loader) in the child")

    @eager
    @until_the_end
    def _next_data(self):
        self._check_process()
        meter = self._epoch.meter
        since = meter.now()
        try:
            batch, made = self._next_made()
        except BaseException as error:
            meter.spent(since)
            if isinstance(error, StopIteration):
                meter.exhausted(self._epoch.route)
            elif self._made is None and self._taken > self._progress.given:  # a batch has failed, and is over
                self._progress.gave(self._taken, self._drawn[0].begin if self._drawn else self._position, ())
            raise
        self._progress.gave(self._taken, batch.begin + len(batch.given_indices), batch.given_indices)
        meter.gave(len(batch), made)
        meter.spent(since)
        self._made = None
        self._whole = True
        return made

    def _next_made(self) -> tuple[B, Any]:
        """The next batch, and what its user gets. It stays here until that is so."""
        if not self._whole:
            self._start_again()
        self._whole = False
        started_again = False
        while self._made is None:  # on_error may leave nothing of a batch
            try:
                self._make()
            except OutOfStep:
                if started_again:
                    raise
                started_again = True
                self._start_again()
        return self._made

    def _start_again(self) -> None:
        """After an interrupt: every batch that is under way is made again."""
        if self._drawing:
            raise RuntimeError("an interrupt has stopped the sampler in this epoch; iter(loader) starts another")
        if self._made is not None and self._drawn and self._drawn[0] is self._made[0]:
            self._drawn.popleft()
        self._epoch.start_again()
        self._drawn = deque(batch.again() for batch in self._drawn)

    def _make(self) -> None:
        """Makes the next batch, and sets DALI to work on those behind it."""
        self._draw_indices()
        self._start_batches()
        self._stop_at_the_end()
        # a function sees what the caller has changed since the batch before, as without workers in torch
        ahead = 1 if self._epoch.calls_here else self._epoch.route.depth
        for called, batch in enumerate(islice(self._drawn, ahead), 1):
            batch.advance()
            if self._epoch.calls_processes:  # DALI is done with this one, and must not wait for the processes
                self._start_batches(called)
        self._finish_first()

    def _stop_at_the_end(self) -> None:
        if not self._drawn:
            self._epoch.errors.end(self._position)
            self._epoch.end()
            self._progress.over = True
            self._whole = True
            raise StopIteration

    def _finish_first(self) -> None:
        """As in torch, a batch that fails is over: the next call gives the one behind it."""
        batch, over = self._drawn[0], False
        try:
            made = batch.finish()
            self._made = None if made is NOTHING else (batch, made)
            if made is NOTHING:
                self._progress.left_out.append(self._taken)
            over = True
        except OutOfStep:
            raise
        except Exception:
            over = True
            raise
        finally:
            if over:
                self._drawn.popleft().forget_errors()
                self._taken += 1
                self._look_ahead()  # DALI works on the next batches while the caller uses this one
                self._whole = True

    def _look_ahead(self) -> None:
        if self._num_workers:
            self._draw_indices()
        self._start_batches()

    def _draw_indices(self, ahead: int = 0, least: int = 1) -> None:
        """Draws until the indices of ``ahead`` batches are there, or of as many as torch would draw ahead; of ``least``
        at any rate."""
        torchs = self._ahead if self._num_workers else min(self._ahead, self._may_draw - self._taken)
        ahead = max(least, ahead, torchs)
        while not self._exhausted and len(self._drawn) < ahead and self._draw_one():
            pass

    def _draw_one(self) -> bool:
        """Indices of the next batch. Whether there may be more."""
        self._drawing = True
        try:
            index = self._progress.draw(self._sampler_iter)
        except StopIteration:
            self._exhausted, self._drawing = True, False
            return False
        except Exception as error:
            if self._num_workers:  # torch raises at once, too, where it draws ahead, and loses the batch that it had
                self._made, self._drawing, self._whole = None, False, True
                raise
            # it belongs after the batches that were drawn before it
            self._drawn.append(self._batch(self._epoch, [], self._position, error))
            self._drawing = False
            return False
        batch = self._batch(self._epoch, self._indices(index), self._position)
        self._position += len(batch)
        self._drawn.append(batch)
        self._drawing = False
        return True

    def _start_batches(self, called: int = 0) -> None:
        """``called``: how many of the first have left DALI."""
        for i in range(min(self._epoch.route.depth + called, len(self._drawn))):
            self._drawn[i].start()

    @property
    def progress(self) -> Progress:
        """Of its epoch."""
        return self._progress

    def end(self) -> None:
        """Another iterator takes its place: it has no further batch."""
        self._abandon()
        self._exhausted = True

    @property
    def in_flight(self) -> int:
        """Batches that are under way; any thread may ask."""
        return min(self._epoch.route.depth, len(self._drawn))

    def _abandon(self) -> None:
        """Nobody will ask for another batch."""
        abandon(self._drawn, self._epoch)

    def _leave_to_the_parent(self) -> None:
        """This process is a child, and the batches that are under way are not its own."""
        keep(self._drawn)
        self._drawn = deque()

    def __del__(self, getpid=os.getpid, ending=sys.is_finalizing):  # at the interpreter's end modules may be empty
        if hasattr(self, "_epoch") and self._pid == getpid() and not ending():
            self._abandon()


_alive: weakref.WeakSet[OrderedIterator] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    """Before modules lose what is in them: who refers to an iterator for longer does not matter then."""
    wait_for_daemons()
    for iterator in list(_alive):
        if iterator._pid == os.getpid():
            iterator._abandon()


def _keep_in_a_child() -> None:
    """Their batches may have something of a GPU."""
    for iterator in list(_alive):
        keep(iterator)


os.register_at_fork(after_in_child=_keep_in_a_child)


def abandon(drawn: deque[B], epoch: Epoch) -> None:
    """Nobody will ask for these batches, nor for others."""
    while drawn:
        batch = drawn.popleft()
        batch.discard()
        batch.forget_errors()
    epoch.meter.close()
    epoch.end()
