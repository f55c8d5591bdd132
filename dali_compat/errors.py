"""Exceptions and warnings shared by several packages."""

from __future__ import annotations

import contextlib
import copyreg
import errno
import functools
import os
from collections.abc import Iterator
from typing import Any

_REMEDIES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.EAGAIN: "raise the limit on processes (ulimit -u, or the control group's pids.max)",
    errno.ENOMEM: "free memory",
    errno.ENOSPC: "free space on the disk, or in /dev/shm",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EIO: "check the disk or the network",
    errno.ESTALE: "mount the network file system again",
}
_MESSAGES = {os.strerror(n): n for n in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG)}
_MESSAGES["can't start new thread"] = errno.EAGAIN


class ImageReadError(OSError):
    """Raised if an image file or an archive cannot be read or decoded. The message has the file's path (for
    DALIHuggingFace, the row) and the reason. If an image of a batch cannot be decoded, the message also has the image's
    index in the data set. If possible, the error is also an instance of the original error's class, such as
    FileNotFoundError, PIL.UnidentifiedImageError or ValueError.

    Examples:
        >>> dataset = DALIImageList(["empty.jpg"])
        >>> try:
        ...     batch = next(iter(DataLoader(dataset, device="cpu")))
        ... except ImageReadError as error:
        ...     print(error)
        cannot decode .../empty.jpg, index 0: UnidentifiedImageError: ...
    """

    __str__ = Exception.__str__  # OSError.__str__ prints errno and filename instead of the message

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: getattr(self, name) for name in ("errno", "strerror", "filename")}
        return type(self), self.args, {**vars(self), **kept}


class _CombinedType(type):
    """Metaclass of the classes that _combined() returns. copyreg needs it to pickle these classes."""


@functools.cache
def _combined(kind: Any) -> Any:
    return _CombinedType("ImageReadError", (ImageReadError, kind), {"__module__": __name__})


copyreg.pickle(_CombinedType, lambda made: (_combined, made.__bases__[1:]))


def read_error(text: str, reason: BaseException) -> ImageReadError:
    """Return an ImageReadError that is also an instance of the class of ``reason``.

    Return a plain ImageReadError for a few classes, such as IndexError and SyntaxError.
    """
    if isinstance(reason, (LookupError, StopIteration, StopAsyncIteration)):
        return ImageReadError(text)  # a for loop may take the original class for the end of the data
    kind: Any = type(reason)
    try:
        made: ImageReadError = (kind if isinstance(reason, ImageReadError) else _combined(kind))(text)
    except Exception:  # SyntaxError, for example, cannot be combined with OSError
        return ImageReadError(text)
    if isinstance(reason, OSError):
        made.errno, made.strerror, made.filename = reason.errno, reason.strerror, reason.filename
    return made


class Unsupported(Exception):
    """Raised if only torch's own loader can load a data set. The message gives the reason, and possibly a remedy."""


class UnsupportedImages(Unsupported):
    """Raised instead of Unsupported if a trial has shown that the data set opens images."""


class InconsistentEngine(BaseException):
    """Raised if an interrupt has left a DALI pipeline in an inconsistent state. The epoch then ends."""

    # a BaseException, because an Exception would be handled as the error of one sample


class FallbackWarning(UserWarning):
    """Issued if something runs in torchvision or Python instead of DALI. The message gives the reason, and a remedy
    if one is known.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", FallbackWarning)  # to stop if something is not accelerated
    """


class BadImageWarning(UserWarning):
    """Issued if samples were replaced or skipped because of ``on_error``. ``loader.errors`` lists these samples.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("ignore", BadImageWarning)
    """


def remedy_of(error: BaseException | None) -> str:
    """Return the remedy for an error of the operating system, such as too many open files. Return "" for other
    errors."""
    if isinstance(error, MemoryError):
        return _REMEDIES[errno.ENOMEM]
    if isinstance(error, OSError) and error.errno:
        return _REMEDIES.get(error.errno, "")
    text = str(error) if isinstance(error, RuntimeError) else ""  # libraries raise it with the system's message
    return next((_REMEDIES[number] for message, number in _MESSAGES.items() if message in text), "")


@contextlib.contextmanager
def with_remedy() -> Iterator[None]:
    """Context manager that appends remedy_of() to the message of an error raised in the block."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if (remedy := remedy_of(error)) and remedy not in str(error):
            if isinstance(error, OSError) and error.strerror and not isinstance(error, ImageReadError):
                error.strerror += f"; {remedy}"
            else:
                error.args = (f"{str(error) or 'out of memory'}; {remedy}", *error.args[1:])
        raise
