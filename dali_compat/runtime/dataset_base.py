"""Base class of this package's data sets. It warns if torch's own loader reads them."""

from __future__ import annotations

import mmap
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch.utils.data as data

from ..errors import FallbackWarning
from .internals import data_set_being_read
from .messages import stack_level

_warned = mmap.mmap(-1, 1)  # 1 after the first warning; shared with workers, which torch forks for every epoch


class DatasetBase:
    """Base class of data sets. Subclasses call ``self._warn_if_torch_reads()`` when they are indexed."""

    transform: Any
    target_transform: Any

    def _transformed(self, image: Any, target: Any) -> tuple[Any, Any]:
        """Apply the transforms of ``__getitem__`` to an image and its target."""
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def _row(self, index: Any) -> int:
        """Convert an index that may be negative to a nonnegative one. Raise IndexError if it is out of range."""
        index, count = operator.index(index), len(self)  # type: ignore[arg-type]  # subclasses have a length
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range for {count} images")
        return index % count

    def _warn_if_torch_reads(self) -> None:
        """Warn, once per program, if torch's own loader indexes the data set."""
        over = None if _warned[0] else data_set_being_read()
        if over is None:
            return
        suppress_warning()
        what = f"torch's own loader reads {_advice(type(self).__name__, over)}"
        warnings.warn(what, FallbackWarning, stacklevel=stack_level())


def suppress_warning() -> None:
    """Suppress the warning of DatasetBase, because its reason was already reported."""
    _warned[0] = 1


class QuietWorker:
    """A worker_init_fn that calls the user's ``function`` and suppresses the warning of DatasetBase."""

    def __init__(self, function: Callable[[int], object] | None):
        self._function = function

    def __call__(self, number: int) -> None:
        suppress_warning()  # spawned workers do not share ``_warned``
        if self._function is not None:
            self._function(number)


def _advice(name: str, over: Any) -> str:
    while type(over) is data.Subset:
        over = over.dataset
    if isinstance(over, (DatasetBase, data.ConcatDataset)):
        remedy = "iterate it with dali_compat.DataLoader, or call dali_compat.install() before the loader is made"
        return f"{name} sample by sample: {remedy}"
    through = type(over).__name__
    return f"{name} through {through}, sample by sample: pass the {name} itself to dali_compat.DataLoader"
