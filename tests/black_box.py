"""Run a data set through torch's DataLoader and through the tested one, and describe the first difference."""

from __future__ import annotations

import functools
import operator
import random
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils import data

import dali_compat

SETTLED = 0.1  # seconds after which a file counts as unchanged


def under_test(dataset: data.Dataset[Any], **options: Any) -> data.DataLoader[Any]:
    """Return the loader under test. Every comparison of these tests builds it here."""
    return dali_compat.DataLoader(dataset, device="cpu", exact=True, fallback="silent", **options)


def on_dali(loader: data.DataLoader[Any]) -> bool:
    return loader.explain().startswith("DALI")


class Limit(NamedTuple):
    """Largest allowed mean and maximum difference, in levels of 0..255, as in the table of docs/transforms.md."""

    mean: float
    maximum: float


EQUAL = Limit(0.0, 0.0)
ADDITION_ORDER = Limit(1e-4, 1.0)  # blurs and elastic fields: floats are added in another order


class Ran(NamedTuple):
    """Outcome of all epochs: batches, the exception, the data set's attributes, the generators' states, the route."""

    batches: list[Any]
    error: BaseException | None
    attributes: dict[str, Any]
    generators: tuple[Any, ...]
    on_dali: bool


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def run(
    make_loader: Callable[..., data.DataLoader[Any]],
    make_dataset: Callable[[], data.Dataset[Any]],
    options: Mapping[str, Any],
    epochs: int = 2,
) -> Ran:
    """Iterate over a new data set for some epochs. All generators start from the same seed."""
    seed_all(5)
    batches: list[Any] = []
    dataset, error, deferred = None, None, False
    try:
        dataset = make_dataset()
        loader = make_loader(dataset, **options)
        for _ in range(epochs):
            batches += loader
        deferred = make_loader is under_test and on_dali(loader)
    except Exception as raised:
        error = raised
    attributes = dict(vars(dataset)) if dataset is not None else {}
    return Ran(batches, error, attributes, (torch.get_rng_state(), random.getstate(), np.random.get_state()), deferred)


def unlike(theirs: Ran, ours: Ran, workers: int, limit: Limit = EQUAL) -> str:
    """Describe the first difference between two runs; return "" if there is none."""
    if text := _error_difference(theirs.error, ours.error, workers):
        return text
    for name in ("batches", "attributes", "generators"):
        if text := difference(getattr(theirs, name), getattr(ours, name), limit, name):
            return text
    return ""


def _error_difference(theirs: BaseException | None, ours: BaseException | None, workers: int) -> str:
    same = type(theirs) is type(ours)
    pair = _message(theirs, workers), _message(ours, workers)
    if same and len(pair[0]) == len(pair[1]) and all(map(_begins, *pair)):
        return ""
    return f"expected {_named(theirs)}, got {_named(ours)}"


