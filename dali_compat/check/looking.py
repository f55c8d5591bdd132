"""One file as torchvision's loader meets it: what it is, whether it can be decoded, and by whom, DALI or Pillow."""

from __future__ import annotations

import os
import re
import stat
import warnings
from typing import Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from ..data.header import DALI, read_header
from ..data.sources import Source, is_record, opened

_HEAD = 4096  # bytes that tell what a file is
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")  # whose damaged files are images all the same
_OTHERS = {
    rb"\s*<(!doctype html|html)": "an HTML page",
    rb"\s*<\?xml|\s*<svg": "XML",
    rb"%PDF": "a PDF",
    rb"PK\x03\x04": "a zip file",
    rb"\x1f\x8b": "a gzip file",
    rb"\x7fELF": "a program",
    rb"version https://git-lfs": "a pointer of Git LFS: fetch the file itself",
    rb"[\t\n\r\x20-\x7e]+\Z": "text",
    rb"\0+\Z": "zero bytes only",
}


class FileSeen(NamedTuple):
    """What one file is.

    Attributes:
        format, mode: Pillow's names; empty where Pillow finds no image.
        height, width, bytes: sizes; 0 where they are not known.
        dali: DALI decodes it as Pillow does.
        error, reason: the class and the text of what torchvision's loader raises; empty where it gives an image.
        other: what it is where it is no image of those that ImageFolder lists; else empty.
        bomb: Pillow's complaint of a decompression bomb, or empty.
        warnings: the texts of Pillow's other warnings.
    """

    format: str = ""
    mode: str = ""
    height: int = 0
    width: int = 0
    bytes: int = 0
    dali: bool = False
    error: str = ""
    reason: str = ""
    other: str = ""
    bomb: str = ""
    warnings: tuple[str, ...] = ()


def decode(source: Source) -> FileSeen:
    """Decode an image as torchvision's pil_loader does; what that raises or warns of is in the result."""
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _decode(source, seen)
        except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, ValueError and more
            seen |= _trouble(source, error)
    bombs = [str(one.message) for one in caught if issubclass(one.category, Image.DecompressionBombWarning)]
    texts = (str(one.message) for one in caught if not issubclass(one.category, Image.DecompressionBombWarning))
    dali = not seen.get("error") and _dali_decodes(source)
    return FileSeen(**{"bomb": "".join(bombs[:1]), **seen}, dali=dali, warnings=tuple(dict.fromkeys(texts)))


def _decode(source: Source, seen: dict) -> None:
    """Fills ``seen`` as far as it gets."""
    _refuse_devices(source)
    with opened(source) as file:
        seen["bytes"] = file.seek(0, os.SEEK_END)
        file.seek(0)
        with Image.open(file) as image:
            seen |= {"format": image.format, "mode": image.mode, "height": image.height, "width": image.width}
            image.convert("RGB")


def _refuse_devices(source: Source) -> None:
    """Opening a pipe waits for ever."""
    if not is_record(source) and not stat.S_ISREG(os.stat(source).st_mode):
        raise OSError("it is not a regular file")


def _trouble(source: Source, error: Exception) -> dict[str, str]:
    found = {"error": type(error).__name__, "reason": _reason(error)}
    if isinstance(error, Image.DecompressionBombError):
        found["bomb"] = found["reason"]
    if isinstance(error, UnidentifiedImageError):
        head = _head(source)
        if not _begins_as_image(head):
            found["other"] = _what(head)
        found["reason"] = f"not an image, but {found['other']}" if "other" in found else "the file's header is damaged"
    return found


def _reason(error: Exception) -> str:
    """Without the path, which stands beside it."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or "no reason given"


def _dali_decodes(source: Source) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were heard once
        return read_header(source)[0] == DALI


def identify(source: Source) -> FileSeen:
    """What a file is that ImageFolder does not list; it is not decoded."""
    try:
        _refuse_devices(source)
        with warnings.catch_warnings(), opened(source) as file, Image.open(file) as image:
            warnings.simplefilter("ignore")
            return FileSeen(image.format or "", image.mode, other=f"{image.format} image")
    except OSError as error:
        return FileSeen(other=error.strerror or _what_of(source))
    except Exception:  # Pillow's plugins raise SyntaxError, ValueError and more
        return FileSeen(other=_what_of(source))


def _what_of(source: Source) -> str:
    try:
        _refuse_devices(source)
        return _what(_head(source))
    except OSError as error:
        return _reason(error)


def _head(source: Source) -> bytes:
    with opened(source) as file:
        return file.read(_HEAD)


def _begins_as_image(head: bytes) -> bool:
    accepts = (Image.OPEN[name][1] for name in _FORMATS if name in Image.OPEN)
    return any(accept is not None and accept(head) for accept in accepts) if head else False


def _what(head: bytes) -> str:
    if not head:
        return "an empty file"
    for pattern, name in _OTHERS.items():
        if re.match(pattern, head, re.IGNORECASE):
            return name
    return "unknown data"
