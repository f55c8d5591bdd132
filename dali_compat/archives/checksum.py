"""CRC-32C (Castagnoli), as TFRecord files have it.

By the package google-crc32c or crc32c where one is installed, which use the processor's instruction,
else by NumPy: indexing then takes 9 times as long (benchmarks/archives.py).
"""

from __future__ import annotations

from functools import cache

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # bits reversed
_BLOCK = 256  # bytes; a table of _BLOCK x 256 numbers stays in a processor's second cache
_FEW = 64  # bytes that a plain loop is faster for


def masked_crc32c(data: bytes) -> int:
    """As TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = _implementation()(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _implementation():
    try:
        import google_crc32c

        if google_crc32c.implementation == "c":  # its Python one takes seconds for a photo
            return google_crc32c.value
    except ImportError:
        pass
    try:
        from crc32c import crc32c

        return crc32c
    except ImportError:
        return numpy_crc32c


def numpy_crc32c(data: bytes) -> int:
    """The CRC of blocks of 256 bytes, each by one look-up a byte, then of pairs of blocks, of pairs of pairs and so on.

    It works because the CRC without the inversions at both ends is linear over XOR, and zeros in front change nothing.
    """
    if len(data) < _FEW:
        numbers, crc = _byte_list(), 0xFFFFFFFF
        for byte in data:
            crc = numbers[(crc ^ byte) & 255] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    padding = -len(data) % _BLOCK
    padded = np.empty(padding + len(data), np.uint8)
    padded[:padding] = 0
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 255  # the inversion at the front
    table, places = _block_table()
    crcs = np.bitwise_xor.reduce(table.take(padded.reshape(-1, _BLOCK) + places), axis=1)
    level = 0
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _shift(_shift_table(level), crcs[::2]) ^ crcs[1::2]
        level += 1
    return int(crcs[0]) ^ 0xFFFFFFFF


@cache
def _byte_table() -> np.ndarray:
    """(256,) uint32: the CRC of one byte, without inversions."""
    table: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1)
    return table


@cache
def _byte_list() -> list[int]:
    return _byte_table().tolist()


def _zero_byte(crcs: np.ndarray) -> np.ndarray:
    return _byte_table()[crcs & 255] ^ crcs >> 8


@cache
def _block_table() -> tuple[np.ndarray, np.ndarray]:
    """(_BLOCK * 256,) uint32, what a byte adds to its block's CRC, by place and value; (_BLOCK,) where places begin."""
    table = np.empty((_BLOCK, 256), np.uint32)
    table[-1] = _byte_table()
    for place in range(_BLOCK - 2, -1, -1):
        table[place] = _zero_byte(table[place + 1])
    return table.ravel(), np.arange(0, _BLOCK * 256, 256, dtype=np.intp)


@cache
def _shift_table(level: int) -> np.ndarray:
    """(4, 256) uint32: what each byte of a CRC becomes when _BLOCK * 2**level zero bytes follow."""
    if level:
        half = _shift_table(level - 1)
        return _shift(half, half)
    table = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(_BLOCK):
        table = _zero_byte(table)
    return table


def _shift(table: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    return table[0][crcs & 255] ^ table[1][crcs >> 8 & 255] ^ table[2][crcs >> 16 & 255] ^ table[3][crcs >> 24]
