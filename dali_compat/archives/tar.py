"""Finds the members of a tar file by its headers alone.

Python's tarfile is no replacement: it ends at a damaged header without an error, so that a data set would lose the rest
of its images unnoticed. It also keeps an object for every member, and takes five times as long.

Sources: POSIX.1-2017, pax (ustar and pax formats); GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator

from .fetched import FetchedFile
from .files import OpenFile
from .index import corrupt, refused

BLOCK = 512
END = bytes(2 * BLOCK)
_REGULAR = b"0\x007"
_NO_DATA = b"123456"  # links, devices, folders, pipes: their size says nothing about the file
_LONG_NAME, _LONG_LINK, _PAX, _SOLARIS_PAX, _PAX_GLOBAL, _SPARSE = b"LKxXgS"
_SAYING = b"LKxXg"  # the bytes behind them describe the next member
_OTHER_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC = slice(257, 263)
_CHECKSUM = slice(148, 156)
_MOST = 1 << 20  # bytes of such text: names and numbers
_DIGITS = 20  # of a number in an extended header, with the space behind it


def members(file: OpenFile | FetchedFile, path: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, offset, size) of each regular file, in order.

    Args:
        file: opened.
        path: for messages.

    Raises:
        ImageReadError: a header is damaged or the file ends early.
        ValueError: the file is compressed, or has sparse files.
    """
    end, at = file.size, 0
    name = size = before = None  # what the headers before a member say of it, and where the last of them is
    while at < end:
        where = f"header at byte {at}"
        header = file.pread(BLOCK, at)
        if at == 0:
            _refuse_compressed(header, path)
        if not header.strip(b"\0") and len(header) == BLOCK:
            break
        if len(header) < BLOCK or not _sound(header):
            raise corrupt(path, where, "the file ends inside it" if len(header) < BLOCK else "its checksum is wrong")
        kind = header[156]
        length = _number(header[124:136])
        if length < 0:
            raise corrupt(path, where, "its size is not a number")
        if kind in _SAYING and length > min(_MOST, end - at - BLOCK):
            raise corrupt(path, where, f"the {length} bytes of its text are more than the file has, or than {_MOST}")
        if kind in (_PAX, _SOLARIS_PAX):
            said = _pax(file.pread(length, at + BLOCK), path, where)
            name, size = said.get("path", name), said.get("size", size)
        elif kind == _LONG_NAME:
            name = _text(file.pread(length, at + BLOCK))
        elif kind == _SPARSE:
            raise refused(path, where, "it is a sparse file; write the tar file without --sparse")
        elif kind not in (_LONG_LINK, _PAX_GLOBAL):
            length = length if size is None else int(size)
            if kind in _NO_DATA:
                length = 0
            over = at + BLOCK + length + -length % BLOCK - end
            if over > 0:
                raise corrupt(path, where, f"the file ends {over} bytes before the member does")
            if kind in _REGULAR:
                yield name or _name(header), at + BLOCK, length
            name = size = None
        before = where if kind in _SAYING else None
        at += BLOCK + length + -length % BLOCK
    if before is not None:
        raise corrupt(path, before, "the file ends before the member that it describes")


def _refuse_compressed(header: bytes, path: str) -> None:
    for magic, name in _OTHER_FORMATS.items():
        if header.startswith(magic):
            raise refused(path, "byte 0", f"the file is compressed ({name}), which has no random access: decompress it")


def _sound(header: bytes) -> bool:
    """True if the sum of the header's bytes, with its checksum as spaces, is its checksum; modulo 65521, as the low
    half of Adler-32 is one more than that sum and 20 times as fast as Python's."""
    blank = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    return (zlib.adler32(blank) & 0xFFFF) == (_number(header[_CHECKSUM]) + 1) % 65521


def _number(field: bytes) -> int:
    """Reads octal digits, or GNU's base 256 if the first bit is set; -1 if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    return f"{prefix}/{name}" if prefix and header[_MAGIC] == b"ustar\0" else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(data: bytes, path: str, where: str) -> dict[str, str]:
    """Reads records of "length key=value newline", where length counts all of the record."""
    said, at = {}, 0
    while at < len(data) and data[at]:
        digits, _, _ = data[at : at + _DIGITS].partition(b" ")
        end = at + int(digits) if digits.isdigit() else 0
        key, _, value = data[at + len(digits) + 1 : max(end - 1, 0)].partition(b"=")
        number = value.isdigit() and len(value) < _DIGITS
        if not (at < end <= len(data) and key and (key != b"size" or number)):
            raise corrupt(path, where, "its extended header is damaged")
        said[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at = end
    if any(key.startswith("GNU.sparse") for key in said):
        raise refused(path, where, "it is a sparse file; write the tar file without --sparse")
    return said


def encode(name: str, data: bytes) -> bytes:
    """Returns a regular file as a member, without times and owners. ``name`` has at most 100 bytes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8") + data + bytes(-len(data) % BLOCK)
