"""Convert the planes of JPEGs to images with NumPy and Pillow, by libjpeg-turbo's arithmetic and as kernels.py in
engine/planes."""

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F2

from dali_compat.engine.planes.geometry import COLUMNS

PILLOWS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def upsampled(plane, height, width, across, down):
    """Upsample a chroma plane as libjpeg-turbo does (jdsample.c)."""
    c = plane.astype(np.int32)
    if (across, down) == (1, 1):
        return c[:height, :width]
    if across == 2 and c.shape[1] <= 2:
        return c.repeat(2, 1).repeat(down, 0)[:height, :width]
    sums = c[:, None]  # (rows, 1 or 2, columns)
    if down == 2:
        up, below = np.vstack([c[:1], c[:-1]]), np.vstack([c[1:], c[-1:]])
        sums = np.stack([3 * c + up, 3 * c + below], 1)
    if across == 1:
        return ((sums + np.array([1, 2])[:, None]) >> 2).reshape(-1, c.shape[1])[:height, :width]
    lines = sums.reshape(-1, c.shape[1])
    left, right = np.hstack([lines[:, :1], lines[:, :-1]]), np.hstack([lines[:, 1:], lines[:, -1:]])
    shift, first, second = (4, 8, 7) if down == 2 else (2, 1, 2)
    both = np.stack([(3 * lines + left + first) >> shift, (3 * lines + right + second) >> shift], 2)
    return both.reshape(len(lines), -1)[:height, :width]


def coloured(luma, cb, cr):
    """Convert YCbCr to RGB in 16-bit fixed point (jdcolor.c)."""
    y, cb, cr = luma.astype(np.int32), cb - 128, cr - 128
    red = y + ((91881 * cr + 32768) >> 16)
    green = y + ((-22554 * cb - 46802 * cr + 32768) >> 16)
    blue = y + ((116130 * cb + 32768) >> 16)
    return np.clip(np.stack([red, green, blue], -1), 0, 255).astype(np.uint8)


# ---- substitutes for the kernels, for tests of the choice of decoder


def render(planes, rows, layout, table, out):
    for row, to in zip(_named(rows), out, strict=True):
        top, left = row["top"] - row["low_y"], row["left"] - row["low_x"]
        image = _colours(planes, row, top + row["size_y"], left + row["size_x"])[top:, left:]
        full = _resized(image, (row["full_y"], row["full_x"]), layout)
        y, x = (np.arange(n) + row[begin] for n, begin in zip(to.shape[1:], ("begin_y", "begin_x"), strict=True))
        made = _picked(full, y, x)[:: -1 if row["flip_y"] else 1, :: -1 if row["flip_x"] else 1]
        to.copy_(torch.from_numpy(_converted(made, table)).movedim(-1, 0))


def differs(planes, rows, layout, pixels):
    found, begin = [], 0
    for row in _named(rows):
        image = _colours(planes, row, row["height"], row["width"])
        found.append(not np.array_equal(image.reshape(-1), pixels[begin : begin + image.size].numpy()))
        begin += image.size
    return torch.tensor(found, dtype=torch.int32)


def pick(planes, rows, lines, most, table, out, interleaved):
    for row, (x, y) in zip(_named(rows), lines.numpy(), strict=True):
        y, x, begin = y[: row["height"]], x[: row["width"]], row["region"]
        made = _picked(_colours(planes, row, y.max() + 1, x.max() + 1), y, x)
        made = _converted(made if interleaved else np.moveaxis(made, -1, 0), table, 2 if interleaved else 0)
        out[begin : begin + made.size] = torch.from_numpy(made.reshape(-1))


def _named(rows):
    return (dict(zip(COLUMNS, row, strict=True)) for row in rows.tolist())


def _colours(planes, row, height, width):
    """Return the first rows and columns of the image."""

    def plane(name, pitch, height, width):
        begin = row[name]
        return planes[begin : begin + pitch * height].numpy().reshape(height, pitch)[:, :width]

    luma, pitch = plane("luma", row["pitch"], height, width), row["chroma_pitch"]
    if not row["chroma_x"]:
        return luma[:, :, None].repeat(3, 2)
    both = (plane(name, pitch, row["chroma_height"], row["chroma_width"]) for name in ("cb", "cr"))
    return coloured(luma, *(upsampled(c, height, width, row["chroma_x"], row["chroma_y"]) for c in both))


def _resized(image, size, layout):
    if layout.like == "pil":
        return np.asarray(Image.fromarray(image).resize(size[::-1], PILLOWS[layout.interpolation]))
    how = InterpolationMode(layout.interpolation)
    return F2.resize(torch.from_numpy(image).movedim(-1, 0), size, how).movedim(0, -1).numpy()


def _picked(image, y, x):
    """Select rows and columns; positions outside the image are black."""
    inside = ((y >= 0) & (y < image.shape[0]))[:, None] & ((x >= 0) & (x < image.shape[1]))
    return np.where(inside[:, :, None], image[np.clip(y, 0, len(image) - 1)][:, np.clip(x, 0, image.shape[1] - 1)], 0)


def _converted(image, table, axis=2):
    if table is None:
        return np.ascontiguousarray(image)
    channels = np.arange(3).reshape([3 if a == axis else 1 for a in range(3)])
    return table.numpy()[channels, image]
