"""Images have torchvision's laws: two-sample tests of each row of the catalogue, ours beside its own draws.

Parity dictates our numbers to torchvision, so it cannot see that a flag is set half as often. Here both draw for
themselves, and simple features of the images are compared: sides, means, extremes, gradients, roughness, single pixels.
Each feature, and each pair of some of them, is a Pearson test of homogeneity over cells of equal mass. All of them
together raise a false alarm in FALSE_ALARMS of the runs with other seeds; the seeds are fixed.
"""

import functools
import itertools
import math
import random
import re
import warnings
from collections import defaultdict
from statistics import NormalDist

import numpy as np
import pytest
import torch
from helpers import ALL
from parity import catalogue
from parity.run import plan_of
from PIL import Image

from dali_compat import DALIArrayDataset, DataLoader
from dali_compat.ops import draws
from dali_compat.ops.draws import is_random
from unit.test_kinds import ROWS

MANY = 800  # of torchvision's images; of ours twice as many
# fewer where they are slow; more where what may be chosen looks alike, or they are quick
OTHERWISE = {"ElasticTransform": 300, "AugMix": 500, "RandomChoice": 2000, "AutoAugment": 2000}
OTHERWISE |= {"RandomHorizontalFlip": 3000, "RandomCrop": 3000}
CELLS, CELLS_OF_PAIRS = 24, 5
FALSE_ALARMS = 1e-3
# The photos of parity are larger than this picture. Its gradients tell where a pixel comes from
SIZES = {"224": "20", "256": "24", "288": "28", "112": "10"}
HEIGHT, WIDTH = 24, 32
ROW, COLUMN = np.mgrid[:HEIGHT, :WIDTH]
PICTURE = np.stack([10 + 7 * COLUMN, 20 + 9 * ROW, 40 + (5 * COLUMN + 3 * ROW) % 130], -1).astype(np.uint8)


def made(entry, version):
    """A row's transform, for PICTURE."""
    before = catalogue.TAKES[entry.takes].replace("CenterCrop(224)", f"CenterCrop(({HEIGHT}, {WIDTH}))")
    expression = re.sub(r"\d+", lambda number: SIZES.get(number[0], number[0]), entry.expression)
    return catalogue.VERSIONS[version].Compose(
        [*catalogue._made(f"[{before}]", version), catalogue._made(expression, version)]
    )


def draws_of(transform) -> list:
    return [s.draw for plan in plan_of(transform).chains for s in plan.steps if is_random(s)]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    RANDOM = [(entry, version) for entry, version in ROWS if draws_of(made(entry, version))]
CONSTANT = [row for row in ROWS if row not in RANDOM]


def of_rows(rows):
    return pytest.mark.parametrize("entry, version", rows, ids=[f"{entry.name}-{version}" for entry, version in rows])


# ---- features


def features(images: list) -> np.ndarray:
    """(N, F) numbers of N images."""
    arrays = [_array(image) for image in images]
    places = defaultdict(list)
    for place, array in enumerate(arrays):
        places[array.shape].append(place)
    found = np.empty((len(images), COUNT))
    for at in places.values():
        found[at] = _features(np.stack([arrays[place] for place in at]))
    return found


def _array(image) -> np.ndarray:
    """(H, W, C); views one below the other."""
    if isinstance(image, tuple):
        return np.concatenate([_array(view) for view in image])
    array = np.asarray(image) if isinstance(image, Image.Image) else np.moveaxis(image.numpy(), -3, -1)
    return array.reshape(*array.shape[:2], -1)


