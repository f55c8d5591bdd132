"""Mutations of image files: functions of (bytes, random generator) that return other bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np

from faults.jpegs import MUTATIONS as _JPEG
from faults.pngs import SIGNATURE, chunks_of, with_chunks

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]


def _at(data: bytes, rng: Rng) -> int:
    """Return a random position. Half of them are in the first 200 bytes, with the headers."""
    return int(rng.integers(min(len(data), 200) if rng.random() < 0.5 else len(data)))


def whole(data: bytes, rng: Rng) -> bytes:
    return data


def cut(data: bytes, rng: Rng) -> bytes:
    return data[: len(data) - int(rng.integers(1, 40)) if rng.random() < 0.4 else int(rng.integers(len(data)))]


def flipped_bits(data: bytes, rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 5, 20]))):
        changed[_at(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def other_bytes(data: bytes, rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 2, 8]))):
        changed[_at(data, rng)] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, int(rng.integers(256))]))
    return bytes(changed)


def zeros(data: bytes, rng: Rng) -> bytes:
    at, count = _at(data, rng), int(rng.integers(1, 600))
    return data[:at] + bytes(len(data[at : at + count])) + data[at + count :]


def zeros_at_the_end(data: bytes, rng: Rng) -> bytes:
    """Zero the end, as a file system does after a power failure."""
    at = int(rng.integers(len(data)))
    return data[:at] + bytes(len(data) - at)


def inserted(data: bytes, rng: Rng) -> bytes:
    at = _at(data, rng)
    return data[:at] + rng.bytes(int(rng.choice([1, 2, 7, 100]))) + data[at:]


def removed(data: bytes, rng: Rng) -> bytes:
    at = _at(data, rng)
    return data[:at] + data[at + int(rng.choice([1, 2, 7, 100])) :]


def repeated(data: bytes, rng: Rng) -> bytes:
    at, count = _at(data, rng), int(rng.integers(1, 300))
    return data[:at] + data[at : at + count] * 2 + data[at + count :]


def longer(data: bytes, rng: Rng) -> bytes:
    return data + (rng.bytes(int(rng.integers(1, 300))), bytes(20), data)[int(rng.integers(3))]


GENERIC = (cut, flipped_bits, other_bytes, zeros, zeros_at_the_end, inserted, removed, repeated, longer)


def _number(data: bytes, rng: Rng, at: int, form: str) -> bytes:
    """Replace the integer at a position."""
    size = struct.calcsize(form)
    if at + size > len(data):
        return data
    (old,) = struct.unpack_from(form, data, at)
    near = [
        old + 1,
        old - 1,
        2 * old,
        old // 2,
        0,
        1,
        2,
        4,
        8,
        16,
        24,
        32,
        255,
        256,
        128 << 8 * (size - 1),
        (1 << 8 * size) - 1,
    ]
    new = near[int(rng.integers(len(near)))] % (1 << 8 * size)
    return data[:at] + new.to_bytes(size, "big" if form[0] == ">" else "little") + data[at + size :]


# ---- PNG: chunks with correct checksums


def _png(change: Callable) -> Mutation:
    def mutation(data: bytes, rng: Rng) -> bytes:
        chunks = chunks_of(data)
        change(chunks, rng)
        return with_chunks(chunks)

    mutation.__name__ = change.__name__.strip("_")
    return mutation


def _any(chunks: list, rng: Rng) -> int:
    return int(rng.integers(len(chunks)))


def _chunk_lost(chunks: list, rng: Rng) -> None:
    del chunks[_any(chunks, rng)]


def _chunk_twice(chunks: list, rng: Rng) -> None:
    chunks.insert(_any(chunks, rng), chunks[_any(chunks, rng)])


def _chunks_swapped(chunks: list, rng: Rng) -> None:
    i, j = _any(chunks, rng), _any(chunks, rng)
    chunks[i], chunks[j] = chunks[j], chunks[i]


def _chunk_changed(chunks: list, rng: Rng) -> None:
    i = _any(chunks, rng)
    kind, content = chunks[i]
    if content:
        chunks[i] = kind, flipped_bits(content, rng)


def _chunk_cut(chunks: list, rng: Rng) -> None:
    i = _any(chunks, rng)
    kind, content = chunks[i]
    chunks[i] = kind, content[: int(rng.integers(len(content) + 1))]


def _chunk_longer(chunks: list, rng: Rng) -> None:
    i = _any(chunks, rng)
    kind, content = chunks[i]
    chunks[i] = kind, content + rng.bytes(int(rng.integers(1, 30)))


def _chunk_renamed(chunks: list, rng: Rng) -> None:
    i = _any(chunks, rng)
    names = b"PLTE", b"tRNS", b"IDAT", b"abCd", b"ABCD", b"acTL", b"fcTL", b"fdAT", b"iCCP", b"gAMA", b"IEND"
    chunks[i] = names[int(rng.integers(len(names)))], chunks[i][1]


def _chunk_added(chunks: list, rng: Rng) -> None:
    kinds = b"tRNS PLTE gAMA bKGD tEXt eXIf iCCP IDAT acTL fdAT ABCD zTXt iTXt".split()
    content = rng.bytes(int(rng.choice([0, 1, 2, 4, 6, 30])))
    chunks.insert(int(rng.integers(1, len(chunks) + 1)), (kinds[int(rng.integers(len(kinds)))], content))


def _header_changed(chunks: list, rng: Rng) -> None:
    at, form = ((0, ">I"), (4, ">I"), (8, "B"), (9, "B"), (10, "B"), (11, "B"), (12, "B"))[int(rng.integers(7))]
    chunks[0] = chunks[0][0], _number(chunks[0][1], rng, at, form)


def _rows_changed(chunks: list, rng: Rng) -> None:
    """Change the compressed data: filter bytes, fewer rows, more rows."""
    data = [i for i, (kind, _) in enumerate(chunks) if kind == b"IDAT"]
    rows = zlib.decompress(b"".join(chunks[i][1] for i in data))
    change = (flipped_bits, other_bytes, cut, longer)[int(rng.integers(4))]
    chunks[data[0] : data[-1] + 1] = [(b"IDAT", zlib.compress(change(rows, rng)))]


def checksum_wrong(data: bytes, rng: Rng) -> bytes:
    """Change the checksum of a chunk with correct contents."""
    chunks = chunks_of(data)
    at = len(SIGNATURE)
    for _, content in chunks[: _any(chunks, rng)]:
        at += 12 + len(content)
    (length,) = struct.unpack_from(">I", data, at)
    return _number(data, rng, at + 8 + length, ">I")


_PNG = [
    _png(change)
    for change in (_chunk_lost, _chunk_twice, _chunks_swapped, _chunk_changed, _chunk_cut, _chunk_longer,
                   _chunk_renamed, _chunk_added, _header_changed, _header_changed, _rows_changed, _rows_changed)
] + [checksum_wrong]  # fmt: skip


# ---- the rest


def bmp_field(data: bytes, rng: Rng) -> bytes:
    at = int(rng.choice([2, 10, 14, 18, 22, 26, 28, 30, 34, 46, 50, 54, 58, 62]))
    return _number(data, rng, at, "<H" if at in (26, 28) else "<I")


def tiff_field(data: bytes, rng: Rng) -> bytes:
    order = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, start)
    entry = start + 2 + 12 * int(rng.integers(count))
    fields = (start, "H"), (start + 2 + 12 * count, "I"), (4, "I"), (entry, "H"), (entry + 2, "H"), (entry + 4, "I"), \
        (entry + 8, "H"), (entry + 8, "I"), (entry + 8, "H"), (entry + 8, "H")  # fmt: skip
    at, form = fields[int(rng.integers(len(fields)))]
    return _number(data, rng, at, order + form)


def pnm_header(data: bytes, rng: Rng) -> bytes:
    head = bytearray(data[:16])
    head[int(rng.integers(16))] = int(rng.choice(list(b"0123456789 \n\t#-.P")))
    return bytes(head) + data[16:]


def _webp_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 12
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 4)
        found.append((data[at : at + 4], data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    return found


def webp_chunks(data: bytes, rng: Rng) -> bytes:
    chunks = _webp_chunks(data)
    change = (_chunk_lost, _chunk_twice, _chunks_swapped, _chunk_changed, _chunk_cut, _chunk_longer)[
        int(rng.integers(6))
    ]
    change(chunks, rng)
    padded = (kind + struct.pack("<I", len(c)) + c + b"\0" * (len(c) % 2) for kind, c in chunks)
    body = b"WEBP" + b"".join(padded)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_sizes(data: bytes, rng: Rng) -> bytes:
    return _number(data, rng, int(rng.choice([4, 16])), "<I")


_SPECIFIC = {
    "jpg": _JPEG,
    "mpo": _JPEG,
    "png": _PNG,
    "bmp": [bmp_field],
    "tif": [tiff_field],
    "webp": [webp_chunks, webp_chunks, webp_sizes],
    **{name: [pnm_header] for name in ("ppm", "pgm", "pbm", "pfm")},
}
_SHARES = {"jpg": 46, "png": 18, "bmp": 9, "tif": 9, "webp": 8, "ppm": 3, "pgm": 3, "pbm": 1, "mpo": 1}  # others: 1


def mutated(originals: dict[str, bytes], seed: int, number: int) -> tuple[str, bytes]:
    """Return the description, ending with the format, and the bytes of file ``number`` of a seed."""
    rng = np.random.default_rng([seed, number])
    by_kind: dict[str, list[str]] = {}
    for name in originals:
        by_kind.setdefault(name.rsplit(".", 1)[1], []).append(name)
    kinds = sorted(by_kind)
    shares = np.array([_SHARES.get(kind, 1) for kind in kinds], float)
    kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
    name = by_kind[kind][int(rng.integers(len(by_kind[kind])))]
    data, applied = originals[name], []
    for _ in range(2 if rng.random() < 0.15 else 1):
        data, mutation = _damaged(data, kind, rng)
        applied.append(mutation)
    return f"{', '.join(applied)} of {name}", data


def _damaged(data: bytes, kind: str, rng: Rng) -> tuple[bytes, str]:
    """Apply one mutation, or another if the file no longer fits the first."""
    specific = _SPECIFIC.get(kind, GENERIC)
    for _ in range(20):
        draw = rng.random()
        pool = (whole,) if draw < 0.02 else GENERIC if draw < 0.4 else specific
        mutation = pool[int(rng.integers(len(pool)))]
        try:
            changed = mutation(data, rng)
        except (ValueError, IndexError, KeyError, struct.error, zlib.error, OverflowError, StopIteration):
            continue
        if changed:
            return changed, mutation.__name__
    return data, "whole"
