"""One batch on its way from indices to tensors.

start() finds the files, computes every per-sample argument and sets DALI to work; advance() gives what has no
translation to Python, if there is such a thing; finish() waits and collates. A batch consists of parts, the rows that
share a plan, and each of these of the rows that DALI decodes and those that go through PIL.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .calls import as_sample, as_tensor, results_of, spec_of
from .dataset import ImageReadError, locate, sample
from .engine import batch as kernels
from .engine.device import to_device
from .engine.replay import replay
from .headers import DALI, PIL, UNREADABLE, headers_of
from .lower import continued
from .params import ImageTooSmall, Randoms, compute, own_generators
from .plan import Call, ImageSpec, Plan
from .sources import encoded, is_record

if TYPE_CHECKING:
    from .iterator import Epoch


class Batch:
    """``indices`` as the sampler gave them; ``position`` counts the samples of the epoch before them; ``error`` is one
    that the sampler raised instead."""

    def __init__(self, epoch: Epoch, indices: list, position: int, error: Exception | None = None):
        self.epoch, self.indices = epoch, indices
        self._position, self._error = position, error
        self._parts: list[_Part] = []
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
        """Rows that share a plan, and among them those that share a decoder and a kind of source."""
        by_folder: dict[int, list[int]] = {}
        for row, (folder, _) in enumerate(self.places):
            by_folder.setdefault(id(folder), []).append(row)
        rows_of: dict[Plan, dict[tuple[int, bool], list[int]]] = {}
        self.sizes = np.empty((len(self), 2), np.int64)
        for rows in by_folder.values():
            folder = self.places[rows[0]][0]
            by_kind = rows_of.setdefault(self.epoch.route.plan_of(folder), {})
            indices = [self._header(row) for row in rows]
            sizes, kinds = headers_of(folder).look(indices, [self.sources[row] for row in rows])
            self.sizes[rows] = sizes
            for kind in (DALI, PIL, UNREADABLE):
                chosen = [rows[i] for i in np.flatnonzero(kinds == kind)]
                if chosen:
                    by_kind.setdefault((kind, is_record(self.sources[chosen[0]])), []).extend(chosen)
        for plan, by_kind in rows_of.items():
            self._parts.append(part := _Part(self, plan))
            part.start(by_kind)

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
        if epoch.default_collate and self.indices and len(with_index) == 1:
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


class _Part:
    """Rows that share a plan, from files to what the plan gives."""

    def __init__(self, batch: Batch, plan: Plan):
        self.batch, self.plan = batch, plan
        self.rows: list[int] = []
        self._groups: list[_Decoded | _Replayed] = []
        self._results: list[Future] | None = None  # of the plan's call

    def start(self, by_kind: dict[tuple[int, bool], list[int]]) -> None:
        self.rows = sorted(row for rows in by_kind.values() for row in rows)
        for (kind, _), rows in by_kind.items():
            if kind == DALI:
                self._groups.append(_Decoded(self.batch, self.plan, sorted(rows)))
            else:
                self._groups.append(_Replayed(self.batch, self.plan, sorted(rows), kind == UNREADABLE))

    def advance(self) -> None:
        if self.plan.call is not None and self._results is None:
            self._results = self._call(self.plan.call, self._images(), self.plan.gives.kind)

    def outcome(self):
        """What the transform gives: (N, C, H, W), a list of N images (C, H, W), or of N other things."""
        plan, results = self.plan, self._results
        images, spec = (self._images(), plan.gives) if results is None else (None, None)
        while plan.call is not None:
            if results is None:
                results = self._call(plan.call, images, spec.kind)
            given = results_of(results)
            spec = _common(given)
            if spec is None:  # not images, or not alike: the rest takes them as they are
                rest = plan.call.plans.setdefault(None, Call(plan.call.rest, plan.call.reason))
                return results_of(self._call(rest, given, "")) if rest.functions else given
            plan, results = continued(plan, spec), None
            images = kernels.uniform([as_tensor(one).to(self.batch.epoch.route.device) for one in given])
            sizes = np.array([image.shape[-2:] for image in images], np.int64)
            images = run(plan.batch, images, self.batch.compute(plan.batch, self.rows, sizes))
            spec = plan.gives
        return self._as_samples(images, spec, plan)

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()
        for future in self._results or ():
            future.cancel()

    def _images(self):
        """What the steps before a call give, on the device."""
        images = [None] * len(self.rows)
        place = {row: i for i, row in enumerate(self.rows)}
        while self._groups:
            group = self._groups[-1]
            made = group.images()
            self._groups.pop()
            if len(group.rows) == len(self.rows):
                return made
            for row, image in zip(group.rows, made, strict=True):
                images[place[row]] = image
        return kernels.uniform(images)

    def _call(self, call: Call, images, kind: str) -> list[Future]:
        positions = [self.batch.position(row) for row in self.rows]
        return self.batch.epoch.calls.submit(call, images, kind, positions)

    def _as_samples(self, images, spec: ImageSpec, plan: Plan):
        """In the memory format that is asked for; PIL images, or tuples of views, where the transform gives these."""
        if spec.kind == "pil":
            return [as_sample(image.movedim(-3, -1).cpu(), "pil") for image in images]
        if isinstance(images, torch.Tensor):
            images = _in_format(images, plan)
        else:
            images = [_in_format(image[None], plan)[0] for image in images]
        if spec.views or (spec.kind == "Image" and not self.batch.epoch.default_collate):
            return [as_sample(image, spec.kind) for image in images]
        return images


class _Decoded:
    """Rows that DALI decodes."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int]):
        self.batch, self.plan, self.rows = batch, plan, rows
        arrays = batch.compute((*plan.dali, *plan.batch), rows)
        self._dali, self._batch = arrays[: len(plan.dali)], arrays[len(plan.dali) :]
        self._encoded, sources = is_record(batch.sources[rows[0]]), [batch.sources[row] for row in rows]
        self._given = encoded(sources) if self._encoded else sources
        self._pipeline = batch.epoch.pipeline(plan, len(rows), self._encoded)
        self._ticket = self._pipeline.submit(self._given, self._dali)

    def images(self):
        """(N, C, H, W), or a list of N where sizes differ."""
        from .engine.pipeline import PipelineError

        try:
            images = self._pipeline.receive(self._ticket)
        except PipelineError as error:
            return self._retry(error)
        if not (self.plan.dali and self.plan.dali[-1].kwargs.get("layout") == "CHW"):
            images = images.movedim(-1, 1) if isinstance(images, torch.Tensor) else [i.movedim(-1, 0) for i in images]
        return run(self.plan.batch, images, self._batch)

    def discard(self) -> None:
        self._pipeline.discard(self._ticket)

    def _retry(self, error: Exception) -> list[torch.Tensor]:
        """Find the files that DALI cannot decode; PIL takes them from now on, or raises torchvision's error."""
        from .engine.pipeline import undecodable

        bad = undecodable(self._given, self._pipeline.device, self._encoded)
        if not bad:
            raise error
        images: list = [None] * len(self.rows)
        good = [i for i in range(len(self.rows)) if i not in bad]
        for i in bad:
            self.batch.prefer_pil(self.rows[i])
        for group, places in ((_Replayed, bad), (_Decoded, good)):
            made = group(self.batch, self.plan, [self.rows[i] for i in places]).images() if places else ()
            for i, image in zip(places, made):
                images[i] = image
        return images


