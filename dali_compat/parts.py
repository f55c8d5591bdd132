"""Parts of a batch: the rows that share a plan, and among them the groups that DALI decodes and those that PIL does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .calls import Called
from .engine import batch as kernels
from .engine.replay import replay
from .headers import DALI, UNREADABLE
from .lower import continued
from .packed import as_sample
from .plan import Call, ImageSpec, Plan
from .sources import BYTES, DECODED, Form, ImageReadError

if TYPE_CHECKING:
    from .batch import Batch


class Part:
    """Rows that share a plan, from files to what the plan gives."""

    def __init__(self, batch: Batch, plan: Plan):
        self.batch, self.plan = batch, plan
        self.rows: list[int] = []
        self._groups: list[Decoded | Replayed] = []
        self._called: Called | None = None  # the plan's call

    def start(self, by_kind: dict[tuple[int, str], list[int]]) -> None:
        """``by_kind``: rows by who decodes them (headers.py) and what DALI is given (pipeline.py)."""
        self.rows = sorted(row for rows in by_kind.values() for row in rows)
        for (kind, given), rows in by_kind.items():
            if kind == DALI:
                self._groups.append(Decoded(self.batch, self.plan, sorted(rows), given))
            else:
                self._groups.append(Replayed(self.batch, self.plan, sorted(rows), kind == UNREADABLE))

    def advance(self) -> None:
        if self.plan.call is not None and self._called is None:
            self._called = self._call(self.plan.call, self._images(), self.plan.gives.kind)

    def outcome(self):
        """What the transform gives: (N, C, H, W), a list of N images (C, H, W), or of N other things (a tensor of
        these where they are stacked)."""
        plan = self.plan
        images, spec = (self._images(), plan.gives) if self._called is None else (None, None)
        while plan.call is not None:
            if self._called is None:
                self._called = self._call(plan.call, images, spec.kind)
            made = self._called.images(self.batch.epoch.route.device)
            if made is None:  # not images, or not alike: the rest takes them as they are
                rest = plan.call.plans.setdefault(None, Call(plan.call.rest, plan.call.reason))
                if rest.functions:
                    self._called = self._call(rest, self._called.samples(), "")
                return self._collated()
            spec, images = made
            plan, self._called = continued(plan, spec), None
            sizes = np.array([image.shape[-2:] for image in images], np.int64)
            images = run(plan.batch, images, self.batch.compute(plan.batch, self.rows, sizes))
            spec = plan.gives
        return self._as_samples(images, spec, plan)

    def _collated(self):
        """What is no image: a tensor where a whole batch is stacked anyway, else what the functions have given."""
        epoch, called = self.batch.epoch, self._called
        stacked = epoch.default_collate and len(self.rows) == len(self.batch)
        made = called.tensor(epoch.route.device) if stacked else None
        return called.samples() if made is None else made

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()
        if self._called is not None:
            self._called.cancel()

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

    def _call(self, call: Call, images, kind: str) -> Called:
        positions = [self.batch.position(row) for row in self.rows]
        return self.batch.epoch.calls.submit(call, images, kind, positions)

    def _as_samples(self, images, spec: ImageSpec, plan: Plan):
        """In the memory format that is asked for; PIL images, or tuples of views, where the transform gives these."""
        if spec.kind == "pil":
            return [as_sample(image.movedim(-3, -1).cpu(), "pil") for image in images]
        if isinstance(images, torch.Tensor):
            images = in_format(images, plan)
        else:
            images = [in_format(image[None], plan)[0] for image in images]
        if spec.views or (spec.kind == "Image" and not self.batch.epoch.default_collate):
            return [as_sample(image, spec.kind) for image in images]
        return images


class Decoded:
    """Rows that DALI decodes, or that it has decoded before (``given`` one of DECODED)."""

    def __init__(self, batch: Batch, plan: Plan, rows: list[int], given: str):
        self.batch, self.plan, self.rows, self._given = batch, plan, rows, given
        arrays = batch.compute((*plan.dali, *plan.batch), rows)
        self._dali, self._batch = arrays[: len(plan.dali)], arrays[len(plan.dali) :]
        self._sources = [batch.sources[row] for row in rows]
        if given in DECODED:
            self._images = [batch.pixels[row] for row in rows]
        else:
            self._images = [source.bytes() for source in self._sources] if given == BYTES else self._sources
        cache = batch.epoch.route.cache
        self._cache = cache if given not in DECODED and cache is not None and not cache.full else None
        form = Form(given, self._cache is not None, given not in DECODED and batch.epoch.route.fancy)
        self._pipeline = batch.epoch.pipeline(plan, len(rows), form)
        self._ticket = self._pipeline.submit(self._images, self._dali)

    def images(self):
        """(N, C, H, W), or a list of N where sizes differ."""
        from .engine.pipeline import PipelineError  # here, for other routes do without DALI

        try:
            images, decoded = self._pipeline.receive(self._ticket)
        except PipelineError as error:
            return self._retry(error)
        if self._cache is not None:
            self._cache.add(self._sources, decoded)
        if not (self.plan.dali and self.plan.dali[-1].kwargs.get("layout") == "CHW"):
            images = images.movedim(-1, 1) if isinstance(images, torch.Tensor) else [i.movedim(-1, 0) for i in images]
        return run(self.plan.batch, images, self._batch)

    def discard(self) -> None:
        self._pipeline.discard(self._ticket)

    def _retry(self, error: Exception) -> list[torch.Tensor]:
        """Find the files that DALI cannot decode; PIL takes them from now on, or raises torchvision's error."""
        from .engine.pipeline import undecodable

        bad = [] if self._given in DECODED else undecodable(self._images, self._pipeline.device, self._given)
        if not bad:
            raise error
        images: list = [None] * len(self.rows)
        good = [i for i in range(len(self.rows)) if i not in bad]
        for i in bad:
            self.batch.prefer_pil(self.rows[i])
        replayed = Replayed(self.batch, self.plan, [self.rows[i] for i in bad]).images()
        decoded = []
        if good:  # not before PIL is done: where it raises, nobody would ask for what DALI has made
            decoded = Decoded(self.batch, self.plan, [self.rows[i] for i in good], self._given).images()
        for places, made in ((bad, replayed), (good, decoded)):
            for i, image in zip(places, made, strict=True):
                images[i] = image
        return images


class Replayed:
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


def in_format(images, plan: Plan):
    last = plan.channels_last and images.ndim == 4
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
