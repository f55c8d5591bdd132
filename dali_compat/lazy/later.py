"""What is not made yet, and how it would be."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from PIL import Image

from ..locks import new_lock
from .generators import Reserved

if TYPE_CHECKING:
    from ..data.sources import Source
    from .chains import Chain


Windows = tuple[tuple[int, tuple[int, int, int, int]], ...]

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
    """An image, or what transforms make of it, before anybody needs it.

    Args:
        source: where the encoded image is.
        chain: the transforms that it has gone through.
        notes: where it says that it became real.
        make: gives the real one, of that ``before`` it where there is one.
        is_rgb: whether the image was certainly in RGB before all transforms.

    Attributes:
        is_converted: whether it was asked to be, or copied: it has no format any more.
        is_loaded: whether its pixels were read, or used: PIL has then done to it what it does of itself.
        header: mode, size and format of the image as it was opened, where somebody has asked.
        exif: what PIL's getexif() gives of it, where somebody has asked.
        states: of the generators that its last transform draws from when it becomes real, where that is random.
        windows: of each window of its chain, the random stream of its step and (top, left, height, width).
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_before",
        "_make",
        "_real",
        "chain",
        "exif",
        "header",
        "is_converted",
        "is_loaded",
        "is_rgb",
        "notes",
        "source",
        "states",
        "windows",
    )

    def __init__(
        self,
        source: Source,
        chain: Chain,
        notes: Notes,
        make: Callable[[Any], Any],
        before: Later | None = None,
        is_rgb: bool = False,
    ):
        self.source, self.chain, self.notes, self.is_rgb = source, chain, notes, is_rgb
        self.is_converted = self.is_loaded = False
        self.header: tuple[str, tuple[int, int], str | None] | None = None
        self.exif: Any = None
        self.states: Reserved | None = None
        self.windows: Windows = ()
        self._make: Callable[[Any], Any] | None = make
        self._before, self._real = before, None
        self._after: list[weakref.ref[Later]] = []

    @property
    def is_real(self) -> bool:
        return self._make is None

    def value(self, why: str) -> Any:
        """The real one; ``why`` is for explain(). What is not real becomes so now, with all that it was made of and all
        that was made of it: who gets this may change it in place, and what was made of it before must not have that
        change, and must have the same draws. Raises whatever making it raises."""
        with _lock:
            if self._before is not None:
                self._before.value(why)
            self._become_real(why)
            return self._real

    def _become_real(self, why: str) -> None:
        if self._make is not None:
            before, make = self._before, self._make
            with nullcontext() if self.states is None else self.states.drawing():
                self._real = make(None if before is None else before._real)
            if self.is_loaded and isinstance(self._real, Image.Image):
                self._real.load()
            self._make = self._before = None
            self.notes.became_real(why)
        after, self._after = self._after, []
        for ref in after:
            if (later := ref()) is not None:
                later._become_real(why)

    def sized(self) -> Chain:
        """Its chain; where its windows have sizes that give images of one size, the chain for these sizes."""
        if not self.windows:
            return self.chain
        *_, first = self.line()
        return self.chain.of_sizes(first.chain, tuple((height, width) for _, (_, _, height, width) in self.windows))

    def line(self) -> Iterator[Later]:
        """Itself, what it is made of, and so on."""
        later: Later | None = self
        while later is not None:
            yield later
            later = later._before

    def then(self, chain: Chain | None, make: Callable[[Any], Any]) -> Later | None:
        """What ``make`` gives of it, later; None without a chain, and where it is real, and may have been changed in
        place since."""
        with _lock:
            if chain is None or self.is_real:
                return None
            self.is_loaded = True
            made = Later(self.source, chain, self.notes, make, self, self.is_rgb)
            made.header, made.windows = self.header, self.windows
            self._after.append(weakref.ref(made))
            return made
