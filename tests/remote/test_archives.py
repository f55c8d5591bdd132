"""Archives in a bucket have the same content as on a local disk, and their images are fetched by range requests."""

import itertools
import json
import os
import pickle
import shutil
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import programs
import pytest
import torch
from archives.test_recordio import with_magic
from contract.both import EXACT, assert_same_epoch, ours, stock
from helpers import make_folder
from torch.utils import data

import dali_compat
from dali_compat import DALIImageFolder, DALIRecordIO, DALIWebDataset, ImageReadError
from dali_compat.archives import files, recordio
from dali_compat.archives.index import Entry
from dali_compat.archives.pack import pack
from dali_compat.runtime.saved import cache_folder
from remote.conftest import retry_config
from remote.server import Running

own_requests = 0
KINDS = {"rec": "DALIRecordIO", "tfrecord": "DALITFRecord", "tar": "DALIWebDataset"}


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dali_compat"


@pytest.fixture(scope="session")
def archives(files, tmp_path_factory) -> Path:
    """Return a folder with archives of train/."""
    root = tmp_path_factory.mktemp("archives")
    (root / "a").mkdir()
    for ending in KINDS:
        pack(files / "train", root / "a" / f"all.{ending}")
    return root


@pytest.fixture
def served(archives, tmp_path):
    """Serve copies of the archives; return the server, their folder and a function that sets faults."""
    root, faults = tmp_path / "served", tmp_path / "faults.json"
    shutil.copytree(archives, root, ignore=shutil.ignore_patterns(".*"))

    def set_faults(now: dict[str, str]) -> None:
        faults.with_suffix(".new").write_text(json.dumps(now))
        faults.with_suffix(".new").replace(faults)

    global own_requests
    own_requests = 0
    set_faults({})
    with Running(root, faults=faults) as server:
        server.options["retry_config"] = retry_config()
        yield server, root, set_faults


def requests(server) -> int:
    """Return the number of requests so far, not counting the calls of this function."""
    global own_requests
    own_requests += 1
    with urlopen(f"{server.endpoint}/counts") as answer:
        return json.load(answer).get("GET", 0) - own_requests


