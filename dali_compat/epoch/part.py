"""Part of a batch: the rows that share a plan, from their images on. Who makes the images is its subclasses' affair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from ..ops import kernels
from ..ops.draws import Arrays
from ..ops.image_by_image import run_all
from ..plan import Call, ImageSpec, Plan, Step
from ..runtime.decorators import named
from ..runtime.device import ViewBatches
from ..translate.lower import continued
from ..workers.called import Called
from ..workers.images import as_samples
from .epoch import Epoch

# Pillow's operations that make an image of another keep its info where they do not begin with an empty one
_KEEP_INFO = {
    "identity",
    "choose",
    "crop",
    "five_crop",
    "ten_crop",
    "resize",
    "flip",
    "rotate",
    "affine",
    "perspective",
}
_KEEP_INFO |= {"invert", "posterize", "solarize", "sharpness", "autocontrast", "equalize"}


class Owner(Protocol):
    """The owner of a part: a batch, or a chunk of batches."""

    @property
    def epoch(self) -> Epoch[Any]:
        """The epoch that the batch belongs to."""
        ...

    def __len__(self) -> int: ...

    def position(self, row: int) -> int:
        """Returns how many samples of the epoch come before this row."""
        ...

    def compute(self, steps: tuple[Step, ...], rows: Sequence[int], sizes: np.ndarray) -> list[Arrays]:
        """Per-sample arguments of ``steps`` for these rows; ``sizes``, (len(rows), 2), of their images."""
        ...


OwnerT = TypeVar("OwnerT", bound=Owner)


class Part(Generic[OwnerT]):
    """The rows of a batch, or of a chunk, that share a plan.

    Attributes:
        owner, plan: whose rows they are, and what is done with them.
        rows: which, in order.
    """

    def __init__(self, owner: OwnerT, plan: Plan):
        self.owner, self.plan = owner, plan
        self.rows: Sequence[int] = []
        self._called: Called | None = None  # the plan's call
        self._views: list[_View] = []  # the plan's

    def _infos(self) -> Sequence[Any]:
        """Returns for ``rows`` the ``info`` of the image that each begins with, where that is PIL's; empty where none
        has."""
        return ()

    def _left(self, plan: Plan) -> Sequence[Any]:
        """Returns what is left of them after the plan's steps."""
        return self._infos() if keeps_info(plan) else ()

    def _images(self) -> Any:
        """Returns what the steps before a call give, on the device: (N, C, H, W), or a list of N where sizes differ.
        Leaves in ``rows`` those that are not given up."""
        raise NotImplementedError

    def advance(self) -> None:
        """Sets the plan's call to work, if it has one."""
        if self.plan.calls and self._called is None and not self._views:
            images = self._images()
            if self.rows:
                self._begin(images)

    def _begin(self, images) -> None:
        """Sets the plan's call, or those of its views, to work on what the steps before it have given."""
        if self.plan.call is not None:
            self._called = self._call(self.plan.call, images, self.plan.gives.kind, self._left(self.plan))
        elif self.plan.views:
            self._views = [
                _View(self.owner, view, self.rows, given, self._infos())
                for view, given in zip(self.plan.views, images.batches, strict=True)
            ]
            for view in self._views:
                view.advance()

    def outcome(self):
        """Returns what the transform gives for ``rows``, without those that are given up: (N, C, H, W), a list of N
        images (C, H, W), or of N other things (a tensor of these where they are stacked); ViewBatches of these."""
        self.advance()
        if self.plan.views:
            images = None if self._views else self._images()
            if images is not None and self.rows:
                self._begin(images)
            return ViewBatches([view.outcome() for view in self._views], self.plan.structure) if self.rows else []
        return self._outcome() if self.rows else []

    def discard(self) -> None:
        """Cancels it and releases its resources."""
        if self._called is not None:
            self._called.cancel()
        for view in self._views:
            view.discard()

    def _outcome(self):
        plan = self.plan
        images: Any = None
        infos: Sequence[Any] = ()
        spec = plan.gives
        if self._called is None:
            images = self._images()
            infos = self._left(plan)
        while plan.call is not None:
            if self._called is None:
                self._called = self._call(plan.call, images, spec.kind, infos)
            made = self._called.images(self.owner.epoch.route.device)
            if made is None:  # not images, or not alike: the rest takes them as they are
                rest = plan.call.remainder
                if rest.functions:
                    self._called = self._call(rest, self._called.samples(), "")
                return self._collated(self._called)
            spec, images = made
            infos = self._called.infos
            plan, self._called = continued(plan, spec), None
            infos = infos if keeps_info(plan) else ()
            sizes = np.array([image.shape[-2:] for image in images], np.int64)
            images = run(plan.batch, images, self.owner.compute(plan.batch, self.rows, sizes))
            spec = plan.gives
        return self._as_samples(images, spec, plan, infos)

    def _collated(self, called: Called):
        """Returns what is no image: a tensor where a whole batch is stacked anyway, else what the functions have
        given."""
        epoch = self.owner.epoch
        whole = epoch.default_collate and len(self.rows) == len(self.owner)
        made = called.tensor(epoch.route.device) if whole else None
        return called.samples() if made is None else made

    @named("functions in Python")
    def _call(self, call: Call, images, kind: str, infos: Sequence[Any] = ()) -> Called:
        positions = [self.owner.position(row) for row in self.rows]
        return self.owner.epoch.calls.submit(call, images, kind, positions, infos)

    def _as_samples(self, images, spec: ImageSpec, plan: Plan, infos: Sequence[Any]):
        """The images as the transform gives them: tensors in the memory format that is asked for, PIL images, or tuples
        of views.

        Raises:
            RuntimeError: they have another size than the plan says.
        """
        if spec.size is not None and (wrong := other_sizes(images, np.array([spec.size]))).any():
            row, ops = int(wrong.argmax()), ", ".join(step.op for step in plan.steps)
            what = f"{ops} gave an image of {tuple(images[row].shape[-2:])} pixels, not {spec.size}"
            raise RuntimeError(f"{what}, of the epoch's sample {self.owner.position(self.rows[row])}")
        if spec.kind == "pil":
            return as_samples([image.movedim(-3, -1).cpu() for image in images], "pil", infos)
        if isinstance(images, torch.Tensor):
            images = in_format(images, plan)
        else:
            images = [in_format(image[None], plan)[0] for image in images]
        stacked = self.owner.epoch.default_collate or self.owner.epoch.fast_collate
        if spec.views or (spec.kind in ("Image", "array") and not stacked):
            return as_samples(images, spec.kind)
        return images


