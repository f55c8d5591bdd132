"""What data sets of ours have in common. Where torch's own loader reads one, a warning says so."""

from __future__ import annotations

import mmap
import sys
import warnings
from types import FrameType
from typing import Any

from .errors import FallbackWarning

_FETCHER = "torch.utils.data._utils.fetch"
_DEPTH = 12  # calls from torch's fetcher to a data set, at most: Subset and ConcatDataset lie between
_said = mmap.mmap(-1, 1)  # shared with worker processes, which torch forks anew for every epoch


class Asked:
    """A base of data sets of ours, which say ``self._asked()`` when they are indexed.

    Attributes:
        _is_told: a loader of ours has said already why torch's reads it.
    """

    transform: Any
    target_transform: Any
    _is_told = False

    def _transformed(self, image: Any, target: Any) -> tuple[Any, Any]:
        """What ``__getitem__`` gives of an image and its target."""
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def _asked(self) -> None:
        """A FallbackWarning, if it is torch's own loader that asks; once a program."""
        if self._is_told or _said[0] or not _is_fetching():
            return
        _said[0] = 1
        warnings.warn(
            f"torch's own loader reads {type(self).__name__} sample by sample: iterate it with "
            "dali_compat.DataLoader, or call dali_compat.install() before the loader is made",
            FallbackWarning,
            stacklevel=3,
        )


def _is_fetching() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == _FETCHER:
            return True
        frame = frame.f_back
    return False
