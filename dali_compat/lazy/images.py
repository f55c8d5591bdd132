"""LazyImage: PIL's image of a file that nobody has read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from PIL import Image, ImageFile, ImageMode
from PIL.JpegImagePlugin import JpegImageFile

from ..data.header import jpeg_of_one_picture
from ..data.sources import Source, Upright, is_upright, opened
from ..ops.arguments import interpolation_named
from .color import pillow_filter
from .deferred import Deferred
from .geometry import resized
from .operations import OPERATIONS, Outcome, State
from .record import ImageHeader, RecordedCall, kept, really_open

_OF_STATE: dict[str, Callable[[State], Any]] = {
    "mode": lambda s: s.mode,
    "size": lambda s: s.size[::-1],
    "width": lambda s: s.shape[-1],
    "height": lambda s: s.shape[-2],
    "getbands": lambda s: lambda: ImageMode.getmode(s.mode).bands,
}
_FORMATS = frozenset(("BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP"))  # of which the header says enough
_MODES = frozenset(("RGB", "L", "P", "1", "RGBA", "LA", "CMYK"))
_MODES_OF_JPEGS = {1: "L", 3: "RGB"}  # by the number of components
_ORIENTATION, _TURNED = 274, (5, 6, 7, 8)  # a tag of EXIF, and where its image lies on its side


class LazyImage(Image.Image):
    """A PIL image that opens its file when somebody looks at it. Until then it can be converted, resized, cropped,
    turned, copied, loaded, closed, asked what its header says, and given to torchvision's functions; all else goes to
    the real image."""

    _real_class: type[Image.Image] = Image.Image

    def __init__(self, later: Deferred):
        object.__setattr__(self, "_later", later)

    def __getattribute__(self, name: str) -> Any:
        later = later_of(self)
        if name == "__class__":  # which isinstance() asks for, of a class that is none of LazyImage's bases
            return _own_class(later)
        if name in _OWN and not later.is_real:
            return object.__getattribute__(self, name)
        if name in _OF_STATE and (state := later.state) is not None:
            return _OF_STATE[name](state)
        if name == "format" and later.state is not None and (later.header or not later.is_file):
            return later.header.format if later.header else None
        if name == "getexif" and later.exif is not None:
            return lambda: later.exif
        what = "pixels" if name.startswith("__array") else name.removeprefix("__").removesuffix("__")
        return getattr(later.value(f"uses the image's {what}"), name)

    def __setattr__(self, name: str, value) -> None:
        setattr(later_of(self).value(f"sets the image's {name}"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(later_of(self).value(f"deletes the image's {name}"), name)

    def load(self) -> Any:
        """Returns what reads the pixels when somebody asks for one. Of some formats an image becomes another by it: PIL
        turns a TIFF, and says no more that it is to be turned."""
        later = later_of(self)
        if later.state is None:
            return later.value("loads the image").load()
        later.is_loaded = True
        return _Pixels(self)

    def getexif(self) -> Any:
        """Does as PIL's, with what the header of a JPEG has, or of a PNG without EXIF."""
        later = later_of(self)
        if later.exif is None and not later.is_real:
            later.exif = _exif(later)
        return later.value("uses the image's EXIF").getexif() if later.exif is None else later.exif

    def close(self) -> None:
        """Nothing is open, unless the image is real."""
        if later_of(self).is_real:
            later_of(self).value("").close()

    def __enter__(self) -> LazyImage:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open, unless the image is real."""
        if later_of(self).is_real:
            later_of(self).value("").__exit__(*error)

    # what Python looks up in the class

    def __reduce_ex__(self, protocol) -> Any:
        return later_of(self).value("pickles the image").__reduce_ex__(protocol)

    def __eq__(self, other: object) -> bool:
        other = later_of(other).value("compares images") if issubclass(type(other), LazyImage) else other
        return bool(later_of(self).value("compares images") == other)

    def __repr__(self) -> str:
        return repr(later_of(self).value("prints the image"))


class LazyFile(LazyImage):
    """The same, of an image that was only opened: PIL has a class for each format."""

    _real_class = ImageFile.ImageFile


class _Pixels:
    """PIL's ``image.load()``: single pixels of an image that is read for the first one."""

    def __init__(self, image: LazyImage):
        self._image = image

    def __getitem__(self, place) -> Any:
        return later_of(self._image).value("uses the image's pixels").load()[place]

    def __setitem__(self, place, value) -> None:
        later_of(self._image).value("sets the image's pixels").load()[place] = value


def later_of(image) -> Deferred:
    """Returns what a stand-in stands for."""
    later: Deferred = object.__getattribute__(image, "_later")
    return later


def _own_class(later: Deferred) -> type:
    """The class of the real image: of one that was only opened its format's."""
    if later.is_real:
        return type(later.value(""))
    if not later.is_file:
        return Image.Image
    return type(later.value("asks for the image's class")) if later.header is None else later.header.kind


