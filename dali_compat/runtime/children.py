"""Make child processes end when their parent does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any


def end_with_parent(parent: int | None = None) -> None:
    """End this process when its parent ends, and leave interrupts to the parent.

    ``parent`` is the ID of the process that forked this one. It is None if multiprocessing started this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handlers must not run in its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # blocked until here
    starter = None if parent else multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent or os.getppid(), starter), daemon=True).start()


def _end_with(parent: int, starter: Any) -> None:
    """End this process with its parent, even if the main thread never returns from a call."""
    while os.getppid() == parent and (starter is None or starter.is_alive()):
        time.sleep(1)
    os._exit(1)
