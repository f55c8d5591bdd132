"""Steps on lists of images, as on a GPU, against kernels for single images and torchvision."""

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from dali_compat.ops import kernels, lists_on_gpu
from dali_compat.plan import ImageSpec, step

COUNT = 24
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def pictures(rng, device):
    sizes = [(1, 1), (70, 3), *rng.integers(8, 60, (COUNT - 2, 2)).tolist()]
    return [torch.from_numpy(rng.integers(0, 256, (3, *size), np.uint8)).to(device) for size in sizes]


def one_by_one(steps, images, arrays):
    made = []
    for row, image in enumerate(images):
        batch = image[None]
        for one, values in zip(steps, arrays, strict=True):
            batch = kernels.run(one, batch, kernels.rows_of(values, [row]))
        made.append(batch[0])
    return made


def assert_equal(made, expected):
    assert len(made) == len(expected)
    for row, (one, other) in enumerate(zip(made, expected, strict=True)):
        assert one.shape == other.shape and torch.equal(one.cpu(), other.cpu()), row


@pytest.mark.parametrize("device", DEVICES)
def test_steps_in_frames_equal_steps_on_single_images(rng, device):
    images = pictures(rng, device)
    steps = [
        step("contrast", ImageSpec(), like="pil"),
        step("permute_channels", ImageSpec()),
        step("saturation", ImageSpec(), like="pil"),
        step("flip", ImageSpec(), axis="horizontal"),
    ]
    arrays = [
        {"factor": rng.uniform(0, 2, COUNT), "flag": rng.integers(0, 2, COUNT)},
        {"order": rng.permuted(np.tile(np.arange(3), (COUNT, 1)), axis=1), "flag": rng.integers(0, 2, COUNT)},
        {"factor": rng.uniform(0, 2, COUNT)},
        {},
    ]
    count, made = lists_on_gpu.run_leading(steps, images, arrays)
    assert count == 3
    assert_equal(made, one_by_one(steps[:3], images, arrays[:3]))


def test_images_after_the_last_step_share_no_memory_with_their_frames(rng):
    images = pictures(rng, "cpu")
    steps, arrays = [step("contrast", ImageSpec(), like="pil")], [{"factor": rng.uniform(0, 2, COUNT)}]
    _, made = lists_on_gpu.run_leading(steps, images, arrays)
    assert all(image.is_contiguous() and image.untyped_storage().nbytes() == image.nbytes for image in made)


def test_images_that_skip_all_steps_are_returned_as_they_are(rng):
    images, steps = pictures(rng, "cpu"), [step(name, ImageSpec(), like="pil") for name in ("contrast", "saturation")]
    flags = np.zeros((2, COUNT))
    flags[0, 3] = flags[1, 5] = 1
    arrays = [{"factor": np.full(COUNT, 0.5), "flag": flag} for flag in flags]
    made = lists_on_gpu.in_frames(steps, images, arrays)
    assert [row for row in range(COUNT) if made[row] is not images[row]] == [3, 5]
    assert_equal(made, one_by_one(steps, images, arrays))
    arrays = [values | {"flag": np.zeros(COUNT)} for values in arrays]
    assert all(made is image for made, image in zip(lists_on_gpu.in_frames(steps, images, arrays), images, strict=True))


def windows_of(kind, images, rng):
    """Return the start and shape of a window of each image: inside of it, around it, or anywhere."""
    sizes = np.array([image.shape[1:] for image in images])
    if kind == "crop":
        shape = 1 + (rng.random((COUNT, 2)) * sizes).astype(int)
        return {"start": (rng.random((COUNT, 2)) * (sizes - shape + 1)).astype(int), "shape": shape}
    if kind == "pad":
        before = rng.integers(0, 90, (COUNT, 2))
        return {"start": -before, "shape": sizes + before + rng.integers(0, 90, (COUNT, 2))}
    return {"start": rng.integers(-30, 50, (COUNT, 2)), "shape": rng.integers(1, 90, (COUNT, 2))}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fill", [(), (0,), (123, 117, 104)], ids=str)
@pytest.mark.parametrize("kind", ["crop", "pad", "anywhere"])
@pytest.mark.parametrize("like", ["pil", "v2"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_windows_equal_torchvisions(rng, device, interpolation, like, kind, fill):
    if like == "v2" and device == "cpu":
        pytest.skip("PyTorch resizes these")
    images = pictures(rng, device)
    window = step("pad", ImageSpec(), mode="constant", fill=fill) if fill else step("crop", ImageSpec(), inside=False)
    steps = [
        window,
        step("flip", ImageSpec(), axis="horizontal"),
        step("flip", ImageSpec(), axis="vertical"),
        step("resize", ImageSpec(), interpolation=interpolation, like=like, antialias=True),
    ]
    arrays = [windows_of(kind, images, rng), {"flag": rng.integers(0, 2, COUNT)}, {"flag": rng.integers(0, 2, COUNT)}]
    arrays.append({"size": rng.integers(1, 70, (COUNT, 2))})
    count, made = lists_on_gpu.run_leading(steps, images, arrays)
    assert count == 4
    expected = []
    for row, image in enumerate(images):
        (top, left), (height, width) = (arrays[0][name][row].tolist() for name in ("start", "shape"))
        padded = F.pad(image.cpu(), [100] * 4, fill=list(fill) or 0)
        padded = padded[:, top + 100 : top + 100 + height, left + 100 : left + 100 + width]
        for at, flip in enumerate((F.horizontal_flip, F.vertical_flip), 1):
            padded = flip(padded) if arrays[at]["flag"][row] else padded
        how = {"interpolation": InterpolationMode(interpolation), "antialias": True}
        size = arrays[3]["size"][row].tolist()
        if like == "pil":
            padded = F.to_pil_image(padded)
        resized = F.resize(padded, size, **how)
        expected.append(F.pil_to_tensor(resized) if like == "pil" else resized)
    assert_equal(made, expected)


@pytest.mark.parametrize(
    "steps",
    [
        [step("flip", ImageSpec(), axis="horizontal")],
        [step("resize", ImageSpec(), interpolation="bilinear", like="pil", antialias=True)],
        [
            step("flip", ImageSpec(), axis="horizontal"),
            step("resize", ImageSpec(), interpolation="nearest", like="pil", antialias=True),
        ],
        [step("pad", ImageSpec(), mode="reflect", fill=(0,))],
    ],
    ids=["flip", "resize", "nearest", "reflect"],
)
def test_steps_that_do_not_run_together_leave_the_images(rng, steps):
    images, none = pictures(rng, "cpu"), {"size": np.full((COUNT, 2), 9)}
    count, made = lists_on_gpu.run_leading(steps, images, [none] * len(steps))
    assert count == 0 and made is images
