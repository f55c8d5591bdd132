"""Pixels selected by steps (engine/planes/program), compared with Pillow and torchvision."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

from dali_compat.engine.pil import apply
from dali_compat.engine.planes.program import picked
from dali_compat.ops.draws import compute
from dali_compat.ops.kernels import rows_of
from dali_compat.plan import Options
from dali_compat.randoms import Randoms
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

SIZES = np.array([(37, 51), (1, 3), (90, 33), (210, 7), (64, 64)])
NEAREST = InterpolationMode.NEAREST


def some_steps(rng):
    size = rng.randint(1, 80), rng.randint(1, 80)
    kinds = [
        v1.CenterCrop(size),
        v1.Resize(size, NEAREST),
        v1.Resize(rng.randint(3, 70), InterpolationMode.NEAREST_EXACT),
        v1.RandomResizedCrop(size, (0.3, 1.0), interpolation=NEAREST),
        v1.RandomHorizontalFlip(),
        v1.RandomVerticalFlip(1),
        v1.Pad(rng.randint(1, 5)),
        v1.RandomCrop((3, 2), padding=(1, 0), pad_if_needed=True),
    ]
    return v1.Compose([*rng.sample(kinds, rng.randint(0, 4)), v1.PILToTensor()])


@pytest.mark.parametrize("seed", range(24))
def test_picked_pixels_equal_torchvision(seed):
    chain, pixels = some_steps(random.Random(seed)), np.random.default_rng(seed)
    plan = lower(translate(chain), Options(exact=True, gpu=True))
    assert not plan.after
    rows = np.arange(len(SIZES))
    after, lines = picked(plan.planes, compute(plan.planes, SIZES, Randoms(seed, 0, len(rows)), rows), SIZES)
    for row, (size, (height, width), (columns, lines_of)) in enumerate(zip(SIZES, after, lines, strict=True)):
        expected = image = Image.fromarray(pixels.integers(1, 256, (*size, 3), np.uint8))
        for s, values in zip(plan.steps, compute(plan.steps, SIZES[[row]], Randoms(seed, row, 1), [0]), strict=True):
            expected = apply(expected, s, rows_of(values, 0))
        y, x = lines_of[:height, None], columns[None, :width]
        found = np.where(((y >= 0) & (x >= 0))[..., None], np.asarray(image)[y, x], 0)
        assert torch.equal(torch.from_numpy(found).movedim(-1, 0), expected), chain
