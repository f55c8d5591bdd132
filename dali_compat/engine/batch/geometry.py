"""Windows, flips, sizes and warps."""

from __future__ import annotations


def flip(images, arrays, *, axis):
    return images.flip(-1 if axis == "horizontal" else -2)
