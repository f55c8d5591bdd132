"""Trial of a data set, to see if its images can be deferred and if its samples then stay the same.

A few samples are loaded in two forked processes, traced in one and not in the other, from the same state of the data
set and of the generators. If they differ, torch's own loader loads the data set.
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
from ..inspection.replaced import refuse_replaced_pillow
from ..randoms import generator_states, seed_generators
from .child import TrialFailed, child, described
from .columns import _has_plan, packed
from .nodes import HERE, Reasons, tracing
from .plans import Key, divided
from .sources import FileTable
from .static_checks import compares_classes, may_open, may_use_cuda, other_opener, signature_of, with_inner
from .tensors import REAL_CLASS
from .worker import begin_tracing

_UNSEEN = "opens no image that dali_compat can trace"
_FEW = 4  # samples
_SMALL = 1000  # entries of the largest attribute that is compared
_JPEG = b"\xff\xd8"


class TracedImage(NamedTuple):
    """An image of a tried sample.

    Attributes:
        head, tail: keys of its head and tail.
        size: (height, width) of the file.
        final: (height, width) of the image.
        is_jpeg: whether the file is a JPEG.
        length: length of the file in bytes.
    """

    head: Key
    tail: Key
    size: tuple[int, int]
    final: tuple[int, int]
    is_jpeg: bool
    length: int


class Verdict(NamedTuple):
    """The result of a trial.

    Attributes:
        why: reason for leaving the data set to torch's loader; empty if it is traced.
        images: images of the first sample with deferred ones; None for each image without a plan.
        opens: whether images were seen.
    """

    why: str
    images: tuple[TracedImage | None, ...] = ()
    opens: bool = False


_verdicts: IdentityWeakDict[dict[Any, tuple[Any, Verdict]]] = IdentityWeakDict()
_tables: IdentityWeakDict[FileTable] = IdentityWeakDict()


def table_of(dataset: Any) -> FileTable:
    """Return the table of a data set's files, shared by all loaders over it."""
    try:
        count = len(dataset)
    except TypeError:
        count = 0
    return _tables.get(dataset, lambda: FileTable(count))


@dataclass
class Reader:
    """The attributes of a loader that determine how its data set is read."""

    dataset: Any
    collate_fn: Any = data.default_collate
    exact: bool = False
    _index_sampler: Any = ()
    _auto_collation: bool = True


def tried(loader: Any) -> tuple[TracedImage | None, ...] | None:
    """Return the images of a loader's sample if its data set can be traced; None if it does not seem to open images.

    Args:
        loader: a DataLoader or a Reader.

    Raises:
        Unsupported: the data set cannot be traced. The text is a predicate, for use after "MyDataset".
    """
    dataset = loader.dataset
    if not may_open(dataset):
        if other := other_opener(dataset):
            raise Unsupported(f"opens images with {other}")
        if not is_from_hugging_face(type(dataset)):
            raise Unsupported("opens no image file, as far as its code shows")
        return None
    if any(map(may_use_cuda, with_inner(dataset))):  # CUDA must not start before an epoch does
        return None
    refuse_replaced_pillow(opens=False)
    try:
        if not isinstance(dataset, data.IterableDataset) and not len(dataset):
            return None
        known = _verdicts.get(dataset, dict)
    except Exception:  # no length, or no weak references
        return None
    key = loader._auto_collation, loader.exact
    signature = [list(signature_of(dataset)), id(loader.collate_fn)]
    if key not in known or known[key][0] != signature:
        known[key] = signature, _try(loader)
    verdict = known[key][1]
    if verdict.why:
        if "just now" in verdict.why:  # the files will be old enough in a later trial
            del known[key]
        if not verdict.opens and (other := other_opener(dataset)):
            raise Unsupported(f"opens images with {other}")
        raise (UnsupportedImages if verdict.opens else Unsupported)(verdict.why)
    return verdict.images


