"""Keep this process's memory in large pages, so that forking is fast.

A fork copies the page table. After the tests' imports, it has a quarter of a million pages of 4 KiB, which takes 40 ms.
"""

import contextlib
import ctypes
import os

_LARGE = 2 << 20  # bytes
_COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1 and later; earlier kernels refuse it
_FORKS = 100  # memory written to while a child process lives returns to small pages
_forks = 0


def collapse() -> None:
    """Collapse contiguous memory into large pages, if the system supports it."""
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