class _Replayed:
    """Rows that go through PIL and torchvision's own functions, with the parameters drawn for them."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int], unreadable: bool = False):
        self.batch, self.plan, self.rows = batch, plan, rows
        self._futures = []
        for row in rows:
            steps = () if unreadable else plan.steps  # PIL's error is all that is wanted of an unreadable file
            arrays = [kernels.rows_of(values, 0) for values in batch.compute(steps, [row])]
            self._futures.append(batch.epoch.replay_later(replay, batch.sources[row], steps, arrays))

    def images(self) -> list[torch.Tensor]:
        images = []
        futures, self._futures = self._futures[::-1], []
        for row in self.rows:
            try:
                image = futures.pop().result()
                if not isinstance(image, torch.Tensor):
                    raise OSError("it changed while it was read")
            except Exception as error:
                message = f"cannot decode {self.batch.name(row)}: {type(error).__name__}: {error}"
                while futures:
                    futures.pop().cancel()
                raise ImageReadError(message) from error
            images.append(image.to(self.batch.epoch.route.device))
        return images

    def discard(self) -> None:
        while self._futures:
            self._futures.pop().cancel()


def run(steps, images, arrays: list[dict]):
    """Torch's part of a plan: a tensor, or a list where sizes differ."""
    for step, values in zip(steps, arrays, strict=True):
        if step.op != "choose":
            images = kernels.run(step, images, values)
    return images


def _common(results: list) -> ImageSpec | None:
    """What all results are, with their size where it is one; None where they are not images or not alike."""
    specs = {spec_of(result) for result in results}
    kinds = {spec and spec.but(size=None) for spec in specs}
    if None in kinds or len(kinds) != 1:
        return None
    return specs.pop() if len(specs) == 1 else kinds.pop()


def _in_format(images, plan: Plan):
    last = plan.channels_last and images.ndim == 4
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
