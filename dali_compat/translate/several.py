"""A helper: several views of one image, written as one transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Views:
    """Gives a list: what each of the transforms makes of the image."""

    transforms: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def views(*transforms: Callable[[Any], Any]) -> Views:
    """A transform that gives a list of what each of ``transforms`` makes of an image: ``views(augment, augment)``.

    It is nothing but a callable, so torch's own loader takes it, too. In a batch of dali_compat's the views share one
    decode, and each has random numbers of its own.

    Args:
        *transforms: each takes a PIL image, usually a torchvision Compose.

    Raises:
        TypeError: there is none, or one cannot be called.
    """
    if not transforms:
        raise TypeError("views() takes one transform for each view")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"views() takes transforms, got {transform!r}")
    return Views(transforms)
