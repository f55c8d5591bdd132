"""Headers of many JPEGs at once, against those that are read one at a time."""

from pathlib import Path

import numpy as np
import pytest
from faults import run
from faults.originals import originals, saved

from dali_compat.data.baseline import BaselineJpegs
from dali_compat.data.header import look
from dali_compat.data.headers import facts_of
from dali_compat.data.intact import is_intact

SPACE = 193  # bytes after the last file, without which it is not read
COMMON = ["420", "422", "444", "EXIF", "comment and profile", "gray", "optimised", "quality 100", "quality 5"]


def packed(files: list[bytes], space: int = SPACE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Memory, begins and lengths of adjacent files."""
    lengths = np.array([len(file) for file in files])
    return np.frombuffer(b"".join(files) + bytes(space), np.uint8), np.cumsum(lengths) - lengths, lengths


def compared(files: list[bytes]) -> np.ndarray:
    """Compare the facts of the known files with those of each file. Return which files are known."""
    jpegs = BaselineJpegs(*packed(files))
    headers = [look(np.frombuffer(files[i], np.uint8)) for i in np.flatnonzero(jpegs.known)]
    found = jpegs.facts(np.zeros(len(files), np.int64))
    assert np.array_equal(found, facts_of(headers)) if headers else not len(found)
    return jpegs.known


def test_facts_of_original_files_are_those_of_single_files():
    names, files = zip(*sorted(originals().items()), strict=True)
    known = compared(list(files))
    assert [name.removesuffix(".jpg") for name, one in zip(names, known, strict=True) if one] == COMMON


def test_photos_are_known(photos):
    files = [path.read_bytes() for path in sorted(Path(photos).rglob("*.jp*g"))[:60]]
    assert compared(files).mean() > 0.5


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_known_only_if_single_files_are_intact(seed):
    intact, found = run.compared_headers(1024, 100 + seed)
    assert intact > found > 20


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_files_near_the_end_of_the_memory_are_not_read(count):
    whole = saved("JPEG")
    files = ([whole, whole[:-60], b"", b"\xff\xd8", saved("PNG")] * 8)[:count]
    wholes = [file is whole for file in files]
    assert BaselineJpegs(*packed(files)).known.tolist() == wholes
    known = BaselineJpegs(*packed(files, space=0)).known
    assert known.tolist() == [*wholes[:-1], False][:count]


def test_every_cut_of_a_file_is_as_in_single_files():
    whole = saved("JPEG", quality=20)
    files = [whole[:length] + end for length in range(len(whole) + 1) for end in (b"", b"\xff\xd9")]
    expected = [is_intact(np.frombuffer(file, np.uint8)) for file in files]
    others = [file for file, known, intact in zip(files, compared(files), expected, strict=True) if known != intact]
    assert others == [whole + b"\xff\xd9"] and sum(expected) > 2  # of two end markers only the first counts


def test_every_byte_of_a_header_is_as_in_single_files():
    whole = saved("JPEG", quality=20)
    header = whole.index(b"\xff\xda") + 14
    for value in (0, 1, 0x11, 0xFF):
        compared([whole[:at] + bytes([value]) + whole[at + 1 :] for at in range(header)])


def test_huffman_codes_without_room_are_not_known():
    whole = saved("JPEG")
    at = whole.index(b"\xff\xc4") + 5  # of the numbers of codes by length
    lengths = list(whole[at : at + 16])
    other = bytes([sum(lengths), *[0] * 15])
    assert compared([whole, whole[:at] + other + whole[at + 16 :]]).tolist() == [True, False]


PHOTOSHOP = {b"": True, b"8BIM\4\4\0\0\0\0\0\2ab": True, b"8BIM\4\4\0\0\0\0\0\xffab": False, b"8BIM\4": False}


@pytest.mark.parametrize(("block", "known"), PHOTOSHOP.items())
def test_photoshop_segments_are_known_if_they_are_whole(block, known):
    whole, content = saved("JPEG"), b"Photoshop 3.0\0" + block
    file = whole[:2] + b"\xff\xed" + (len(content) + 2).to_bytes(2, "big") + content + whole[2:]
    assert compared([file]).tolist() == [known]
