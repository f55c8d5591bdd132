"""MXNet's RecordIO files of images (.rec), read and written without MXNet.

Sources: dmlc-core's include/dmlc/recordio.h and src/recordio.cc; MXNet's python/mxnet/recordio.py (IRHeader, pack).

All numbers are little-endian. A record begins with the magic number 0xced7230a and a uint32, with "part" in the upper
3 bits and "length" in the lower 29. The data follows, padded with zeros to a multiple of 4. Part is 0 for a whole
record. If the data contains the magic number at a multiple of 4, the record is split there into parts 1 (first), 2
(middle) and 3 (last). The magic number of a later part is then also data, and the uint32 after it is the gap. The data
begins with IRHeader: uint32 flag, float32 label, uint64 id, uint64 id2. A positive flag is the number of float32 labels
that follow.
"""

from __future__ import annotations

import io
import os
import struct
from typing import IO, Any

import numpy as np

from . import Archive
from .index import GAP, FileRows, Progress, RowsBuilder, corrupt, fingerprint, is_target, unsupported

MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_LENGTH_BITS = 29
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PREFIX = struct.Struct("<II")
_IMAGE_HEADER = struct.Struct("<IfQQ")
_LABEL = struct.Struct("<f")
_HEAD = _PREFIX.size + _IMAGE_HEADER.size + _LABEL.size
_LINE = 200  # longest line of an .idx file in characters; bounds the memory for a line without an end


class DALIRecordIO(Archive):
    """Images of MXNet RecordIO files (.rec) with one label each, with random access.

    ``dataset[i]`` is ``(transform(image), target_transform(target))``, as in torchvision.datasets.ImageFolder. The
    image is a PIL image in RGB, and the target is an int.

    An .idx file next to a .rec file (``train.idx`` for ``train.rec``) selects the records and their order, as in
    MXNet's MXIndexedRecordIO. Without it, the data set has all records in the order of the file.

    Args:
        path: a file or its URL, a pattern such as ``train-*.rec``, braces as in ``train-{000..007}.rec``, or a list of
            these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches are [images, labels, indices].
        storage_options, disk_cache: for URLs, as in DALIImageFolder.

    Attributes:
        files: paths of the files that hold the images.
        targets: list of ints, before target_transform.
        classes, class_to_idx: the class names from ``<path>.classes.txt``, if it exists (the pack command writes it);
            otherwise None.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged, or an image cannot be decoded in ``dataset[i]``.
        ValueError: a record has several labels, as in detection or face data, or contains no image.

    Examples:
        >>> dataset = DALIRecordIO("train.rec", transform)
        >>> len(dataset), dataset.classes
        (8, ['cat', 'dog'])
    """

    def _options(self, path: str) -> dict[str, Any]:
        idx = self._idx_of(path)
        return {**super()._options(path), "idx": idx and fingerprint(idx, self._objects)}

    def _scan(self, path: str, progress: Progress) -> FileRows:
        builder = RowsBuilder(progress)
        idx = self._idx_of(path)
        with self._opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            if idx:
                copied = None if self._objects is None else self._objects.copied(idx)
                offsets = _idx_offsets(idx, open(idx, "rb") if copied is None else io.BytesIO(copied))
                if size and not offsets:
                    raise unsupported(
                        idx, "line 1", "the file lists no records; remove it to read all records of the .rec file"
                    )
                order = sorted(range(len(offsets)), key=offsets.__getitem__)  # in file order
                for number in order:
                    _add(builder, file, size, path, number, offsets[number], idx)
                return builder.rows().reordered(np.argsort(order))
            offset = 0
            while offset < size:
                offset = _add(builder, file, size, path, len(builder), offset)
        return builder.rows()

    def _idx_of(self, path: str) -> str | None:
        idx = os.path.splitext(path)[0] + ".idx"
        if self._objects is not None:
            return idx if self._objects.exists(idx) else None
        return idx if idx != path and os.path.isfile(idx) else None


def _idx_offsets(path: str, stored: IO[bytes]) -> list[int]:
    """Return the records' offsets from the second column of an .idx file. The first column has the keys."""
    offsets = []
    with io.TextIOWrapper(stored, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE), "")):
            try:
                if len(line) == _LINE:
                    raise ValueError
                offsets.append(int(line.split()[1]))
            except (IndexError, ValueError):
                raise unsupported(path, f"line {number + 1}", f"{line.strip()!r} is not a key and an offset") from None
    return offsets


