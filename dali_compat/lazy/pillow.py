"""Functions in the place of those of PIL.ImageOps and ImageEnhance that are more than an operation."""

from __future__ import annotations

import functools
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

from ..data.sources import ORIENTATION
from .images import later_of
from .kernels import applied
from .samples import IMAGES

_ENHANCERS = {
    ImageEnhance.Brightness: "adjust_brightness",
    ImageEnhance.Color: "adjust_saturation",
    ImageEnhance.Contrast: "adjust_contrast",
    ImageEnhance.Sharpness: "adjust_sharpness",
}


def _pad_hook(really: Any) -> Any:
    @functools.wraps(really)
    def pad(
        image: Any, size: Any, method: Any = Image.Resampling.BICUBIC, color: Any = None, centering: Any = (0.5, 0.5)
    ) -> Any:
        if type(image) not in IMAGES:
            return really(image, size, method, color, centering)
        made = ImageOps.contain(image, size, method)
        room = [all_of - own for all_of, own in zip(size, made.size, strict=True)]
        left, top = (round(one * max(0, min(share, 1))) for one, share in zip(room, centering, strict=True))
        return ImageOps.expand(made, (left, top, room[0] - left, room[1] - top), color or 0) if any(room) else made

    return pad


def _exif_hook(really: Any) -> Any:
    @functools.wraps(really)
    def exif_transpose(image: Any, *, in_place: bool = False) -> Any:
        if type(image) in IMAGES and not in_place:
            made = applied("PIL", "upright", image, (image.getexif().get(ORIENTATION, 1),), {})
            if made is not None:
                return made
        return really(image, in_place=in_place)

    return exif_transpose


def _enhancer_hook(really: Any) -> Any:
    @functools.wraps(really)
    def __init__(self: Any, image: Any) -> None:
        if type(image) in IMAGES:
            self.image = image  # what it blends that with is made where it has to be
        else:
            really(self, image)

    return __init__


def _enhance_hook(really: Any) -> Any:
    @functools.wraps(really)
    def enhance(self: Any, factor: Any) -> Any:
        image = self.image
        if type(image) in IMAGES:
            made = applied("v1", _ENHANCERS.get(type(self), ""), image, (factor,), {})
            if made is not None:
                return made
            self.__init__(later_of(image).value("enhances the image"))
        return really(self, factor)

    return enhance


# where they are put, each made of the original
HOOKS = (
    (ImageOps, "pad", _pad_hook),
    (ImageOps, "exif_transpose", _exif_hook),
    *((enhancer, "__init__", _enhancer_hook) for enhancer in _ENHANCERS),
    (ImageEnhance._Enhance, "enhance", _enhance_hook),
)
