"""Tries whether the kernels can be used: Triton and its compiler are there, and a few images become what torch makes of
them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from ...runtime.forks import new_lock
from .codes import CODES, OPERATIONS

_PATIENCE = 60  # seconds, of a fork
_SIZE = 61, 71  # several programs an image
_NUMBERS = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # of others a factor
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")

Launched = Callable[..., torch.Tensor]
_found: dict[tuple[torch.device, int], Launched | None] = {}
_trying = new_lock()


def launcher(device: torch.device, channels: int, hue_tables: tuple | None, reference: Launched) -> Launched | None:
    """rows.launched(), or None where it cannot be used. The first call for a device and so many channels waits for the
    compiler: seconds, once on a machine; less in later programs. ``reference`` does the same by torch."""
    key = device, channels
    if key not in _found:
        with _trying:
            if key not in _found:
                _found[key] = _tried(device, channels, hue_tables, reference)
    return _found[key]


def _tried(device, channels, hue_tables, reference) -> Launched | None:
    try:
        from .rows import launched  # Triton starts with it

        if device.type == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
            why = "TRITON_INTERPRET is set"
        elif all(map(torch.equal, *compared(launched, device, channels, hue_tables, reference))):
            return launched
        else:
            why = "they do not give what torch gives"
    except Exception as error:  # Triton's, its compiler's: torch does the same work without them
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.info("augmentations on %s take more time of the host, without kernels in Triton: %s", device, why)
    return None


def compared(launched, device, channels, hue_tables, reference) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what both make of an image for each operation, and for each interpolation of a warp, on the CPU."""
    chosen = np.array([*CODES.values(), CODES["warp"], CODES["warp"]])
    warps = chosen == CODES["warp"]
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_NUMBERS.get(OPERATIONS[code], 1.37) for code in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = made(len(chosen), channels)
    fill = torch.tensor([3, 77, 200][:channels], dtype=torch.uint8, device="cpu")
    given = chosen, numbers, interpolations, fill, _SIZE[0] * _SIZE[1]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        ours = launched(images.to(device), *given, hue_tables).cpu()
    return ours, reference(images, *given)


def made(count: int, channels: int) -> torch.Tensor:
    """Noise whose values are not all there, nor equally often: autocontrast and equalize change it."""
    images = np.random.default_rng(0).integers(9, 240, (count, channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40
    return torch.from_numpy(images)


def _before_fork() -> None:
    """A child must not copy a locked compiler."""
    if _trying.acquire(timeout=_PATIENCE):
        _trying.release()


os.register_at_fork(before=_before_fork)