class _View(Part[OwnerT]):
    """One view of rows whose images are there."""

    def __init__(self, owner: OwnerT, plan: Plan, rows: Sequence[int], images, infos: Sequence[Any]):
        super().__init__(owner, plan)
        self.rows, self._given, self._given_infos = rows, images, infos

    def _infos(self) -> Sequence[Any]:
        return self._given_infos

    def _images(self) -> Any:
        return self._given


def keeps_info(plan: Plan) -> bool:
    """Returns whether images have their ``info`` after a plan's steps."""
    return plan.gives.kind == "pil" and all(step.op in _KEEP_INFO for step in plan.steps)


def taken(stack: list[Any]) -> list[tuple[Sequence[int], Any]]:
    """(rows, images) of every group on a stack, which is empty then. One that fails stays there, to be discarded."""
    made = []
    while stack:
        one = stack[-1]
        images = one.outcome()
        stack.pop()
        if one.rows:
            made.append((one.rows, images))
    return made


def in_order(made: Sequence[tuple[Sequence[int], Any]]) -> list:
    """The images of (rows, images), by their rows."""
    images = {row: image for rows, several in made for row, image in zip(rows, several, strict=True)}
    return [images[row] for row in sorted(images)]


def stacked(made: Sequence[tuple[Sequence[int], Any]]):
    """in_order(), as one tensor where all have one shape and dtype."""
    images = in_order(made)
    return kernels.uniform(images) if images else images


def stacked_views(made: Sequence[tuple[Sequence[int], Any]]) -> ViewBatches:
    """stacked(), of rows that have several images each."""
    return ViewBatches([kernels.uniform(list(of_view)) for of_view in zip(*in_order(made), strict=True)])


@named("transforms in torch")
def run(steps: tuple[Step, ...], images, arrays: list[Arrays]):
    """Images after torch's part of a plan: a tensor, or a list where sizes differ."""
    return run_all(steps, images, arrays)


def other_sizes(images: torch.Tensor | list[torch.Tensor], sizes: np.ndarray) -> np.ndarray:
    """(N,) bool, which of N images do not have their (height, width) in ``sizes``, (N, 2) or (1, 2)."""
    one_for_all = [images] if isinstance(images, torch.Tensor) else images
    given = [image.shape[-2:] for image in one_for_all]
    return (np.array(given, np.int64).reshape(-1, 2) != sizes).any(1)


def in_format(images, plan: Plan):
    last = plan.channels_last and images.ndim == 4
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