def _try(loader: Any) -> Verdict:
    if line := compares_classes(loader.dataset, loader.collate_fn):
        return Verdict(f"compares the class of a tensor ({line})")
    table = table_of(loader.dataset)
    try:
        with child(lambda: _shown(loader, table)) as of_traced, child(lambda: _shown(loader, None)) as of_plain:
            traced, verdict = of_traced()
            if verdict.why:
                return verdict
            plain, _ = of_plain()
    except TrialFailed as error:
        return Verdict(str(error))
    where = _difference(traced, plain)
    if where and _differs_by_itself(loader, plain):
        where = _difference(traced, plain, values=False)
        return verdict._replace(why=f"gives different samples each time it is read: {where}") if where else verdict
    return verdict._replace(why=f"gives different samples if its images are deferred: {where}") if where else verdict


def _differs_by_itself(loader: Any, plain: Any) -> bool:
    """Return True if samples differ even without tracing, as in a stream that is shuffled with its own seed."""
    try:
        with child(lambda: _shown(loader, None)) as of_plain:
            again, _ = of_plain()
    except TrialFailed:
        return False
    return bool(_difference(plain, again))


def _shown(loader: Any, table: FileTable | None) -> tuple[Any, Verdict]:
    """Return a description of a few samples, and a verdict. They are traced if there is a ``table``."""
    dataset, keys = loader.dataset, _keys(loader)
    stream = isinstance(dataset, data.IterableDataset)
    if table is not None:
        begin_tracing(table)
        HERE.reasons = Reasons()
    found, images = list[Any](), tuple[TracedImage | None, ...]()
    samples = []
    for number, key in enumerate(keys):
        seed_generators(number)
        try:
            with tracing(table is not None, loader.exact):
                if stream and not number:
                    dataset = iter(dataset)
                samples.append(next(dataset) if stream else _sample(dataset, key))
        except StopIteration:
            break
        except Exception as error:
            if not number:
                return None, Verdict(f"raises {described(error)}")
            found.append(f"{type(error).__name__}: {error}")
            continue
        images = images or _images(samples[-1])
        torchs, *others = generator_states()
        checksums = zlib.crc32(torchs.numpy().tobytes()), *(zlib.crc32(pickle.dumps(one)) for one in others)
        found.append(_Held(checksums))
    found.append(_attributes(loader.dataset))
    batch = _collated(loader, samples, table is not None)
    images = images or _images(batch)[:: max(1, len(samples))]
    why = ""
    if table is not None and not images:
        why = str(HERE.reasons) or _without_plan(samples) or _UNSEEN
    elif table is not None and batch is not None and not packed(batch).jobs:
        reasons = str(HERE.reasons)
        why = f"{reasons}, in collate_fn" if reasons else "makes several images of one that it has transformed"
    # after collate_fn, which may change samples
    return [*found, *map(description, samples), description(batch)], Verdict(why, images, why != _UNSEEN)


def _sample(dataset: Any, key: Any) -> Any:
    """Return a sample as torch's fetcher does."""
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return dataset.__getitems__([key])[0]
    return dataset[key]


def _keys(loader: Any) -> list[Any]:
    """Return a few keys of the loader's sampler, which is a copy in the forked process."""
    if isinstance(loader.dataset, data.IterableDataset):
        return [None] * _FEW
    try:
        index = next(iter(loader._index_sampler))
        several = list(islice(iter(index), _FEW)) if loader._auto_collation else [index]
        if several:
            return several
    except Exception:  # the epoch's iterator will raise the error
        pass
    return list(range(min(_FEW, len(loader.dataset))))


def _images(sample: Any) -> tuple[TracedImage | None, ...]:
    """Describe the deferred tensors of a sample; () if none of them has a plan."""
    made: list[TracedImage | None] = []
    cells = [cell for tensor in _leaves(sample) for cell in tensor._cell.parts or (tensor._cell,)]
    nodes = [cell.node if cell.tensor is None and _has_plan(cell) else None for cell in cells]
    of_file = Counter(id(node.root) for node in nodes if node is not None)
    for node in nodes:
        if node is None:
            made.append(None)
            continue
        root, final = node.root, node.state.size
        head, _, tail = divided(node.steps, of_file[id(root)] == 1)
        with root.source.opened() as file:
            start = file.read(2)
        kinds = tuple(kind for kind, _ in tail)
        made.append(TracedImage(head, kinds, root.state.size, final, start == _JPEG, root.source.length))
    return tuple(made) if any(made) else ()