def header_of(source: Source) -> ImageHeader | None:
    """Returns what the file's header says; None where only the real image says what it is."""
    try:
        found = None if is_upright(source) else jpeg_of_one_picture(source)
        if found is not None and found[1] * found[2] <= (Image.MAX_IMAGE_PIXELS or math.inf):  # of others Pillow warns
            return ImageHeader(State("pil", _MODES_OF_JPEGS[found[0]], found), JpegImageFile, "JPEG")
        with opened(source) as file, really_open(file) as image:
            if image.format not in _FORMATS or image.mode not in _MODES:
                return None
            if image.format == "TIFF" and image.getexif().get(_ORIENTATION, 1) != 1:  # PIL turns it when it is read
                return None
            width, height = image.size
            state = State("pil", image.mode, (len(image.getbands()), height, width))
            if not is_upright(source):
                return ImageHeader(state, type(image), image.format)
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            return ImageHeader(state.sized((width, height)) if turned else state, Image.Image, None)
    except Exception:  # whoever needs the image says it
        return None


def has_exif(source: Source) -> bool:
    """Returns whether the bytes of a file name EXIF: those of a PNG anywhere."""
    with opened(source) as file:
        data = file.read()
    return any(word in data for word in (b"eXIf", b"exif", b"adobe.xmp"))


def _exif(later: Deferred) -> Any:
    """Returns what the header says of an image that was only opened; None where only the real one says it."""
    if later.record is None or is_upright(later.source):
        return None
    if any(call.name not in ("convert", "copy") for call in later.record.calls):
        return None
    try:
        with opened(later.source) as file, really_open(file) as image:
            if image.format == "PNG":  # which may have it behind the pixels
                return None if has_exif(later.source) else Image.Exif()
            return image.getexif() if image.format == "JPEG" else None
    except Exception:  # whoever needs the image says it
        return None


def turned(later: Deferred, call: RecordedCall) -> Deferred | None:
    """Returns what a call of "upright" gives of a file's image, which DALI then turns; None where it does not."""
    (orientation,), record = call.args, later.record
    if record is None or type(record.source) is not str or orientation not in range(2, 9):
        return None
    size = record.size[::-1] if orientation in _TURNED else record.size
    whole = record._replace(source=Upright(record.source), size=size, state=record.state.sized(size))
    return later.becoming(whole.then(RecordedCall("", "copy"), Outcome(whole.state, ())), call)


# ---- what PIL's methods give


def _converted(s: State, like: str, mode: str) -> Outcome:
    if mode == s.mode:
        return Outcome(s, ())
    if mode == "RGB":
        after = State("pil", "RGB", (3, *s.size))
        repeated = OPERATIONS["grayscale_to_rgb"](s, like).steps if s.mode == "L" else None
        return Outcome(after, repeated)
    if mode != "L":
        raise ValueError(mode)
    after = State("pil", "L", (1, *s.size))
    return Outcome(after, OPERATIONS["to_grayscale"](s, like, 1).steps if s.mode == "RGB" else None)


def _resized(s: State, like: str, size, resample=None, box=None, reducing_gap=None) -> Outcome:
    width, height = map(operator.index, size)
    if box is not None or reducing_gap is not None:
        return Outcome(s.sized((height, width)))
    if (height, width) == s.size:
        return Outcome(s, ())
    return resized(s, like, (height, width), interpolation_named(3 if resample is None else resample))


def _cropped(s: State, like: str, box=None) -> Outcome:
    if box is None:
        return Outcome(s, ())
    left, top, right, bottom = (operator.index(round(edge)) for edge in box)  # as PIL does
    return OPERATIONS["crop"](s, like, top, left, bottom - top, right - left)


def _rotated(
    s: State, like: str, angle, resample=0, expand=False, center=None, translate=None, fillcolor=None
) -> Outcome:
    if translate is not None:
        raise ValueError(translate)
    return OPERATIONS["rotate"](s, like, angle, resample, bool(expand), center, fillcolor)


_METHODS: dict[str, Callable[..., Outcome]] = {
    "convert": _converted,
    "copy": lambda s, like: Outcome(s, ()),
    "crop": _cropped,
    "filter": pillow_filter,
    "resize": _resized,
    "rotate": _rotated,
    "transpose": OPERATIONS["transpose"],
}


def _method(name: str, gives: Callable[..., Outcome]) -> Callable[..., Any]:
    def method(image: LazyImage, *args, **kwargs) -> Any:
        """Does as PIL's, later if possible."""
        later = later_of(image)
        state, outcome = later.state, None
        # it may have become real since the method was looked up: m.resize((m.width // 2, 9))
        if state is not None:
            with suppress(Exception):  # PIL's own method says what is wrong
                outcome = gives(state, "pil", *args, **kwargs)
        if outcome is not None and min(outcome.state.size) > 0:
            made = later.then(RecordedCall("", name, kept(args), kept(kwargs)), outcome)
            if made is not None:
                return later.notes.made(LazyImage(made))
        return getattr(later.value(f"uses the image's {name}"), name)(*args, **kwargs)

    return method


for _name, _gives in _METHODS.items():
    setattr(LazyImage, _name, _method(_name, _gives))
_OWN = frozenset((*_METHODS, "close", "getexif", "load", "__enter__", "__exit__"))
