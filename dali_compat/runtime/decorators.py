"""Decorators that exclude functions from torch.compile, serialize methods, and name stages for profilers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.autograd import profiler

from .internals import profiler_check

try:
    import nvtx

    _domain: Any = nvtx.get_domain("dali_compat")
except (ImportError, AttributeError):  # added in nvtx 0.2.7
    _domain = None

profiles = profiler_check()
F = TypeVar("F", bound=Callable[..., Any])


def no_compile(function: F) -> F:
    """Decorator that excludes a function from torch.compile, because compilation would fail on arrays and pipelines."""
    uncompiled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal uncompiled
        if "torch._dynamo" not in sys.modules:  # do not import the compiler before the program does
            return function(*args, **kwargs)
        if uncompiled is None:
            uncompiled = torch.compiler.disable(function)
        return uncompiled(*args, **kwargs)

    return cast(F, call)


def one_at_a_time(method: F) -> F:
    """Decorator that lets one thread at a time run a method. It holds the RLock ``self.next_lock``."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        with self.next_lock:
            return method(self, *args)

    return cast(F, call)


def named(stage: str) -> Callable[[F], F]:
    """Return a decorator that makes profilers show "dali_compat: stage" while the function runs."""
    name = f"dali_compat: {stage}"
    event = _domain and _domain.get_event_attributes(message=stage)

    def decorated(function: F) -> F:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not profiles():
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
