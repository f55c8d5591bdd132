"""A helper: what a callable without a translation does, if it only applies known transforms to the image.

It is asked with a placeholder in place of the image, twice, in a sandbox (sandbox.py). What comes back, one placeholder
or a structure of these, is what it does, unless it has done anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from ..plan import text_of
from .sandbox import Placeholder, Sandbox
from .untouchable import Refused, Untouchable, of

_FUNCTIONS = FunctionType, BuiltinFunctionType
_STREAMS = 1 << 16  # of one application


class Unseen(Exception):
    """It is not certain what a callable does; says why, or nothing where it applies no known transform."""

    def __str__(self) -> str:
        return f", and {super().__str__()}" if self.args[0] else ""


class Seen(NamedTuple):
    """What a callable does.

    Attributes:
        structure: of its result: lists, tuples and dicts of numbers of paths; 0 where it gives one image.
        paths: of each image that it gives the applications that make it, by their numbers.
        transforms: that are applied, in the order of the applications.
    """

    structure: Any
    paths: tuple[tuple[int, ...], ...]
    transforms: tuple[Any, ...]

    @property
    def chain(self) -> tuple[Any, ...] | None:
        """The transforms of the one image that it gives; None where it gives several."""
        return tuple(self.transforms[at] for at in self.paths[0]) if self.structure == 0 else None


def look_through(function: Any, known: Callable[[type], bool]) -> Seen:
    """``known``: whether a class is one of known transforms.

    Raises:
        Unseen: it does something else, too, or may.
    """
    seen, again = _attempt(function, known), _attempt(function, known)
    if not _alike(seen, again):
        raise Unseen("it does not do the same twice")
    if not any(seen.paths):
        raise Unseen("")
    return seen


def chains_of(seen: Seen, start: Any, translate: Callable[..., Any]) -> list[Any] | None:
    """The chain (registry.py) of each image, beginning with ``start``; None where one application that has no
    translation is a part of several. ``translate`` is the registry's.

    An application has random streams of its own, so several images that have gone through it share what it has drawn.
    """
    used = Counter(at for path in seen.paths for at in path)
    chains = []
    for path in seen.paths:
        chain = start
        for place, at in enumerate(path):
            part = translate((seen.transforms[at],), chain.gives, _STREAMS * (at + 1))
            if part.functions and used[at] > 1:
                return None
            if part.functions:  # and so what comes after
                part = translate(tuple(seen.transforms[i] for i in path[place:]), chain.gives, _STREAMS * (at + 1))
            chain = replace(part, takes=start.takes, translated=(*chain.translated, *part.translated))
            if part.functions:
                break
        chains.append(chain)
    return chains


def _attempt(function: Any, known: Callable[[type], bool]) -> Seen:
    sandbox = Sandbox(known)
    paths: list[tuple[int, ...]] = []
    try:
        name = function.__name__ if type(function) in _FUNCTIONS else type(function).__name__
        asked = sandbox.stand_in(function, name)
        if type(asked) is Untouchable:  # it has no code that can be run
            raise Refused("")
        structure = _structure(asked(Placeholder(sandbox)), paths)
        changed = sandbox.changed
    except Refused as refused:
        raise Unseen(str(refused)) from None
    except Exception as error:
        raise Unseen(f"it raises {type(error).__name__} where it is asked what it does") from None
    else:
        if changed:
            raise Unseen(f"it changes {changed}")
        return Seen(structure, tuple(paths), tuple(transform for transform, _ in sandbox.applications))
    finally:
        sandbox.end()


def _structure(result: Any, paths: list[tuple[int, ...]]) -> Any:
    """The result with numbers of paths in it."""
    kind = type(result)
    if kind is Placeholder:
        paths.append(of(result, "_made"))
        return len(paths) - 1
    if kind in (list, tuple):
        return kind([_structure(one, paths) for one in result])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(_structure(one, paths) for one in result))
    if kind is dict and all(type(key) in (str, int) for key in result):
        return {key: _structure(one, paths) for key, one in result.items()}
    raise Refused(f"it gives something that is no image: {kind.__name__.lower()}")


def _alike(one: Seen, other: Seen) -> bool:
    same = one.structure == other.structure and one.paths == other.paths
    pairs = zip(one.transforms, other.transforms, strict=False)
    return same and all(a is b or (type(a) is type(b) and text_of(a) == text_of(b)) for a, b in pairs)
