"""Random pixels and corrupting operations, compared with the generator's definition and with torchvision."""

import io

import numpy as np
import pytest
import torch
import torchvision
from helpers import make_image
from PIL import Image
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from dali_compat.ops.kernels import kernel_of
from dali_compat.ops.pixels import squares, values

KEYS = np.array([0, 1, 2**53 - 1, 123456789, 7, 8, 9, 10])
CPU = torch.device("cpu")


def drawn(channels: int = 3, height: int = 45, width: int = 61) -> torch.Tensor:
    """Return eight images (8, C, H, W) uint8 with the memory layout of DALI's batches."""
    rng = np.random.default_rng(0)
    images = [
        Image.fromarray(make_image(rng, height, width)).convert("RGB" if channels == 3 else "L") for _ in range(8)
    ]
    return torch.stack([F1.pil_to_tensor(image).permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


# ---- the generator


def squares64(counter: int, key: int) -> int:
    """Widynski's C code in Python integers."""
    mask = 2**64 - 1

    def round_of(x, added):
        x = (x * x + added) & mask
        return x, (x >> 32 | x << 32) & mask

    y = x = counter * key & mask
    z = (y + key) & mask
    for added in (y, z, y):
        _, x = round_of(x, added)
    t, x = round_of(x, z)
    return t ^ ((x * x + y) & mask) >> 32


def test_squares_equal_the_reference_implementation():
    keys = squares.mixed(KEYS)
    assert len(set(keys.tolist())) == len(KEYS) and (keys % 2 == 1).all()
    counters = [0, 1, 2, 1000, 2**40 + 3]
    made = squares.squares(torch.tensor(counters), torch.from_numpy(keys)[:, None])
    for row, key in zip(made.tolist(), keys.tolist(), strict=True):
        assert [number % 2**64 for number in row] == [squares64(counter, key % 2**64) for counter in counters]


def test_uniforms_are_uniform_and_uncorrelated():
    u = squares.uniforms(KEYS, 100_000, CPU).double()
    assert u.shape == (8, 100_000) and u.min() >= 0 and u.max() < 1
    assert ((u * 2**24) % 1 == 0).all()
    error = 1 / 12**0.5 / 100_000**0.5
    assert ((u.mean(1) - 0.5).abs() < 5 * error).all()
    counts = torch.histc(u, 256, 0, 1)
    assert ((counts - 3125) ** 2 / 3125).sum() < 256 + 6 * (2 * 256) ** 0.5  # chi squared
    assert torch.corrcoef(torch.cat([u, u.roll(1, 1)])).fill_diagonal_(0).abs().max() < 5 / 100_000**0.5


def test_normals_have_the_moments_of_a_normal_distribution():
    z = squares.normals(KEYS, 100_001, CPU).double()
    assert z.shape == (8, 100_001) and torch.isfinite(z).all()
    n = z.numel()
    assert abs(z.mean()) < 5 / n**0.5 and abs(z.std() - 1) < 5 / (2 * n) ** 0.5
    assert abs((z**3).mean()) < 5 * (15 / n) ** 0.5 and abs((z**4).mean() - 3) < 5 * (96 / n) ** 0.5
    within = torch.special.erf(torch.tensor([1.0, 2.0, 3.0]) / 2**0.5)
    assert all(abs((z.abs() < i + 1).double().mean() - p) < 5 * 0.5 / n**0.5 for i, p in enumerate(within))


@pytest.mark.parametrize("function", [squares.uniforms, squares.normals])
def test_random_numbers_depend_only_on_key_and_index(function):
    whole = function(KEYS, 1000, CPU)
    assert torch.equal(function(KEYS[3:5], 1000, CPU), whole[3:5])
    assert torch.equal(function(KEYS, 501, CPU), whole[:, :501])


# ---- erase

WINDOWS = {
    "start": np.array([(0, 0), (10, 20), (44, 60), (3, 3), (0, 50), (40, 0), (20, 20), (1, 2)], np.int32),
    "shape": np.array([(45, 61), (7, 9), (1, 1), (0, 0), (45, 11), (5, 61), (10, 1), (0, 5)], np.int32),
}


@pytest.mark.parametrize("value", [(0.0, 0.0, 0.0), (1.5, -0.25, 200.0)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_erase_equals_torchvision(dtype, value):
    batch = drawn() if dtype == torch.uint8 else drawn() / 255
    value = tuple(abs(v) for v in value) if dtype == torch.uint8 else value
    before = batch.clone()
    made = kernel_of("erase")(batch, WINDOWS, value=value)
    assert torch.equal(batch, before) and made.dtype == dtype
    for image, start, shape, got in zip(batch, WINDOWS["start"], WINDOWS["shape"], made, strict=True):
        v = torch.tensor(value)[:, None, None]
        assert torch.equal(got, F1.erase(image, *start.tolist(), *shape.tolist(), v))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_erase_with_random_pixels_equals_torchvision(dtype, channels):
    batch = drawn(channels) if dtype == torch.uint8 else drawn(channels) / 255
    made = kernel_of("erase")(batch, {**WINDOWS, "key": KEYS}, value=None)
    pixels = squares.normals(KEYS, batch[0].numel(), CPU).view(batch.shape)
    if dtype == torch.uint8:
        pixels = pixels.to(torch.int32) % 256
    for image, random, start, shape, got in zip(batch, pixels, WINDOWS["start"], WINDOWS["shape"], made, strict=True):
        (top, left), (height, width) = start.tolist(), shape.tolist()
        v = random[:, top : top + height, left : left + width]
        assert torch.equal(got, F1.erase(image, top, left, height, width, v))
    none = {"start": WINDOWS["start"], "shape": np.zeros_like(WINDOWS["shape"]), "key": KEYS}
    assert torch.equal(kernel_of("erase")(batch, none, value=None), batch)


# ---- gaussian noise


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_gaussian_noise_equals_torchvision_with_the_same_noise(dtype, clip, monkeypatch):
    if dtype == torch.uint8 and tuple(map(int, torchvision.__version__.split(".")[:2])) < (0, 21):
        pytest.skip("this torchvision refuses uint8 images")
    batch = drawn() if dtype == torch.uint8 else (drawn() / 255).to(dtype)
    made = kernel_of("gaussian_noise")(batch, {"key": KEYS}, mean=0.1, sigma=0.3, clip=clip)
    assert made.dtype == dtype
    numbers = squares.normals(KEYS, batch[0].numel(), CPU).view(batch.shape)
    for image, random, got in zip(batch, numbers, made, strict=True):
        drawn_now = random.to(torch.float32 if dtype == torch.uint8 else dtype)
        monkeypatch.setattr(torch, "randn_like", lambda image, dtype=None, made=drawn_now: made)
        want = (
            F2.gaussian_noise(image, mean=0.1, sigma=0.3) if clip else F2.gaussian_noise_image(image, 0.1, 0.3, False)
        )
        limit = {torch.uint8: 0, torch.float32: 1e-6, torch.float16: 2e-3}[dtype]
        torch.testing.assert_close(got, want, rtol=0, atol=limit)


def test_gaussian_noise_in_parts_equals_whole_batch(monkeypatch):
    whole = kernel_of("gaussian_noise")(drawn(), {"key": KEYS}, mean=0.0, sigma=0.1, clip=True)
    monkeypatch.setattr(values, "_CPU_PART", 1)
    assert torch.equal(kernel_of("gaussian_noise")(drawn(), {"key": KEYS}, mean=0.0, sigma=0.1, clip=True), whole)


# ---- jpeg


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_equals_torchvision(channels):
    batch, quality = drawn(channels), np.array([1, 5, 25, 50, 75, 90, 99, 100], np.int32)
    made = kernel_of("jpeg")(batch, {"quality": quality}, like="pil")
    for image, q, got in zip(batch, quality.tolist(), made, strict=True):
        file = io.BytesIO()
        F1.to_pil_image(image).save(file, "JPEG", quality=q)
        assert torch.equal(got, F1.pil_to_tensor(Image.open(file)))
    assert len({image.numpy().tobytes() for image in made}) == 8
    made = kernel_of("jpeg")(batch, {"quality": quality}, like="v2")
    assert torch.equal(made, torch.stack([F2.jpeg(image, q) for image, q in zip(batch, quality.tolist(), strict=True)]))


# ---- devices


@pytest.mark.gpu
def test_noise_and_erase_on_gpu_are_close_to_cpu():
    gpu = torch.device("cuda")
    assert torch.equal(squares.uniforms(KEYS, 10_001, gpu).cpu(), squares.uniforms(KEYS, 10_001, CPU))
    torch.testing.assert_close(
        squares.normals(KEYS, 10_001, gpu).cpu(), squares.normals(KEYS, 10_001, CPU), rtol=0, atol=2e-6
    )
    batch = drawn() / 255
    for arrays, value in ((WINDOWS, (0.1, 0.2, 0.3)), ({**WINDOWS, "key": KEYS}, None)):
        made = kernel_of("erase")(batch.cuda(), arrays, value=value).cpu()
        torch.testing.assert_close(made, kernel_of("erase")(batch, arrays, value=value), rtol=0, atol=2e-6)
    made = kernel_of("gaussian_noise")(drawn().cuda(), {"key": KEYS}, mean=0.0, sigma=0.1, clip=True).cpu()
    different = made.int() - kernel_of("gaussian_noise")(drawn(), {"key": KEYS}, mean=0.0, sigma=0.1, clip=True).int()
    assert different.abs().max() <= 1 and (different != 0).float().mean() < 1e-4
