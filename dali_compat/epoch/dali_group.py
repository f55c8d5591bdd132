"""Rows of a part that DALI decodes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.headers import Facts, marks
from ..data.intact import is_intact
from ..data.sources import BYTES, DECODED, PATHS, Form, Source, overwritten, written
from ..ops.draws import Arrays
from ..plan import Plan
from ..runtime.device import ViewBatches
from .dali_owner import DaliOwner
from .part import in_order, other_sizes, run
from .pil_group import PilGroup

if TYPE_CHECKING:
    from ..engine.dali.transfer import Received


class DaliGroup:
    """Rows that DALI decodes, or that it has decoded before (``given`` is one of DECODED). ``again``: it has failed
    once. ``keeps``: _keep() is to get the whole images."""

    def __init__(
        self, batch: DaliOwner, plan: Plan, rows: list[int], given: str, again: bool = False, keeps: bool = False
    ):
        self.batch, self.plan, self.rows, self._given, self._again = batch, plan, rows, given, again
        if not rows:
            return
        at = np.array(rows)
        self._facts = batch.headers.facts.take(at)
        arrays = [batch.compute((*one.dali, *one.batch), at) for one in plan.chains]
        self._sizes = [of_one.sizes for of_one in arrays]
        dali = [of_one[: len(one.dali)] for one, of_one in zip(plan.chains, arrays, strict=True)]
        self._batch_arrays = [of_one[len(one.dali) :] for one, of_one in zip(plan.chains, arrays, strict=True)]
        if given in DECODED:
            self._images: Any = [batch.pixels[row] for row in rows]
        elif given == BYTES:
            self._images = [source.bytes() for source in self._sources]  # type: ignore[union-attr]  # they are records
        else:
            self._images = batch.paths(at)
        cache = batch.epoch.route.cache
        self._cache = cache if given not in DECODED and cache is not None and not cache.full else None
        form = Form(given, keeps or self._cache is not None, given not in DECODED and batch.epoch.route.fancy)
        self._pipeline = batch.epoch.pipeline(plan, len(rows), form)
        self._ticket = self._pipeline.submit(self._images, list(chain.from_iterable(dali)), self._facts.stated_at)

    @property
    def _sources(self) -> list[Source]:
        """The sources of the images."""
        return [self.batch.sources[row] for row in self.rows]

    def outcome(self):
        """(N, C, H, W), or a list of N where sizes differ."""
        from ..engine.dali.pipeline import PipelineError  # here, for other routes do without DALI

        try:
            received = self._pipeline.receive(self._ticket)
        except PipelineError as error:
            return self._retry(error)
        encoded = self._images if received.encoded is None else received.encoded
        doubtful = set() if self._given in DECODED else self._doubtful(received, encoded)
        if received.decoded is not None:
            self._keep(received.decoded, encoded, [i for i in range(len(self.rows)) if i not in doubtful])
        made = received.images.batches if isinstance(received.images, ViewBatches) else [received.images]
        made = [_finished(*of_chain) for of_chain in zip(self.plan.chains, made, self._batch_arrays, strict=True)]
        for of_view, sizes in zip(made, self._sizes, strict=True):
            doubtful |= set(np.flatnonzero(other_sizes(of_view, sizes)).tolist())
        images = ViewBatches(made) if self.plan.views else made[0]
        return self._with_pil(sorted(doubtful), images) if doubtful else images

    def _keep(self, decoded: Any, encoded: Any, sure: list[int]) -> None:
        """Whole images, of which those are ``sure``, and the bytes that they were decoded from."""
        assert self._cache is not None
        self._cache.add([self._sources[i] for i in sure], [decoded[i] for i in sure])

    def _doubtful(self, received: Received, encoded: Any) -> set[int]:
        """Which images PIL has to read: the bytes that DALI has decoded are not those that the header was read from, by
        their length and the size in their own header, or because somebody has written to their archive; or they are, at
        their first sight, not of a structure that both are known to read alike."""
        if received.encoded is None:
            return self._for_pil(encoded, overwritten(self._sources), None)
        changed, touched = _changed_since(self._facts, received.lengths, received.stated), None
        if self.batch.epoch.route.device.type == "cpu":  # a GPU makes batches in the time of these calls
            now = np.fromiter(map(written, self._sources), np.int64, len(self.rows))  # type: ignore[arg-type]  # paths
            touched = now != self._facts.written
        return self._for_pil(encoded, changed, touched)

    def _for_pil(self, encoded: Any, changed: np.ndarray, touched: np.ndarray | None) -> set[int]:
        """Returns those of the ``encoded`` files whose bytes PIL has to read. They have ``changed``, (N,) bool, or they
        are, at their first sight, not of a structure that all decoders are known to read alike. What somebody has
        ``touched`` since it was looked at is at its first sight, too, and once more the next time: nobody knows whether
        before it was read."""
        rows, headers = self.rows, self.batch.headers
        touched = np.zeros(len(rows), bool) if touched is None else touched
        new = np.flatnonzero(~changed & (touched | ~self._facts.intact))
        unknown = np.array([not is_intact(encoded[i]) for i in new.tolist()], bool)  # threads would wait for Python
        for i in new[unknown].tolist():
            headers.use_pil(rows[i])
        headers.set_intact([rows[i] for i in new[~unknown].tolist()])
        headers.forget([rows[i] for i in np.flatnonzero(changed | touched).tolist()])
        doubtful = changed.copy()
        doubtful[new[unknown]] = True
        return set(np.flatnonzero(doubtful).tolist())

    def _with_pil(self, doubtful: list[int], images):
        """The images, those in doubt from PIL."""
        by_pil = PilGroup(self.batch, self.plan, [self.rows[i] for i in doubtful])
        theirs = by_pil.outcome()
        sure = [i for i in range(len(self.rows)) if i not in doubtful]
        return self._in_order([(by_pil.rows, theirs), ([self.rows[i] for i in sure], [images[i] for i in sure])])

    def look(self) -> None:
        """DALI tells when it is asked."""

    def discard(self) -> None:
        self._pipeline.discard(self._ticket)

    def _retry(self, error: Exception) -> torch.Tensor | list[torch.Tensor]:
        """Find the files that DALI cannot decode; PIL takes them from now on, or raises torchvision's error. Where
        there are none, a file was being written, perhaps: once more."""
        from ..engine.dali.pipeline import undecodable

        bad: list[int] = []
        if self._given not in DECODED:
            images = self._sources if self._given == PATHS else self._images
            bad = np.flatnonzero(overwritten(self._sources)).tolist()  # their bytes are not to be touched
            bad = bad or [i for i, image in enumerate(images) if not is_intact(image)]
            bad = bad or undecodable(images, self._pipeline.device, self._given)
        if not bad and (self._again or self._given != PATHS):
            raise error
        if not bad:
            again = DaliGroup(self.batch, self.plan, self.rows, self._given, again=True)
            images, self.rows = again.outcome(), again.rows
            return images
        for i in bad:
            self.batch.headers.use_pil(self.rows[i])
        by_pil = PilGroup(self.batch, self.plan, [self.rows[i] for i in bad])
        groups: list[tuple[DaliGroup | PilGroup, Any]] = [(by_pil, by_pil.outcome())]
        good = [row for i, row in enumerate(self.rows) if i not in bad]
        if good:  # not before PIL is done: where it raises, nobody would ask for what DALI has made
            decoded = DaliGroup(self.batch, self.plan, good, self._given, again=True)
            groups.append((decoded, decoded.outcome()))
        return self._in_order([(group.rows, images) for group, images in groups])

    def _in_order(self, made: list[tuple[list[int], Any]]) -> list:
        self.rows = sorted(row for rows, _ in made for row in rows)
        return in_order(made)


def _changed_since(facts: Facts, lengths: np.ndarray | None, stated: np.ndarray | None) -> np.ndarray:
    """(N,) bool: whose bytes are not those that their header was read from."""
    assert lengths is not None and stated is not None
    return (lengths != facts.lengths) | (marks(stated) != facts.marks)


def _finished(plan: Plan, images, arrays: list[Arrays]):
    """Torch's part of a plan, on what DALI has made."""
    if not (plan.dali and plan.dali[-1].kwargs.get("layout") == "CHW"):
        images = images.movedim(-1, 1) if isinstance(images, torch.Tensor) else [i.movedim(-1, 0) for i in images]
    return run(plan.batch, images, arrays)
