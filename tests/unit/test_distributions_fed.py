"""Random parameters equal those of torchvision's get_params and make_params for the same uniform numbers.

This covers bounds, rounding and float32, which the statistical tests cannot resolve.
"""

from collections import deque
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.ops.draws import ImageTooSmall
from dali_compat.ops.policy import AUGMENTATIONS
from unit.recorded_draws import PLAIN, UNSIGNED, drawn, image, recorded

RNG = np.random.default_rng(0)
SIZES = np.concatenate([RNG.integers(1, 3000, (700, 2)), RNG.integers(1, 40, (300, 2)), [[1, 1], [1, 3000], [3000, 1]]])


@contextmanager
def fed(rand=(), randint=(), uniform=()):
    """Make torch.rand, torch.randint and Tensor.uniform_ use these numbers in [0, 1), in order."""
    rand, randint, uniform = deque(rand), deque(randint), deque(uniform)

    def as_rand(*size):
        count = int(np.prod(size[0] if len(size) == 1 else size))
        values = torch.tensor([np.floor(rand.popleft() * 2**24) / 2**24 for _ in range(count)], dtype=torch.float32)
        return values.reshape(*size)

    def as_randint(*args, low=0, high=None, size=None, dtype=None):
        *bounds, size = args if size is None else (*args, size)
        low, high = bounds if len(bounds) == 2 else (low, bounds[0] if bounds else high)
        return torch.tensor([low + int(randint.popleft() * (high - low)) for _ in range(int(np.prod(size)))]).reshape(
            size
        )

    def as_uniform(tensor, low, high):
        return tensor.fill_(float(low) + (float(high) - float(low)) * uniform.popleft())

    with (
        mock.patch.object(torch, "rand", as_rand),
        mock.patch.object(torch, "randint", as_randint),
        mock.patch.object(torch.Tensor, "uniform_", as_uniform),
    ):
        yield


