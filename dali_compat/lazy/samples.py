"""What came back of a data set: samples, each with the one stand-in that DALI is to make, or real."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

from ..data.sources import Source
from .chains import Chain
from .images import LazyImage, is_certainly_rgb, later_of
from .later import Notes
from .tensors import LazyTensor, LazyTVImage

TENSORS = {LazyTensor, LazyTVImage}
STAND_INS = TENSORS | {LazyImage}
_DICTS = {dict, OrderedDict}
_OWN_REFERENCES = 2  # of what is in a container, and an argument

Path = tuple[Any, ...]


class Sample(NamedTuple):
    """What ``dataset[index]`` gave.

    Attributes:
        value: of it; of one with a stand-in for the image another image may be put in its place.
        path: to the stand-in: indices and keys; () is the value itself, and None where all is real.
        chain, source: what makes the image, and of what.
    """

    value: Any
    path: Path | None = None
    chain: Chain | None = None
    source: Source | None = None

    def filled(self, image: Any) -> Any:
        """The sample, with an image in its place."""
        return self.value if self.path is None else put(self.value, self.path, image)


def put(value: Any, path: Path, image: Any) -> Any:
    """A copy of nested containers with another value at a path."""
    if not path:
        return image
    key, rest = path[0], path[1:]
    if type(value) in _DICTS:
        return type(value)((name, put(one, rest, image) if name == key else one) for name, one in value.items())
    made = [put(one, rest, image) if number == key else one for number, one in enumerate(value)]
    return made if type(value) is list else _as(type(value), made)


def at(value: Any, path: Path) -> Any:
    """What nested containers have at a path."""
    for key in path:
        value = value[key]
    return value


def exchanged(value: Any, kinds: Container[type], function: Callable[[Any], Any]) -> Any:
    """A sample, with what a function makes of what is of one of these very classes."""
    found = type(value)
    if found in kinds:
        return function(value)
    if found in _DICTS:
        return found((name, exchanged(one, kinds, function)) for name, one in value.items())
    if _is_sequence(found):
        made = [exchanged(one, kinds, function) for one in value]
        return made if found is list else _as(found, made)
    return value


def taken(given: list[Any], notes: Notes) -> list[Sample]:
    """The samples that a data set gave; ``given`` holds the only references to them, and is empty afterwards.

    A sample keeps the stand-in for its image where nothing else refers to that. Where something does, a cache of the
    user's perhaps, the image is made now, so that all have the same one.
    """
    samples = [_sample(given, number) for number in range(len(given))]
    given.clear()
    wanted = {id(stand_in) for sample, stand_in in samples if stand_in is not None}
    spare = {id(stand_in) for sample, _ in samples for stand_in in stand_ins(sample.value)}
    for stand_in in notes.left():
        if id(stand_in) not in wanted | spare:
            later_of(stand_in).value("keeps an image")
    return [sample for sample, _ in samples]


def settled(sample: Sample) -> Sample:
    """The sample; with what its stand-in has become, where somebody has looked at it since."""
    if sample.path is None or not later_of(at(sample.value, sample.path)).is_real:
        return sample
    return Sample(exchanged(sample.value, STAND_INS, _real))


def _sample(given: list[Any], number: int) -> tuple[Sample, Any]:
    """A sample, and its stand-in; None where all is real."""
    found = list(_found(given, number, ()))
    tensors = [one for one in found if type(one[1]) is not LazyImage]
    chosen = tensors or found
    if len(chosen) > 1:
        for _, stand_in, _ in chosen:
            later_of(stand_in).value("gives several images a sample")
    elif chosen:
        path, stand_in, references = chosen[0]
        later = later_of(stand_in)
        if references > _OWN_REFERENCES:
            later.value("keeps an image")
        if not later.chain.transforms and not later.is_converted:  # which has a class, a format and a filename
            later.value("gives an image as it was opened; convert it")
        if not later.is_real and is_certainly_rgb(later):
            return Sample(given[number], path, later.chain, later.source), stand_in
        later.value("gives an image that is not RGB; convert it")
    return Sample(exchanged(given[number], STAND_INS, _real)), None


def _found(container: Any, key: Any, path: Path, most: int = 0) -> Iterator[tuple[Path, Any, int]]:
    """(path, stand-in, references to it or to one of the containers around) of those that are not real, within one of a
    container's values."""
    kind, most = type(container[key]), max(most, sys.getrefcount(container[key]))
    if kind in STAND_INS:
        if not later_of(container[key]).is_real:
            yield path, container[key], most
    elif kind in _DICTS:
        for name in container[key]:
            yield from _found(container[key], name, (*path, name), most)
    elif _is_sequence(kind):
        for number in range(len(container[key])):
            yield from _found(container[key], number, (*path, number), most)


def stand_ins(value: Any) -> Iterator[Any]:
    """Stand-ins in a sample, real or not."""
    kind = type(value)
    if kind in STAND_INS:
        yield value
    elif kind in _DICTS or _is_sequence(kind):
        for one in value.values() if kind in _DICTS else value:
            yield from stand_ins(one)


def _real(stand_in: Any) -> Any:
    """What is in its place in a sample. PIL's, beside tensors, may wait until somebody looks."""
    later = later_of(stand_in)
    return later.value("") if later.is_real or type(stand_in) is not LazyImage else stand_in


def _is_sequence(kind: type) -> bool:
    return kind in (list, tuple) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _as(kind: Any, values: list[Any]) -> Any:
    """A tuple, or a namedtuple."""
    return tuple(values) if kind is tuple else kind._make(values)
