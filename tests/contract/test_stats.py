"""loader.stats(): what was given is counted to the sample, and waiting is seen where it is."""

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
    """24 samples that torch's own loader has to give."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index


class Stream(data.IterableDataset):
    """The same, without a length."""

    def __iter__(self):
        return iter([Plain()[i] for i in range(24)])


class Held(Plain):
    """Its samples come once a file is there."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, index):
        _until_there(self.file)
        return super().__getitem__(index)


def _until_there(file):
    while not file.exists():
        time.sleep(0.01)


def _arrays():
    return DALIArrayDataset(torch.zeros(24, 8, 8, 3, dtype=torch.uint8), list(range(24)), T.PILToTensor())


ROUTES = {"DALI": None, "resident": _arrays, "torch's own": Plain}


@pytest.fixture(params=ROUTES)
def dataset(request, folder):
    """24 samples, on each of the three routes."""
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
        given = [len(batch[0]) for batch in loader]
        assert given == [5] * 4 + [4] * (not drop_last)
        assert _counts(loader) == (epoch, epoch * len(given), epoch * sum(given))
    assert loader.stats().in_flight == 0


def test_an_epoch_that_is_broken_off_counts_what_it_gave(dataset):
    loader = _loader(dataset, 5)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    assert _counts(loader) == (1, 2, 10)
    list(loader)
    assert _counts(loader) == (2, 7, 34)


def test_bytes_are_those_of_the_images(dataset):
    loader = _loader(dataset, 5)
    given = sum(batch[0].nbytes for batch in loader)
    assert loader.stats().bytes == given > 0


FLIP = T.RandomHorizontalFlip(1.0)


def _pair(image):
    return [SMALL(image), {"second": FLIP(SMALL(image))}]


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"num_workers": 1}, {"on_error": "skip"}])
@pytest.mark.parametrize("route", ["DALI", "resident", "DALI, custom"])
def test_bytes_are_those_of_all_views(folder, route, options):
    """Lists and dicts of these, too."""
    folder.transform = _pair
    arrays = DALIArrayDataset(torch.zeros(24, 40, 50, 3, dtype=torch.uint8), list(range(24)), _pair)
    dataset = {"DALI": folder, "resident": arrays, "DALI, custom": Wrapped(folder)}[route]
    loader = _loader(dataset, **{"batch_size": 5} | options)
    assert loader.explain().startswith(route.partition(",")[0])
    given = [nbytes(batch[0]) for batch in loader]
    one = nbytes(SMALL(Image.new("RGB", (70, 70))))
    assert loader.stats().bytes == sum(given) == 24 * 2 * one


def nbytes(images) -> int:
    return sum(image.nbytes for image in tree_leaves(images))


@pytest.mark.parametrize("collate", [lambda samples: samples, lambda samples: {"image": samples[0][0]}, len])
def test_a_collate_fn_changes_no_count(dataset, collate):
    loader = _loader(dataset, 5, collate_fn=collate)
    list(loader)
    assert _counts(loader) == (1, 5, 24)


def test_samples_without_batches_count_one_each(dataset):
    loader = _loader(dataset, None)
    list(loader)
    assert _counts(loader) == (1, 24, 24)


@pytest.mark.parametrize("options", [{}, dict(num_workers=2)])
def test_a_stream_is_counted(options):
    loader = _loader(Stream(), 5, **options)
    batches = list(loader)
    assert _counts(loader) == (1, len(batches), sum(len(images) for images, _ in batches))


@pytest.mark.parametrize("storage", ARCHIVES)
def test_archives_are_counted(own_root, storage, tmp_path):
    loader = ours(stored(own_root, storage, tmp_path)(EXACT), 3, device="cpu")
    list(loader)
    assert _counts(loader) == (1, 3, 8)


def test_a_batch_that_raises_is_not_counted(own_root):
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
def test_on_error_counts_what_is_left(own_root, policy, batches, images, with_function):
    """Of the second batch nothing is left, and of the third one sample: on the DALI route, with a function of the
    user's, and with torch's own loader."""
    transform = T.Compose([*EXACT.transforms, T.Lambda(_same)]) if with_function else EXACT
    dataset = DALIImageFolder(own_root, transform)
    for index in (2, 3, 4):
        Path(dataset.samples[index][0]).write_bytes(b"bad")
    for made in (dataset, Wrapped(dataset)):
        loader = _loader(made, 2, on_error=policy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BadImageWarning)
            given = list(loader)
        assert (len(given), sum(len(images) for images, _ in given)) == (batches, images)
        assert _counts(loader) == (1, batches, images)


def _same(image):
    return image


def test_two_iterators_at_a_time_add_up(dataset):
    loader = _loader(dataset, 6)
    for _ in zip(loader, loader, strict=True):
        pass
    assert _counts(loader) == (2, 8, 48)


