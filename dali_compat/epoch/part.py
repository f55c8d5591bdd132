"""Decode the rows of a batch that share a plan, and convert the images to the class of the transform's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from ..data.header import DALI
from ..data.sources import PATHS
from ..ops.draws import ImageTooSmall
from ..ops.kernels import stack_if_uniform
from ..plan import Plan
from ..runtime.device import ViewBatches
from ..runtime.open_files import files_at_once
from .decodable import DecodableRows
from .decode import DaliGroup, PilGroup, RowImages, in_memory_format, merged_results, wrong_sizes
from .epoch import Epoch
from .planes_group import PlanesGroup, VerifyingGroup, as_many_as_fit, split_by_memory


class RowsDecoding:
    def __init__(self, batch: DecodableRows, plan: Plan):
        self._batch, self._plan = batch, plan
        self._groups: list[DaliGroup | PlanesGroup | PilGroup] = []

    def start(self, by_decoder: dict[tuple[int, str], np.ndarray]) -> None:
        """Submit rows to their decoders. ``by_decoder`` maps (decoder, form of DALI's input) to sorted rows."""
        for (kind, given), rows in by_decoder.items():
            if kind == DALI:
                turned = self._batch.facts["orientations"][rows] > 1
                for some in (rows,) if not turned.any() else (rows[~turned], rows[turned]):
                    self._submit(DaliGroup, self._submit_to_engine(some, given), given)
            else:
                self._groups.append(PilGroup(self._batch, self._plan, rows.tolist()))

    def _submit_to_engine(self, rows: np.ndarray, given: str) -> np.ndarray:
        """Submit rows to the GPU's JPEG engine, and return the other rows. The engine decodes a JPEG if its pixels
        certainly or probably equal Pillow's. Some JPEGs are decoded by both DALI and the engine, to compare the
        pixels."""
        engine, facts = self._batch.epoch.engine, self._batch.facts
        if engine is None or not self._plan.from_planes:
            return rows
        takes = rows[engine.takes(facts["chroma"][rows], facts["sizes"][rows])]
        known, new = engine.assigned(takes, facts["chroma"][takes], self._batch.verdicts[takes])
        if len(new):
            new = as_many_as_fit(new, facts, engine.room)
        for several in split_by_memory(known, facts, engine.memory):
            self._submit(PlanesGroup, several, given, engine=engine)
        self._submit(VerifyingGroup, new, given, engine=engine)
        return np.setdiff1d(rows, np.concatenate([known, new]), assume_unique=True)

    def _submit(self, group: type[DaliGroup] | type[PlanesGroup], rows: np.ndarray, given: str, **options: Any) -> None:
        """Submit rows in groups that open a limited number of files at a time."""
        most = files_at_once(len(rows)) if given == PATHS else len(rows)
        for begin in range(0, len(rows), max(1, most)):
            self._submit_at_once(group, rows[begin : begin + most].tolist(), given, **options)

    def _submit_at_once(
        self, group: type[DaliGroup] | type[PlanesGroup], left: list[int], given: str, **options: Any
    ) -> None:
        """Submit the rows ``left`` in one group. A row fails if its image is too small for the plan."""
        while left:
            try:
                self._groups.append(group(self._batch, self._plan, left, given, **options))
                return
            except ImageTooSmall as error:
                self._batch.fail_rows({error.row: error})
                left.remove(error.row)

    def decode(self) -> None:
        for group in self._groups:
            if isinstance(group, PlanesGroup):
                group.decode()

    def result(self) -> RowImages:
        """Return the successful rows and their transformed images. Pass the errors of other rows to fail_rows()."""
        made, failures = [], dict[int, Exception]()
        while self._groups:  # a group is removed after its result, because discard() must discard a group that fails
            made.append(self._groups[-1].result(failures))
            self._groups.pop()
        if failures:
            self._batch.fail_rows(failures)
        rows, images = merged_results(made)
        if self._plan.views and not isinstance(images, ViewBatches):
            images = ViewBatches([stack_if_uniform(list(of_view)) for of_view in zip(*images, strict=True)])
        elif isinstance(images, list) and images:
            images = stack_if_uniform(images)
        return rows, images

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()


class Owner(Protocol):
    """A batch or chunk that rows belong to."""

    @property
    def epoch(self) -> Epoch[Any]: ...

    def position(self, row: int) -> int:
        """Return a row's place in the order of all ranks' samples."""
        ...


def as_transformed(
    owner: Owner,
    plan: Plan,
    rows: Sequence[int],
    images: Any,
    infos: Callable[[Sequence[int]], Sequence[Any]] = lambda rows: (),
) -> Any:
    """Convert images to the class that the transform returns, such as PIL images, or tensors in the plan's memory
    format.

    Args:
        images: images of the rows after all steps, (N, C, H, W), a list of (C, H, W), or ViewBatches of these.
        infos: returns the ``info`` of PIL images for these rows.

    Raises:
        RuntimeError: an image's size is not the plan's.
    """
    if not rows:
        return []
    if plan.views:
        several = zip(plan.views, images.batches, strict=True)
        return ViewBatches([as_transformed(owner, view, rows, of, infos) for view, of in several], plan.structure)
    spec = plan.gives
    if spec.size is not None and (wrong := wrong_sizes(images, np.array([spec.size]))).any():
        row, ops = int(wrong.argmax()), ", ".join(step.op for step in plan.steps)
        what = f"{ops} returned an image of size {tuple(images[row].shape[-2:])}, expected {spec.size}"
        raise RuntimeError(f"{what}, for the sample at position {owner.position(rows[row])} of the epoch")
    if spec.kind == "pil":
        known = infos(rows) if keeps_info(plan) else ()
        return as_samples([image.movedim(-3, -1).cpu() for image in images], "pil", known)
    if isinstance(images, torch.Tensor):
        images = in_memory_format(images, plan)
    else:
        images = [in_memory_format(image[None], plan)[0] for image in images]
    stacked = owner.epoch.default_collate or owner.epoch.fast_collate
    return as_samples(images, spec.kind) if spec.kind in ("Image", "array") and not stacked else images


def keeps_info(plan: Plan) -> bool:
    """Return True if a plan returns PIL images with the ``info`` of the file."""
    return plan.gives.kind == "pil" and all(step.operation.keeps_info for step in plan.steps)


def as_samples(images: Sequence[torch.Tensor], kind: str, infos: Sequence[Any] = ()) -> list[Any]:
    """Convert images to the class that ``kind`` (ImageSpec.kind) names. ``infos`` are the ``info`` dictionaries of PIL
    images, or empty."""
    return [_as_sample(image, kind, info) for image, info in zip_longest(images, infos)]


def _as_sample(image: torch.Tensor, kind: str, info: Any) -> Any:
    """Convert an image to the class that ``kind`` names. ``image`` is (H, W, C) for "pil", otherwise (C, H, W)."""
    if kind == "pil":
        made = Image.fromarray(image.squeeze(-1).numpy() if image.shape[-1] == 1 else image.numpy())
        if info is not None:
            made.info = info.copy()
        return made
    if kind == "array":
        return image.cpu().numpy()
    return tv_tensors.Image(image) if kind == "Image" else image
