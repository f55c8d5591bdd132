"""hf:// URLs, with a local fsspec file system in place of huggingface_hub's."""

import os
import shutil
import signal
import time
from pathlib import Path

import fsspec
import programs
import pytest
from contract.both import EXACT, assert_same_epoch, ours, stock
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DALIImageList, DALIWebDataset, ImageReadError
from dali_compat.archives.pack import pack

ROOT = "hf://datasets/user/photos"


class LocalHub(DirFileSystem):
    """Serves a folder under the names that huggingface_hub's file system would use."""

    cachable = False

    def __init__(self, folder: str = "", token: str = "", **kwargs):
        super().__init__(path=folder or os.environ["HUB"], fs=LocalFileSystem(), **kwargs)
        self.token = token

    def cat_file(self, path, start=None, end=None, **kwargs):
        if os.path.exists(os.path.join(self.path, "slow")):
            Path(self.path, "asked").touch()
            time.sleep(3600)
        return super().cat_file(path, start=start, end=end, **kwargs)


@pytest.fixture
def hub(files, tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HUB", str(tmp_path / "hub"))
    before = dict(fsspec.registry)
    fsspec.register_implementation("hf", LocalHub, clobber=True)
    yield Path(shutil.copytree(files, tmp_path / "hub" / "datasets" / "user" / "photos"))
    fsspec.register_implementation("hf", before.get("hf", "huggingface_hub.HfFileSystem"), clobber=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hub_folder_gives_the_batches_of_a_local_one(hub, workers):
    local = ImageFolder(hub / "train", EXACT)
    there = DALIImageFolder(f"{ROOT}/train", EXACT)
    assert (there.classes, there.targets) == (local.classes, local.targets)
    assert [url.removeprefix(ROOT) for url, _ in there.samples] == [p.removeprefix(str(hub)) for p, _ in local.samples]
    for _ in range(2):
        assert_same_epoch(ours(there, 4, num_workers=workers, device="cpu"), stock(local, 4))
    kept = DALIImageFolder(f"{ROOT}/train", EXACT, index_cache=True)
    assert DALIImageFolder(f"{ROOT}/train", EXACT, index_cache=True).samples == kept.samples == there.samples


def test_hub_archives_and_lists_give_the_batches_of_local_ones(hub, tmp_path):
    pack(hub / "train", hub / "all.tar")
    local = ImageFolder(hub / "train", EXACT)
    cache = tmp_path / "kept", 1 << 30
    there = DALIWebDataset(f"{ROOT}/all.tar", EXACT, disk_cache=cache)
    for _ in range(2):
        assert_same_epoch(ours(there, 4, num_workers=1, device="cpu"), stock(local, 4))
    paths = [path.replace(str(hub), ROOT) for path, _ in local.samples]
    assert_same_epoch(ours(DALIImageList(paths, local.targets, EXACT), 4, device="cpu"), stock(local, 4))


def test_missing_and_changed_hub_files_raise(hub):
    there = DALIImageFolder(f"{ROOT}/train", EXACT, storage_options={"token": "topsecret"})
    (hub / "train" / "class_b" / "02.jpg").unlink()
    (hub / "train" / "class_b" / "03.jpg").write_bytes((hub / "train" / "class_b" / "04.jpg").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"cannot read hf://datasets/user/photos/train/class_b/02\.jpg"):
        there[8]
    with pytest.raises(ImageReadError, match="it has changed") as met:
        list(ours(there, 18, device="cpu", on_error="raise", sampler=[9]))
    assert "topsecret" not in f"{met.value} {there!r} {ours(there, device='cpu').explain()}"
    with pytest.raises(OSError, match=r"cannot write hf://.*dali_compat can read from the Hugging Face Hub"):
        there._objects.put(f"{ROOT}/x", b"")


WAITING = """
import fsspec, sys
from remote.test_hub import LocalHub
fsspec.register_implementation("hf", LocalHub, clobber=True)
from dali_compat import DALIImageFolder
dataset = DALIImageFolder("hf://datasets/user/photos/train")
print("begin", flush=True)
dataset[0]
"""


def test_an_interrupt_ends_a_program_that_waits_for_the_hub(hub, tmp_path):
    (tmp_path / "hub" / "slow").touch()
    with programs.Program(WAITING) as program:
        assert program.stdout.readline() == b"begin\n"
        while not (tmp_path / "hub" / "asked").exists():
            time.sleep(0.1)
        begin = time.monotonic()
        os.kill(program.pid, signal.SIGINT)
        _, errors = program.communicate(120)
        assert time.monotonic() - begin < 100 and "KeyboardInterrupt" in errors and program.returncode != 0
