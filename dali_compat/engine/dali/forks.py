"""Leak DALI pipelines in forked children, and close them at program exit.

A forked child inherits the parent's pipelines without their threads. To run or close such a pipeline would block
forever, so the child leaks it. The child cannot free the parent's GPU memory either, so gc.freeze() excludes all
inherited objects from garbage collection. At exit, pipelines are closed before DALI's modules are torn down.
"""

from __future__ import annotations

import atexit
import gc
import threading
import weakref
from typing import Any

import nvidia.dali as dali
import torch

from ...runtime.forks import at_fork, leak_in_child, wait_for_daemons
from ...runtime.internals import pipelines_of

live: weakref.WeakSet[Any] = weakref.WeakSet()
"""This package's pipelines in this process."""

_held: dict[int, list] = {}  # pipelines kept alive during a fork, by id of the forking thread
_uses_cuda = False  # whether the parent had initialized CUDA at the fork


def _before_fork() -> None:
    """Hold references to all DALI pipelines, including the user's, until the child has leaked them."""
    global _uses_cuda
    _uses_cuda = torch.cuda.is_initialized()
    _held[threading.get_ident()] = _all()


def _after_fork_in_parent() -> None:
    _held.pop(threading.get_ident(), None)


def _after_fork_in_child() -> None:
    if _uses_cuda:
        gc.freeze()
    for pipeline in _all():
        leak_in_child(pipeline)
    for pipeline in live:
        pipeline.leak()
    pipelines_of(dali.Pipeline).clear()  # DALI's own atexit hook would close them
    _held.clear()


def _all() -> list:
    return [pipeline for one in list(pipelines_of(dali.Pipeline)) if (pipeline := one()) is not None]


@atexit.register
def _close_all() -> None:
    wait_for_daemons()
    for pipeline in list(live):
        pipeline.close()


at_fork("pipelines", before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