def test_threads_add_up(dataset):
    loader = _loader(dataset, 4)
    threads = [threading.Thread(target=list, args=[iter(loader)]) for _ in range(9)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert loader.stats().batches <= 54
    assert _counts(loader) == (9, 54, 216)


def test_reset_begins_anew(dataset):
    loader = _loader(dataset, 5)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats(reset=True)[:3] == (1, 1, 5)
    list(iterator)
    assert loader.stats(reset=True)[:3] == (0, 4, 19)
    assert loader.stats()._replace(held=0, peak=0) == LoaderStats()


def test_copies_count_for_themselves(dataset):
    loader = _loader(dataset, 5)
    list(loader)
    for made in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert _counts(made) == (0, 0, 0)
        list(made)
        assert _counts(made) == _counts(loader) == (1, 5, 24)


# ---- in flight, held


def test_batches_in_flight(folder):
    loader = ours(folder, 4, device="cpu", num_workers=1, prefetch_factor=3)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().in_flight == 3
    list(iterator)
    assert loader.stats().in_flight == 0


def test_batches_that_workers_were_asked_for():
    loader = _loader(Plain(), 4, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    assert loader.stats().in_flight == 2
    list(iterator)
    assert loader.stats().in_flight == 0


def test_batches_that_are_computed_ahead():
    loader = _loader(_arrays(), 4)
    iterator = iter(loader)
    next(iterator), next(iterator)
    stats = loader.stats()
    data_set, ahead = 24 * 8 * 8 * 3, 20 * 8 * 8 * 3  # a copy with channels first, and what is behind the first batch
    assert (stats.in_flight, stats.held) == (4, data_set + ahead)
    del iterator
    stats = loader.stats()
    assert (stats.in_flight, stats.held, stats.peak) == (0, data_set, data_set + ahead)


def test_the_cache_is_held(folder):
    loader = ours(folder, 4, device="cpu", cache=1 << 30)
    list(loader)
    held = loader.stats().held
    assert held == sum(image.nbytes for image in loader._route.cache._images.values()) > 0
    loader.close()
    assert loader.stats()[9:11] == (0, held)


# ---- times


def _next_waits(loader, within, file) -> None:
    """Its first batch can be made when the calling thread has waited for it for SLEEP."""
    iterator = iter(loader)
    with while_within(within, lambda: (time.sleep(SLEEP), file.touch())):
        next(iterator)


def test_waiting_for_a_function_is_seen(image_root, tmp_path):
    """In processes, which the calling thread waits for."""
    file = tmp_path / "there"

    def late(image):
        if torch.utils.data.get_worker_info() is not None:
            _until_there(file)
        return image

    transform = T.Compose([T.Lambda(late), *SMALL.transforms])
    loader = _loader(DALIImageFolder(image_root, transform), 4, num_workers=1, multiprocessing_context="fork")
    _next_waits(loader, _MultiProcessingDataLoaderIter._get_data, file)
    stats = loader.stats()
    assert stats.waited >= SEEN
    assert stats.seconds >= stats.waited + stats.host - 0.01


def test_waiting_for_dali_is_seen(folder, monkeypatch):
    """Its engine is slow to hand over."""
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
def test_waiting_for_torchs_own_loader_is_seen(workers, tmp_path):
    loader = _loader(Held(tmp_path / "there"), 4, num_workers=workers)
    waits = _MultiProcessingDataLoaderIter._try_get_data if workers else _until_there
    _next_waits(loader, waits, tmp_path / "there")
    assert loader.stats().waited >= SEEN and loader.stats().dali == 0


def test_work_of_the_calling_thread_is_no_waiting():
    def busy(samples):
        begin = time.thread_time()
        while time.thread_time() - begin < SLEEP:
            pass
        return samples

    loader = _loader(Plain(), 24, collate_fn=busy)
    list(loader)
    assert loader.stats().host >= SEEN


def test_the_step_is_in_the_seconds_and_in_no_other_time(dataset):
    loader = _loader(dataset, 12)
    for _ in loader:
        time.sleep(SLEEP)
    stats = loader.stats()
    assert stats.seconds >= 2 * SEEN
    assert stats.seconds - stats.waited - stats.host >= 2 * SEEN


# ---- as text


def test_one_line():
    text = str(LoaderStats(2, 1, 1500, 3_000_000, 3.0, 0.5, 0.25, 0.25, 1, 2_000_000, 4_000_000_000))
    assert text == (
        "2 epochs: 1 batch, 1,500 images, 3.0 MB in 3.00 s (500 images/s); next() took 0.75 s (25%): 0.50 s waiting "
        "(0.25 s for DALI), 0.25 s of processor time (250.00 ms a batch); 1 batch in flight; "
        "2.0 MB held, 4.0 GB at most"
    )
    assert "\n" not in str(LoaderStats())


def test_a_line_at_the_end_of_each_epoch_on_request(dataset, caplog):
    loader = _loader(dataset, 5)
    list(loader)
    assert caplog.messages == []
    with caplog.at_level(logging.INFO, "dali_compat"):
        iterator = iter(loader)
        list(iterator)
        assert next(iterator, None) is None
        list(loader)
    assert [line.split(",")[0] for line in caplog.messages] == ["epoch 1: 5 batches", "epoch 2: 5 batches"]


def test_a_batch_costs_a_constant_number_of_calls(dataset, monkeypatch):
    """Whatever its size: no loop over images."""
    from dali_compat.epoch.stats import Meter

    calls = []
    for name in ("now", "spent", "gave"):
        method = getattr(Meter, name)
        monkeypatch.setattr(Meter, name, lambda *args, m=method, n=name: (calls.append(n), m(*args))[1])
    for size in (1, 12):
        calls.clear()
        next(iter(_loader(dataset, size)))
        assert sorted(calls) == ["gave", "now", "spent"]
