"""Describes a batch of an epoch, and makes it once more."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..data.arrays import target
from ..data.base_datasets import Images, locate, sample
from ..data.header import GRAY, UNREADABLE
from ..data.headers import headers_of
from ..ops.draws import ImageTooSmall, compute
from ..plan import Plan
from ..randoms import Randoms
from ..routes.choose import Route, StockRoute
from ..routes.resident import ResidentRoute
from .generators import of_loader
from .history import History
from .on_error import Errors
from .progress import Progress
from .stats import Stats


class SampleDescription(NamedTuple):
    """Describes the sample that was originally requested, before on_error replaced it.

    Attributes:
        index: in the data set, as the sampler gave it.
        path: its file; of an archive file and byte; None where it has none.
        target: before target_transform; None where only the data set knows.
        size: (height, width) of the image in pixels, before its transform; None where it is not known.
        place: in the epoch's order over all ranks. Its random numbers follow from that and the seed.
        seed: of the epoch.
        drawn: (step, arguments) of each step of its transform that has some of its own: windows, angles, flags; of one
            view after another.

    Examples:
        >>> loader = DataLoader(DALIImageFolder("train", transform), batch_size=4, device="cpu")
        >>> batches = list(loader)
        >>> described = loader.describe(batch=1)[0]
        >>> described.index, described.target, described.size
        (4, 1, (48, 64))
    """

    index: Any
    path: str | None
    target: Any
    size: tuple[int, int] | None
    place: int
    seed: int
    drawn: list[tuple[str, dict[str, Any]]]


def replay(loader, route: Route, batch: int, number: int | None) -> Any:
    """The batch once more.

    Raises:
        LookupError: there was no such epoch, it is not known any more, or it had no such batch.
    """
    twin = copy.copy(loader)
    errors = Errors(loader.on_error, loader.on_error_in_python)
    vars(twin).update(_errors=errors, _stats=Stats(), _history=History(), _route=route)
    with _as_they_are(loader):
        progress = _at(loader, route, batch, number)
        first = progress.given
        twin._history.take(progress)
        try:
            iterator = twin._get_iterator()
            loader._route = twin._route  # which has taken over what the one before had
            made = next(iterator)
        except StopIteration:
            raise LookupError(f"epoch {progress.number} has no batch {batch}") from None
        if progress.given > first + 1:
            raise LookupError(f"of batch {batch} of epoch {progress.number} nothing was left")
        return made


def describe(loader, route: Route, batch: int, number: int | None) -> list[SampleDescription]:
    """Returns what each sample of the batch was. Raises as replay()."""
    with _as_they_are(loader):
        progress = _at(loader, route, batch, number)
        progress.begin_again()
        indices = progress.drawn_again(loader, iter(loader._index_sampler))
        try:
            index = next(indices)
        except StopIteration:
            raise LookupError(f"epoch {progress.number} has no batch {batch}") from None
    rows = list(index) if loader._auto_collation else [index]
    return [
        _described(loader, route, index, progress.rank_order.place_of(progress.samples + row), progress.seed)
        for row, index in enumerate(rows)
    ]


def _at(loader, route: Route, batch: int, number: int | None) -> Progress:
    if batch < 0:
        raise LookupError(f"batches are counted from 0, not {batch}")
    beginning = loader._history.beginning(number)
    if beginning["at_first"] is None:
        raise LookupError(f"epoch {beginning['number']} has had no batch yet")
    return Progress.at_batch(loader, beginning, batch, isinstance(route, StockRoute) and loader.num_workers > 0)


@contextmanager
def _as_they_are(loader) -> Iterator[None]:
    """Generators are afterwards what they were before."""
    generators = of_loader(loader, True)
    before = generators.states()
    try:
        yield
    finally:
        generators.set(before)


def _described(loader, route: Route, index: Any, place: int, seed: int) -> SampleDescription:
    index = index.__index__() if hasattr(index, "__index__") else index
    known = SampleDescription(index, None, None, None, place, seed, [])
    try:
        leaf, local = locate(loader.dataset, index)
    except Exception:  # it raises in its batch, or is no data set of ours
        return known
    if isinstance(route, ResidentRoute):
        return _with_draws(known._replace(target=target(leaf, local)), route.held[id(leaf)].plan)
    if not isinstance(leaf, Images):
        return known
    try:
        source, label = sample(leaf, local)
    except Exception:  # one of torchvision's that nobody reads here
        return known
    known = known._replace(path=str(source), target=label)
    if isinstance(route, StockRoute):
        return known
    at, key = np.array([local % len(leaf)]), np.array([hash(source)], np.int64)
    facts = headers_of(leaf).facts(at, key, lambda i: source)
    if facts.kinds[0] == UNREADABLE:
        return known
    height, width = facts.sizes[0].tolist()
    return _with_draws(known, route.plan_of(leaf, gray=facts.kinds[0] == GRAY), (height, width))


def _with_draws(known: SampleDescription, plan: Plan, size: tuple[int, int] | None = None) -> SampleDescription:
    """With what its plan draws, and the image's size: the plan's, unless it is given."""
    size = size or plan.takes.size
    return known._replace(size=size, drawn=_drawn(plan, size, Randoms(known.seed, known.place, 1)))


def _drawn(plan: Plan, size: tuple[int, int] | None, randoms: Randoms) -> list[tuple[str, dict[str, Any]]]:
    """Returns what was drawn for the steps that torchvision would run, up to the first function without a translation,
    view by view."""
    named: list[tuple[str, dict[str, Any]]] = []
    for chain in plan.chains:
        try:
            arrays = compute(chain.steps, np.array([size]), randoms, slice(None))
        except ImageTooSmall:
            return []
        for step, one in zip(chain.steps, arrays, strict=True):
            named.append((step.op, {name: values[0].tolist() for name, values in one.items()}))
    return [one for one in named if one[1]]
