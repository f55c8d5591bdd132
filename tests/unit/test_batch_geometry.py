"""Batched geometry equals Pillow (torchvision for tensors) bit for bit."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image
from torchvision.transforms import ElasticTransform, InterpolationMode, RandomPerspective
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from dali_compat.ops import matrices, resize, warp, windows
from dali_compat.ops.arguments import resizes_in_integers
from dali_compat.ops.pixels import resample, transform
from dali_compat.ops.pixels.squares import uniforms

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FILTERS = {"nearest": 0, "nearest-exact": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
WARPS = ("nearest", "bilinear", "bicubic")
TINY = [(1, 1), (1, 7), (2, 3), (3, 500), (31, 2)]
FILL = (10, 120, 250)


def drawn(count, height, width, seed=0):
    rng = np.random.default_rng(seed)
    return torch.stack([tensor(make_image(rng, height, width)) for _ in range(count)])


def noise(count, height, width, channels=3, seed=0, high=256):
    """Return random images. Every second one is black and white only, so that cubic filters overshoot."""
    values = torch.randint(0, high, (count, channels, height, width), generator=torch.manual_seed(seed))
    values[1::2] = (values[1::2] > high // 2) * 255
    return values.to(torch.uint8)


def tensor(picture):
    pixels = np.array(picture)
    return torch.from_numpy(pixels[:, :, None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)


def pil(image):
    return F1.to_pil_image(image)


def check_equal(ours, expected):
    assert len(ours) == len(expected)
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs)


def sizes(count, height, width, dtype=np.float32):
    return np.tile(np.array([height, width], dtype), (count, 1))


# ---- resize


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("before", [*TINY, (64, 64), (75, 40), (53, 90)])
def test_resize_of_uint8_equals_pillow(before, interpolation, device):
    images = noise(4, *before)
    # enlarged, shrunk, one axis only, simple ratios (many rounding ties), and unchanged
    for size in [(1, 1), (2, 5), (20, 20), (32, 32), (150, 31), (25, 80), (before[0], 33), before]:
        arrays = {"size": sizes(4, *size)}
        ours = resize.resize(images.to(device), arrays, interpolation=interpolation, like="pil")
        assert isinstance(ours, torch.Tensor)
        expected = [tensor(pil(image).resize(size[::-1], FILTERS[interpolation])) for image in images]
        check_equal(ours, expected)
        if not interpolation.startswith("nearest"):  # used on a GPU; a CPU uses Pillow unless images are tiny
            check_equal(resample.resize(images.to(device), size, interpolation), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "lanczos"])
def test_resize_to_different_sizes_returns_list_equal_to_pillow(interpolation, device):
    images, rng = drawn(9, 60, 80), np.random.default_rng(1)
    to = rng.integers(1, 100, (9, 2))
    to[3] = to[5] = to[0]
    ours = resize.resize(images.to(device), {"size": to.astype(np.float32)}, interpolation=interpolation, like="pil")
    assert isinstance(ours, list)
    pairs = zip(images, to.tolist(), strict=True)
    check_equal(ours, [tensor(pil(i).resize((w, h), FILTERS[interpolation])) for i, (h, w) in pairs])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("numbers", [2**27, 2**18])
def test_resize_each_of_images_of_different_sizes_equals_pillow_and_torchvision(numbers, device, monkeypatch):
    """Resize as on a GPU: images are padded to one batch, or to several if memory is short."""
    monkeypatch.setattr(resample, "_NUMBERS", numbers)
    rng = np.random.default_rng(2)
    images = [noise(2, *rng.integers(1, 150, 2).tolist(), seed=i)[i % 2] for i in range(40)]
    to = rng.integers(1, 150, (40, 2))
    to[::7] = [image.shape[-2:] for image in images[::7]]  # unchanged
    to[1, 0], to[2, 1] = images[1].shape[1], images[2].shape[2]  # one axis only
    inputs = [image.to(device) for image in images]
    for interpolation in ("bilinear", "bicubic", "lanczos", "box", "hamming"):
        ours = resample.resize_each(inputs, to, interpolation)
        pairs = zip(images, to.tolist(), strict=True)
        check_equal(ours, [tensor(pil(i).resize((w, h), FILTERS[interpolation])) for i, (h, w) in pairs])
    whole = filter(resizes_in_integers, ("bilinear", "bicubic"))
    for interpolation, antialias in itertools.product(whole, (True, False)):
        ours = resample.resize_each(inputs, to, interpolation, "v2", antialias)
        how = {"interpolation": InterpolationMode(interpolation), "antialias": antialias}
        check_equal(ours, [F2.resize(image, size, **how) for image, size in zip(images, to.tolist(), strict=True)])


@pytest.mark.parametrize("channels", [1, 3])
def test_geometry_for_any_memory_format_equals_pillow(channels):
    for images in (noise(3, 40, 50, channels), noise(1, 40, 50, channels)):
        hwc = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        strided = torch.stack([images, images], -1)[..., 0]
        before = images.clone()
        arrays = {"size": sizes(len(images), 30, 20), "matrix": np.tile([0.9, 0.2, 1, -0.2, 0.9, 3], (len(images), 1))}
        window = {"start": np.arange(2 * len(images)).reshape(-1, 2), "shape": sizes(len(images), 20, 60, np.int32)}
        for inputs in (images, hwc, strided):
            for interpolation in WARPS:
                ours = resize.resize(inputs, arrays, interpolation=interpolation, like="pil")
                mode = FILTERS[interpolation]
                check_equal(ours, [tensor(pil(image).resize((20, 30), mode)) for image in images])
                ours = warp.warp_affine(inputs, arrays, interpolation=interpolation, fill=FILL[:channels])
                fill = FILL[:channels] if channels > 1 else FILL[0]
                check_equal(
                    ours, [_transformed(i, (30, 20), Image.AFFINE, arrays["matrix"][0], mode, fill) for i in images]
                )
            places = zip(images, window["start"].tolist(), strict=True)
            check_equal(
                windows.crop(inputs, window, inside=False), [tensor(F1.crop(pil(i), *at, 20, 60)) for i, at in places]
            )
        assert torch.equal(images, before)


@pytest.mark.parametrize("device", DEVICES)
def test_resize_and_warp_in_chunks_equal_whole_batch(device, monkeypatch):
    images, arrays = noise(7, 50, 40).to(device), {"size": sizes(7, 50, 40), "matrix": _matrices("turned", 7, 50, 40)}

    def run():
        resized = resample.resize(images, (31, 33), "bicubic")
        return [resized, *(warp.warp_affine(images, arrays, interpolation=i, fill=FILL) for i in WARPS)]

    whole = run()
    for module in (resample, transform):
        monkeypatch.setattr(module, "chunks", lambda images, _: [slice(i, i + 3) for i in range(0, len(images), 3)])
    for ours, expected in zip(run(), whole, strict=True):
        assert torch.equal(ours, expected)


def test_chunks_cover_the_batch_and_stay_below_the_limit():
    images = torch.zeros(1000, 3, 1, 1)
    for numbers in (1, 10**5, 10**9):
        parts = resample.chunks(images, numbers)
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert (parts[0].start, parts[-1].stop) == (0, 1000)
        assert all(part.stop - part.start == 1 or (part.stop - part.start) * numbers <= 2**19 for part in parts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resize_of_uint8_tensors_equals_torchvision_on_cpu(interpolation, antialias, device):
    """torchvision v2 leaves these to PyTorch, whose GPU kernels round once and not after each axis."""
    if not resizes_in_integers(interpolation):
        pytest.skip("this torchvision resizes in floating point on this processor")
    shapes = [
        (40, 50, 17, 23),
        (40, 50, 81, 90),
        (40, 50, 20, 25),
        (1, 9, 5, 3),
        (300, 3, 7, 2),
        (64, 64, 32, 96),
        (33, 21, 33, 8),
    ]
    for height, width, *size in shapes:
        images = noise(3, height, width)
        ours = resample.resize(images.to(device), size, interpolation, "v2", antialias).cpu()
        assert torch.equal(ours, F2.resize(images, size, InterpolationMode(interpolation), antialias=antialias)), size


@pytest.mark.parametrize("like, functional", [("v1", F1), ("v2", F2)])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize_of_tensors_equals_torchvision(like, functional, interpolation, antialias):
    whole = drawn(5, 60, 80)
    for images in (whole, whole / 255, whole.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        for size in [(30, 40), (90, 33)]:
            arrays = {"size": sizes(5, *size)}
            ours = resize.resize(images, arrays, interpolation=interpolation, like=like, antialias=antialias)
            mode = InterpolationMode(interpolation)
            check_equal(ours, [functional.resize(image, list(size), mode, antialias=antialias) for image in images])


# ---- windows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (40, 30)])
def test_crop_equals_pillow(shape, device):
    rng, images = np.random.default_rng(2), noise(12, *shape)
    for low, high, size in [(0, 1, shape), (-5, 5, (7, 9)), (-50, 50, (20, 20)), (0, 1, (90, 3))]:
        start = rng.integers(low, high, (12, 2)).astype(np.int32)
        for rows in (start, np.tile(start[:1], (12, 1))):  # a different window per image, then the same for all
            arrays = {"start": rows, "shape": sizes(12, *size, np.int32)}
            ours = windows.crop(images.to(device), arrays, inside=False)
            assert isinstance(ours, torch.Tensor)
            check_equal(
                ours, [tensor(F1.crop(pil(i), *at, *size)) for i, at in zip(images, rows.tolist(), strict=True)]
            )
    shape = rng.integers(1, 50, (12, 2)).astype(np.int32)
    ours = windows.crop(images.to(device), {"start": start, "shape": shape}, inside=False)
    assert isinstance(ours, list)
    pairs = zip(images, start.tolist(), shape.tolist(), strict=True)
    check_equal(ours, [tensor(F1.crop(pil(i), *at, *s)) for i, at, s in pairs])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (9, 30)])
def test_pad_equals_torchvision_on_pil_images(shape, mode, device):
    rng, images = np.random.default_rng(3), noise(8, *shape)
    margins = rng.integers(0, 12, (8, 4))  # also larger than the image
    for padding in (margins, np.tile(margins[:1], (8, 1)), np.zeros_like(margins)):
        left, top, right, bottom = padding.T
        start = np.stack([-top, -left], 1).astype(np.int32)
        new = np.stack([top + bottom, left + right], 1).astype(np.int32) + np.array(shape, np.int32)
        for fill in [(0, 0, 0), FILL]:
            ours = windows.pad(images.to(device), {"start": start, "shape": new}, mode=mode, fill=fill)
            expected = [F2.pad(pil(i), p, list(fill), mode) for i, p in zip(images, padding.tolist(), strict=True)]
            check_equal(ours, [tensor(picture) for picture in expected])


def test_pad_of_floating_point_images_equals_torchvision():
    images = drawn(3, 20, 30) / 255
    arrays = {"start": sizes(3, -2, -4, np.int32), "shape": sizes(3, 25, 40, np.int32)}
    ours = windows.pad(images, arrays, mode="constant", fill=(0.25, 0.5, 1.0))
    check_equal(ours, F2.pad(images, [4, 2, 6, 3], [0.25, 0.5, 1.0]))


# ---- warps of PIL images


def _matrices(kind, count, height, width, seed=0):
    """Return data for PIL's AFFINE, from output to input coordinates."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        angle, scale = rng.uniform(-180, 180), rng.uniform(0.4, 2)
        shift, shear = rng.uniform(-0.3, 0.3, 2) * (width, height), rng.uniform(-30, 30, 2)
        row = F1._get_inverse_affine_matrix([width * 0.5, height * 0.5], angle, shift.tolist(), scale, shear.tolist())
        if kind == "whole":  # right angles and shifts by half pixels, so that coordinates lie on edges
            a, b = [(1, 0), (0, 1), (-1, 0), (0, -1)][i % 4]
            row = [a, b, round(2 * shift[0] + width) / 2, -b, a, round(2 * shift[1] + height) / 2]
        elif kind == "scaled":  # ImagingScaleAffine; fixed point differs for thirds, which come close to edges
            row = [row[0], 0.0, row[2], 0.0, row[4], row[5]] if i % 2 else [2 / 3, 0.0, 0.0, 0.0, 4 / 3, i - 4.0]
        elif kind == "beyond":  # coordinates that do not fit into fixed-point numbers
            if i % 2:
                row[i % 6] *= 10.0 ** rng.integers(3, 12)
            else:  # except for the first row
                row = [2 / 3, 4e4, -2e4 + i, 4 / 3, 8e4, -4e4 - i]
        elif kind == "singular":
            row = [[0.0] * 6, [0, 0, 3.5, 0, 0, 2.5], [1, 1, 0, 1, 1, 0], [1e-9, 0, 5, 0, 1e-9, 5]][i % 4]
        rows.append(row)
    return np.array(rows, np.float64)


