"""Translate a transform, or a container of transforms, into a chain of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchvision.transforms import v2

from ..inspection.evaluator import NotUnderstood
from ..inspection.method_calls import ExifTranspose
from ..inspection.untranslatable import Untranslatable, describe
from ..inspection.wrappers import AppliedTransforms, find_transforms
from ..ops.translators import Gated, Nested, translated_base, translated_class, translation
from ..plan import (
    EXACT,
    NOWHERE,
    ON_BATCH,
    ON_DALI,
    ON_EACH_IMAGE,
    ON_HOST,
    UPRIGHT,
    Gate,
    ImageSpec,
    Line,
    Options,
    Step,
)

_MOST_CONTAINERS = 1000  # per translation, because a container may contain itself
_STREAMS = 1 << 16  # random streams reserved for each transform that a custom callable applies


@dataclass(frozen=True)
class Translated:
    """The steps that replace one transform. There are none if the transform does nothing."""

    transform: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Chain:
    """The steps of a transform, up to the first transform within it that has no translation."""

    takes: ImageSpec  # the input image
    translated: tuple[Translated, ...] = ()  # one entry per leaf transform, in order
    refused: Untranslatable | None = None  # why the next transform has no translation; None if all have one
    # one complete chain per image, if the last transform returns several images
    views: tuple[Chain, ...] = ()
    structure: Any = None  # structure of the last transform's output, as in AppliedTransforms
    wrapper: str = ""  # description of the last transform

    @property
    def gives(self) -> ImageSpec:
        """Spec of the image after all steps."""
        return next((t.steps[-1].gives for t in reversed(self.translated) if t.steps), self.takes)


def translate(
    transforms: Any, spec: ImageSpec = ImageSpec(), stream: int = 0, views: bool = False, turns: bool = False
) -> Chain:
    """Translate transforms into a Chain, which ends before the first transform without a translation.

    Args:
        transforms: a transform, a tuple of transforms, or None for the unchanged image.
        spec: the input image.
        stream: number of the first random stream.
        views: whether the last transform may return several images.
        turns: whether the decoder can apply the EXIF orientation. If so, a leading exif_transpose sets
            ``takes.upright`` of the result.
    """
    if transforms is None:
        return Chain(spec, (Translated("None"),))
    takes, containers = spec, 0
    waiting = list(reversed(transforms)) if isinstance(transforms, tuple) else [transforms]  # a stack, next one last
    translated: list[Translated] = []
    while waiting:
        transform = waiting.pop()
        try:
            if type(transform) is ExifTranspose and turns and not any(t.steps for t in translated):
                takes, result = takes.but(upright=True), (Step(UPRIGHT, spec),)
            else:
                result = _result(transform, spec)
            if isinstance(result, Nested):
                containers += 1
                if containers > _MOST_CONTAINERS:
                    raise Untranslatable(
                        type(transform).__name__, f"it contains itself, or more than {_MOST_CONTAINERS:,} containers"
                    )
                waiting += reversed(result.transforms)
                continue
            if isinstance(result, AppliedTransforms):
                if waiting or not views:
                    raise Untranslatable(
                        transform, "it returns several images, but is not the last transform, or is inside another"
                    )
                return _with_views(transform, result, Chain(takes, tuple(translated)))
            if isinstance(result, Gated):
                entries = _gated(result, spec, stream)
            else:
                entries = [Translated(describe(transform), _numbered(tuple(result), stream))]
        except Untranslatable as error:
            return Chain(takes, tuple(translated), error.with_traceback(None))
        translated += entries
        steps = [s for entry in entries for s in entry.steps]
        if steps:
            spec, stream = steps[-1].gives, max(s.stream for s in steps) + 1
    return Chain(takes, tuple(translated))


def _result(transform: Any, spec: ImageSpec) -> Any:
    """Return the translation of a transform: its steps, Nested or Gated, or AppliedTransforms if it returns several
    images. Raise Untranslatable if it has none."""
    if spec.kind == "array":
        raise Untranslatable(transform, "it gets a NumPy array here", "put it before ToNumpy()")
    if translated_class(type(transform)) is None:
        return _found_transforms(transform)
    return translation(transform, spec)


def _found_transforms(transform: Any) -> Nested | AppliedTransforms:
    """Return the transforms that a custom callable applies. The result is Nested for one image, and AppliedTransforms
    for several. Raise Untranslatable if the callable is not understood."""
    if not callable(transform) or (isinstance(transform, type) and translated_class(transform) is not None):
        raise Untranslatable(transform, "it is not a transform", "pass an object such as ToTensor() or Compose([...])")
    try:
        only_lambd = type(transform) is v2.Lambda and transform.types == (object,)  # only calls the function
        function = transform.lambd if only_lambd else transform
        seen = find_transforms(function, lambda kind: translated_class(kind) is not None)
        return seen if seen.chain is None else Nested(seen.chain)
    except NotUnderstood as unseen:
        why = f", and {unseen}" if str(unseen) else ""
    # raised outside of the except block, because the error's context would keep the caller's objects alive
    kind, how = type(transform), "register a translation of its class with dali_compat.register()"
    if kind.__module__ in ("builtins", "functools") or kind.__name__ == "Lambda":
        how = "write it as a class, and register a translation of that class with dali_compat.register()"
    remedy = f"to have it run on batches, {how}"
    base = translated_base(kind)
    of_base = base and f"it may behave differently from its base class {base.__name__}"
    raise Untranslatable(transform, (of_base or "no translation is registered for it") + why, remedy)


# ---- steps


def _numbered(steps: tuple[Step, ...], stream: int) -> tuple[Step, ...]:
    """Return the steps with random streams numbered from ``stream``. A step with ``shares`` uses the stream of the
    previous step."""
    numbered: list[Step] = []
    for s in steps:
        stream += not s.shares and bool(numbered)
        numbered.append(s.but(stream=stream))
    return tuple(numbered)


def _gated(container: Gated, spec: ImageSpec, stream: int) -> list[Translated]:
    """Translate a container that draws which branches to apply, or their order.

    The first step draws. The steps of all branches follow, each with the Gate of its branch. The last step is an
    identity with the ImageSpec of the container's result.
    """
    choose = Translated(container.name, (Step("choose", spec, draw=container.draw, stream=stream),))
    entries, gives = _branches(container, spec, stream)
    if container.in_order and set(gives) != {spec}:  # in random order, a branch may get the result of another branch
        entries, gives = _branches(container, spec.but(size=None), stream)
        gives.append(spec)
    if not container.complete:
        gives.append(spec)
    if len({g.but(size=None) for g in gives}) > 1:
        what = "its transforms return images that differ in dtype, channels, class or normalization"
        raise Untranslatable(container.name, what)
    sizes = {g.size for g in gives}
    after = gives[0].but(size=sizes.pop() if len(sizes) == 1 else None)
    last = max(s.stream for entry in (choose, *entries) for s in entry.steps)
    return [choose, *entries, Translated("", (Step("identity", after, stream=last),))]


def _branches(container: Gated, spec: ImageSpec, stream: int) -> tuple[list[Translated], list[ImageSpec]]:
    """Return the steps of all branches, and the ImageSpec after each branch. ``spec`` describes their input."""
    entries: list[Translated] = []
    gives = []
    for branch in container.branches:
        first = max((s.stream for entry in entries for s in entry.steps), default=stream) + 1
        chain = translate(branch.transforms, spec, first)
        if chain.refused:
            raise Untranslatable(container.name, str(chain.refused), within=chain.refused)
        gate = Gate(stream, branch.value, branch.rank)
        entries += [
            Translated(t.transform, tuple(s.but(when=(gate, *s.when)) for s in t.steps)) for t in chain.translated
        ]
        gives.append(chain.gives)
    return entries, gives


# ---- views


def _with_views(transform: Any, seen: AppliedTransforms, start: Chain) -> Chain:
    """Return ``start``, extended by one chain for each image that the transform returns."""
    views = tuple(_chain_of_path(seen, path, start) for path in seen.paths)
    refused = next((view.refused for view in views if view.refused), None)
    return replace(start, refused=refused, views=views, structure=seen.structure, wrapper=describe(transform))


def _chain_of_path(seen: AppliedTransforms, path: tuple[int, ...], start: Chain) -> Chain:
    """Return ``start``, followed by the transforms with the indices ``path`` in ``seen.transforms``."""
    chain = start
    for at in path:
        # random streams by index: images that share a transform share its random numbers
        part = translate((seen.transforms[at],), chain.gives, _STREAMS * (at + 1))
        chain = replace(part, takes=start.takes, translated=(*chain.translated, *part.translated))
        if part.refused:
            break
    return chain


# ---- lines of explain()


def lines_of(chain: Chain, ordered, split: int, options: Options, two_pass: bool) -> tuple[Line, ...]:
    """Return the lines of explain(). DALI runs ``ordered[:split]``, and torch runs the other steps."""
    on_batch, size = {}, chain.takes.size
    for at, s in enumerate(ordered):
        if at >= split:
            on_batch[s.stream, s.gives] = ON_BATCH if size else ON_EACH_IMAGE
        # the spec of a pixelwise step ignores a crop that was moved before the step
        size = s.gives.size or (size if s.operation.commutes or s.operation.unchanged else None)
    lines = []
    for t in chain.translated:
        places, ops, fidelity = [], [], []
        for s in t.steps:
            if s.operation.unchanged and s.op != UPRIGHT:
                continue
            where = ON_HOST if s.op == "choose" else on_batch.get((s.stream, s.gives), ON_DALI)
            places.append(where)
            ops.append(s.op if s.draw is None or s.draw.name in (s.op, "bernoulli") else f"{s.op} ({s.draw.name})")
            fidelity.append(s.operation.fidelity(s, where == ON_DALI, options, two_pass))
        where = " + ".join(dict.fromkeys(places)) or NOWHERE
        notes = ", ".join(dict.fromkeys(f for f in fidelity if f != EXACT)) or EXACT
        if t.transform:
            lines.append(Line(t.transform, ", ".join(dict.fromkeys(ops)) or "nothing to do", where, notes))
    return tuple(lines)
