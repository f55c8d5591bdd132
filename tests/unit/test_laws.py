"""Images follow torchvision's distributions, tested with two samples for each row of the catalogue.

The parity tests feed torchvision our random numbers, so they cannot detect a flag that is set half as often. Here both
sides draw their own numbers, and simple features of the images are compared: sides, means, extremes, gradients,
roughness and single pixels. Each feature, and each pair of some of them, is a Pearson test of homogeneity over cells of
equal mass. With other seeds, all tests together raise a false alarm in FALSE_ALARMS of the runs. The seeds are fixed.
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
from unit.operations import ROWS

MANY = 800  # number of torchvision's images; twice as many of ours
# Fewer for slow transforms; more for fast ones and for those with similar choices.
OTHER_COUNTS = {"ElasticTransform": 300, "AugMix": 500, "RandomChoice": 2000, "AutoAugment": 2000}
OTHER_COUNTS |= {"RandomHorizontalFlip": 3000, "RandomCrop": 3000}
CELLS, CELLS_OF_PAIRS = 24, 5
FALSE_ALARMS = 1e-3
# The parity photos are larger than this image. Its gradients identify the source of each pixel.
SIZES = {"224": "20", "256": "24", "288": "28", "112": "10"}
HEIGHT, WIDTH = 24, 32
ROW, COLUMN = np.mgrid[:HEIGHT, :WIDTH]
PICTURE = np.stack([10 + 7 * COLUMN, 20 + 9 * ROW, 40 + (5 * COLUMN + 3 * ROW) % 130], -1).astype(np.uint8)


def transform_of(entry, version):
    """Return a row's transform, adapted to PICTURE."""
    before = catalogue.TAKES[entry.takes].replace("CenterCrop(224)", f"CenterCrop(({HEIGHT}, {WIDTH}))")
    expression = re.sub(r"\d+", lambda number: SIZES.get(number[0], number[0]), entry.expression)
    return catalogue.VERSIONS[version].Compose(
        [*catalogue._made(f"[{before}]", version), catalogue._made(expression, version)]
    )


def draws_of(transform) -> list:
    return [s.draw for plan in plan_of(transform).chains for s in plan.steps if is_random(s)]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    RANDOM = [(entry, version) for entry, version in ROWS if draws_of(transform_of(entry, version))]
CONSTANT = [row for row in ROWS if row not in RANDOM]


def of_rows(rows):
    return pytest.mark.parametrize("entry, version", rows, ids=[f"{entry.name}-{version}" for entry, version in rows])


# ---- features


def features(images: list) -> np.ndarray:
    """Return (N, F) features of N images."""
    arrays = [_array(image) for image in images]
    places = defaultdict(list)
    for place, array in enumerate(arrays):
        places[array.shape].append(place)
    found = np.empty((len(images), COUNT))
    for at in places.values():
        found[at] = _features(np.stack([arrays[place] for place in at]))
    return found


def _array(image) -> np.ndarray:
    """Return an array (H, W, C). Views are concatenated vertically."""
    if isinstance(image, tuple):
        return np.concatenate([_array(view) for view in image])
    array = np.asarray(image) if isinstance(image, Image.Image) else np.moveaxis(image.numpy(), -3, -1)
    return array.reshape(*array.shape[:2], -1)


def _features(images: np.ndarray) -> np.ndarray:
    """Return the features of (N, H, W, C). A gray image is treated as three equal channels."""
    n, height, width, channels = images.shape
    planes = torch.from_numpy(images).movedim(3, 1).expand(n, 3, height, width).double().contiguous()
    flat = planes.flatten(2)
    y, x = (torch.linspace(-1, 1, size, dtype=torch.float64) for size in (height, width))
    y, ones = y[:, None], torch.ones(height, width, dtype=torch.float64)
    linear = torch.stack([ones, x.expand(height, width), y.expand(height, width)]).flatten(1)
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
    return torch.cat([*first, *more], 1).numpy().round(6)  # a zero has rounding errors that depend on the batch


PAIRED = 10  # the first features are also compared in pairs
COUNT = _features(np.zeros((1, 2, 2, 3))).shape[1]
PAIRS = list(itertools.combinations(range(PAIRED), 2))
TESTS = COUNT + len(PAIRS)
SIGNIFICANCE = FALSE_ALARMS / TESTS / len(RANDOM)

# ---- statistics


def cells(values: np.ndarray, count: int) -> np.ndarray:
    """Return the cell of each value, out of ``count`` cells of equal mass.

    Equal values (up to rounding) share the cell of their middle rank.
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=-np.inf) > 1e-5 * np.abs(ranked).max())
    sizes = np.diff(begins, append=len(values))
    of_group = ((begins + sizes / 2) * count / len(values)).astype(int)
    found = np.empty(len(values), int)
    found[order] = np.repeat(of_group, sizes)
    return found


def cells_differ(cell: np.ndarray, split: int, significance: float) -> bool:
    """Pearson's test of homogeneity. Return True if the first ``split`` values differ in distribution from the rest."""
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
    """Quantile of chi-square that is exceeded with this probability (Wilson and Hilferty, 1931)."""
    normal = NormalDist().inv_cdf(1 - significance)
    return freedom * (1 - 2 / (9 * freedom) + normal * math.sqrt(2 / (9 * freedom))) ** 3


