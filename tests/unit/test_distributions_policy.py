"""Operations, magnitudes and mixture weights of AutoAugment, RandAugment, TrivialAugmentWide and AugMix.

They are compared with recorded calls of torchvision's transforms and with the probabilities in its tables.
"""

import functools
from collections import Counter

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.ops.draws import compute
from dali_compat.ops.policy import AUGMENTATIONS
from dali_compat.randoms import Randoms
from dali_compat.translate import translate
from unit.recorded_draws import PLAIN, UNSIGNED, drawn, image, recorded
from unit.statistics import COUNT, differ, misfit, unlike_in

RECORDS = 3000
HEIGHT, WIDTH = 60, 80
VERSIONS = {"v1": v1, "v2": v2}
MIX = {"severity": 3, "mixture_width": 3, "chain_depth": -1, "alpha": 1.0, "all_ops": True}


def our_arrays(name, count=COUNT, seed=0, **args):
    return drawn(name, np.tile([HEIGHT, WIDTH], (count, 1)), seed, **args)[1]


def pairs(arrays) -> list:
    """Return the (operation, magnitude) of each row in the format of recorded()."""
    both = zip(arrays["which"].tolist(), arrays["magnitude"].tolist(), strict=True)
    return [(AUGMENTATIONS[which], m) for which, m in both]


@functools.cache
def records(version, transform, *args) -> list[tuple]:
    """Record the operations that a torchvision transform applies to each of many images."""
    made, picture, found = getattr(VERSIONS[version], transform)(*args), image(HEIGHT, WIDTH), []
    if transform == "AugMix":
        picture = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.uint8)
    torch.manual_seed(1)
    with recorded(version, made) as calls:
        for _ in range(RECORDS):
            made(picture)
            found.append(tuple(calls))
            calls.clear()
    return found


# ---- AutoAugment

POLICIES = ("imagenet", "cifar10", "svhn")


def sub_policies(policy):
    """Return ((name, probability, bin), (name, probability, bin)) of each sub-policy."""
    return v1.AutoAugment(v1.AutoAugmentPolicy(policy)).policies


