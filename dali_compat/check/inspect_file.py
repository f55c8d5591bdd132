"""Inspects one file as torchvision's loader meets it: what it is, whether it can be decoded, and if DALI decodes it."""

from __future__ import annotations

import os
import re
import stat
import warnings
from contextlib import AbstractContextManager
from typing import IO, Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from ..data.header import DALI, read_header
from ..data.sources import Source, is_record, opened

_HEAD = 4096  # bytes that tell what a file is
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")  # whose damaged files are images all the same
_OTHERS = {
    rb"\Z": "an empty file",
    rb"\s*<(!doctype html|html)": "an HTML page",
    rb"\s*<\?xml|\s*<svg": "XML",
    rb"%PDF": "a PDF",
    rb"PK\x03\x04": "a zip file",
    rb"\x1f\x8b": "a gzip file",
    rb"\x7fELF": "a program",
    rb"version https://git-lfs": "a pointer of Git LFS: fetch the file itself",
    rb"[\t\n\r\x20-\x7e]+\Z": "text",
    rb"\0+\Z": "zero bytes only",
    rb"": "unknown data",
}


class Inspection(NamedTuple):
    """The result of one file.

    Attributes:
        format, mode: Pillow's names; empty if Pillow finds no image.
        height, width, bytes: sizes; 0 if unknown.
        dali: True if DALI decodes it as Pillow does.
        error, reason: class and text of what torchvision's loader raises; empty if it gives an image.
        other: what a file is that is no image of those that ImageFolder lists; else empty.
        bomb: Pillow's complaint of a decompression bomb, or empty.
        warnings: texts of Pillow's other warnings.
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


def decode(source: Source) -> Inspection:
    """Decodes an image as torchvision's pil_loader does; the result has what that raises or warns of."""
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _opened(source) as file:
                seen["bytes"] = file.seek(0, os.SEEK_END)
                file.seek(0)
                with Image.open(file) as image:
                    seen |= {"format": image.format, "mode": image.mode, "height": image.height, "width": image.width}
                    image.convert("RGB")
        except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, ValueError and more
            seen |= _failure(source, error)
        texts: dict[bool, dict[str, None]] = {True: {}, False: {}}  # without repetitions, in order
        for one in caught:
            texts[issubclass(one.category, Image.DecompressionBombWarning)][str(one.message)] = None
        dali = "error" not in seen and read_header(source)[0] == DALI  # whose warnings are the same
    seen.setdefault("bomb", next(iter(texts[True]), ""))
    return Inspection(**seen, dali=dali, warnings=tuple(texts[False]))


def identify(source: Source) -> Inspection:
    """Returns what a file is that ImageFolder does not list; it is not decoded."""
    try:
        with warnings.catch_warnings(), _opened(source) as file:
            warnings.simplefilter("ignore")
            head = file.read(_HEAD)
            file.seek(0)
            try:
                with Image.open(file) as image:
                    return Inspection(image.format or "", image.mode, other=f"{image.format} image")
            except Exception:  # as above
                return Inspection(other=_kind(head))
    except OSError as error:
        return Inspection(other=_reason(error))


def _opened(source: Source) -> AbstractContextManager[IO[bytes]]:
    """Opens a file, but no pipe: that waits for ever."""
    if not is_record(source) and not stat.S_ISREG(os.stat(source).st_mode):
        raise OSError("it is not a regular file")
    return opened(source)


def _failure(source: Source, error: Exception) -> dict[str, str]:
    found = {"error": type(error).__name__, "reason": _reason(error)}
    if isinstance(error, Image.DecompressionBombError):
        found["bomb"] = found["reason"]
    if isinstance(error, UnidentifiedImageError):
        with opened(source) as file:
            head = file.read(_HEAD)
        accepts = [Image.OPEN[name][1] for name in _FORMATS if name in Image.OPEN]
        if head and any(accept is not None and accept(head) for accept in accepts):
            found["reason"] = "the file's header is damaged"
        else:
            found |= {"other": _kind(head), "reason": f"not an image, but {_kind(head)}"}
    return found


def _reason(error: Exception) -> str:
    """Returns an error's text without the path, which stands beside it."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or "no reason given"


def _kind(head: bytes) -> str:
    return next(name for pattern, name in _OTHERS.items() if re.match(pattern, head, re.IGNORECASE))
