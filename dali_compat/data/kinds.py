"""Which data sets hold images that the loader can see."""

from __future__ import annotations

from typing import Any

from .arrays import holds_arrays
from .base_datasets import is_store, leaves_of
from .readers import reader_of
from .timm import is_timms


def of_images(dataset: Any) -> bool:
    """Returns whether a data set, or one of those that it consists of, holds image files, encoded images or arrays."""
    return any(map(_is_of_images, leaves_of(dataset)))


def _is_of_images(leaf: Any) -> bool:
    return reader_of(leaf) is not None or is_store(leaf) or holds_arrays(leaf) or is_timms(leaf)