def applied(policy, version, **how):
    """Return the operations applied to each row in the format of recorded()."""
    both = [our_arrays("auto_augment", policy=policy, like=version, at=at, **how) for at in (0, 1)]
    rows = zip(*(zip(pairs(a), a["flag"].tolist(), strict=True) for a in both), strict=True)
    return [tuple(pair for pair, flag in row if flag) for row in rows]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_steps_take_both_operations_from_one_sub_policy(policy, version):
    steps = translate(VERSIONS[version].AutoAugment(v1.AutoAugmentPolicy(policy))).translated[0].steps
    sizes = np.tile([HEIGHT, WIDTH], (RECORDS, 1))
    first, second = compute(steps, sizes, Randoms(1, 0, RECORDS), slice(None))
    both = np.flatnonzero(first["flag"] & second["flag"])
    found = {tuple(AUGMENTATIONS[one["which"][row]] for one in (first, second)) for row in both}
    assert len(found) > 10 and found <= {(a, b) for (a, _, _), (b, _, _) in sub_policies(policy)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_has_torchvisions_distribution(policy, version):
    found, expected = applied(policy, version), records(version, "AutoAugment", v1.AutoAugmentPolicy(policy))
    assert not unlike_in(found, expected)
    names = [tuple(name for name, _ in row) for row in found]
    assert not unlike_in(names, [tuple(name for name, _ in row) for row in expected])
    assert {pair for row in expected for pair in row} <= {pair for row in found for pair in row}, (
        "magnitudes, to the bit"
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_has_the_probabilities_of_its_table(policy, version):
    """Each sub-policy applies none, the first, the second or both operations."""
    chances = Counter()
    for (first, p, _), (second, q, _) in sub_policies(policy):
        for names, chance in (
            ((), (1 - p) * (1 - q)),
            ((first,), p * (1 - q)),
            ((second,), (1 - p) * q),
            ((first, second), p * q),
        ):
            chances[names] += chance / 25
    found = Counter(tuple(name for name, _ in row) for row in applied(policy, version, count=20000))
    assert found.keys() <= chances.keys()
    assert not misfit([found[names] for names in chances], list(chances.values()))


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_signs_are_balanced_and_independent(policy):
    both = [our_arrays("auto_augment", 20000, policy=policy, like="v1", at=at) for at in (0, 1)]
    signs = [np.sign(a["magnitude"]) * ((a["which"] >= 1) & (a["which"] <= 9)) for a in both]
    for sign in signs:
        assert not misfit([(sign < 0).sum(), (sign > 0).sum()], [0.5, 0.5])
    negative = [s[(signs[0] != 0) & (signs[1] != 0)] < 0 for s in signs]
    if len(negative[0]):
        assert not misfit(np.bincount(negative[0] + 2 * negative[1], minlength=4), [0.25] * 4)


def test_wrong_auto_augment_tables_are_detected():
    assert unlike_in(applied("imagenet", "v1"), records("v1", "AutoAugment", v1.AutoAugmentPolicy("cifar10")))
    both = [our_arrays("auto_augment", policy="imagenet", like="v1", at=at, seed=at) for at in (0, 1)]
    rows = zip(*(zip(pairs(a), a["flag"].tolist(), strict=True) for a in both), strict=True)
    apart = [tuple(p for p, flag in row if flag) for row in rows]
    expected = records("v1", "AutoAugment", v1.AutoAugmentPolicy("imagenet"))
    assert unlike_in(apart, expected), "two streams take the operations of two sub-policies"


# ---- RandAugment and TrivialAugmentWide


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("magnitude, bins", [(9, 31), (3, 10)])
def test_rand_augment_has_torchvisions_distribution(version, magnitude, bins):
    found = pairs(our_arrays("rand_augment", magnitude=magnitude, num_magnitude_bins=bins, like=version))
    expected = [row[0] for row in records(version, "RandAugment", 1, magnitude, bins)]
    expected = [pair or ("Identity", 0.0) for pair in expected]
    assert not unlike_in(found, expected) and set(found) == set(expected)
    names = Counter(name for name, _ in found)
    assert not misfit([names[name] for name in AUGMENTATIONS], [1 / 14] * 14 + [0])
    for name in set(AUGMENTATIONS) - UNSIGNED:
        assert not misfit([found.count((name, m)) for m in {m for n, m in found if n == name}], [0.5, 0.5])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bins", [31, 5])
def test_trivial_augment_wide_has_torchvisions_distribution(version, bins):
    arrays = our_arrays("trivial_augment_wide", 20000, num_magnitude_bins=bins, like=version)
    found = pairs(arrays)
    expected = [row[0] for row in records(version, "TrivialAugmentWide", bins)]
    assert not unlike_in(found, expected) and not unlike_in([n for n, _ in found], [n for n, _ in expected])
    assert set(expected) <= set(found)
    names = Counter(name for name, _ in found)
    assert not misfit([names[name] for name in AUGMENTATIONS], [1 / 14] * 14 + [0])
    signs = np.sign(arrays["magnitude"][(arrays["which"] >= 1) & (arrays["which"] <= 9)])
    assert not misfit([(signs < 0).sum(), (signs > 0).sum()], [0.5, 0.5])
    for name in set(AUGMENTATIONS) - PLAIN - {"Posterize"}:
        strengths = Counter(abs(m) for n, m in found if n == name)
        assert len(strengths) == bins and not misfit(list(strengths.values()), [1 / bins] * bins)


def test_trivial_augment_wide_bins_and_signs_are_independent():
    arrays = our_arrays("trivial_augment_wide", 20000, num_magnitude_bins=5, like="v1")
    magnitude = arrays["magnitude"][(arrays["which"] == AUGMENTATIONS.index("Rotate")) & (arrays["magnitude"] != 0)]
    counts = Counter(magnitude.tolist())
    assert len(counts) == 8 and not misfit(list(counts.values()), [1 / 8] * 8)


@pytest.mark.parametrize("like, other", [("v1", "v2"), ("v2", "v1")])
def test_trivial_augment_wide_versions_differ_only_in_solarize(like, other):
    found = set(pairs(our_arrays("trivial_augment_wide", 20000, num_magnitude_bins=31, like=like)))
    expected = {row[0] for row in records(other, "TrivialAugmentWide", 31)}
    assert {name for name, _ in expected - found} == {"Solarize"}
    assert max(m for n, m in found if n == "Solarize") == (255 if like == "v1" else 1)


def test_missing_signs_and_operations_are_detected():
    found = pairs(our_arrays("trivial_augment_wide", num_magnitude_bins=31, like="v1"))
    expected = [row[0] for row in records("v1", "TrivialAugmentWide", 31)]
    unsigned = [(name, abs(m)) for name, m in found]
    assert unlike_in(unsigned, expected)
    without = [pair for pair in found if pair[0] != "Invert" and pair[0] != "Identity"]
    assert unlike_in(without, expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("height, width", [(1, 1), (1, 900), (331, 224), (5000, 37)])
@pytest.mark.parametrize("transform", ["AutoAugment", "RandAugment", "AugMix", "TrivialAugmentWide"])
def test_translation_magnitudes_equal_torchvisions_table_for_the_image_size(transform, version, height, width):
    kind, sizes = getattr(VERSIONS[version], transform), np.tile([height, width], (4000, 1))
    if version == "v2":
        tables = {name: of(10, height, width) for name, (of, _) in kind._AUGMENTATION_SPACE.items()}
    else:
        size = () if transform == "TrivialAugmentWide" else ((height, width),)
        tables = {name: magnitudes for name, (magnitudes, _) in kind()._augmentation_space(10, *size).items()}
    _, arrays, _ = {
        "AutoAugment": lambda: drawn("auto_augment", sizes, policy="cifar10", like=version, at=1),
        "RandAugment": lambda: drawn("rand_augment", sizes, magnitude=7, num_magnitude_bins=10, like=version),
        "AugMix": lambda: drawn("aug_mix", sizes, **MIX, like=version),
        "TrivialAugmentWide": lambda: drawn("trivial_augment_wide", sizes, num_magnitude_bins=10, like=version),
    }[transform]()
    for name in ("TranslateX", "TranslateY"):
        magnitudes = np.abs(arrays["magnitude"][arrays["which"] == AUGMENTATIONS.index(name)])
        assert len(magnitudes) and set(magnitudes.tolist()) <= set(tables[name].tolist())
        if transform == "RandAugment":
            assert set(magnitudes.tolist()) == {tables[name][7].item()}


# ---- AugMix


@pytest.mark.alike
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("all_ops", [True, False])
def test_aug_mix_chains_have_torchvisions_distribution(version, all_ops):
    """Compare the depths, operations and magnitudes of chains. A record has all chains of an image in one row."""
    arrays = our_arrays("aug_mix", 4000, **{**MIX, "all_ops": all_ops}, like=version)
    within = arrays["which"] >= 0
    depth = within.sum(2)
    assert (within == (np.arange(3) < depth[..., None])).all() and (arrays["magnitude"][~within] == 0).all()
    assert not misfit(np.bincount(depth.ravel(), minlength=4), [0, 1 / 3, 1 / 3, 1 / 3])
    assert not misfit(list(Counter((depth @ [16, 4, 1]).tolist()).values()), [1 / 27] * 27), "chains are independent"

    found = pairs({key: array[within] for key, array in arrays.items() if key != "mix"})
    rows = records(version, "AugMix", 3, 3, -1, 1.0, all_ops)
    expected = [pair for row in rows for pair in row]
    assert not unlike_in(found, expected) and set(found) == set(expected)
    assert not unlike_in(depth.sum(1).tolist(), [len(row) for row in rows])
    names = Counter(name for name, _ in found)
    assert len(names) == (13 if all_ops else 9) and not misfit(
        list(names.values()), np.full(len(names), 1 / len(names))
    )


def test_aug_mix_operations_are_independent():
    which = our_arrays("aug_mix", 20000, **{**MIX, "chain_depth": 2, "mixture_width": 2, "all_ops": False}, like="v1")[
        "which"
    ]
    assert which.shape == (20000, 2, 2)
    for one, other in (
        (which[:, 0, 0], which[:, 0, 1]),
        (which[:, 0, 0], which[:, 1, 0]),
        (which[:, 0, 1], which[:, 1, 1]),
    ):
        assert not misfit(list(Counter((one * 15 + other).tolist()).values()), [1 / 81] * 81)


@pytest.mark.parametrize("severity", [1, 3, 10])
def test_aug_mix_severity_is_the_number_of_magnitudes(severity):
    arrays = our_arrays("aug_mix", **{**MIX, "severity": severity}, like="v1")
    strengths = Counter(np.abs(arrays["magnitude"][arrays["which"] == AUGMENTATIONS.index("Rotate")]).tolist())
    assert len(strengths) == severity and not misfit(list(strengths.values()), [1 / severity] * severity)


@pytest.mark.parametrize("alpha", [1.0, 0.2, 3.7])
@pytest.mark.parametrize("width", [1, 3])
def test_aug_mix_weights_have_torchvisions_distribution(alpha, width):
    mix = our_arrays("aug_mix", 4000, **{**MIX, "alpha": alpha, "mixture_width": width}, like="v1")["mix"]
    assert mix.shape == (4000, 1 + width) and mix.dtype == np.float32 and (mix > 0).all() and (mix < 1).all()
    assert np.allclose(mix.sum(1), 1, atol=1e-6)
    torch.manual_seed(0)
    image_or_not = torch._sample_dirichlet(torch.full((4000, 2), alpha))
    chains = torch._sample_dirichlet(torch.full((4000, width), alpha)) * image_or_not[:, 1:]
    expected = torch.cat([image_or_not[:, :1], chains], 1).numpy()
    for column in range(1 + width):
        assert not differ(mix[:, column], expected[:, column])
    if width > 1:
        assert not differ(mix[:, 1] / mix[:, 1:].sum(1), expected[:, 1] / expected[:, 1:].sum(1))
        share = mix[:, 1] / mix[:, 1:].sum(1)
        assert abs(np.corrcoef(mix[:, 0], share)[0, 1]) < 4.5 / 4000**0.5


def test_aug_mix_weights_with_tiny_alpha_are_finite():
    """Gamma variates underflow for these alphas; torch returns halves, ones and the smallest float32."""
    for alpha in (1e-3, 1e-5):
        mix = our_arrays("aug_mix", 300, **{**MIX, "alpha": alpha}, like="v1")["mix"]
        assert np.isfinite(mix).all() and np.allclose(mix.sum(1), 1, atol=1e-6) and (mix[:, 0] == 0.5).any()


def test_wrong_aug_mix_weights_are_detected():
    mix = our_arrays("aug_mix", 4000, **MIX, like="v1")["mix"]
    flat = our_arrays("aug_mix", 4000, **{**MIX, "alpha": 1.6}, like="v1")["mix"]
    assert differ(mix[:, 0], flat[:, 0])
    rng = np.random.default_rng(0).random((4000, 3))
    assert differ(mix[:, 1] / mix[:, 1:].sum(1), rng[:, 0] / rng.sum(1)), "shares of uniform numbers"
