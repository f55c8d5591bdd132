"""The thread that works on the next batches while the caller uses one: whose code runs in it, and how it ends."""

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
from contract.test_processes import _in_child
from dali_compat import DALIImageFolder, DataLoader, on_batch, register
from dali_compat.epoch.dali_batch import DaliBatch
from dali_compat.epoch.prefetch_thread import PrefetchThread
from dali_compat.runtime import forks

PATIENCE = 60  # seconds


@pytest.fixture
def seen() -> set:
    """Threads that the user's code has run in."""
    return set()


_others: set[threading.Thread] = set()  # of tests before: an exception in an iterator's last lines may leave one


def _threads() -> list[threading.Thread]:
    there = [thread for thread in threading.enumerate() if thread.name.startswith("dali_compat prefetch")]
    return [thread for thread in there if thread not in _others]


def _wait_until(is_so) -> bool:
    end = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    return is_so()


def _none_left() -> bool:
    return _wait_until(lambda: not _threads())


@pytest.fixture(autouse=True)
def no_thread_is_left():
    gc.collect()
    _others.clear()
    _others.update(_threads())
    yield
    gc.collect()
    assert _none_left()


# ---- whose code runs in it


def test_it_does_work(exact_folder, monkeypatch):
    """Else all that follows proves nothing."""
    threads, prepare = set(), DaliBatch.prepare
    monkeypatch.setattr(DaliBatch, "prepare", lambda batch: (threads.add(threading.get_ident()), prepare(batch))[1])
    assert_same_pixels(pixels(ours(exact_folder, 5, device="cpu")), pixels(stock(exact_folder, 5)))
    assert len(threads) == 1 and threading.get_ident() not in threads


class Noting:
    def __init__(self, seen, function):
        self.seen, self.function = seen, function

    def __call__(self, *args):
        self.seen.add(threading.get_ident())
        return self.function(*args)


class Sequence(list):
    """Of one's own."""

    def __init__(self, seen, values):
        super().__init__(values)
        self.seen = seen

    def __getitem__(self, at):
        self.seen.add(threading.get_ident())
        return super().__getitem__(at)


def _drawn(seen, values):
    for value in values:
        seen.add(threading.get_ident())
        yield value


class Drawn:
    def __init__(self, seen, values):
        self.seen, self.values = seen, values

    def __iter__(self):
        return _drawn(self.seen, self.values)


