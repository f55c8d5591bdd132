"""Which data sets hold images that the loader can see."""

from __future__ import annotations

from typing import Any

from .arrays import holds_arrays
from .parts import Images, parts
from .timm import is_timms


def of_images(dataset: Any) -> bool:
    """Whether a data set, or one of those that it consists of, is an image folder, an archive or images in memory."""
    return any(isinstance(part, Images) or holds_arrays(part) or is_timms(part) for part in parts(dataset))
