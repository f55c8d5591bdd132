"""loader.stats() counts batches and images exactly, and attributes waiting times to their cause."""

import copy
import logging
import pickle
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from helpers import while_within
from PIL import Image
from torch.utils import data
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision import transforms as T

from contract.both import EXACT, SMALL, Wrapped, ours
from contract.storages import ARCHIVES, stored
from dali_compat import BadImageWarning, DALIArrayDataset, DALIImageFolder, DataLoader, ImageReadError, LoaderStats

SLEEP, SEEN = 0.2, 0.15


class Plain(data.Dataset):
    """24 samples without images, so that torch's own loader is used."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index


class Stream(data.IterableDataset):
    """The same samples, without a length."""

    def __iter__(self):
        return iter([Plain()[i] for i in range(24)])


class WaitsForFile(Plain):
    """Its samples are returned after a file has been created."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, index):
        _wait_for(self.file)
        return super().__getitem__(index)


def _wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def _arrays():
    return DALIArrayDataset(torch.zeros(24, 8, 8, 3, dtype=torch.uint8), list(range(24)), T.PILToTensor())


ROUTES = {"DALI": None, "resident": _arrays, "torch's own": Plain}


@pytest.fixture(params=ROUTES)
def dataset(request, folder):
    """24 samples, for each of the three routes."""
    make = ROUTES[request.param]
    return folder if make is None else make()


def _loader(dataset, *args, **options):
    return DataLoader(dataset, *args, **dict(device="cpu", fallback="silent") | options)


def _counts(loader) -> tuple[int, int, int]:
    stats = loader.stats()
    return stats.epochs, stats.batches, stats.images


# ---- counts


@pytest.mark.parametrize("options", [{}, dict(num_workers=2), dict(num_workers=1, persistent_workers=True)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_batches_and_images_are_counted(dataset, options, drop_last):
    loader = _loader(dataset, 5, drop_last=drop_last, **options)
    assert loader.stats() == LoaderStats()
    for epoch in range(1, 3):
        received = [len(batch[0]) for batch in loader]
        assert received == [5] * 4 + [4] * (not drop_last)
        assert _counts(loader) == (epoch, epoch * len(received), epoch * sum(received))
    assert loader.stats().in_flight == 0


def test_abandoned_epoch_counts_the_batches_it_returned(dataset):
    loader = _loader(dataset, 5)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    assert _counts(loader) == (1, 2, 10)
    list(loader)
    assert _counts(loader) == (2, 7, 34)


def test_bytes_are_the_bytes_of_the_images(dataset):
    loader = _loader(dataset, 5)
    received = sum(batch[0].nbytes for batch in loader)
    assert loader.stats().bytes == received > 0


FLIP = T.RandomHorizontalFlip(1.0)


def _pair(image):
    return [SMALL(image), {"second": FLIP(SMALL(image))}]


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"num_workers": 1}, {"on_error": "skip"}])
@pytest.mark.parametrize("route", ["DALI", "resident", "DALI, custom"])
def test_bytes_include_all_views(folder, route, options):
    """This includes nested lists and dicts."""
    folder.transform = _pair
    arrays = DALIArrayDataset(torch.zeros(24, 40, 50, 3, dtype=torch.uint8), list(range(24)), _pair)
    dataset = {"DALI": folder, "resident": arrays, "DALI, custom": Wrapped(folder)}[route]
    loader = _loader(dataset, **{"batch_size": 5} | options)
    assert loader.explain().startswith(route.partition(",")[0])
    received = [nbytes(batch[0]) for batch in loader]
    size_of_one = nbytes(SMALL(Image.new("RGB", (70, 70))))
    assert loader.stats().bytes == sum(received) == 24 * 2 * size_of_one


def nbytes(images) -> int:
    return sum(image.nbytes for image in tree_leaves(images))


@pytest.mark.parametrize("collate", [lambda samples: samples, lambda samples: {"image": samples[0][0]}, len])
def test_counts_do_not_depend_on_collate_fn(dataset, collate):
    loader = _loader(dataset, 5, collate_fn=collate)
    list(loader)
    assert _counts(loader) == (1, 5, 24)


def test_samples_without_batches_count_one_each(dataset):
    loader = _loader(dataset, None)
    list(loader)
    assert _counts(loader) == (1, 24, 24)


