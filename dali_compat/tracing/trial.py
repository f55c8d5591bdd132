"""Trial of a data set, to find out whether its images can be deferred without changing its samples.

Two forked processes load the same few samples, one of them with tracing. The data set and the random generators
have the same state in both. If tracing changes the samples, torch's own loader loads the data set.
"""

from __future__ import annotations

import pickle
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data
from PIL import Image

from ..data.headers import IdentityWeakDict
from ..data.hugging_face import is_from_hugging_face
from ..errors import Unsupported, UnsupportedImages
from ..inspection.replaced import refuse_replaced_functions
from ..randoms import generator_states, seed_generators
from .child import TrialFailed, described, run_in_child
from .columns import has_plan, pack_batch
from .hidden import hidden_tensors
from .nodes import SWITCHES, Reasons, Tracing, tracing
from .plans import Key, split_steps
from .sources import FileTable
from .static_checks import Signature, compares_classes, may_open, may_use_cuda, other_opener, with_inner
from .tensors import REAL_CLASS
from .worker import tracing_from_now

_NO_IMAGE = "opens no image that dali_compat can trace"
_SAMPLES = 4
_MAX_ENTRIES = 1000  # of an attribute that is compared
_JPEG = b"\xff\xd8"


class TrialImage(NamedTuple):
    """A deferred image of a sample.

    Attributes:
        head, tail: keys of its head and tail (plans.py).
        size: (height, width) after the last step.
        length: length of the file in bytes.
    """

    head: Key
    tail: Key
    size: tuple[int, int]
    is_jpeg: bool
    length: int


class TrialResult(NamedTuple):
    """The result of a trial.

    Attributes:
        reason: why torch's loader has to load the data set; empty if it can be traced.
        images: images of the first sample that contains an image with a plan; None in place of images without a plan.
        has_images: whether loading the samples opened images; False if no samples were loaded.
    """

    reason: str
    images: tuple[TrialImage | None, ...] = ()
    has_images: bool = False


_results: IdentityWeakDict[dict[Any, tuple[Signature, TrialResult]]] = IdentityWeakDict()
_tables: IdentityWeakDict[FileTable] = IdentityWeakDict()


def table_of(dataset: Any) -> FileTable:
    """Return the FileTable of a data set, which all its loaders share."""
    try:
        count = len(dataset)
    except TypeError:
        count = 0
    return _tables.get(dataset, lambda: FileTable(count))


@dataclass
class Reader:
    """Replacement for the DataLoader, in a trial of a data set that has no loader."""

    dataset: Any
    collate_fn: Any = data.default_collate
    exact: bool = False
    _index_sampler: Any = ()
    _auto_collation: bool = True


def run_trial(loader: Any) -> tuple[TrialImage | None, ...] | None:
    """Try to trace a data set, and return the images of one of its samples.

    An image is None if it cannot be computed in a batch. The result is None if no trial is possible, for example
    because the data set is empty.

    Raises:
        Unsupported: the data set cannot be traced. The message is a predicate such as "opens images with cv2".
    """
    dataset = loader.dataset
    if not may_open(dataset):
        if other := other_opener(dataset):
            raise Unsupported(f"opens images with {other}")
        if not is_from_hugging_face(type(dataset)):
            raise Unsupported("opens no image file in code that dali_compat can follow")
        return None
    if any(map(may_use_cuda, with_inner(dataset))):  # CUDA must not be initialized before the first epoch
        return None
    refuse_replaced_functions(opens=False)
    try:
        if not isinstance(dataset, data.IterableDataset) and not len(dataset):
            return None
        known = _results.get(dataset, dict)
    except Exception:  # no length, or no weak references
        return None
    key = loader._auto_collation, loader.exact
    if key not in known or not known[key][0].holds(dataset, loader.collate_fn):
        known[key] = Signature(dataset, loader.collate_fn), _try(loader)
    result = known[key][1]
    if result.reason:
        if "just now" in result.reason:  # a later trial may succeed
            del known[key]
        if not result.has_images and (other := other_opener(dataset)):
            raise Unsupported(f"opens images with {other}")
        raise (UnsupportedImages if result.has_images else Unsupported)(result.reason)
    return result.images


