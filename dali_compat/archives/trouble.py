"""Errors of archives' contents; each names the file, the place in it and the reason."""

from ..errors import ImageReadError

_LIMIT = 1 << 63


def corrupt(path: str, where: str, reason: str) -> ImageReadError:
    """The file is damaged."""
    return ImageReadError(f"{path}, {where}: {reason}")


def refused(path: str, where: str, reason: str) -> ValueError:
    """The file is sound, but not of a kind that can be used."""
    return ValueError(f"{path}, {where}: {reason}")


def is_target(label: float) -> bool:
    """Whether a number that a file says fits into an int64, as targets do."""
    return -_LIMIT <= label < _LIMIT