def _features(images: np.ndarray) -> np.ndarray:
    """Of (N, H, W, C), where a gray image has one channel three times."""
    n, height, width, channels = images.shape
    planes = torch.from_numpy(images).movedim(3, 1).expand(n, 3, height, width).float().contiguous()
    flat = planes.flatten(2)
    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
    linear = torch.stack([torch.ones(height, width), x.expand(height, width), y.expand(height, width)]).flatten(1)
    means, of_x, of_y = (flat @ (linear.T / linear.shape[1])).unbind(2)
    across, down = (planes.diff(dim=dim).abs_().sum((2, 3)) for dim in (2, 3))
    spread, low, high = flat.std(2), flat.amin(2), flat.amax(2)
    pixels = planes[:, :, [0, 0, -1, -1, height // 2], [0, -1, 0, -1, width // 2]].flatten(1)
    empty = (planes.amax(1) == 0).float().mean((1, 2))[:, None]
    shape = torch.tensor([[height, width, channels]]).expand(n, 3)
    middle = planes[:, :2, height // 4 : height - height // 4, width // 4 : width - width // 4]
    slopes = torch.stack([middle.diff(dim=dim).mean((2, 3)) for dim in (2, 3)], 1)  # (N, axes, channels)
    angle = torch.cosine_similarity(slopes[..., 0], slopes[..., 1], dim=1)[:, None]
    first = [means, of_x[:, ::2], of_y[:, 1:], across[:, :1], spread[:, 1:2], empty]
    more = [shape, angle, of_x[:, 1:2], of_y[:, :1], across[:, 1:], down, spread[:, ::2], low, high, pixels]
    return torch.cat([*first, *more], 1).numpy()


PAIRED = 10  # the first features, which are compared in pairs, too
COUNT = _features(np.zeros((1, 2, 2, 3))).shape[1]
PAIRS = list(itertools.combinations(range(PAIRED), 2))
TESTS = COUNT + len(PAIRS)
SIGNIFICANCE = FALSE_ALARMS / TESTS / len(RANDOM)

# ---- statistics


def cells(values: np.ndarray, count: int) -> np.ndarray:
    """The cell of each value, of ``count`` with as many values; equal ones (but for rounding) share the one in which
    their middle rank is."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=-np.inf) > 1e-5 * np.abs(ranked).max())
    sizes = np.diff(begins, append=len(values))
    of_group = ((begins + sizes / 2) * count / len(values)).astype(int)
    found = np.empty(len(values), int)
    found[order] = np.repeat(of_group, sizes)
    return found


def is_unlike(cell: np.ndarray, split: int, significance: float) -> bool:
    """Pearson's test of homogeneity: whether the first ``split`` are in other cells than the rest."""
    counts = np.array([np.bincount(part, minlength=cell.max() + 1) for part in (cell[:split], cell[split:])], float)
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / len(cell)
    rare = expected.min(0) < 5
    if rare.any():
        counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(1, keepdims=True)], 1)
        expected = np.concatenate([expected[:, ~rare], expected[:, rare].sum(1, keepdims=True)], 1)
        if expected[:, -1].min() < 5:
            counts, expected = counts[:, :-1], expected[:, :-1]
    freedom = counts.shape[1] - 1
    return freedom > 0 and ((counts - expected) ** 2 / expected).sum() > quantile(freedom, significance)


@functools.cache
def quantile(freedom: int, significance: float) -> float:
    """What chi-square exceeds so often (Wilson and Hilferty, 1931)."""
    normal = NormalDist().inv_cdf(1 - significance)
    return freedom * (1 - 2 / (9 * freedom) + normal * math.sqrt(2 / (9 * freedom))) ** 3


def unlike(ours: np.ndarray, theirs: np.ndarray) -> list[tuple[int, ...]]:
    """The features, and the pairs of them, whose distribution differs."""
    both = np.concatenate([ours, theirs]).T
    coarse = [cells(both[i], CELLS_OF_PAIRS) for i in range(PAIRED)]
    tested = {(i,): cells(both[i], CELLS) for i in range(COUNT)}
    tested |= {(i, j): CELLS_OF_PAIRS * coarse[i] + coarse[j] for i, j in PAIRS}
    return [which for which, cell in tested.items() if is_unlike(cell, len(ours), SIGNIFICANCE)]


# ---- the samples


def many(entry) -> int:
    return OTHERWISE.get(entry.name, MANY)


@functools.cache
def theirs(entry, version) -> np.ndarray:
    torch.manual_seed(1)
    random.seed(1)
    transform, picture = made(entry, version), Image.fromarray(PICTURE)
    return features([transform(picture) for _ in range(many(entry))])


_kept: dict[tuple, np.ndarray] = {}


def ours(entry, version, fault=None) -> np.ndarray:
    """The images of one plan are kept: most transforms have one in v1 and v2."""
    transform, count = made(entry, version), 2 * many(entry)
    key = entry, fault, *(plan.steps for plan in plan_of(transform).chains)
    if key not in _kept:
        dataset = DALIArrayDataset(np.broadcast_to(PICTURE, (count, *PICTURE.shape)), np.zeros(count), transform)
        torch.manual_seed(0)
        loader = DataLoader(dataset, count, device="cpu", exact=True, collate_fn=_images, fallback="error")
        _kept[key] = features(next(iter(loader)))
    return _kept[key]


def _images(samples) -> list:
    return [image for image, _ in samples]


pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")


def _once(rows):
    """Each transform in one of its versions, by turns; policies, whose tables differ, in both."""
    by_entry = defaultdict(list)
    for row in rows:
        by_entry[row[0]].append(row)
    both = {"AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix"}
    return [
        row
        for number, (entry, versions) in enumerate(by_entry.items())
        for row in (versions if ALL or entry.name in both else [versions[number % len(versions)]])
    ]


@of_rows(_once(RANDOM))
def test_images_have_torchvisions_law(entry, version):
    assert unlike(ours(entry, version), theirs(entry, version)) == []


@of_rows(CONSTANT)
def test_what_is_not_random_here_is_not_random_there(entry, version):
    transform = made(entry, version)
    found = features([transform(Image.fromarray(PICTURE)) for _ in range(20)])
    assert (found == found[0]).all()


SAMPLES = {
    "real": lambda rng, n: rng.normal(size=n),
    "flags": lambda rng, n: rng.random(n) < 0.3,
    "rare flags": lambda rng, n: rng.random(n) < 0.004,
    "whole": lambda rng, n: rng.poisson(2, n),
    "real, where a flag says so": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.5),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_false_alarms_are_as_rare_as_is_said(name):
    rng, significance, runs = np.random.default_rng(0), 3e-3, 1000
    samples = (np.asarray(SAMPLES[name](rng, 600), float) for _ in range(runs))
    alarms = sum(is_unlike(cells(both, CELLS), 400, significance) for both in samples)
    assert alarms <= 10  # a Poisson variable of mean 3 exceeds it once in 3,400 times


# ---- laws that are wrong

# what changes no law of these images, or is another kind of argument
NO_LAWS = {"size", "target_size", "center", "channels", "n", "values", "num_magnitude_bins"}
NO_LAWS |= {"mixture_width", "chain_depth", "alpha", "at"}
ANY_NUMBERS = {"random_key"}  # one of 52 bits is as good as one of 53


def halved(value):
    """A number, or an interval about its middle; None of what is neither."""
    if isinstance(value, (bool, str, type(None))):
        return None
    if isinstance(value, (int, float)):
        return type(value)(value / 2)
    if len(value) == 2 and value[0] < value[1]:
        middle, quarter = (value[0] + value[1]) / 2, (value[1] - value[0]) / 4
        return tuple(type(value[0])(middle + side * quarter) for side in (-1, 1))
    return (value[0] / 2, *value[1:]) if isinstance(value[0], float) else value[:-1]


def _faults():
    """(row, draw, the argument that is halved, or "numbers")."""
    for entry, version in RANDOM:
        if (entry, version) != [row for row in RANDOM if row[0] == entry][-1]:
            continue
        for drawn in dict.fromkeys(draws_of(made(entry, version))):
            always = drawn.name == "bernoulli" and dict(drawn.args)["p"] == 1  # with any number
            if drawn.name not in ANY_NUMBERS and not always:
                yield entry, version, drawn.name, "numbers"
            for name, value in drawn.args:
                if name not in NO_LAWS and halved(value) is not None:
                    yield entry, version, drawn.name, name


FAULTS = list(dict.fromkeys(_faults()))


def plant(monkeypatch, name, argument):
    uniforms, own = draws._DRAWS[name]

    def wrong(sizes, u, **args):
        if argument == "numbers":  # an order of ascending numbers is none, too
            u = np.sort(u, 1) / 2
        else:
            args[argument] = halved(args[argument])
        return own(sizes, u, **args)

    monkeypatch.setitem(draws._DRAWS, name, (uniforms, wrong))


@pytest.mark.alike
@pytest.mark.parametrize(
    "entry, version, name, argument",
    FAULTS,
    ids=[f"{entry.name}-{name}-{argument}" for entry, _, name, argument in FAULTS],
)
def test_a_law_that_is_halved_is_noticed(entry, version, name, argument, monkeypatch):
    plant(monkeypatch, name, argument)
    assert unlike(ours(entry, version, (name, argument)), theirs(entry, version)) != []
