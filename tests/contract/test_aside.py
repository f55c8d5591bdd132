"""The prefetch thread: which code runs in it, and how it ends."""

import gc
import os
import threading
import time

import programs
import pytest
import torch
from torch.utils import data
from torchvision import transforms as T

from contract.both import EXACT, assert_same_pixels, ours, pixels, said, stock
from contract.children import call_in_child
from dali_compat import DALIImageFolder, DataLoader, on_batch, register
from dali_compat.epoch.dali_batch import DaliBatch
from dali_compat.epoch.prefetch_thread import PrefetchThread
from dali_compat.runtime import forks

PATIENCE = 60  # seconds


@pytest.fixture
def thread_ids() -> set:
    """Identifiers of the threads that ran the user's code."""
    return set()


_earlier_threads: set[threading.Thread] = (
    set()
)  # threads left by earlier tests, such as by an exception in an iterator's last lines


def _prefetch_threads() -> list[threading.Thread]:
    there = [thread for thread in threading.enumerate() if thread.name.startswith("dali_compat prefetch")]
    return [thread for thread in there if thread not in _earlier_threads]


def _wait_until(condition) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def _no_prefetch_threads() -> bool:
    return _wait_until(lambda: not _prefetch_threads())


@pytest.fixture(autouse=True)
def check_no_thread_remains():
    gc.collect()
    _earlier_threads.clear()
    _earlier_threads.update(_prefetch_threads())
    yield
    gc.collect()
    assert _no_prefetch_threads()


# ---- code that runs in the thread


def test_batches_are_prepared_in_one_other_thread(exact_folder, monkeypatch):
    """Check the premise of the tests below."""
    threads, prepare = set(), DaliBatch.prepare
    monkeypatch.setattr(DaliBatch, "prepare", lambda batch: (threads.add(threading.get_ident()), prepare(batch))[1])
    assert_same_pixels(pixels(ours(exact_folder, 5, device="cpu")), pixels(stock(exact_folder, 5)))
    assert len(threads) == 1 and threading.get_ident() not in threads


class RecordsThread:
    def __init__(self, thread_ids, function):
        self.thread_ids, self.function = thread_ids, function

    def __call__(self, *args):
        self.thread_ids.add(threading.get_ident())
        return self.function(*args)


class RecordingList(list):
    """A list whose reads record the thread."""

    def __init__(self, thread_ids, values):
        super().__init__(values)
        self.thread_ids = thread_ids

    def __getitem__(self, at):
        self.thread_ids.add(threading.get_ident())
        return super().__getitem__(at)


def _recording_iterator(thread_ids, values):
    for value in values:
        thread_ids.add(threading.get_ident())
        yield value


class RecordingIterable:
    def __init__(self, thread_ids, values):
        self.thread_ids, self.values = thread_ids, values

    def __iter__(self):
        return _recording_iterator(self.thread_ids, self.values)