class Doubled(torch.nn.Module):
    """A registered transform."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, image):
        return image


def _registered(root, seen):
    register(Doubled, consumes="function")(lambda t, spec: on_batch(t.function, spec))
    function = Noting(seen, lambda images: images)
    return ours(DALIImageFolder(root, T.Compose([*EXACT.transforms, Doubled(function)])), 3, device="cpu")


def _lambda(root, seen):
    transform = T.Compose([*EXACT.transforms, T.Lambda(Noting(seen, lambda image: image))])
    return DataLoader(DALIImageFolder(root, transform), 3, device="cpu", fallback="silent")


USERS = {
    "sampler": lambda root, seen: ours(DALIImageFolder(root, EXACT), 3, sampler=Drawn(seen, range(20)), device="cpu"),
    "batch_sampler": lambda root, seen: ours(
        DALIImageFolder(root, EXACT), batch_sampler=Drawn(seen, [[i, i + 1] for i in range(9)]), device="cpu"
    ),
    "collate_fn": lambda root, seen: ours(
        DALIImageFolder(root, EXACT), 3, collate_fn=Noting(seen, data.default_collate), device="cpu"
    ),
    "target_transform": lambda root, seen: ours(DALIImageFolder(root, EXACT, Noting(seen, int)), 3, device="cpu"),
    "Lambda": _lambda,
    "Subset.indices": lambda root, seen: ours(
        data.Subset(DALIImageFolder(root, EXACT), Sequence(seen, range(20))), 3, device="cpu"
    ),
    "on_batch": _registered,
}


@pytest.mark.parametrize("case", USERS)
def test_the_users_code_runs_in_the_callers_thread(image_root, seen, case):
    loader = USERS[case](image_root, seen)
    assert loader.explain().startswith("DALI route")
    for _ in range(2):
        assert len(list(loader)) > 5
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_under_the_callers_grad_mode(exact_folder, mode):
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = list(ours(exact_folder, 5, device="cpu"))
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert not any(images.requires_grad for images, _, _ in found)
        assert_same_pixels([images for images, _, _ in found], pixels(stock(exact_folder, 5)))
        for images, labels, _ in found:
            images.add_(1), labels.add_(1)


# ---- its errors


@pytest.mark.parametrize("work", ["start", "prepare"])
def test_an_error_comes_with_its_batch(exact_folder, monkeypatch, work):
    """And the loader goes on behind it."""

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


# ---- how it ends


@pytest.mark.parametrize("batches", [1, 2, 5, 6])
def test_no_thread_is_left(exact_folder, batches):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    for _ in range(batches):
        next(iterator, None)
    assert len(_threads()) <= 1 and (batches > 4 or _threads())
    del iterator
    assert _none_left()


def test_no_thread_is_left_of_many_epochs(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    for _ in range(50):
        next(iter(loader))
    assert _none_left()
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


def test_an_iterator_in_a_cycle(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    for _ in range(5):
        cycle = [iter(loader)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert _none_left()


@pytest.fixture
def held(monkeypatch):
    """It works until this is set."""
    event, started, prepare = threading.Event(), threading.Event(), DaliBatch.prepare

    def slow(batch):
        started.set()
        assert event.wait(PATIENCE)
        prepare(batch)

    monkeypatch.setattr(DaliBatch, "prepare", slow)
    event.started = started
    yield event
    event.set()


def test_close_while_it_works(exact_folder, held):
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


def test_a_fork_while_it_works(exact_folder, held):
    """It waits, and the child makes a loader and a thread of its own."""
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    assert held.started.wait(PATIENCE)
    threading.Timer(0.2, held.set).start()
    kind, found = _in_child(lambda: [batch.sum().item() for batch in pixels(ours(exact_folder, 5, device="cpu"))])
    wanted = pixels(stock(exact_folder, 5))
    assert (kind, found) == ("result", [batch.sum().item() for batch in wanted])
    assert_same_pixels([batch[0] for batch in iterator], wanted[1:])


@pytest.mark.parametrize("kept", [True, False])
def test_a_program_may_end_right_after_next(image_root, kept):
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
def test_an_interrupt_between_the_lines_of_do(before):
    """end() comes to an end, and what was asked for is done by then, or never."""
    aside, done = PrefetchThread(torch.device("cpu")), []
    tasks = aside._tasks

    class Interrupted:
        def put(self, task):
            if not before:
                tasks.put(task)
            raise KeyboardInterrupt

    aside._tasks = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        aside.do(lambda: (time.sleep(0.05), done.append(1)))
    aside._tasks = tasks
    aside.end(lambda: done.append(2), waits=True)
    assert done == [2] if before else [1, 2]


def test_end_comes_to_an_end_twice():
    """An interrupt may have stopped the first one while it waited."""
    aside, done = PrefetchThread(torch.device("cpu")), []
    for number in range(2):
        aside.end(lambda number=number: done.append(number), waits=True)
    assert done == [0]


def test_an_end_that_nobody_waits_for():
    aside, may, done = PrefetchThread(torch.device("cpu")), threading.Event(), []
    aside.do(lambda: (may.wait(PATIENCE), done.append(1)))
    aside.end(lambda: done.append(2), waits=False)
    assert not done
    may.set()
    aside.settle()
    assert done == [1, 2]


def test_wait_raises_once():
    aside = PrefetchThread(torch.device("cpu"))
    aside.do(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aside.wait()
    aside.wait()
    aside.end(lambda: None, waits=True)


def test_it_need_not_wait_for_itself():
    aside, done = PrefetchThread(torch.device("cpu")), []
    aside.do(lambda: (aside.settle(), aside.end(lambda: done.append(2), waits=True), done.append(1)))
    aside._ended.wait(PATIENCE)
    assert done == [1, 2]


@pytest.mark.parametrize("where", ["next", "iter"])
def test_a_lock_that_an_interrupt_left_locked(exact_folder, monkeypatch, where):
    """By the thread that waits: it is released, and all goes on."""
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


def test_unlock_all_releases_what_this_thread_holds():
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
