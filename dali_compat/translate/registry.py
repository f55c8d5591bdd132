"""A helper: which transform classes translate, by exact type: a user's subclass of Resize is not a Resize."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ..draws import is_random
from ..plan import Draw, Gate, ImageSpec, Step, draw
from .fidelity import EXACT
from .hints import instead
from .replaced import refuse_replaced
from .understood import root
from .untranslatable import Untranslatable, describe
from .wrappers import Seen, Unseen, chains_of, look_through

Translator = Callable[[Any, ImageSpec], Any]
T = TypeVar("T", bound=Translator)
Lowering = Callable[[Step], Step]

_TRANSLATORS: dict[type, tuple[Translator, frozenset[str]]] = {}
_LOWERED: dict[str, Lowering] = {}
_MOST_CONTAINERS = 1000  # of a translation: one may contain itself
LATER = {"timm", "timm_policies"}
"""Modules of this room that are imported when a transform of a package comes: of that name, and what this imports."""

NOTHING = object()


@dataclass(frozen=True)
class Translated:
    """A transform and the steps that it became (none where there is nothing to do)."""

    transform: str
    steps: tuple[Step, ...] = field(default=())


def register(*types: type, consumes: str = "") -> Callable[[T], T]:
    """Register a translator for exact transform types.

    The decorated function is called as ``translator(transform, spec)``, where ``spec`` is the
    :class:`~dali_compat.plan.ImageSpec` that reaches the transform, and returns the steps: what :func:`on_batch` gives.
    It may raise :class:`dali_compat.translate.Untranslatable`; the transform is then called sample by sample.

    Args:
        *types: the exact classes; a subclass is not translated.
        consumes: the constructor arguments that the translator honours, space-separated. A transform whose constructor
            has another one falls back where that differs from its default: an argument is honoured or refused.

    Returns:
        A decorator that gives the function back as it is.

    Raises:
        ValueError: where a type is registered already.
    """

    def decorate(function: T) -> T:
        for kind in types:
            if kind in _TRANSLATORS:
                raise ValueError(f"{kind.__module__}.{kind.__qualname__} has a translator already")
            _TRANSLATORS[kind] = function, frozenset(consumes.split())
        return function

    return decorate


def lowers(op: str) -> Callable[[Lowering], Lowering]:
    """Registers a function that gives a step of this op as kernels do it: by another op, with other arguments.

    The op itself stays torchvision's own way, image by image.
    """

    def decorate(function: Lowering) -> Lowering:
        _LOWERED[op] = function
        return function

    return decorate


def as_kernels_do(s: Step) -> Step:
    """A step as kernels do it."""
    return _LOWERED[s.op](s) if s.op in _LOWERED else s


def on_batch(function: Callable[..., Any], spec: ImageSpec, uniforms: int = 0, **args: Any) -> tuple[Step, ...]:
    """Steps for a translator of one's own: a function that works on whole batches.

    Args:
        function: called as ``function(images, **args)`` with images (N, C, H, W) on the loader's device, uint8 0..255
            or floating point as torchvision would have them at this place (where sizes differ: with those of one size),
            and returns the new images. A function of a module, not a lambda made by the translator: plans are compared
            by it.
        spec: the image that the function gives; where it differs from that which the translator gets,
            ``spec.but(...)``.
        uniforms: how many random numbers a sample takes. They come as ``uniforms=``, (N, uniforms) float32 in [0, 1) on
            the device: the same for one seed, whatever the device and the batch size.
        **args: passed on; hashable, or compared by identity.

    Returns:
        What a translator returns: one step.
    """
    drawn = draw("uniforms", count=uniforms) if uniforms else None
    # the user's own is what it is
    return (Step("apply", spec, (("function", function), *args.items()), drawn, fidelity=EXACT),)


@dataclass(frozen=True)
class Chain:
    """A transform, translated as far as it goes.

    Attributes:
        takes: the image before it.
        translated: one entry a leaf transform, in order.
        functions: the first transforms without a translation, in a row; () where all translate.
        brought: how many of the functions have a translation, but are called before those that have none.
        refusals: why each of these has none.
        rest: the transforms after them.
        streams: how many random streams the steps have.
        views: where the last transform gives several images, the chain of each; nothing else counts, then.
        structure, wrapper: of what it gives, as Seen has it, and its name.
        view: of which view it is the chain, from 1 on; 0 where it is none.
    """

    takes: ImageSpec
    translated: tuple[Translated, ...] = ()
    functions: tuple[Any, ...] = ()
    brought: int = 0
    refusals: tuple[Untranslatable, ...] = ()
    rest: tuple[Any, ...] = ()
    streams: int = 0
    views: tuple[Chain, ...] = ()
    structure: Any = None
    wrapper: str = ""
    view: int = 0

    @property
    def refused(self) -> Untranslatable | None:
        """Why the first has none."""
        return self.refusals[0] if self.refusals else None

    @property
    def gives(self) -> ImageSpec:
        return next((t.steps[-1].gives for t in reversed(self.translated) if t.steps), self.takes)


def translate(transforms: Any, spec: ImageSpec = ImageSpec(), stream: int = 0, views: bool = False) -> Chain:
    """Translate a transform (or a tuple of them), containers included, up to what has no translation.

    Args:
        transforms: a transform, a tuple of transforms, or None (the image as it is).
        spec: the image that reaches it.
        stream: number of its first random stream.
        views: whether the last one may give several images.
    """
    waiting = list(reversed(transforms)) if isinstance(transforms, tuple) else [transforms]
    translated: list[Translated] = []
    made_of: list[Any] = []  # the transforms of these
    functions: list[Any] = []
    entries: Sequence[Translated]
    refusals: list[Untranslatable] = []
    takes, containers = spec, 0
    while waiting:
        transform = waiting.pop()
        try:
            result = _apply(transform, spec)
            if isinstance(result, Nested):
                containers += 1
                if containers > _MOST_CONTAINERS:
                    raise Untranslatable(type(transform).__name__, "it contains itself, or too many others")
                waiting += reversed(result.transforms)
                continue
            if isinstance(result, Seen):
                if waiting or not views:
                    raise Untranslatable(transform, "it gives several images, and is not the last transform")
                start = Chain(takes, tuple(translated), streams=stream)
                return _several(transform, result, start)
            if isinstance(result, Gated):
                entries = _gated(result, spec, stream)
            else:
                entries = (Translated(describe(transform), _numbered(tuple(result), stream)),)
        except Untranslatable as error:
            refusals = [error.with_traceback(None)]
            functions.append(transform)
            break
        translated += entries
        made_of += [transform] * len(entries)
        steps = [s for entry in entries for s in entry.steps]
        if steps:
            spec, stream = steps[-1].gives, max(s.stream for s in steps) + 1
    while functions and waiting and (refusal := _refusal(waiting[-1])) is not None:
        refusals.append(refusal)
        functions.append(waiting.pop())
    kept = _first_of_views(translated) if functions else len(translated)
    called = (*made_of[kept:], *functions)
    brought = len(translated) - kept
    rest = tuple(reversed(waiting))
    return Chain(takes, tuple(translated[:kept]), called, brought, tuple(refusals), rest, stream)


def _refusal(transform: Any) -> Untranslatable | None:
    """Why a transform that comes after one without a translation has none either; None where it has one."""
    if transform is None or _translator_of(type(transform)) is not None:
        return None
    try:
        if isinstance(_looked_through(transform), Nested):
            return None
        return Untranslatable(transform, "it gives several images, after a transform without a translation")
    except Untranslatable as error:
        return error.with_traceback(None)


def _several(transform: Any, seen: Seen, start: Chain) -> Chain:
    """The chains of the images that a wrapper gives; they begin with ``start``.

    Raises:
        Untranslatable: something that is not translated is a part of more than one.
    """
    views = chains_of(seen, start, translate)
    if views is None:
        raise Untranslatable(transform, "its views share a transform without a translation")
    numbered = tuple(replace(chain, view=number) for number, chain in enumerate(views, 1))
    return Chain(start.takes, views=numbered, structure=seen.structure, wrapper=describe(transform))


def _first_of_views(translated: list[Translated]) -> int:
    """The index of the transform with which a call had better begin. A process makes five or ten views of an image
    itself, to the last bit, which saves bringing as many times the pixels there. A call cannot begin before a transform
    that draws, because the call would have other random numbers, nor before one that the user has translated."""
    for i, entry in enumerate(translated):
        if entry.steps and entry.steps[-1].gives.views:
            steps = [s for later in translated[i:] for s in later.steps]
            plain = not any(s.when or s.op in ("choose", "apply") or is_random(s) for s in steps)
            return i if plain else len(translated)
    return len(translated)


def _numbered(steps: tuple[Step, ...], stream: int) -> tuple[Step, ...]:
    """Each with a random stream of its own, or that of the step before it."""
    numbered: list[Step] = []
    for s in steps:
        stream += not s.shares and bool(numbered)
        numbered.append(s.but(stream=stream))
    return tuple(numbered)


def _gated(container: Gated, spec: ImageSpec, stream: int) -> list[Translated]:
    """The steps of every branch, each with the gate of its branch."""
    choose = Translated(container.name, (Step("choose", spec, draw=container.draw, stream=stream, fidelity=EXACT),))
    entries, gives = _branches(container, spec, stream)
    if container.in_order and set(gives) != {spec}:  # what comes first in one order comes last in another
        entries, gives = _branches(container, spec.but(size=None), stream)
        gives.append(spec)
    if not container.complete:
        gives.append(spec)
    if len({g.but(size=None) for g in gives}) > 1:
        raise Untranslatable(container.name, "its transforms give images of different kinds")
    sizes = {g.size for g in gives}
    after = gives[0].but(size=sizes.pop() if len(sizes) == 1 else None)
    last = max(s.stream for entry in (choose, *entries) for s in entry.steps)
    return [choose, *entries, Translated("", (Step("identity", after, stream=last, fidelity=EXACT),))]


def _branches(container: Gated, spec: ImageSpec, stream: int) -> tuple[list[Translated], list[ImageSpec]]:
    """The steps of the branches, and what each gives of the same image."""
    entries: list[Translated] = []
    gives = []
    for branch in container.branches:
        first = max((s.stream for entry in entries for s in entry.steps), default=stream) + 1
        chain = translate(branch.transforms, spec, first)
        if chain.functions:
            raise Untranslatable(container.name, str(chain.refused), within=chain.refused)
        gate = Gate(stream, branch.value, branch.rank)
        entries += [
            Translated(t.transform, tuple(s.but(when=(gate, *s.when)) for s in t.steps)) for t in chain.translated
        ]
        gives.append(chain.gives)
    return entries, gives


def _apply(transform: Any, spec: ImageSpec) -> Any:
    """What the translator of a transform gives."""
    if transform is None:
        return ()
    if spec.kind == "array":
        raise Untranslatable(transform, "it gets a NumPy array here", "put it before ToNumpy()")
    entry = _translator_of(type(transform))
    if entry is None:
        return _looked_through(transform)
    function, consumed = entry
    refuse_replaced(transform)
    _refuse_unconsumed(transform, consumed)
    return function(transform, spec)


def _translator_of(kind: type) -> tuple[Translator, frozenset[str]] | None:
    """Of exactly this class."""
    package = root(kind)
    if package in LATER:
        with contextlib.suppress(ImportError):  # it is something else of that name
            importlib.import_module(f"{__package__}.{package}")
    return _TRANSLATORS.get(kind)


def _looked_through(transform: Any) -> Nested | Seen:
    """What one without a translation does, if it only applies known transforms; Nested where it gives one image."""
    try:
        seen = look_through(transform, lambda kind: _translator_of(kind) is not None)
        return seen if seen.chain is None else Nested(seen.chain)
    except Unseen as unseen:
        why = str(unseen)
    # not within the block above: an error's context has frames, and these have all that the caller holds
    written = instead(transform)
    reason = _why_unknown(transform) + (f", but for {written}" if written else why)
    remedy = "to have it run on batches, dali_compat.register() a translation"
    raise Untranslatable(transform, reason, remedy)


@dataclass(frozen=True)
class Nested:
    """What a translator returns for a container: the transforms to run one after another."""

    transforms: tuple[Any, ...]


class Branch(NamedTuple):
    """Transforms for the samples for which ``value`` is chosen (at place ``rank`` of an order)."""

    value: int
    transforms: tuple[Any, ...]
    rank: int = 0


@dataclass(frozen=True)
class Gated:
    """What a translator returns for a container that chooses.

    Attributes:
        name: of the container, for people.
        draw: what chooses.
        branches: what is chosen from.
        complete: every sample goes through one of them.
        in_order: every sample goes through all of them, in an order of its own.
    """

    name: str
    draw: Draw
    branches: tuple[Branch, ...]
    complete: bool = False
    in_order: bool = False


def nested(transforms: Iterable[Any]) -> Nested:
    return Nested(tuple(transforms))


def _why_unknown(transform: Any) -> str:
    kind = type(transform)
    known = next((base for base in kind.__mro__[1:] if base in _TRANSLATORS), None)
    if known is not None:
        return f"a subclass of {known.__name__} may do something else, so only the exact class is translated"
    return "no translation is registered for it"


def _refuse_unconsumed(transform: Any, consumed: frozenset[str]) -> None:
    kind: Any = type(transform)
    for name, parameter in _parameters(kind).items():
        if name in consumed or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if getattr(transform, name, NOTHING) != parameter.default:
            raise Untranslatable(transform, f"argument {name} is not known to this version of dali_compat")


@functools.lru_cache(256)
def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """Of its constructor, which inspect takes 50 us to find; every epoch asks."""
    return inspect.signature(kind).parameters
