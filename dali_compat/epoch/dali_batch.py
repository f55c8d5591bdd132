"""A batch on the DALI route.

A row is one image of the batch. Rows that share a plan are decoded together (part.py), in groups by decoder (decode.py,
planes_group.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ..data.header import DALI, PIL, UNREADABLE
from ..data.lookup import LeafRows, Samples, are_current, objects_at
from ..data.sources import Source
from ..ops.draws import ImageTooSmall
from ..plan import Plan
from ..runtime.device import handed_over
from ..runtime.internals import current_stream_of
from .batch import Batch, stage
from .collate import collate
from .decode import RowImages, sorted_by_row
from .epoch import DaliEpoch
from .on_error import NOTHING, Substitute, reason_of
from .part import RowsDecoding, as_transformed
from .rows import Rows, rows_of


class _Prepared(NamedTuple):
    """The result of DaliBatch.prepare()."""

    made: Any  # images, or the collated batch
    is_whole: bool  # whether ``made`` is the collated batch
    stream: torch.cuda.Stream | None  # CUDA stream of the computation

    def handed_over(self) -> Any:
        """Return ``made`` for use on the current CUDA stream, copied if necessary."""
        if self.stream is None or self.stream.cuda_stream == current_stream_of(self.stream.device):
            return self.made
        return handed_over(self.made, self.stream)


class DaliBatch(Batch):
    """A batch of images that DALI, a GPU's JPEG engine or PIL decodes.

    The methods below are called in order. Only start() and finish() are required, because finish() does any skipped
    work. If one of the methods 2 to 5 fails, later methods do nothing, and finish() raises the exception.

    1. request: request objects from object storage.
    2. announce: let other processes read headers.
    3. start: find samples, draw random arguments, submit rows to their decoders.
    4. decode: submit files to a GPU's JPEG engine.
    5. prepare: do the part of finish() that runs no user code.
    6. finish: return the batch that torch's loader would return.

    discard() may be called at any time.

    Args:
        epoch, indices, begin, error: see Batch.
        is_substitute: whether the batch is a single sample that replaces an unreadable one. PIL always decodes this
            sample, so its pixels never vary.

    Attributes:
        started: True after start(), or if ``error`` makes it unnecessary.
        waits_for_headers: whether start() will wait for other processes.
    """

    epoch: DaliEpoch
    indices: list[Any]
    _rows: Rows  # set by _locate()

    def __init__(
        self, epoch: DaliEpoch, indices: list, begin: int, error: Exception | None = None, is_substitute: bool = False
    ):
        super().__init__(epoch, indices, begin, error)
        self._is_substitute = is_substitute
        self._bad: dict[int, Exception | str] = {}  # error, or its text, of each row that failed
        self._pending: list[tuple[Plan, RowsDecoding]] = []
        self._substitutes: dict[int, Substitute] = {}
        self._prepared: _Prepared | None = None
        self.started = self._located = error is not None
        self.waits_for_headers = self._requested = False

    # ---- stages

    def request(self) -> None:
        """Request this batch's objects from object storage. Repeated calls do nothing."""
        if self._requested or self._located:
            return
        self._requested = True
        if self.epoch.fetcher is not None:
            self.epoch.fetcher.request(objects_at(self.epoch.dataset, self.indices, self.epoch.plain))

    @stage
    def announce(self) -> None:
        """Let other processes read the headers that are not cached yet. Call before start()."""
        if not self._located:
            self._locate()
            self.waits_for_headers = self.epoch.prefetcher is not None and self._rows.request_headers()

    @stage
    def start(self) -> None:
        """Find the files, draw random arguments and submit rows to their decoders. Repeated calls do nothing."""
        if self.started:
            return
        self.started = True
        if not self._located:
            self._locate()
        if self.waits_for_headers:
            self._rows.receive_headers()
            self.waits_for_headers = False
        self._group()

    @stage
    def decode(self) -> None:
        """Submit JPEGs to the GPU's JPEG engine. Call after start()."""
        for _, decoding in self._pending:
            decoding.decode()

    @stage
    def prepare(self) -> None:
        """Do the part of finish() that runs no user code. Call after start(), in any thread."""
        if self._prepared is not None:
            return
        device = self.epoch.route.device
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        images = self.outcome()
        whole = self.epoch.default_collate and not self._bad
        self._prepared = _Prepared(self._collate(images) if whole else images, whole, stream)

    def refresh(self) -> None:
        epoch = self.epoch
        if not self._located or self.error is not None:
            return
        if not are_current(self._rows.samples, epoch.dataset, self.indices, epoch.folder, epoch.is_upright):
            self.discard()
            self.forget_errors()
            self.started = self._located = False

    def finish(self) -> Any:
        """Return the batch that torch's loader would return, on the device, or NOTHING if on_error has skipped all
        samples.

        Raises:
            RuntimeError: the loader was closed.
        """
        self.epoch.check_open()
        prepared = self._prepared
        if prepared is None or not prepared.is_whole or self.error is not None:
            return super().finish()
        return prepared.handed_over()

    def _images(self) -> Any:
        if self._prepared is not None:
            return self._prepared.handed_over()
        made = self._made()
        return made[0][1] if len(made) == 1 else sorted_by_row(made)

    def _made(self) -> list[RowImages]:
        made = []
        while self._pending:  # a part is removed after its result, because discard() must discard a part that fails
            plan, decoding = self._pending[-1]
            try:
                rows, images = decoding.result()
            except ImageTooSmall as error:
                raise ValueError(str(error)) from None  # torchvision raises this class
            self._pending.pop()
            if rows:
                made.append((rows, as_transformed(self._rows, plan, rows, images, self._rows.infos)))
        return made

    def _collate(self, images: Any) -> Any:
        samples = self._rows.samples
        if self._bad:
            samples, images = self._without_bad(samples, images)
            if not len(self):
                return NOTHING
        return collate(
            self.epoch, samples, images, self.begin, lambda row: f"{samples.sources[row]}, index {self.indices[row]}"
        )

    def forget_errors(self) -> None:
        self.error = None
        self._bad.clear()
        self._prepared, self._substitutes = None, {}

    def discard(self) -> None:
        while self._pending:
            self._pending.pop()[1].discard()
        while self._substitutes:
            self._substitutes.popitem()[1].discard()

    def _locate(self) -> None:
        self._located = True
        self._rows = rows_of(self.epoch, self.indices, self.begin, self._bad, self._is_substitute)

    # ---- groups

    def _group(self) -> None:
        """Submit rows to their decoders, grouped by plan, decoder and form of the input."""
        rows = self._rows
        by_plan: dict[Plan, dict[tuple[int, str], list[np.ndarray]]] = {}
        for found, kinds in rows.read_headers(by_pil=self._is_substitute):
            for kind, given, chosen in self._split_by_decoder(found, kinds):
                plan = self.epoch.route.plan_of(found.leaf)
                by_plan.setdefault(plan, {}).setdefault((kind, given), []).append(chosen)
        for plan, by_decoder in by_plan.items():
            decoding = RowsDecoding(rows, plan)
            self._pending.append((plan, decoding))
            decoding.start({kind: np.sort(np.concatenate(several)) for kind, several in by_decoder.items()})

    def _split_by_decoder(self, found: LeafRows, kinds: np.ndarray) -> Iterator[tuple[int, str, np.ndarray]]:
        """Split the rows of one innermost data set by decoder. Yield (decoder, form of its input, rows). The form is
        "" for PIL. ``kinds`` are the rows' decoders."""
        rows, by_dali = found.rows, kinds == DALI
        if by_dali.any():
            yield DALI, found.input, rows if by_dali.all() else rows[by_dali]
        for kind in (PIL, UNREADABLE):
            if (others := kinds == kind).any():
                yield kind, "", rows[others]

    # ---- on_error

    def single_outcome(self) -> tuple[Samples, Any, tuple[Source, Any] | None]:
        """Return (samples, image, failure) of a batch with one sample. The failure is None, or (source, reason) if the
        sample could not be read."""
        images, samples = self.outcome(), self._rows.samples
        if not self._bad:
            return samples, images[0], None
        row = min(self._bad)
        return samples, None, (samples.sources[row], self._bad[row])

    def _substitute(self) -> None:
        if self.epoch.errors.policy != "replace" or self._is_substitute:
            return
        for row in self._bad.keys() - self._substitutes.keys():
            make = partial(DaliBatch, self.epoch, begin=self.begin + row, is_substitute=True)
            self._substitutes[row] = Substitute(self.epoch, self._rows.position(row), make)

    def _without_bad(self, samples: Samples, images: Any) -> tuple[Samples, Any]:
        """Drop or replace failed rows, and record their errors. Return the remaining samples and images."""
        errors, bad = self.epoch.errors, self._bad
        for row, error in sorted(bad.items()):
            errors.add(str(samples.sources[row]), self.indices[row], reason_of(error))
        good = [row for row in range(len(self)) if row not in bad]
        listed = Samples(list(samples.locations), list(samples.sources), list(samples.targets))
        if errors.policy == "skip":
            self.indices = [self.indices[i] for i in good]
            return listed.only(good), images
        self._substitute()
        others = {row: self._substitutes[row].outcome() for row in bad}
        for row, (sample, _) in others.items():
            listed.locations[row], listed.targets[row] = sample.locations[0], sample.targets[0]
            listed.sources[row] = sample.sources[0]
        return listed, sorted_by_row([(good, images), *(([row], [image]) for row, (_, image) in others.items())])
