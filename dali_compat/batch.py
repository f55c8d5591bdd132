"""One batch on its way from indices to tensors.

start() finds the files, computes every per-sample argument and sets DALI to work; advance() gives what has no
translation to Python, if there is such a thing; finish() waits and collates. A batch consists of parts, the rows that
share a plan, and each of these of the rows that DALI decodes and those that go through PIL (parts.py).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .dataset import locate, sample
from .engine.device import to_device
from .headers import DALI, headers_of
from .params import ImageTooSmall, Randoms, compute, own_generators
from .parts import Part
from .plan import Plan
from .sources import BYTES, PATHS, fetch, is_record

if TYPE_CHECKING:
    from .iterator import Epoch


class Batch:
    """``indices`` as the sampler gave them; ``position`` counts the samples of the epoch before them; ``error`` is one
    that the sampler raised instead."""

    def __init__(self, epoch: Epoch, indices: list, position: int, error: Exception | None = None):
        self.epoch, self.indices = epoch, indices
        self._position, self._error = position, error
        self._parts: list[Part] = []
        self._started = error is not None

    def __len__(self) -> int:
        return len(self.indices)

    def start(self) -> None:
        """Once; errors wait for finish(), so that they reach the caller with the batch that they belong to."""
        if self._started:
            return
        self._started = True
        try:
            self._locate()
            self._group()
        except BaseException as error:  # an interrupt, too, must not leave half a batch that looks whole
            self._error = error
            if not isinstance(error, Exception):
                raise

    def advance(self) -> None:
        """Once, after start(): functions without a translation begin to work. Errors wait, too."""
        try:
            if self._error is None:
                for part in self._parts:
                    part.advance()
        except Exception as error:
            self._error = error

    def finish(self) -> Any:
        """What torch's loader would give for these indices, on the device."""
        try:
            self.advance()
            if self._error is not None:
                raise self._error
            return self._collate(self._images())
        except BaseException:
            self.discard()
            raise
        finally:
            self._error = None  # an error refers to its traceback, and that to this batch

    def discard(self) -> None:
        while self._parts:
            self._parts.pop().discard()

    def _images(self):
        """(N, C, H, W), or a list of N where sizes differ, several parts made them, or they are no images."""
        images = [None] * len(self)
        while self._parts:
            part = self._parts[-1]
            made = part.outcome()
            self._parts.pop()
            if len(part.rows) == len(self):
                return made
            for row, image in zip(part.rows, made, strict=True):
                images[row] = image
        return images

    def _locate(self) -> None:
        self.places = [locate(self.epoch.dataset, index) for index in self.indices]
        self.sources, targets = zip(*(sample(part, local) for part, local in self.places)) if self.places else ((), ())
        cache = self.epoch.route.cache
        self.pixels = [cache and cache.get(source) for source in self.sources]
        fetch([source for source, known in zip(self.sources, self.pixels) if known is None])
        with self._as_in_a_worker(any(part.target_transform for part, _ in self.places)):
            self.targets = [
                target if part.target_transform is None else part.target_transform(target)
                for target, (part, _) in zip(targets, self.places)
            ]

    def _as_in_a_worker(self, needed: bool = True):
        """The user's own functions draw where torch's workers would: not from this process's generators."""
        if not (needed and self.epoch.in_workers):
            return nullcontext()
        return own_generators(self.epoch.seed, self._position)

    def _group(self) -> None:
        """Rows that share a plan, and among them those that share a decoder and what it is given."""
        by_folder: dict[int, list[int]] = {}
        for row, (folder, _) in enumerate(self.places):
            by_folder.setdefault(id(folder), []).append(row)
        rows_of: dict[Plan, dict[tuple[int, str], list[int]]] = {}
        self.sizes = np.empty((len(self), 2), np.int64)
        for rows in by_folder.values():
            folder = self.places[rows[0]][0]
            by_kind = rows_of.setdefault(self.epoch.route.plan_of(folder), {})
            indices = [self._header(row) for row in rows]
            sizes, kinds = headers_of(folder).look(indices, [self.sources[row] for row in rows])
            self.sizes[rows] = sizes
            for row, kind in zip(rows, kinds.tolist()):
                by_kind.setdefault((kind, self._given(row, kind)), []).append(row)
        for plan, by_kind in rows_of.items():
            self._parts.append(part := Part(self, plan))
            part.start(by_kind)

    def _given(self, row: int, kind: int) -> str:
        """What DALI is given of a row; what PIL decodes, it opens itself."""
        if kind != DALI:
            return ""
        if self.pixels[row] is not None:
            return self.epoch.route.cache.form
        return BYTES if is_record(self.sources[row]) else PATHS

    def _header(self, row: int) -> int:
        """Where the headers of a row's folder keep it."""
        folder, local = self.places[row]
        return local % len(folder)

    def prefer_pil(self, row: int) -> None:
        """DALI has failed on this file."""
        headers_of(self.places[row][0]).use_pil(self._header(row))

    def compute(self, steps, rows: list[int], sizes: np.ndarray | None = None) -> list[dict]:
        """Per-sample arguments of ``steps`` for these rows; a step's stream and a row's position decide the draws.
        ``sizes``, (len(rows), 2), where they are no longer those of the files."""
        randoms = Randoms(self.epoch.seed, self._position, len(self))
        try:
            return compute(steps, self.sizes[rows] if sizes is None else sizes, randoms, rows)
        except ImageTooSmall as error:
            raise ValueError(f"{error} ({self.name(rows[error.row])})") from None

    def position(self, row: int) -> int:
        """How many samples of the epoch come before this row."""
        return self._position + row

    def name(self, row: int) -> str:
        return f"{self.sources[row]}, index {self.indices[row]}"

    def _collate(self, images) -> Any:
        """As torch's fetchers do."""
        epoch = self.epoch
        columns = [tuple(self.targets)]
        with_index = {getattr(folder, "return_index", False) for folder, _ in self.places}
        if with_index == {True}:
            columns.append([local for _, local in self.places])
        if epoch.default_collate and len(self) and len(with_index) == 1:
            if not isinstance(images, torch.Tensor):
                images = to_device(default_collate(images), epoch.route.device)
            return [images, *(to_device(default_collate(column), epoch.route.device) for column in columns)]
        samples = [self._sample(row, image) for row, image in enumerate(images)]
        with self._as_in_a_worker():
            collated = epoch.collate_fn(samples if epoch.batched else samples[0])
        return to_device(collated, epoch.route.device)

    def _sample(self, row: int, image: torch.Tensor) -> tuple:
        """What ``dataset[index]`` gives, with the image on the device."""
        folder, local = self.places[row]
        sample = image, self.targets[row]
        return (*sample, local) if getattr(folder, "return_index", False) else sample
