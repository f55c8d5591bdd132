"""The limit of open files: DALI opens all files of a batch before it reads the first."""

from __future__ import annotations

import os
import resource

_SPARE = 1024  # descriptors, besides those of batches
_SHARES = 4  # of the descriptors that are left, where there are few: other pipelines and threads open files, too


def allow_open_files(count: int) -> None:
    """Raise the limit for ``count`` files of batches; systems often allow a process 1024 until it asks."""
    needed = _SPARE + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def files_at_once(count: int) -> int:
    """Return how many of ``count`` files DALI may have open at once; all of them unless the hard limit is low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _SPARE + _SHARES * count:
        return count
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is free for the folder, or there is no such folder
        used = hard
    return min(count, max(1, (hard - used) // _SHARES))
