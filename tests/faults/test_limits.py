"""A few rounds of limits.py, and what a low limit of open files or threads does."""

import os
import threading

import pytest
import torch
from helpers import make_folder
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.engine.dali.pipeline import DecodePipeline
from faults import limits
from faults.limits import KILLED, LIMITS, RIGHT, STORAGES, Round, drawn, make_files, tried

ROUNDS = 2
FEW = Round("folder", "files", 40, 0, False, 40, 0, "skip", False)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("limits")
    make_files(root)
    return root


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("limit", LIMITS)
def test_no_limit_makes_an_epoch_wrong(root, limit):
    numbers = [number for number in range(1000) if drawn(number).limit == limit][:ROUNDS]
    wrong = [tried(number, root)[0] for number in numbers]
    assert not any(wrong), "\n".join(wrong)


def _numbers_of(*wanted: Round) -> list[int]:
    """The first rounds that are as wanted in limit, value and storage."""
    return [
        next(n for n in range(10**6) if (one := drawn(n))._replace(workers=0, function=False, late=False) == want
             and one.workers == 0 and not one.function and not one.late)
        for want in wanted
    ]  # fmt: skip


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.filterwarnings("ignore")
def test_all_samples_come_with_fewer_open_files_than_a_batch_has(root, storage):
    number = _numbers_of(FEW._replace(storage=storage))[0]
    assert tried(number, root) == ("", RIGHT)


@pytest.mark.filterwarnings("ignore")
def test_a_batch_that_leaves_good_images_out_is_found(root, monkeypatch):
    number = _numbers_of(FEW)[0]
    right = limits.expected(drawn(number), root)
    monkeypatch.setattr(limits, "expected", lambda one, root: right[::-1])
    text, _ = tried(number, root)
    assert "epoch 0 has 40 samples" in text


def _exits(*args):
    os._exit(3)


def test_a_crash_is_found(root, monkeypatch):
    monkeypatch.setattr(limits, "_child", _exits)
    assert tried(_numbers_of(FEW)[0], root)[0].startswith("ended with status 3")
    assert tried(_numbers_of(FEW)[0], root)[1] == KILLED


@pytest.fixture
def loader(tmp_path):
    dataset = DALIImageFolder(make_folder(tmp_path), T.Compose([T.CenterCrop(40), T.PILToTensor()]))
    return DataLoader(dataset, 5, device="cpu", exact=True)


def test_epoch_without_a_thread_for_prefetching_is_complete(loader, monkeypatch):
    wanted = [images for images, _ in loader]
    start, refused = threading.Thread.start, []

    def start_but_not_ours(thread):
        if thread.name == "dali_compat prefetch":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_not_ours)
    assert all(map(torch.equal, [images for images, _ in loader], wanted)) and refused
    monkeypatch.undo()
    assert all(map(torch.equal, [images for images, _ in loader], wanted))


def test_loader_is_usable_after_dali_could_not_start_its_threads(loader, monkeypatch):
    def fails(pipeline, template):
        raise RuntimeError("Resource temporarily unavailable")  # DALI's words

    monkeypatch.setattr(DecodePipeline, "_build", fails)
    with pytest.raises(RuntimeError, match=r"^Resource temporarily unavailable; raise .*\(ulimit -u"):
        list(loader)
    monkeypatch.undo()
    assert sum(len(labels) for _, labels in loader) == len(loader.dataset)
