"""Triton kernels that convert planes of JPEGs to a batch, bit for bit as libjpeg, Pillow and torchvision do.

Colors are computed as in libjpeg-turbo (jdsample.c, fancy upsampling; jdcolor.c). Resizing is done as in Pillow
(Resample.c) or, if ``like`` is "v2", as in PyTorch for uint8 on the CPU (UpSampleKernel.cpp). Weights are computed in
double precision, in the same order as in that C code, without fused multiply-add. All later computations use integers.

Each image has a row of parameters. Its columns are geometry.COLUMNS.
"""

import torch
import triton
import triton.language as tl

from .geometry import COLUMNS, Layout

_ROW = tl.constexpr(len(COLUMNS))
_AT = {name: tl.constexpr(i) for i, name in enumerate(COLUMNS)}
_LUMA, _CB, _CR, _PITCH, _C_PITCH = (_AT[n] for n in ("luma", "cb", "cr", "pitch", "chroma_pitch"))
_C_HEIGHT, _C_WIDTH, _C_RIGHT, _C_DOWN = (_AT[n] for n in ("chroma_height", "chroma_width", "chroma_x", "chroma_y"))
_LEFT, _TOP, _WIDTH, _HEIGHT, _REGION = (_AT[n] for n in ("left", "top", "width", "height", "region"))
_VERTICAL, _HALF, _X, _Y = (_AT[n] for n in ("vertical_first", "half", "size_x", "size_y"))
_MIRROR, _UPSIDE_DOWN = _AT["flip_x"], _AT["flip_y"]
_BLOCK = 256  # pixels per program at a time
_PROGRAMS = 128  # maximum per image; all images get as many as the largest


def render(planes: torch.Tensor, rows: torch.Tensor, layout: Layout, table: torch.Tensor | None, out: torch.Tensor):
    """Convert planes to resized images in ``out``. Does not synchronize.

    Args:
        planes: (bytes,) uint8.
        rows: parameters, (N, len(COLUMNS)) int64.
        layout: Layout of ``rows``.
        table: (C, 256), the converted value of each pixel value; None if ``out`` is uint8.
        out: (N, C, H, W) in any memory format.
    """
    count, (height, width), device = len(rows), out.shape[-2:], planes.device
    region = torch.empty(layout.region_bytes, dtype=torch.uint8, device=device)
    half = torch.empty(layout.half_bytes, dtype=torch.uint8, device=device)
    longest = max(height, width)
    weights = torch.empty((count, 2, layout.taps, longest), dtype=torch.int32, device=device)
    first = torch.empty((count, 2, longest + 1), dtype=torch.int32, device=device)  # last entry: bits of a weight
    bicubic, like_v2 = layout.interpolation == "bicubic", layout.like == "v2"
    block = max(16, triton.next_power_of_2(longest))
    _weigh[(count, 2)](
        rows, weights, first, height, width, layout.taps, longest, bicubic, like_v2, block, enable_fp_fusion=False
    )
    _colour[(min(triton.cdiv(layout.most_region, _BLOCK), _PROGRAMS), count)](planes, rows, region, _BLOCK)
    common = rows, weights, first, height, width, layout.taps, longest
    _half[(min(triton.cdiv(layout.most_half, _BLOCK), _PROGRAMS), count)](region, half, *common, _BLOCK)
    values = out if table is None else table
    grid = triton.cdiv(height * width, _BLOCK), count
    _rest[grid](half, out, values, *common, *out.stride(), table is not None, _BLOCK)


def differs(planes: torch.Tensor, rows: torch.Tensor, layout: Layout, pixels: torch.Tensor) -> torch.Tensor:
    """Return (N,) int32: 1 if an image's region differs from ``pixels``, otherwise 0. Does not synchronize. ``pixels``,
    (bytes,) uint8, contains the flattened (height, width, 3) regions of all images."""
    made = torch.zeros(len(rows), dtype=torch.int32, device=planes.device)
    _differ[(min(triton.cdiv(layout.most_region, _BLOCK), _PROGRAMS), len(rows))](planes, rows, pixels, made, _BLOCK)
    return made


