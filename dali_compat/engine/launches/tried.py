"""Whether the kernels are to be had: Triton, its compiler, and of a few images the same pixels as torch gives them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from ...locks import new_lock
from .numbers import AT, OPERATIONS

_PATIENCE = 60  # seconds, of a fork
_SIZE = 61, 71  # several programs an image
_NUMBERS = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # of others a factor
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")
_found: dict[tuple[torch.device, int, bool], Callable | None] = {}
_trying = new_lock()


def launcher(
    device: torch.device, channels: int, hue_tables: tuple | None, reference: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor] | None:
    """rows.launched(), or None where it cannot be. Who asks first for such images, with or without hues, waits for the
    compiler. ``reference`` is called as launched() is, without hue_tables."""
    key = device, channels, hue_tables is not None
    if key not in _found:
        with _trying:
            if key not in _found:
                _found[key] = _tried(device, channels, hue_tables, reference)
    return _found[key]


def _tried(device, channels, hue_tables, reference):
    try:
        from .rows import launched  # Triton starts with it

        if _gives_the_same(launched, device, channels, hue_tables, reference):
            return launched
        why = "they do not give what torch gives"
    except Exception as error:  # Triton's, its compiler's: torch does the same work without them
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.info("augmentations take more of the host's time on %s, for kernels in Triton are not used: %s", device, why)
    return None


def _gives_the_same(launched, device, channels, hue_tables, reference) -> bool:
    chosen = np.array([number for name, number in AT.items() if name != "hue" or hue_tables] + [AT["warp"]] * 2)
    warps = chosen == AT["warp"]
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_NUMBERS.get(OPERATIONS[number], 1.37) for number in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = np.random.default_rng(0).integers(0, 256, (len(chosen), channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40  # a histogram that is not flat
    given = chosen, numbers, interpolations, torch.tensor([3, 77, 200][:channels], dtype=torch.uint8, device="cpu")
    area, on_the_host = _SIZE[0] * _SIZE[1], torch.from_numpy(images)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        made = launched(on_the_host.to(device), *given, area, hue_tables)
    return torch.equal(made.cpu(), reference(on_the_host, *given, area))


def _before_fork() -> None:
    """A child must not copy a locked compiler."""
    if _trying.acquire(timeout=_PATIENCE):
        _trying.release()


os.register_at_fork(before=_before_fork)