def _try(loader: Any) -> TrialResult:
    if line := compares_classes(loader.dataset, loader.collate_fn):
        return TrialResult(f"compares the class of a tensor ({line})")
    table = table_of(loader.dataset)
    Image.preinit()  # otherwise each subprocess imports Pillow's common plugins
    try:
        traced, result = run_in_child(lambda: _run(loader, table))
        if result.reason:
            return result
        # not at the same time, since the data set may write the files that it reads
        plain, _ = run_in_child(lambda: _run(loader, None))
    except TrialFailed as error:
        return TrialResult(str(error))
    difference = _difference(traced, plain)
    if not difference:
        return result
    if not _differs_untraced(loader, plain):
        return result._replace(reason=f"returns different samples if its images are deferred: {difference}")
    difference = _difference(traced, plain, values=False)
    reason = f"returns different samples each time it is read: {difference}" if difference else ""
    return result._replace(reason=reason)


def _differs_untraced(loader: Any, plain: Any) -> bool:
    """Return True if two runs without tracing load different samples. ``plain`` describes the samples of the first
    run."""
    try:
        again, _ = run_in_child(lambda: _run(loader, None))
    except TrialFailed:
        return False
    return bool(_difference(plain, again))


def _run(loader: Any, table: FileTable | None) -> tuple[Any, TrialResult]:
    """Load a few samples, traced if there is a ``table``. Return (description of the samples, TrialResult)."""
    dataset, indices = loader.dataset, _indices(loader)
    is_stream = isinstance(dataset, data.IterableDataset)
    settings = None
    if table is not None:
        settings = tracing_from_now(table, loader.exact)
        SWITCHES.reasons = Reasons()
    descriptions, images = list[Any](), tuple[TrialImage | None, ...]()
    samples = []
    for number, index in enumerate(indices):
        seed_generators(number)
        try:
            with tracing(settings):
                if is_stream and not number:
                    dataset = iter(dataset)
                samples.append(next(dataset) if is_stream else _sample(dataset, index))
        except StopIteration:
            break
        except Exception as error:
            if not number:
                return None, TrialResult(f"raises {described(error)}")
            descriptions.append(f"{type(error).__name__}: {error}")
            continue
        images = images or _trial_images(samples[-1])
        torch_state, *states = generator_states()
        checksums = zlib.crc32(torch_state.numpy().tobytes()), *(zlib.crc32(pickle.dumps(one)) for one in states)
        descriptions.append(_Value(checksums))
    descriptions.append(_attributes(loader.dataset))
    batch = _collated(loader, samples, settings)
    images = images or _trial_images(batch)[:: max(1, len(samples))]
    reason, hidden = "", hidden_tensors([samples, batch])
    in_objects = f"returns images in an object of class {type(hidden[0][0]).__name__}" if hidden else ""
    if table is not None and not images:
        reason = str(SWITCHES.reasons) or in_objects or _reason_for_no_plan(samples) or _NO_IMAGE
    elif table is not None and batch is not None and not pack_batch(batch).jobs:
        in_collate = str(SWITCHES.reasons) and f"{SWITCHES.reasons}, in collate_fn"
        reason = in_collate or in_objects or "makes several images from one that it has transformed"
    # collate_fn may have changed the samples
    descriptions += [*map(description, samples), description(batch)]
    return descriptions, TrialResult(reason, images, reason != _NO_IMAGE)


def _sample(dataset: Any, key: Any) -> Any:
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:  # as torch's fetcher does
        return dataset.__getitems__([key])[0]
    return dataset[key]


def _indices(loader: Any) -> list[Any]:
    """Return the first indices of the loader's sampler."""
    if isinstance(loader.dataset, data.IterableDataset):
        return [None] * _SAMPLES
    try:
        index = next(iter(loader._index_sampler))  # the parent process does not advance
        indices = list(islice(iter(index), _SAMPLES)) if loader._auto_collation else [index]
        if indices:
            return indices
    except Exception:  # the epoch's iterator will raise the error
        pass
    return list(range(min(_SAMPLES, len(loader.dataset))))


def _trial_images(sample: Any) -> tuple[TrialImage | None, ...]:
    """Return the deferred images of a sample, with None in place of images without a plan; () if no image has a
    plan."""
    images: list[TrialImage | None] = []
    cells = [cell for tensor in _leaves(sample) for cell in tensor._cell.inputs or (tensor._cell,)]
    nodes = [cell.node if cell.tensor is None and has_plan(cell) else None for cell in cells]
    images_of_file = Counter(id(node.root) for node in nodes if node is not None)
    for node in nodes:
        if node is None:
            images.append(None)
            continue
        root = node.root
        head, _, tail = split_steps(node.steps, images_of_file[id(root)] == 1)
        with root.source.open() as file:
            start = file.read(2)
        tail_key = tuple(key_step for key_step, _ in tail)
        images.append(TrialImage(head, tail_key, node.state.size, start == _JPEG, root.source.length))
    return tuple(images) if any(images) else ()


