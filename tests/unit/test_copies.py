"""data/copies: bytes in memory that is used again."""

import gc

import numpy as np
import pytest

from dali_compat.data import copies
from dali_compat.data.copies import Copies
from dali_compat.data.header import STATED


@pytest.fixture(autouse=True)
def spare(monkeypatch):
    """Of this test alone."""
    kept = []
    monkeypatch.setattr(copies, "_spare", kept)
    monkeypatch.setattr(Copies.__del__, "__defaults__", (kept,))
    return kept


def files(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(1, 256, length, np.uint8) for length in lengths]


def test_they_are_the_files():
    given = files(0, 1, 7, 8, 9, 100, 100_000)
    made = Copies(given)
    assert made.lengths.tolist() == [len(file) for file in given]
    for file, copy, begin in zip(given, made.arrays, made.begins.tolist(), strict=True):
        assert np.array_equal(file, copy) and np.array_equal(file, made.memory[begin : begin + len(file)])
        assert not begin % 8 and not np.shares_memory(file, copy)


def test_stated_bytes_are_those_of_each_with_zeros_behind():
    given = files(10, STATED, 300, 5000)
    made = Copies(given)
    for at in (0, 7, 9, 10, 290, 4999, 10**6):
        stated = made.stated(np.full(4, at, np.int32))
        for file, found in zip(given, stated, strict=True):
            expected = file[at : at + STATED].tobytes().ljust(STATED, b"\0")
            assert found.tobytes() == expected


def test_memory_is_used_again_and_not_before(spare):
    first = Copies(files(100))
    second = Copies(files(200))
    assert not np.shares_memory(first.memory, second.memory)
    place = first.memory
    del first
    gc.collect()
    third = Copies(files(300))
    assert third.memory is place and np.array_equal(second.arrays[0], files(200)[0])
    assert np.array_equal(third.arrays[0], files(300)[0])
    del third
    assert Copies(files(2**22 + 1)).memory is not place  # which is too small
    assert len(spare) == 1


def test_little_memory_is_kept(spare, monkeypatch):
    several = [Copies(files(10)) for _ in range(9)]
    del several
    gc.collect()
    assert len(spare) == 4
    spare.clear()
    monkeypatch.setattr(copies, "_LONGEST", 100)
    Copies(files(10))
    assert not spare
