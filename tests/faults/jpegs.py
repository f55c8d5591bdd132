"""Damage to the structure of JPEG files: segments, scans and restart markers."""

from __future__ import annotations

import struct

import numpy as np

Rng = np.random.Generator

SOI, EOI, SOS, DQT, DHT, DRI, SOF, APP0, APP14 = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD, 0xC0, 0xE0, 0xEE
_MARKERS = (0x01, 0x27, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC8, 0xC9, 0xCA, 0xCC, 0xD0, 0xD3, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB,
            0xDC, 0xDD, 0xDE, 0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xEF, 0xF0, 0xF7, 0xFE, 0xFF, 0x02)  # fmt: skip


def pieces_of(data: bytes) -> list[tuple[int, bytes]]:
    """Return (marker, bytes) of each segment, including the marker. Those of SOS include the scan. Only for whole
    files."""
    pieces, at = [(SOI, data[:2])], 2
    while data[at + 1] != EOI:
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        if data[at + 1] == SOS:
            end = _scan_end(data, end)
        pieces.append((data[at + 1], data[at:end]))
        at = end
    return [*pieces, (EOI, data[at:])]


def _scan_end(data: bytes, at: int) -> int:
    while True:
        at = data.index(b"\xff", at)
        if data[at + 1] and not 0xD0 <= data[at + 1] <= 0xD7:
            return at
        at += 2


def _joined(pieces: list[tuple[int, bytes]]) -> bytes:
    return b"".join(piece for _, piece in pieces)


def _pick(pieces: list, rng: Rng, *markers: int) -> int:
    """Return the index of a random segment with one of these markers, or of any except the first."""
    found = [i for i, (marker, _) in enumerate(pieces) if i and (not markers or marker in markers)]
    return found[int(rng.integers(len(found)))]


def _replaced(piece: bytes, at: int, new: bytes) -> bytes:
    if at + len(new) > len(piece):
        raise ValueError("no such place")
    return piece[:at] + new + piece[at + len(new) :]


def _edited(data: bytes, rng: Rng, edit, *markers: int) -> bytes:
    pieces = pieces_of(data)
    i = _pick(pieces, rng, *markers)
    pieces[i] = pieces[i][0], edit(pieces[i][1])
    return _joined(pieces)


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def in_scan(piece: bytes, rng: Rng) -> int:
    """Return a random position in the scan of an SOS piece."""
    return int(rng.integers(2 + struct.unpack_from(">H", piece, 2)[0], len(piece) - 1))


def marker_in_scan(data: bytes, rng: Rng) -> bytes:
    marker = int(rng.choice(_MARKERS))
    return _edited(data, rng, lambda p: _replaced(p, in_scan(p, rng), bytes([0xFF, marker])), SOS)


def stuffing_becomes_marker(data: bytes, rng: Rng) -> bytes:
    def edit(piece: bytes) -> bytes:
        at = piece.index(b"\xff\0", in_scan(piece, rng))
        return _replaced(piece, at + 1, bytes([int(rng.choice(_MARKERS))]))

    return _edited(data, rng, edit, SOS)


def inserted_in_scan(data: bytes, rng: Rng) -> bytes:
    content = (b"\xff\xd0", b"\xff\xd9", b"\xff\xff", b"\xff\xff\xff\0", segment(0xFE, b"text"), segment(DRI, b"\0\1"),
               bytes(30), b"\xff\0", segment(APP0, b"JFIF\0\1\1\0\0\1\0\1\0\0"))[int(rng.integers(9))]  # fmt: skip

    def edit(piece: bytes) -> bytes:
        at = in_scan(piece, rng)
        return piece[:at] + content + piece[at:]

    return _edited(data, rng, edit, SOS)


