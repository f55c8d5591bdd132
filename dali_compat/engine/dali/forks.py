"""Forks, and the end of the program.

A child has the parent's pipelines without their threads: it must neither run nor end them, or it waits for ever. Nor
can it free what the parent has of a GPU: CUDA ends who tries. So what is garbage by then stays, as gc.freeze() has it.
At the end, pipelines are closed while DALI's modules are whole: somebody may refer to a loader for longer.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import threading
import weakref
from typing import Protocol

import nvidia.dali as dali

from ...data.sources import Form


class Parents(Protocol):
    """A pipeline that a fork may leave in two processes.

    Attributes:
        batch_size: the most samples that a batch may have.
        form: what it is given, and hands out.
    """

    batch_size: int
    form: Form

    @property
    def usable(self) -> bool:
        """Whether it can run."""
        ...

    def forget(self) -> None:
        """This process is a child: the pipeline is its parent's."""
        ...

    def close(self) -> None:
        """It is not needed any more."""
        ...


live: weakref.WeakSet[Parents] = weakref.WeakSet()
"""All of this process."""

_held: dict[int, tuple[list, bool]] = {}  # pipelines, and whether garbage is collected, by the thread that forks


def _before_fork() -> None:
    """The garbage collector must not end one, ours or the user's, before the child has forgotten them."""
    _held[threading.get_ident()] = _all(), gc.isenabled()
    gc.disable()


def _after_fork() -> None:
    _, collects = _held.pop(threading.get_ident(), ([], False))
    if collects:
        gc.enable()


def _after_fork_in_child() -> None:
    gc.freeze()
    for pipeline in _all():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline))  # for ever: nothing of it may be destroyed
    for pipeline in live:
        pipeline.forget()
    dali.Pipeline._pipes.clear()  # DALI's own atexit hook would tear them down
    _after_fork()
    _held.clear()  # of other threads


def _all() -> list:
    return [pipeline for reference in list(dali.Pipeline._pipes) if (pipeline := reference()) is not None]


@atexit.register
def _close_all() -> None:
    for pipeline in list(live):
        pipeline.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
