"""One epoch: torch's sampler gives indices, and batches come in the sampler's order, whoever makes them."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import OutOfStep
from ..runtime.decorators import named, no_compile
from ..runtime.forks import leak_in_child, unlock_all, until_the_end, wait_for_daemons
from .batch import Batch
from .epoch import Epoch, R
from .on_error import NOTHING
from .progress import Progress, skipped
from .samplers import Indices, may_draw

B = TypeVar("B", bound=Batch)

_PACKAGE = __name__.partition(".")[0] + "."
_INTERRUPTED = "an interrupt has stopped this epoch in the middle of a batch; iter(loader) starts another"


class OrderedIterator(_BaseDataLoaderIter, Generic[R, B]):
    """Iterates once over a loader; made by ``iter(loader)``.

    With workers, indices are drawn on torch's own schedule: num_workers * prefetch_factor batches ahead. Without, they
    are drawn from the first next() on, ``route.depth`` batches ahead (torch: none ahead), for DALI works on as many at
    a time.

    An exception that comes from outside, such as Ctrl-C's, may stop next() anywhere. The epoch is over then: what was
    under way is thrown away, and next() refuses to go on.
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
        unlock_all()  # what an interrupt has left locked
        self._pid = os.getpid()
        self._epoch = self._epoch_of(loader, route)
        _alive.add(self)
        self._position = 0  # samples whose indices are drawn
        self._taken = 0  # batches that are over: returned, failed, or left out by on_error
        self._first = 0  # batches that were over before this iterator: a loaded state says so
        self._exhausted = False
        self._interrupted = False  # or next() is under way
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
        """Returns what this epoch's batches share."""
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

    @no_compile
    @until_the_end
    @named("next")
    def _next_data(self):
        self._check_process()
        if self._interrupted:
            raise RuntimeError(_INTERRUPTED)
        self._interrupted = True  # until this call comes to its end
        try:
            made = self._next_made()
        except OutOfStep as error:
            raise RuntimeError(str(error)) from None
        finally:
            if self._interrupted:
                self._throw_away()
        return made

    def _throw_away(self) -> None:
        """Ends the epoch after an interrupt; the next one may need what it has."""
        unlock_all()
        self._abandon()

    def _next_made(self) -> Any:
        """Returns what the caller gets."""
        meter = self._epoch.meter
        since = meter.now()
        try:
            made = NOTHING
            while made is NOTHING:  # on_error may leave nothing of a batch
                batch, made = self._make()
        except BaseException as error:
            meter.spent(since)
            if isinstance(error, StopIteration):
                meter.exhausted(self._epoch.route)
            elif not self._interrupted and self._taken > self._progress.given:  # a batch has failed, and is over
                self._progress.gave(self._taken, self._drawn[0].begin if self._drawn else self._position, ())
            raise
        meter.gave(len(batch), made)
        meter.spent(since)
        self._progress.gave(self._taken, batch.begin + len(batch.given_indices), batch.given_indices)
        self._interrupted = False
        return made

    def _make(self) -> tuple[B, Any]:
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
        return self._finish_first()

    def _stop_at_the_end(self) -> None:
        if not self._drawn:
            self._interrupted = False  # errors.end() may raise, and this comes again then
            self._epoch.errors.end(self._position)
            self._epoch.end()
            self._progress.over = True
            raise StopIteration

    def _finish_first(self) -> tuple[B, Any]:
        """Finishes the first batch. As in torch, a batch that fails is over: the next call gives the one after it."""
        batch = self._drawn[0]
        try:
            made = batch.finish()
        except Exception:
            self._leave_behind(batch)
            self._interrupted = False
            raise
        self._leave_behind(batch)
        return batch, made

    def _leave_behind(self, batch: B) -> None:
        """The first batch is over. DALI works on the next ones while the caller uses this one."""
        self._drawn.popleft()
        batch.forget_errors()
        self._taken += 1
        self._look_ahead()

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
        try:
            index = self._progress.draw(self._sampler_iter)
        except StopIteration:
            self._exhausted = True
            return False
        except Exception as error:
            if self._num_workers:  # torch raises at once, too, where it draws ahead, and loses the batch that it had
                self._interrupted = False
                raise
            # it belongs after the batches that were drawn before it
            self._drawn.append(self._batch(self._epoch, [], self._position, error))
            return False
        batch = self._batch(self._epoch, self._indices(index), self._position)
        self._position += len(batch)
        self._drawn.append(batch)
        return True

    def _start_batches(self, called: int = 0) -> None:
        """``called``: how many of the first have left DALI."""
        for i in range(min(self._epoch.route.depth + called, len(self._drawn))):
            self._drawn[i].start()

    @property
    def progress(self) -> Progress:
        """The progress of its epoch."""
        return self._progress

    def end(self) -> None:
        """Another iterator takes its place: it has no further batch."""
        self._abandon()
        self._exhausted = True

    @property
    def in_flight(self) -> int:
        """Batches that are under way; any thread may ask."""
        return min(self._epoch.route.depth, len(self._drawn))

    def _abandon(self, within: bool = False) -> None:
        """Nobody will ask for another batch. ``within``: a lock's block may be around this call."""
        abandon(self._drawn, self._epoch)

    def _leave_to_the_parent(self) -> None:
        """This process is a child, and the batches that are under way are not its own."""
        leak_in_child(self._drawn)
        self._drawn = deque()

    def __del__(self, getpid=os.getpid, ending=sys.is_finalizing):  # at the interpreter's end modules may be empty
        if hasattr(self, "_epoch") and self._pid == getpid() and not ending():
            self._abandon(within=_in_the_package(sys._getframe().f_back))


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
        leak_in_child(iterator)


os.register_at_fork(after_in_child=_keep_in_a_child)


def _in_the_package(frame: FrameType | None) -> bool:
    """Returns whether the garbage collector has ended an iterator, beside this frame, in the middle of the package's
    work."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def abandon(drawn: deque[B], epoch: Epoch) -> None:
    """Nobody will ask for these batches, nor for others."""
    while drawn:
        batch = drawn.popleft()
        batch.discard()
        batch.forget_errors()
    epoch.meter.close()
    epoch.end()
