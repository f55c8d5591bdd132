"""Triton kernels that apply one operation to each uint8 image, exactly as Pillow does.

The modules color, filters, jitter and pixels/transform of ops/ use the same arithmetic, and name Pillow's source files.
``rows`` contains float64 numbers for each image: the code of the operation, the six ``numbers`` of run(), the code of
the interpolation, and the fill outside of a warp. For contrast, the second of the six is the number of pixels.
"""

import triton
import triton.language as tl

from . import CODES

ROW = 12
_ROW = tl.constexpr(ROW)
_AT = {name: tl.constexpr(code) for name, code in CODES.items()}
_BRIGHTNESS, _CONTRAST, _POSTERIZE, _SOLARIZE = (_AT[n] for n in ("brightness", "contrast", "posterize", "solarize"))
_SOLARIZE_ADD, _INVERT, _AUTOCONTRAST = (_AT[n] for n in ("solarize_add", "invert", "autocontrast"))
_EQUALIZE, _SATURATION, _SHARPNESS = (_AT[n] for n in ("equalize", "saturation", "sharpness"))
_HUE, _WARP = _AT["hue"], _AT["warp"]


@triton.jit
def _bounded(x):
    return tl.minimum(tl.maximum(x, 0.0), 255.0).to(tl.int32)


@triton.jit
def _blend(value, other, ratio):
    """Blend as Image.blend does (Blend.c)."""
    return _bounded((value - other) * ratio + other)


@triton.jit
def _pixel(pointer, mask):
    return tl.load(pointer, mask=mask, other=0).to(tl.int32)


@triton.jit
def _gray(pointer, pixels, channels: tl.constexpr, mask):
    """Return Pillow's gray value (L24)."""
    value = _pixel(pointer, mask)
    if channels == 3:
        green, blue = _pixel(pointer + pixels, mask), _pixel(pointer + 2 * pixels, mask)
        value = (19595 * value + 38470 * green + 7471 * blue + 32768) >> 16
    return value


