"""Which number an operation of an image has, and a warp's interpolation."""

from __future__ import annotations

OPERATIONS = (
    "identity",
    *("brightness", "contrast", "posterize", "solarize", "solarize_add", "invert", "autocontrast", "equalize"),
    *("saturation", "sharpness", "hue", "warp"),
)
"""From the second to the one before "saturation" they are tables of 256 values."""
AT = {name: number for number, name in enumerate(OPERATIONS)}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
