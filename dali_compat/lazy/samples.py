"""Samples that a data set has returned, with real images, or nothing in the places of those that DALI is to make."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import getweakrefcount, ref

import torch

from .decoders import LazyBytes
from .deferred import Deferred, Notes
from .images import LazyFile, LazyImage, later_of
from .record import Recording
from .tensors import KINDS, LazyStack

TENSORS = set(KINDS.values())
IMAGES = {LazyImage, LazyFile}
STAND_INS = TENSORS | IMAGES | {LazyBytes, LazyStack}
_DICTS = {dict, OrderedDict}

Path = tuple[Any, ...]


class Wanted(NamedTuple):
    """An image of a sample that is to be made.

    Attributes:
        paths: to its places in the sample, as a rule one: indices and keys; () is the sample itself.
        record: what it is.
    """

    paths: tuple[Path, ...]
    record: Recording


class Stack(NamedTuple):
    """Images of a sample that its data set has joined.

    Attributes:
        parts: each image.
        how: "stack" or "cat", and along which dimension: as text, which default_collate makes a list of.
    """

    parts: Sequence[Any]
    how: Any

    def joined(self) -> torch.Tensor:
        """One tensor, of a sample or of a batch."""
        batched = type(self.how) is not str
        name, dim = (self.how[0] if batched else self.how).split()
        made: torch.Tensor = getattr(torch, name)(list(self.parts), int(dim) + (batched and int(dim) >= 0))
        return made


class Sample(NamedTuple):
    """The result of ``dataset[index]``.

    Attributes:
        value: of it; in the places of ``images`` others may be put.
        images: those that are to be made; () where all is real.
        stacked: ``value`` has a Stack.
    """

    value: Any
    images: tuple[Wanted, ...] = ()
    stacked: bool = False

    def finished(self, *made) -> Any:
        """The sample, with images in their places, and stacks of them."""
        filled = self.filled(*made)
        return exchanged(filled, {Stack}, Stack.joined) if self.stacked else filled

    def filled(self, *made) -> Any:
        """The sample, with images in their places."""
        value = self.value
        for wanted, image in zip(self.images, made, strict=True):
            value = _put_all(value, wanted.paths, image)
        return value


def put(value, path: Path, image) -> Any:
    """A copy of nested containers with another value at a path."""
    if not path:
        return image
    key, rest = path[0], path[1:]
    if type(value) in _DICTS:
        return type(value)((name, put(one, rest, image) if name == key else one) for name, one in value.items())
    made = [put(one, rest, image) if number == key else one for number, one in enumerate(value)]
    return _as(type(value), made)


def at(value, path: Path) -> Any:
    """Returns what nested containers have at a path."""
    for key in path:
        value = value[key]
    return value


def exchanged(value, kinds: Container[type], function: Callable[[Any], Any]) -> Any:
    """A sample, with what a function makes of what is of one of these very classes."""
    found = type(value)
    if found in kinds:
        return function(value)
    if found in _DICTS:
        return found((name, exchanged(one, kinds, function)) for name, one in value.items())
    return _as(found, [exchanged(one, kinds, function) for one in value]) if _is_sequence(found) else value


class TracedSample(NamedTuple):
    """The result of ``dataset[index]``, of which something may yet become real.

    Attributes:
        value: of it; None in the places of ``images``, so that their stand-ins go where nobody else has them.
        images: paths, as Wanted's, and what is deferred there.
        stacks: the path of each Stack, and its Deferred, which goes with the stand-in.
    """

    value: Any
    images: Sequence[tuple[tuple[Path, ...], Deferred]] = ()
    stacks: Sequence[tuple[Path, ref[Deferred]]] = ()

    def sample(self) -> Sample:
        """The sample, with what has become real since."""
        value, images = self.value, []
        for paths, later in self.images:
            if later.is_real or later.record is None:
                value = _put_all(value, paths, later.value(""))
            else:
                images.append(Wanted(paths, later.record))
        for path, of_stack in self.stacks:
            if (stack := of_stack()) is not None and stack.is_real:
                value = put(value, path, stack.value(""))
        return Sample(value, tuple(images), bool(self.stacks))


def traced(value, notes: Notes) -> TracedSample:
    """A sample that a data set gave. Its stand-ins stay deferred, but for what only the real image can be."""
    found: dict[int, tuple[Any, list[Path]]] = {}
    for path, stand_in in _found(value, ()):
        found.setdefault(id(stand_in), (stand_in, []))[1].append(path)
    beside_tensors = any(type(stand_in) in TENSORS for stand_in, _ in found.values())
    images, stacks = [], []
    for stand_in, paths in found.values():
        later = later_of(stand_in)
        if type(stand_in) is LazyStack and not later.is_real:
            value = _put_all(value, paths, Stack(stand_in._parts, stand_in._how))
            stacks += [(path, ref(later)) for path in paths]
            continue
        if beside_tensors and type(stand_in) in IMAGES and not later.is_real:
            notes.waiting.append(stand_in)  # until somebody looks
            continue
        if later.is_file:  # which has a class, a format and a filename
            later.value("gives an image as it was opened")
        if later.record is None:
            later.value("gives an image of which the header does not say enough")
        if getweakrefcount(stand_in) > 1:  # somebody may find it while the batch is asked
            notes.watched.append(stand_in)
        images.append((tuple(paths), later))
        value = _put_all(value, paths, None)
    return TracedSample(value, images, stacks)


def _put_all(value, paths: Iterable[Path], image) -> Any:
    for path in paths:
        value = put(value, path, image)
    return value


def _found(value, path: Path) -> Iterator[tuple[Path, Any]]:
    """The paths of stand-ins in a sample, and they; those of a stack behind it."""
    kind = type(value)
    if kind in STAND_INS:
        yield path, value
        parts = value._parts if kind is LazyStack and not later_of(value).is_real else ()
        for number, part in enumerate(parts):
            yield from _found(part, (*path, 0, number))
    elif kind in _DICTS or _is_sequence(kind):
        for key in value if kind in _DICTS else range(len(value)):
            yield from _found(value[key], (*path, key))


def _is_sequence(kind: type) -> bool:
    return kind in (list, tuple) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _as(kind, values: list[Any]) -> Any:
    """A list, a tuple, or a namedtuple."""
    return kind(values) if kind in (list, tuple) else kind._make(values)