def _without_plan(samples: list[Any]) -> str:
    """Return the reason why a deferred image has no plan; empty if there is none."""
    for tensor in _leaves(samples):
        node = tensor._cell.node
        while node is not None and node.parent is not None:
            if node.steps is None and node.parent.steps is not None:
                return f"uses {node.call.name}(), which has no batch implementation for such an image"
            node = node.parent
    return "gives images, not tensors" if _leaves(samples, Image.Image) else ""


def _leaves(value: Any, kind: type | tuple[type, ...] = tuple(REAL_CLASS)) -> list[Any]:
    """Return the values of a class in a sample; by default the deferred tensors."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for one in value for leaf in _leaves(one, kind)] if isinstance(value, (list, tuple)) else []


def _collated(loader: Any, samples: list[Any], traced: bool) -> Any:
    """Return the batch of these samples; None if collate_fn raises an error, as it may for so few."""
    try:
        with tracing(traced, loader.exact):
            return loader.collate_fn(samples if loader._auto_collation else samples[0])
    except Exception:
        return None


# ---- comparing


class _Held(NamedTuple):
    """The value of an object, or a checksum of it; None if it is not compared."""

    value: Any


def description(value: Any) -> Any:
    """Return a description of a value, with a checksum of each tensor, array and image."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return str(type(value)), str(value.dtype), tuple(value.shape), _Held(str(value))
    if isinstance(value, torch.Tensor):
        kind = REAL_CLASS.get(type(value), type(value))
        real = value._real() if type(value) in REAL_CLASS else value  # type: ignore[attr-defined]  # a TracedTensor
        flat: Any = real.as_subclass(torch.Tensor).detach().contiguous().view(-1).cpu()
        try:
            held = zlib.crc32(flat.view(torch.uint8).numpy().tobytes())
        except (RuntimeError, TypeError):  # a dtype without bytes
            held = 0
        facts = _Held((value.shape, value.stride(), held))
        return str(kind), str(value.dtype), value.ndim, value.is_contiguous(), facts
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(type(value)), str(value.dtype), value.ndim, _Held((value.shape, zlib.crc32(value.tobytes())))
    if isinstance(value, Image.Image):
        facts = _Held((value.mode, value.size, sorted(map(str, value.info)), zlib.crc32(value.tobytes())))
        return str(type(value)), facts
    if isinstance(value, Mapping):
        return str(type(value)), [(str(key), description(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return str(type(value)), [description(one) for one in value]
    plain = isinstance(value, (bool, int, float, str, bytes, type(None)))
    return str(type(value)), _Held(repr(value) if plain else None)


def _attributes(dataset: Any) -> Any:
    """Return digests of a data set's attributes, except large ones."""
    found: dict[str, Any] = {}
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, (int, float, str, bytes, bool)):
            found[name] = repr(value)
        elif isinstance(value, torch.Generator):
            found[name] = repr(zlib.crc32(value.get_state().numpy().tobytes()))
        elif isinstance(value, np.random.Generator):
            found[name] = repr(value.bit_generator.state)
        elif isinstance(value, (list, dict, set, tuple)) and len(value) <= _SMALL:
            found[name] = len(value), str(type(value))
    return _Held(found)


def _difference(a: Any, b: Any, path: str = "", values: bool = True) -> str:
    """Return where two descriptions differ; empty if they do not. Without ``values`` only types count."""
    if isinstance(a, _Held) and isinstance(b, _Held):
        (a,), (b,) = a, b
        if not values:
            return ""
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and (len(a) == len(b) or not values):
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            if found := _difference(x, y, f"{path}[{number}]", values):
                return found
        return ""
    return "" if a == b else f"{path} is {_shortened(a)}, not {_shortened(b)}"


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).replace(";", ",").split())
    return text if len(text) <= 80 else f"{text[:77]}..."
