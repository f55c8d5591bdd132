"""Random arguments drawn by this package and by torchvision."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

from dali_compat.ops.draws import run, uniforms_of
from dali_compat.plan import draw
from dali_compat.randoms import Randoms


def drawn(name, sizes, seed=0, position=0, **args):
    """Return (uniform numbers, arrays, sizes after) of a draw."""
    chosen = draw(name, **args)
    u = Randoms(seed, position, len(sizes))(3, uniforms_of(chosen))
    return u, *run(chosen, np.asarray(sizes), u)


def image(height, width):
    return torch.empty(1, 1, 1).expand(1, height, width)


PLAIN = {"Identity", "AutoContrast", "Equalize", "Invert"}


UNSIGNED = PLAIN | {"Posterize", "Solarize"}


@contextmanager
def recorded(version, transform):
    """Record the (name, magnitude) of each operation that a policy would run."""
    calls = []

    def note(img, name, magnitude, *_, **__):
        calls.append((name, magnitude))
        return img

    if version == "v1":
        patch = mock.patch("torchvision.transforms.autoaugment._apply_op", note)
    else:
        patch = mock.patch.object(
            type(transform), "_apply_image_or_video_transform", lambda self, *a, **k: note(*a, **k)
        )
    with patch:
        yield calls
