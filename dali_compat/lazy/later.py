"""What is not made yet, and becoming real."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from PIL import Image

from ..data.sources import Source
from ..locks import new_lock
from .operations import Outcome, State
from .record import Call, Header, Recording

_lock = new_lock()  # several threads of the user's may look at once


class Notes:
    """What was made, and what became real, while a data set was asked.

    Attributes:
        why: what made something real, up to three reasons; "" where nothing did.
        count: of stand-ins, so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reasons: list[str] = []
        self._made: list[weakref.ref[Any]] = []

    def made(self, stand_in: Any) -> Any:
        """A stand-in is made; gives it back."""
        self.count += 1
        self._made.append(weakref.ref(stand_in))
        return stand_in

    def became_real(self, why: str) -> None:
        if why and why not in self._reasons:
            self._reasons.append(why)

    @property
    def why(self) -> str:
        return ", and ".join(self._reasons[:3])

    def left(self) -> list[Any]:
        """The stand-ins that somebody still has. Forgets all."""
        made, self._made = self._made, []
        return [one for ref in made if (one := ref()) is not None]


class Later:
    """An image, or what operations make of it, before anybody needs it.

    Args:
        source: where the encoded image is.
        notes: where it says that it became real.
        make: gives the real one, of that ``before`` it where there is one.
        record: what it is; None where nobody has read its header.
        read: gives the header of an image that was only opened; None where only the real image says what it is.

    Attributes:
        is_loaded: whether its pixels were read, or used: PIL has then done to it what it does of itself.
        exif: what PIL's getexif() gives of it, where somebody has asked.
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_before",
        "_header",
        "_make",
        "_read",
        "_real",
        "_record",
        "exif",
        "is_loaded",
        "notes",
        "source",
    )

    def __init__(
        self,
        source: Source,
        notes: Notes,
        make: Callable[[Any], Any],
        record: Recording | None = None,
        before: Later | None = None,
        read: Callable[[], Header | None] | None = None,
    ):
        self.source, self.notes = source, notes
        self.is_loaded = False
        self.exif: Any = None
        self._make: Callable[[Any], Any] | None = make
        self._record, self._read = record, read
        self._header: Header | None = None
        self._before, self._real = before, None
        self._after: list[weakref.ref[Later]] = []

    @property
    def is_real(self) -> bool:
        return self._make is None

    @property
    def header(self) -> Header | None:
        """Of an image that was only opened, what its file's header says; None where only the real one says it."""
        read, self._read = self._read, None
        if read is not None:
            self._header = read()
            if self._header is not None:
                state = self._header.state
                steps, why = ((), "") if state.mode == "RGB" else (None, f"opens images in mode {state.mode}")
                self._record = Recording(self.source, state.size, state, (), steps, why)
        return self._header

    @property
    def record(self) -> Recording | None:
        """Returns what it is; None where only the real one says it."""
        if self._read is not None:
            _ = self.header
        return self._record

    @property
    def is_file(self) -> bool:
        """Returns whether the image was only opened."""
        return self._before is None and not (self._record is not None and self._record.calls)

    @property
    def state(self) -> State | None:
        """Returns what is known of it; None where it is real, or only the real one says it."""
        record = None if self.is_real else self.record
        return None if record is None else record.state

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
            self._make = self._before = None
            self.notes.became_real(why)
        after, self._after = self._after, []
        for ref in after:
            if (later := ref()) is not None:
                later._become_real(why)

    def then(self, call: Call, outcome: Outcome | None) -> Later | None:
        """Returns what a call gives, later; None without an outcome, and where it is real, and may have been changed in
        place since."""
        with _lock:
            if outcome is None or self.is_real or self.record is None:
                return None
            self.is_loaded = True
            source, size, state, calls, steps, why = self.record
            if call.name == "convert" and outcome.state.mode == "RGB" and all(one.name == "copy" for one in calls):
                steps, why = (), ""  # as all decoders give it
            elif steps is not None and outcome.steps is not None:
                steps = (*steps, *outcome.steps)
            elif steps is not None:
                steps, why = None, f"uses the {'image' if state.kind == 'pil' else 'tensor'}'s {call.name.strip('_')}"
            if steps is None and any(one.owner == "called" for one in (*calls, call)):
                return None  # in this thread
            record = Recording(source, size, outcome.state, (*calls, call), steps, why)
            made = Later(self.source, self.notes, call.on, record, self)
            self._after.append(weakref.ref(made))
            return made
