"""The code of an operation, and of a warp's interpolation."""

from __future__ import annotations

OPERATIONS = (
    "identity",
    *("brightness", "contrast", "posterize", "solarize", "solarize_add", "invert", "autocontrast", "equalize"),
    *("saturation", "sharpness", "hue", "warp"),
)
"""Those of the second line are tables of 256 values, for each channel of an image."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
