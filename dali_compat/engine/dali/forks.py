"""Forks and program exit.

A forked child inherits the parent's pipelines without their threads, so it must neither run nor close them, or it would
block forever. It cannot free the parent's GPU resources either, so gc.freeze() hides all existing objects from the
garbage collector. At exit, pipelines are closed before DALI's modules are torn down, because a loader may still be
referenced.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from typing import Any

import nvidia.dali as dali
import torch

from ...runtime.forks import leak_in_child, wait_for_daemons

live: weakref.WeakSet[Any] = weakref.WeakSet()
"""The pipelines of this process."""

_held: dict[int, list] = {}  # pipelines by the thread that is forking


def _before_fork() -> None:
    """Keep all pipelines alive, including the user's, until the child has dropped them."""
    _held[threading.get_ident()] = _all()


def _after_fork_in_parent() -> None:
    _held.pop(threading.get_ident(), None)


def _after_fork_in_child() -> None:
    if torch.cuda._is_in_bad_fork():  # the parent has used CUDA
        gc.freeze()
    for pipeline in _all():
        leak_in_child(pipeline)
    for pipeline in live:
        pipeline.forget()
    dali.Pipeline._pipes.clear()  # DALI's own atexit hook would close them
    _held.clear()


def _all() -> list:
    return [pipeline for reference in list(dali.Pipeline._pipes) if (pipeline := reference()) is not None]


@atexit.register
def _close_all() -> None:
    wait_for_daemons()
    for pipeline in list(live):
        pipeline.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