class Doubled(torch.nn.Module):
    """A transform registered with on_batch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, image):
        return image


def _registered(root, thread_ids):
    register(Doubled, consumes="function")(lambda t, spec: on_batch(t.function, spec))
    function = RecordsThread(thread_ids, lambda images: images)
    return ours(DALIImageFolder(root, T.Compose([*EXACT.transforms, Doubled(function)])), 3, device="cpu")


def _lambda(root, thread_ids):
    transform = T.Compose([*EXACT.transforms, T.Lambda(RecordsThread(thread_ids, lambda image: image))])
    return DataLoader(DALIImageFolder(root, transform), 3, device="cpu", fallback="silent")


LOADERS = {
    "sampler": lambda root, thread_ids: ours(
        DALIImageFolder(root, EXACT), 3, sampler=RecordingIterable(thread_ids, range(20)), device="cpu"
    ),
    "batch_sampler": lambda root, thread_ids: ours(
        DALIImageFolder(root, EXACT),
        batch_sampler=RecordingIterable(thread_ids, [[i, i + 1] for i in range(9)]),
        device="cpu",
    ),
    "collate_fn": lambda root, thread_ids: ours(
        DALIImageFolder(root, EXACT), 3, collate_fn=RecordsThread(thread_ids, data.default_collate), device="cpu"
    ),
    "target_transform": lambda root, thread_ids: ours(
        DALIImageFolder(root, EXACT, RecordsThread(thread_ids, int)), 3, device="cpu"
    ),
    "Lambda": _lambda,
    "Subset.indices": lambda root, thread_ids: ours(
        data.Subset(DALIImageFolder(root, EXACT), RecordingList(thread_ids, range(20))), 3, device="cpu"
    ),
    "on_batch": _registered,
}


@pytest.mark.parametrize("case", LOADERS)
def test_the_users_code_runs_in_the_callers_thread(image_root, thread_ids, case):
    loader = LOADERS[case](image_root, thread_ids)
    assert loader.explain().startswith("DALI route")
    for _ in range(2):
        assert len(list(loader)) > 5
    assert thread_ids == {threading.get_ident()}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_batches_equal_torchs_under_any_grad_mode(exact_folder, mode):
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = list(ours(exact_folder, 5, device="cpu"))
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert not any(images.requires_grad for images, _, _ in found)
        assert_same_pixels([images for images, _, _ in found], pixels(stock(exact_folder, 5)))
        for images, labels, _ in found:
            images.add_(1), labels.add_(1)


# ---- errors in the thread


@pytest.mark.parametrize("work", ["start", "prepare"])
def test_an_error_is_raised_with_its_batch_and_the_epoch_continues(exact_folder, monkeypatch, work):

    class Broken(Exception):
        pass

    inner = {"start": "_locate", "prepare": "_images"}[work]
    function, raised = getattr(DaliBatch, inner), []

    def failing(batch):
        if batch.indices[0] == 10 and not raised:
            raised.append(threading.get_ident())
            raise Broken("of the third batch")
        return function(batch)

    monkeypatch.setattr(DaliBatch, inner, failing)
    loader = ours(exact_folder, 5, device="cpu")
    iterator, wanted = iter(loader), pixels(stock(exact_folder, 5))
    found = [next(iterator)[0], next(iterator)[0]]
    with pytest.raises(Broken, match="third"):
        next(iterator)
    found += [batch[0] for batch in iterator]
    assert_same_pixels(found, wanted[:2] + wanted[3:])
    assert_same_pixels(pixels(loader), wanted)
    assert raised and (work == "start" or raised != [threading.get_ident()])


# ---- how the thread ends


@pytest.mark.parametrize("batches", [1, 2, 5, 6])
def test_thread_ends_when_its_iterator_is_deleted(exact_folder, batches):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    for _ in range(batches):
        next(iterator, None)
    assert len(_prefetch_threads()) <= 1 and (batches > 4 or _prefetch_threads())
    del iterator
    assert _no_prefetch_threads()


def test_threads_end_when_many_epochs_are_abandoned(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    for _ in range(50):
        next(iter(loader))
    assert _no_prefetch_threads()
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


def test_thread_ends_when_its_iterator_is_in_a_reference_cycle(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    for _ in range(5):
        cycle = [iter(loader)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert _no_prefetch_threads()


@pytest.fixture
def held(monkeypatch):
    """An event that DaliBatch.prepare waits for."""
    event, started, prepare = threading.Event(), threading.Event(), DaliBatch.prepare

    def slow(batch):
        started.set()
        assert event.wait(PATIENCE)
        prepare(batch)

    monkeypatch.setattr(DaliBatch, "prepare", slow)
    event.started = started
    yield event
    event.set()


def test_close_while_the_thread_works_ends_the_epoch(exact_folder, held):
    loader = ours(exact_folder, 5, device="cpu")
    iterator = iter(loader)
    next(iterator)
    assert held.started.wait(PATIENCE)
    loader.close()
    held.set()
    with pytest.raises(RuntimeError, match="the loader was closed during this epoch"):
        next(iterator)
    del iterator
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


def test_fork_waits_for_the_thread_and_the_child_starts_another(exact_folder, held):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    assert held.started.wait(PATIENCE)
    threading.Timer(0.2, held.set).start()
    kind, found = call_in_child(lambda: [batch.sum().item() for batch in pixels(ours(exact_folder, 5, device="cpu"))])
    wanted = pixels(stock(exact_folder, 5))
    assert (kind, found) == ("result", [batch.sum().item() for batch in wanted])
    assert_same_pixels([batch[0] for batch in iterator], wanted[1:])


@pytest.mark.parametrize("kept", [True, False])
def test_a_program_exits_cleanly_right_after_next(image_root, kept):
    code = """
