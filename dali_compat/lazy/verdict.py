"""Whether a data set of the user's can be asked: its code tells first (reading.py), then a few samples."""

from __future__ import annotations

import pickle
from collections.abc import Container
from contextlib import suppress
from multiprocessing.managers import BaseProxy
from typing import Any, NamedTuple

import torch.utils.data as data

from ..data.per_object import PerObject
from ..data.sources import BYTES, PATHS, Record
from ..data.survey import file_size
from ..draws import seed_generators
from ..errors import Unsupported
from ..translate.pillow import refuse_replaced_pillow
from ..workers.samples import dumps
from .asker import Asker
from .chains import Chain
from .generators import calls_heard
from .images import later_of
from .reach import catches_errors
from .reading import gives_many, may_open, may_use_cuda, signature_of, with_inner
from .samples import Sample, at
from .tracer import HEARD, WRITTEN, now
from .trial import TrialFailed, in_child, reachable

_UNSEEN = "opens no image in a way that is seen"
_ALIKE = 4  # samples that are enough where all of them are left to DALI, or none
_MOST = 1 << 25  # samples whose headers are known: a data set may say that it has any number
_IN_MEMORY = 1 << 16  # images in memory whose headers are known at a time: more than are in flight


class Verdict(NamedTuple):
    """What a few samples have shown.

    Attributes:
        why: the data set makes its samples itself; "" where it can be asked.
        raised: there was none; torch's loader says what is wrong.
        images: of the first that is left to DALI: PATHS or BYTES, and the transforms that each image goes through.
        is_jpeg, size: of the first encoded image; in bytes.
        sets: as Tracer's.
    """

    why: str
    raised: bool = False
    images: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    is_jpeg: bool = False
    size: int = 0
    sets: str = ""


class Known:
    """What is known of a data set.

    Attributes:
        roots: the chains without transforms.
        whole: as Tracer's.
    """

    def __init__(self, dataset: Any):
        self.whole: set[int] = set()
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
        self._verdict = _try(dataset, self.roots)
        self._look_again()  # it may have given transforms other settings
        # next time files may be old, and nobody listen
        passing = any(reason in self._verdict.why for reason in (WRITTEN, HEARD))
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
        is_jpeg, size: of that sample's first encoded image; in bytes.
    """

    asker: Asker
    chains: list[Any]
    is_jpeg: bool
    size: int


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
        raise Unsupported(verdict.why or "has a transform of which a copy has no translation")
    return Asked(asker_of(dataset, now(), verdict.sets), chains, verdict.is_jpeg, verdict.size)


def asker_of(dataset: Any, since: int, sets: str = "") -> Asker:
    """Returns the Asker of a data set that can be asked; ``since`` and ``sets`` as there."""
    known = _of_dataset.get(dataset, lambda: Known(dataset))
    whole = known.whole if any(map(catches_errors, with_inner(dataset))) else None
    return Asker(dataset, known.roots, since, whole, sets)


def give_up(dataset: Any, why: str) -> None:
    """From the next epoch on it is not asked."""
    _of_dataset.get(dataset, lambda: Known(dataset)).give_up(why)


# ---- a few samples


def _try(dataset: Any, roots: dict[str, Chain]) -> Verdict:
    """What a few samples show. A forked child asks for them, so that nothing of it is left behind."""
    if any(gives_many(one) for one in with_inner(dataset)):
        return Verdict("has __getitems__ of its own")
    if not len(dataset):
        return Verdict("has no samples", raised=True)
    objects = {id(one): one for one in reachable(dataset)}
    if any(isinstance(one, BaseProxy) for one in objects.values()):
        return Verdict("has an object of a multiprocessing.Manager, which a trial would change")
    try:
        shown: Verdict = in_child(lambda: _shown(dataset, roots, objects.keys()))
        images = tuple(
            (given, tuple([objects[at] if at in objects else pickle.loads(packed or b"") for at, packed in transforms]))
            for given, transforms in shown.images
        )
    except TrialFailed as error:
        return Verdict(str(error))
    except Exception:  # of a transform that is made anew for each sample
        return Verdict("makes transforms that cannot be pickled")
    return shown._replace(images=images)


def _shown(dataset: Any, roots: dict[str, Chain], known: Container[int]) -> Verdict:
    """In the place of transforms it has their id(), and the pickled transforms, or None. ``known``: the id() of what is
    no sample's own."""
    asker = Asker(dataset, roots, now())
    samples: list[Sample] = []
    heard: set[str] = set()
    for number, index in enumerate(_tried(len(dataset))):
        seed_generators(number)
        try:
            with calls_heard() as names:
                samples += asker.ask([index])
        except Exception:
            if not number:
                return Verdict("raises an error", raised=True)
        if names and _is_to_draw(samples[-1]):  # a Watch has not made it real
            heard |= names
        chains = {id(sample.images[0].chain) for sample in samples if sample.images}
        if number >= _ALIKE - 1 and len({bool(sample.images) for sample in samples}) == 1 and len(chains) < _ALIKE:
            break
    left = [sample for sample in samples if sample.images]
    if len(chains) > _ALIKE and not all(id(one) in known for one in left[0].images[0].chain.transforms):
        return Verdict("makes another transform for each sample")
    if 2 * len(left) < len(samples):
        return Verdict(asker.why or _UNSEEN)
    drawn_from = {one.name for root in roots.values() for one in root.drawn_from}
    if heard & drawn_from:
        return Verdict(f"seeds {min(heard & drawn_from)}")
    images = tuple((one.chain.given, tuple(map(_packed, one.chain.transforms))) for one in left[0].images)
    return Verdict("", False, images, *_kind_and_size(left[0].images[0].source), asker.sets)


def _tried(count: int) -> list[int]:
    """The indices of the samples that are tried, of ``count``."""
    indices = 0, 1, 2, 3, count // 2, count // 2 + 1, count - 2, count - 1
    return sorted({index for index in indices if 0 <= index < count})


def _is_to_draw(sample: Sample) -> bool:
    """Whether transforms of its images are to draw numbers later."""
    images = [later_of(at(sample.value, image.paths[0])) for image in sample.images]
    return any(later.states for image in images for later in image.line())


def _packed(transform: Any) -> tuple[int, bytes | None]:
    with suppress(Exception):
        return id(transform), dumps(transform)
    return id(transform), None


def _kind_and_size(source: Any) -> tuple[bool, int]:
    """Whether an encoded image is a JPEG, and its bytes."""
    if isinstance(source, Record):
        encoded = source.archive.copied(source.index)
        return encoded[:2] == b"\xff\xd8", len(encoded)
    return source.lower().endswith((".jpg", ".jpeg")), file_size(source)
