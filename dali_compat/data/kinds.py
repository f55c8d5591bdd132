"""Which data sets hold images that the loader can see."""

from __future__ import annotations

from typing import Any

from .arrays import holds_arrays
from .parts import is_store, parts
from .readers import reader_of
from .timm import is_timms


def of_images(dataset: Any) -> bool:
    """Whether a data set, or one of those that it consists of, holds image files, encoded images or arrays."""
    return any(map(_is_of_images, parts(dataset)))


def _is_of_images(part: Any) -> bool:
    return reader_of(part) is not None or is_store(part) or holds_arrays(part) or is_timms(part)