@pytest.mark.parametrize("options", [{}, dict(num_workers=2)])
def test_iterable_data_set_is_counted(options):
    loader = _loader(Stream(), 5, **options)
    batches = list(loader)
    assert _counts(loader) == (1, len(batches), sum(len(images) for images, _ in batches))


@pytest.mark.parametrize("storage", ARCHIVES)
def test_archives_are_counted(own_root, storage, tmp_path):
    loader = ours(stored(own_root, storage, tmp_path)(EXACT), 3, device="cpu")
    list(loader)
    assert _counts(loader) == (1, 3, 8)


def test_batch_that_raises_is_not_counted(own_root):
    dataset = DALIImageFolder(own_root, EXACT)
    Path(dataset.samples[2][0]).write_bytes(b"bad")
    loader = ours(dataset, 2, device="cpu")
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ImageReadError):
        next(iterator)
    assert _counts(loader) == (1, 1, 2)
    assert len(list(iterator)) == 2
    assert _counts(loader) == (1, 3, 6)


@pytest.mark.parametrize("policy, batches, images", [("skip", 3, 5), ("replace", 4, 8)])
@pytest.mark.parametrize("with_function", [False, True])
def test_on_error_counts_the_remaining_samples(own_root, policy, batches, images, with_function):
    """The second batch is skipped completely, and the third keeps one sample. The routes are the DALI route, with and
    without a custom function, and torch's own loader."""
    transform = T.Compose([*EXACT.transforms, T.Lambda(_same)]) if with_function else EXACT
    dataset = DALIImageFolder(own_root, transform)
    for index in (2, 3, 4):
        Path(dataset.samples[index][0]).write_bytes(b"bad")
    for made in (dataset, Wrapped(dataset)):
        loader = _loader(made, 2, on_error=policy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BadImageWarning)
            received = list(loader)
        assert (len(received), sum(len(images) for images, _ in received)) == (batches, images)
        assert _counts(loader) == (1, batches, images)


def _same(image):
    return image


def test_counts_of_simultaneous_iterators_add_up(dataset):
    loader = _loader(dataset, 6)
    for _ in zip(loader, loader, strict=True):
        pass
    assert _counts(loader) == (2, 8, 48)


