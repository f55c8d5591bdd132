"""A user's collate_fn: it gets samples on the GPU, where it can take them there."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from ..runtime.device import mapped, moved
from ..runtime.warn_location import tell_of_fallback

_CPU = torch.device("cpu")


class UserCollate:
    """Calls a loader's collate_fn. A function that makes arrays, or tensors of its own on the CPU, raises an error of
    devices with samples on a GPU: its first batch tells. It gets that batch again, and all others, on the CPU.

    Args:
        fallback: the loader's: whether a FallbackWarning says so, nothing, or an error.
    """

    def __init__(self, fallback: str):
        self._fallback = fallback
        self._known: Callable[[Any], Any] | None = None  # the function that was tried
        self._on_cpu = False

    def __call__(
        self,
        function: Callable[[Any], Any],
        samples: Callable[[Any], Any],
        images: Any,
        device: torch.device,
        generators: Callable[[], AbstractContextManager],
    ) -> Any:
        """Returns what ``function`` makes of ``samples(images)``, wherever that lies. ``generators``: what the function
        draws from while it runs.

        Raises:
            RuntimeError: fallback="error", and the function cannot take samples on the GPU.
        """
        if self._known is function or device.type != "cuda":
            with generators(), _place(function, device):
                return function(samples(moved(images, _CPU) if self._on_cpu else images))
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        try:
            with generators(), _place(function, device):
                made = function(samples(mapped(images, torch.Tensor.clone)))  # it may change them before it raises
            self._known, self._on_cpu = function, False
            return made
        except (RuntimeError, TypeError, ValueError) as error:
            if not _is_of_devices(error):
                raise
            name = getattr(function, "__qualname__", type(function).__name__)
            what = f"collate_fn {name} cannot take samples on a GPU ({error}): every batch is copied to the CPU for it"
            tell_of_fallback(what, self._fallback, set())
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
        with generators():
            made = function(samples(moved(images, _CPU)))
        self._known, self._on_cpu = function, True
        return made


def _is_of_devices(error: Exception) -> bool:
    return not isinstance(error, torch.cuda.OutOfMemoryError) and any(word in str(error) for word in ("cuda", "device"))


def _place(function: Callable[[Any], Any], device: torch.device) -> AbstractContextManager:
    """Returns the device on which torch makes the tensors of a function that names none. timm's mix image by image into
    a tensor of their own: on the GPU that is one, too. They draw from numpy alone."""
    loader, mixup = sys.modules.get("timm.data.loader"), sys.modules.get("timm.data.mixup")
    of_timm = loader is not None and function is loader.fast_collate
    of_timm = of_timm or (mixup is not None and type(function) is mixup.FastCollateMixup)
    return torch.device(device) if of_timm else nullcontext()
