"""Whether a data set of the user's can be asked: its code tells first (reading.py), then a copy's first sample."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data

from ..data.per_object import PerObject
from ..data.sources import BYTES, PATHS, Record
from ..data.survey import file_size, is_small
from ..errors import Unsupported
from ..translate.pillow import refuse_replaced_pillow
from .asker import Asker
from .chains import Chain
from .hooks import hooked
from .left_open import watched
from .reading import gives_many, holds_iterator, may_open, may_use_cuda, signature_of, with_inner
from .samples import Sample, settled, taken
from .tracer import HEARD, WRITTEN, Tracer, now
from .twin import generators_kept, settings_kept, twin_of

_UNSEEN = "opens no image in a way that is seen"
_MOST = 1 << 25  # samples whose headers are known: a data set may say that it has any number
_LARGE = 1 << 20  # bytes of a sample that the data set makes itself: workers send them by pickle
_IN_MEMORY = 1 << 16  # images in memory whose headers are known at a time: more than are in flight


class Verdict(NamedTuple):
    """What one sample has shown.

    Attributes:
        why: the data set makes its samples itself; "" where it can be asked.
        raised: there was none; torch's loader says what is wrong.
        images: of the sample: PATHS or BYTES, and the transforms that each goes through.
        source: where the first is.
    """

    why: str
    raised: bool = False
    images: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    source: Any = None


class Known:
    """What is known of a data set.

    Attributes:
        roots: the chains without transforms.
    """

    def __init__(self, dataset: Any):
        self.roots = {PATHS: Chain(min(len(dataset), _MOST), PATHS), BYTES: Chain(_IN_MEMORY, BYTES)}
        self._signature: Any = None
        self._verdict = Verdict("")

    def verdict(self, dataset: Any) -> Verdict:
        """As the data set is now."""
        self._look_again()
        signature = list(signature_of(dataset))
        known = self._verdict
        if signature == self._signature and (known.why or None not in self.chains(known)):
            return known
        self._verdict = _try_first_sample(dataset, self.roots)
        self._look_again()  # it may have given transforms other settings
        passing = self._verdict.why in (WRITTEN, HEARD)  # next time files may be old, and nobody listen
        self._signature = None if passing else signature
        return self._verdict

    def _look_again(self) -> None:
        for chain in self.roots.values():
            chain.look_again()

    def chains(self, verdict: Verdict) -> list[Chain | None]:
        """The chains of a verdict's transforms, as they are now."""
        return [self.roots[given].follow(transforms) for given, transforms in verdict.images]

    def give_up(self, why: str) -> None:
        """The data set turned out to make most samples itself."""
        self._verdict = Verdict(f"{why or _UNSEEN} in most samples")


_of_dataset: PerObject[Known] = PerObject()


class Asked(NamedTuple):
    """A data set that is asked.

    Attributes:
        asker: asks it.
        chains: what the images of its samples go through, as far as one has shown.
        is_jpeg, is_small: of that sample's first encoded image.
    """

    asker: Asker
    chains: list[Any]
    is_jpeg: bool
    is_small: bool


def asked(dataset: Any) -> Asked | None:
    """A data set that can be asked, from now on; None where nothing says that it opens images, or it gives no sample.

    Raises:
        Unsupported: it cannot be asked; the text says why, after "MyDataset ...".
    """
    if isinstance(dataset, data.IterableDataset) or not may_open(dataset) or not hasattr(dataset, "__len__"):
        return None
    if any(map(may_use_cuda, with_inner(dataset))):  # which must not start before an epoch does
        return None
    refuse_replaced_pillow(opens=True)
    try:
        known = _of_dataset.get(dataset, lambda: Known(dataset))
    except Exception:  # it takes no weak references, or has no length
        return None
    verdict = known.verdict(dataset)
    chains = [chain for chain in known.chains(verdict) if chain is not None]
    if verdict.raised:
        return None
    if verdict.why or len(chains) < len(verdict.images):
        raise Unsupported(verdict.why)
    return Asked(asker_of(dataset, now()), chains, *_kind_and_size(verdict.source))


def asker_of(dataset: Any, since: int) -> Asker:
    """What asks a data set that can be asked; ``since`` as Asker's."""
    known = _of_dataset.get(dataset, lambda: Known(dataset))
    return Asker(dataset, known.roots, since)


def give_up(dataset: Any, why: str) -> None:
    """From the next epoch on it is not asked."""
    _of_dataset.get(dataset, lambda: Known(dataset)).give_up(why)


# ---- one sample


def _try_first_sample(dataset: Any, roots: dict[str, Chain]) -> Verdict:
    """What the first sample shows. The data set stays as it is, and so do the generators."""
    if any(gives_many(one) for one in with_inner(dataset)):
        return Verdict("has __getitems__ of its own")
    if not len(dataset):
        return Verdict("has no samples", raised=True)
    if any(holds_iterator(one) for one in with_inner(dataset)):
        return Verdict("has an iterator, of which there is no copy")
    try:
        with watched(), generators_kept(dataset), settings_kept(dataset), hooked(tracer := Tracer(roots, now())):
            twin = twin_of(dataset)
            many = getattr(twin, "__getitems__", None)
            (sample,) = taken(list(many([0])) if many else [twin[0]], tracer.notes)
    except Exception:
        return Verdict("raises an error", raised=True)
    return _verdict_on(settled(sample), tracer.notes.why)


def _verdict_on(sample: Sample, why: str) -> Verdict:
    if not sample.images or (why and _size_of(sample.value) > _LARGE):
        return Verdict(why or _UNSEEN)
    images = tuple((one.chain.given, one.chain.transforms) for one in sample.images)
    return Verdict("", False, images, sample.images[0].source)


def _size_of(value: Any) -> int:
    """Bytes of the tensors and arrays in a sample that are made."""
    if type(value) in (list, tuple, dict):
        return sum(map(_size_of, value.values() if type(value) is dict else value))
    return value.nbytes if type(value) in (torch.Tensor, np.ndarray) else 0


def _kind_and_size(source: Any) -> tuple[bool, bool]:
    """Whether an encoded image is a JPEG, and small."""
    if isinstance(source, Record):
        encoded = source.archive.copied(source.index)
        return encoded[:2] == b"\xff\xd8", is_small(len(encoded))
    return source.lower().endswith((".jpg", ".jpeg")), is_small(file_size(source))