def _transformed(image, size, kind, data, mode, fill):
    return tensor(pil(image).transform(tuple(size[::-1]), kind, tuple(data), mode, fillcolor=fill))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", WARPS)
@pytest.mark.parametrize("kind", ["turned", "whole", "scaled", "beyond", "singular"])
def test_affine_equals_pillow(kind, interpolation, device):
    for height, width in [*TINY, (48, 64), (61, 35)]:
        images, matrix = noise(12, height, width), _matrices(kind, 12, height, width)
        for size in [(height, width), (40, 55)]:
            for fill in [None, FILL]:
                arrays = {"matrix": matrix, "size": sizes(12, *size, np.int32)}
                ours = warp.warp_affine(images.to(device), arrays, interpolation=interpolation, fill=fill)
                mode = FILTERS[interpolation]
                pairs = zip(images, matrix, strict=True)
                check_equal(ours, [_transformed(i, tuple(size), Image.AFFINE, m, mode, fill or 0) for i, m in pairs])


def test_affine_with_all_kinds_of_matrices_in_one_batch_equals_pillow():
    """Pillow has four implementations without a filter; the batch has rows for each."""
    kinds = ("turned", "whole", "scaled", "beyond", "singular")
    matrix = np.concatenate([_matrices(kind, 8, 40, 50, seed=5) for kind in kinds])
    images = noise(len(matrix), 40, 50)
    ours = warp.warp_affine(
        images, {"matrix": matrix, "size": sizes(40, 40, 50, np.int32)}, interpolation="nearest", fill=FILL
    )
    check_equal(
        ours, [_transformed(i, (40, 50), Image.AFFINE, m, 0, FILL) for i, m in zip(images, matrix, strict=True)]
    )


