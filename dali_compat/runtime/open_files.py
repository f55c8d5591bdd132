"""The limit on open files. DALI opens all files of a batch before it reads the first."""

from __future__ import annotations

import os
import resource

_SPARE = 1024  # descriptors for files other than those of batches
_SHARES = 4  # if few descriptors are free, a batch may use 1 / _SHARES of them


def allow_open_files(count: int) -> None:
    """Raise the soft limit on open files, often 1024, to let DALI open ``count`` files."""
    needed = _SPARE + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def files_at_once(count: int) -> int:
    """Return how many of ``count`` files DALI may open at once. A low hard limit reduces the number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _SPARE + _SHARES * count:
        return count
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is left for the folder, or it does not exist
        used = hard
    return min(count, max(1, (hard - used) // _SHARES))
