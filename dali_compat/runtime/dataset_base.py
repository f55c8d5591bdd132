"""A base of our data sets, which warn if torch's own loader reads them."""

from __future__ import annotations

import contextlib
import mmap
import sys
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.utils.data as data

from ..errors import FallbackWarning
from .messages import stack_level

_FETCHER = "torch.utils.data._utils.fetch"
_DEPTH = 12  # calls from torch's fetcher to a data set, at most: Subset and ConcatDataset lie between
_said = mmap.mmap(-1, 1)  # shared with worker processes, which torch forks anew for every epoch
_told: dict[int, weakref.ref[Any]] = {}  # data sets, by id(), for which a loader of ours takes torch's, and has said so
_is_quiet = False  # this process is a worker of such a loader


class OurDataset:
    """A base of data sets of ours, which call ``self._warn_if_torch_reads()`` when they are indexed.

    Attributes:
        _is_told: a loader of ours has said already why torch's reads it.
    """

    transform: Any
    target_transform: Any
    _is_told = False

    def _transformed(self, image: Any, target: Any) -> tuple[Any, Any]:
        """Returns what ``__getitem__`` gives for an image and its target."""
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def _warn_if_torch_reads(self) -> None:
        """A FallbackWarning, where torch's own loader indexes it; once a program."""
        if self._is_told or _is_quiet or _said[0]:
            return
        over = _fetched()
        if over is None or _is_told(over):
            return
        _said[0] = 1
        what = f"torch's own loader reads {_advice(type(self).__name__, over)}"
        warnings.warn(what, FallbackWarning, stacklevel=stack_level())


def remember_told(dataset: Any) -> None:
    """A loader of ours has said why torch's reads a data set, which may hold one of ours."""
    key = id(dataset)
    with contextlib.suppress(TypeError):  # it takes no weak references
        _told[key] = weakref.ref(dataset, lambda gone: _told.pop(key, None))


class QuietWorker:
    """The worker_init_fn of such a loader's workers, around the user's: a process that is no fork does not know what
    was said in another."""

    def __init__(self, function: Callable[[int], object] | None):
        self._function = function

    def __call__(self, number: int) -> None:
        global _is_quiet
        _is_quiet = True
        if self._function is not None:
            self._function(number)


def _is_told(dataset: Any) -> bool:
    """Returns whether it is one of these, or wrapped by on_error."""
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return any((known := _told.get(id(one))) is not None and known() is one for one in (dataset, inner))


def _fetched() -> Any:
    """The data set that torch's loader is fetching a sample of, here; None where it does not."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == _FETCHER:
            return getattr(frame.f_locals.get("self"), "dataset", None)
        frame = frame.f_back
    return None


def _advice(name: str, over: Any) -> str:
    while type(over) is data.Subset:
        over = over.dataset
    if isinstance(over, (OurDataset, data.ConcatDataset)):
        remedy = "iterate it with dali_compat.DataLoader, or call dali_compat.install() before the loader is made"
        return f"{name} sample by sample: {remedy}"
    through = type(over).__name__
    return f"{name} through {through}, sample by sample: give dali_compat.DataLoader the {name} itself"
