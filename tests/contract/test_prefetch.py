"""Processes that read headers ahead do not change the batches, and end with their epoch."""

import os
import time

import pytest
import torch
from PIL import Image

from contract.both import EXACT, assert_same_epoch, assert_same_pixels, ours, stock
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.data import headers
from dali_compat.data.prefetch import HeaderPrefetcher
from dali_compat.epoch import prefetch_thread
from dali_compat.epoch.epoch import DaliEpoch
from dali_compat.epoch.rows import Rows
from dali_compat.runtime import forks

PATIENCE = 60  # seconds


@pytest.fixture
def prefetchers(monkeypatch) -> list:
    """The prefetchers of epochs, with their processes; created on the CPU and for few files, too."""
    made = []

    def start_prefetcher(self, loader):
        found = HeaderPrefetcher(2)
        made.append((found, [process._process for process in found._processes]))
        end = time.monotonic() + PATIENCE
        while not all(process.is_ready() for process in found._processes):
            assert time.monotonic() < end
            time.sleep(0.01)
        return found

    monkeypatch.setattr(DaliEpoch, "_new_prefetcher", start_prefetcher)
    return made


@pytest.fixture
def header_counts(monkeypatch) -> list:
    """The number of headers that came from processes, for each batch."""
    counts = []
    orig = headers.Headers.add
    monkeypatch.setattr(headers.Headers, "add", lambda self, *args: counts.append(len(args[0])) or orig(self, *args))
    return counts


def test_batches_equal_torchs_if_headers_come_from_processes(exact_folder, prefetchers, header_counts, monkeypatch):
    arguments, read, orig = {"batch_size": 2, "shuffle": True, "num_workers": 2}, [], headers.read_header
    monkeypatch.setattr(headers, "read_header", lambda source: read.append(source) or orig(source))
    torch.manual_seed(3)
    mine = list(ours(exact_folder, **arguments))
    torch.manual_seed(3)
    assert_same_epoch(mine, list(stock(exact_folder, **arguments)))
    assert sum(header_counts) > len(exact_folder) // 2 and len(read) + sum(header_counts) == len(exact_folder)


def test_header_processes_end_with_the_epoch(exact_folder, prefetchers):
    loader = ours(exact_folder, batch_size=2, num_workers=2)
    for _ in loader:
        pass
    batches = iter(loader)
    next(batches)
    del batches
    assert len(prefetchers) == 2
    for prefetcher, processes in prefetchers:
        assert not prefetcher._processes and all(process.returncode is not None for process in processes)


def test_epoch_is_complete_after_the_header_processes_are_killed(exact_folder, prefetchers, header_counts):
    loader = ours(exact_folder, batch_size=1, num_workers=2)
    labels = []
    for _, label, _ in loader:
        labels += label.tolist()
        if len(labels) == 3:
            for process in prefetchers[0][1]:
                process.kill()
                process.wait()
    assert labels == [target for _, target in exact_folder.samples] and sum(header_counts) < len(exact_folder)


def test_file_that_changes_after_its_header_was_read_has_its_new_pixels(own_root, prefetchers, monkeypatch):
    dataset = DALIImageFolder(own_root, EXACT)
    path = dataset.samples[-1][0]
    orig = Rows.receive_headers

    def receive(self):
        requested = bool(self._requested)
        orig(self)
        if requested and path in self.sources:
            Image.new("RGB", (300, 200), (0, 255, 0)).save(path, "JPEG", quality=95)

    monkeypatch.setattr(Rows, "receive_headers", receive)
    images, _ = list(ours(dataset, batch_size=1, num_workers=2))[-1]
    assert_same_pixels(images[0].cpu(), EXACT(Image.open(path).convert("RGB")))


def test_file_that_is_not_an_image_is_named_in_error_and_warning(own_root, prefetchers):
    dataset = DALIImageFolder(own_root, EXACT)
    path = dataset.samples[-1][0]
    with open(path, "wb") as file:
        file.write(os.urandom(1000))
    with pytest.raises(ImageReadError, match=os.path.basename(path)):
        list(ours(dataset, batch_size=1, num_workers=2))
    loader = DataLoader(dataset, 1, num_workers=2, device="cpu", on_error="skip")
    with pytest.warns(UserWarning, match=os.path.basename(path)):
        assert len(list(loader)) == len(dataset) - 1


def test_lock_that_was_never_released_does_not_block_the_epoch(image_root, monkeypatch):
    """A signal handler may raise between the acquisition of a lock and the with block."""
    monkeypatch.setattr(prefetch_thread, "_PATIENCE", 0.2)
    loader = ours(DALIImageFolder(image_root, EXACT), 2, device="cpu")
    iterator = iter(loader)
    next(iterator)
    for lock in list(forks._all):
        lock.acquire()
    try:
        assert len(list(iterator)) == 11
    finally:
        forks.unlock_all()
