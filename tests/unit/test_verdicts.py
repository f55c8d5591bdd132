"""data/verdicts: words hold for the bytes that they are about, and for no others."""

import threading

import numpy as np
import pytest

from dali_compat.data.verdicts import ENGINES, PILLOWS, Verdicts, checksums, decoders, hold

RNG = np.random.default_rng(0)
FILES = [RNG.integers(0, 256, count, np.uint8) for count in (8, 9, 15, 16, 17, 1000, 1003)]
MARKS = RNG.integers(0, 1 << 63, len(FILES), np.uint64)


def test_words_keep_both():
    for decoder in (ENGINES, PILLOWS):
        made = checksums(FILES, MARKS)
        words = made | np.uint8(decoder)
        assert words.dtype == np.uint64 and (decoders(words) == decoder).all() and hold(words, made).all()
        assert not hold(words, np.roll(made, 1)).any()


@pytest.mark.parametrize("number", range(len(FILES)))
def test_any_other_byte_is_another_checksum(number):
    (before,) = checksums(FILES[number : number + 1], MARKS[:1])
    for at in range(len(FILES[number])):
        for bit in range(8):
            file = FILES[number].copy()
            file[at] ^= 1 << bit
            assert checksums([file], MARKS[:1])[0] != before, (at, bit)


def test_other_lengths_and_marks_are_other_checksums():
    zeros = [np.zeros(count, np.uint8) for count in range(40)]
    marks = np.zeros(40, np.uint64)
    assert len(set(checksums(zeros, marks).tolist())) >= 33  # those without eight bytes are no images
    assert len(set(checksums(zeros[-1:] * 40, np.arange(40, dtype=np.uint64)).tolist())) == 40


def test_bytes_at_odd_places_have_the_same():
    whole = np.concatenate([np.zeros(3, np.uint8), FILES[5]])
    assert checksums([whole[3:]], MARKS[:1]) == checksums([FILES[5]], MARKS[:1])


def test_no_files():
    assert checksums([], np.zeros(0, np.uint64)).shape == (0,)


def test_what_is_kept():
    verdicts = Verdicts()
    index, words = (
        np.array([3, 100, 7]),
        checksums(FILES[:3], MARKS[:3]) | np.array([ENGINES, PILLOWS, ENGINES], np.uint8),
    )
    assert not verdicts.words(index).any()
    verdicts.put(index, words)
    assert verdicts.words(index).tolist() == words.tolist() and not verdicts.words(np.array([0, 5000])).any()
    verdicts.forget(100)
    verdicts.forget(np.array([7, 8]))
    assert verdicts.of(101).nonzero()[0].tolist() == [3]


def test_several_threads_put_while_it_grows():
    verdicts, count = Verdicts(), 4000

    def put(begin):
        for i in range(begin, count, 4):
            verdicts.put(np.array([i]), np.array([i << 2 | 1], np.uint64))

    threads = [threading.Thread(target=put, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (verdicts.words(np.arange(count)) == np.arange(count) * 4 + 1).all()
