"""Reads and writes the wire format of protocol buffers, as far as tf.train.Example and Caffe's Datum need it.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}


class Malformed(ValueError):
    """Bytes are not a message."""


def fields(data, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of a message that lies in ``data[begin:end]`` (bytes or a memoryview of them).

    They are (field number, wire type, value, 0) for VARINT, and (field number, wire type, begin, end) of the content in
    ``data`` for the others.

    Raises:
        Malformed: at the first bytes that cannot be a message.
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
            raise Malformed(f"wire type {kind}")
        if at + size > end:
            raise Malformed(f"a field of {size} bytes where {end - at} are left")
        yield tag >> 3, kind, at, at + size
        at += size


def varint(data, at: int, end: int) -> tuple[int, int]:
    """Returns (the unsigned number at ``at``, where it ends)."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed("a number without an end")


def signed(value: int) -> int:
    """Returns an int32 or int64, which are written as the two's complement of 64 bits."""
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
    """Returns one field: an int as VARINT, bytes as BYTES."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