def _add(
    builder: RowsBuilder, file: IO[bytes], size: int, path: str, number: int, offset: int, idx: str | None = None
) -> int:
    """Add the record at ``offset`` to the builder. Return the offset of the next record."""
    where, head = f"record {number} at byte {offset}", b""
    if 0 <= offset < size:
        file.seek(offset)
        head = file.read(_HEAD)
    if len(head) < _PREFIX.size:
        what = "its offset is negative" if offset < 0 else f"the file has only {size} bytes"
        raise corrupt(path, where, what + _idx_hint(idx))
    magic, word = _PREFIX.unpack_from(head)
    part, length = word >> _LENGTH_BITS, word & _LENGTH_MASK
    if magic != MAGIC:
        raise corrupt(path, where, f"it begins with {magic:#010x}, not with the magic number{_idx_hint(idx)}")
    if part not in (_WHOLE, _FIRST):
        raise corrupt(path, where, f"this is the middle or end of a record, not its beginning{_idx_hint(idx)}")
    gaps: list[int] = []
    end: int = offset + _PREFIX.size + length
    total = length
    while part in (_FIRST, _MIDDLE):
        file.seek(end)
        prefix = file.read(_PREFIX.size)
        if length % 4 or len(prefix) < _PREFIX.size or _PREFIX.unpack(prefix)[0] != MAGIC:
            raise corrupt(path, where, f"the next part of the record is not at byte {end}")
        word = _PREFIX.unpack(prefix)[1]
        part, length = word >> _LENGTH_BITS, word & _LENGTH_MASK
        if part not in (_MIDDLE, _LAST):
            raise corrupt(path, where, f"another record begins at byte {end}, before the last part of this one")
        total += GAP  # the magic number is part of the data
        gaps.append(total)
        total += length
        end += _PREFIX.size + length
    end += -end % 4
    if end > size:
        raise corrupt(path, where, f"the file ends {end - size} bytes before the record does")
    if total < _IMAGE_HEADER.size:
        raise corrupt(path, where, f"its {total} bytes are too few for an image's header")
    begin, label = _label(path, where, head[_PREFIX.size :])
    if total < begin or (gaps and gaps[0] <= begin):
        raise unsupported(path, where, "its image header is incomplete, or split between two parts")
    builder.add(offset + _PREFIX.size + begin, total - begin, label, tuple(gap - begin for gap in gaps))
    return end


def _label(path: str, where: str, data: bytes) -> tuple[int, int]:
    """Return (number of bytes before the image, label) of a record."""
    flag, label, _, _ = _IMAGE_HEADER.unpack_from(data)
    begin = _IMAGE_HEADER.size
    if flag > 1:
        what = f"it has {flag} labels, according to the flag in its header; only one class label is supported"
        raise unsupported(path, where, what)
    if flag == 1:
        (label,) = _LABEL.unpack_from(data.ljust(begin + _LABEL.size, b"\0"), begin)
        begin += _LABEL.size
    if not (label.is_integer() and is_target(label)):  # False for inf and nan
        raise unsupported(path, where, f"its label {label} is not a class number")
    return begin, int(label)


def _idx_hint(idx: str | None) -> str:
    return f"; {idx} may belong to another file: remove it to read all records" if idx else ""


def encode(number: int, label: int, image: bytes) -> bytes:
    """Return an image as a record with the id ``number``, in the format of MXNet's recordio.pack."""
    data = _IMAGE_HEADER.pack(0, label, number, 0) + image
    parts, begin, at = [], 0, data.find(_MAGIC_BYTES)
    while at != -1:
        if at % 4 == 0:
            parts.append(data[begin:at])
            begin = at + 4
        at = data.find(_MAGIC_BYTES, at + (4 if at % 4 == 0 else 1))
    parts.append(data[begin:])
    kinds = [_WHOLE] if len(parts) == 1 else [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST]
    if max(map(len, parts)) > _LENGTH_MASK:
        raise ValueError(f"an image of {len(image)} bytes is too large for RecordIO, whose limit is {_LENGTH_MASK}")
    written = [
        _PREFIX.pack(MAGIC, kind << _LENGTH_BITS | len(part)) + part + bytes(-len(part) % 4)
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return b"".join(written)
