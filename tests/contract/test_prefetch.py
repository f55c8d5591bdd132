"""Headers that are read for a whole batch change nothing of what comes out."""

import os

import pytest
import torch
from helpers import make_folder
from PIL import Image

from contract.both import EXACT, assert_same_epoch, assert_same_pixels, ours, stock
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.data import headers
from dali_compat.data.sources import PATHS, Form
from dali_compat.engine.dali import header_reader
from dali_compat.epoch import prefetch_thread
from dali_compat.epoch.epoch import DaliEpoch
from dali_compat.epoch.rows import Rows
from dali_compat.runtime import forks


@pytest.fixture
def forced(monkeypatch) -> list:
    """Pipelines that read files for epochs, on the CPU and for a few files, too."""
    made = []

    def new(self, loader):
        made.append(self.route.borrow(self.route.plans[0], self.route.batch_size, Form(PATHS, reads=True), self))
        return header_reader.HeaderReader(made[-1])

    monkeypatch.setattr(header_reader, "_FEW", 2)
    monkeypatch.setattr(DaliEpoch, "_new_prefetcher", new)
    return made


@pytest.fixture
def heard(monkeypatch) -> list:
    """How many files' headers were read together, batch by batch."""
    counts, own = [], header_reader.HeaderReader.result

    def result(self, ticket):
        facts = own(self, ticket)
        counts.append(0 if facts is None else int((facts["kinds"] != 0).sum()))
        return facts

    monkeypatch.setattr(header_reader.HeaderReader, "result", result)
    return counts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, 5])
def test_batches_are_torchs_and_headers_are_read_together(tmp_path, forced, heard, monkeypatch, batch_size, workers):
    dataset = DALIImageFolder(make_folder(tmp_path / "plain", special=False), EXACT, return_index=True)
    arguments, read = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}, []
    own = headers.read_header
    monkeypatch.setattr(headers, "read_header", lambda source: read.append(source) or own(source))
    torch.manual_seed(3)
    mine = list(ours(dataset, **arguments))
    torch.manual_seed(3)
    assert_same_epoch(mine, list(stock(dataset, **arguments)))
    assert sum(heard) > 0.6 * len(dataset) and len(read) + sum(heard) == len(dataset)


def test_pipelines_that_read_files_end_with_the_epoch(exact_folder, forced):
    loader = ours(exact_folder, batch_size=2, num_workers=2)
    for _ in loader:
        pass
    batches = iter(loader)
    next(batches)
    del batches
    assert len(forced) == 2 and not any(pipeline.usable for pipeline in forced)


def test_a_batch_with_a_missing_file_is_read_one_by_one(own_root, forced, heard):
    dataset = DALIImageFolder(own_root, EXACT)
    path = dataset.samples[1][0]
    os.remove(path)
    loader = DataLoader(dataset, 4, num_workers=2, device="cpu", on_error="skip")
    with pytest.warns(UserWarning, match=os.path.basename(path)):
        assert sum(len(labels) for _, labels in loader) == len(dataset) - 1
    assert heard[0] == 0


def test_a_data_set_of_other_files_is_read_once(own_root, forced, heard):
    dataset = DALIImageFolder(own_root, EXACT)
    for path, _ in dataset.samples:
        Image.new("RGB", (40, 50), (0, 99, 0)).save(path, "PNG")
    assert sum(len(labels) for _, labels in ours(dataset, batch_size=2, num_workers=0)) == len(dataset)
    assert 0 < len(heard) < len(dataset) // 2 and sum(heard) == 0


def test_a_file_that_changes_after_the_look_comes_out_as_it_is_now(own_root, forced, monkeypatch):
    dataset = DALIImageFolder(own_root, EXACT)
    path = dataset.samples[-1][0]
    own = Rows.receive

    def receive(self):
        requested = bool(self._requested)
        own(self)
        if requested and path in self.sources:
            Image.new("RGB", (300, 200), (0, 255, 0)).save(path, "JPEG", quality=95)

    monkeypatch.setattr(Rows, "receive", receive)
    images, _ = list(ours(dataset, batch_size=2, num_workers=2))[-1]
    assert_same_pixels(images[-1].cpu(), EXACT(Image.open(path).convert("RGB")))


def test_a_file_that_is_no_image_is_named(own_root, forced):
    dataset = DALIImageFolder(own_root, EXACT)
    path = dataset.samples[-1][0]
    with open(path, "wb") as file:
        file.write(os.urandom(1000))
    with pytest.raises(ImageReadError, match=os.path.basename(path)):
        list(ours(dataset, batch_size=2, num_workers=2))
    loader = DataLoader(dataset, 2, num_workers=2, device="cpu", on_error="skip")
    with pytest.warns(UserWarning, match=os.path.basename(path)):
        assert sum(len(labels) for _, labels in loader) == len(dataset) - 1


def test_a_lock_that_an_exception_of_a_signals_handler_left_is_released(image_root, monkeypatch):
    """Python may raise it between the lock's acquisition and the block."""
    monkeypatch.setattr(prefetch_thread, "_PATIENCE", 0.2)
    loader = ours(DALIImageFolder(image_root, EXACT), 2, cache=1 << 20, device="cpu")
    iterator = iter(loader)
    next(iterator)
    for lock in list(forks._all):
        lock.acquire()
    try:
        assert len(list(iterator)) == 11
    finally:
        forks.unlock_all()
