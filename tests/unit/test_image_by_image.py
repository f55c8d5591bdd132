"""Several steps applied image by image equal the same steps applied one after another."""

import threading

import numpy as np
import pytest
import torch

from dali_compat.ops import image_by_image, kernels
from dali_compat.ops.pixels import lists
from dali_compat.plan import ImageSpec, Step

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOAT = ImageSpec("tensor", torch.float32)
SIZES = [(200, 230), (190, 260), (301, 177), (64, 640)]


def step(op, spec=ImageSpec(), **args):
    return Step(op, spec, tuple(args.items()))


def windows(*rows):
    rows = np.array(rows, np.int32)
    return {"start": rows[:, :2], "shape": rows[:, 2:]}


def images(sizes=SIZES, channels=3):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randint(0, 256, (*size, channels), dtype=torch.uint8, generator=generator) for size in sizes]
    return [image.movedim(-1, 0) for image in made]


FLIP = step("flip", axis="horizontal"), {"flag": np.array([1, 0, 1, 0], np.int32)}
UPSIDE_DOWN = step("flip", axis="vertical"), {"flag": np.array([0, 1, 1, 0], np.int32)}
CROP = step("crop", inside=False), windows((3, 4, 60, 50), (0, 0, 60, 50), (100, 20, 60, 50), (2, 500, 60, 50))
BEYOND = step("crop", inside=False), windows((-3, 4, 60, 50), (0, 220, 60, 50), (200, 20, 160, 50), (2, 500, 90, 50))
_PADDED = (-3, -4, 210, 250), (0, -9, 200, 300), (-1, -1, 310, 190), (-5, -5, 80, 700)
PAD = step("pad", mode="constant", fill=(9, 8, 7)), windows(*_PADDED)
SIZE = {"size": np.array([[50, 60]] * 4, np.float32)}
BY_PIL = step("resize", interpolation="bilinear", like="pil", antialias=True), SIZE
BY_TORCH = step("resize", interpolation="bicubic", like="v2", antialias=True), SIZE
JITTER = (
    step("color_jitter", like="pil"),
    {
        "flag": np.array([1, 1, 0, 1], np.int32),
        "order": np.array([[0], [1], [0], [3]], np.int32),
        **dict.fromkeys(("brightness", "contrast", "saturation", "hue"), np.array([1.3, 0.6, 1, 0.2])),
    },
)
TO_FLOAT = [(step("to_dtype", FLOAT, dtype=torch.float32, like=like), {}) for like in ("v1", "v2", "cast")]
NORMALIZE = step("normalize", FLOAT.but(normalized=True), mean=MEAN, std=STD), {}
GRAY = step("grayscale", ImageSpec(channels=1), like="pil", dtype=torch.uint8, channels=1), {}


def each_step(steps, inputs, arrays):
    for one, values in zip(steps, arrays, strict=True):
        inputs = kernels.run(one, inputs, values)
    return inputs


@pytest.mark.parametrize("convert", range(3))
@pytest.mark.parametrize(
    "work",
    [
        [FLIP, CROP],
        [BEYOND, UPSIDE_DOWN, FLIP],
        [JITTER, PAD, BY_TORCH, FLIP],
        [FLIP, BY_PIL],
        [UPSIDE_DOWN, JITTER, JITTER],
    ],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_run_all_equals_one_step_after_another(work, convert, normalize):
    for inputs in (images(), torch.stack(images([(200, 230)] * 4))):
        if not isinstance(inputs, list) and {"pad", "crop"} & {one.op for one, _ in work}:
            continue  # their arrays are for these sizes only
        steps, arrays = zip(*work, TO_FLOAT[convert], *[NORMALIZE] * normalize, strict=True)
        assert image_by_image.count_leading(steps, inputs) == len(steps)
        expected = each_step(steps, inputs, arrays)
        found = image_by_image.run_all(steps, inputs, arrays)
        assert type(found) is type(expected)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_run_all_with_expected_or_other_sizes_equals_single_steps():
    """The plan may predict one size for the batch. Images of another size are passed on to the size check."""
    for size in ((50, 60), (50, 61), None):
        last = Step("to_dtype", FLOAT.but(size=size), (("dtype", torch.float32), ("like", "v1")))
        steps, arrays = zip(BY_TORCH, (last, {}), strict=True)
        found = image_by_image.run_all(steps, images(), arrays)
        assert torch.equal(found, each_step(steps, images(), arrays))


def test_run_all_for_gray_images_and_other_constants_equals_single_steps():
    thirds = step("normalize", FLOAT, mean=(1 / 3,), std=(0.7,)), {}
    steps, arrays = zip(GRAY, (TO_FLOAT[0][0].but(gives=FLOAT.but(channels=1)), {}), thirds, strict=True)
    steps = (*steps[:2], steps[2].but(gives=FLOAT.but(channels=1)))
    found, expected = (run(steps, images(), arrays) for run in (image_by_image.run_all, each_step))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_run_all_when_no_arithmetic_is_exact_uses_a_table(monkeypatch):
    monkeypatch.setattr(image_by_image, "_SCALES", ())
    monkeypatch.setattr(image_by_image, "_conversion", image_by_image._Conversion)
    steps, arrays = zip(FLIP, TO_FLOAT[0], NORMALIZE, strict=True)
    found, expected = (run(steps, images(), arrays) for run in (image_by_image.run_all, each_step))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_run_all_does_not_reuse_memory_that_is_still_referenced():
    last = Step("to_dtype", FLOAT.but(size=(50, 60)), (("dtype", torch.float32), ("like", "v1")))
    steps, arrays = zip(BY_TORCH, (last, {}), strict=True)
    first = image_by_image.run_all(steps, images(), arrays)
    kept, other = first[1].clone(), image_by_image.run_all(steps, images(), arrays)
    assert other.data_ptr() != first.data_ptr()
    part, there = first[1], first.data_ptr()
    del first
    assert image_by_image.run_all(steps, images(), arrays).data_ptr() != there and torch.equal(part, kept)


def test_each_limits_torch_to_one_thread_only_in_its_own_threads():
    before = torch.get_num_threads()
    assert set(lists.each(lambda n: torch.get_num_threads(), range(8))) == {1}
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [before] == [torch.get_num_threads()]
