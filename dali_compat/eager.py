"""What torch.compile is to leave alone, with all that it calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """The function. Where compiled code of the user's calls it, Python runs it: the compiler would trace every function
    under it, and meet arrays and pipelines that it does not know. Whether there is a compiler is asked at each call:
    to import it takes longer than to import this package."""
    uncompiled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal uncompiled
        if uncompiled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            uncompiled = torch.compiler.disable(function)
        return uncompiled(*args, **kwargs)

    return call  # type: ignore[return-value]
