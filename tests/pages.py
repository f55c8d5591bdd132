"""Memory of this process in large pages. A fork writes down each page that its parent has: a quarter of a million of
4 KiB, after all that the tests import, take it 40 ms; and many tests fork, for torch's workers above all."""

import contextlib
import ctypes
import os

_LARGE = 2 << 20  # bytes
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; an older one refuses it
_FORKS = 100  # what is written to while a child lives is in small pages afterwards
_forks = 0


def collapse() -> None:
    """Put memory that lies together into large pages, where the system can."""
    global _forks
    _forks = 0
    libc = ctypes.CDLL(None)
    with contextlib.suppress(OSError, AttributeError), open("/proc/self/maps", encoding="utf-8") as maps:
        for mapping in list(maps):
            addresses, access, _, _, inode, *name = mapping.split()
            if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                begin, end = (int(address, 16) for address in addresses.split("-"))
                begin, end = -(-begin // _LARGE) * _LARGE, end // _LARGE * _LARGE
                if begin < end:
                    libc.madvise(ctypes.c_size_t(begin), ctypes.c_size_t(end - begin), _COLLAPSE)


def collapse_after_forks() -> None:
    if _forks >= _FORKS:
        collapse()


def _count() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count)
