"""Interrupts at every place for certain: an exception is raised at the n-th line that runs
in the package or in DALI."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import dali_compat

_OURS = str(Path(dali_compat.__file__).parent)
_DALIS = "nvidia/dali/"
_NOT_IN = "_interrupts_later"  # no signal's handler runs at the lines in which it sets the handlers and the mask back


class Interrupt(KeyboardInterrupt):
    """As Ctrl-C's, and no other's."""


class Alarm(Exception):
    """As the handler of a signal may raise."""


class Places:
    """A context in which the lines that run in the package, or in DALI's Python, are counted, and the n-th raises.
    Lines of ``_interrupts_later()`` are left out: an exception at them is none that a signal could bring.

    Args:
        at: the number of the line, from 0 on; None only counts.
        error: what it raises.
        within: lines of files whose path ends so count, and no others.

    Attributes:
        passed: lines that have run.
        where: file and line of the interrupt; None if there was none.
    """

    def __init__(self, at: int | None = None, error: type[BaseException] = Interrupt, within: str = ""):
        self._at, self._error, self._within, self._pid = at, error, within, os.getpid()
        self.passed, self.where = 0, None

    def __enter__(self) -> Places:
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


class Truth:
    """What torchvision gives for each sample of a data set whose (label, index) tells its samples apart."""

    def __init__(self, dataset):
        samples = [dataset[i] for i in range(len(dataset))]
        self.images = {(label, index): image for image, label, index in samples}
        assert len(self.images) == len(samples)

    def check(self, batch) -> list[tuple[int, int]]:
        """(label, index) of the batch's samples.

        Raises:
            AssertionError: an image is not that of its label and index.
        """
        images, labels, indices = batch
        names = list(zip(labels.tolist(), indices.tolist(), strict=True))
        for image, name in zip(images, names, strict=True):
            assert torch.equal(image.cpu(), self.images[name]), f"(label, index) {name} has another image"
        return names
