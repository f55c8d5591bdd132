"""Steps -> torchvision's own functions on one image: what DALI decodes differently from PIL goes through here.

One function a step, called ``op(image, arrays, **args)``: ``image`` is a PIL image or a CHW tensor, ``arrays`` one row of
the step's per-sample arguments. The result is torchvision's, with the random parameters that the batch has drawn.
"""

from __future__ import annotations

from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ..plan import Step


def replay(path: str, steps: tuple[Step, ...], rows: list[dict]):
    """Decode one file as torchvision's pil_loader does and run the steps; returns a CHW tensor."""
    with open(path, "rb") as file:
        image = Image.open(file).convert("RGB")
    for step, row in zip(steps, rows):
        image = globals()[step.op](image, row, **step.kwargs)
    return image


def identity(image, row):
    return image


def pil_to_tensor(image, row):
    return v1.pil_to_tensor(image)


def crop(image, row, *, inside):
    return v1.crop(image, *_ints(row["start"]), *_ints(row["shape"]))


def pad(image, row, *, mode, fill):
    (top, left), (height, width) = _ints(-row["start"]), _ints(row["shape"])
    _, h, w = v1.get_dimensions(image)
    padding = [left, top, width - w - left, height - h - top]
    return v2.pad(image, padding, fill=list(fill) if mode == "constant" else 0, padding_mode=mode)


def resize(image, row, *, interpolation, like):
    # torchvision on PIL images always antialiases, and on tensors is translated only where it does
    mode = InterpolationMode("nearest-exact" if interpolation == "nearest" else interpolation)
    return (v2 if like == "v2" else v1).resize(image, _ints(row["size"]), mode, antialias=True)


def flip(image, row, *, axis):
    if not row["flag"]:
        return image
    return v1.hflip(image) if axis == "horizontal" else v1.vflip(image)


def grayscale(image, row, *, formula, channels):
    if "flag" in row and not row["flag"]:
        return image
    return v2.rgb_to_grayscale(image, channels)


def to_dtype(image, row, *, dtype, like):
    if like == "v1":
        return v1.convert_image_dtype(image, dtype)
    return v2.to_dtype(image, dtype, scale=like == "v2")


def normalize(image, row, *, mean, std):
    return v1.normalize(image, mean, std)


def _ints(row) -> list[int]:
    return [int(value) for value in row]
