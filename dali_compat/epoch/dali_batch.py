"""One batch on the DALI route.

start() finds the files, computes every per-sample argument and sets DALI to work. A batch consists of parts, the rows
that share a plan (dali_part.py), and a part of groups, the rows that one decoder decodes (dali_group.py, pil_group.py,
planes_group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..data.header import DALI, GRAY, PIL, UNREADABLE
from ..data.lookup import Found, Listed, as_list, objects_at
from ..engine.pil import OtherMode
from ..errors import ImageReadError
from ..ops.draws import Arrays, Computed, ImageTooSmall, compute
from ..ops.kernels import rows_of
from ..plan import Plan, Step
from ..runtime.decorators import named
from .dali_epoch import DaliEpoch
from .dali_part import DaliPart, merged
from .file_batch import FileBatch
from .on_error import NOTHING, reason_of
from .part import in_order, taken
from .prepared import Prepared
from .substitute import Substitute, joined

T = TypeVar("T")


class DaliBatch(FileBatch):
    """A batch whose images DALI decodes, or PIL.

    An iterator, or its thread beside (prefetch_thread.py), calls these in this order. finish() alone is certain to be
    called, and calls what was left out; each works once, and stores its exception for finish() to raise.

    1. request: worker processes are asked for the samples, where the data set is the user's (traced_batch.py); objects
       are fetched.
    2. announce: other processes begin to read headers.
    3. start: samples are found, numbers are drawn, and DALI begins.
    4. decode: a GPU's JPEG engine begins.
    5. advance: functions without a translation begin, here or in worker processes.
    6. prepare: what finish() does, as far as nothing of it is the user's.
    7. finish: what torch's loader would give.

    discard() may come instead at any time.

    Args:
        epoch, indices, position, error: as Batch's.
        stands_in: whether it is one sample, for one of another batch that could not be made. PIL reads it, so that it
            is the same whenever the other's error is found.

    Attributes:
        started: whether start() was called, or has nothing to do.
        waits: whether start() waits for headers that other processes read.
    """

    def __init__(
        self, epoch: DaliEpoch, indices: list, position: int, error: Exception | None = None, stands_in: bool = False
    ):
        super().__init__(epoch, indices, position, error)
        self._stands_in = stands_in
        self._under_way: list[DaliPart] = []
        self._substitutes: dict[int, Substitute] = {}
        self._early: Prepared | None = None
        self.bad = {}
        self.started = self._located = error is not None
        self.waits = self._requested = False

    def request(self) -> None:
        """Its objects are fetched, where a data set has its images in object storage; once."""
        fetcher, cache = self.epoch.fetcher, self.epoch.route.cache
        if fetcher is None or self._requested or self._located:
            return
        self._requested = True
        objects = objects_at(self.epoch.dataset, self.indices, self.epoch.tables)
        fetcher.request([one for one in objects if cache is None or cache.get(one) is None])

    def announce(self) -> None:
        """Before start(), if at all: has other processes read the headers that nobody has read."""
        if not self._located:
            self._stage(self._announce)

    def _announce(self) -> None:
        self._locate()
        self.waits = self.headers.request(self.bad)

    def start(self) -> None:
        """Finds its files, computes what is drawn, and sets DALI to work; once."""
        if not self.started:
            self.started = True
            self._stage(self._start)

    def _start(self) -> None:
        if not self._located:
            self._locate()
        self.headers.receive()
        self.waits = False
        self._group()
        if self.bad:
            self._substitute()

    def prepare(self) -> None:
        """After start(), in whatever thread: does as much of finish() as takes nothing of the user's."""
        if self._early is None:
            self._stage(self._prepare)

    def _prepare(self) -> None:
        self._early = Prepared(self.epoch.route.device)
        self._early.images = super()._outcome()
        if self.epoch.default_collate and not self.bad:
            self._early.made = self._collate(self._early.images)

    def finish(self) -> Any:
        """Returns what torch's loader would give, on the device; NOTHING where on_error leaves no sample.

        Raises:
            RuntimeError: the loader was closed.
        """
        self.epoch.check_open()
        if self._early is not None:
            self._early.hand_over()
        return super().finish()

    def _outcome(self):
        if self._early is None or self._error is not None:
            return super()._outcome()
        return self._early.images

    def decode(self) -> None:
        """After start(), when files are read: sets a GPU's JPEG engine to work."""
        for part in self._under_way:
            self._stage(part.decode)

    def advance(self) -> None:
        """After start(): sets functions without a translation to work, once."""
        self._stage(partial(self._regrouping, self._advance))

    def _advance(self) -> None:
        if self.epoch.errors.policy == "replace":
            for part in self._under_way:
                part.look()
            self._substitute()
        for part in self._under_way:
            part.advance()

    def _regrouping(self, function: Callable[[], T]) -> T:
        """Returns what a function gives; where files turn out to be gray that were not, or the reverse, once their rows
        have the plans that they need now."""
        while True:
            try:
                return function()
            except OtherMode:
                while self._under_way:
                    self._under_way.pop().discard()
                self._group()

    def alone(self) -> Any:
        """The image of a batch of one, before it is collated."""
        return self._outcome()[0]

    def forget_errors(self) -> None:
        super().forget_errors()
        self._early = None
        self.bad, self._substitutes = {}, {}

    def discard(self) -> None:
        while self._under_way:
            self._under_way.pop().discard()
        while self._substitutes:
            self._substitutes.popitem()[1].discard()

    def _images(self):
        """Images of the rows that are not bad: (N, C, H, W), or a list of N where sizes differ, several parts made
        them, or they are no images."""
        made = self._made()
        return made[0][1] if len(made) == 1 else in_order(made)

    def _made(self) -> list[tuple[Sequence[int], Any]]:
        """(rows, images) of each part."""
        return self._regrouping(lambda: taken(self._under_way))

    def _substitute(self) -> None:
        """Other samples set out to stand in for those that are known to be bad."""
        if self.epoch.errors.policy == "replace":
            for row in self.bad.keys() - self._substitutes.keys():
                self._substitutes[row] = Substitute(self.epoch, self.position(row), partial(self._standing_in, row))

    def _standing_in(self, row: int, index) -> DaliBatch:
        return type(self)(self.epoch, [index], self.begin + row, stands_in=True)

    def _collate(self, images) -> Any:
        if self._early is not None and self._early.made is not None:
            return self._early.made
        if self.bad:
            images = self._without_bad(images)
            if not len(self):
                return NOTHING
        return super()._collate(images)

    def _without_bad(self, images):
        errors, good = self.epoch.errors, [row for row in range(len(self)) if row not in self.bad]
        for row in sorted(self.bad):
            error, source = self.bad[row], self.sources[row]
            reason = error if isinstance(error, str) else reason_of(error)
            errors.add(str(source), self.indices[row], reason)
            if isinstance(error, ImageReadError):
                errors.remember(source, reason)
        listed = Listed(list(self.places), list(self.sources), list(as_list(self.targets)))
        if errors.policy == "skip":
            self.indices, self._samples_of = [self.indices[i] for i in good], listed.only(good)
            self.targets = self._samples_of.targets
            return images
        self._substitute()
        made = {row: self._substitutes[row].outcome() for row in self.bad}
        for row, (batch, _) in made.items():
            listed.places[row], listed.targets[row] = batch.places[0], batch.targets[0]
            listed.sources[row] = batch.sources[0]
        self._samples_of, self.targets = listed, listed.targets
        return joined(images, good, {row: image for row, (_, image) in made.items()})

    def _group(self) -> None:
        """Rows that share a plan, and among them those that share a decoder and what it is given."""
        by_plan: dict[Plan, dict[tuple[int, str], list[np.ndarray]]] = {}
        for found, kinds in self.headers.look(self.bad, by_pil=self._stands_in):
            for kind, given, chosen in self._kinds(found, kinds):
                plan = self.epoch.route.plan_of(found.leaf, gray=kind == GRAY)
                if kind == DALI and not self.epoch.may_have_pipeline(plan):
                    kind, given = PIL, ""
                by_plan.setdefault(plan, {}).setdefault((kind, given), []).append(chosen)
        for plan, by_kind in by_plan.items():
            self._under_way.append(DaliPart(self, plan))
            self._under_way[-1].start({kind: merged(rows) for kind, rows in by_kind.items()})

    def _kinds(self, found: Found, kinds: np.ndarray) -> Iterator[tuple[int, str, np.ndarray]]:
        """(kind, what DALI is given, rows) of a leaf's rows. What PIL decodes, it opens itself."""
        rows, dalis = found.rows, kinds == DALI
        if self.pixels:
            known = dalis & np.array([self.pixels[row] is not None for row in rows.tolist()])
            if known.any():
                assert self.epoch.route.cache is not None  # who else had them
                yield DALI, self.epoch.route.cache.form, rows[known]
            dalis &= ~known
        if dalis.any():
            yield DALI, found.given, rows if dalis.all() else rows[dalis]
        for kind in (PIL, UNREADABLE, GRAY):
            if (others := kinds == kind).any():
                yield kind, "", rows[others]

    def compute(
        self, steps: tuple[Step, ...], rows: Sequence[int] | np.ndarray, sizes: np.ndarray | None = None
    ) -> Computed:
        """Per-sample arguments of ``steps`` for these rows; a step's stream and a row's position decide the draws.
        ``sizes``, (len(rows), 2), where they are no longer those of the files."""
        return self._compute(steps, self.headers.facts.sizes[rows] if sizes is None else sizes, rows, 0, self.count)

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Arrays]:
        """compute() for one image of a size, (height, width), without the dimension of rows."""
        arrays = self._compute(steps, np.array([size]), [0], row, 1)
        return [rows_of(values, 0) for values in arrays]

    @named("draw")
    def _compute(
        self, steps: tuple[Step, ...], sizes: np.ndarray, rows: Sequence[int] | np.ndarray, begin: int, count: int
    ) -> Computed:
        """``rows`` of ``count`` from row ``begin`` on."""
        try:
            return compute(steps, sizes, self._randoms(begin, count), rows)
        except ImageTooSmall as error:
            row = begin + int(rows[error.row])
            named = ValueError(f"{error} ({self.name(row)})")
            named.row = row  # type: ignore[attr-defined]  # dali_part.py looks there: the other rows can be made
            try:
                raise named from None
            finally:
                del named  # as in give_up()

    def _randoms(self, begin: int, count: int) -> Callable[[int, int], np.ndarray]:
        """The random numbers of ``count`` rows from row ``begin`` on."""
        return self.epoch.randoms(self.position(begin), count)
