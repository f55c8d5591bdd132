"""Independence of draws, the distributions of choices and permutations, and sizes after rotations.

test_distributions_fed.py compares the other parameters with torchvision's for the same uniform numbers, so that they
have the same distribution.
"""

import inspect
import itertools
import math
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from dali_compat.ops import draws
from dali_compat.ops.draws import is_random
from dali_compat.ops.translators import LAZY_MODULES
from dali_compat.plan import draw
from unit.operations import ROWS, kind_of, own_steps
from unit.recorded_draws import drawn
from unit.statistics import COUNT, differ, misfit, statistic, unlike_in

RANGES = {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "saturation": (0.2, 1.8), "hue": (-0.1, 0.1)}
AFFINE = {"degrees": (-30.0, 30.0), "translate": (0.1, 0.3), "scale": (0.5, 2.0), "shear": (-5.0, 5.0, -9.0, 2.0)}
ERASING = {"scale": (0.02, 0.33), "ratio": (0.3, 3.3)}
MIX = {"severity": 3, "mixture_width": 3, "chain_depth": -1, "alpha": 1.0, "all_ops": True, "like": "v1"}
DRAWS = [
    ("bernoulli", {"p": 0.3}),
    ("choice", {"p": (1, 2, 0.5)}),
    ("order", {"n": 5}),
    ("random_key", {}),
    ("bernoulli", {"p": 0.3, "values": (("bits", 3),)}),
    ("uniforms", {"count": 3}),
    ("color_jitter", RANGES),
    ("photometric_distort", {**RANGES, "p": 0.5}),
    ("channel_permutation", {"channels": 3}),
    ("blur_sigma", {"sigma": (0.1, 2.0)}),
    ("jpeg_quality", {"quality": (5, 95)}),
    ("rotation", {"degrees": (-180.0, 180.0), "expand": False, "center": None, "like": "pil"}),
    ("rotation", {"degrees": (-180.0, 180.0), "expand": True, "center": None, "like": "pil"}),
    ("rotation", {"degrees": (-180.0, 180.0), "expand": True, "center": [9, 3.5], "like": "v1"}),
    ("affine_parameters", AFFINE),
    ("perspective_points", {"distortion_scale": 0.5, "p": 0.5}),
    ("erasing", {"p": 0.5, **ERASING, "random_value": True}),
    ("random_crop", {"size": (30, 30)}),
    ("random_resized_crop", {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}),
    ("zoom_out", {"side_range": (1.0, 4.0), "p": 0.5}),
    ("scale_jitter", {"target_size": (400, 500), "scale_range": (0.1, 2.0)}),
    ("random_shortest_size", {"min_size": (50, 60, 80), "max_size": 300}),
    ("random_resize", {"min_size": 50, "max_size": 100}),
    ("auto_augment", {"policy": "svhn", "like": "v1", "at": 0}),
    ("auto_augment", {"policy": "cifar10", "like": "v2", "at": 1}),
    ("rand_augment", {"magnitude": 9, "num_magnitude_bins": 31, "like": "v1"}),
    ("trivial_augment_wide", {"num_magnitude_bins": 31, "like": "v2"}),
    ("aug_mix", MIX),
    ("aug_mix", {**MIX, "alpha": 0.4, "chain_depth": 2, "like": "v2"}),
]
# The remaining draws of the catalogue, with the arguments of its rows.
NAMED = {name for name, _ in DRAWS}
STEPS = [s for row in ROWS for s in own_steps(*row)[1] if s.draw and s.draw.name in draws._DRAWS]
OTHERS = [s.draw for s in STEPS if s.draw.name not in NAMED and is_random(s)]
DRAWS += [(drawn.name, dict(drawn.args)) for drawn in dict.fromkeys(OTHERS)]
DRAW_IDS = [f"{i}-{name}" for i, (name, _) in enumerate(DRAWS)]


def repeated_size(count=COUNT, height=60, width=80):
    return np.tile([height, width], (count, 1))


def values(name, rows=COUNT, height=60, width=80, seed=0, **args):
    return drawn(name, repeated_size(rows, height, width), seed, **args)[1]


