"""Deferred images and tensors, each stored as a file and the operations on it.

The pixels of a :class:`Node` never change. An image stores its node in place of Pillow's core (images.py), and a tensor
in a :class:`~.tensors.Cell`. The functions of Pillow and torchvision compute pixels at the first access.
"""

from __future__ import annotations

import io
import math
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, NamedTuple

from PIL import Image

from ..runtime.messages import user_line
from .calls import RecordedCall
from .operations import Outcome, State, Step
from .sources import FileSource, FileTable, MemorySource

_CLOCK = 5  # Linux's CLOCK_REALTIME_COARSE, which file systems use
_RESOLUTION = 10_000_000  # ns; some clocks, such as those of network file systems, are this coarse
pillow_open = Image.open  # saved before the user's code can replace it


class Tracing(NamedTuple):
    """Settings for deferring the images that a thread opens.

    Attributes:
        table: headers of the files.
        exact: whether operations are deferred only if kernels are bit-exact.
        since: time in ns. A file with a later ctime is not deferred, because it may change again.
    """

    table: FileTable
    exact: bool
    since: int

    @classmethod
    def from_now(cls, table: FileTable, exact: bool) -> Tracing:
        """Return settings that do not defer files changed after this call."""
        now = time.clock_gettime_ns(_CLOCK) if sys.platform == "linux" else time.time_ns()
        return cls(table, exact, now - _RESOLUTION)


class _Switches(threading.local):
    """Settings of the current thread.

    Attributes:
        tracing: settings for deferring images; None if the thread does not trace.
        reasons: why images were computed; None outside of a trial.
    """

    tracing: Tracing | None = None
    reasons: Reasons | None = None


SWITCHES = _Switches()
_TRIAL = f"{__package__}.trial"  # the module that calls the user's code


class Reasons:
    """Reasons why images were computed, one for each line of the user's code."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}  # by reason

    def add(self, reason: str) -> None:
        """Add a reason, unless the current line of the user's code has one already."""
        if reason not in self._lines:
            line = user_line(last_module=_TRIAL)
            if not line or line not in self._lines.values():
                self._lines[reason] = line

    def __str__(self) -> str:
        return ", and ".join([f"{reason} ({line})" if line else reason for reason, line in self._lines.items()][:3])


@contextmanager
def tracing(settings: Tracing | None):
    """Context manager that defers images in this thread with these ``settings``; None defers none."""
    before, SWITCHES.tracing = SWITCHES.tracing, settings
    try:
        yield
    finally:
        SWITCHES.tracing = before


def record_reason(reason: str) -> None:
    """In a trial, record why an image is not deferred. ``reason`` is a verb phrase such as "uses its pixels"."""
    if SWITCHES.reasons is not None:
        SWITCHES.reasons.add(reason)


class Node:
    """A deferred image or tensor: a file, or a call on another node.

    Attributes:
        parent: the node that ``call`` is applied to; None for a file.
        source: the encoded file.
        call: call on the parent. For a file, the call of its decoder, or None if Pillow decodes it.
        state: the known kind, mode, shape and dtype.
        steps: steps that compute these pixels in a batch; None if no kernels can.
        strides: strides of a tensor, in elements; None if it is contiguous.
        used: whether another node or tensor uses these pixels. If so, they must not be changed.
    """

    __slots__ = ("_lock", "_value", "call", "parent", "source", "state", "steps", "strides", "used")
    readonly = 0  # an attribute of Pillow's core

    def __init__(
        self,
        parent: Node | None,
        source: FileSource | MemorySource,
        call: RecordedCall | None,
        state: State,
        steps: tuple[Step, ...] | None,
        strides: tuple[int, ...] | None = None,
    ):
        self.parent, self.source, self.call = parent, source, call
        self.state, self.steps, self.strides = state, steps, strides
        self.used, self._value = False, None
        self._lock = threading.Lock()
        if parent is not None:
            parent.used = True

    @property
    def mode(self) -> str:
        return self.state.mode

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.state.shape[-1], self.state.shape[-2]

    def then(self, call: RecordedCall, outcome: Outcome, strides: tuple[int, ...] | None = None) -> Node:
        """Return the node for the result of ``call`` on this node. ``outcome`` has the result's state and steps."""
        if call.name == "convert" and outcome.state.mode == "RGB" and self.is_file:
            steps: tuple[Step, ...] | None = ()  # decoders of batches return RGB
        elif self.steps is None or outcome.steps is None:
            steps = None
        else:
            steps = (*self.steps, *outcome.steps)
        return Node(self, self.source, call, outcome.state, steps, strides)

    def value(self) -> Any:
        """Return the computed image or tensor. Do not change the result if the node is ``used``.

        Raises:
            OSError: the file cannot be read, or has changed since it was opened.
        """
        if self._value is None:
            with self._lock, tracing(None):
                if self._value is None:
                    self._value = self._compute()
        return self._value

    def _compute(self) -> Any:
        if self.parent is not None:
            assert self.call is not None
            return self.call.apply(self.parent.value())
        with self.source.open() as file:
            data = file.read()
        if self.call is not None:
            return self.call.apply(data)
        image = pillow_open(io.BytesIO(data))
        image.load()
        return image

    def calls(self) -> list[RecordedCall]:
        """Return the calls from the file to this node."""
        calls, node = [], self
        while node.parent is not None:
            calls.append(node.call)
            node = node.parent
        return calls[::-1]  # type: ignore[return-value]  # only a file may have no call

    @property
    def root(self) -> Node:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def is_file(self) -> bool:
        """True if the pixels are those of the file, decoded by Pillow."""
        node = self
        while node.call is not None and node.call.name == "copy":
            assert node.parent is not None
            node = node.parent
        return node.call is None

    @property
    def pixels(self) -> int:
        return math.prod(self.state.size)
