"""Transforms that stand for calls of an image's methods."""

from __future__ import annotations

from typing import Any

from PIL import ImageOps


class Convert:
    """A transform that calls ``image.convert(mode)``."""

    def __init__(self, mode: str):
        self.mode = mode

    def __call__(self, image):
        return image.convert(self.mode)

    def __repr__(self):
        return f"convert({self.mode!r})"


class Cast:
    """A transform that calls the tensor's method ``name`` without arguments, such as float()."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, image):
        return getattr(image, self.name)()

    def __repr__(self):
        return f"{self.name}()"


class ExifTranspose:
    """A transform that calls PIL.ImageOps.exif_transpose()."""

    def __call__(self, image):
        return ImageOps.exif_transpose(image)

    def __repr__(self):
        return "exif_transpose()"


EXIF_TRANSPOSE = ExifTranspose()
# transforms by (method, *arguments); one object for each key, because plans compare transforms by identity
METHODS: dict[tuple[str, ...], Any] = {("convert", mode): Convert(mode) for mode in ("RGB", "L")}
METHODS |= {(name,): Cast(name) for name in ("half", "bfloat16", "float", "double")}
