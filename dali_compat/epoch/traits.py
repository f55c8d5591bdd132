"""Properties of a loader that a state has to match, and validation of the state's fields."""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import torch
import torch.utils.data as data

from ..data.arrays import holds_arrays, images_of, raw_targets
from ..data.base_datasets import image_leaves_of, is_store, leaves_of, locate, sample
from ..data.hugging_face import DALIHuggingFace
from ..data.readers import reader_of
from ..data.sources import is_record
from ..errors import Unsupported
from ..routes import FallbackRoute, Route, in_processes
from ..routes.dali import DaliRoute
from ..runtime.messages import repr_of
from .progress import object_states
from .samplers import BASE64, checkpoint_generators, distributed, sampler_generators, samplers_of

_LOOKED_AT = 100  # number of samples in the checksum of a data set

Traits = dict[str, Any]


def traits(loader, route: Route) -> Traits:
    """Return the properties of a loader that a state must match to be loaded."""
    dataset = loader.dataset
    length = len(dataset) if hasattr(dataset, "__len__") else None
    samples = "" if length is None else f" of {length} samples, {_checksum(dataset, length)}"
    own = is_own(dataset)
    return {
        "data set": type(dataset).__name__ + samples,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": " of ".join(map(_sampler, samplers_of(loader))),
        "transforms" if own else "transform": _callables(dataset) if own else _transform(dataset, route),
        "route": _route(loader, route),
    }


def is_own(dataset: Any) -> bool:
    """Return True for a custom data set. Its route is chosen by a trial."""
    try:
        return not image_leaves_of(dataset)
    except Unsupported:
        return not any(map(holds_arrays, leaves_of(dataset)))


def differences(loader, before: Traits, now: Traits) -> tuple[list[str], list[str]]:
    """Return two lists of differences: those that affect samples, and those that only affect random numbers."""
    found = {
        name: f"{name}: was {before.get(name)}, is {value}"
        for name, value in now.items()
        if before.get(name, value if name == "transforms" else None) != value
    }
    routes = [str(before.get("route")), now["route"]]
    indexed = not isinstance(loader.dataset, data.IterableDataset)
    same = indexed and (is_own(loader.dataset) or len({route.partition(",")[0] for route in routes}) == 1)
    drawn = [found.pop("route")] if same and "route" in found else []
    return list(found.values()), drawn


def _route(loader, route: Route) -> str:
    """Return the name of the route, with the number of workers if that affects the samples."""
    name = "torchvision" if isinstance(route, FallbackRoute) else "DALI" if isinstance(route, DaliRoute) else "resident"
    if name == "torchvision" or isinstance(loader.dataset, data.IterableDataset):
        return f"{name}, num_workers={loader.num_workers}"
    if in_processes(route):  # without workers, samples draw from the main process's generators
        return f"{name}, {'with' if loader.num_workers else 'without'} workers"
    return name


def _checksum(dataset: Any, length: int) -> str:
    """Return a checksum of the file names or pixels, and of the targets. At most _LOOKED_AT samples are read."""
    total = 0
    for number in range(min(length, _LOOKED_AT)):
        index = number * length // min(length, _LOOKED_AT)
        try:
            total = zlib.crc32(_trait(*locate(dataset, index)), total)
        except Exception:  # a custom data set
            continue
    return f"{total:08x}"


def _trait(leaf: Any, index: int) -> bytes:
    if holds_arrays(leaf):
        return images_of(leaf)[index].numpy().tobytes() + repr(raw_targets(leaf)[index]).encode()
    if reader_of(leaf) is None and not is_store(leaf):
        return b""
    source, target = sample(leaf, index)
    name = os.path.basename(str(source)) if is_record(source) else source.removeprefix(str(getattr(leaf, "root", "")))
    if isinstance(target, torch.Tensor):  # str() abridges long tensors
        target = target.tolist()
    trait = f"{name} {target}".encode()
    return trait + source.bytes().tobytes() if isinstance(leaf, DALIHuggingFace) and is_record(source) else trait


def _sampler(sampler: Any) -> str:
    names = "replacement", "num_samples", "seed", "shuffle", "drop_last"
    given = {name: value for name in names if isinstance(value := getattr(sampler, name, None), (bool, int))}
    if isinstance(sampler, data.distributed.DistributedSampler):
        del given["num_samples"]  # depends on the rank
    return f"{type(sampler).__name__}({', '.join(f'{name}={value}' for name, value in given.items())})"


def _transform(dataset: Any, route: Route) -> str:
    if in_processes(route):  # route.plans has only the first sample's plans
        return _without_addresses(repr_of(getattr(dataset, "transform", None)))
    assert not isinstance(route, FallbackRoute)
    lines = [[line.transform for one in (plan, *plan.views) for line in one.lines] for plan in route.plans]
    steps = _without_addresses(repr_of([(plan.exact, plan.steps) for plan in route.plans]))
    return _without_addresses(" and ".join(map(", ".join, lines))) + f", {zlib.crc32(steps.encode()):08x}"


