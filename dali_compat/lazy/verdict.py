"""Verdicts on whether a user's data set can be asked: its code tells first (static_checks.py), then a few samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch.utils.data as data

from ..data.base_datasets import file_size
from ..data.headers import IdentityWeakDict
from ..data.sources import BYTES, PATHS, Record
from ..errors import Unsupported
from ..inspection.replaced import refuse_replaced_pillow
from ..randoms import seed_generators
from .asker import Asker
from .recipes import Recipes
from .record import Recording
from .samples import Sample
from .static_checks import catches_errors, gives_many, may_open, may_use_cuda, other_opener, signature_of, with_inner
from .tracer import HEARD, WRITTEN, now
from .trial import TrialFailed, described, in_child

_UNSEEN = "opens no image in a way that is seen"
_TOO_MANY = "does too many kinds of things to its images"
_REPEATED = "makes several images of one that it has transformed"
# How often the same work is done for images of a sample, for each is made from its file. By so much torch's loader was
# faster with exact=True on a CPU, where images were 2 to 8 crops or sizes of one (ratios 1.2 to 3.6).
_MOST_REPEATED = 2.0
_DECODING = 2  # calls that take as long
_IMAGES = 4  # of a sample, whose headers are known
_FEW, _SHARE = 20, 0.5  # samples after which it is said that too many are real, and how many that is
_ALIKE = 4  # samples that are enough where all of them are left to DALI, or none
_MOST = 1 << 25  # samples whose headers are known: a data set may say that it has any number
_IN_MEMORY = 1 << 16  # images in memory whose headers are known at a time: more than are in flight


class Verdict(NamedTuple):
    """The findings of a few samples.

    Attributes:
        why: the data set makes its samples itself; "" where it can be asked.
        images: of the first that is left to DALI.
    """

    why: str
    images: tuple[Recording, ...] = ()


class Known:
    """The known facts of a data set.

    Attributes:
        recipes: as Asker's.
        last: the verdict so far.
    """

    def __init__(self, dataset):
        self.recipes: dict[str, Recipes] = {}
        self._count = len(dataset)
        self._signature: Any = None
        self.last = Verdict("")
        self._begin()

    def verdict(self, dataset) -> Verdict:
        """Returns the verdict on the data set as it is now."""
        signature = list(signature_of(dataset))
        if signature == self._signature:
            return self.last
        if self._signature is not None:
            self._begin()  # other transforms do other things
        self.last = _try(dataset, self.recipes)
        # next time files may be old, and nobody listen
        passing = any(reason in self.last.why for reason in (WRITTEN, HEARD))
        self._signature = None if passing else signature
        return self.last

    def _begin(self) -> None:
        count = min(self._count * _IMAGES, _MOST)
        self.recipes |= {PATHS: Recipes(count, PATHS), BYTES: Recipes(_IN_MEMORY, BYTES)}


_of_dataset: IdentityWeakDict[Known] = IdentityWeakDict()


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


def asked(dataset) -> Asked | None:
    """A data set that can be asked, from now on; None where nothing says that it opens images, or it gives no sample.

    Raises:
        Unsupported: it cannot be asked; the text says why, after "MyDataset ...".
    """
    if isinstance(dataset, data.IterableDataset):
        raise Unsupported("is an IterableDataset")
    if not hasattr(dataset, "__len__"):
        return None
    if not may_open(dataset):
        if other := other_opener(dataset):
            raise Unsupported(f"opens images with {other}")
        return None
    if any(map(may_use_cuda, with_inner(dataset))):  # which must not start before an epoch does
        return None
    refuse_replaced_pillow(opens=True)
    try:
        known = _of_dataset.get(dataset, lambda: Known(dataset))
        is_empty = not len(dataset)
    except Exception:  # it takes no weak references, or has no length
        return None
    if is_empty:
        return None
    verdict = known.verdict(dataset)
    if verdict.why:
        raise Unsupported(verdict.why)
    asker = asker_of(dataset, now())
    together = asker.place_views(verdict.images) if len(verdict.images) > 1 else None
    placed = [together] if together else map(asker.place, verdict.images)
    return Asked(asker, [chain for chain, _ in placed], *_kind_and_size(verdict.images[0].source))


def asker_of(dataset, since: int) -> Asker:
    """Returns the Asker of a data set that can be asked; ``since`` as there."""
    known = _of_dataset.get(dataset, lambda: Known(dataset))
    return Asker(dataset, known.recipes, since, any(map(catches_errors, with_inner(dataset))))


def judge(asker: Asker) -> None:
    """From the next epoch on a data set is not asked that makes most samples itself."""
    if asker.asked >= _FEW and asker.real > _SHARE * asker.asked:
        known = _of_dataset.get(asker.dataset, lambda: Known(asker.dataset))
        known.last = Verdict(f"{asker.why or _UNSEEN} in most samples")


# ---- a few samples


def _try(dataset, recipes: dict[str, Recipes]) -> Verdict:
    """Returns what a few samples show. A forked child asks for them, so that nothing of it is left behind."""
    if any(gives_many(one) for one in with_inner(dataset)):
        return Verdict("has __getitems__ of its own")
    try:
        return in_child(lambda: _shown(dataset, recipes))
    except TrialFailed as error:
        return Verdict(str(error))


def _shown(dataset, recipes: dict[str, Recipes]) -> Verdict:
    asker = Asker(dataset, recipes, now())
    samples: list[Sample] = []
    for number, index in enumerate(_tried(len(dataset))):
        seed_generators(number)
        try:
            samples += asker.ask([index])
        except Exception as error:
            if not number:
                return Verdict(f"raises {described(error)}")
        if number >= _ALIKE - 1 and len({_for_dali(asker, sample) for sample in samples}) == 1:
            break
    left = [sample for sample in samples if _for_dali(asker, sample)]
    if 2 * len(left) < len(samples):
        whys = [image.record.why or _TOO_MANY for sample in samples for image in sample.images]
        return Verdict(asker.why or next(iter(whys), _UNSEEN))
    if max(map(_repeated, left)) > _MOST_REPEATED:
        return Verdict(_REPEATED)
    return Verdict("", tuple([one.record for one in left[0].images]))


def _repeated(sample: Sample) -> float:
    """Returns how much work it is to make each image of a sample from its file, in that of making what they have in
    common once."""
    records = [image.record for image in sample.images]
    calls = [call for one in records for call in one.calls]
    decoded = [(one.source, _DECODING * math.prod(one.size)) for one in records]
    once = dict(decoded)
    decoding = sum(once.values()) if len(once) == 1 else sum(pixels for _, pixels in decoded)
    shared = sum(once.values()) + sum({id(call): call.pixels for call in calls}.values())
    return (decoding + sum(call.pixels for call in calls)) / max(1, shared)


def _for_dali(asker: Asker, sample: Sample) -> bool:
    """Returns whether DALI makes an image of a sample."""
    return any(not asker.place(image.record)[0].is_replayed for image in sample.images)


def _tried(count: int) -> list[int]:
    """The indices of the samples that are tried, of ``count``."""
    return sorted({one for one in (0, 1, 2, 3, count // 2, count // 2 + 1, count - 2, count - 1) if 0 <= one < count})


def _kind_and_size(source) -> tuple[bool, int]:
    """Returns whether an encoded image is a JPEG, and its bytes."""
    if isinstance(source, Record):
        encoded = source.store.copied(source.index)
        return encoded[:2] == b"\xff\xd8", len(encoded)
    return source.lower().endswith((".jpg", ".jpeg")), file_size(source)