@pytest.mark.parametrize("translate", [None, (0.3, 0.5)])
@pytest.mark.parametrize("scale", [None, (0.5, 1.7)])
@pytest.mark.parametrize("shear", [None, (-7.0, 9.0), (-7.0, 9.0, 3.0, 4.0)])
def test_affine_parameters_equal_v1(translate, scale, shear):
    args = {"degrees": (-33.3, 55.5), "translate": translate, "scale": scale, "shear": shear}
    u, ours, after = drawn("affine_parameters", SIZES, **args)
    assert after is SIZES or np.array_equal(after, SIZES)
    for row, (height, width) in enumerate(SIZES.tolist()):
        used = [
            0,
            *((1, 2) if translate else ()),
            *((3,) if scale else ()),
            *((4, 5)[: len(shear) // 2] if shear else ()),
        ]
        with fed(uniform=u[row, used]):
            theirs = v1.RandomAffine.get_params(*args.values(), [width, height])
        mine = ours["angle"][row], tuple(ours["translate"][row]), ours["scale"][row], tuple(ours["shear"][row])
        assert mine == theirs


def test_affine_parameters_equal_v2():
    args = {"degrees": (-33.3, 55.5), "translate": (0.3, 0.5), "scale": (0.5, 1.7), "shear": (-7.0, 9.0, 3.0, 4.0)}
    u, ours, _ = drawn("affine_parameters", SIZES[:200], **args)
    transform = v2.RandomAffine(**args)
    for row, (height, width) in enumerate(SIZES[:200].tolist()):
        with fed(uniform=u[row]):
            theirs = transform.make_params([image(height, width)])
        mine = {
            "angle": ours["angle"][row],
            **{k: tuple(ours[k][row]) for k in ("translate", "shear")},
            "scale": ours["scale"][row],
        }
        assert mine == theirs


@pytest.mark.parametrize("distortion_scale", [0.0, 0.3, 0.5, 1.0])
def test_perspective_points_equal_v1(distortion_scale):
    u, ours, _ = drawn("perspective_points", SIZES, distortion_scale=distortion_scale, p=0.5)
    for row, (height, width) in enumerate(SIZES.tolist()):
        with fed(randint=u[row, 1:]):
            _, ends = v1.RandomPerspective.get_params(width, height, distortion_scale)
        assert ours["endpoints"][row].tolist() == ends
    assert np.array_equal(ours["flag"], u[:, 0] < 0.5)


def test_perspective_points_equal_v2():
    u, ours, _ = drawn("perspective_points", SIZES[300:500], distortion_scale=0.7, p=0.5)
    transform, points = v2.RandomPerspective(0.7), []
    with mock.patch(
        "torchvision.transforms.v2._geometry._get_perspective_coeffs", lambda start, end: points.append(end)
    ):
        for row, (height, width) in enumerate(SIZES[300:500].tolist()):
            with fed(randint=u[row, 1:]):
                transform.make_params([image(height, width)])
    assert ours["endpoints"].tolist() == points


ERASED = {"usual": ((0.02, 0.33), (0.3, 3.3)), "large": ((0.7, 1.0), (0.5, 2.0)), "tiny": ((0.0, 0.001), (0.9, 1.1))}


@pytest.mark.parametrize("name", ERASED)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_erasing_windows_equal_torchvision(name, version):
    """float32 and our float64 may round differently within 1e-6 of a half, which occurs in none of these 1,003
    sizes."""
    scale, ratio = ERASED[name]
    u, ours, after = drawn("erasing", SIZES, p=1.0, scale=scale, ratio=ratio, random_value=False)
    assert np.array_equal(after, SIZES) and set(ours) == {"start", "shape", "flag"}
    transform = v2.RandomErasing(scale=scale, ratio=ratio)
    for row, (height, width) in enumerate(SIZES.tolist()):
        picture = image(height, width)
        with fed(uniform=np.stack([u[row, 1:11], u[row, 11:21]], 1).ravel(), randint=u[row, 21:]):
            if version == "v1":
                *theirs, value = v1.RandomErasing.get_params(picture, scale, ratio, [0.0])
                applied = value is not picture
            else:
                made = transform.make_params([picture])
                theirs, applied = [made[k] for k in "ijhw"], made["v"] is not None
        assert ours["flag"][row] == applied
        if applied:
            assert [*ours["start"][row], *ours["shape"][row]] == theirs


@pytest.mark.parametrize("side_range", [(1.0, 4.0), (1.0, 1.0), (1.1, 1.3)])
def test_zoom_out_padding_equals_torchvision(side_range):
    u, ours, after = drawn("zoom_out", SIZES, side_range=side_range, p=0.7)
    transform = v2.RandomZoomOut(side_range=side_range, p=0.7)
    for row, (height, width) in enumerate(SIZES.tolist()):
        with fed(rand=u[row, 1:]):
            left, top, right, bottom = transform.make_params([image(height, width)])["padding"]
        if u[row, 0] >= 0.7:
            left = top = right = bottom = 0
        assert ours["start"][row].tolist() == [-top, -left]
        assert after[row].tolist() == ours["shape"][row].tolist() == [top + height + bottom, left + width + right]


def compared_sizes(name, transform, by, **args):
    u, ours, after = drawn(name, LARGE, **args)
    for row, (height, width) in enumerate(LARGE.tolist()):
        with fed(**{by: u[row]}):
            theirs = transform.make_params([image(height, width)])["size"]
        yield ours["size"][row].tolist(), list(theirs), (height, width)
        assert np.array_equal(after[row], ours["size"][row])


LARGE = SIZES[SIZES.min(1) > 100]


def test_scale_jitter_size_equals_torchvision():
    transform = v2.ScaleJitter((700, 511), (0.1, 2.0))
    for ours, theirs, _ in compared_sizes(
        "scale_jitter", transform, "rand", target_size=(700, 511), scale_range=(0.1, 2.0)
    ):
        assert ours == theirs


@pytest.mark.parametrize("min_size, max_size", [((256, 288, 333), None), ((256, 288, 333), 400), ((7,), 1000)])
def test_random_shortest_size_equals_torchvision(min_size, max_size):
    args = {"min_size": min_size, "max_size": max_size}
    transform = v2.RandomShortestSize(list(min_size), max_size)
    for ours, theirs, _ in compared_sizes("random_shortest_size", transform, "randint", **args):
        assert ours == theirs


def test_random_resize_equals_torchvision():
    from torchvision.transforms.functional import _compute_resized_output_size

    for ours, theirs, size in compared_sizes(
        "random_resize", v2.RandomResize(100, 300), "randint", min_size=100, max_size=300
    ):
        assert ours == list(_compute_resized_output_size(size, theirs))


def test_drawing_an_empty_size_raises_like_torchvision():
    with pytest.raises(ImageTooSmall, match="height and width must be > 0") as raised:
        drawn("scale_jitter", [[300, 300], [3, 1000]], target_size=(20, 20), scale_range=(0.1, 0.2))
    assert raised.value.row == 1
    with pytest.raises(ImageTooSmall):
        drawn("random_shortest_size", [[3, 1000]], min_size=(20,), max_size=20)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_color_jitter_factors_equal_torchvision(version):
    ranges = {"brightness": (0.3, 1.9), "contrast": (0.7, 0.8), "saturation": None, "hue": (-0.1, 0.3)}
    u, ours, _ = drawn("color_jitter", SIZES, **ranges)
    assert set(ours) == {"order", "brightness", "contrast", "hue"}
    for row in range(300):
        with fed(uniform=u[row, [4, 5, 7]]):
            if version == "v1":
                theirs = v1.ColorJitter.get_params(*ranges.values())[1:]
            else:
                made = v2.ColorJitter(**ranges).make_params([])
                theirs = [made[f"{name}_factor"] for name in ranges]
        assert [ours[name][row] if name in ours else None for name in ranges] == list(theirs)
    assert ours["order"].dtype == np.int32 and ours["hue"].dtype == np.float64


def test_photometric_distort_parameters_equal_torchvision():
    ranges = {"brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "saturation": (0.3, 1.5), "hue": (-0.05, 0.07)}
    u, ours, _ = drawn("photometric_distort", SIZES, **ranges, p=0.4, channels=3)
    transform = v2.RandomPhotometricDistort(**ranges, p=0.4)
    for row in range(500):
        with fed(rand=u[row, [0, 1, 2, 3, 8, 9]], uniform=u[row, 4:8][u[row, :4] < 0.4]):
            theirs = transform.make_params([torch.empty(3, 4, 4)])
        contrast = theirs["contrast_factor"]
        expected = {name: theirs[f"{name}_factor"] for name in ("brightness", "saturation", "hue")}
        expected["contrast_before"] = contrast if theirs["contrast_before"] else None
        expected["contrast_after"] = None if theirs["contrast_before"] else contrast
        assert {k: None if np.isnan(ours[k][row]) else ours[k][row] for k in expected} == expected
        assert (ours["order"][row] >= 0).all() == (theirs["channel_permutation"] is not None)
        assert (ours["order"][row] == -1).all() == (theirs["channel_permutation"] is None)


def test_blur_sigma_and_jpeg_quality_equal_torchvision():
    u, ours, _ = drawn("blur_sigma", SIZES, sigma=(0.1, 2.0))
    for row in range(200):
        with fed(uniform=[*u[row], *u[row]]):
            theirs = v1.GaussianBlur.get_params(0.1, 2.0)
            assert (
                v2.GaussianBlur(3, (0.1, 2.0)).make_params([])["sigma"]
                == ours["sigma"][row].tolist()
                == [theirs, theirs]
            )
    u, ours, _ = drawn("jpeg_quality", SIZES, quality=(5, 8))
    for row in range(200):
        with fed(randint=u[row]):
            assert v2.JPEG((5, 8)).make_params([])["quality"] == ours["quality"][row]


def test_rotation_angle_equals_torchvision():
    u, ours, _ = drawn("rotation", SIZES, degrees=(-12.3, 45.6), expand=False, center=None, like="v1")
    for row in range(300):
        with fed(uniform=[*u[row], *u[row]]):
            assert v1.RandomRotation.get_params([-12.3, 45.6]) == ours["angle"][row]
            assert v2.RandomRotation((-12.3, 45.6)).make_params([])["angle"] == ours["angle"][row]
    _, constant, _ = drawn("rotation", SIZES, degrees=(30.1, 30.1), expand=False, center=None, like="v1")
    assert (constant["angle"] == torch.empty(1).uniform_(30.1, 30.1).item()).all()


# ---- policies

MIXED = np.concatenate([RNG.integers(1, 900, (1000, 2)), [[1, 1], [1, 900], [5000, 37]]])


def sign_numbers(version, u):
    """Numbers that make torchvision choose the minus sign if u < .5. v1 draws 0 or 1 and negates on 1, v2 on rand <=
    .5."""
    return {"randint": [1 - u]} if version == "v1" else {"rand": [u]}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_operations_equal_torchvision(version, policy):
    transform = {"v1": v1, "v2": v2}[version].AutoAugment(v1.AutoAugmentPolicy(policy))
    u, first, _ = drawn("auto_augment", MIXED, policy=policy, like=version, at=0)
    _, second, _ = drawn("auto_augment", MIXED, policy=policy, like=version, at=1)
    both = (first, second)
    for row, (height, width) in enumerate(MIXED.tolist()):
        names = [AUGMENTATIONS[ours["which"][row]] for ours in both]
        if version == "v1":
            numbers = {"randint": u[row, [0, 3, 4]], "rand": u[row, [1, 2]]}
        else:  # v2 draws a sign only for operations that need one
            sign_columns = [*[1, 3][: 2 - (names[0] in UNSIGNED)], *[2, 4][: 2 - (names[1] in UNSIGNED)]]
            numbers = {"randint": u[row, :1], "rand": u[row, sign_columns]}
        with recorded(version, transform) as calls, fed(**numbers):
            transform(image(height, width))
        mine = [(n, ours["magnitude"][row]) for n, ours in zip(names, both, strict=True) if ours["flag"][row]]
        assert mine == calls
        assert all(n == "Identity" for n, ours in zip(names, both, strict=True) if not ours["flag"][row])


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("magnitude, bins", [(9, 31), (0, 10), (14, 15)])
def test_rand_augment_operation_equals_torchvision(version, magnitude, bins):
    transform = {"v1": v1, "v2": v2}[version].RandAugment(1, magnitude, bins)
    u, ours, _ = drawn("rand_augment", MIXED, magnitude=magnitude, num_magnitude_bins=bins, like=version)
    for row, (height, width) in enumerate(MIXED.tolist()):
        sign = sign_numbers(version, u[row, 1])
        numbers = {**sign, "randint": [u[row, 0], *sign.get("randint", [])]}
        with recorded(version, transform) as calls, fed(**numbers):
            transform(image(height, width))
        assert [(AUGMENTATIONS[ours["which"][row]], ours["magnitude"][row])] == calls


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("bins", [31, 10])
def test_trivial_augment_wide_operation_equals_torchvision(version, bins):
    transform = {"v1": v1, "v2": v2}[version].TrivialAugmentWide(bins)
    u, ours, _ = drawn("trivial_augment_wide", MIXED, num_magnitude_bins=bins, like=version)
    for row, (height, width) in enumerate(MIXED.tolist()):
        name, sign = AUGMENTATIONS[ours["which"][row]], sign_numbers(version, u[row, 1])
        bin_ = [] if name in PLAIN else [u[row, 2]]
        numbers = {**sign, "randint": [u[row, 0], *bin_, *sign.get("randint", [])]}
        with recorded(version, transform) as calls, fed(**numbers):
            transform(image(height, width))
        assert [(name, ours["magnitude"][row])] == calls


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("chain_depth, all_ops", [(-1, True), (2, False)])
def test_aug_mix_chains_equal_torchvision(version, chain_depth, all_ops):
    """A chain draws its depth, then the operation, bin and sign of each step as needed, and finally the mixture."""
    args = {"severity": 4, "mixture_width": 2, "chain_depth": chain_depth, "alpha": 1.0, "all_ops": all_ops}
    transform = {"v1": v1, "v2": v2}[version].AugMix(**args)
    sizes = MIXED[:100] // 9 + 1  # small, because torchvision mixes pixels
    u, ours, _ = drawn("aug_mix", sizes, **args, like=version)
    deepest = ours["which"].shape[2]
    steps = u[:, 2 : 2 + 6 * deepest].reshape(-1, 3, 2, deepest)
    for row, (height, width) in enumerate(sizes.tolist()):
        randint, rand, expected = [], [], []
        for chain in range(2):
            if chain_depth < 0:
                randint.append(u[row, chain])
            for at in range(deepest):
                op, bin_, sign = steps[row, :, chain, at]
                which = ours["which"][row, chain, at]
                if which < 0:
                    assert ours["magnitude"][row, chain, at] == 0
                    continue
                name = AUGMENTATIONS[which]
                expected.append((name, ours["magnitude"][row, chain, at]))
                number = sign_numbers(version, sign) if name not in UNSIGNED else {}
                randint += [op, *([] if name in PLAIN else [bin_]), *number.get("randint", [])]
                rand += number.get("rand", [])
        with recorded(version, transform) as calls, fed(rand=rand, randint=randint):
            transform(torch.zeros(1, height, width, dtype=torch.uint8))
        assert calls == expected


def test_aug_mix_weights_equal_products_of_dirichlet_variates():
    """As in torchvision, the variates of (image, mixture) are multiplied by those of the chains."""
    u, ours, _ = drawn("aug_mix", MIXED, severity=3, mixture_width=3, chain_depth=1, alpha=1.0, all_ops=True, like="v1")
    gamma = torch.from_numpy(-np.log1p(-u[:, -5:]))
    share = gamma[:, :2] / gamma[:, :2].sum(1, keepdim=True)
    chains = gamma[:, 2:] / gamma[:, 2:].sum(1, keepdim=True)
    assert np.allclose(ours["mix"], torch.cat([share[:, :1], chains * share[:, 1:]], 1), rtol=1e-6, atol=0)
    assert ours["mix"].dtype == np.float32 and np.allclose(ours["mix"].sum(1), 1, atol=1e-6)
