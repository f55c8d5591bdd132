"""The rows of a batch that share a plan: decoding in groups, one per decoder, and calls of Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..data.header import DALI
from ..data.sources import DECODED, PATHS
from ..ops.draws import Arrays, ImageTooSmall
from ..ops.image_by_image import run_all
from ..ops.kernels import uniform
from ..plan import UPRIGHT, Call, ImageSpec, Plan, Step
from ..runtime.decorators import named
from ..runtime.device import ViewBatches
from ..runtime.open_files import files_at_once
from ..translate.lower import continued
from ..workers import Called
from ..workers.samples import as_samples
from .decode import DaliGroup, PilGroup, RowImages, in_format, in_order, other_sizes, together
from .epoch import Epoch
from .planes_group import ComparedGroup, PlanesGroup, as_many_as_fit, bounded
from .rows import Rows

# Pillow's operations whose result keeps the info of the input image
_KEEP_INFO = {"identity", "choose", UPRIGHT, "crop", "resize", "flip", "rotate", "affine", "perspective", "invert"}
_KEEP_INFO |= {"posterize", "solarize", "sharpness", "autocontrast", "equalize"}


class RowsDecoding:
    """Decoding of the rows of a batch that share a plan."""

    def __init__(self, batch: Rows, plan: Plan):
        self._batch, self._plan = batch, plan
        self._groups: list[DaliGroup | PlanesGroup | PilGroup] = []

    def start(self, by_kind: dict[tuple[int, str], np.ndarray]) -> None:
        """Submit rows to their decoders. ``by_kind`` maps (decoder, form of DALI's input) to sorted rows; see
        data/header.py and data/sources.py."""
        for (kind, given), rows in by_kind.items():
            if kind == DALI:
                turned = self._batch.facts["orientations"][rows] > 1
                for some in (rows,) if given in DECODED or not turned.any() else (rows[~turned], rows[turned]):
                    self._submit(DaliGroup, self._submit_to_engine(some, given), given)
            else:
                self._groups.append(PilGroup(self._batch, self._plan, rows.tolist()))

    def _submit_to_engine(self, rows: np.ndarray, given: str) -> np.ndarray:
        """Submit JPEGs to a GPU's engine if it is known to decode them to Pillow's pixels, and some others to compare
        them with DALI. Return the remaining rows."""
        engine, facts = self._batch.epoch.engine, self._batch.facts
        if engine is None or given in DECODED or not self._plan.from_planes:
            return rows
        takes = rows[engine.takes(facts["chroma"][rows], facts["sizes"][rows])]
        known, new = engine.shared_out(takes, facts["chroma"][takes], self._batch.words[takes])
        if len(new):
            new = as_many_as_fit(new, facts, engine.room)
        for several in bounded(known, facts, engine.memory):
            self._submit(PlanesGroup, several, given, engine=engine)
        self._submit(ComparedGroup, new, given, engine=engine)
        return np.setdiff1d(rows, np.concatenate([known, new]), assume_unique=True)

    def _submit(self, group: type[DaliGroup] | type[PlanesGroup], rows: np.ndarray, given: str, **options: Any) -> None:
        """Submit rows in groups, leaving out those whose arguments cannot be computed."""
        most = files_at_once(len(rows)) if given == PATHS else len(rows)
        for begin in range(0, len(rows), max(1, most)):
            self._submit_at_once(group, rows[begin : begin + most].tolist(), given, **options)

    def _submit_at_once(
        self, group: type[DaliGroup] | type[PlanesGroup], left: list[int], given: str, **options: Any
    ) -> None:
        while left:
            try:
                self._groups.append(group(self._batch, self._plan, left, given, **options))
                return
            except ImageTooSmall as error:
                self._batch.give_up({error.row: error})
                left.remove(error.row)

    def decode(self) -> None:
        """Start a GPU's JPEG engine on files that were read."""
        for group in self._groups:
            if isinstance(group, PlanesGroup):
                group.decode()

    def look(self) -> None:
        """Give up rows that have already failed. Others may still be in progress."""
        for group in self._groups:
            if isinstance(group, PilGroup) and (failures := group.failed()):
                self._batch.give_up(failures)

    def result(self) -> RowImages:
        """Return the decoded rows and their images on the device. Give up the others."""
        made, failures = [], dict[int, Exception]()
        while self._groups:  # a group that fails stays, to be discarded
            made.append(self._groups[-1].result(failures))
            self._groups.pop()
        if failures:
            self._batch.give_up(failures)
        rows, images = together(made)
        if self._plan.views and not isinstance(images, ViewBatches):
            images = ViewBatches([uniform(list(of_view)) for of_view in zip(*images, strict=True)])
        elif isinstance(images, list) and images:
            images = uniform(images)
        return rows, images

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()


class Owner(Protocol):
    """Owner of rows: a batch, or a chunk of batches."""

    @property
    def epoch(self) -> Epoch[Any]:
        """The epoch of the rows."""
        ...

    def __len__(self) -> int: ...

    def position(self, row: int) -> int:
        """Return the place of a row in the order of the epoch's samples over all ranks."""
        ...

    def compute(self, steps: tuple[Step, ...], rows: Sequence[int], sizes: np.ndarray) -> list[Arrays]:
        """Compute per-sample arguments of ``steps`` for these rows; ``sizes`` (len(rows), 2) are those of their
        images."""
        ...


class Part:
    """Rows that share a plan, from the plan's function call to its result.

    Args:
        given: returns the rows that have not failed, and their images on the device, after the steps before the call.
        infos: returns the ``info`` of the PIL images that rows started from.
        give_up: takes {row: error} of rows that fail in the call or after it; None if such errors end the batch.
    """

    def __init__(
        self,
        owner: Owner,
        plan: Plan,
        given: Callable[[], RowImages],
        infos: Callable[[Sequence[int]], Sequence[Any]] = lambda rows: (),
        give_up: Callable[[dict[int, Exception]], None] | None = None,
    ):
        self.owner, self.plan, self._given, self._infos, self._give_up = owner, plan, given, infos, give_up
        self._rows: Sequence[int] = []
        self._before_call: Any = None  # input of the plan's call, if it may be needed again
        self._called: Called | None = None  # the running call
        self._views: list[Part] = []

    def advance(self) -> None:
        """Start the plan's call, if it has one, or the calls of its views."""
        if self.plan.calls and self._called is None and not self._views:
            self._begin()

    def _begin(self) -> Any:
        """Take the input and start the plan's call on it. Return the images."""
        self._rows, images = self._given()
        plan, rows = self.plan, self._rows
        if plan.calls and self._give_up is not None:
            self._before_call = images
        if plan.call is not None and rows:
            self._called = self._call(plan.call, images, plan.gives.kind, self._left(plan))
        elif plan.views and rows:
            several = zip(plan.views, images.batches, strict=True)
            self._views = [Part(self.owner, view, _giving(rows, of), self._infos) for view, of in several]
            for view in self._views:
                view.advance()
        return images

    def outcome(self) -> RowImages:
        """Return the transform's results of the rows that succeeded: (N, C, H, W), a list of N images (C, H, W), a list
        of N other objects (a tensor if they are stacked), or ViewBatches of these."""
        try:
            return self._outcome()
        except Exception as error:
            if self._before_call is None or not self._is_bad(error):
                raise
        return self._one_by_one()

    def _is_bad(self, error: Exception) -> bool:
        """Return True if on_error covers the error: an image is too small, or a user function raised it."""
        if isinstance(error, ImageTooSmall):
            return True
        calls = [part._called for part in (self, *self._views) if part._called is not None]
        return self.owner.epoch.errors.in_python and not any(called.workers_lost for called in calls)

    def _one_by_one(self) -> RowImages:
        """Process each row separately, and give up failing rows."""
        made: list[RowImages] = []
        assert self._give_up is not None  # otherwise no input was kept
        for i, row in enumerate(self._rows):
            part = Part(self.owner, self.plan, _giving([row], self._before_call[i : i + 1]), self._infos)
            try:
                made.append(part.outcome())
            except Exception as error:
                if not self._is_bad(error):
                    raise
                self._give_up({row: error})
        rows = [row for rows, _ in made for row in rows]
        return rows, in_order(made)

    def discard(self) -> None:
        """Cancel the calls and release their resources."""
        if self._called is not None:
            self._called.cancel()
        for view in self._views:
            view.discard()

    def _left(self, plan: Plan) -> Sequence[Any]:
        """Return the ``info`` that the images still have after a plan's steps."""
        return self._infos(self._rows) if keeps_info(plan) else ()

    def _outcome(self) -> RowImages:
        plan, images = self.plan, None
        if self._called is None and not self._views:
            images = self._begin()
        if not self._rows:
            return [], []
        if plan.views:
            return self._rows, ViewBatches([view.outcome()[1] for view in self._views], plan.structure)
        spec = plan.gives
        infos: Sequence[Any] = () if self._called is not None else self._left(plan)
        while plan.call is not None:
            if self._called is None:
                self._called = self._call(plan.call, images, spec.kind, infos)
            made = self._called.images(self.owner.epoch.route.device)
            if made is None:  # not images, or of different kinds: the remaining functions take them as they are
                rest = plan.call.remainder
                if rest.functions:
                    self._called = self._call(rest, self._called.samples(), "")
                return self._rows, self._collated(self._called)
            spec, images = made
            infos = self._called.infos
            plan, self._called = continued(plan, spec), None
            infos = infos if keeps_info(plan) else ()
            sizes = np.array([image.shape[-2:] for image in images], np.int64)
            images = run_all(plan.batch, images, self.owner.compute(plan.batch, self._rows, sizes))
            spec = plan.gives
        return self._rows, self._as_samples(images, spec, plan, infos)

    def _collated(self, called: Called):
        """Return results that are not images: a tensor if a whole batch is stacked anyway, otherwise the functions'
        results."""
        epoch = self.owner.epoch
        whole = epoch.default_collate and len(self._rows) == len(self.owner)
        made = called.tensor(epoch.route.device) if whole else None
        return called.samples() if made is None else made

    @named("functions in Python")
    def _call(self, call: Call, images, kind: str, infos: Sequence[Any] = ()) -> Called:
        positions = [self.owner.position(row) for row in self._rows]
        return self.owner.epoch.calls.submit(call, images, kind, positions, infos)

    def _as_samples(self, images, spec: ImageSpec, plan: Plan, infos: Sequence[Any]):
        """Return images as the transform does: tensors in the plan's memory format, or PIL images.

        Raises:
            RuntimeError: an image's size is not the plan's.
        """
        if spec.size is not None and (wrong := other_sizes(images, np.array([spec.size]))).any():
            row, ops = int(wrong.argmax()), ", ".join(step.op for step in plan.steps)
            what = f"{ops} returned an image of size {tuple(images[row].shape[-2:])}, expected {spec.size}"
            raise RuntimeError(f"{what}, for the epoch's sample {self.owner.position(self._rows[row])}")
        if spec.kind == "pil":
            return as_samples([image.movedim(-3, -1).cpu() for image in images], "pil", infos)
        if isinstance(images, torch.Tensor):
            images = in_format(images, plan)
        else:
            images = [in_format(image[None], plan)[0] for image in images]
        stacked = self.owner.epoch.default_collate or self.owner.epoch.fast_collate
        if spec.kind in ("Image", "array") and not stacked:
            return as_samples(images, spec.kind)
        return images


def _giving(rows: Sequence[int], images: Any) -> Callable[[], RowImages]:
    return lambda: (rows, images)


def keeps_info(plan: Plan) -> bool:
    """Return True if images keep their ``info`` through a plan's steps."""
    return plan.gives.kind == "pil" and all(step.op in _KEEP_INFO for step in plan.steps)