def unlike(our_features: np.ndarray, torchvision_features: np.ndarray) -> list[tuple[int, ...]]:
    """Return the features, and pairs of features, that differ in distribution."""
    both = np.concatenate([our_features, torchvision_features]).T
    coarse = [cells(both[i], CELLS_OF_PAIRS) for i in range(PAIRED)]
    tested = {(i,): cells(both[i], CELLS) for i in range(COUNT)}
    tested |= {(i, j): CELLS_OF_PAIRS * coarse[i] + coarse[j] for i, j in PAIRS}
    return [which for which, cell in tested.items() if cells_differ(cell, len(our_features), SIGNIFICANCE)]


# ---- the samples


def sample_count(entry) -> int:
    return OTHER_COUNTS.get(entry.name, MANY)


@functools.cache
def torchvision_features(entry, version) -> np.ndarray:
    torch.manual_seed(1)
    random.seed(1)
    transform, picture = transform_of(entry, version), Image.fromarray(PICTURE)
    return features([transform(picture) for _ in range(sample_count(entry))])


_cache: dict[tuple, np.ndarray] = {}


def our_features(entry, version, fault=None) -> np.ndarray:
    """The images of a plan are cached, because most transforms have the same plan in v1 and v2."""
    transform, count = transform_of(entry, version), 2 * sample_count(entry)
    key = entry, fault, *(plan.steps for plan in plan_of(transform).chains)
    if key not in _cache:
        dataset = DALIArrayDataset(np.broadcast_to(PICTURE, (count, *PICTURE.shape)), np.zeros(count), transform)
        torch.manual_seed(0)
        loader = DataLoader(dataset, count, device="cpu", exact=True, collate_fn=_images, fallback="error")
        _cache[key] = features(next(iter(loader)))
    return _cache[key]


def _images(samples) -> list:
    return [image for image, _ in samples]


pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")


def one_version_each(rows):
    """Alternate between versions; policies have different tables, so both are tested."""
    by_entry = defaultdict(list)
    for row in rows:
        by_entry[row[0]].append(row)
    both = {"AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix"}
    return [
        row
        for number, (entry, versions) in enumerate(by_entry.items())
        for row in (versions if ALL or entry.name in both else [versions[number % len(versions)]])
    ]


@pytest.mark.alike
@of_rows(one_version_each(RANDOM))
def test_images_have_torchvisions_distribution(entry, version):
    assert unlike(our_features(entry, version), torchvision_features(entry, version)) == []


@of_rows(CONSTANT)
def test_transforms_without_draws_are_constant_in_torchvision(entry, version):
    transform = transform_of(entry, version)
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
def test_false_alarms_are_as_rare_as_the_significance(name):
    rng, significance, runs = np.random.default_rng(0), 3e-3, 1000
    samples = (np.asarray(SAMPLES[name](rng, 600), float) for _ in range(runs))
    alarms = sum(cells_differ(cells(both, CELLS), 400, significance) for both in samples)
    assert alarms <= 10  # a Poisson variable of mean 3 exceeds it once in 3,400 times


# ---- wrong distributions

# Arguments that do not change the distribution of these images, or that cannot be halved.
WITHOUT_EFFECT = {"size", "target_size", "center", "channels", "n", "values", "num_magnitude_bins"}
WITHOUT_EFFECT |= {"mixture_width", "chain_depth", "alpha", "at"}
ANY_NUMBERS = {"random_key"}  # 52 random bits look like 53


def halved(value):
    """Halve a number, or an interval about its center. Return None for other values."""
    if isinstance(value, (bool, str, type(None))):
        return None
    if isinstance(value, (int, float)):
        return type(value)(value / 2)
    if len(value) == 2 and value[0] < value[1]:
        middle, quarter = (value[0] + value[1]) / 2, (value[1] - value[0]) / 4
        return tuple(type(value[0])(middle + side * quarter) for side in (-1, 1))
    return (value[0] / 2, *value[1:]) if isinstance(value[0], float) else value[:-1]


def _faults():
    """Yield (row, draw, the halved argument or "numbers")."""
    for entry, version in RANDOM:
        if (entry, version) != [row for row in RANDOM if row[0] == entry][-1]:
            continue
        for drawn in dict.fromkeys(draws_of(transform_of(entry, version))):
            always = drawn.name == "bernoulli" and dict(drawn.args)["p"] == 1  # regardless of the number
            if drawn.name not in ANY_NUMBERS and not always:
                yield entry, version, drawn.name, "numbers"
            for name, value in drawn.args:
                if name not in WITHOUT_EFFECT and halved(value) is not None:
                    yield entry, version, drawn.name, name


FAULTS = list(dict.fromkeys(_faults()))


def plant_fault(monkeypatch, name, argument):
    uniforms, own = draws._DRAWS[name]

    def wrong(sizes, u, **args):
        if argument == "numbers":  # sorted numbers do not give a random order either
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
def test_distribution_with_a_halved_argument_is_detected(entry, version, name, argument, monkeypatch):
    plant_fault(monkeypatch, name, argument)
    assert unlike(our_features(entry, version, (name, argument)), torchvision_features(entry, version)) != []
