"""One batch on its way from indices to tensors.

start() finds the files, computes every per-sample argument and sets DALI to work; finish() waits and collates. A batch
consists of groups of rows: those that one plan's pipeline decodes, and those that go through PIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert
from torchvision import tv_tensors

from .dataset import ImageReadError, locate
from .engine import batch as kernels
from .engine.device import to_device
from .engine.pipeline import PipelineError, undecodable
from .engine.replay import replay
from .headers import PIL, headers_of
from .params import ImageTooSmall, Randoms, compute
from .plan import Plan

if TYPE_CHECKING:
    from .iterator import DALIIterator


class Batch:
    """``indices`` as the sampler gave them; ``position`` counts the samples of the epoch before them."""

    def __init__(self, iterator: DALIIterator, indices: list, position: int):
        self.indices = indices
        self._iterator, self._position = iterator, position
        self._groups: list[_Decoded | _Replayed] | None = None
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def start(self) -> None:
        """Once; errors wait for finish(), so that they reach the caller with the batch that they belong to."""
        if self._groups is not None:
            return
        self._groups = []
        try:
            self._locate()
            self._group()
        except Exception as error:
            self._error = error

    def finish(self) -> Any:
        """What torch's loader would give for these indices, on the device."""
        if self._error is not None:
            raise self._error
        images = [None] * len(self)
        for group in self._groups:
            made = group.images()
            if len(self._groups) == 1 and isinstance(made, torch.Tensor):
                images = made
                break
            for row, image in zip(group.rows, made):
                images[row] = image
        return self._collate(images)

    def discard(self) -> None:
        for group in self._groups or ():
            group.discard()

    def _locate(self) -> None:
        dataset = self._iterator._dataset
        self.places = [locate(dataset, index) for index in self.indices]
        samples = [folder.samples[local] for folder, local in self.places]
        self.paths = [str(path) for path, _ in samples]
        self.targets = [
            target if folder.target_transform is None else folder.target_transform(target)
            for (_, target), (folder, _) in zip(samples, self.places)
        ]

    def _group(self) -> None:
        """Rows that share a plan and a decoder."""
        by_folder: dict[int, list[int]] = {}
        for row, (folder, _) in enumerate(self.places):
            by_folder.setdefault(id(folder), []).append(row)
        rows_of: dict[tuple[Plan, bool], list[int]] = {}
        self.sizes = np.empty((len(self), 2), np.int64)
        for rows in by_folder.values():
            folder = self.places[rows[0]][0]
            plan = self._iterator.route.plan_of(folder)
            sizes, kinds = headers_of(folder).look([self.places[r][1] for r in rows], [self.paths[r] for r in rows])
            self.sizes[rows] = sizes
            for by_pil in (False, True):
                chosen = [rows[i] for i in np.flatnonzero((kinds == PIL) == by_pil)]
                if chosen:
                    rows_of.setdefault((plan, by_pil), []).extend(chosen)
        for (plan, by_pil), rows in rows_of.items():
            self._groups.append((_Replayed if by_pil else _Decoded)(self, plan, sorted(rows)))

    def compute(self, steps, rows: list[int]) -> list[dict]:
        """Per-sample arguments of ``steps`` for these rows; a step's stream and a row's position decide the draws."""
        randoms = Randoms(self._iterator.seed, self._position, len(self))
        try:
            return compute(steps, self.sizes[rows], randoms, rows)
        except ImageTooSmall as error:
            raise ValueError(f"{error} ({self._name(rows[error.row])})") from None

    def _name(self, row: int) -> str:
        return f"{self.paths[row]}, index {self.indices[row]}"

    def _collate(self, images) -> Any:
        """As torch's fetchers do: ``images`` is a tensor (N, C, H, W), or a list of N where sizes differ."""
        iterator, device = self._iterator, self._iterator.route.device
        columns = [self.targets]
        if getattr(self.places[0][0] if self.places else None, "return_index", False):
            columns.append([local for _, local in self.places])
        if iterator._collate_fn is default_collate and iterator._auto_collation and self.indices:
            if not isinstance(images, torch.Tensor):
                images = default_collate(images)
            return [images, *(to_device(default_collate(column), device) for column in columns)]
        wrap = {"Image": tv_tensors.Image}
        kinds = [wrap.get(iterator.route.plan_of(folder).gives.kind) for folder, _ in self.places]
        samples = [
            (kind(image) if kind else image, *rest) for kind, image, *rest in zip(kinds, images, *columns, strict=True)
        ]
        return to_device(iterator._collate_fn(samples if iterator._auto_collation else samples[0]), device)


class _Decoded:
    """Rows that DALI decodes."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int]):
        self.batch, self.plan, self.rows = batch, plan, rows
        arrays = batch.compute((*plan.dali, *plan.batch), rows)
        self._dali, self._batch = arrays[: len(plan.dali)], arrays[len(plan.dali) :]
        self._paths = [batch.paths[row] for row in rows]
        self._pipeline = batch._iterator.pipeline(plan, len(rows))
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

    def _retry(self, error: PipelineError):
        """Find the files that DALI cannot decode; PIL takes them from now on, or raises torchvision's error."""
        batch = self.batch
        bad = undecodable(self._paths, self._pipeline.device)
        if not bad:
            raise error
        for i in bad:
            folder, local = batch.places[self.rows[i]]
            headers_of(folder).use_pil(local)
        images: list = [None] * len(self.rows)
        good = [i for i in range(len(self.rows)) if i not in bad]
        for group, places in ((_Replayed, bad), (_Decoded, good)):
            if places:
                made = group(batch, self.plan, [self.rows[i] for i in places]).images()
                for i, image in zip(places, made):
                    images[i] = image
        return images


class _Replayed:
    """Rows that go through PIL and torchvision's own functions, with the parameters drawn for them."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int]):
        self.batch, self.plan, self.rows = batch, plan, rows
        arrays = None
        self._futures = []
        for row in rows:
            arrays = _rows_of(batch.compute(plan.steps, [row]), 0)
            self._futures.append(batch._iterator.replay_later(replay, batch.paths[row], plan.steps, arrays))

    def images(self) -> list[torch.Tensor]:
        images = []
        for row, future in zip(self.rows, self._futures):
            try:
                image = future.result()
            except Exception as error:
                name = f"{self.batch.paths[row]} (index {self.batch.indices[row]})"
                raise ImageReadError(f"cannot decode {name}: {type(error).__name__}: {error}") from error
            images.append(_in_format(image[None].to(self.batch._iterator.route.device), self.plan)[0])
        return images

    def discard(self) -> None:
        for future in self._futures:
            future.cancel()


def finish(images, plan: Plan, arrays: list[dict]):
    """The torch part of a plan, on what DALI gave: a tensor, or a list where sizes differ."""
    if not isinstance(images, torch.Tensor):
        return [finish(image[None], plan, _rows_of(arrays, slice(i, i + 1)))[0] for i, image in enumerate(images)]
    if not (plan.dali and plan.dali[-1].kwargs.get("layout") == "CHW"):
        images = images.permute(0, 3, 1, 2)
    for step, values in zip(plan.batch, arrays):
        images = getattr(kernels, step.op)(images, values, **step.kwargs)
    return _in_format(images, plan)


def _in_format(images, plan: Plan):
    return images.contiguous(memory_format=torch.channels_last if plan.channels_last else torch.contiguous_format)


def _rows_of(arrays: list[dict], rows) -> list[dict]:
    return [{name: array[rows] for name, array in step.items()} for step in arrays]
