"""Steps that timm alone has."""

from __future__ import annotations

import numpy as np

from .geometry import resize_each, resize_image
from .lists import uniform
from .noise import within
from .registry import image_kernel, kernel, ragged_kernel
from .squares import normals


@kernel
def resize_by_choice(images, arrays, *, interpolations, like):
    """torchvision.transforms.functional.resize, with an interpolation of each image's own."""
    return uniform(resize_each_by_choice(list(images), arrays, interpolations=interpolations, like=like))


@ragged_kernel("resize_by_choice")
def resize_each_by_choice(images, arrays, *, interpolations, like):
    made = list(images)
    for number, interpolation in enumerate(interpolations):
        rows = np.flatnonzero(arrays["choice"] == number)
        if len(rows):
            some = {"size": arrays["size"][rows]}
            resized = resize_each([images[row] for row in rows], some, interpolation=interpolation, like=like)
            for row, image in zip(rows, resized, strict=True):
                made[row] = image
    return made


@image_kernel("resize_by_choice")
def resize_image_by_choice(image, row, *, interpolations, like):
    return resize_image(image, row, interpolation=interpolations[int(row["choice"])], like=like, antialias=True)


@kernel
def erase_with_color(images, arrays):
    """timm's RandomErasing in mode "rand": a window takes one normal number a channel."""
    colors = normals(arrays["key"], images.shape[1], images.device).to(images.dtype)
    return images.where(~within(images, arrays), colors[:, :, None, None])