def _named(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines() or [""]
    return "no error" if error is None else f"{type(error).__name__}: {lines[0]} ... {lines[-1]}"


def _begins(theirs: str, ours: str) -> bool:
    """Return True if a line is the same, or is followed by a remedy."""
    return ours == theirs or ours.startswith((f"{theirs}.", f"{theirs};", f"{theirs} ("))


def _message(error: BaseException | None, workers: int) -> Any:
    """The whole message, without a remedy that the tested loader adds. A worker's contains a traceback; only its first
    and its last line are compared."""
    text = re.sub(r"; (Add ToTensor|Return a sample)\b.*", "", str(error))
    lines = re.sub(r"0x[0-9a-fA-F]+", "0x", text).strip().splitlines() or [""]
    return (lines[0], lines[-1]) if workers else lines


def difference(theirs: Any, ours: Any, limit: Limit = EQUAL, path: str = "value") -> str:
    """Describe the first difference between two values; return "" if there is none.

    Types, dtypes, shapes, strides and attributes must be the same. NaN equals NaN.
    """
    if path.startswith("attributes") and type(theirs) is torch.Tensor and isinstance(ours, torch.Tensor):
        ours = torch.from_numpy(ours.numpy())  # the data set may keep a deferred tensor
    if type(theirs) is not type(ours):
        return f"{path}: expected {_type(theirs)}, got {_type(ours)}"
    if isinstance(theirs, torch.Tensor):
        return _tensor_difference(theirs, ours, limit, path)
    if isinstance(theirs, np.ndarray):
        return _array_difference(theirs, ours, limit, path)
    if isinstance(theirs, Image.Image):
        return _image_difference(theirs, ours, limit, path)
    if isinstance(theirs, Mapping):
        if list(theirs) != list(ours):
            return f"{path}: expected keys {list(theirs)}, got {list(ours)}"
        parts = [(f"{path}[{key!r}]", theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, Sequence) and not isinstance(theirs, (str, bytes, bytearray, range)):
        if len(theirs) != len(ours):
            return f"{path}: expected length {len(theirs)}, got {len(ours)}"
        parts = [(f"{path}[{at}]", one, other) for at, (one, other) in enumerate(zip(theirs, ours, strict=True))]
    elif isinstance(theirs, torch.Generator):
        return difference(theirs.get_state(), ours.get_state(), limit, path)
    elif isinstance(theirs, np.random.Generator):
        return difference(theirs.bit_generator.state, ours.bit_generator.state, limit, path)
    elif isinstance(theirs, random.Random):
        return difference(theirs.getstate(), ours.getstate(), limit, path)
    elif isinstance(theirs, (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)):
        return ""
    elif isinstance(theirs, functools._lru_cache_wrapper):
        return difference(theirs.cache_info(), ours.cache_info(), limit, path)
    elif isinstance(theirs, Iterator):
        return difference(operator.length_hint(theirs, -1), operator.length_hint(ours, -1), limit, path)
    elif (attributes := _attributes(theirs)) is not None:
        return difference(attributes, _attributes(ours), limit, f"{path}.__dict__")
    else:
        same = bool(theirs == ours) or (theirs != theirs and ours != ours)
        return "" if same else f"{path}: expected {theirs!r:.200}, got {ours!r:.200}"
    return next((text for where, one, other in parts if (text := difference(one, other, limit, where))), "")


def _attributes(value: Any) -> dict[str, Any] | None:
    """Attributes and slots of an object; None if it has neither or defines its own equality."""
    if type(value).__eq__ is not object.__eq__:
        return None
    slots = {
        name: getattr(value, name, None) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
    }
    return {**getattr(value, "__dict__", {}), **slots}


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {str(value)[:100]!r}"


def _tensor_difference(theirs: torch.Tensor, ours: torch.Tensor, limit: Limit, path: str) -> str:
    for name in ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf"):
        if getattr(theirs, name) != getattr(ours, name):
            return f"{path}.{name}: expected {getattr(theirs, name)}, got {getattr(ours, name)}"
    if theirs.layout is not torch.strided:
        theirs, ours = theirs.to_dense(), ours.to_dense()
    elif theirs.stride() != ours.stride():
        return f"{path}.stride(): expected {theirs.stride()}, got {ours.stride()}"
    if text := difference(_extra(theirs), _extra(ours), limit, f"{path}.__dict__"):
        return text
    theirs, ours = (one.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg() for one in (theirs, ours))
    return _array_difference(_numbers(theirs), _numbers(ours), limit, path)


def _extra(tensor: torch.Tensor) -> dict[str, Any]:
    """Attributes of a subclass, such as the format of bounding boxes."""
    return {name: str(value) for name, value in vars(tensor).items()}


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _array_difference(theirs: np.ndarray, ours: np.ndarray, limit: Limit, path: str) -> str:
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape or theirs.strides != ours.strides:
        expected, got = ((one.dtype, one.shape, one.strides) for one in (theirs, ours))
        return f"{path}: expected dtype, shape and strides {expected}, got {got}"
    if theirs.dtype.kind not in "biufc":
        return "" if theirs.tolist() == ours.tolist() else f"{path}: values differ"
    if np.array_equal(theirs, ours, equal_nan=theirs.dtype.kind in "fc"):
        return ""
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        distance = np.abs(theirs.astype(wide) - ours.astype(wide))
    distance = distance * (255 if theirs.dtype.kind == "f" else 1)
    if theirs.ndim >= 2 and distance.mean() <= limit.mean and distance.max() <= limit.maximum:
        return ""
    count, mean, most = int((distance != 0).sum()), distance.mean(), distance.max()
    return f"{path}: {count} of {theirs.size} values differ, by {mean:.3g} of 255 on average and {most:.3g} at most"


def _image_difference(theirs: Image.Image, ours: Image.Image, limit: Limit, path: str) -> str:
    for name in ("mode", "size", "format", "filename", "info", "readonly"):
        expected, got = getattr(theirs, name, None), getattr(ours, name, None)
        if repr(expected) != repr(got):
            return f"{path}.{name}: expected {expected!r:.200}, got {got!r:.200}"
    if (fails := _load_error(theirs)) or _load_error(ours):
        return "" if fails == _load_error(ours) else f"{path}.load(): expected {fails}, got {_load_error(ours)}"
    if theirs.getpalette() != ours.getpalette():
        return f"{path}: palettes differ"
    return _array_difference(np.array(theirs), np.array(ours), limit, path)


def _load_error(image: Image.Image) -> str:
    try:
        image.load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
