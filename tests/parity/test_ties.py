"""exact=True with coordinates on pixel edges and values halfway between two levels; Pillow's arithmetic decides these.

Covers right angles, simple scales and ratios, shears of 45 degrees, and warps that change nothing.
"""

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from dali_compat.ops import warp
from parity.compare import assert_same
from parity.run import epoch_of_either

# even, odd, both and square; and coordinates whose 17th fractional bit does not fit in float32
SIZES = [(20, 30), (21, 30), (20, 31), (21, 31), (24, 24), (25, 25), (60, 401)]
CROPS = {"ragged": None, "uniform": (20, 31)}
ANGLES = (0, 45, 90, 180, -90)
SCALES = (0.5, 2, 1 / 3, 0.75, 1.25)
NEAREST, BILINEAR, BICUBIC = FILTERS = [InterpolationMode(name) for name in ("nearest", "bilinear", "bicubic")]
FILL = (10, 200, 30)


@pytest.fixture(scope="module")
def noise_root(tmp_path_factory):
    """PNGs of random pixels, some of them only black and white."""
    root, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    (root / "class_a").mkdir()
    for i, (height, width) in enumerate(SIZES):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        pixels[:, : width // 2 * (i % 2)] //= 128
        pixels[:, : width // 2 * (i % 2)] *= 255
        Image.fromarray(pixels).save(root / "class_a" / f"{i:02d} {height}x{width}.png")
    return root


def _rotations(T, how):
    for angle in ANGLES:
        yield T.RandomRotation((angle, angle), how)
        yield T.RandomRotation((angle, angle), how, expand=True, fill=FILL)
        yield T.RandomAffine((angle, angle), interpolation=how, fill=FILL)
    yield T.RandomRotation((270, 270), how)
    yield T.RandomAffine((360, 360), interpolation=how)
    yield T.RandomRotation((90, 90), how, center=(0, 0))
    yield T.RandomRotation((270, 270), how, expand=True, center=(7, 4.5))
    yield T.RandomAffine((180, 180), center=(7.5, 4), interpolation=how)
    yield T.RandomChoice([T.RandomRotation((angle, angle), how) for angle in (0, 90, 180, 270)])


def _scales(T, how):
    for scale in SCALES:
        yield T.RandomAffine(0, scale=(scale, scale), interpolation=how)
    yield T.RandomAffine((90, 90), (0.5, 0.5), (2, 2), interpolation=how, fill=FILL)
    yield T.RandomAffine(0, (0.5, 0.5), (0.5, 0.5), interpolation=how)
    yield T.RandomAffine(0, (0.9, 0), interpolation=how, fill=FILL)
    for shear in ((45, 45), (-45, -45), (45, 45, 45, 45), (0, 0, -45, -45)):
        yield T.RandomAffine(0, shear=shear, interpolation=how)


def _perspective_and_elastic(T, how):
    yield T.RandomPerspective(0, 1, how)
    yield T.RandomPerspective(0.5, 0.5, how, fill=FILL)
    yield T.RandomPerspective(1, 1, how)
    if how != BICUBIC:
        yield T.ElasticTransform(0.0, 0.3, how)


def _policies(T, how):
    for magnitude in (0, 15, 30):
        yield T.RandAugment(3, magnitude, interpolation=how)
    yield T.RandAugment(1, 30, interpolation=how, fill=FILL)
    yield T.TrivialAugmentWide(interpolation=how)
    yield T.AutoAugment(interpolation=how, fill=FILL)
    if how != BICUBIC:  # runs on tensors, and torchvision has no bicubic for these
        yield T.AugMix(interpolation=how)


def _ratios(T, how):
    for size in (1, 10, 16, 25, 40, (10, 15), (25, 62)):  # 2:1, 5:4 and 4:5, 1:2
        yield T.Resize(size, how)
    yield T.Compose([T.RandomRotation((90, 90), how), T.Resize(10, how)])
    if T is v2:
        for scale in (0.5, 0.8, 1.25, 2.0):
            yield T.ScaleJitter((20, 30), (scale, scale), how)
        yield T.RandomShortestSize([10, 16, 25, 40], interpolation=how)
        yield T.RandomResize(10, 41, how)


KINDS = {
    "rotations": _rotations,
    "scales": _scales,
    "others": _perspective_and_elastic,
    "policies": _policies,
    "ratios": _ratios,
}


def _differing(root, transforms, device):
    for transform in transforms:
        try:
            assert_same(*epoch_of_either(root, transform, device, True, most=len(SIZES)))
        except AssertionError as error:
            yield f"{error}: {transform}"


def _chain(T, transform, crop, tensors):
    before = [T.CenterCrop(crop)] if crop else []
    return T.Compose([*before, T.PILToTensor(), transform] if tensors else [*before, transform, T.PILToTensor()])


@pytest.mark.alike
@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("interpolation", FILTERS, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", KINDS)
def test_ties_round_as_in_torchvision(kind, interpolation, crop, device, noise_root):
    chains = [_chain(T, t, CROPS[crop], False) for T in (v1, v2) for t in KINDS[kind](T, interpolation)]
    chains.sort(key=lambda chain: repr(chain.transforms))  # so that chains of v1 and v2 with equal plans share one run
    assert not list(_differing(noise_root, chains, device))


@pytest.mark.parametrize("interpolation", FILTERS, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["rotations", "scales"])
def test_warps_with_pillow_equal_torchvision(kind, interpolation, noise_root, monkeypatch):
    """The CPU uses Pillow for large images and torch for small ones."""
    monkeypatch.setattr(warp, "_PILLOW_FROM", dict.fromkeys(warp._PILLOW_FROM, 0))
    chains = [_chain(v1, t, (20, 31), False) for t in KINDS[kind](v1, interpolation)]
    assert not list(_differing(noise_root, chains, "cpu"))


@pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", ["rotations", "scales"])
def test_warps_of_tensors_equal_torchvision(kind, T, device, noise_root):
    """v2 transposes tensors at right angles, v1 does not."""
    chains = [_chain(T, t, (20, 31), True) for t in KINDS[kind](T, NEAREST)]
    assert not list(_differing(noise_root, chains, device))


@pytest.mark.parametrize("after", [[v2.ColorJitter(0.4), v2.ToImage()], [v2.ToImage()]], ids=["changed", "as it is"])
def test_resize_to_one_pixel_equals_torchvision(after, device, noise_root):
    """PyTorch's uint8 kernel fails an internal assertion unless the memory format is channels_last."""
    for crop in ([], [v2.CenterCrop(20)]):
        for interpolation in (BILINEAR, BICUBIC):
            for antialias in (True, False):
                resize = v2.Resize([1], interpolation, antialias=antialias)
                assert not list(_differing(noise_root, [v2.Compose([*crop, *after, resize])], device))


@pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
def test_unsupported_interpolations_are_refused_as_by_torchvision(T, noise_root):
    """They raise torchvision's errors instead of using another filter."""
    for transform in _warps(T, InterpolationMode.LANCZOS):
        _raises(noise_root, T.Compose([transform, T.PILToTensor()]))
    for transform in _warps(T, BICUBIC):
        _raises(noise_root, T.Compose([T.CenterCrop(20), T.PILToTensor(), transform]))


def _warps(T, how):
    return T.RandomRotation(30, how), T.RandomAffine(30, interpolation=how), T.RandomPerspective(1, 1, how)


def _raises(root, transform):
    from dali_compat import DALIImageFolder, DataLoader

    loader = DataLoader(DALIImageFolder(root, transform), 4, device="cpu", fallback="silent")
    with pytest.raises((ValueError, RuntimeError), match=r"cannot be used|interpolation|Interpolation"):
        list(loader)
