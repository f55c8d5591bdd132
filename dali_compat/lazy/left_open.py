"""Files that the one sample has left open, of a cache in a class, say. A process that is forked has its parent's
position in a file, and both would move it: so it opens these anew."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HERE = "/proc/self/fd"
_READ_ONLY, _ACCESS = os.O_RDONLY, 3
_left: dict[int, tuple[int, int]] = {}  # by descriptor: device and inode


@contextmanager
def watched() -> Iterator[None]:
    """What is opened for reading within it, and stays open, is opened anew in each process that is forked later."""
    before = _descriptors()
    try:
        yield
    finally:
        for number in _descriptors() - before:
            with suppress(OSError, ValueError):  # it is closed already
                found = os.stat(number)
                if stat.S_ISREG(found.st_mode) and _flags(number) & _ACCESS == _READ_ONLY:
                    _left[number] = found.st_dev, found.st_ino


def _descriptors() -> set[int]:
    try:
        numbers = {int(name) for name in os.listdir(_HERE)}
    except OSError:  # not on Linux
        return set()
    return {number for number in numbers if os.path.exists(f"{_HERE}/{number}")}  # one was the listing's


def _flags(number: int) -> int:
    with open(f"/proc/self/fdinfo/{number}") as lines:
        return next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))


def _open_anew() -> None:
    for number, file in _left.items():
        with suppress(OSError):
            found = os.stat(number)
            if (found.st_dev, found.st_ino) != file:
                continue
            own = os.open(f"{_HERE}/{number}", os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, number, inheritable=os.get_inheritable(number))
            os.close(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_anew)
