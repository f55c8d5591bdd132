"""Keeps what Accelerate and Ray Train would lose when they make a new loader from the script's.

prepare(loader) and prepare_data_loader(loader) do not keep the loader. They construct another one of the arguments that
torch's has, so exact=, cache= and the like would be gone. While the other one is constructed, the framework's functions
are calls under way, and the script's loader is a local variable of one of them. These functions look there, so nothing
of a framework is patched. Call them from the new loader's constructor.
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


def reason_to_stay_torchs() -> str | None:
    """Why the loader that is made here stays torch's; None where it need not."""
    for frame in _frames():
        maker = frame.f_locals.get("self")
        if type(maker).__name__ == "DataLoaderDispatcher":
            return "Accelerate's dispatch_batches=True sends batches from one process to the others"
    return None


def is_made_by_accelerate() -> bool:
    """Returns whether Accelerate makes the loader that is made here."""
    return any(_is_accelerates(frame) for frame in _frames())


def check_nothing_is_skipped_twice() -> None:
    """Looks whether Accelerate's skip_first_batches() is to skip what is skipped already.

    Raises:
        RuntimeError: Accelerate's skip_first_batches() makes this loader of one whose state skips them already.
    """
    for frame in _frames():
        if not _is_accelerates(frame) or frame.f_code.co_name != "skip_first_batches":
            continue
        given = frame.f_locals.get("dataloader")
        loader = getattr(given, "base_dataloader", given)
        if isinstance(loader, DataLoader) and loader._history.goes_on:
            raise RuntimeError(
                "the loader resumes from its state: skip_first_batches() would skip as many batches once more; "
                "leave it out (Hugging Face's Trainer: ignore_data_skip=True)"
            )


def options_of(dataset: Any) -> dict[str, Any]:
    """The options that the script's loader over ``dataset`` has, where a framework makes another one of it; and the
    device of Accelerate's process, where that loader names none."""
    options: dict[str, Any] = {}
    for frame in _frames():
        for value in frame.f_locals.values():
            if isinstance(value, DataLoader) and getattr(value, "dataset", None) is dataset:
                options |= {name: getattr(value, name) for name in _options()}
        if _is_accelerates(frame) and options.get("device") is None:
            device = sys.modules["accelerate.state"].PartialState._shared_state.get("device")
            options |= {} if device is None else {"device": device}
    return options


def _options() -> list[str]:
    """The names of our own arguments, which DataLoader keeps as attributes."""
    parameters = inspect.getfullargspec(DataLoader._take).args[1:]
    return [name for name in parameters if not name.startswith("_")]


def _frames() -> Iterator[FrameType]:
    """Calls of frameworks under way, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        if _module(frame).startswith(_FRAMEWORKS):
            yield frame
        frame = frame.f_back


def _is_accelerates(frame: FrameType) -> bool:
    return _module(frame) == _ACCELERATE


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
