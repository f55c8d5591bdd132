"""What a forked child has of its parent, and must not free: what threads work with that are not there, and what lies on
a GPU. CUDA ends who tries. And a lock of the interpreter's, for which it may wait."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial

if hasattr(os, "register_at_fork") and (sys.version_info < (3, 10, 15) or (3, 11) <= sys.version_info < (3, 11, 10)):
    # Where a native thread holds CPython's HEAD_LOCK at the fork, a child of these versions waits for it for ever
    # (CPython's issue 112275); gloo's threads take it often. So it is taken once, when all other hooks have run: what
    # remains are the microseconds between this and the fork. sys._current_frames() takes it, too, but may collect
    # garbage meanwhile, and so wait for another thread, which waits for the lock (issue 106883).
    os.register_at_fork(before=partial(ctypes.PyDLL(None).PyThreadState_SetAsyncExc, ctypes.c_ulong(0), None))


def keep(one: object) -> None:
    """For ever: nothing of it is freed in this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
