"""Pillow images whose core, the C object with the pixels, is deferred.

Pillow reads only the header when it opens a file. While a thread traces, the first method that needs the pixels sets
the image's core, ``Image._im``, to a :class:`~.nodes.Node`, as if the image were loaded. The methods below return an
image with a new node if the size and mode of the result follow from the arguments. Other code of Pillow accesses the
pixels through ``Image.im``, which computes them.
"""

from __future__ import annotations

import functools
import io
import operator
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageEnhance, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile

from ..inspection.replaced import STANDS_FOR
from ..ops.arguments import interpolation_named
from .calls import RecordedCall
from .color import pillow_filter
from .geometry import resize_to, transform
from .nodes import SWITCHES, Node, Tracing, record_reason
from .operations import OUTCOMES, Outcome, State, step
from .sources import FileSource, MemorySource

_END_OF_JPEG = b"\xff\xd9"
_BITMAPS = BmpImageFile, PpmImageFile
_ARCHIVE_MEMBERS = tarfile.ExFileObject, zipfile.ZipExtFile
_DEFERRED = JpegImageFile, PngImageFile, *_BITMAPS
_BANDS = {"1": 1, "L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4}
_GRAY = State("pil", "L", (1, 1, 1))
# steps that convert an image decoded to RGB, by mode
FILE_STEPS: dict[str, Any] = {"RGB": (), "L": (step("grayscale", _GRAY, like="pil", dtype=_GRAY.dtype, channels=1),)}

_original: dict[str, Callable[..., Any]] = {}  # Pillow's functions by name


def node_of(image: Image.Image) -> Node | None:
    """Return the node of an image; None if the image cannot be deferred or is already computed. If Pillow has only
    opened the file, create the node."""
    im = image.__dict__.get("_im")
    if type(im) is Node:
        return im if im.state.mode == image._mode and im.size == image._size else None
    settings = SWITCHES.tracing
    if im is not None or settings is None or not isinstance(image, ImageFile.ImageFile):
        return None
    if type(image) not in _DEFERRED:
        record_reason(_mode_reason(image))
        return None
    return _defer_file(image, settings)


def _mode_reason(image: Any) -> str:
    """Return the reason why images with the format and mode of ``image`` are not deferred."""
    if image._mode[0] in "IF":
        return f"opens images in mode {image._mode}, which has more than 8 bits per channel"
    return f"opens {image.format} files in mode {image._mode}"


def _defer_file(image: Any, settings: Tracing) -> Node | None:
    """Defer an opened image, and return its new node. Return None if the image cannot be deferred."""
    if image.decoderconfig:
        record_reason("uses the image's draft() or thumbnail()")
    if len(image.tile) != 1 or image.decoderconfig or image.fp is None:
        return None
    if image._mode not in _BANDS or "transparency" in image.info:
        record_reason(_mode_reason(image))
        return None
    if type(image) in _BITMAPS and image._mode != "RGB":  # load() may map the file, which makes the image read-only
        return None
    source = _source_of(image, settings)
    if source is None or source.size != image._size:
        return None
    end = _end_of_png(image) if type(image) is PngImageFile else source.length
    if not end:
        return None
    width, height = image._size
    state = State("pil", image._mode, (_BANDS[image._mode], height, width))
    node = Node(None, source, None, state, FILE_STEPS.get(image._mode))
    image._im, image.tile, image.readonly, image.map = node, [], 0, None  # as after load()
    if type(image) is PngImageFile:
        stream: Any = image.png
        image._text, image.png = stream.im_text, None
        vars(image)["_PngImageFile__idat"] = 0
        stream.close()
    if image._exclusive_fp:
        image.fp.close()
    else:
        image.fp.seek(end)
    image.fp = None
    return node


def _source_of(image: Any, settings: Tracing) -> FileSource | MemorySource | None:
    fp, is_jpeg = image.fp, type(image) is JpegImageFile
    if type(fp) is io.BytesIO or type(fp) in _ARCHIVE_MEMBERS:
        data = fp.getvalue() if type(fp) is io.BytesIO else _all_bytes(fp)
        return settings.table.memory(data) if not is_jpeg or data.endswith(_END_OF_JPEG) else None
    if type(fp) is not io.BufferedReader or not isinstance(path := getattr(fp, "name", None), str):
        record_reason(f"opens images from {type(fp).__name__}, not from a path, a file or io.BytesIO")
        return None
    try:
        number = fp.fileno()
        status = os.fstat(number)
        link_status = os.lstat(path)
        if max(status.st_ctime_ns, link_status.st_ctime_ns) >= settings.since:  # a symbolic link may change, too
            record_reason("opens files that were written just now")
            return None
        if not os.path.samestat(status, os.stat(path) if stat.S_ISLNK(link_status.st_mode) else link_status):
            return None
        if not image._exclusive_fp and is_jpeg and os.pread(number, 2, status.st_size - 2) != _END_OF_JPEG:
            return None  # the file position after decoding is unknown
        path = str(path)
        return settings.table.file(path if path[:1] == "/" else os.path.join(os.getcwd(), path), status)
    except (OSError, ValueError):  # closed or deleted
        return None


def _all_bytes(fp: Any) -> bytes:
    """Return a file's contents. Keep the file position."""
    before = fp.tell()
    fp.seek(0)
    data: bytes = fp.read()
    fp.seek(before)
    return data


def _end_of_png(image: Any) -> int:
    """Return the file position at which load() would leave a PNG, or 0 if metadata follows the pixels."""
    at, fp = image.tile[0][2] - 8, image.fp
    before = fp.tell()
    try:
        while True:
            fp.seek(at)
            head = fp.read(8)
            if head[4:] != b"IDAT":
                return at + 8 if head[4:] == b"IEND" else 0
            at += 12 + int.from_bytes(head[:4], "big")
    finally:
        fp.seek(before)


def image_of(node: Node, info: dict[Any, Any]) -> Image.Image:
    image = Image.Image()
    image._im, image._mode, image._size, image.info = node, node.state.mode, node.size, info  # type: ignore[assignment]  # a Node in place of the core
    return image


# ---- Image's own attributes and methods


def _get_im(self: Any) -> Any:
    """Getter of Image.im, the core of an image. Compute a deferred core first."""
    im = self.__dict__.get("_im")
    if type(im) is Node:
        record_reason("uses the image's pixels")
        core = im.value().im
        self._im = core.copy() if im.used else core  # the user may change the pixels
        return self._im
    return _original["im"](self)


def _set_im(self: Any, im: Any) -> None:
    self._im = im


class PixelAccess:
    """The result of load() for a deferred image. Pixels are computed when this object is first used."""

    def __init__(self, image: Any):
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return _original["load"](self._image)[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._image._ensure_mutable()
        _original["load"](self._image)[place] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(_original["load"](self._image), name)


def _load(self: Any) -> Any:
    if type(self.__dict__.get("_im")) is Node:
        if node_of(self) is not None:
            return PixelAccess(self)
        _get_im(self)  # putpalette() has changed the mode, and load() passes the palette to a computed core
    return _original["load"](self)


def _load_file(self: Any) -> Any:
    return PixelAccess(self) if node_of(self) is not None else _original["load_file"](self)


# Functions that return the outcome of a Pillow method. If one returns None or raises an error, Pillow's method runs.


def _convert(s: State, mode: Any = None, *others: Any, **more: Any) -> Outcome | None:
    if others or more or mode not in ("RGB", "L"):
        return None
    if mode == s.mode:
        return Outcome(s, ())
    if mode == "RGB":
        steps = OUTCOMES["grayscale_to_rgb"](s, "pil").steps if s.mode == "L" else None
        return Outcome(State("pil", "RGB", (3, *s.size)), steps)
    steps = OUTCOMES["to_grayscale"](s, "pil", 1).steps if s.mode == "RGB" else None
    return Outcome(State("pil", "L", (1, *s.size)), steps)


def _resize(s: State, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Outcome | None:
    width, height = map(operator.index, size)
    if box is not None or reducing_gap is not None or min(width, height) < 1:
        return None
    if (height, width) == s.size:
        return Outcome(s, ())
    if s.mode not in ("RGB", "L"):
        return None
    return resize_to(s, "pil", (height, width), interpolation_named(3 if resample is None else resample))


def _crop(s: State, box: Any = None) -> Outcome | None:
    if box is None:
        return Outcome(s, ())
    left, top, right, bottom = (operator.index(round(edge)) for edge in box)
    if right <= left or bottom <= top or (right - left) * (bottom - top) > (Image.MAX_IMAGE_PIXELS or 1 << 62):
        return None
    return OUTCOMES["crop"](s, "pil", top, left, bottom - top, right - left)


_METHODS: dict[str, Callable[..., Outcome | None]] = {
    "convert": _convert,
    "copy": lambda s: Outcome(s, ()),
    "crop": _crop,
    "filter": lambda s, filter: pillow_filter(s, "pil", filter),
    "resize": _resize,
    "transform": transform,
    "transpose": lambda s, method: OUTCOMES["transpose"](s, "pil", method),
}


def _method(name: str, outcome_of: Callable[..., Outcome | None]) -> Callable[..., Any]:
    original = _original[name]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        im = self.__dict__.get("_im")
        if type(im) is Node or (im is None and SWITCHES.tracing is not None):
            result = deferred_image(self, outcome_of, RecordedCall(name, None, args, kwargs))
            if result is not None:
                return result
        return original(self, *args, **kwargs)

    return in_place_of(original, method)


def in_place_of(original: Any, function: Any) -> Any:
    """Return ``function`` with the name and docstring of ``original``, which it replaces."""
    setattr(functools.wraps(original)(function), STANDS_FOR, original)
    return function


def deferred_image(
    image: Any, outcome_of: Callable[..., Outcome | None], call: RecordedCall, info: dict[Any, Any] | None = None
) -> Image.Image | None:
    """Return the deferred result of ``call`` on ``image``; None if the result has to be computed.

    Args:
        outcome_of: returns the Outcome for the image's State and the call's other arguments.
        info: ``Image.info`` of the result; None to copy that of ``image``.
    """
    node = node_of(image)
    if node is None:
        return None
    try:
        outcome = outcome_of(node.state, *call.args, **call.kwargs)
    except Exception:  # Pillow itself raises the error
        outcome = None
    if outcome is None or min(outcome.state.size) < 1:
        record_reason(f"uses the image's {call}")
        return None
    if outcome.is_same_object:
        return image
    result = node.then(call.with_copies(), outcome)
    if result.steps is None and outcome.steps is None:  # the original function may raise an error
        record_reason(f"uses the image's {call}")
        return None
    return image_of(result, _copied_info(image) if info is None else info)


def _copied_info(image: Any) -> dict[Any, Any]:
    info: dict[Any, Any] = image._copy_info() if hasattr(image, "_copy_info") else image.info.copy()
    return info


# ---- ImageEnhance: an enhancer blends the image with a "degenerate" image, such as its grayscale

_ENHANCERS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}


def _enhancer(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor for the class ``name`` of ImageEnhance. It defers the attribute ``degenerate``."""
    enhancer = getattr(ImageEnhance, name)

    def __init__(self: Any, image: Any) -> None:
        node = node_of(image) if isinstance(image, Image.Image) else None
        if node is None or node.state.mode not in ("RGB", "L"):
            original(self, image)
            return
        self.image = image
        if name == "Color":
            self.intermediate_mode = "L"
        call = RecordedCall(name, lambda image: enhancer(image).degenerate)
        info = _copied_info(image) if name in ("Color", "Sharpness") else {}
        self.degenerate = image_of(node.then(call, Outcome(node.state)), info)

    return in_place_of(original, __init__)