# not specialized on addresses and sizes, because recompiling takes seconds
@triton.jit(do_not_specialize=["images", "height", "width"])
def levels(images, rows, made, height, width, channels: tl.constexpr, block: tl.constexpr):
    """Compute ``made`` (N, C, 256) uint8, the tables of operations that map single values, such as brightness and
    equalize. Each program handles one channel of one image."""
    image, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = rows + image * _ROW
    operation, number = tl.load(row).to(tl.int32), tl.load(row + 1)
    pixels = height * width
    planes = images + image * channels * pixels
    level = tl.arange(0, 256)
    value = level
    if operation == _BRIGHTNESS:
        value = _bounded(level.to(tl.float32) * number.to(tl.float32))
    elif operation == _CONTRAST:
        totals = tl.zeros([block], tl.int64)
        for begin in range(0, pixels, block):
            at = begin + tl.arange(0, block)
            totals += _gray(planes + at, pixels, channels, at < pixels)
        count = tl.load(row + 2).to(tl.int64)
        mean = (2 * tl.sum(totals, 0) + count) // (2 * count)
        value = _blend(level.to(tl.float32), mean.to(tl.float32), number.to(tl.float32))
    elif operation == _POSTERIZE:
        value = level & number.to(tl.int32)
    elif operation == _SOLARIZE:
        value = tl.where(level >= number.to(tl.int32), 255 - level, level)
    elif operation == _SOLARIZE_ADD:
        value = tl.where(level < 128, level + number.to(tl.int32), level)
    elif operation == _INVERT:
        value = 255 - level
    elif operation == _AUTOCONTRAST:
        lows, highs = tl.full([block], 255, tl.int32), tl.zeros([block], tl.int32)
        for begin in range(0, pixels, block):
            at = begin + tl.arange(0, block)
            pixel = _pixel(planes + channel * pixels + at, at < pixels)
            lows = tl.minimum(lows, tl.where(at < pixels, pixel, 255))
            highs = tl.maximum(highs, pixel)
        low, high = tl.min(lows, 0), tl.max(highs, 0)
        if high > low:
            scale = 255.0 / (high - low).to(tl.float64)
            value = _bounded(level.to(tl.float64) * scale + (-low).to(tl.float64) * scale)
    elif operation == _EQUALIZE:
        histogram = tl.zeros([256], tl.int32)
        for begin in range(0, pixels, block):
            at = begin + tl.arange(0, block)
            histogram += tl.histogram(_pixel(planes + channel * pixels + at, at < pixels), 256)
        histogram -= tl.where(level == 0, tl.cdiv(pixels, block) * block - pixels, 0)
        until = tl.cumsum(histogram, 0)
        last = tl.sum((until < pixels).to(tl.int32), 0)  # the largest pixel value
        step = (pixels - tl.sum(tl.where(level == last, histogram, 0), 0)) // 255
        if step > 0:
            value = tl.minimum((until - histogram + step // 2) // step, 255)
    tl.store(made + (image * channels + channel) * 256 + level, value.to(tl.uint8))


@triton.jit(do_not_specialize=["images", "height", "width"])
def operate(
    images, out, rows, tables, hue_of, range_of, saturation_of, weights, height, width, channels: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Compute ``out``, the images after their operations. ``tables`` comes from levels(). hsv_tables() returns
    the four arguments from ``hue_of`` on, which are used only if the images have three channels."""
    image, pixels = tl.program_id(0).to(tl.int64), height * width
    row = rows + image * _ROW
    operation, number = tl.load(row).to(tl.int32), tl.load(row + 1)
    at = tl.program_id(1) * block + tl.arange(0, block)
    mask = at < pixels
    source, target = images + image * channels * pixels, out + image * channels * pixels
    y, x = at // width, at % width
    if operation == _WARP:
        if tl.load(row + 7) == 0:
            _warp_nearest(source, target, row, y, x, at, mask, height, width, channels)
        else:
            _warp_filtered(source, target, row, y, x, at, mask, height, width, channels)
    elif operation == _SHARPNESS:
        _sharpen(source, target, number.to(tl.float32), y, x, at, mask, height, width, channels)
    elif operation == _SATURATION:
        gray = _gray(source + at, pixels, channels, mask).to(tl.float32)
        for channel in tl.static_range(channels):
            pixel = _pixel(source + channel * pixels + at, mask)
            blended = _blend(pixel.to(tl.float32), gray, number.to(tl.float32))  # Triton allows one type per name
            tl.store(target + channel * pixels + at, blended, mask=mask)
    elif (operation > 0) & (operation < _SATURATION):
        for channel in tl.static_range(channels):
            pixel = _pixel(source + channel * pixels + at, mask)
            value = tl.load(tables + (image * channels + channel) * 256 + pixel, mask=mask, other=0)
            tl.store(target + channel * pixels + at, value, mask=mask)
    elif (operation == 0) | ((operation == _HUE) & (channels == 1)):
        for channel in tl.static_range(channels):
            offset = channel * pixels + at
            tl.store(target + offset, tl.load(source + offset, mask=mask, other=0), mask=mask)
    if channels == 3:  # noqa: SIM102  (with fewer channels the compiler must not see the missing tables)
        if operation == _HUE:
            _shift_hue(source, target, number, at, mask, pixels, hue_of, range_of, saturation_of, weights)


@triton.jit
def _sharpen(source, target, ratio, y, x, at, mask, height, width, channels: tl.constexpr):
    """Blend with a 3 x 3 mean whose center has weight 5, except at the border."""
    inner = mask & (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    for channel in tl.static_range(channels):
        pointer = source + channel * height * width + at
        pixel = _pixel(pointer, mask)
        total = 4 * pixel
        for down in tl.static_range(-1, 2):
            for right in tl.static_range(-1, 2):
                total += _pixel(pointer + down * width + right, inner)
        smooth = (2 * total + 13) // 26  # a thirteenth of an integer is never halfway between two integers
        made = tl.where(inner, _blend(pixel.to(tl.float32), smooth.to(tl.float32), ratio), pixel)
        tl.store(target + channel * height * width + at, made.to(tl.uint8), mask=mask)


@triton.jit
def _shift_hue(source, target, shift, at, mask, pixels, hue_of, range_of, saturation_of, weights):
    red, green = _pixel(source + at, mask), _pixel(source + pixels + at, mask)
    blue = _pixel(source + 2 * pixels + at, mask)
    key = 255 * 512 + 511 * red - 510 * green - blue
    most = tl.maximum(tl.maximum(red, green), blue)
    saturation = tl.load(saturation_of + tl.load(range_of + key, mask=mask, other=0) + most, mask=mask, other=0)
    key = tl.load(hue_of + key, mask=mask, other=0) + saturation + shift.to(tl.int32)
    for channel in tl.static_range(3):
        value = tl.load(weights + channel * 511 * 256 + key, mask=mask, other=0) * most.to(tl.float32)
        value = (value + 12582912.0) - 12582912.0  # rounds half to even: 1.5 * 2**23 leaves no bits for a fraction
        tl.store(target + channel * pixels + at, value.to(tl.uint8), mask=mask)


@triton.jit
def _fixed(x):
    """Convert to 16.16 fixed point, as in Geometry.c."""
    return tl.floor(x * 65536 + 0.5).to(tl.int64)


@triton.jit
def _warp_nearest(source, target, row, y, x, at, mask, height, width, channels: tl.constexpr):
    """Warp as Image.transform(AFFINE, NEAREST) does (affine_fixed)."""
    a, b, c = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    d, e, f = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    along = (_fixed(a) * x + _fixed(c + a * 0.5 + b * 0.5) + _fixed(b) * y) >> 16
    down = (_fixed(d) * x + _fixed(f + d * 0.5 + e * 0.5) + _fixed(e) * y) >> 16
    inside = mask & (along >= 0) & (along < width) & (down >= 0) & (down < height)
    pointer, pixels = source + down * width + along, height * width
    for channel in tl.static_range(channels):
        fill = tl.load(row + 8 + channel).to(tl.int32)
        made = tl.where(inside, _pixel(pointer + channel * pixels, inside), fill)
        tl.store(target + channel * pixels + at, made.to(tl.uint8), mask=mask)


@triton.jit
def _warp_filtered(source, target, row, y, x, at, mask, height, width, channels: tl.constexpr):
    """Warp as Image.transform(AFFINE) does with BILINEAR or BICUBIC (ImagingGenericTransform)."""
    a, b, c = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    d, e, f = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    mode, pixels = tl.load(row + 7).to(tl.int32), height * width
    right, below = x.to(tl.float64) + 0.5, y.to(tl.float64) + 0.5
    along, down = a * right + b * below + c, d * right + e * below + f
    inside = mask & (along >= 0) & (along < width) & (down >= 0) & (down < height)
    along, down = tl.where(inside, along, 0.5) - 0.5, tl.where(inside, down, 0.5) - 0.5
    dx, dy = along - tl.floor(along), down - tl.floor(down)
    left, top = tl.floor(along).to(tl.int32), tl.floor(down).to(tl.int32)
    for channel in tl.static_range(channels):
        fill = tl.load(row + 8 + channel).to(tl.int32)
        plane = source + channel * pixels
        if mode == 1:
            first = _line(plane, top, left, dx, inside, height, width, False)
            second = _line(plane, top + 1, left, dx, inside, height, width, False)
            value = (second - first) * dy + first
        else:
            value = _cubic(
                _line(plane, top - 1, left, dx, inside, height, width, True),
                _line(plane, top, left, dx, inside, height, width, True),
                _line(plane, top + 1, left, dx, inside, height, width, True),
                _line(plane, top + 2, left, dx, inside, height, width, True),
                dy,
            )
        made = tl.where(inside, _bounded(value), fill)
        tl.store(target + channel * pixels + at, made.to(tl.uint8), mask=mask)


@triton.jit
def _line(plane, y, x, dx, inside, height, width, bicubic: tl.constexpr):
    """Interpolate along a line of pixels. Pixels outside of the image repeat the border."""
    line = plane + tl.minimum(tl.maximum(y, 0), height - 1) * width
    middle = _on_line(line, x, inside, width)
    following = _on_line(line, x + 1, inside, width)
    if bicubic:
        before, last = _on_line(line, x - 1, inside, width), _on_line(line, x + 2, inside, width)
        return _cubic(before, middle, following, last, dx)
    return (following - middle) * dx + middle


@triton.jit
def _on_line(line, x, inside, width):
    return _pixel(line + tl.minimum(tl.maximum(x, 0), width - 1), inside).to(tl.float64)


@triton.jit
def _cubic(v1, v2, v3, v4, d):
    """Interpolate as Pillow's BICUBIC macro does, adding in the same order."""
    p4 = v2 - v1 - v3 + v4
    p3 = (v1 - v2) * 2 + v3 - v4
    p2 = v3 - v1
    return ((p4 * d + p3) * d + p2) * d + v2
