"""Read and write protocol buffers' wire format, as far as tf.train.Example and Caffe's Datum use it.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}


class Malformed(ValueError):
    """Raised if bytes are not a valid message."""


def fields(data, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in ``data[begin:end]``.

    A field is (field number, VARINT, value, 0), or (field number, other wire type, begin, end) with the positions of
    its content in ``data``.

    Raises:
        Malformed: at the first invalid bytes.
    """
    at = begin
    while at < end:
        tag, at = varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield tag >> 3, kind, value, 0
            continue
        if kind == BYTES:
            size, at = varint(data, at, end)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise Malformed(f"a field has the unsupported wire type {kind}")
        if at + size > end:
            raise Malformed(f"a field has {size} bytes, but only {end - at} are left")
        yield tag >> 3, kind, at, at + size
        at += size


def varint(data, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned integer at ``at`` and the position after it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed("a variable-length integer does not end")


def signed(value: int) -> int:
    """Convert a VARINT to a signed integer. int32 and int64 are stored in 64-bit two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def encode(number: int, value: int | bytes) -> bytes:
    """Encode a field: an int as VARINT, bytes as BYTES."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