def torchvision_sample(sample, count=COUNT):
    """Draw a sample of torchvision's parameters."""
    torch.manual_seed(1)
    random.seed(1)
    return np.array([sample() for _ in range(count)])


# ---- every draw


def test_every_registered_draw_is_tested():
    of_steps = {
        name: kind_of(function)
        for name, (uniforms, function) in draws._DRAWS.items()
        if uniforms  # others draw nothing or combine other draws
        and kind_of(function) not in LAZY_MODULES  # for packages that may not be installed, see test_timm.py
        and "of" not in inspect.signature(function).parameters
    }
    del of_steps["given"]  # drawn by the data set's code
    unknown = set(of_steps) - {name for name, _ in DRAWS}
    assert not unknown, [
        f"no row of tests/parity/catalogue.py draws {name} of ops/{of_steps[name]}.py" for name in unknown
    ]


@pytest.mark.parametrize("name, args", DRAWS, ids=DRAW_IDS)
def test_draws_do_not_depend_on_batch_size(name, args):
    sizes = np.random.default_rng(2).integers(40, 200, (97, 2))
    _, whole, after = drawn(name, sizes, position=1000, **args)
    assert all(len(array) == 97 for array in whole.values())
    for split in (1, 13, 64):
        parts = [drawn(name, sizes[at : at + split], position=1000 + at, **args)[1:] for at in range(0, 97, split)]
        for key, array in whole.items():
            assert array.tobytes() == np.concatenate([arrays[key] for arrays, _ in parts]).tobytes(), key
            assert {arrays[key].dtype for arrays, _ in parts} == {array.dtype}
        assert np.array_equal(after, np.concatenate([sizes for _, sizes in parts]))


@pytest.mark.parametrize("name, args", DRAWS, ids=DRAW_IDS)
def test_draws_of_successive_images_are_uncorrelated(name, args):
    """The correlation of successive values of every column is within 4.5 standard deviations of zero."""
    varying = 0
    for key, array in values(name, **args).items():
        for column in np.nan_to_num(array.reshape(COUNT, -1).astype(float)).T:
            if np.ptp(column):
                varying += 1
                assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 4.5 / math.sqrt(COUNT), key
    assert varying or name in ("random_shortest_size", "random_resize")


@pytest.mark.parametrize("name, args", DRAWS, ids=DRAW_IDS)
def test_draws_with_another_seed_differ(name, args):
    one, other = (values(name, 500, seed=seed, **args) for seed in (0, 1))
    assert any(one[key].tobytes() != other[key].tobytes() for key in one)


def _correlations(columns) -> np.ndarray:
    matrix = np.corrcoef(np.array(columns, float))
    return np.abs(matrix[np.triu_indices(len(matrix), 1)])


INDEPENDENT = {
    "color_jitter": lambda v: [v["order"][:, 0], v["brightness"], v["contrast"], v["saturation"], v["hue"]],
    "affine_parameters": lambda v: [v["angle"], *v["translate"].T, v["scale"], *v["shear"].T],
    "perspective_points": lambda v: [v["flag"], *v["endpoints"].reshape(COUNT, 8).T],
    "photometric_distort": lambda v: [
        *(np.isnan(v[k]) for k in ("brightness", "saturation", "hue")),
        np.isnan(v["contrast_before"]) & np.isnan(v["contrast_after"]),
        v["order"][:, 0] < 0,
    ],
    "erasing": lambda v: [v["flag"], v["shape"].prod(1), v["key"]],
    "trivial_augment_wide": lambda v: [v["which"], np.sign(v["magnitude"])],
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_parameters_of_one_draw_are_independent(name):
    columns = INDEPENDENT[name](values(name, **dict(DRAWS)[name]))
    if name == "trivial_augment_wide":  # only operations with a sign
        columns = [c[(columns[0] >= 1) & (columns[0] <= 9) & (columns[1] != 0)] for c in columns]
    assert (_correlations(columns) < 4.5 / math.sqrt(len(columns[0]))).all()


# ---- laws


@pytest.mark.parametrize("p", [(1,), (1, 1), (0.2, 0.3, 0.5), (3, 0, 1, 7), (0, 1), (1e-3, 1), (1, 0)])
def test_choice_has_the_distribution_of_random_choices(p):
    ours = values("choice", p=p)["choice"]
    assert ours.dtype == np.int32 and not misfit(np.bincount(ours, minlength=len(p)), np.array(p) / sum(p))
    names = list(range(len(p)))
    assert not unlike_in(torchvision_sample(lambda: random.choices(names, weights=p)[0]).tolist(), ours.tolist())


def test_choice_on_boundary_of_two_weights_equals_random_choices(monkeypatch):
    for p in ((1, 1, 2), (0, 1, 1, 0), (1, 0, 0, 3)):
        for u in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53):
            monkeypatch.setattr(random.Random, "random", lambda self, u=u: u)
            (expected,) = random.Random().choices(range(len(p)), weights=p)
            arrays, _ = draws.run(draw("choice", p=p), repeated_size(1), np.array([[u]]))
            assert arrays["choice"].tolist() == [expected]


