"""Whether the kernels are to be had: Triton, its compiler, and of a few images the same pixels as torch gives them.

The compiler takes seconds, once on a machine: that passes in the background, and torch does the work meanwhile. The
thread is no daemon: a program that ends meanwhile waits for it. So does a fork, which must not copy a locked compiler.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import NamedTuple

import numpy as np
import torch

from ...locks import new_lock
from ..device import working_on
from .numbers import AT, OPERATIONS

_PATIENCE = 60  # seconds, of a fork
_SIZE = 61, 71  # several programs an image
_NUMBERS = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # of others a factor
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")

Launched = Callable[..., torch.Tensor]


class Kind(NamedTuple):
    """Of images: for each the kernels are compiled anew."""

    device: torch.device
    channels: int
    has_hues: bool


_found: dict[Kind, Launched | None] = {}
_starts: dict[Kind, threading.Thread] = {}
_trying = new_lock()


def launcher(kind: Kind, hue_tables: tuple | None, reference: Launched) -> Launched | None:
    """rows.launched(), or None where it cannot be, or cannot yet: who asks first begins with it. ``reference`` does the
    same by torch."""
    if kind not in _found and kind not in _starts:
        thread = threading.Thread(target=_try, args=(kind, hue_tables, reference), name="dali_compat Triton's start")
        if _starts.setdefault(kind, thread) is thread:
            with suppress(RuntimeError):  # the program ends: no thread begins any more
                thread.start()
    return _found.get(kind)


def finish(seconds: float | None = None) -> None:
    """Wait until nothing happens in the background."""
    for thread in list(_starts.values()):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)


def _try(kind: Kind, hue_tables, reference) -> None:
    with _trying:
        try:
            from .rows import launched  # Triton starts with it

            same = _gives_the_same(launched, kind, hue_tables, reference)
            why = "" if same else "they do not give what torch gives"
        except Exception as error:  # Triton's, its compiler's: torch does the same work without them
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        _found[kind] = None if why else launched
    if why:
        _log.info("augmentations on %s take more time of the host, without kernels in Triton: %s", kind.device, why)


def _gives_the_same(launched, kind: Kind, hue_tables, reference) -> bool:
    chosen = np.array([number for name, number in AT.items() if name != "hue" or hue_tables] + [AT["warp"]] * 2)
    warps = chosen == AT["warp"]
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_NUMBERS.get(OPERATIONS[number], 1.37) for number in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = np.random.default_rng(0).integers(0, 256, (len(chosen), kind.channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40  # a histogram that is not flat
    given = (
        chosen,
        numbers,
        interpolations,
        torch.tensor([3, 77, 200][: kind.channels], dtype=torch.uint8, device="cpu"),
    )
    area, on_the_host = _SIZE[0] * _SIZE[1], torch.from_numpy(images)
    with working_on(torch.cuda.Stream(kind.device)) if kind.device.type == "cuda" else nullcontext():
        made = launched(on_the_host.to(kind.device), *given, area, hue_tables).cpu()
    return torch.equal(made, reference(on_the_host, *given, area))


def _before_fork() -> None:
    finish(_PATIENCE)


def _after_fork_in_child() -> None:
    """A child has no GPU, and none of the threads."""
    _starts.clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
