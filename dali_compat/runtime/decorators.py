"""Decorators of what the user's program calls: torch.compile does not trace it; profilers name its stages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.autograd import profiler

try:
    import nvtx

    _domain: Any = nvtx.get_domain("dali_compat")
except (ImportError, AttributeError):  # an nvtx before 0.2.7 has no domains
    _domain = None

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


def one_at_a_time(method: F) -> F:
    """Makes threads wait for each other in a method; ``self.turn`` is an RLock."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        with self.turn:
            return method(self, *args)

    return cast(F, call)


def _is_compiled() -> bool:
    """Returns whether the caller's code is compiled. The compiler takes is_compiling() for True where it traces this;
    of the function behind it, it would warn that it does not know it."""
    if "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_compiling() or _compiler is None or _compiler() is not None


def named(stage: str) -> Callable[[F], F]:
    """Returns a decorator: while the function runs, profilers show "dali_compat: stage"."""
    name = f"dali_compat: {stage}"
    event = _domain and _domain.get_event_attributes(message=stage)

    def decorated(function: F) -> F:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not profiler._is_profiler_enabled:
                return function(*args, **kwargs)
            with profiler.record_function(name):
                return function(*args, **kwargs)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if _domain is None:
                return recorded(*args, **kwargs)
            _domain.push_range(event)
            try:
                return recorded(*args, **kwargs)
            finally:
                _domain.pop_range()

        return cast(F, run)

    return decorated