def entropy_flipped(data: bytes, rng: Rng) -> bytes:
    """Change only coded data, so that the structure stays intact."""

    def edit(piece: bytes) -> bytes:
        changed = bytearray(piece)
        for _ in range(int(rng.choice([1, 1, 3, 20]))):
            at = in_scan(piece, rng)
            new = changed[at] ^ 1 << int(rng.integers(8))
            if 0xFF not in (changed[at], new, changed[at - 1]):
                changed[at] = new
        return bytes(changed)

    return _edited(data, rng, edit, SOS)


def entropy_cut(data: bytes, rng: Rng) -> bytes:
    """Truncate coded data and keep the end marker."""

    def edit(piece: bytes) -> bytes:
        kept = piece[: in_scan(piece, rng)]
        return kept + b"\0" if kept.endswith(b"\xff") else kept

    return _edited(data, rng, edit, SOS)


def restart_changed(data: bytes, rng: Rng) -> bytes:
    def edit(piece: bytes) -> bytes:
        found = [i for i in range(len(piece) - 1) if piece[i] == 0xFF and 0xD0 <= piece[i + 1] <= 0xD7]
        at = found[int(rng.integers(len(found)))]
        draw = int(rng.integers(5))
        if draw == 0:
            return piece[:at] + piece[at + 2 :]
        if draw == 1:
            return piece[:at] + piece[at : at + 2] + piece[at:]
        if draw == 2:
            return _replaced(piece, at, bytes([0xFF, 0xD0 + int(rng.integers(8))]))
        if draw == 3:
            return piece[:at] + piece[at + 2 + int(rng.integers(1, 20)) :]
        return piece[:at] + rng.bytes(3).replace(b"\xff", b"") + piece[at:]

    return _edited(data, rng, edit, SOS)


def segment_byte(data: bytes, rng: Rng) -> bytes:
    def edit(piece: bytes) -> bytes:
        at = int(rng.integers(1, min(len(piece), 600)))
        return _replaced(
            piece, at, bytes([int(rng.choice([piece[at] ^ 1 << int(rng.integers(8)), int(rng.integers(256))]))])
        )

    return _edited(data, rng, edit)


def segment_length(data: bytes, rng: Rng) -> bytes:
    def edit(piece: bytes) -> bytes:
        (old,) = struct.unpack_from(">H", piece, 2)
        return _replaced(
            piece, 2, struct.pack(">H", int(rng.choice([0, 1, 2, old - 1, old + 1, old + 3, 65535])) % 65536)
        )

    return _edited(data, rng, edit)


def segment_lost(data: bytes, rng: Rng) -> bytes:
    pieces = pieces_of(data)
    del pieces[_pick(pieces, rng)]
    return _joined(pieces)


def segment_twice(data: bytes, rng: Rng) -> bytes:
    pieces = pieces_of(data)
    pieces.insert(int(rng.integers(1, len(pieces))), pieces[_pick(pieces, rng)])
    return _joined(pieces)


def segments_swapped(data: bytes, rng: Rng) -> bytes:
    pieces = pieces_of(data)
    i, j = _pick(pieces, rng), _pick(pieces, rng)
    pieces[i], pieces[j] = pieces[j], pieces[i]
    return _joined(pieces)


