"""Decode baseline JPEGs to planes in Python, as a reference for the JPEG engine of a GPU.

Follows ISO/IEC 10918-1 and libjpeg's integer inverse DCT (jidctint.c), bit for bit.
"""

import struct
from typing import NamedTuple

import numpy as np

_ZIGZAG = np.array(sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8))))
_BITS, _FIRST = 13, 2  # CONST_BITS and PASS1_BITS
_ODD = {"t0": 2446, "t1": 16819, "t2": 25172, "t3": 12299, "z1": -7373, "z2": -20995, "z3": -16069, "z4": -3196}


class Part(NamedTuple):
    """A component: its identifier, its horizontal and vertical sampling factors, and the index of its quantization
    table."""

    name: int
    across: int
    down: int
    table: int


def planes_of(data: bytes) -> list[np.ndarray]:
    """Return the uint8 plane of each component, (height, width), with chroma at its stored resolution.

    Raises:
        ValueError: The file is not a baseline JPEG with a single scan.
    """
    at, tables, huffman, restart, parts = 2, {}, {}, 0, []
    while True:
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        body, at = data[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xDB:
            while body:
                if body[0] >> 4:
                    raise ValueError("a table of 16 bits")
                tables[body[0] & 15], body = np.frombuffer(body[1:65], np.uint8).astype(np.int64), body[65:]
        elif marker == 0xC4:
            while body:
                count = sum(body[1:17])
                huffman[body[0]] = _codes(body[1:17], body[17 : 17 + count])
                body = body[17 + count :]
        elif marker == 0xDD:
            (restart,) = struct.unpack(">H", body)
        elif marker == 0xC0:
            height, width = struct.unpack_from(">HH", body, 1)
            parts = [Part(n, s >> 4, s & 15, q) for n, s, q in zip(body[6::3], body[7::3], body[8::3], strict=True)]
        elif marker == 0xDA:
            if body[0] != len(parts):
                raise ValueError("not all components are in one scan")
            chosen = {body[1 + 2 * i]: body[2 + 2 * i] for i in range(len(parts))}
            break
        elif 0xC1 <= marker <= 0xCF:
            raise ValueError("not baseline")
    if len(parts) == 1:  # a single component has one block per unit
        parts = [parts[0]._replace(across=1, down=1)]
    most = max(part.across for part in parts), max(part.down for part in parts)
    units = -(-height // (8 * most[1])), -(-width // (8 * most[0]))
    coders = [(huffman[chosen[part.name] >> 4], huffman[16 + (chosen[part.name] & 15)]) for part in parts]
    scan = _Scan(data[at:], restart)
    found = [np.zeros((units[0] * part.down, units[1] * part.across, 64), np.int64) for part in parts]
    for unit in range(units[0] * units[1]):
        scan.next_unit(unit)
        row, column = divmod(unit, units[1])
        for i, part in enumerate(parts):
            for block in range(part.across * part.down):
                y, x = divmod(block, part.across)
                scan.block(i, *coders[i], found[i][row * part.down + y, column * part.across + x])
    made = []
    for part, blocks in zip(parts, found, strict=True):
        rows, columns = blocks.shape[:2]
        natural = np.zeros_like(blocks)
        natural[..., _ZIGZAG] = blocks * tables[part.table]
        pixels = inverse_dct(natural.reshape(-1, 8, 8)).reshape(rows, columns, 8, 8)
        plane = pixels.swapaxes(1, 2).reshape(rows * 8, columns * 8)
        made.append(plane[: -(-height * part.down // most[1]), : -(-width * part.across // most[0])])
    return made


def _codes(counts: bytes, symbols: bytes) -> list[tuple[int, int]]:
    """Return a table of (symbol, code length), indexed by the next 16 bits."""
    found, at = [], 0
    for length, count in enumerate(counts, 1):
        for symbol in symbols[at : at + count]:
            found += [(symbol, length)] * (1 << (16 - length))
        at += count
    return found + [(0, 0)] * (65536 - len(found))


class _Scan:
    """Entropy-coded data, split at the restart markers."""

    def __init__(self, data: bytes, restart: int):
        self._restart, self._pieces, begin, at = restart, [], 0, 0
        while True:
            at = data.index(b"\xff", at)
            if data[at + 1] == 0:
                at += 2
                continue
            self._pieces.append(data[begin:at].replace(b"\xff\0", b"\xff") + bytes(8))
            if not 0xD0 <= data[at + 1] <= 0xD7:
                break
            begin = at = at + 2
        self._open(0)

    def _open(self, number: int) -> None:
        self._data, self._at, self._last = self._pieces[number], 0, [0] * 4

    def next_unit(self, unit: int) -> None:
        if self._restart and unit and unit % self._restart == 0:
            self._open(unit // self._restart)

    def _bits(self, count: int) -> int:
        """Return the next ``count`` bits (at most 16) without consuming them."""
        word = int.from_bytes(self._data[self._at >> 3 : (self._at >> 3) + 4], "big")
        return (word >> (32 - (self._at & 7) - count)) & ((1 << count) - 1)

    def _number(self, bits: int) -> int:
        if not bits:
            return 0
        value = self._bits(bits)
        self._at += bits
        return value if value >> (bits - 1) else value - (1 << bits) + 1

    def block(self, part: int, first: list, others: list, into: np.ndarray) -> None:
        """Decode the coefficients of one block, in zigzag order."""
        bits, length = first[self._bits(16)]
        self._at += length
        self._last[part] += self._number(bits)
        into[0], at = self._last[part], 1
        while at < 64:
            symbol, length = others[self._bits(16)]
            self._at += length
            if not symbol & 15:
                if symbol != 0xF0:
                    return
                at += 16
                continue
            at += symbol >> 4
            into[at] = self._number(symbol & 15)
            at += 1


def inverse_dct(blocks: np.ndarray) -> np.ndarray:
    """Transform (N, 8, 8) coefficients to uint8 samples."""
    columns = _pass(blocks.astype(np.int64), _BITS - _FIRST)
    pixels = _pass(columns.swapaxes(1, 2), _BITS + _FIRST + 3).swapaxes(1, 2)
    return np.clip(pixels + 128, 0, 255).astype(np.uint8)


def _pass(x: np.ndarray, shift: int) -> np.ndarray:
    """Apply the one-dimensional transform along the row axis."""
    x0, x1, x2, x3, x4, x5, x6, x7 = (x[:, i] for i in range(8))
    z1 = (x2 + x6) * 4433
    even2, even3 = z1 - x6 * 15137, z1 + x2 * 6270
    even0, even1 = (x0 + x4) << _BITS, (x0 - x4) << _BITS
    sums = [even0 + even3, even1 + even2, even1 - even2, even0 - even3]
    z5 = (x7 + x3 + x5 + x1) * 9633
    z1, z2 = (x7 + x1) * _ODD["z1"], (x5 + x3) * _ODD["z2"]
    z3, z4 = (x7 + x3) * _ODD["z3"] + z5, (x5 + x1) * _ODD["z4"] + z5
    odd = [x1 * _ODD["t3"] + z1 + z4, x3 * _ODD["t2"] + z2 + z3, x5 * _ODD["t1"] + z2 + z4, x7 * _ODD["t0"] + z1 + z3]
    half = 1 << (shift - 1)
    pairs = list(zip(sums, odd, strict=True))
    made = [(a + b + half) >> shift for a, b in pairs] + [(a - b + half) >> shift for a, b in reversed(pairs)]
    return np.stack(made, 1)