from dali_compat import DataLoader, DALIImageFolder
from contract.both import EXACT
iterator = iter(DataLoader(DALIImageFolder(sys.argv[1], EXACT), 4, fallback="error", device="cpu"))
next(iterator)
if sys.argv[2] == "True":
    sys.modules["keep"] = iterator
"""
    result = programs.run(code, str(image_root), str(kept), seconds=PATIENCE)
    assert said(result) == "" and result.stderr == ""


@pytest.mark.parametrize("before", [True, False])
def test_end_returns_after_do_was_interrupted(before):
    """Check that the task was either run before end() returned or dropped."""
    prefetch, done = PrefetchThread(torch.device("cpu")), []
    tasks = prefetch._tasks

    class Interrupted:
        def put(self, task):
            if not before:
                tasks.put(task)
            raise KeyboardInterrupt

    prefetch._tasks = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        prefetch.submit(lambda: (time.sleep(0.05), done.append(1)))
    prefetch._tasks = tasks
    prefetch.end(lambda: done.append(2), waits=True)
    assert done == [2] if before else [1, 2]


def test_end_returns_when_called_twice():
    """An interrupt may have stopped the first call while it waited."""
    prefetch, done = PrefetchThread(torch.device("cpu")), []
    for number in range(2):
        prefetch.end(lambda number=number: done.append(number), waits=True)
    assert done == [0]


def test_end_without_waiting_runs_its_task_last():
    prefetch, may, done = PrefetchThread(torch.device("cpu")), threading.Event(), []
    prefetch.submit(lambda: (may.wait(PATIENCE), done.append(1)))
    prefetch.end(lambda: done.append(2), waits=False)
    assert not done
    may.set()
    prefetch.wait_until_idle()
    assert done == [1, 2]


def test_wait_raises_an_error_only_once():
    prefetch = PrefetchThread(torch.device("cpu"))
    prefetch.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prefetch.wait()
    prefetch.wait()
    prefetch.end(lambda: None, waits=True)


def test_end_called_in_the_thread_does_not_wait_for_itself():
    prefetch, done = PrefetchThread(torch.device("cpu")), []
    prefetch.submit(
        lambda: (prefetch.wait_until_idle(), prefetch.end(lambda: done.append(2), waits=True), done.append(1))
    )
    prefetch._ended.wait(PATIENCE)
    assert done == [1, 2]


@pytest.mark.parametrize("where", ["next", "iter"])
def test_a_lock_left_locked_by_an_interrupt_is_released(exact_folder, monkeypatch, where):
    """Interrupt the waiting thread while it holds the lock."""
    loader, lock, taken, prepare = ours(exact_folder, 5, device="cpu"), forks.new_lock(), threading.Event(), []
    monkeypatch.setattr(
        DaliBatch, "prepare", lambda batch: (taken.wait(PATIENCE), lock.acquire(), lock.release(), prepare.append(1))
    )

    def interrupted(*args, **kwargs):
        lock.acquire()
        taken.set()
        raise KeyboardInterrupt

    too_long = threading.Timer(PATIENCE, os._exit, [1])
    too_long.start()
    iterator = iter(loader)
    next(iterator)
    with monkeypatch.context() as patched:
        patched.setattr(*(PrefetchThread, "wait") if where == "next" else (DataLoader, "_choose_route"), interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator) if where == "next" else iter(loader)
    assert lock._is_owned() is (where == "iter")
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))
    assert not lock._is_owned() and prepare
    too_long.cancel()


# ---- locks


def test_unlock_all_releases_only_locks_held_by_this_thread():
    mine, others, free = (forks.new_lock() for _ in range(3))
    for _ in range(3):
        mine.acquire()
    held, end = threading.Event(), threading.Event()

    def hold():
        with others:
            held.set()
            end.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    forks.unlock_all()
    took = []
    taker = threading.Thread(target=lambda: took.extend(lock.acquire(blocking=False) for lock in (mine, others, free)))
    taker.start()
    taker.join()
    end.set()
    thread.join()
    assert took == [True, False, True]
