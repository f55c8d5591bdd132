"""Whether a function is the one that torch, torchvision, timm or this package has written."""

from __future__ import annotations

from typing import Any

import PIL
from PIL import Image

_WRITTEN_BY = "torch", "torchvision", "timm", __name__.partition(".")[0]


def is_original(function: Any) -> bool:
    """False where somebody has put another one in its place, before this package was imported or after, or in the place
    of Pillow or open(), by which it opens files."""
    world = getattr(function, "__globals__", {})
    same = world.get("Image", Image) is Image and world.get("PIL", PIL) is PIL and "open" not in world
    return same and str(world.get("__name__")).partition(".")[0] in _WRITTEN_BY