def _callables(dataset: Any) -> str:
    """Return text that lists the callable attributes of custom data sets, such as transforms."""
    own = [vars(leaf).items() if hasattr(leaf, "__dict__") else () for leaf in leaves_of(dataset)]
    return _without_addresses(
        ", ".join(f"{name}={repr_of(one)}" for leaf in own for name, one in leaf if callable(one))
    )


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


_MAYBE = dict | None
_COUNT = range(2**63)
_EPOCH = {"number": _COUNT, "seed": [_COUNT, _COUNT], "places": [_COUNT] * 3, "at_iter": _MAYBE, "at_first": _MAYBE}
_EPOCH |= {"given": _COUNT, "samples": _COUNT, "drawn": _COUNT, "exhausted": bool, "last": [_COUNT, _COUNT]}
_EPOCH |= {"sampler": object}
_STATE = {
    "of": {"data set": str, "batch_size": int | None, "drop_last": bool, "sampler": str, "route": str},
    "ranks": [_COUNT, _COUNT],
    "begun": _COUNT,
    "epoch": _MAYBE,
    "laps": list | tuple | None,
    "sampler": object,
    "now": dict,
    "errors": {"epoch": range(-1, 2**63), "count": _COUNT, "found": [[str, object, _COUNT, str]]},
}


def check_state(state: Any, loader: Any = None) -> None:
    """Raise ValueError if a field of a state is invalid. If ``loader`` is given, check the states of its generators and
    objects, too."""
    _check(state, _STATE, "")
    _check(under_way := state.get("under_way", False), bool, "under_way")  # absent in version 1.1
    for name, kind in (("epoch", _EPOCH), ("laps", [_COUNT, _COUNT])):
        if state[name] is not None or (under_way and name == "epoch"):
            _check(state[name], kind, name)
    epoch = state["epoch"] or {}
    if epoch:
        _check(epoch["last"][0], range(epoch["samples"] + 1), "epoch.last[0]")
    _check(users := epoch.get("users", {}), dict, "epoch.users")
    if loader is None:
        return
    if epoch and distributed(loader) is None:
        _check(epoch["places"][0], range(1), "epoch.places[0]")
    for name in [name for name, now in object_states(loader).items() if isinstance(now, dict)]:
        for field, one in (("", state), ("epoch.", epoch), ("epoch.users.", users)):
            _check(one.get(name), _MAYBE, field + name)  # its content is the user's
    drawn_from = sampler_generators(loader, True).states() | checkpoint_generators(loader, True).states()
    found = {"now": state["now"]} | {f"epoch.{name}": epoch.get(name) or {} for name in ("at_iter", "at_first")}
    for field, states in found.items():
        for name in states.keys() & drawn_from.keys():
            kind = drawn_from[name]
            is_pythons = isinstance(kind, list) and len(kind) == 3  # the third element, gauss_next, may be None
            _check(states[name], [*kind[:2], float | None] if is_pythons else kind, f"{field}.{name}")


def _check(value: Any, kind: Any, field: str) -> None:
    """Raise ValueError if a field's value does not match its kind.

    A kind is a class, a range of integers, a dict of kinds, or a list with either one kind for all elements or one kind
    per element. A kind may also be an example value. A number then matches numbers of its class, base64 text matches
    base64 text of its length, and other text matches only itself.
    """
    parts: list[tuple[Any, Any, Any]] = []
    if isinstance(kind, dict):
        right = isinstance(value, dict) and kind.keys() <= value.keys()
        parts = [(value[name], one, f".{name}") for name, one in kind.items()] if right else []
    elif isinstance(kind, list):
        right = isinstance(value, (list, tuple)) and len(kind) in (1, len(value))
        kinds = kind * len(value) if right and len(kind) == 1 else kind
        parts = [(one, kinds[row], f"[{row}]") for row, one in enumerate(value)] if right else []
    elif isinstance(kind, str):
        same = BASE64, len(kind)
        right = value == kind or (
            kind.startswith(BASE64) and isinstance(value, str) and (value[:7], len(value)) == same
        )
    elif isinstance(kind, range):
        right = type(value) is int and value in kind
    else:
        right = isinstance(value, type(kind) if isinstance(kind, (int, float)) else kind)
    if not right:
        name = field.lstrip(".") or "the whole state"
        raise ValueError(f"invalid loader state: {name} is {value!r:.80}; pass the unchanged result of state_dict()")
    for one, its, name in parts:
        _check(one, its, field + name)
