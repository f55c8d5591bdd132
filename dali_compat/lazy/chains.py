"""The transforms that an image has gone through, one after another, and what they give."""

from __future__ import annotations

from typing import Any

from ..plan import ImageSpec
from ..translate import translate

_MOST = 64  # transforms after an image that are known at a time: a data set may make new ones for each sample


class Chain:
    """Transforms that all have a translation. Those of the same steps are one object. To the loader a chain is a data
    set: of the images, among the samples of a user's, that go through it.

    Args:
        count: how many of its images have a number of their own: samples of the user's data set.
        given: what the images are read from, PATHS or BYTES.

    Attributes:
        transforms: the user's own objects.
        gives: the image after them.
    """

    target_transform = None

    def __init__(self, count: int, given: str, transforms: tuple[Any, ...] = (), gives: ImageSpec = ImageSpec()):
        self._count, self.given, self.transforms, self.gives = count, given, transforms, gives
        self._after: dict[int, tuple[Any, Chain]] = {}  # by id(): (the transform, kept alive, and its chain)
        self._of_steps: dict[Any, Chain] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def transform(self) -> tuple[Any, ...] | None:
        """As data sets of files have it."""
        return self.transforms or None

    def after(self, transform: Any) -> Chain | None:
        """The chain that goes on with a transform; None where that has no translation, or gives several images."""
        known = self._after.get(id(transform))
        if known is not None:
            return known[1]
        made = self._made(transform)
        if made is not None:  # one of the user's may refer to the data set, which is not to be kept alive
            while len(self._after) >= _MOST:
                del self._after[next(iter(self._after))]
            self._after[id(transform)] = transform, made
        return made

    def follow(self, transforms: tuple[Any, ...]) -> Chain | None:
        """The chain after several."""
        chain: Chain | None = self
        for transform in transforms:
            chain = None if chain is None else chain.after(transform)
        return chain

    def look_again(self) -> None:
        """Transforms may have changed."""
        self._after = {}
        for chain in self._of_steps.values():
            chain.look_again()

    def _made(self, transform: Any) -> Chain | None:
        transforms = (*self.transforms, transform)
        made = translate(transforms, views=True)
        several = made.views or any(step.gives.views for entry in made.translated for step in entry.steps)
        if several or made.functions or made.gives.kind not in ("pil", "tensor", "Image"):
            return None
        steps = tuple(step for entry in made.translated for step in entry.steps)
        chain = self._of_steps.setdefault(steps, Chain(self._count, self.given, transforms, made.gives))
        chain.transforms = transforms  # an equal one from before may have been changed since
        return chain