def test_affine_to_different_sizes_returns_list_equal_to_pillow():
    images, matrix = noise(6, 40, 50), _matrices("turned", 6, 40, 50)
    size = np.array([[40, 50], [60, 70], [40, 50], [9, 9], [60, 70], [1, 1]], np.int32)
    ours = warp.warp_affine(images, {"matrix": matrix, "size": size}, interpolation="bilinear", fill=None)
    assert isinstance(ours, list)
    pairs = zip(images, size.tolist(), matrix, strict=True)
    check_equal(ours, [_transformed(i, s, Image.AFFINE, m, 2, 0) for i, s, m in pairs])


def test_affine_with_nearest_exact_equals_nearest_on_pil_images():
    images, arrays = noise(3, 30, 20), {"matrix": _matrices("turned", 3, 30, 20), "size": sizes(3, 30, 20, np.int32)}
    ours, expected = (
        warp.warp_affine(images, arrays, interpolation=i, fill=None) for i in ("nearest-exact", "nearest")
    )
    assert torch.equal(ours, expected)


def test_affine_with_fractional_fill_truncates_it_like_torchvision():
    image, matrix = noise(1, 20, 30), _matrices("turned", 1, 20, 30)
    arrays = {"matrix": matrix, "size": sizes(1, 20, 30, np.int32)}
    ours = warp.warp_affine(image, arrays, interpolation="bilinear", fill=(10.9, 0.5, 254.99))
    check_equal(ours, [_transformed(image[0], (20, 30), Image.AFFINE, matrix[0], 2, (10, 0, 254))])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", WARPS)