def segment_added(data: bytes, rng: Rng) -> bytes:
    contents = (
        segment(APP14, b"Adobe\0\x64\0\0\0\0" + bytes([int(rng.integers(3))])), segment(APP14, b"Adobe\0"),
        segment(APP0, b"JFIF\0"), segment(APP0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        segment(0xE1, b"Exif\0\0II*\0" + rng.bytes(40)),
        segment(0xE2, b"MPF\0II*\0\x08\0\0\0" + rng.bytes(40)), segment(0xE2, b"ICC_PROFILE\0\1\1" + rng.bytes(40)),
        segment(0xE2, b"ICC_PROFILE\0"), segment(0xED, b"Photoshop 3.0\x008BIM" + rng.bytes(20)), segment(DRI, b"\0\3"),
        segment(DRI, b"\0\0"), segment(DRI, b"\0\0\0"), segment(DQT, b"\1" + rng.bytes(64)),
        segment(DQT, b"\x11" + rng.bytes(128)), segment(0xFE, b""), segment(0xDC, b"\0\x10"), segment(0xCC, b"\0\x10"),
        b"\xff" * 5, b"\0", b"\xff\0", b"\xff\xd2", b"\xff\x01",
    )  # fmt: skip
    pieces = pieces_of(data)
    pieces.insert(int(rng.integers(1, len(pieces))), (0, contents[int(rng.integers(len(contents)))]))
    return _joined(pieces)


def marker_renamed(data: bytes, rng: Rng) -> bytes:
    return _edited(data, rng, lambda p: _replaced(p, 1, bytes([int(rng.choice(_MARKERS))])))


def frame_changed(data: bytes, rng: Rng) -> bytes:
    """Change the bits, sides or number of components, or a component's identifier, sampling or table."""

    def edit(piece: bytes) -> bytes:
        at = int(rng.integers(4, len(piece)))
        values = {4: (12, 16, 2), 5: (0, 1, 2), 7: (0, 1, 2), 9: (1, 2, 3, 4, 0)}.get(at)
        if values is None and (at - 11) % 3 == 0:
            values = (0x11, 0x21, 0x12, 0x22, 0x41, 0x14, 0x44, 0x31, 0x13, 0x42, 0x10, 0x01, 0x00, 0x51)
        values = values or (0, 1, 2, 3, 4, piece[at] ^ 1, piece[at] ^ 4, piece[at] ^ 16, 255)
        return _replaced(piece, at, bytes([int(rng.choice(values))]))

    return _edited(data, rng, edit, 0xC0, 0xC1, 0xC2)


def scan_header_changed(data: bytes, rng: Rng) -> bytes:
    def edit(piece: bytes) -> bytes:
        at = int(rng.integers(4, 2 + struct.unpack_from(">H", piece, 2)[0]))
        return _replaced(
            piece, at, bytes([int(rng.choice([0, 1, 2, 3, 0x10, 0x11, 0x01, 0x22, 5, 63, 64, piece[at] ^ 1]))])
        )

    return _edited(data, rng, edit, SOS)


def end_changed(data: bytes, rng: Rng) -> bytes:
    ends = (
        b"", b"\xff", b"\xff\xff\xd9", b"\0\xff\xd9", b"\xff\xd9\xff\xd9", b"\xff\xd0\xff\xd9", b"\xff\xd8\xff\xd9",
        b"\xff\x27\xff\xd9", b"\xff\xd9\0", b"\xff\0\xff\xd9", bytes(500) + b"\xff\xd9", b"\xff\xd8",
    )  # fmt: skip
    pieces = pieces_of(data)
    pieces[-1] = EOI, ends[int(rng.integers(len(ends)))]
    return _joined(pieces)


def between_scans(data: bytes, rng: Rng) -> bytes:
    pieces = pieces_of(data)
    scans = [i for i, (marker, _) in enumerate(pieces) if marker == SOS]
    i, draw = scans[int(rng.integers(len(scans)))], int(rng.integers(4))
    if draw == 0:
        del pieces[i:-1]  # the scans that refine the image
    elif draw == 1:
        pieces.insert(i, pieces[int(rng.choice(scans))])
    elif draw == 2:
        j = int(rng.choice(scans))
        pieces[i], pieces[j] = pieces[j], pieces[i]
    else:
        pieces.insert(i + 1, (0xFE, segment(0xFE, b"text")))
    return _joined(pieces)


MUTATIONS = [
    marker_in_scan, marker_in_scan, stuffing_becomes_marker, inserted_in_scan, entropy_flipped, entropy_cut,
    *[restart_changed] * 6,  # few files have restart markers
    segment_byte, segment_byte, segment_length, segment_lost, segment_twice, segments_swapped, segment_added,
    segment_added, marker_renamed, frame_changed, frame_changed, scan_header_changed, end_changed, between_scans,
]  # fmt: skip
