"""Shortcuts of the engine for images in memory give the results of the single steps."""

import numpy as np
import pytest
import torch
from torchvision import transforms as T
from torchvision.transforms import v2

from dali_compat.engine import fused as resident
from dali_compat.ops import kernels
from dali_compat.ops.convert import conversion_table
from dali_compat.ops.draws import compute
from dali_compat.plan import ImageSpec, Options
from dali_compat.randoms import Randoms
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


def images_of(channels=3, size=(13, 11), count=50):
    values = np.random.default_rng(0).integers(0, 256, (count, channels, *size), dtype=np.uint8)
    return torch.from_numpy(values)


def drawn(transform, images):
    """Return (plan, arrays of its steps)."""
    spec = ImageSpec(channels=images.shape[1], size=tuple(images.shape[2:]))
    plan = lower(translate(transform, spec), Options(), decoded=True)
    sizes = np.tile(spec.size, (len(images), 1))
    return plan, compute(plan.batch, sizes, Randoms(7, 5, len(images)), slice(None))


def run_step_by_step(steps, images, arrays):
    for step, values in zip(steps, arrays, strict=True):
        images = images if step.op == "choose" else kernels.run(step, images, values)
    return images


FLIPS = T.RandomHorizontalFlip(), T.RandomVerticalFlip(0.4)
WINDOWS = {
    "crop": ([T.RandomCrop((9, 5))], 1),
    "crop with padding": ([T.RandomCrop((13, 11), padding=4)], 2),
    "flips": ([*FLIPS], 2),
    "all": ([*FLIPS, T.RandomCrop(9, padding=(3, 1)), *FLIPS, T.CenterCrop(7)], 7),
    "padding of padding": ([T.Pad(2), *FLIPS, T.Pad((1, 4)), T.RandomCrop(15)], 5),
    "always and never": (
        [T.RandomHorizontalFlip(1.0), T.RandomCrop(9), T.RandomVerticalFlip(1.0), T.RandomVerticalFlip(0.0)],
        4,
    ),
    "beyond, of one": ([T.RandomCrop(9), T.CenterCrop(20), T.RandomHorizontalFlip(1.0)], 3),
    "color": ([*FLIPS, T.RandomCrop(12, padding=2, fill=9), *FLIPS], 6),
    "beyond": ([*FLIPS, T.CenterCrop((20, 8)), *FLIPS, T.CenterCrop(9)], 6),
    "cut, then padded": ([T.RandomCrop(6), *FLIPS, T.Pad(3), *FLIPS, T.RandomCrop(8)], 7),
    "two colors": ([T.Pad(1, fill=3), T.Pad(1, fill=4)], 1),
    "reflection": ([T.CenterCrop(9), T.Pad(2, padding_mode="reflect"), T.RandomCrop(9), *FLIPS], 5),
    "reflection of each": ([T.RandomCrop(9), *FLIPS, T.Pad(3, padding_mode="reflect"), T.RandomCrop(12)], 5),
    "symmetry": ([T.RandomCrop(13, padding=3, padding_mode="symmetric", pad_if_needed=True)], 1),
    "edge and color": (
        [T.Pad(2, padding_mode="edge"), T.RandomCrop(12), T.Pad(3, fill=7), *FLIPS, T.RandomCrop(11)],
        6,
    ),
    "color and edge": ([T.Pad(2, fill=7), T.RandomCrop(12), T.Pad(3, padding_mode="edge"), *FLIPS], 5),
    "a container": ([T.CenterCrop(9), T.RandomApply([T.Pad(0), T.CenterCrop(9)])], 1),
    "to size": ([T.RandomCrop(15, pad_if_needed=True)], 0),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("case", WINDOWS)
def test_gathered_windows_and_flips_equal_single_steps(case, channels):
    transforms, gathered_steps = WINDOWS[case]
    images = images_of(channels)
    plan, arrays = drawn(T.Compose(transforms), images)
    assert resident._leading_windows(plan.batch, channels) == gathered_steps
    expected = run_step_by_step(plan.batch[:gathered_steps], images, arrays[:gathered_steps])
    assert torch.equal(resident.gather(images, plan.batch[:gathered_steps], arrays[:gathered_steps]), expected)
    program = resident.Program(plan.batch, plan.takes, torch.device("cpu"))
    assert torch.equal(
        torch.stack(list(program(images, arrays))), torch.stack(list(run_step_by_step(plan.batch, images, arrays)))
    )


def test_gathered_padding_with_a_color_per_channel_equals_single_steps():
    images = images_of()
    plan, arrays = drawn(T.RandomCrop(13, padding=2, fill=(1, 20, 255)), images)
    assert torch.equal(resident.gather(images, plan.batch, arrays), run_step_by_step(plan.batch, images, arrays))


CONVERSIONS = {
    "ToTensor": ([T.ToTensor()], (0, 1)),
    "ToTensor, Normalize": ([T.ToTensor(), T.Normalize(MEAN, STD)], (0, 2)),
    "ToDtype, Normalize": ([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)], (0, 2)),
    "half": ([v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)], (0, 2)),
    "0 to 255": ([v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize((100.0,), (3.0,))], (0, 2)),
    "twice": ([T.ToTensor(), T.ConvertImageDtype(torch.float64), T.Normalize(MEAN, STD)], (0, 3)),
    "after a crop": ([T.RandomCrop(9), T.ToTensor(), T.Normalize(MEAN, STD), T.RandomErasing()], (1, 3)),
    "gray": ([T.Grayscale(), T.ToTensor(), T.Normalize((0.5,), (0.2,))], (1, 3)),
    "none": ([T.PILToTensor()], (0, 0)),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversions_by_lookup_table_equal_single_steps(case, monkeypatch):
    """The lookup table is used on a GPU; the expected result comes from torchvision's steps on the CPU."""
    transforms, span = CONVERSIONS[case]
    images = images_of()
    plan, arrays = drawn(T.Compose(transforms), images)
    assert plan.batch[slice(*resident._conversions(plan.batch))] == plan.batch[slice(*span)]
    expected = run_step_by_step(plan.batch, images, arrays)
    program = resident.Program(plan.batch, plan.takes, torch.device("cpu"))
    program._first, program._last = span
    program._table = conversion_table(plan.batch[slice(*span)]) if span[1] else None
    looked_up = []
    look_up = resident.look_up
    monkeypatch.setattr(resident, "look_up", lambda *args: looked_up.append(1) or look_up(*args))
    made = program(images, arrays)
    assert made.dtype == expected.dtype and torch.equal(made, expected)
    assert len(looked_up) == bool(span[1])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversions_on_gpu_equal_single_steps_on_cpu(case):
    images = images_of()
    plan, arrays = drawn(T.Compose(CONVERSIONS[case][0]), images)
    program = resident.Program(plan.batch, plan.takes, torch.device("cuda"))
    assert torch.equal(program(images.cuda(), arrays).cpu(), run_step_by_step(plan.batch, images, arrays))