def _reason_for_no_plan(samples: list[Any]) -> str:
    """Return the reason why deferred images cannot be computed in a batch, or ""."""
    for tensor in _leaves(samples):
        node = tensor._cell.node
        while node is not None and node.parent is not None:
            if node.steps is None and node.parent.steps is not None:
                return f"uses {node.call.name}(), which has no batch implementation for such an image"
            node = node.parent
    return "returns images, not tensors" if _leaves(samples, Image.Image) else ""


def _leaves(value: Any, kind: type | tuple[type, ...] = tuple(REAL_CLASS)) -> list[Any]:
    """Return the values of class ``kind`` in nested containers, by default the deferred tensors."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for one in value for leaf in _leaves(one, kind)] if isinstance(value, (list, tuple)) else []


def _collated(loader: Any, samples: list[Any], settings: Tracing | None) -> Any:
    """Return the batch of these samples; None if ``collate_fn`` raises an error."""
    try:
        with tracing(settings):
            return loader.collate_fn(samples if loader._auto_collation else samples[0])
    except Exception:
        return None


# ---- comparing


class _Value(NamedTuple):
    """A value or checksum in a result of description(); None if it is not compared."""

    value: Any


def description(value: Any) -> Any:
    """Return nested tuples and lists that describe a value, with a checksum of each tensor, array and image."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return str(type(value)), str(value.dtype), tuple(value.shape), _Value(str(value))
    if isinstance(value, torch.Tensor):
        cls = REAL_CLASS.get(type(value), type(value))
        real = value._materialize() if type(value) in REAL_CLASS else value  # type: ignore[attr-defined]  # a TracedTensor
        flat: Any = real.as_subclass(torch.Tensor).detach().contiguous().view(-1).cpu()
        try:
            checksum = zlib.crc32(flat.view(torch.uint8).numpy().tobytes())
        except (RuntimeError, TypeError):  # a dtype that cannot be viewed as bytes
            checksum = 0
        compared = _Value((value.shape, value.stride(), checksum))
        return str(cls), str(value.dtype), value.ndim, value.is_contiguous(), compared
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(type(value)), str(value.dtype), value.ndim, _Value((value.shape, zlib.crc32(value.tobytes())))
    if isinstance(value, Image.Image):
        compared = _Value((value.mode, value.size, sorted(map(str, value.info)), zlib.crc32(value.tobytes())))
        return str(type(value)), compared
    if isinstance(value, Mapping):
        return str(type(value)), [(str(key), description(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return str(type(value)), [description(one) for one in value]
    has_repr = isinstance(value, (bool, int, float, str, bytes, type(None)))
    return str(type(value)), _Value(repr(value) if has_repr else None)


def _attributes(dataset: Any) -> Any:
    """Return a description of a data set's simple attributes, such as numbers, strings and generators."""
    compared: dict[str, Any] = {}
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, (int, float, str, bytes, bool)):
            compared[name] = repr(value)
        elif isinstance(value, torch.Generator):
            compared[name] = repr(zlib.crc32(value.get_state().numpy().tobytes()))
        elif isinstance(value, np.random.Generator):
            compared[name] = repr(value.bit_generator.state)
        elif isinstance(value, (list, dict, set, tuple)) and len(value) <= _MAX_ENTRIES:
            compared[name] = len(value), str(type(value))
    return _Value(compared)


def _difference(a: Any, b: Any, path: str = "", values: bool = True) -> str:
    """Describe the first difference between two descriptions. Return "" if they are equal.

    ``path`` is the position of ``a`` and ``b`` in the whole description, such as "[0][1]".
    If ``values`` is False, values and lengths are ignored.
    """
    if isinstance(a, _Value) and isinstance(b, _Value):
        (a,), (b,) = a, b
        if not values:
            return ""
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and (len(a) == len(b) or not values):
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            if difference := _difference(x, y, f"{path}[{number}]", values):
                return difference
        return ""
    return "" if a == b else f"{path} is {_short(a)}, not {_short(b)}"


def _short(value: Any) -> str:
    return " ".join(repr(value).replace(";", ",").split())[:80]
