"""Errors raised by the user's code have the same type and position as with torch's loader.

Afterwards the loader continues with the correct order and pixels.
"""

import pytest
import torch
from helpers import make_folder
from torch.utils import data
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader

BATCH, COUNT = 3, 12
AT = {"first": 1, "middle": 5, "last": 11}  # index of the failing sample, in batch 0, 1 or 3
WHOLE = [list(range(begin, begin + BATCH)) for begin in range(0, COUNT, BATCH)]
CROP = [T.CenterCrop(40), T.PILToTensor()]


class Mistake(Exception):
    """An exception class that only these tests raise."""


class TwoArgumentError(Exception):
    """An exception that cannot be recreated from its message, as torch does for errors of workers."""

    def __init__(self, what, where):
        super().__init__(what, where)


def _raise(error):
    raise TwoArgumentError("here", "there") if error is TwoArgumentError else error("my own words")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("own"), classes=3, per_class=4, special=False)


class Numbered(DALIImageFolder):
    """A folder whose targets are the indices."""

    def __init__(self, root, transform, target_transform=None):
        super().__init__(root, transform, target_transform)
        self.samples = [(path, number) for number, (path, _) in enumerate(self.samples)]


class Switch:
    """Raise an error at number ``at``, while ``self.on`` is True."""

    def __init__(self, at, error):
        self.at, self.error, self.on = at, error, True

    def check(self, number):
        if self.on and number == self.at:
            _raise(self.error)


class Sampler(Switch):
    def __iter__(self):
        for number in range(COUNT):
            self.check(number)
            yield number

    def __len__(self):
        return COUNT


class BatchSampler(Switch):
    def __iter__(self):
        for begin in range(0, COUNT, BATCH):
            numbers = list(range(begin, begin + BATCH))
            for number in numbers:
                self.check(number)
            yield numbers

    def __len__(self):
        return COUNT // BATCH


class Target(Switch):
    def __call__(self, number):
        self.check(number)
        return number


class Collate(Switch):
    def __call__(self, samples):
        for _, number in samples:
            self.check(number)
        return data.default_collate(samples)


class Transform(Switch):
    """A transform that identifies each image by its pixels."""

    def __init__(self, at, error, known):
        super().__init__(at, error)
        self.known = known

    def __call__(self, image):
        self.check(self.known.index(image.tobytes()))
        return image


def _pixels_of_all(root):
    crop = T.CenterCrop(40)
    return [crop(image).tobytes() for image, _ in DALIImageFolder(root)]


def _in_sampler(root, at, error):
    switch = Sampler(at, error)
    return switch, Numbered(root, T.Compose(CROP)), {"batch_size": BATCH, "sampler": switch}


def _in_batch_sampler(root, at, error):
    switch = BatchSampler(at, error)
    return switch, Numbered(root, T.Compose(CROP)), {"batch_sampler": switch}


def _in_target_transform(root, at, error):
    switch = Target(at, error)
    return switch, Numbered(root, T.Compose(CROP), switch), {"batch_size": BATCH}


def _in_collate(root, at, error):
    switch = Collate(at, error)
    return switch, Numbered(root, T.Compose(CROP)), {"batch_size": BATCH, "collate_fn": switch}


def _in_transform(root, at, error):
    switch = Transform(at, error, _pixels_of_all(root))
    transform = T.Compose([T.CenterCrop(40), switch, T.PILToTensor()])
    return switch, Numbered(root, transform), {"batch_size": BATCH}


PLACES = {
    "sampler": _in_sampler,
    "batch sampler": _in_batch_sampler,
    "target_transform": _in_target_transform,
    "collate_fn": _in_collate,
    "function": _in_transform,
}


def _results(loader) -> list:
    """Return each batch, or the type of the error in its place."""
    results, iterator = [], None
    while len(results) < 2 * len(WHOLE):
        try:
            iterator = iterator or iter(loader)
            images, numbers = next(iterator)
            results.append((numbers.tolist(), images))
        except StopIteration:
            break
        except Exception as error:
            results.append(type(error))
    return results


def _outline(results: list) -> list:
    return [result if isinstance(result, type) else result[0] for result in results]


def _assert_same(mine: list, theirs: list) -> None:
    assert _outline(mine) == _outline(theirs)
    batches = [(a, b) for a, b in zip(mine, theirs, strict=True) if not isinstance(a, type)]
    assert batches and all(torch.equal(a[1], b[1]) for a, b in batches)


@pytest.mark.alike
@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
@pytest.mark.parametrize("at, error, workers", [
    *((at, error, 0) for at in AT for error in (Mistake, TwoArgumentError, KeyError, OSError, StopIteration)),
    *((at, Mistake, 2) for at in AT),
    *(("middle", error, 2) for error in (TwoArgumentError, StopIteration)),
])  # fmt: skip
@pytest.mark.parametrize("place", PLACES)
def test_user_error_is_raised_at_the_same_batch_as_in_torch(root, place, at, error, workers):
    loaders, switches = [], []
    for kind in (data.DataLoader, DataLoader):
        switch, dataset, options = PLACES[place](root, AT[at], error)
        more = {"device": "cpu", "exact": True, "fallback": "silent"} if kind is DataLoader else {}
        loaders.append(kind(dataset, num_workers=workers, **options, **more))
        switches.append(switch)
    theirs, mine = (_results(loader) for loader in loaders)
    assert loaders[1].explain().startswith("torchvision" if place == "function" else "DALI")  # it reads pixels
    expected = _outline(theirs)
    if error is TwoArgumentError and place in ("target_transform", "collate_fn"):  # torch's workers cannot send it
        expected = [TwoArgumentError if result is RuntimeError else result for result in expected]
    assert _outline(mine) == expected
    assert _outline(theirs) != WHOLE  # a StopIteration ends torch's epoch if there are no workers
    for switch in switches:
        switch.on = False
    theirs, mine = (_results(loader) for loader in loaders)
    assert _outline(mine) == WHOLE
    _assert_same(mine, theirs)
