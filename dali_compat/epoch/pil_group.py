"""Rows of a part that PIL decodes."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import torch

from ..engine import pil
from ..errors import read_error
from ..plan import Plan
from ..runtime.device import mapped, to_device
from .dali_owner import DaliOwner


class PilGroup:
    """Rows that go through PIL and torchvision's own functions, with the parameters drawn for them. Their sizes are
    those that PIL finds: nothing hangs on what the headers say."""

    def __init__(self, batch: DaliOwner, plan: Plan, rows: list[int]):
        self.batch, self.plan, self.rows = batch, plan, rows
        self._futures: dict[int, Future] = {}
        for row in rows:
            chains = [(one.steps, partial(batch.compute_one, one.steps, row)) for one in plan.chains]
            how: tuple = (pil.load_views, chains) if plan.views else (pil.load, *chains[0])
            channels = plan.chains[0].takes.channels
            self._futures[row] = batch.epoch.in_thread(how[0], batch.sources[row], *how[1:], channels)

    def look(self) -> None:
        """Give up what has failed already."""
        for row in [row for row, future in self._futures.items() if future.done() and future.exception()]:
            self._give_up(row, self._futures[row].exception())  # type: ignore[arg-type]  # it has one

    def outcome(self) -> list[torch.Tensor]:
        images = []
        while self._futures:
            row = next(iter(self._futures))
            error = self._futures[row].exception()  # what a signal's handler raises meanwhile is not this image's
            try:
                if isinstance(error, Exception):
                    self._give_up(row, error)
                    continue
            finally:
                del error  # it refers to its traceback, and that to this frame
            images.append(mapped(self._futures[row].result(), self._sent))
            del self._futures[row]
        return images

    def _sent(self, image: torch.Tensor) -> torch.Tensor:
        return to_device(image, self.batch.epoch.route.device)

    def discard(self) -> None:
        while self._futures:
            self._futures.popitem()[1].cancel()

    def _give_up(self, row: int, error: Exception) -> None:
        """
        Raises:
            OtherMode: files have changed; the batch groups its rows anew.
        """
        if isinstance(error, pil.OtherMode) and self.batch.headers.forget_once(self.rows):
            try:
                raise error
            finally:
                del error  # it refers to its traceback, and that to this frame
        if not hasattr(error, "row"):
            made = read_error(f"cannot decode {self.batch.name(row)}: {type(error).__name__}: {error}", error)
            made.__cause__ = error
            error = made
            del made
        try:
            self.batch.give_up(row, error)
        finally:
            del error  # it refers to its traceback, and that to this frame
        del self._futures[row]
        self.rows = [other for other in self.rows if other != row]
