"""Exceptions and warnings that more than one room raises or catches."""

from __future__ import annotations


class ImageReadError(OSError):
    """A file cannot be decoded. The text names its path, its index in the data set and the reason."""


class Unsupported(Exception):
    """A data set cannot be served in another way than torch's;
    the text says why, and what to do where something can be done."""


class OutOfStep(RuntimeError):
    """An interrupt has stopped an engine in the middle of something. What it held is lost, and has to be made again."""


class FallbackWarning(UserWarning):
    """Something runs in torchvision or Python instead of DALI; the text says what, why, and what to do."""


class BadImageWarning(UserWarning):
    """Samples were replaced or skipped, as ``on_error`` says. ``loader.errors`` lists them."""