def opened(server, kind: str, *args, **options):
    made = getattr(dali_compat, KINDS[kind])
    return made(f"{server.url}/a/all.{kind}", *args, storage_options=server.options, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_those_of_the_local_archive(served, kind):
    server, root, _ = served
    local = getattr(dali_compat, KINDS[kind])(root / "a" / f"all.{kind}", EXACT, return_index=True)
    there = opened(server, kind, EXACT, return_index=True)
    assert (there.targets, there.classes, len(there)) == (local.targets, local.classes, 18)
    assert there.mostly_jpeg == local.mostly_jpeg
    for array, other in zip(there.read([3, 0, -1]), local.read([3, 0, -1]), strict=True):
        assert array.tobytes() == other.tobytes() and not array.flags.writeable
    assert torch.equal(there[2][0], local[2][0])
    for workers in (0, 2):
        loader = ours(there, 4, num_workers=workers, device="cpu")
        assert "object storage" in loader.explain()
        assert_same_epoch(loader, stock(local, 4))
        assert loader.stats().objects == 18
    mixed = data.ConcatDataset([data.Subset(there, [5, 5, 1]), local])
    assert_same_epoch(
        ours(mixed, 4, device="cpu"), stock(data.ConcatDataset([data.Subset(local, [5, 5, 1]), local]), 4)
    )


def test_torchs_workers_read_a_remote_archive(served):
    server, root, _ = served
    there = opened(server, "tar", EXACT)
    local = DALIWebDataset(root / "a" / "all.tar", EXACT)
    assert_same_epoch(stock(there, 6, num_workers=1, multiprocessing_context="fork"), stock(local, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_is_one_request_and_the_index_is_saved(served, kind, cache_home):
    server, _, _ = served
    opened(server, kind)
    before = requests(server)
    again = opened(server, kind, EXACT)
    assert requests(server) - before == 1  # the file with the names of the classes
    before = requests(server)
    list(ours(again, 6, num_workers=2, device="cpu"))
    assert requests(server) - before == 18
    (index,) = (cache_home / "index").iterdir()
    index.unlink()
    index.mkdir()
    with pytest.warns(UserWarning, match="cannot save the index of"):
        assert len(opened(server, kind)) == 18


def test_an_index_next_to_the_archive_is_used(served, cache_home, monkeypatch):
    server, root, _ = served
    made = opened(server, "tar")
    (index,) = (cache_home / "index").iterdir()
    beside = fetched_index(made)
    shutil.copy(index, root / "a" / beside)
    index.unlink()
    monkeypatch.setattr(files.FetchedFile, "readinto", None)
    assert opened(server, "tar").targets == made.targets
    (root / "a" / beside).write_bytes(b"none")
    with pytest.raises(TypeError):  # the archive is scanned, which fails here
        opened(server, "tar")


def fetched_index(dataset) -> str:
    return Path(Entry(dataset.files[0], dataset._options(dataset.files[0]), dataset._objects).sidecar).name


@pytest.mark.parametrize("idx", [False, True])
def test_images_in_several_parts_are_read_with_small_blocks(served, idx, monkeypatch):
    server, root, _ = served
    monkeypatch.setattr(files, "_BLOCK", 100)
    images = [with_magic(offset, count) for offset in range(4) for count in (1, 2, 5)] + [b"x" * 3, with_magic(0, 7)]
    offsets, at = "", 0
    with open(root / "m.rec", "wb") as file:
        for number, image in enumerate(images):
            offsets += f"{number}\t{at}\n"
            at += file.write(recordio.encode(number, number % 5, image))
    if idx:
        (root / "m.idx").write_text(offsets)
    there = DALIRecordIO(f"{server.url}/m.rec", storage_options=server.options)
    assert [array.tobytes() for array in there.read(range(len(images)))] == images
    parts = [there.part(index) for index in range(len(images))]
    assert [array.tobytes() for array in there._objects.read(parts)] == images
    assert pickle.loads(pickle.dumps(parts[0])).holes == parts[0].holes


def test_archives_are_given_by_braces_and_lists(served):
    server, root, _ = served
    shutil.copy(root / "a" / "all.tar", root / "a" / "all2.tar")
    url = f"{server.url}/a/all"
    for path in (url + "{,2}.tar", [f"{url}.tar", f"{url}2.tar"]):
        there = DALIWebDataset(path, EXACT, storage_options=server.options)
        assert len(there) == 36 and there.files == [f"{url}.tar", f"{url}2.tar"]
        assert torch.equal(there[20][0], there[2][0])
    with pytest.raises(ValueError, match="some paths are URLs"):
        DALIWebDataset([f"{url}.tar", str(root / "a" / "all.tar")], storage_options=server.options)
    with pytest.raises(FileNotFoundError, match=r"cannot read s3://bucket/a/none\.tar"):
        DALIWebDataset(f"{server.url}/a/none.tar", storage_options=server.options)
    with pytest.raises(ValueError, match="LMDB is supported only on local disks"):
        dali_compat.DALILMDB(f"{server.url}/a/all.lmdb")


def test_a_web_servers_archive_is_kept_in_a_disk_cache(served, tmp_path):
    server, root, _ = served
    options = {"client_options": {"allow_http": True}}
    local = DALIWebDataset(root / "a" / "all.tar", EXACT)
    cache = tmp_path / "kept", 1 << 30
    there = DALIWebDataset(server.key("a/all.tar"), EXACT, storage_options=options, disk_cache=cache)
    loader = ours(there, 5, num_workers=1, device="cpu")
    for _ in range(2):
        assert_same_epoch(loader, stock(local, 5))
    before = requests(server)
    list(loader)
    assert requests(server) == before and loader.stats().hits >= 36


FAULTS = {
    "404": (FileNotFoundError, "not found"),
    "403": (OSError, "403 Forbidden"),
    "503": (OSError, "after 3 retries.*503"),
    "truncated": (OSError, ""),
    "reset": (OSError, ""),
    "etag": (ValueError, r"it has changed \(etag .*\); create a new data set"),
}


@pytest.mark.parametrize(
    "kind, fault",
    [*(("tar", fault) for fault in FAULTS), *itertools.product(("rec", "tfrecord"), ("503", "truncated"))],
)
def test_faults_raise_while_reading_and_indexing(served, kind, fault):
    """Faults during reading and indexing raise an error, and the next attempt after the fault succeeds."""
    server, root, set_faults = served
    error, reason = FAULTS[fault]
    key = f"a/all.{kind}"
    there = opened(server, kind, EXACT)
    loader = ours(there, 3, num_workers=1, device="cpu")
    set_faults({key: fault})
    with pytest.raises(ImageReadError, match=rf"cannot read s3://bucket/{key}, bytes \d+ to \d+: .*{reason}") as met:
        list(loader)
    assert isinstance(met.value, error) and "\n" not in str(met.value)
    set_faults({})
    local = getattr(dali_compat, KINDS[kind])(root / "a" / f"all.{kind}", EXACT)
    assert_same_epoch(loader, stock(local, 3))
    shutil.rmtree(cache_folder() / "index")
    if fault not in ("etag", "404"):
        set_faults({key: fault})
        with pytest.raises(ImageReadError, match=f"cannot read s3://bucket/{key}"):
            opened(server, kind)
        set_faults({})
    set_faults({"a/": "503 twice"})
    assert_same_epoch(ours(opened(server, kind, EXACT), 3, num_workers=1, device="cpu"), stock(local, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_archive_is_reported_and_its_index_not_saved(served, kind):
    server, root, _ = served
    path = root / "a" / f"all.{kind}"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(ImageReadError, match=rf"s3://bucket/a/all\.{kind}, .*the file ends"):
        opened(server, kind)
    assert not (cache_folder() / "index").exists()


def test_a_changed_archive_is_indexed_again(served):
    server, root, _ = served
    there = opened(server, "tar", EXACT)
    pack(make_folder(root / "one", classes=1, per_class=1, special=False), root / "one.tar")
    shutil.move(root / "one.tar", root / "a" / "all.tar")
    with pytest.raises(ImageReadError, match="it has changed"):
        there[0]
    assert len(opened(server, "tar")) == 1


def test_credentials_are_in_no_index_and_no_message(served, cache_home):
    server, _, set_faults = served
    secret = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "topsecret", "skip_signature": False}
    there = opened_with(server, secret)
    kept = [path.read_bytes() for path in cache_home.rglob("*") if path.is_file()]
    assert kept and not any(word in one for one in kept for word in (b"AKIAEXAMPLE", b"topsecret"))
    loader = ours(there, 4, device="cpu")
    set_faults({"a/all.tar": "403"})
    with pytest.raises(ImageReadError) as met:
        list(loader)
    texts = f"{met.value} {met.value.__cause__} {there!r} {loader.explain()} {loader.state_dict()}"
    assert "AKIAEXAMPLE" not in texts and "topsecret" not in texts


def opened_with(server, secret):
    return DALIWebDataset(f"{server.url}/a/all.tar", EXACT, storage_options=server.options | secret)


INDEXING = """
import sys
from dali_compat import DALIWebDataset
options = {"endpoint": sys.argv[1], "skip_signature": True, "region": "us-east-1",
           "client_options": {"allow_http": True, "timeout": "600s"}}
print("begin", flush=True)
DALIWebDataset("s3://bucket/a/all.tar", storage_options=options)
"""


def test_an_interrupt_ends_indexing_that_waits_for_the_server(served):
    server, _, set_faults = served
    set_faults({"a/all.tar": "slow"})
    with programs.Program(INDEXING, server.endpoint) as program:
        assert program.stdout.readline() == b"begin\n"
        while '"slow"' not in urlopen(f"{server.endpoint}/counts").read().decode():
            time.sleep(0.1)
        begin = time.monotonic()
        os.kill(program.pid, signal.SIGINT)
        _, errors = program.communicate(120)
        assert time.monotonic() - begin < 100 and "KeyboardInterrupt" in errors and program.returncode != 0


def test_a_folder_and_its_archive_give_equal_batches(served, files, bucket):
    """They contain the same files and are in different places of a bucket."""
    server, _, _ = served
    folder = DALIImageFolder(f"{bucket.url}/train", EXACT, storage_options=bucket.options)
    assert_same_epoch(ours(opened(server, "rec", EXACT), 5, device="cpu"), stock(folder, 5))
