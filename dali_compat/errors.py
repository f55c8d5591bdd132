"""Exceptions and warnings that more than one room raises or catches."""

from __future__ import annotations

import copyreg
import functools
from typing import Any


class ImageReadError(OSError):
    """A file cannot be decoded. The text names its path, its index in the data set and the reason. It is an error of
    the reason's class, too: FileNotFoundError, PIL.UnidentifiedImageError, ValueError."""

    __str__ = Exception.__str__  # OSError's tells of errno and filename instead

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: getattr(self, name) for name in ("errno", "strerror", "filename")}
        return type(self), self.args, {**vars(self), **kept}


class _Made(type):
    """The type of classes that are made here."""


@functools.cache
def _also(kind: Any) -> Any:
    return _Made("ImageReadError", (ImageReadError, kind), {"__module__": __name__})


copyreg.pickle(_Made, lambda made: (_also, made.__bases__[1:]))


def read_error(text: str, reason: BaseException) -> ImageReadError:
    """An error to raise from its reason. It is not of each class: some end loops in silence, and from some, as from
    SyntaxError, Python makes no class that is an OSError, too."""
    if isinstance(reason, (LookupError, StopIteration, StopAsyncIteration)):
        return ImageReadError(text)
    kind: Any = type(reason)
    try:
        made: ImageReadError = (kind if isinstance(reason, ImageReadError) else _also(kind))(text)
    except Exception:
        return ImageReadError(text)
    if isinstance(reason, OSError):
        made.errno, made.strerror, made.filename = reason.errno, reason.strerror, reason.filename
    return made


class Unsupported(Exception):
    """A data set cannot be served in another way than torch's;
    the text says why, and what to do where something can be done."""


class OutOfStep(RuntimeError):
    """An interrupt has stopped an engine in the middle of something. What it held is lost, and has to be made again."""


class FallbackWarning(UserWarning):
    """Something runs in torchvision or Python instead of DALI; the text says what, why, and what to do."""


class BadImageWarning(UserWarning):
    """Samples were replaced or skipped, as ``on_error`` says. ``loader.errors`` lists them."""
