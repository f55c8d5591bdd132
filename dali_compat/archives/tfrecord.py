"""TensorFlow's TFRecord files of tf.train.Example, read and written without TensorFlow.

Sources: tensorflow/core/lib/io/record_writer.h and crc32c.h, tensorflow/core/example/example.proto and feature.proto.

A record is a uint64 length, the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data, all
little-endian. The data is an Example. It holds a Features (field 1), a map of names to Feature. A Feature is a list of
bytes (1), floats (2) or int64s (3).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import google_crc32c

from ..remote.objects import FolderAndSize
from . import Archive, PathLike, protobuf
from .index import FileRows, Progress, RowsBuilder, corrupt, unsupported
from .protobuf import BYTES, Malformed

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD, _TAIL = _LENGTH.size + _CRC.size, _CRC.size
_KINDS = {1: "bytes", 2: "floats", 3: "int64s"}


class DALITFRecord(Archive):
    """Images of TFRecord files, one per tf.train.Example, with random access.

    ``dataset[i]`` is ``(transform(image), target_transform(target))``, as in torchvision.datasets.ImageFolder. The
    image is a PIL image in RGB, and the target is an int. Checksums are verified while a file is indexed.

    Args:
        path: a file or its URL, a pattern such as ``train-*``, braces as in ``train-{000..007}``, or a list of these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches are [images, labels, indices].
        image_key: feature with the encoded image, one value of type bytes.
        label_key: feature with the target, one int64.
        storage_options, disk_cache: for URLs, as in DALIImageFolder.

    Attributes:
        files, targets, classes, class_to_idx: as in DALIRecordIO.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged or compressed with zlib, or an image cannot be decoded in
            ``dataset[i]``.
        ValueError: a file is compressed with gzip, or a feature is missing in a record or has another type.

    Examples:
        >>> dataset = DALITFRecord("train-*.tfrecord", transform)
        >>> len(dataset), dataset.targets
        (8, [0, 0, 0, 0, 1, 1, 1, 1])
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        return_index: bool = False,
        image_key: str = "image/encoded",
        label_key: str = "image/class/label",
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ):
        self.image_key, self.label_key = image_key, label_key
        remote: Any = {"storage_options": storage_options, "disk_cache": disk_cache}
        super().__init__(path, transform, target_transform, return_index=return_index, **remote)

    def _options(self, path: str) -> dict[str, Any]:
        return {**super()._options(path), "image": self.image_key, "label": self.label_key}

    def _scan(self, path: str, progress: Progress) -> FileRows:
        builder, offset = RowsBuilder(progress), 0
        with self._opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            while offset < size:
                where = f"record {len(builder)} at byte {offset}"
                data = _record(file, path, where, size - offset)
                try:
                    begin, end, label = self._find(data, path, where)
                except Malformed as error:
                    raise corrupt(path, where, f"it is not a tf.train.Example: {error}") from None
                builder.add(offset + _HEAD + begin, end - begin, label)
                offset += _HEAD + len(data) + _TAIL
        return builder.rows()

    def _find(self, data: bytes, path: str, where: str) -> tuple[int, int, int]:
        """Return (start of the image in ``data``, its end, label)."""
        features, found = _features(data), []
        for key, expected in ((self.image_key, "bytes"), (self.label_key, "int64s")):
            if key not in features:
                known = ", ".join(sorted(features)) or "none"
                raise unsupported(path, where, f"it has no feature {key!r}; its features are: {known}")
            kind, values = _list(data, *features[key])
            if kind != expected or len(values) != 1:
                what = f"{key!r} must have one value of type {expected}, but has {len(values)} of type {kind}"
                raise unsupported(path, where, what)
            found += values
        return *found[0], found[1]


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's checksum: a CRC-32C that is rotated right by 15 bits and increased by a constant."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record(file: IO[bytes], path: str, where: str, left: int) -> bytes:
    """Return the data of the next record, after verifying its checksums. ``left`` bytes remain in the file."""
    head = file.read(_HEAD)
    if len(head) < _HEAD:
        raise corrupt(path, where, "the file ends within the record")
    (length,), (crc,) = _LENGTH.unpack_from(head), _CRC.unpack_from(head, _LENGTH.size)
    if masked_crc32c(head[: _LENGTH.size]) != crc:
        if head[:2] == b"\x1f\x8b":
            raise unsupported(path, where, "the file is compressed (gzip), so it has no random access; decompress it")
        raise corrupt(
            path, where, "the checksum of its length is wrong; the file is damaged, compressed or not a TFRecord file"
        )
    if _HEAD + length + _TAIL > left:
        raise corrupt(path, where, f"the file ends {_HEAD + length + _TAIL - left} bytes before the record does")
    data, tail = file.read(length), file.read(_TAIL)
    if len(tail) < _TAIL or masked_crc32c(data) != _CRC.unpack(tail)[0]:
        raise corrupt(path, where, "the checksum of its data is wrong")
    return data


def _features(data: bytes) -> dict[str, tuple[int, int]]:
    """Return {name: (begin, end)} of the Features in an Example. The last Feature of a name counts, as in protobuf."""
    found = {}
    for features in _inner(data, 0, len(data)):
        for entry in _inner(data, *features):
            name, feature = "", (entry[1], entry[1])
            for number, kind, a, b in protobuf.fields(data, *entry):
                if (number, kind) == (1, BYTES):
                    name = data[a:b].decode("utf-8", "replace")
                elif (number, kind) == (2, BYTES):
                    feature = a, b
            found[name] = feature
    return found


def _inner(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the (begin, end) of each occurrence of field 1 in a message."""
    return ((a, b) for number, kind, a, b in protobuf.fields(data, begin, end) if (number, kind) == (1, BYTES))


def _list(data: bytes, begin: int, end: int) -> tuple[str, list[Any]]:
    """Return (kind, values) of a Feature. Values of kind bytes are (begin, end), and those of kind int64s are ints.
    Floats are not decoded, so packed ones count as one value."""
    name: str = "nothing"
    values: list[Any] = []
    for number, kind, a, b in protobuf.fields(data, begin, end):
        if number not in _KINDS or kind != BYTES:
            continue
        name, values = _KINDS[number], []
        for number, kind, first, last in protobuf.fields(data, a, b):
            if number != 1:
                continue
            if name == "int64s" and kind == BYTES:  # packed
                while first < last:
                    value, first = protobuf.varint(data, first, last)
                    values.append(protobuf.signed(value))
            else:
                values.append(protobuf.signed(first) if name == "int64s" else (first, last))
    return name, values


def encode(features: dict[str, int | bytes]) -> bytes:
    """Return an Example as a record. Each feature has one value of type int64 or bytes."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, int):
            feature = protobuf.encode(3, protobuf.encode(1, protobuf.encode_varint(value)))
        else:
            feature = protobuf.encode(1, protobuf.encode(1, value))
        entries += protobuf.encode(1, protobuf.encode(1, name.encode()) + protobuf.encode(2, feature))
    data = protobuf.encode(1, entries)
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))
