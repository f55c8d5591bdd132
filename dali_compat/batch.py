"""One batch on its way from indices to tensors.

start() finds the files, computes every per-sample argument and sets DALI to work; finish() waits and collates. A batch
consists of groups of rows: those that one plan's pipeline decodes, and those that go through PIL.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torchvision import tv_tensors

from .dataset import ImageReadError, locate
from .engine import batch as kernels
from .engine.device import to_device
from .engine.pipeline import PipelineError, undecodable
from .engine.replay import replay
from .headers import DALI, PIL, UNREADABLE, headers_of
from .params import ImageTooSmall, Randoms, compute, own_generators
from .plan import Plan

if TYPE_CHECKING:
    from .iterator import Epoch


class Batch:
    """``indices`` as the sampler gave them; ``position`` counts the samples of the epoch before them; ``error`` is one
    that the sampler raised instead."""

    def __init__(self, epoch: Epoch, indices: list, position: int, error: Exception | None = None):
        self.epoch, self.indices = epoch, indices
        self._position, self._error = position, error
        self._groups: list[_Decoded | _Replayed] = []
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

    def finish(self) -> Any:
        """What torch's loader would give for these indices, on the device."""
        try:
            if self._error is not None:
                raise self._error
            return self._collate(self._images())
        except BaseException:
            self.discard()
            raise
        finally:
            self._error = None  # an error refers to its traceback, and that to this batch

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()

    def _images(self):
        """(N, C, H, W), or a list of N where sizes differ or several groups made them."""
        images = [None] * len(self)
        whole = len(self._groups) == 1 and len(self._groups[0].rows) == len(self)
        while self._groups:
            group = self._groups[-1]
            made = group.images()
            self._groups.pop()
            if whole and isinstance(made, torch.Tensor):
                return made
            for row, image in zip(group.rows, made, strict=True):
                images[row] = image
        return images

    def _locate(self) -> None:
        self.places = [locate(self.epoch.dataset, index) for index in self.indices]
        samples = [folder.samples[local] for folder, local in self.places]
        self.paths = [os.fsdecode(path) for path, _ in samples]
        with self._as_in_a_worker(any(folder.target_transform for folder, _ in self.places)):
            self.targets = [
                target if folder.target_transform is None else folder.target_transform(target)
                for (_, target), (folder, _) in zip(samples, self.places)
            ]

    def _as_in_a_worker(self, needed: bool = True):
        """The user's own functions draw where torch's workers would: not from this process's generators."""
        if not (needed and self.epoch.in_workers):
            return nullcontext()
        return own_generators(self.epoch.seed, self._position)

    def _group(self) -> None:
        """Rows that share a plan and a decoder."""
        by_folder: dict[int, list[int]] = {}
        for row, (folder, _) in enumerate(self.places):
            by_folder.setdefault(id(folder), []).append(row)
        rows_of: dict[tuple[Plan, int], list[int]] = {}
        self.sizes = np.empty((len(self), 2), np.int64)
        for rows in by_folder.values():
            folder = self.places[rows[0]][0]
            plan = self.epoch.route.plan_of(folder)
            indices = [self._header(row) for row in rows]
            sizes, kinds = headers_of(folder).look(indices, [self.paths[row] for row in rows])
            self.sizes[rows] = sizes
            for kind in (DALI, PIL, UNREADABLE):
                chosen = [rows[i] for i in np.flatnonzero(kinds == kind)]
                if chosen:
                    rows_of.setdefault((plan, kind), []).extend(chosen)
        for (plan, kind), rows in rows_of.items():
            group = _Decoded if kind == DALI else _Replayed
            self._groups.append(group(self, plan, sorted(rows), *((kind == UNREADABLE,) if group is _Replayed else ())))

    def _header(self, row: int) -> int:
        """Where the headers of a row's folder keep it."""
        folder, local = self.places[row]
        return local % len(folder.samples)

    def prefer_pil(self, row: int) -> None:
        """DALI has failed on this file."""
        headers_of(self.places[row][0]).use_pil(self._header(row))

    def compute(self, steps, rows: list[int]) -> list[dict]:
        """Per-sample arguments of ``steps`` for these rows; a step's stream and a row's position decide the draws."""
        randoms = Randoms(self.epoch.seed, self._position, len(self))
        try:
            return compute(steps, self.sizes[rows], randoms, rows)
        except ImageTooSmall as error:
            raise ValueError(f"{error} ({self.name(rows[error.row])})") from None

    def name(self, row: int) -> str:
        return f"{self.paths[row]}, index {self.indices[row]}"

    def _collate(self, images) -> Any:
        """As torch's fetchers do."""
        epoch = self.epoch
        columns = [tuple(self.targets)]
        with_index = {getattr(folder, "return_index", False) for folder, _ in self.places}
        if with_index == {True}:
            columns.append([local for _, local in self.places])
        if epoch.collate_fn is default_collate and epoch.batched and self.indices and len(with_index) == 1:
            if not isinstance(images, torch.Tensor):
                images = default_collate(images)
            return [images, *(to_device(default_collate(column), epoch.route.device) for column in columns)]
        samples = [self._sample(row, image) for row, image in enumerate(images)]
        with self._as_in_a_worker():
            collated = epoch.collate_fn(samples if epoch.batched else samples[0])
        return to_device(collated, epoch.route.device)

    def _sample(self, row: int, image: torch.Tensor) -> tuple:
        """What ``dataset[index]`` gives, with the image on the device."""
        folder, local = self.places[row]
        if self.epoch.route.plan_of(folder).gives.kind == "Image":
            image = tv_tensors.Image(image)
        sample = image, self.targets[row]
        return (*sample, local) if getattr(folder, "return_index", False) else sample


