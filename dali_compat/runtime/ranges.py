"""Names the stages of a batch for profilers: in torch.profiler's traces, and for Nsight where nvtx is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch.autograd import profiler

try:
    import nvtx

    _domain: Any = nvtx.get_domain("dali_compat")
except (ImportError, AttributeError):  # an nvtx before 0.2.7 has no domains
    _domain = None

F = TypeVar("F", bound=Callable[..., Any])


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

        @wraps(function)
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
