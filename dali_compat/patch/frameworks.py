"""What a framework that makes a loader of another one would lose: read from the calls under way.

Accelerate's prepare() and Ray Train's prepare_data_loader() make torch's loader of the arguments that they know. They
need no patch: the loader that they begin with is a variable of theirs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..loader import DataLoader

_ACCELERATE = "accelerate.data_loader"
_FRAMEWORKS = _ACCELERATE, "ray.train."
_DEPTH = 8  # calls from the framework's function to our constructor, at most


def refusal() -> str | None:
    """Why the loader that is made here stays torch's; None where it need not."""
    for frame in _frames():
        maker = frame.f_locals.get("self")
        if type(maker).__name__ == "DataLoaderDispatcher":
            return "Accelerate's dispatch_batches=True sends batches from one process to the others"
    return None


def made_by_accelerate() -> bool:
    """Whether Accelerate makes a loader here.

    Raises:
        RuntimeError: it is to skip batches that a loader's state has had already.
    """
    frames = [frame for frame in _frames() if frame.f_globals["__name__"] == _ACCELERATE]
    for frame in frames:
        given = frame.f_locals.get("dataloader") if frame.f_code.co_name == "skip_first_batches" else None
        loader = getattr(given, "base_dataloader", given)
        if isinstance(loader, DataLoader) and loader._history.goes_on:
            raise RuntimeError(
                "the loader goes on from its state: skip_first_batches() would skip as many batches once more; "
                "leave it out (Hugging Face's Trainer: ignore_data_skip=True)"
            )
    return bool(frames)


def options_of(dataset: Any) -> dict[str, Any]:
    """Options of our own that the loader has of which a framework makes another one, and its device."""
    options: dict[str, Any] = {}
    for frame in _frames():
        for value in frame.f_locals.values():
            if isinstance(value, DataLoader) and getattr(value, "dataset", None) is dataset:
                options |= {name: getattr(value, name) for name in _names()}
        if frame.f_globals["__name__"] == _ACCELERATE and options.get("device") is None:
            device = sys.modules["accelerate.state"].PartialState._shared_state.get("device")
            options |= {} if device is None else {"device": device}
    return options


def _names() -> list[str]:
    """Of our own options, which are keywords."""
    parameters = inspect.getfullargspec(DataLoader._take).args[1:]
    return [name for name in parameters if not name.startswith("_")]


def _frames() -> Iterator[FrameType]:
    """Calls of frameworks under way, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        if str(frame.f_globals.get("__name__", "")).startswith(_FRAMEWORKS):
            yield frame
        frame = frame.f_back
