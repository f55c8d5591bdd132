"""Verdicts of data/verdicts hold only for the bytes that they were made for."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dali_compat import DALIImageFolder
from dali_compat.data import verdicts as module
from dali_compat.data.headers import headers_of
from dali_compat.data.verdicts import BY_ENGINE, BY_PILLOW, Verdicts, are_valid, decoders
from dali_compat.epoch.epoch import DaliEpoch

RNG = np.random.default_rng(0)
FILES = [RNG.integers(0, 256, count, np.uint8) for count in (8, 9, 15, 16, 17, 1000, 1003)]
HASHES = RNG.integers(0, 1 << 63, len(FILES), np.uint64)


def checksums(files, marks, begin=0):
    """Return the checksums of files stored one after another from ``begin`` on, between random bytes."""
    lengths = np.array([len(file) for file in files], np.int64)
    memory = RNG.integers(0, 256, begin + int(lengths.sum()) + 16, np.uint8)
    memory[begin:-16] = np.concatenate([np.zeros(0, np.uint8), *files])
    return module.checksums(memory, begin + np.cumsum(lengths) - lengths, lengths, marks)


def test_verdict_contains_the_decoder_and_the_checksum():
    for decoder in (BY_ENGINE, BY_PILLOW):
        made = checksums(FILES, HASHES)
        words = made | np.uint8(decoder)
        assert words.dtype == np.uint64 and (decoders(words) == decoder).all() and are_valid(words, made).all()
        assert not are_valid(words, np.roll(made, 1)).any()


@pytest.mark.parametrize("number", range(len(FILES)))
def test_checksum_changes_with_any_bit(number):
    (before,) = checksums(FILES[number : number + 1], HASHES[:1])
    for at in range(len(FILES[number])):
        for bit in range(8):
            file = FILES[number].copy()
            file[at] ^= 1 << bit
            assert checksums([file], HASHES[:1])[0] != before, (at, bit)


def test_checksum_changes_with_length_and_header_hash():
    zeros = [np.zeros(count, np.uint8) for count in range(40)]
    marks = np.zeros(40, np.uint64)
    assert len(set(checksums(zeros, marks).tolist())) >= 33  # fewer than eight bytes are not an image
    assert len(set(checksums(zeros[-1:] * 40, np.arange(40, dtype=np.uint64)).tolist())) == 40


def test_checksum_does_not_depend_on_the_position_in_memory():
    small = [RNG.integers(0, 256, count, np.uint8) for count in range(20)]
    files = [*FILES, *small, *FILES[::-1]]
    marks = np.zeros(len(files), np.uint64)
    single = [checksums([file], marks[:1])[0] for file in files]
    for begin in range(16):
        assert checksums(files, marks, begin).tolist() == single


def test_checksums_of_no_files_are_empty():
    assert checksums([], np.zeros(0, np.uint64)).shape == (0,)


def test_verdicts_are_stored_and_forgotten_by_index():
    verdicts = Verdicts("one")
    index, words = (
        np.array([3, 100, 7]),
        checksums(FILES[:3], HASHES[:3]) | np.array([BY_ENGINE, BY_PILLOW, BY_ENGINE], np.uint8),
    )
    assert not verdicts.get(index).any()
    verdicts.put(index, words)
    assert verdicts.get(index).tolist() == words.tolist() and not verdicts.get(np.array([0, 5000])).any()
    verdicts.forget(100)
    verdicts.forget(np.array([7, 8]))
    assert verdicts.decoders(101).nonzero()[0].tolist() == [3]


def test_put_from_several_threads_while_growing_loses_nothing():
    verdicts, count = Verdicts("one"), 4000

    def put(begin):
        for i in range(begin, count, 4):
            verdicts.put(np.array([i]), np.array([i << 2 | 1], np.uint64))

    threads = [threading.Thread(target=put, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (verdicts.get(np.arange(count)) == np.arange(count) * 4 + 1).all()


# ---- shared with other processes


def verdicts_of(*numbers):
    return np.array(numbers, np.uint64) << np.uint64(2) | np.uint64(BY_ENGINE)


def known(verdicts):
    return (verdicts.get(np.arange(5)) >> np.uint64(2)).tolist()


def test_share_merges_the_verdicts_of_two_processes(tmp_path):
    first, second, other = Verdicts("one"), Verdicts("one"), Verdicts("another")
    file = tmp_path / "list.npz"
    first.put(np.array([0, 1]), verdicts_of(10, 11))
    second.put(np.array([1, 4]), verdicts_of(21, 24))
    for verdicts in (first, second, first, other):
        verdicts.share(file, "samples", 5)
    assert known(second) == [10, 21, 0, 0, 24] and known(first) == [10, 11, 0, 0, 24] and known(other) == [0] * 5
    later = Verdicts("one")
    later.share(file, "samples", 5)
    assert known(later) == [10, 11, 0, 0, 24]


def test_epochs_share_verdicts_when_data_sets_have_the_same_index_file_and_paths(image_root, tmp_path):
    folders = [DALIImageFolder(image_root, index_cache=tmp_path / "index") for _ in range(4)]
    folders[2].samples.reverse()
    folders[3].samples[0] = None, 0
    epoch = SimpleNamespace(plain=set(map(id, folders)), folder="")
    headers_of(folders[0]).verdicts("one").put(np.array([0, 1]), verdicts_of(10, 11))
    for folder in folders:
        DaliEpoch._share(epoch, "one", [folder])
    found = [known(headers_of(folder).verdicts("one")) for folder in folders]
    assert found == [[10, 11, 0, 0, 0], [10, 11, 0, 0, 0], [0] * 5, [0] * 5]


def test_forgotten_verdict_is_not_restored_by_share(tmp_path):
    first, second = Verdicts("one"), Verdicts("one")
    first.put(np.array([3]), verdicts_of(13))
    for verdicts in (first, second):
        verdicts.share(tmp_path / "list.npz", "samples", 5)
    second.forget(3)
    second.share(tmp_path / "list.npz", "samples", 5)
    assert known(second) == [0] * 5


def test_share_ignores_verdicts_of_other_samples(tmp_path):
    first = Verdicts("one")
    first.put(np.arange(5), verdicts_of(*range(10, 15)))
    first.share(tmp_path / "list.npz", "samples", 5)
    for samples, count in (("others", 5), ("samples", 4), ("samples", 6)):
        verdicts = Verdicts("one")
        verdicts.share(tmp_path / "list.npz", samples, count)
        assert not verdicts.get(np.arange(6)).any()


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"nonsense"])
def test_share_replaces_a_damaged_file(tmp_path, damage):
    first = Verdicts("one")
    first.put(np.arange(5), verdicts_of(*range(10, 15)))
    first.share(tmp_path / "list.npz", "samples", 5)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    second = Verdicts("one")
    second.share(tmp_path / "list.npz", "samples", 5)
    assert known(second) == [0] * 5
    first.share(tmp_path / "list.npz", "samples", 5)
    second.share(tmp_path / "list.npz", "samples", 5)
    assert known(second) == [10, 11, 12, 13, 14]


def test_share_with_unwritable_file_keeps_the_verdicts():
    first = Verdicts("one")
    first.put(np.arange(5), verdicts_of(*range(10, 15)))
    first.share(Path("/proc/list.npz"), "samples", 5)
    assert known(first) == [10, 11, 12, 13, 14]