def pick(
    planes: torch.Tensor,
    rows: torch.Tensor,
    lines: torch.Tensor,
    most: int,
    table: torch.Tensor | None,
    out: torch.Tensor,
    interleaved: bool,
):
    """Copy selected lines and columns of the images to ``out``. Does not synchronize.

    Args:
        planes, table: as for render().
        rows: parameters from geometry.picked_rows_of().
        lines: indices from program.picked(); -1 for black.
        most: number of pixels of the largest result.
        out: (values,), the flattened (3, height, width) results.
        interleaved: whether the results are (height, width, 3) instead.
    """
    grid, values = (min(triton.cdiv(most, _BLOCK), _PROGRAMS), len(rows)), out if table is None else table
    _pick[grid](planes, rows, lines, out, values, lines.shape[2], table is not None, interleaved, _BLOCK)


@triton.jit
def _number(place):
    """Load a parameter as int32, because 64-bit division is very slow on a GPU."""
    return tl.load(place).to(tl.int32)


@triton.jit
def _filter(x, bicubic: tl.constexpr):
    """Compute the weight at distance ``x`` as bilinear_filter or bicubic_filter of Resample.c does."""
    x = tl.abs(x)
    if bicubic:
        near = ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * -0.5
        return tl.where(x < 1, near, tl.where(x < 2, far, 0.0))
    return tl.maximum(1 - x, 0.0)


@triton.jit
def _weigh(
    rows, weights, first, height, width, taps, longest, bicubic: tl.constexpr, v2: tl.constexpr, block: tl.constexpr
):
    """Compute ``weights`` and ``first`` as Resample.c does (precompute_coeffs, normalize_coeffs_8bpc). Each program
    handles one axis (0: x) of one image."""
    image, axis = tl.program_id(0).to(tl.int64), tl.program_id(1)
    numbers = rows + image * _ROW + tl.where(axis == 0, _X, _Y)
    size, full, begin = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    low, most = tl.load(numbers + 3), tl.load(numbers + 4).to(tl.int32)
    wanted = tl.where(axis == 0, width, height)
    scale = size.to(tl.float64) / full.to(tl.float64)
    wide = tl.maximum(scale, 1.0)
    narrow = 1.0 / wide
    support = (2.0 if bicubic else 1.0) * wide
    at = tl.arange(0, block)
    bits = 22
    if v2:  # the largest number of bits for which all weights of the axis fit into 16 bits
        largest = tl.zeros([block], tl.float64)
        for chunk in range(0, full.to(tl.int32), block):
            out = (at + chunk).to(tl.int64)
            center = (out.to(tl.float64) + 0.5) * scale
            start = tl.maximum((center - support + 0.5).to(tl.int64), 0)
            count = tl.minimum((center + support + 0.5).to(tl.int64), size) - start
            total = tl.zeros([block], tl.float64)
            peak = tl.zeros([block], tl.float64)
            for tap in range(most):
                weight = _filter(((tap + start).to(tl.float64) - center + 0.5) * narrow, bicubic)
                weight = tl.where(tap < count, weight, 0.0)
                total += weight
                peak = tl.maximum(peak, weight)
            peak = tl.where((out < full) & (total != 0), peak / total, 0.0)
            largest = tl.maximum(largest, peak)
        peak = tl.max(largest, 0)
        bits = 0
        power = 2.0
        for _ in range(22):
            fits = (0.5 + peak * power).to(tl.int64) < 32768
            bits += fits.to(tl.int32)
            power *= 2.0
    unit = (tl.full([], 1, tl.int64) << bits).to(tl.float64)
    out = at.to(tl.int64) + begin
    center = (out.to(tl.float64) + 0.5) * scale
    start = tl.maximum((center - support + 0.5).to(tl.int64), 0)
    count = tl.minimum((center + support + 0.5).to(tl.int64), size) - start
    there = (out >= 0) & (out < full)
    total = tl.zeros([block], tl.float64)
    for tap in range(most):
        weight = _filter(((tap + start).to(tl.float64) - center + 0.5) * narrow, bicubic)
        total += tl.where(tap < count, weight, 0.0)
    line = image * 2 + axis
    for tap in range(most):
        weight = _filter(((tap + start).to(tl.float64) - center + 0.5) * narrow, bicubic)
        weight = tl.where((tap < count) & there, weight, 0.0)
        weight = tl.where(total != 0, weight / total, weight)
        whole = (tl.where(weight < 0, -0.5, 0.5) + weight * unit).to(tl.int32)
        tl.store(weights + (line * taps + tap) * longest + at, whole, mask=at < wanted)
    # -1: not a pixel of the resized image
    tl.store(first + line * (longest + 1) + at, tl.where(there, start - low, -1).to(tl.int32), mask=at < wanted)
    tl.store(first + line * (longest + 1) + longest, bits)


