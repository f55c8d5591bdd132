"""Deferred images and tensors, and making them real."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from ..data.sources import Source
from ..runtime.forks import new_lock
from ..runtime.messages import users_line
from .operations import Outcome, State, step
from .record import RecordedCall, Recording

# Decoders give three alike channels of a gray file.
_GRAY = (step("grayscale", State("pil", "L", (1, 1, 1)), like="pil", dtype=torch.uint8, channels=1),)
_ASKER = f"{__package__}.asker"  # which calls the user's code
_lock = new_lock()  # several threads of the user's may look at once


class _Ref(weakref.ref[Any]):
    """A weak reference that nobody else gets: plain ones are shared."""

    __slots__ = ()


class Notes:
    """Notes on what was deferred, and what became real, while a data set was traced.

    Attributes:
        why: what made something real, up to three reasons, with the user's lines; "" where nothing did.
        count: of stand-ins, so far.
        waiting: stand-ins that stay in samples.
        watched: stand-ins to which somebody has weak references, and which stay for that long.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reasons: dict[str, str] = {}  # and the line
        self._made: list[_Ref] = []
        self.waiting, self.watched = list[Any](), list[Any]()

    def made(self, stand_in) -> Any:
        """A stand-in is made; gives it back."""
        self.count += 1
        self._made.append(_Ref(stand_in))
        return stand_in

    def became_real(self, why: str) -> None:
        if why and why not in self._reasons:
            self._reasons[why] = users_line(until=_ASKER)

    @property
    def why(self) -> str:
        reasons = [f"{why} ({line})" if line else why for why, line in self._reasons.items()]
        return ", and ".join(reasons[:3])

    def left(self) -> list[Any]:
        """The stand-ins that somebody still has, but for those that wait in samples. Forgets all."""
        made, waiting = self._made, set(map(id, self.waiting))
        self._made, self.waiting, self.watched = [], [], []
        return [one for ref in made if (one := ref()) is not None and id(one) not in waiting]


class Deferred:
    """An image, or what operations make of it, before anybody needs it.

    Args:
        source: where the encoded image is.
        notes: where it says that it became real.
        make: gives the real one, of that ``before`` it where there is one.
        record: what it is; None where only the real one says it.
        header: the ImageHeader of an image that was only opened.

    Attributes:
        state: what is known of it; None where it is real, or only the real one says it.
        is_loaded: whether its pixels were read, or used: PIL has then done to it what it does of itself.
        exif: what PIL's getexif() gives of it, where somebody has asked.
        after: what else is made of it, and becomes real with it.
    """

    __slots__ = (
        *("__weakref__", "_before", "_make", "_real"),
        *("after", "exif", "header", "is_loaded", "notes", "record", "source", "state"),
    )

    def __init__(
        self, source: Source, notes: Notes, make: Callable[[Any], Any], record: Recording | None = None, header=None
    ):
        if header is not None:
            mode = header.state.mode
            steps = {"RGB": (), "L": _GRAY}.get(mode)
            why = "" if mode == "RGB" else f"opens images in mode {mode}"
            record = Recording(source, header.state.size, header.state, (), steps, why)
        self.source, self.notes, self.header, self.record = source, notes, header, record
        self.state: State | None = None if record is None else record.state
        self.is_loaded, self.exif = False, None
        self._make: Callable[[Any], Any] | None = make
        self._before: Deferred | None = None
        self._real: Any = None
        self.after: list[weakref.ref[Deferred]] = []

    @property
    def is_real(self) -> bool:
        return self._make is None

    @property
    def is_file(self) -> bool:
        """Returns whether the image was only opened."""
        return self.record is None or not self.record.calls

    def value(self, why: str) -> Any:
        """The real one; ``why`` is for explain(). What is not real becomes so now, with all that it was made of and all
        that was made of it: who gets this may change it in place, and what was made of it before must not have that
        change. Raises whatever making it raises."""
        with _lock:
            if self._before is not None:
                self._before.value(why)
            self._become_real(why)
            return self._real

    def _become_real(self, why: str) -> None:
        if self._make is not None:
            before, make = self._before, self._make
            self._real = make(None if before is None else before._real)
            if self.is_loaded and isinstance(self._real, Image.Image):
                self._real.load()
            if before is None and isinstance(self._real, Image.Image) and self._real.mode[0] in "IF":
                why = f"opens images in mode {self._real.mode}, of more than 8 bits"
            self._make = self._before = self.state = None
            self.notes.became_real(why)
        after, self.after = self.after, []
        for ref in after:
            if (later := ref()) is not None:
                later._become_real(why)

    def then(self, call: RecordedCall, outcome: Outcome | None) -> Deferred | None:
        """Returns what a call gives, later; None without an outcome, and where it is real, and may have been changed in
        place since."""
        if outcome is None or self.state is None or self.record is None:
            return None
        return self.becoming(self.record.then(call, outcome), call)

    def becoming(self, record: Recording, call: RecordedCall) -> Deferred | None:
        """Returns what the record is of, which a call gives; None as then()."""
        if (record.steps is None or record.why) and any(one.owner == "called" for one in record.calls):
            return None  # a function of the user's is called in this thread
        self.is_loaded = True
        made = Deferred(record.source, self.notes, call.on, record)
        made._before = self
        # before it is seen whether this is real: then another thread that makes it so has seen this one, or is seen
        self.after.append(weakref.ref(made))
        return None if self.state is None else made
