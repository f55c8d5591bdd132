"""Forks. A child has the parent's pipelines without their threads: it must neither run nor end them, or it waits for ever."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from typing import TYPE_CHECKING

import nvidia.dali as dali

if TYPE_CHECKING:
    from .pipeline import DecodePipeline

live: weakref.WeakSet[DecodePipeline] = weakref.WeakSet()
"""All of this process."""

_forks, _collecting = 0, False


def _before_fork() -> None:
    """No garbage collection until the child has forgotten the pipelines: what a cycle holds would be ended there."""
    global _forks, _collecting
    if not _forks:
        _collecting = gc.isenabled()
        gc.disable()
    _forks += 1


def _after_fork_in_parent() -> None:
    global _forks
    _forks -= 1
    if not _forks and _collecting:
        gc.enable()


def _after_fork_in_child() -> None:
    """Also for pipelines that are garbage already, or the user's own."""
    global _forks
    for pipeline in filter(None, [reference() for reference in dali.Pipeline._pipes]):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline))  # for ever: nothing of it may be destroyed
    for pipeline in live:
        pipeline._pipe = None
    dali.Pipeline._pipes.clear()  # DALI's own atexit hook would tear them down
    _forks = 0
    if _collecting:
        gc.enable()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
