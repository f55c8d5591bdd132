"""LazyImage: PIL's image of a file that nobody has read."""

from __future__ import annotations

import copy
import functools
import operator
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageMode
from torchvision import transforms as v1

from ..data.sources import is_upright, opened
from ..translate.windows import ANY, has_any_size
from ..translate.wrappers.standins import CONVERTS
from .later import Later

if TYPE_CHECKING:
    from .chains import Chain

_really_open = Image.open  # before anything takes its place
_OWN = frozenset(
    ("convert", "copy", "crop", "load", "resize", "transpose", "getbands", "getexif", "close", "__enter__", "__exit__")
)
_OF_HEADER = frozenset(("mode", "size", "width", "height"))
_INTERPOLATIONS = {None: v1.InterpolationMode.BICUBIC, 0: v1.InterpolationMode.NEAREST}
_INTERPOLATIONS |= {1: v1.InterpolationMode.LANCZOS, 2: v1.InterpolationMode.BILINEAR, 3: v1.InterpolationMode.BICUBIC}
_FLIPS = {
    Image.Transpose.FLIP_LEFT_RIGHT: v1.RandomHorizontalFlip(1),
    Image.Transpose.FLIP_TOP_BOTTOM: v1.RandomVerticalFlip(1),
}
_OF_EXIF = b"eXIf", b"exif", b"adobe.xmp"
_OF_ONE_SIZE = frozenset(("BMP", "JPEG", "PNG", "PPM", "WEBP"))  # formats that are as large as their header says