def test_choice_has_the_distribution_of_v2_random_choice():
    chosen = v2.RandomChoice([lambda x, i=i: i for i in range(3)], p=[2, 5, 3])
    assert not unlike_in(
        torchvision_sample(lambda: chosen(0)).tolist(), values("choice", p=(2, 5, 3))["choice"].tolist()
    )


@pytest.mark.parametrize(
    "name, args", [("order", {"n": 4}), ("channel_permutation", {"channels": 3}), ("color_jitter", RANGES)]
)
def test_every_permutation_is_equally_likely(name, args):
    orders = [tuple(row) for row in values(name, **args)["order"].tolist()]
    all_of_them = list(itertools.permutations(range(len(orders[0]))))
    assert not misfit([orders.count(order) for order in all_of_them], np.full(len(all_of_them), 1 / len(all_of_them)))
    assert not unlike_in(
        orders, list(map(tuple, torchvision_sample(lambda: torch.randperm(len(orders[0])).numpy()).tolist()))
    )


def test_random_keys_are_uniform_53_bit_integers():
    keys = values("random_key")["key"]
    assert keys.dtype == np.int64 and keys.min() >= 0 and keys.max() < 2**53 and len(np.unique(keys)) == COUNT
    assert not differ(keys / 2**53, np.random.default_rng(0).random(COUNT))
    assert not differ(keys % 4096 / 4096, np.random.default_rng(0).random(COUNT)), "its low bits are random, too"


def test_bernoulli_with_values_returns_flags_and_constant_values():
    both = values("bernoulli", p=0.3, values=(("bits", 3), ("threshold", 0.5)))
    assert not misfit(np.bincount(both["flag"], minlength=2), [0.7, 0.3])
    assert (both["bits"] == 3).all() and (both["threshold"] == 0.5).all() and both["bits"].dtype == np.int32


def test_uniforms_for_custom_translations_are_uniform_and_independent():
    u = values("uniforms", count=3)["uniforms"]
    assert u.dtype == np.float32 and u.shape == (COUNT, 3) and u.min() >= 0 and u.max() < 1
    assert (
        not differ(u, np.random.default_rng(0).random((COUNT, 3)))
        and (_correlations(u.T) < 4.5 / math.sqrt(COUNT)).all()
    )


# ---- color


def test_photometric_distort_permutes_a_single_channel():
    assert set(values("photometric_distort", **RANGES, p=0.5, channels=1)["order"].ravel().tolist()) == {-1, 0}


# ---- warps


ANGLES = [(-180.0, 180.0), (0.0, 0.0), (30.0, 30.0), (45.0, 45.0), (90.0, 90.0), (-90.0, -90.0), (180.0, 180.0),
          (450.0, 450.0), (-1e-20, -1e-20), (359.99, 360.0), (0.001, 0.001)]  # fmt: skip