def test_perspective_equals_pillow(interpolation, device):
    rng = np.random.default_rng(7)
    for height, width in [*TINY, (48, 64)]:
        images = noise(12, height, width)
        data = _matrices("turned", 12, height, width)
        data = np.concatenate([data, rng.uniform(-0.02, 0.02, (12, 2))], 1)  # some have the horizon inside the image
        data[:3] = [[0] * 8, [1, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0, -2, 0]]  # 1 - 2 * 0.5: a division by zero
        for fill in [None, FILL]:
            arrays = {"coefficients": data, "size": sizes(12, height, width, np.int32)}
            ours = warp.warp_perspective(images.to(device), arrays, interpolation=interpolation, fill=fill)
            mode, size = FILTERS[interpolation], (height, width)
            pairs = zip(images, data, strict=True)
            check_equal(ours, [_transformed(i, size, Image.PERSPECTIVE, d, mode, fill or 0) for i, d in pairs])


# ---- warps of tensors


def _tensors(whole):
    """Return images and fills, as uint8 and as floating point."""
    return [(whole, None), (whole, [10.0, 120.0, 250.0]), (whole / 255, None), (whole / 255, [0.1, 0.5, 1.0])]


PARAMETERS = [(-32.5, [3, -4], 1.2, [10.0, -7.0]), (90.0, [0, 0], 1.0, [0.0, 0.0]), (170.1, [-9, 2], 0.6, [0.0, 30.0])]