@triton.jit
def _chroma(plane, pitch, high, wide, y, x, right, down, there):
    """Return the chroma of pixel (y, x), interpolated as in h2v2, h2v1 and h1v2_fancy_upsample. Planes of 1 or 2
    columns are not interpolated horizontally."""
    row, column = y // down, x // right
    middle = tl.load(plane + row * pitch + column, mask=there, other=0).to(tl.int32)
    odd_x, odd_y = (x % 2).to(tl.int32), (y % 2).to(tl.int32)
    beside = tl.minimum(tl.maximum(column + 2 * odd_x - 1, 0), wide - 1)
    above = tl.minimum(tl.maximum(row + 2 * odd_y - 1, 0), high - 1)
    made = middle
    if (right == 2) & (wide > 2):
        other = tl.load(plane + row * pitch + beside, mask=there, other=0).to(tl.int32)
        if down == 2:
            upper = tl.load(plane + above * pitch + column, mask=there, other=0).to(tl.int32)
            corner = tl.load(plane + above * pitch + beside, mask=there, other=0).to(tl.int32)
            made = (3 * (3 * middle + upper) + 3 * other + corner + 8 - odd_x) >> 4
        else:
            made = (3 * middle + other + 1 + odd_x) >> 2
    elif (right == 1) & (down == 2):
        upper = tl.load(plane + above * pitch + column, mask=there, other=0).to(tl.int32)
        made = (3 * middle + upper + 1 + odd_y) >> 2
    return made


@triton.jit
def _bounded(x):
    return tl.minimum(tl.maximum(x, 0), 255)


@triton.jit
def _store(to, step, red, green, blue, table, converts: tl.constexpr, there):
    """Store three channels, ``step`` apart. If ``converts``, look up each value in ``table`` (3, 256) first."""
    if converts:
        tl.store(to, tl.load(table + red, mask=there), mask=there)
        tl.store(to + step, tl.load(table + 256 + green, mask=there), mask=there)
        tl.store(to + 2 * step, tl.load(table + 512 + blue, mask=there), mask=there)
    else:
        tl.store(to, red.to(tl.uint8), mask=there)
        tl.store(to + step, green.to(tl.uint8), mask=there)
        tl.store(to + 2 * step, blue.to(tl.uint8), mask=there)


