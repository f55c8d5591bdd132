"""Samples that a data set has returned, with real images, or stand-ins for those that DALI is to make."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import getweakrefcount

import torch

from .decoders import LazyBytes
from .deferred import Notes
from .images import LazyFile, LazyImage, later_of
from .record import Recording
from .tensors import KINDS, LazyStack

TENSORS = set(KINDS.values())
IMAGES = {LazyImage, LazyFile}
STAND_INS = TENSORS | IMAGES | {LazyBytes, LazyStack}
_DICTS = {dict, OrderedDict}
_OWN_REFERENCES = 2  # of what is in a container, and an argument

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
            for path in wanted.paths:
                value = put(value, path, image)
        return value

    @property
    def is_watched(self) -> bool:
        """Returns whether somebody has weak references to stand-ins, and may find them while the batch is asked."""
        return any(getweakrefcount(at(self.value, wanted.paths[0])) for wanted in self.images)

    def bare(self) -> Sample:
        """The sample, with nothing in the places of images: their stand-ins, which hold all that was done, can go."""
        return self._replace(value=self.filled(*[None] * len(self.images))) if self.images else self


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


def taken(given: list[Any], notes: Notes) -> list[Sample]:
    """The samples that a data set gave; ``given`` holds the only references to them, and is empty afterwards.

    A sample keeps the stand-ins for its images where nothing else refers to them. Where something does, a cache of the
    user's perhaps, the image is made now, so that all have the same one.
    """
    theirs: set[int] = set()
    samples = [_sample(given, number, theirs) for number in range(len(given))]
    given.clear()
    for stand_in in notes.left():
        if id(stand_in) not in theirs:
            later_of(stand_in).value("keeps an image")
    return samples


def settled(sample: Sample) -> Sample:
    """The sample; with what its stand-ins have become, where somebody has looked at them since."""
    images = [one for one in sample.images if not later_of(at(sample.value, one.paths[0])).is_real]
    return sample if len(images) == len(sample.images) else _with(sample, tuple(images))


def all_real(sample: Sample) -> Sample:
    """The sample, as the data set itself has made it, or makes it now."""
    for wanted in sample.images:
        later_of(at(sample.value, wanted.paths[0])).value("")
    return _with(sample, ())


def _with(sample: Sample, images: tuple[Wanted, ...]) -> Sample:
    """A sample in which some stand-ins are real. What is not real yet waits until somebody looks."""
    value = exchanged(sample.value, STAND_INS, lambda one: later_of(one).value("") if later_of(one).is_real else one)
    return sample._replace(value=value, images=images)


class _Place(NamedTuple):
    """The place of a stand-in in a sample.

    Attributes:
        path: as Wanted's.
        references: to it, when it was found; around: the most to one of the containers around.
        stacked: it is in a stack.
    """

    path: Path
    stand_in: Any
    references: int
    around: int
    stacked: bool = False


def _sample(given: list[Any], number: int, theirs: set[int]) -> Sample:
    """A sample, with its stand-ins where those are not real. ``theirs`` gets the id() of each."""
    found = list(_found(given, number, ()))
    places: dict[int, list[_Place]] = {}
    for place in found:
        places.setdefault(id(place.stand_in), []).append(place)
    theirs.update(places)
    tensors = any(type(place.stand_in) in TENSORS for place in found)
    for several in places.values():
        _refuse(several, beside=tensors and type(several[0].stand_in) in IMAGES)
    images = []
    for several in places.values():
        later = later_of(several[0].stand_in)
        # images beside tensors wait until somebody looks
        if not later.is_real and later.record and not (tensors and type(several[0].stand_in) in IMAGES):
            images.append(Wanted(tuple([place.path for place in several]), later.record))
    made = Sample(given[number], tuple(images), any(place.stacked for place in found))
    if made.stacked:
        parted = exchanged(
            made.value, {LazyStack}, lambda one: one if later_of(one).is_real else Stack(one._parts, one._how)
        )
        made = made._replace(value=parted)
    return _with(made, made.images) if any(later_of(place.stand_in).is_real for place in found) else made


def _refuse(places: list[_Place], beside: bool) -> None:
    """A stand-in, in all its places, is made real where it has to be. ``beside``: it is an image beside tensors."""
    later, most = later_of(places[0].stand_in), _OWN_REFERENCES
    if places[0].references > most + len(places) - 1 or max([one.around for one in places]) > most:
        later.value("keeps an image")
    if beside:
        return
    if later.is_file:  # which has a class, a format and a filename
        later.value("gives an image as it was opened")
    if not later.is_real and later.record is None:
        later.value("gives an image of which the header does not say enough")


def _found(container, key, path: Path, around: int = 0) -> Iterator[_Place]:
    """The stand-ins, real or not, within one of a container's values."""
    kind, references = type(container[key]), sys.getrefcount(container[key])
    if kind is LazyStack and not later_of(container[key]).is_real:
        parts = container[key]._parts
        for number in range(len(parts)):
            for place in _found(parts, number, (*path, 0, number), max(around, references)):
                yield place._replace(stacked=True)
    elif kind in STAND_INS:
        yield _Place(path, container[key], references, around)
    elif kind in _DICTS or _is_sequence(kind):
        for name in container[key] if kind in _DICTS else range(len(container[key])):
            yield from _found(container[key], name, (*path, name), max(around, references))


def _is_sequence(kind: type) -> bool:
    return kind in (list, tuple) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _as(kind, values: list[Any]) -> Any:
    """A list, a tuple, or a namedtuple."""
    return kind(values) if kind in (list, tuple) else kind._make(values)
