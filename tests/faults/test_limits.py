"""A few rounds of limits.py, and tests with a low limit of open files or threads."""

import os
import threading

import pytest
import torch
from helpers import make_folder
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.engine.dali.pipeline import DecodePipeline
from faults import limits
from faults.limits import KILLED, LIMITS, RIGHT, STORAGES, Round, make_files, round_of, run_round

ROUNDS = 2
FEW_FILES = Round("folder", "files", 40, 0, False, 40, 0, "skip", False)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("limits")
    make_files(root)
    return root


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("limit", LIMITS)
def test_epoch_under_any_limit_is_correct_or_raises(root, limit):
    numbers = [number for number in range(1000) if round_of(number).limit == limit][:ROUNDS]
    wrong = [run_round(number, root)[0] for number in numbers]
    assert not any(wrong), "\n".join(wrong)


def _numbers_of(*wanted: Round) -> list[int]:
    """Return the first rounds with the given limit, value and storage."""
    return [
        next(n for n in range(10**6) if (one := round_of(n))._replace(workers=0, function=False, late=False) == want
             and one.workers == 0 and not one.function and not one.late)
        for want in wanted
    ]  # fmt: skip


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.filterwarnings("ignore")
def test_epoch_with_fewer_open_files_than_samples_in_a_batch_is_complete(root, storage):
    number = _numbers_of(FEW_FILES._replace(storage=storage))[0]
    assert run_round(number, root) == ("", RIGHT)


@pytest.mark.filterwarnings("ignore")
def test_missing_good_images_are_detected(root, monkeypatch):
    number = _numbers_of(FEW_FILES)[0]
    right = limits.expected(round_of(number), root)
    monkeypatch.setattr(limits, "expected", lambda one, root: right[::-1])
    text, _ = run_round(number, root)
    assert "epoch 0 has 40 samples" in text


def _exit_with_status_3(*args):
    os._exit(3)


def test_crash_is_detected(root, monkeypatch):
    monkeypatch.setattr(limits, "_child", _exit_with_status_3)
    assert run_round(_numbers_of(FEW_FILES)[0], root)[0].startswith("ended with status 3")
    assert run_round(_numbers_of(FEW_FILES)[0], root)[1] == KILLED


@pytest.fixture
def loader(tmp_path):
    dataset = DALIImageFolder(make_folder(tmp_path), T.Compose([T.CenterCrop(40), T.PILToTensor()]))
    return DataLoader(dataset, 5, device="cpu", exact=True)


def test_epoch_when_prefetch_thread_cannot_start_is_complete(loader, monkeypatch):
    wanted = [images for images, _ in loader]
    start, refused = threading.Thread.start, []

    def start_other_threads(thread):
        if thread.name == "dali_compat prefetch":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_other_threads)
    assert all(map(torch.equal, [images for images, _ in loader], wanted)) and refused
    monkeypatch.undo()
    assert all(map(torch.equal, [images for images, _ in loader], wanted))


def test_loader_is_usable_after_dali_failed_to_start_threads(loader, monkeypatch):
    def fails(pipeline, template):
        raise RuntimeError("Resource temporarily unavailable")  # DALI's message

    monkeypatch.setattr(DecodePipeline, "_build", fails)
    with pytest.raises(RuntimeError, match=r"^Resource temporarily unavailable; raise .*\(ulimit -u"):
        list(loader)
    monkeypatch.undo()
    assert sum(len(labels) for _, labels in loader) == len(loader.dataset)
