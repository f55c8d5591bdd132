"""Exceptions and warnings that more than one room raises or catches."""

from __future__ import annotations

import copyreg
import errno
import functools
import os
from traceback import walk_tb
from typing import Any

_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the control group's pids.max)",
    errno.ENOMEM: "free memory",
    errno.EIO: "check the disk or the network",
    errno.ESTALE: "mount the network's folder again",
}


class ImageReadError(OSError):
    """A file cannot be decoded. The text names its path, its index in the data set and the reason. It is an error of
    the reason's class, too: FileNotFoundError, PIL.UnidentifiedImageError, ValueError.

    Examples:
        >>> dataset = DALIImageList(["empty.jpg"])
        >>> try:
        ...     batch = next(iter(DataLoader(dataset, device="cpu")))
        ... except ImageReadError as error:
        ...     print(error)
        cannot decode .../empty.jpg, index 0: UnidentifiedImageError: ...
    """

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


class OutOfStep(BaseException):
    """An interrupt has stopped an engine in the middle of something: its epoch is over. It is no Exception, for no part
    of a batch may take it for an error of its own."""


class FallbackWarning(UserWarning):
    """Something runs in torchvision or Python instead of DALI; the text says what, why, and what to do.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", FallbackWarning)  # to stop where something is not accelerated
    """


class BadImageWarning(UserWarning):
    """Samples were replaced or skipped, as ``on_error`` says. ``loader.errors`` lists them.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("ignore", BadImageWarning)
    """


def file_of(error: BaseException | None) -> str:
    """The file that the system could not open, or PIL could not read; "" where nothing names it."""
    met: list[BaseException] = []  # "raise error from error" is a circle
    while error is not None and error not in met:
        met.append(error)
        found = [getattr(error, "filename", None)]
        for frame, _ in walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith("PIL."):
                image, file = (frame.f_locals.get(name) for name in ("self", "fp"))
                files = image, file, getattr(image, "fp", None)
                found += [getattr(one, name, None) for one in files for name in ("filename", "name")]
        known = [os.fsdecode(one) for one in found if one and isinstance(one, (str, bytes, os.PathLike))]
        if known:
            return known[-1]
        error = error.__cause__ or error.__context__
    return ""


def remedy_of(error: BaseException | None) -> str:
    """Return what to do about an error of the system, such as too many open files; "" for any other error. An error of
    the system is no property of an image."""
    if isinstance(error, MemoryError):
        return _REMEDIES[errno.ENOMEM]
    return _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