class LazyImage(Image.Image):
    """A PIL image that opens its file when somebody looks at it. Until then it can be converted, resized, cropped,
    flipped, copied, loaded, closed, asked what its header says, and given to a transform; all else goes to the real
    image."""

    def __init__(self, later: Later):
        object.__setattr__(self, "_later", later)

    def __getattribute__(self, name: str) -> Any:
        later = later_of(self)
        if name == "__class__":  # which isinstance() asks for, of a class that is none of LazyImage's bases
            return _own_class(later)
        if name in _OWN and not later.is_real:
            return object.__getattribute__(self, name)
        if name in _OF_HEADER and not later.is_real and (found := _of_header(later, name)) is not None:
            return found
        if name == "getexif" and later.exif is not None:
            return lambda: later.exif
        what = "pixels" if name.startswith("__array") else name.removeprefix("__").removesuffix("__")
        return getattr(later.value(f"uses the image's {what}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(later_of(self).value(f"sets the image's {name}"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(later_of(self).value(f"deletes the image's {name}"), name)

    # The image may become real between the look-up of a method and its call: m.resize((m.width // 2, 9)). Later.then()
    # gives None then.

    def convert(self, mode: Any = None, *args: Any, **kwargs: Any) -> Image.Image:
        """As PIL's. Conversions to RGB and L wait."""
        made = None if args or kwargs or type(mode) is not str else _converted(later_of(self), mode)
        return _made(made) or later_of(self).value(f"converts the image to {mode}").convert(mode, *args, **kwargs)

    def resize(self, size: Any, resample: Any = None, *args: Any, **kwargs: Any) -> Image.Image:
        """As PIL's. It waits, for the first few sizes that there are: each has a pipeline."""
        made = None if args or kwargs else _resized(later_of(self), size, resample)
        return _made(made) or later_of(self).value("resizes the image").resize(size, resample, *args, **kwargs)

    def crop(self, box: Any = None) -> Image.Image:
        """As PIL's. Windows within the image wait."""
        return _made(_cropped(later_of(self), box)) or later_of(self).value("crops the image").crop(box)

    def transpose(self, method: Any) -> Image.Image:
        """As PIL's. Flips wait."""
        return _made(_flipped(later_of(self), method)) or later_of(self).value("transposes the image").transpose(method)

    def copy(self) -> Image.Image:
        """As PIL's."""
        later = later_of(self)
        made = later.then(later.chain, lambda image: image.copy())
        if made is not None:
            made.is_converted = True  # it has no format any more
        return _made(made) or later.value("copies the image").copy()

    def load(self) -> Any:
        """What reads the pixels when somebody asks for one. Of some formats an image becomes another by it: PIL turns a
        TIFF, and says no more that it is to be turned."""
        later = later_of(self)
        is_file = not later.chain.transforms and not later.is_converted
        if later.is_real or (is_file and _header(later)[2] not in _OF_ONE_SIZE):
            return later.value("loads the image").load()
        later.is_loaded = True
        return _Pixels(self)

    def getbands(self) -> tuple[str, ...]:
        """As PIL's."""
        later = later_of(self)
        mode = None if later.is_real else _of_header(later, "mode")
        return later.value("uses the image's bands").getbands() if mode is None else ImageMode.getmode(mode).bands

    def getexif(self) -> Any:
        """As PIL's, of what the header of a JPEG has, and of a PNG without."""
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        return later_of(self).value("pickles the image").__reduce_ex__(protocol)

    def __copy__(self) -> Any:
        return copy.copy(later_of(self).value("copies the image"))

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(later_of(self).value("copies the image"), memo)

    def __eq__(self, other: object) -> bool:
        other = later_of(other).value("compares images") if type(other) is LazyImage else other
        return bool(later_of(self).value("compares images") == other)

    def __repr__(self) -> str:
        return repr(later_of(self).value("prints the image"))


class _Pixels:
    """What PIL's ``image.load()`` gives: single pixels, of the image that is read for the first one."""

    def __init__(self, image: LazyImage):
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return later_of(self._image).value("uses the image's pixels").load()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        later_of(self._image).value("sets the image's pixels").load()[place] = value


def later_of(image: Any) -> Later:
    """Of a LazyImage: what it stands for."""
    later: Later = object.__getattribute__(image, "_later")
    return later


def _made(later: Later | None) -> Any:
    """The stand-in for what is made later."""
    return None if later is None else later.notes.made(LazyImage(later))


def is_certainly_rgb(later: Later) -> bool:
    """Whether the file's own mode is RGB, or the image was converted. Its header is read for that."""
    if not later.is_rgb and not later.chain.transforms:
        later.is_rgb = _own_mode(later) == "RGB"
    return later.is_rgb


def _own_class(later: Later) -> type:
    """The class of the real image: of one that was only opened its format's."""
    if later.is_real:
        return type(later.value(""))
    if later.is_converted or later.chain.transforms:
        return Image.Image
    try:
        with opened(later.source) as file, _really_open(file) as image:
            return type(image)
    except Exception:
        return Image.Image


def _of_header(later: Later, name: str) -> Any:
    """Its mode or size, of its header or behind transforms that give all images one; None where only the real image
    says it."""
    gives = later.chain.gives
    if later.chain.transforms:
        known = later.windows[-1][1][2:] if has_any_size(later.chain.transforms[-1]) else later.sized().gives.size
        mode, size = {1: "L", 3: "RGB"}.get(gives.channels), known and known[::-1]
        return mode if name == "mode" else size and {"size": size, "width": size[0], "height": size[1]}[name]
    if is_upright(later.source):
        return None
    if name == "mode" and later.is_converted and later.is_rgb:
        return "RGB"
    mode, size, format = _header(later)
    if not mode or ((later.is_converted or later.is_loaded) and format not in _OF_ONE_SIZE):
        return None
    return {"mode": mode, "size": size, "width": size[0], "height": size[1]}[name]


def _own_mode(later: Later) -> str:
    """The mode of an image as it was opened; "" where it cannot be."""
    return _header(later)[0]


def _header(later: Later) -> tuple[str, tuple[int, int], str | None]:
    """Mode, size and format of an image as it was opened; "" for the mode where it cannot be."""
    if later.header is None:
        try:
            with opened(later.source) as file, _really_open(file) as image:
                later.header = str(image.mode), image.size, image.format
        except Exception:  # whoever needs the image says it
            return "", (0, 0), None
    return later.header


def _resized(later: Later, size: Any, resample: Any) -> Later | None:
    """The image of another size; None where only PIL can say what that gives."""
    numbers = type(size) in (list, tuple) and [type(one) for one in size] == [int, int] and min(size) > 0
    if not numbers or resample not in _INTERPOLATIONS or not is_certainly_rgb(later) or later.chain.gives.kind != "pil":
        return None
    return later.then(
        later.chain.after(_resize(size[1], size[0], resample)), lambda image: image.resize(size, resample)
    )


@functools.lru_cache(256)
def _resize(height: int, width: int, resample: int | None) -> v1.Resize:
    return v1.Resize((height, width), _INTERPOLATIONS[resample])


def _cropped(later: Later, box: Any) -> Later | None:
    """A window of the image; None where it is not within it, or only PIL can say so."""
    size = _of_header(later, "size") if is_certainly_rgb(later) and later.chain.gives.kind == "pil" else None
    try:
        left, top, right, bottom = (operator.index(round(edge)) for edge in box)  # as PIL does
    except (TypeError, ValueError, OverflowError):
        return None
    if size is None or not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
        return None
    if right - left == 1:  # libjpeg interpolates no chroma for it
        return None
    made = later.then(later.chain.after(ANY), lambda image: image.crop((left, top, right, bottom)))
    if made is not None:
        made.windows = (*later.windows, (made.chain.last_stream, (top, left, bottom - top, right - left)))
    return made


def _flipped(later: Later, method: Any) -> Later | None:
    """The image, flipped; None where only PIL can say what that gives."""
    flip = _FLIPS.get(method) if type(method) in (int, Image.Transpose) else None
    if flip is None or not is_certainly_rgb(later) or later.chain.gives.kind != "pil":
        return None
    return later.then(later.chain.after(flip), lambda image: image.transpose(method))


def _exif(later: Later) -> Any:
    """What the header says of an image that is not transformed; None where only the real one says it."""
    if later.chain.transforms or is_upright(later.source):
        return None
    format = _header(later)[2]
    try:
        with opened(later.source) as file:
            if format == "PNG":  # which may have it behind the pixels
                data = file.read()
                return None if any(word in data for word in _OF_EXIF) else Image.Exif()
            with _really_open(file) as image:
                return image.getexif() if format == "JPEG" else None
    except Exception:  # whoever needs the image says it
        return None


def _converted(later: Later, mode: str) -> Later | None:
    """The image in another mode; None where only PIL can say what that gives."""
    if mode not in CONVERTS:
        return None
    chain: Chain | None = later.chain
    if later.is_rgb or later.chain.transforms:
        chain = later.chain.after(CONVERTS[mode])
    elif mode == "L":  # of an image in L it makes the same, by way of RGB
        chain = later.chain.after(CONVERTS[mode]) if _own_mode(later) in ("RGB", "L") else None
    made = later.then(chain, lambda image: image.convert(mode))
    if made is not None:
        made.is_rgb = made.is_converted = True
    return made