@triton.jit
def _rgb(planes, row, at, there):
    """Return the RGB of the pixels with indices ``at`` in the image's region."""
    width = _number(row + _WIDTH)
    return _rgb_at(planes, row, at // width + _number(row + _TOP), at % width + _number(row + _LEFT), there)


@triton.jit
def _rgb_at(planes, row, y, x, there):
    luma = tl.load(planes + tl.load(row + _LUMA) + y * _number(row + _PITCH) + x, mask=there, other=0).to(tl.int32)
    red, green, blue = luma, luma, luma
    right, down = _number(row + _C_RIGHT), _number(row + _C_DOWN)
    if right > 0:  # 0: gray
        high, wide, pitch = _number(row + _C_HEIGHT), _number(row + _C_WIDTH), _number(row + _C_PITCH)
        cb = _chroma(planes + tl.load(row + _CB), pitch, high, wide, y, x, right, down, there) - 128
        cr = _chroma(planes + tl.load(row + _CR), pitch, high, wide, y, x, right, down, there) - 128
        red = _bounded(luma + ((91881 * cr + 32768) >> 16))
        green = _bounded(luma + ((-22554 * cb - 46802 * cr + 32768) >> 16))
        blue = _bounded(luma + ((116130 * cb + 32768) >> 16))
    return red, green, blue


@triton.jit
def _colour(planes, rows, region, block: tl.constexpr):
    """Convert each image's region from YCbCr to RGB, and store it in ``region`` as (3, height, width)."""
    image = tl.program_id(1).to(tl.int64)
    row = rows + image * _ROW
    pixels = _number(row + _WIDTH) * _number(row + _HEIGHT)
    for begin in range(tl.program_id(0) * block, pixels, tl.num_programs(0) * block):
        at = begin + tl.arange(0, block)
        there = at < pixels
        red, green, blue = _rgb(planes, row, at, there)
        made = region + tl.load(row + _REGION) + at
        _store(made, pixels, red, green, blue, made, False, there)


@triton.jit
def _differ(planes, rows, wanted, made, block: tl.constexpr):
    """Store 1 in ``made`` for each image whose region differs from ``wanted``, as differs() does."""
    image = tl.program_id(1).to(tl.int64)
    row = rows + image * _ROW
    pixels = _number(row + _WIDTH) * _number(row + _HEIGHT)
    other = tl.zeros([block], tl.int32)
    for begin in range(tl.program_id(0) * block, pixels, tl.num_programs(0) * block):
        at = begin + tl.arange(0, block)
        there = at < pixels
        red, green, blue = _rgb(planes, row, at, there)
        pixel = wanted + tl.load(row + _REGION) + 3 * at
        other |= (there & (tl.load(pixel, mask=there, other=0).to(tl.int32) != red)).to(tl.int32)
        other |= (there & (tl.load(pixel + 1, mask=there, other=0).to(tl.int32) != green)).to(tl.int32)
        other |= (there & (tl.load(pixel + 2, mask=there, other=0).to(tl.int32) != blue)).to(tl.int32)
    if tl.max(other, 0) > 0:
        tl.store(made + image, 1)


@triton.jit
def _filtered(given, before_w, before_h, rows, image, axis, y, x, weights, first, taps, longest, wanted):
    """Filter an image (3, before_h, before_w) along one axis (0: x), and return the 8-bit RGB at (y, x) of the result.
    Positions outside of the resized image are black."""
    line = image * 2 + axis
    place = tl.where(axis != 0, y, x)
    start = tl.load(first + line * (longest + 1) + place, mask=wanted, other=-1)
    bits = tl.load(first + line * (longest + 1) + longest)
    wanted = wanted & (start >= 0)
    pixels = given + tl.where(axis != 0, x, y * before_w)
    step, length, plane = tl.where(axis != 0, before_w, 1), tl.where(axis != 0, before_h, before_w), before_w * before_h
    red = tl.zeros_like(start)
    green, blue = red, red
    for tap in range(_number(rows + image * _ROW + tl.where(axis != 0, _Y, _X) + 4)):
        weight = tl.load(weights + (line * taps + tap) * longest + place, mask=wanted, other=0)
        inside = wanted & (start + tap < length)
        pixel = pixels + (start + tap) * step
        red += weight * tl.load(pixel, mask=inside, other=0).to(tl.int32)
        green += weight * tl.load(pixel + plane, mask=inside, other=0).to(tl.int32)
        blue += weight * tl.load(pixel + 2 * plane, mask=inside, other=0).to(tl.int32)
    half = tl.full([], 1, tl.int32) << (bits - 1)
    return _bounded((red + half) >> bits), _bounded((green + half) >> bits), _bounded((blue + half) >> bits)


@triton.jit
def _half(region, made, rows, weights, first, height, width, taps, longest, block: tl.constexpr):
    """Filter each image's region along one axis, selected by "vertical_first". Store the result in ``made``,
    (3, region height, W) or (3, H, region width)."""
    image = tl.program_id(1).to(tl.int64)
    row = rows + image * _ROW
    before_w, before_h, vertical = _number(row + _WIDTH), _number(row + _HEIGHT), _number(row + _VERTICAL)
    after_w, after_h = tl.where(vertical != 0, before_w, width), tl.where(vertical != 0, height, before_h)
    given, to = region + tl.load(row + _REGION), made + tl.load(row + _HALF)
    pixels = after_w * after_h
    for begin in range(tl.program_id(0) * block, pixels, tl.num_programs(0) * block):
        at = begin + tl.arange(0, block)
        there = at < pixels
        y, x = at // after_w, at % after_w
        red, green, blue = _filtered(
            given, before_w, before_h, rows, image, vertical, y, x, weights, first, taps, longest, there
        )
        _store(to + at, pixels, red, green, blue, made, False, there)


@triton.jit
def _rest(
    made, out, table, rows, weights, first, height, width, taps, longest, stride, stride_c, stride_h, stride_w,
    converts: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Filter the result of _half() along the other axis. Flip and convert it, and store it in ``out``."""
    image = tl.program_id(1).to(tl.int64)
    row = rows + image * _ROW
    at = tl.program_id(0) * block + tl.arange(0, block)
    there = at < height * width
    y, x = at // width, at % width
    vertical = _number(row + _VERTICAL)  # whether the first axis was vertical
    before_w = tl.where(vertical != 0, _number(row + _WIDTH), width)
    before_h = tl.where(vertical != 0, height, _number(row + _HEIGHT))
    given = made + tl.load(row + _HALF)
    red, green, blue = _filtered(
        given, before_w, before_h, rows, image, 1 - vertical, y, x, weights, first, taps, longest, there
    )
    to_y = tl.where(tl.load(row + _UPSIDE_DOWN) != 0, height - 1 - y, y)
    to_x = tl.where(tl.load(row + _MIRROR) != 0, width - 1 - x, x)
    to = out + image * stride + to_y * stride_h + to_x * stride_w
    _store(to, stride_c, red, green, blue, table, converts, there)


@triton.jit
def _pick(
    planes, rows, lines, out, table, longest, converts: tl.constexpr, interleaved: tl.constexpr, block: tl.constexpr
):
    image = tl.program_id(1).to(tl.int64)
    row = rows + image * _ROW
    width = _number(row + _WIDTH)
    pixels = width * _number(row + _HEIGHT)
    columns = lines + image * 2 * longest
    for begin in range(tl.program_id(0) * block, pixels, tl.num_programs(0) * block):
        at = begin + tl.arange(0, block)
        there = at < pixels
        x = tl.load(columns + at % width, mask=there, other=-1)
        y = tl.load(columns + longest + at // width, mask=there, other=-1)
        inside = (x >= 0) & (y >= 0)
        red, green, blue = _rgb_at(planes, row, y, x, inside)
        red, green, blue = tl.where(inside, red, 0), tl.where(inside, green, 0), tl.where(inside, blue, 0)
        to = out + tl.load(row + _REGION) + (3 * at if interleaved else at)
        step = 1 if interleaved else pixels
        _store(to, step, red, green, blue, table, converts, there)
