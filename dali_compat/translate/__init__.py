"""torchvision transforms -> a plan: steps, which of them DALI does, and which torch. Never sees DALI.

In the order to read them:

- chain: a whole transform, containers included, up to what has no translation, and what explain() says of it.
- lower: which steps DALI does and which torch; planes: which kernels do on what a JPEG engine gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..inspection.untranslatable import Untranslatable
from ..ops.translators import on_batch, register
from .chain import Chain, translate

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate", "views"]


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

    Examples:
        >>> dataset = DALIImageFolder("train", views(transform, transform))
        >>> (first, second), labels = next(iter(DataLoader(dataset, batch_size=4, device="cpu")))
        >>> first.shape, second.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 3, 32, 32]))
    """
    if not transforms:
        raise TypeError("views() takes one transform for each view")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"views() takes transforms, got {transform!r}")
    return Views(transforms)