class _Decoded:
    """Rows that DALI decodes."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int]):
        self.batch, self.plan, self.rows = batch, plan, rows
        arrays = batch.compute((*plan.dali, *plan.batch), rows)
        self._dali, self._batch = arrays[: len(plan.dali)], arrays[len(plan.dali) :]
        self._paths = [batch.paths[row] for row in rows]
        self._pipeline = batch.epoch.pipeline(plan, len(rows))
        self._ticket = self._pipeline.submit(self._paths, self._dali)

    def images(self):
        """(N, C, H, W), or a list of N where sizes differ."""
        try:
            images = self._pipeline.receive(self._ticket)
        except PipelineError as error:
            return self._retry(error)
        return finish(images, self.plan, self._batch)

    def discard(self) -> None:
        self._pipeline.discard(self._ticket)

    def _retry(self, error: PipelineError) -> list[torch.Tensor]:
        """Find the files that DALI cannot decode; PIL takes them from now on, or raises torchvision's error."""
        bad = undecodable(self._paths, self._pipeline.device)
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
            arrays = _rows_of(batch.compute(steps, [row]), 0)
            self._futures.append(batch.epoch.replay_later(replay, batch.paths[row], steps, arrays))

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
            images.append(_in_format(image[None].to(self.batch.epoch.route.device), self.plan)[0])
        return images

    def discard(self) -> None:
        while self._futures:
            self._futures.pop().cancel()


def finish(images, plan: Plan, arrays: list[dict]):
    """The torch part of a plan, on what DALI gave: a tensor, or a list where sizes differ."""
    if not (plan.dali and plan.dali[-1].kwargs.get("layout") == "CHW"):
        images = (
            images.permute(0, 3, 1, 2) if isinstance(images, torch.Tensor) else [i.permute(2, 0, 1) for i in images]
        )
    for step, values in zip(plan.batch, arrays):
        images = kernels.run(step, images, values)
    if isinstance(images, list):
        return [_in_format(image[None], plan)[0] for image in images]
    return _in_format(images, plan)


def _in_format(images, plan: Plan):
    return images.contiguous(memory_format=torch.channels_last if plan.channels_last else torch.contiguous_format)


def _rows_of(arrays: list[dict], rows) -> list[dict]:
    return [{name: array[rows] for name, array in step.items()} for step in arrays]
