"""What a forked child has of its parent, and must not free: what threads work with that are not there, and what lies on
a GPU. CUDA ends who tries."""

from __future__ import annotations

import ctypes


def keep(one: object) -> None:
    """For ever: nothing of it is freed in this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
