"""Deferred images and tensors, as a file and the operations on it.

The pixels of a :class:`Node` never change. An image stores its node in place of Pillow's core (images.py), and a tensor
in a :class:`~.tensors.Cell`. Pixels are computed at the first access, by the functions of Pillow and torchvision.
"""

from __future__ import annotations

import io
import math
import threading
from contextlib import contextmanager
from typing import Any

from PIL import Image

from ..runtime.messages import user_line
from .calls import RecordedCall
from .operations import Outcome, State, Step
from .sources import FileSource, MemorySource

_really_open = Image.open


class _Thread(threading.local):
    """Per-thread switches.

    Attributes:
        traces: whether images that this thread opens are deferred.
        exact: whether operations are deferred only if their result is torchvision's, bit for bit.
        reasons: collects why images became real; None outside of a trial.
    """

    traces = exact = False
    reasons: Reasons | None = None


HERE = _Thread()
_TRIAL = f"{__package__}.trial"  # the module that calls the user's code


class Reasons:
    """Reasons why deferred images became real, the first of each line of the user's code."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def add(self, why: str) -> None:
        """Record a reason and the current line of the user's code, unless that line has one already."""
        if why not in self._found:
            line = user_line(until=_TRIAL)
            if not line or line not in self._found.values():
                self._found[why] = line

    def __str__(self) -> str:
        return ", and ".join([f"{why} ({line})" if line else why for why, line in self._found.items()][:3])


@contextmanager
def tracing(on: bool, exact: bool = False):
    """Switch deferral on or off for this thread."""
    before = HERE.traces, HERE.exact
    HERE.traces, HERE.exact = on, exact
    try:
        yield
    finally:
        HERE.traces, HERE.exact = before


def became_real(why: str) -> None:
    """Record why an image is computed instead of deferred."""
    if HERE.reasons is not None:
        HERE.reasons.add(why)


class Node:
    """An image or tensor that is not computed yet: a file, or a call on another node.

    Attributes:
        parent: the node that ``call`` is applied to; None for a file.
        source: the encoded file.
        call: call on the parent; for a file None, or the decoder, called with the file's bytes.
        state: the known kind, mode, shape and dtype.
        steps: batch steps that give the same pixels from the decoded file; None if there are none.
        strides: strides of a tensor, in elements; None if it is contiguous.
        used: whether another node is computed from this one, so that its pixels must not be changed.
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
        """Pillow's mode of the image; for a tensor, of the image that it was made from."""
        return self.state.mode

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, an attribute of Pillow's core."""
        return self.state.shape[-1], self.state.shape[-2]

    def then(self, call: RecordedCall, outcome: Outcome, strides: tuple[int, ...] | None = None) -> Node:
        """Return the node of a call with a known outcome."""
        if call.name == "convert" and outcome.state.mode == "RGB" and self.is_file:
            steps: tuple[Step, ...] | None = ()  # decoders give RGB
        elif self.steps is None or outcome.steps is None:
            steps = None
        else:
            steps = (*self.steps, *outcome.steps)
        return Node(self, self.source, call, outcome.state, steps, strides)

    def value(self) -> Any:
        """Compute the image or tensor. It must not be changed if the node is ``used``.

        Raises:
            OSError: the file cannot be read, or has changed since it was opened.
        """
        if self._value is None:
            with self._lock, tracing(False):
                if self._value is None:
                    self._value = self._computed()
        return self._value

    def _computed(self) -> Any:
        if self.parent is not None:
            assert self.call is not None
            return self.call.on(self.parent.value())
        with self.source.opened() as file:
            data = file.read()
        if self.call is not None:
            return self.call.on(data)
        image = _really_open(io.BytesIO(data))
        image.load()
        return image

    def calls(self) -> list[RecordedCall]:
        """Return the calls that lead from the file to this node."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.call)
            node = node.parent
        return found[::-1]  # type: ignore[return-value]  # only a file may have no call

    @property
    def root(self) -> Node:
        """The node of the file."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def is_file(self) -> bool:
        """True if the pixels are those of the file, unchanged."""
        node = self
        while node.call is not None and node.call.name == "copy":
            assert node.parent is not None
            node = node.parent
        return node.call is None

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return math.prod(self.state.size)
