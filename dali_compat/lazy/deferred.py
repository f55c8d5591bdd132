"""Deferred images and tensors, and making them real."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from ..data.sources import Source
from ..runtime.forks import new_lock
from .operations import Outcome, State, step
from .record import ImageHeader, RecordedCall, Recording

# Decoders give three alike channels of a gray file.
_GRAY = (step("grayscale", State("pil", "L", (1, 1, 1)), formula="pil", channels=1),)
_lock = new_lock()  # several threads of the user's may look at once


class Notes:
    """Notes on what was deferred, and what became real, while a data set was traced.

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


class Deferred:
    """An image, or what operations make of it, before anybody needs it.

    Args:
        source: where the encoded image is.
        notes: where it says that it became real.
        make: gives the real one, of that ``before`` it where there is one.
        record: what it is; None where only the real one says it.
        header: of an image that was only opened.

    Attributes:
        state: what is known of it; None where it is real, or only the real one says it.
        is_loaded: whether its pixels were read, or used: PIL has then done to it what it does of itself.
        exif: what PIL's getexif() gives of it, where somebody has asked.
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_before",
        "_done",
        "_is_known",
        "_make",
        "_real",
        "exif",
        "header",
        "is_loaded",
        "notes",
        "source",
        "state",
    )

    def __init__(
        self,
        source: Source,
        notes: Notes,
        make: Callable[[Any], Any],
        record: Recording | None = None,
        header: ImageHeader | None = None,
    ):
        self.source, self.notes, self.header = source, notes, header
        if header is not None:
            mode = header.state.mode
            steps = {"RGB": (), "L": _GRAY}.get(mode)
            why = "" if mode == "RGB" else f"opens images in mode {mode}"
            record = Recording(source, header.state.size, header.state, (), steps, why)
        self.state: State | None = None if record is None else record.state
        self.is_loaded = False
        self.exif: Any = None
        self._make: Callable[[Any], Any] | None = make
        self._before: Deferred | None = None
        self._real: Any = None
        self._after: list[weakref.ref[Deferred]] = []
        self._done: _Done | Recording | None = record
        self._is_known = record is not None and record.steps is not None and not record.why  # kernels do all of it

    @property
    def is_real(self) -> bool:
        return self._make is None

    @property
    def record(self) -> Recording | None:
        """Returns what it is; None where only the real one says it."""
        done = self._done
        if isinstance(done, _Done):
            done = self._done = done.record()
        return done

    @property
    def is_file(self) -> bool:
        """Returns whether the image was only opened."""
        return self._done is None or (isinstance(self._done, Recording) and not self._done.calls)

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
        after, self._after = self._after, []
        for ref in after:
            if (later := ref()) is not None:
                later._become_real(why)

    def leads_to(self, later: Deferred) -> None:
        """Returns what else is made of this becomes real with it."""
        self._after.append(weakref.ref(later))

    def then(self, call: RecordedCall, outcome: Outcome | None) -> Deferred | None:
        """Returns what a call gives, later; None without an outcome, and where it is real, and may have been changed in
        place since."""
        state, done = self.state, self._done
        if outcome is None or state is None or done is None:
            return None
        known = self._is_known and outcome.steps is not None
        if call.name == "convert" and outcome.state.mode == "RGB" and not known:
            record = self.record
            known = record is not None and all(one.name == "copy" for one in record.calls)
        elif not known and (call.owner == "called" or _calls_the_users(done)):
            return None  # in this thread
        self.is_loaded = True
        made = Deferred.__new__(Deferred)
        made.source, made.notes, made.header = self.source, self.notes, None
        made.state, made.is_loaded, made.exif = outcome.state, False, None
        made._make, made._before, made._real, made._after = call.on, self, None, []
        made._done, made._is_known = _Done(done, call, outcome), known
        # before it is seen whether this is real: then another thread that makes it so has seen this one, or is seen
        self._after.append(weakref.ref(made))
        return None if self.state is None else made


class _Done(NamedTuple):
    """An operation.

    Attributes:
        before: what was done before it, or the image that it began with.
        call, outcome: which, and what it gives.
    """

    before: _Done | Recording
    call: RecordedCall
    outcome: Outcome

    def record(self) -> Recording:
        """All that was done."""
        several, done = [self], self.before
        while isinstance(done, _Done):
            several.append(done)
            done = done.before
        source, size, state, (*calls,), steps, why = done
        for _, call, outcome in reversed(several):
            if call.name == "convert" and outcome.state.mode == "RGB" and all(one.name == "copy" for one in calls):
                steps, why = (), ""  # as all decoders give it
            elif steps is not None and outcome.steps is not None:
                steps = (*steps, *outcome.steps)
            elif steps is not None:
                steps, why = None, f"uses the {'image' if state.kind == 'pil' else 'tensor'}'s {call.name.strip('_')}"
            calls.append(call)
            state = outcome.state
        if why and not state.normalized:  # a gray file may be a mask
            steps = None
        return Recording(source, size, state, tuple(calls), steps, why)


def _calls_the_users(done: _Done | Recording) -> bool:
    """Returns whether a function of the user's is among the operations."""
    while isinstance(done, _Done):
        if done.call.owner == "called":
            return True
        done = done.before
    return any(call.owner == "called" for call in done.calls)
