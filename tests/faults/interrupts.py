"""Interrupts at a chosen line: an exception is raised at the n-th line that runs in the package or in DALI."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import dali_compat

_OURS = str(Path(dali_compat.__file__).parent)
_DALIS = "nvidia/dali/"
_NOT_IN = "_interrupts_later"  # no signal handler runs at the lines that restore the handlers and the mask


class Interrupt(KeyboardInterrupt):
    """A KeyboardInterrupt that only these tests raise."""


class Alarm(Exception):
    """An exception that a signal handler may raise."""


class RaiseAtLine:
    """Context manager that counts the lines run in the package or in DALI's Python code, and raises at the n-th.

    Lines of ``_interrupts_later()`` are excluded, because no signal can raise an exception there.

    Args:
        at: index of the line, from 0 on. None only counts.
        error: exception class to raise.
        within: count only lines of files whose path ends with this.

    Attributes:
        passed: number of lines that have run.
        where: file and line of the interrupt, or None.
    """

    def __init__(self, at: int | None = None, error: type[BaseException] = Interrupt, within: str = ""):
        self._at, self._error, self._within, self._pid = at, error, within, os.getpid()
        self.passed, self.where = 0, None

    def __enter__(self) -> RaiseAtLine:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *error) -> None:
        sys.settrace(self._before)

    def _call(self, frame, event, argument) -> Callable | None:
        file = frame.f_code.co_filename
        counts = (file.startswith(_OURS) or _DALIS in file) and file.endswith(self._within)
        return self._line if counts and frame.f_code.co_name != _NOT_IN else None

    def _line(self, frame, event, argument) -> Callable:
        if event == "line":
            if self.passed == self._at and self.where is None and self._pid == os.getpid():  # not in a forked worker
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise self._error
            self.passed += 1
        return self._line


class ExpectedSamples:
    """torchvision's samples of a data set, keyed by (label, index)."""

    def __init__(self, dataset):
        samples = [dataset[i] for i in range(len(dataset))]
        self.images = {(label, index): image for image, label, index in samples}
        assert len(self.images) == len(samples)

    def check(self, batch) -> list[tuple[int, int]]:
        """Return (label, index) of the batch's samples.

        Raises:
            AssertionError: an image does not belong to its label and index.
        """
        images, labels, indices = batch
        names = list(zip(labels.tolist(), indices.tolist(), strict=True))
        for image, name in zip(images, names, strict=True):
            assert torch.equal(image.cpu(), self.images[name]), f"(label, index) {name} has another image"
        return names