def test_counts_of_threads_add_up(dataset):
    loader = _loader(dataset, 4)
    threads = [threading.Thread(target=list, args=[iter(loader)]) for _ in range(9)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert loader.stats().batches <= 54
    assert _counts(loader) == (9, 54, 216)


def test_reset_starts_again_from_zero(dataset):
    loader = _loader(dataset, 5)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats(reset=True)[:3] == (1, 1, 5)
    list(iterator)
    assert loader.stats(reset=True)[:3] == (0, 4, 19)
    assert loader.stats()._replace(held=0, peak=0) == LoaderStats()


def test_copies_of_a_loader_count_separately(dataset):
    loader = _loader(dataset, 5)
    list(loader)
    for made in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert _counts(made) == (0, 0, 0)
        list(made)
        assert _counts(made) == _counts(loader) == (1, 5, 24)


# ---- batches in flight, and held memory


def test_prefetched_batches_are_in_flight(folder):
    loader = ours(folder, 4, device="cpu", num_workers=1, prefetch_factor=3)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().in_flight == 3
    list(iterator)
    assert loader.stats().in_flight == 0


def test_batches_requested_from_workers_are_in_flight():
    loader = _loader(Plain(), 4, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    assert loader.stats().in_flight == 2
    list(iterator)
    assert loader.stats().in_flight == 0


def test_batches_computed_ahead_are_in_flight_and_held():
    loader = _loader(_arrays(), 4)
    iterator = iter(loader)
    next(iterator), next(iterator)
    stats = loader.stats()
    data_set, ahead = 24 * 8 * 8 * 3, 20 * 8 * 8 * 3  # a copy with channels first, and the batches after the first
    assert (stats.in_flight, stats.held) == (4, data_set + ahead)
    del iterator
    stats = loader.stats()
    assert (stats.in_flight, stats.held, stats.peak) == (0, data_set, data_set + ahead)


# ---- times


def _wait_in_next(loader, within, file) -> None:
    """Make the first batch available after the calling thread has waited for SLEEP seconds."""
    iterator = iter(loader)
    with while_within(within, lambda: (time.sleep(SLEEP), file.touch())):
        next(iterator)


def test_waiting_for_a_transform_in_a_worker_is_counted(image_root, tmp_path):
    file = tmp_path / "there"

    def wait_in_worker(image):
        if torch.utils.data.get_worker_info() is not None:
            _wait_for(file)
        return image

    transform = T.Compose([T.Lambda(wait_in_worker), *SMALL.transforms])
    loader = _loader(DALIImageFolder(image_root, transform), 4, num_workers=1, multiprocessing_context="fork")
    _wait_in_next(loader, _MultiProcessingDataLoaderIter._get_data, file)
    stats = loader.stats()
    assert stats.waited >= SEEN
    assert stats.seconds >= stats.waited + stats.host - 0.01


def test_waiting_for_dali_is_counted(folder, monkeypatch):
    """DALI's share_outputs() is slowed down."""
    from dali_compat.engine.dali.pipeline import DecodePipeline

    build = DecodePipeline._build

    def slow(self, *args):
        build(self, *args)
        share = self._pipe.share_outputs
        self._pipe.share_outputs = lambda **options: (time.sleep(SLEEP), share(**options))[1]

    monkeypatch.setattr(DecodePipeline, "_build", slow)
    loader = ours(folder, 12, device="cpu")
    batches = len(list(loader))
    stats = loader.stats()
    assert batches == 2 and stats.dali >= 2 * SEEN and stats.waited >= 2 * SEEN


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_for_torchs_own_loader_is_counted(workers, tmp_path):
    loader = _loader(WaitsForFile(tmp_path / "there"), 4, num_workers=workers)
    waits = _MultiProcessingDataLoaderIter._try_get_data if workers else _wait_for
    _wait_in_next(loader, waits, tmp_path / "there")
    assert loader.stats().waited >= SEEN and loader.stats().dali == 0


def test_work_of_the_calling_thread_is_counted_as_host_time():
    def busy(samples):
        begin = time.thread_time()
        while time.thread_time() - begin < SLEEP:
            pass
        return samples

    loader = _loader(Plain(), 24, collate_fn=busy)
    list(loader)
    assert loader.stats().host >= SEEN


def test_time_of_the_training_step_is_counted_only_in_seconds(dataset):
    loader = _loader(dataset, 12)
    for _ in loader:
        time.sleep(SLEEP)
    stats = loader.stats()
    assert stats.seconds >= 2 * SEEN
    assert stats.seconds - stats.waited - stats.host >= 2 * SEEN


# ---- text


def test_stats_are_printed_as_one_line():
    text = str(LoaderStats(2, 1, 1500, 3_000_000, 3.0, 0.5, 0.25, 0.25, 1, 2_000_000, 4_000_000_000))
    assert text == (
        "2 epochs: 1 batch, 1,500 images, 3.0 MB in 3.00 s (500 images/s); next() took 0.75 s (25%): 0.50 s waiting "
        "(0.25 s for DALI), 0.25 s of processor time (250.00 ms a batch); 1 batch in flight; "
        "2.0 MB held, 4.0 GB at most"
    )
    assert "\n" not in str(LoaderStats())


def test_stats_are_logged_after_each_epoch_if_logging_is_enabled(dataset, caplog):
    loader = _loader(dataset, 5)
    list(loader)
    assert caplog.messages == []
    with caplog.at_level(logging.INFO, "dali_compat"):
        iterator = iter(loader)
        list(iterator)
        assert next(iterator, None) is None
        list(loader)
    assert [line.split(",")[0] for line in caplog.messages] == ["epoch 1: 5 batches", "epoch 2: 5 batches"]


def test_number_of_meter_calls_does_not_depend_on_the_batch_size(dataset, monkeypatch):
    from dali_compat.epoch.stats import Meter

    calls = []
    for name in ("clocks", "add_time", "count_batch"):
        method = getattr(Meter, name)
        monkeypatch.setattr(Meter, name, lambda *args, m=method, n=name: (calls.append(n), m(*args))[1])
    for size in (1, 12):
        calls.clear()
        next(iter(_loader(dataset, size)))
        assert sorted(calls) == ["add_time", "clocks", "count_batch"]