@pytest.mark.parametrize("like, functional", [("v1", F1), ("v2", F2)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("center", [None, (12.0, 30.5)])
def test_affine_of_tensors_equals_torchvision(like, functional, interpolation, center):
    mode = InterpolationMode(interpolation)
    matrix = np.array([matrices.affine(*row, (40, 50), center, like, like) for row in PARAMETERS])
    arrays = {"matrix": matrix, "size": np.tile((40, 50), (3, 1))}
    for images, fill in _tensors(drawn(3, 40, 50)):
        ours = warp.warp_affine(images, arrays, interpolation=interpolation, fill=fill, like=like)
        check_equal(ours, [functional.affine(i, *p, mode, fill=fill, center=center and list(center))
                    for i, p in zip(images, PARAMETERS, strict=True)])  # fmt: skip


@pytest.mark.parametrize("like, functional", [("v1", F1), ("v2", F2)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective_of_tensors_equals_torchvision(like, functional, interpolation):
    torch.manual_seed(3)
    points, mode = [RandomPerspective.get_params(50, 40, 0.5) for _ in range(3)], InterpolationMode(interpolation)
    arrays = {
        "coefficients": np.array([F1._get_perspective_coeffs(*p) for p in points]),
        "size": sizes(3, 40, 50, np.int32),
    }
    for images, fill in _tensors(drawn(3, 40, 50)):
        ours = warp.warp_perspective(images, arrays, interpolation=interpolation, fill=fill, like=like)
        check_equal(ours, [functional.perspective(i, *p, mode, fill=fill) for i, p in zip(images, points, strict=True)])


# ---- elastic


KEYS = np.array([3, 2**52 + 17, 12345])


def _displacement(key, size, alpha, sigma):
    """Return torchvision's displacement computed from our noise."""
    noise = uniforms(np.array([key]), 2 * size[0] * size[1], torch.device("cpu")).reshape(2, 1, 1, *size)
    with mock.patch.object(torch, "rand", side_effect=list(noise)):
        return ElasticTransform.get_params(list(alpha), list(sigma), list(size))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "alpha, sigma", [((50.0, 50.0), (5.0, 5.0)), ((8.0, 30.0), (1.7, 3.0)), ((2.0, 3.0), (0.0, 0.0))]
)
def test_displacement_is_close_to_torchvision(alpha, sigma, device):
    ours = warp.displacement(KEYS, (60, 80), alpha, sigma, torch.device(device)).cpu()
    assert ours.dtype == torch.float32
    expected = torch.cat([_displacement(key, (60, 80), alpha, sigma) for key in KEYS])
    assert expected.abs().max() > 0.01
    assert (ours - expected).abs().max() < 1e-6  # 3e-7: torchvision adds 41 x 41 products in float32


@pytest.mark.parametrize("like, functional", [("pil", F1), ("v1", F1), ("v2", F2)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_elastic_differs_from_torchvision_only_by_rounding(like, functional, interpolation):
    how, mode = {"alpha": (40.0, 60.0), "sigma": (3.0, 4.0)}, InterpolationMode(interpolation)
    displacements = [_displacement(key, (60, 80), *how.values()) for key in KEYS]
    apply = functional.elastic if like == "v2" else functional.elastic_transform
    for images, fill in _tensors(drawn(3, 60, 80))[: 2 if like == "pil" else 4]:
        ours = warp.elastic(images, {"key": KEYS}, **how, interpolation=interpolation, fill=fill, like=like)
        inputs = map(pil, images) if like == "pil" else images
        expected = [apply(image, d, mode, fill) for image, d in zip(inputs, displacements, strict=True)]
        expected = torch.stack([tensor(e) for e in expected] if like == "pil" else expected)
        assert (expected != images).any()
        levels = 255 if images.is_floating_point() else 1
        # measured 2e-5: a different summation order moves a pixel by 1e-8, which is visible at a rounding tie
        assert (ours.double() - expected.double()).abs().mean() * levels < 2e-4


def test_displacement_for_images_smaller_than_the_blur_is_finite():
    """torchvision refuses images smaller than the blur kernel. Here they are reflected repeatedly."""
    for size in [(1, 1), (3, 20), (20, 2)]:
        made = warp.displacement(KEYS, size, (5.0, 5.0), (5.0, 5.0), torch.device("cpu"))
        assert made.shape == (3, *size, 2) and made.isfinite().all()


def test_affine_by_right_angles_equals_pillows_rotate():
    """PIL.Image.Image.rotate transposes in this case; a matrix gives the same result."""
    image = noise(2, 30, 30)[1:]
    for angle in (90, 180, 270):
        a = -math.radians(angle)
        cos, sin = round(math.cos(a), 15), round(math.sin(a), 15)
        matrix = np.array([[cos, sin, 15 - 15 * cos - 15 * sin, -sin, cos, 15 + 15 * sin - 15 * cos]])
        for interpolation in WARPS:
            arrays = {"matrix": matrix, "size": sizes(1, 30, 30, np.int32)}
            ours = warp.warp_affine(image, arrays, interpolation=interpolation, fill=None)
            check_equal(ours, [tensor(pil(image[0]).rotate(angle, FILTERS[interpolation]))])
