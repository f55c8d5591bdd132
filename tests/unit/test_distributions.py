"""Random parameters follow torchvision's distributions.

Two-sample tests compare them with torchvision's get_params and make_params at a significance level of 1e-4 with fixed
seeds. Wrong distributions must fail.
"""

import math

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from unit.statistics import COUNT, differ, misfit, quantile, statistic, unlike_in
from unit.test_params import run


def differing_properties(ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Names of the properties of two samples of windows (i, j, h, w) that differ in distribution."""

    def properties(windows):
        i, j, h, w = windows.T.astype(float)
        return {"i": i, "j": j, "h": h, "w": w, "area": h * w, "aspect": w / h, "centre": i + h / 2, "i/j": i - j}

    a, b = properties(ours), properties(theirs)
    return [name for name in a if differ(a[name], b[name])]


def windows(name, height, width, seed=0, **args) -> np.ndarray:
    values = run(name, np.tile([height, width], (COUNT, 1)), seed=seed, stream=1, **args)
    return np.concatenate([values["start"], values["shape"]], 1)


IMAGENET = {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
RESIZED_CROPS = [
    (300, 400, IMAGENET),
    (33, 20, IMAGENET),
    (20, 900, IMAGENET),  # hardly any attempt fits, so the central window is used
    (900, 20, IMAGENET),
    (60, 400, {"scale": (0.3, 1.0), "ratio": (0.5, 2.0)}),  # about half of the attempts fit
    (64, 64, {"scale": (0.9, 1.0), "ratio": (3.0, 4.0)}),
    (100, 50, {"scale": (0.001, 0.002), "ratio": (0.9, 1.1)}),
    (1, 1, IMAGENET),
]


def torchvision_windows(version, height, width, scale, ratio) -> np.ndarray:
    torch.manual_seed(1)
    image = torch.empty(1, height, width)
    if version == "v1":
        return np.array([v1.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(COUNT)])
    transform = v2.RandomResizedCrop(8, scale, ratio)
    drawn = (transform.make_params([image]) for _ in range(COUNT))
    return np.array([(p["top"], p["left"], p["height"], p["width"]) for p in drawn])


@pytest.mark.alike
@pytest.mark.parametrize("height, width, args", RESIZED_CROPS)
def test_random_resized_crop_has_v1s_distribution(height, width, args):
    theirs = torchvision_windows("v1", height, width, **args)
    for seed in range(2):
        assert differing_properties(windows("random_resized_crop", height, width, seed, **args), theirs) == []


def test_random_resized_crop_has_v2s_distribution():
    assert (
        differing_properties(
            windows("random_resized_crop", 300, 400, **IMAGENET), torchvision_windows("v2", 300, 400, **IMAGENET)
        )
        == []
    )


def test_random_resized_crop_when_no_attempt_fits_equals_torchvision():
    """No randomness is left if no attempt can fit, so the numbers are equal."""
    for height, width in ((5, 900), (900, 5), (7, 300), (1, 40)):
        args = {"scale": (0.95, 1.0), "ratio": (3 / 4, 4 / 3)}
        ours = np.unique(windows("random_resized_crop", height, width, **args), axis=0)
        assert ours.tolist() == [list(v1.RandomResizedCrop.get_params(torch.empty(1, height, width), **args))]


def test_random_resized_crop_windows_lie_within_the_image():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 300, (COUNT, 2))
    values = run("random_resized_crop", sizes, **IMAGENET)
    assert (
        (values["start"] >= 0).all()
        and (values["shape"] >= 1).all()
        and (values["start"] + values["shape"] <= sizes).all()
    )


@pytest.mark.parametrize("height, width, size", [(50, 80, (32, 32)), (33, 33, (32, 30)), (32, 200, (32, 32))])
def test_random_crop_has_torchvisions_distribution(height, width, size):
    torch.manual_seed(1)
    theirs = np.array([v1.RandomCrop.get_params(torch.empty(1, height, width), size) for _ in range(COUNT)])
    assert differing_properties(windows("random_crop", height, width, size=size), theirs) == []
    transform = v2.RandomCrop(size)
    drawn = [transform.make_params([torch.empty(1, height, width)]) for _ in range(COUNT)]
    theirs = np.array([(p["top"], p["left"], *size) for p in drawn])
    assert differing_properties(windows("random_crop", height, width, seed=1, size=size), theirs) == []


def test_random_crop_draws_every_position():
    ours = windows("random_crop", 12, 13, size=(10, 10))
    assert len(np.unique(ours[:, :2], axis=0)) == 3 * 4


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_bernoulli_has_frequency_p_and_independent_rows(p):
    """The frequency is within 4 standard deviations of p and successive flags are uncorrelated."""
    flags = run("bernoulli", np.ones((COUNT, 2), int), p=p)["flag"]
    assert abs(flags.mean() - p) <= 4 * math.sqrt(p * (1 - p) / COUNT)
    if 0 < p < 1:
        assert abs(np.corrcoef(flags[:-1], flags[1:])[0, 1]) < 4 / math.sqrt(COUNT)


# ---- the tests themselves


def test_kolmogorov_smirnov_separates_equal_and_different_samples():
    assert statistic([1, 2, 3], [1, 2, 3]) == 0
    assert statistic([1, 2], [3, 4]) == 1
    assert statistic([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    rng = np.random.default_rng(0)
    assert sum(differ(rng.random(500), rng.random(500)) for _ in range(300)) == 0
    assert differ(rng.random(COUNT), rng.random(COUNT) ** 1.2)


def test_chi_square_separates_equal_and_different_samples():
    """Quantiles match published tables, and samples with few distinct values are distinguished."""
    for freedom, exact in ((1, 15.137), (2, 18.421), (5, 25.745), (24, 58.613), (100, 161.319)):
        assert exact <= quantile(freedom) * 1.001 and quantile(freedom) < exact * 1.075
    rng = np.random.default_rng(0)
    dice = [rng.integers(0, 6, COUNT) for _ in range(200)]
    assert not any(misfit(np.bincount(d, minlength=6), [1 / 6] * 6) for d in dice)
    assert not any(unlike_in(a.tolist(), b.tolist()) for a, b in zip(dice[:40], dice[40:80], strict=True))
    loaded = np.where(rng.random(COUNT) < 0.05, 5, dice[0])
    assert misfit(np.bincount(loaded, minlength=6), [1 / 6] * 6) and unlike_in(loaded.tolist(), dice[1].tolist())
    assert misfit([10, 10, 1], [0.5, 0.5, 0]) and not misfit([10, 10, 0], [0.5, 0.5, 0])
    assert not misfit([990, 6, 4], [0.99, 0.005, 0.005]) and misfit([900, 60, 40], [0.99, 0.005, 0.005])


WRONG = {
    "scale from .15": lambda: windows("random_resized_crop", 300, 400, scale=(0.15, 1.0), ratio=IMAGENET["ratio"]),
    "another ratio": lambda: windows("random_resized_crop", 300, 400, scale=IMAGENET["scale"], ratio=(0.7, 1.4)),
    "height and width swapped": lambda: windows("random_resized_crop", 400, 300, **IMAGENET),
    "top left": lambda: windows("random_resized_crop", 300, 400, **IMAGENET) * [0, 0, 1, 1],
    "one off": lambda: np.add(windows("random_resized_crop", 300, 400, **IMAGENET), [6, 0, 0, 0]),
    "ratio not logarithmic": lambda: windows_with_ratio(lambda low, high, u: low + (high - low) * u),
    "side instead of area": lambda: windows_with_area(
        lambda low, high, u: (low**0.5 + (high**0.5 - low**0.5) * u) ** 2
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_window_distributions_are_detected(name):
    assert differing_properties(WRONG[name](), torchvision_windows("v1", 300, 400, **IMAGENET)) != []


def windows_with_ratio(formula):
    return windows_by_formulas(lambda low, high, u: low + (high - low) * u, formula)


def windows_with_area(formula):
    return windows_by_formulas(
        formula, lambda low, high, u: math.exp(math.log(low) + (math.log(high) - math.log(low)) * u)
    )


def test_windows_by_the_right_formulas_have_torchvisions_distribution():
    """Ensures that the wrong formulas are the only reason for the failures above."""
    right = windows_by_formulas(
        lambda low, high, u: low + (high - low) * u, lambda low, high, u: low * (high / low) ** u
    )
    assert differing_properties(right, torchvision_windows("v1", 300, 400, **IMAGENET)) == []


def windows_by_formulas(scale_of, ratio_of, height=300, width=400) -> np.ndarray:
    """Draw RandomResizedCrop windows one by one with the given formulas."""
    rng, found = np.random.default_rng(2), []
    while len(found) < COUNT:
        area = height * width * scale_of(*IMAGENET["scale"], rng.random())
        aspect = ratio_of(*IMAGENET["ratio"], rng.random())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            found.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
    return np.array(found)