@pytest.mark.parametrize("degrees", ANGLES, ids=str)
@pytest.mark.parametrize("center", [None, (0, 0), (11, 3), (7.5, 20.25)], ids=str)
def test_rotation_with_expand_has_torchvisions_output_size(degrees, center):
    """Compare with the sizes that torchvision returns for PIL images and for tensors of v1 and v2."""
    sizes = np.random.default_rng(0).integers(1, 40, (40, 2))
    sizes[::4] = sizes[::4, :1]  # squares
    for like in ("pil", "v1", "v2"):
        _, ours, after = drawn("rotation", sizes, degrees=degrees, expand=True, center=center, like=like)
        rotate = v2.functional.rotate if like == "v2" else F.rotate
        rows = zip(sizes.tolist(), ours["angle"].tolist(), after.tolist(), strict=True)
        for (height, width), angle, expected in rows:
            picture = Image.new("L", (width, height)) if like == "pil" else torch.zeros(1, height, width)
            made = rotate(picture, angle, expand=True, center=center and list(center))
            assert expected == ([made.height, made.width] if like == "pil" else list(made.shape[1:]))


def test_rotation_with_expand_of_large_images_has_torchvisions_output_size():
    """The float32 error grows with the image."""
    sizes = np.random.default_rng(0).integers(1000, 9000, (1000, 2))
    for like in ("pil", "v1", "v2"):
        _, ours, after = drawn("rotation", sizes, degrees=(-180.0, 180.0), expand=True, center=None, like=like)
        rows = zip(sizes.tolist(), ours["angle"].tolist(), after.tolist(), strict=True)
        for (height, width), angle, expected in rows:
            if like == "pil":
                made = _SizeRecorder((width, height)).rotate(angle, expand=True).requested
            else:
                module = v2.functional._geometry if like == "v2" else F.F_t
                turned = angle % 360 if like == "v2" else angle
                matrix = F._get_inverse_affine_matrix([0.0, 0.0], -turned, [0.0, 0.0], 1.0, [0.0, 0.0])
                made = module._compute_affine_output_size(matrix, width, height)
            assert tuple(expected[::-1]) == made


class _SizeRecorder(Image.Image):
    """An image without pixels that records the requested output size."""

    def __init__(self, size):
        super().__init__()
        self._size = size

    def transform(self, size, *_, **__):
        self.requested = size
        return self


@pytest.mark.parametrize("center", [None, (3, 4)])
def test_rotation_without_expand_keeps_the_size(center):
    for like in ("pil", "v1", "v2"):
        _, _, after = drawn("rotation", repeated_size(40), degrees=(90.0, 90.0), expand=False, center=center, like=like)
        assert np.array_equal(after, repeated_size(40))


# ---- windows and sizes


def test_erasing_applies_with_probability_p():
    ours = values("erasing", p=0.3, **ERASING, random_value=True)
    assert not misfit(np.bincount(ours["flag"], minlength=2), [0.7, 0.3]) and len(np.unique(ours["key"])) == COUNT


# ---- the tests detect wrong draws


def test_biased_permutations_are_detected():
    """Swapping each position with any position is a well-known mistake that makes some orders likelier."""
    rng, found = np.random.default_rng(0), []
    for _ in range(COUNT):
        order = [0, 1, 2]
        for i in range(3):
            j = rng.integers(3)
            order[i], order[j] = order[j], order[i]
        found.append(tuple(order))
    permutations = list(itertools.permutations(range(3)))
    assert misfit([found.count(p) for p in permutations], [1 / 6] * 6)
    assert unlike_in(found, [tuple(p) for p in values("channel_permutation", channels=3)["order"].tolist()])


def test_independent_contrast_positions_are_detected():
    """One flag decides the position of contrast; two would apply it twice or never."""
    ours, other = (values("photometric_distort", seed=seed, **RANGES, p=1.0) for seed in (0, 1))
    before, after = (np.isnan(ours[name]).tolist() for name in ("contrast_before", "contrast_after"))
    others = np.isnan(other["contrast_after"]).tolist()
    pairs, mixed = list(zip(before, after, strict=True)), list(zip(before, others, strict=True))
    assert set(pairs) == {(True, False), (False, True)} and unlike_in(pairs, mixed)


def test_correlated_parameters_are_detected():
    rng = np.random.default_rng(0)
    a = rng.random(COUNT)
    assert _correlations([a, a + 3 * rng.random(COUNT)])[0] > 4.5 / math.sqrt(COUNT)
    assert statistic(a, a) == 0
