"""look_through(): a callable is called on a placeholder, twice, and what comes back says what it does."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from ..runtime.messages import repr_of
from .sandbox import Sandbox
from .standins import Placeholder, Refused, Untouchable, kept

_FUNCTIONS = FunctionType, BuiltinFunctionType


class Unseen(Exception):
    """It is not certain what a callable does. The text says why; it is empty where no known transform is applied."""


class Seen(NamedTuple):
    """The transforms that a callable applies, and the structure that it returns.

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


def look_through(function, known: Callable[[type], bool]) -> Seen:
    """Finds what a callable does. ``known``: whether a class is one of known transforms.

    Raises:
        Unseen: it does something else, too, or may.
    """
    seen, again = _attempt(function, known), _attempt(function, known)
    if not _alike(seen, again):
        raise Unseen("it does not do the same twice")
    if not any(seen.paths):
        raise Unseen("")
    return seen


def _attempt(function, known: Callable[[type], bool]) -> Seen:
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


def _structure(result, paths: list[tuple[int, ...]]) -> Any:
    """The result with numbers of paths in it."""
    kind = type(result)
    if kind is Placeholder:
        paths.append(kept(result, "_path"))
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
    return same and all(a is b or (type(a) is type(b) and repr_of(a) == repr_of(b)) for a, b in pairs)
