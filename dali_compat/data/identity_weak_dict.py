"""Something that is kept for an object as long as that lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class IdentityWeakDict(Generic[T]):
    """Like a WeakKeyDictionary, by identity: a data set may not be hashable."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref, T]] = {}

    def get(self, owner: Any, make: Callable[[], T]) -> T:
        """Returns what is kept for an object; what ``make`` gives, where that is nothing yet."""
        key = id(owner)
        known = self._kept.get(key)
        if known is None or known[0]() is not owner:
            known = weakref.ref(owner, lambda gone: self._forget(key, gone)), make()
            self._kept[key] = known
        return known[1]

    def put(self, owner: Any, value: T) -> None:
        """Keep another."""
        key = id(owner)
        self._kept[key] = weakref.ref(owner, lambda gone: self._forget(key, gone)), value

    def _forget(self, key: int, gone: weakref.ref) -> None:
        if key in self._kept and self._kept[key][0] is gone:
            del self._kept[key]
