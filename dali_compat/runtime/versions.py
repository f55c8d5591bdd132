"""Which torchvision this is, and what it does on this processor: some of its transforms have changed."""

import torchvision

TORCHVISION = tuple(int(number) for number in torchvision.__version__.split(".")[:2])
"""(0, 26), for example."""


def resizes_in_whole_numbers(interpolation: str) -> bool:
    """Returns whether torchvision's v2 resizes uint8 tensors on a CPU by fixed-point sums, rounded after each axis.
    Before 0.21 it does not where bilinear meets AVX512: there it resizes floats and rounds once."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import _geometry

    asked = getattr(_geometry, "_do_native_uint8_resize_on_cpu", None)
    return asked is None or bool(asked(InterpolationMode(interpolation)))
