"""Keeps torch.compile from tracing functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

_compiler: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)  # torch 2.5 has none


def no_compile(function: F) -> F:
    """The function. Where compiled code of the user's calls it, Python runs it: the compiler would trace every function
    under it, and meet arrays and pipelines that it does not know. Otherwise torch.compiler.disable() is not called: it
    imports the compiler, and takes its time at each call."""
    uncompiled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal uncompiled
        if not _is_compiled():
            return function(*args, **kwargs)
        if uncompiled is None:
            uncompiled = torch.compiler.disable(function)
        return uncompiled(*args, **kwargs)

    return cast(F, call)


def _is_compiled() -> bool:
    """Returns whether the caller's code is compiled. The compiler takes is_compiling() for True where it traces this;
    of the function behind it, it would warn that it does not know it."""
    if "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_compiling() or _compiler is None or _compiler() is not None
