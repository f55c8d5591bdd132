"""The disk cache of objects: correct contents or a miss, bounded size, crashes, and use by several processes."""

import multiprocessing
import os
import pickle
import signal
import time
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from contract.both import EXACT, assert_same_epoch, ours, stock
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DALIImageList
from dali_compat.remote.client import Client, Fetched
from dali_compat.remote.disk_cache import DiskCache


def make_object(number: int, size: int = 1000, etag: str = "e") -> Fetched:
    return Fetched(np.random.default_rng(number).integers(0, 256, size, np.uint8), etag)


def same(found, expected) -> bool:
    return found is not None and found.etag == expected.etag and np.array_equal(found.data, expected.data)


def files_of(cache) -> list:
    return sorted(path for path in cache.folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path) -> DiskCache:
    return DiskCache(tmp_path / "kept", 100_000)


def test_stored_objects_are_found_with_their_etag(cache):
    assert cache.get("a", None) is None
    cache.put("a", make_object(1))
    cache.put("b", make_object(2, 0, "ä"))
    assert same(cache.get("a", "e"), make_object(1)) and same(cache.get("b", None), make_object(2, 0, "ä"))
    assert cache.get("a", "other") is None
    cache.put("a", make_object(3, etag="other"))
    assert same(cache.get("a", "other"), make_object(3, etag="other"))
    again = pickle.loads(pickle.dumps(cache))
    assert same(again.get("a", None), make_object(3, etag="other"))


def test_a_damaged_or_writable_file_is_a_miss(cache):
    cache.put("a", make_object(1))
    (path,) = files_of(cache)
    whole = path.read_bytes()
    for damaged in (b"", whole[:30], whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1]), b"x" * 1000):
        path.write_bytes(damaged)
        assert cache.get("a", None) is None
    changed = bytearray(whole)
    changed[whole.index(b"e", 45)] ^= 1  # a byte of the etag
    path.write_bytes(changed)
    assert cache.get("a", None) is None
    path.write_bytes(whole)
    assert same(cache.get("a", None), make_object(1))
    path.chmod(0o666)  # writable by other users
    assert cache.get("a", None) is None


def test_least_recently_used_objects_are_evicted(cache):
    for number in range(60):
        cache.put(str(number), make_object(number))
        os.utime(cache._path(str(number)), ns=(number, number))
    assert same(cache.get("0", None), make_object(0))  # updates its last use
    for number in range(60, 120):
        cache.put(str(number), make_object(number))
    total = sum(path.stat().st_size for path in files_of(cache))
    assert 80_000 < total < 105_000
    assert cache.get("0", None) and cache.get("119", None) and cache.get("1", None) is None


def test_old_temporary_files_are_removed(cache):
    cache.put("a", make_object(1))
    left = files_of(cache)[0].parent / ".left.tmp"
    left.write_bytes(bytes(200_000))
    os.utime(left, ns=(1, 1))
    for number in range(5):
        cache.put(str(number), make_object(number))
    assert not left.exists() and cache.get("a", None)


def test_objects_larger_than_the_cache_are_not_stored(cache):
    cache.put("a", make_object(1, 100_001))
    assert files_of(cache) == []


def test_a_full_disk_causes_one_warning(cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="stores no more objects: .*No space left"):
        cache.put("a", make_object(1))
    cache.put("b", make_object(2))
    assert files_of(cache) == [] and cache.get("a", None) is None


def test_invalid_size_and_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a positive number of bytes"):
        DiskCache(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        DiskCache(tmp_path / "file", 10)


def _work(folder, seed) -> None:
    cache, rng = DiskCache(folder, 60_000), np.random.default_rng(seed)
    while True:
        number = int(rng.integers(100))
        found = cache.get(str(number), None)
        assert found is None or same(found, make_object(number))
        if found is None:
            cache.put(str(number), make_object(number))


def test_killed_processes_leave_a_shared_cache_intact(tmp_path):
    """Every object found has the right content."""
    context = multiprocessing.get_context("fork")
    for round_ in range(3):
        processes = [context.Process(target=_work, args=(tmp_path, 10 * round_ + seed)) for seed in range(3)]
        for process in processes:
            process.start()
        until = time.monotonic() + 60
        while len(files_of(DiskCache(tmp_path, 60_000))) < 25 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)  # while they work
        assert all(process.is_alive() for process in processes)
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    cache = DiskCache(tmp_path, 60_000)
    found = [
        number for number in range(100) if (one := cache.get(str(number), None)) and same(one, make_object(number))
    ]
    assert len(found) > 20 and sum(path.stat().st_size for path in files_of(cache)) < 70_000


def requests(server) -> int:
    with urlopen(f"{server.endpoint}/counts") as answer:
        return int(answer.read().decode().partition('"GET": ')[2].partition("}")[0])


def test_later_epochs_and_loaders_read_from_the_disk_cache(bucket, files, tmp_path):
    local = ImageFolder(files / "train", EXACT)
    there = dict(storage_options=bucket.options, disk_cache=(tmp_path, 10**9))
    made = DALIImageFolder(f"{bucket.url}/train", EXACT, **there)
    loader, before = ours(made, 4, num_workers=2, device="cpu"), requests(bucket)
    assert_same_epoch(loader, stock(local, 4))
    assert requests(bucket) == before + len(local) + 1
    assert_same_epoch(loader, stock(local, 4))
    another = DALIImageFolder(f"{bucket.url}/train", EXACT, **there)
    before = requests(bucket)
    assert_same_epoch(ours(another, 4, device="cpu"), stock(local, 4))
    listed = DALIImageList([url for url, _ in made.samples], made.targets, EXACT, **there)
    assert_same_epoch(ours(listed, 4, device="cpu"), stock(local, 4))
    assert torch.equal(another[3][0], local[3][0])
    assert requests(bucket) == before + 1  # requests() itself sends one


def test_an_object_with_a_changed_etag_is_fetched_again(faulty, tmp_path):
    server, _ = faulty
    there = dict(storage_options=server.options, disk_cache=(tmp_path, 10**9))
    made = DALIImageFolder(f"{server.url}/train", EXACT, **there)
    made[4]
    path = files_of_server(server) / "train/class_a/04.jpg"
    whole = path.read_bytes()
    try:
        path.write_bytes((path.parent / "05.jpg").read_bytes())
        again = DALIImageFolder(f"{server.url}/train", EXACT, **there)
        assert torch.equal(again[4][0], made[5][0])
    finally:
        path.write_bytes(whole)


def files_of_server(server):
    from pathlib import Path

    return Path(server._process.args[2])


def test_endpoints_differ_for_equal_buckets_on_different_servers(monkeypatch):
    places = [Client(options).endpoints() for options in ({"endpoint": "a"}, {"endpoint": "b"}, {})]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "c")
    assert len({*places, Client().endpoints(), Client({"config": {"aws_endpoint": "d"}}).endpoints()}) == 5
    assert "secret" not in Client({"secret_access_key": "secret", "endpoint": "a"}).endpoints()
