"""Threads, forked processes, program exit, and the release of resources."""

import functools
import gc
import importlib
import itertools
import os
import threading
import weakref

import programs
import pytest
import torch
from torchvision import transforms as T

from contract.both import EXACT, assert_same_pixels, no_gc, ours, outlines, pixels, said, stock
from contract.children import call_in_child
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.engine.dali import warm
from dali_compat.epoch.prefetch_thread import PrefetchThread
from dali_compat.runtime import forks


def _indices(loader) -> list[int]:
    return [index for batch in loader for index in batch[-1].tolist()]


def test_epoch_in_a_thread_gives_torchs_pixels(exact_folder):
    loader, results = ours(exact_folder, 5, device="cpu"), []
    thread = threading.Thread(target=lambda: results.append(pixels(loader)))
    thread.start()
    thread.join(60)
    assert_same_pixels(results[0], pixels(stock(exact_folder, 5)))


def test_iterator_continues_in_another_thread(exact_folder):
    iterator, results = iter(ours(exact_folder, 5, device="cpu")), []
    results.append(next(iterator)[0])
    thread = threading.Thread(target=lambda: results.extend(batch[0] for batch in iterator))
    thread.start()
    thread.join(60)
    assert_same_pixels(results, pixels(stock(exact_folder, 5)))


def test_threads_can_iterate_over_one_loader_at_once(exact_folder):
    loader, results = ours(exact_folder, 5, device="cpu"), {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: pixels(loader)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = pixels(stock(exact_folder, 5))
    for i in range(4):
        assert_same_pixels(results[i], expected)


@pytest.mark.parametrize("before", ["new", "iterated", "in an epoch"])
def test_forked_child_can_iterate_on_the_cpu(exact_folder, before):
    """CUDA does not survive a fork; a test below checks the error on a GPU."""
    loader = ours(exact_folder, 5, device="cpu")
    iterator = iter(loader)
    if before != "new":
        next(iterator)
    if before == "iterated":
        list(iterator)
    kind, order = call_in_child(lambda: _indices(loader))
    assert (kind, order) == ("result", list(range(24)))
    assert len(list(iterator)) == {"new": 5, "iterated": 0, "in an epoch": 4}[before]


def test_iterator_of_the_parent_raises_in_a_forked_child(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    kind, text = call_in_child(lambda: next(iterator)[2].tolist())
    assert kind == "RuntimeError" and "parent process" in text
    assert len(list(iterator)) == 4


@pytest.mark.parametrize("patience", [60, 0.1])
def test_locks_held_by_other_threads_are_free_in_a_forked_child(monkeypatch, patience):
    """The child has no copy of the threads and would wait forever. The protected data are complete if the thread
    releases its lock soon."""
    monkeypatch.setattr(forks, "_PATIENCE", patience)
    mine, others, locked, ends, guarded = forks.new_lock(), forks.new_lock(), threading.Event(), threading.Event(), []

    def change():
        with others:
            guarded.append("half")
            locked.set()
            ends.wait(60)
            guarded.append("done")

    thread = threading.Thread(target=change)
    thread.start()
    assert locked.wait(60)
    threading.Timer(0.2, ends.set if patience > 1 else int).start()
    with mine:
        _, child = call_in_child(lambda: [*guarded, others.acquire(timeout=9), mine._is_owned()])
    assert child == [*(["half", "done"] if patience > 1 else ["half"]), True, True]
    ends.set()
    thread.join(60)
    assert not mine._is_owned() and mine.acquire(blocking=False) and others.acquire(timeout=9)
    mine.release()
    others.release()


@pytest.mark.gpu
def test_forked_child_raises_an_error_on_gpu(exact_folder):
    loader = ours(exact_folder, 5)
    next(iter(loader))
    kind, text = call_in_child(lambda: _indices(loader))
    assert kind == "RuntimeError" and "fork" in text


def test_torchs_workers_can_be_forked_during_an_epoch(exact_folder):
    """They are forked while DALI's threads are running."""
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    assert outlines(stock(exact_folder, 5, num_workers=2), epochs=1) == outlines(stock(exact_folder, 5), epochs=1)
    assert len(list(iterator)) == 4


def test_forked_child_does_not_wait_for_a_collected_pipeline(image_root):
    """The child has no copy of the pipeline's threads, so it must not wait for them if the garbage collector runs in
    the child, or in Python between the fork and the child's first statement."""
    code = """
import gc, os, signal, sys
from dali_compat import DALIImageFolder, DataLoader
from torchvision import transforms as T
loader = DataLoader(DALIImageFolder(sys.argv[1], T.CenterCrop(32)), 4, collate_fn=list, device="cpu", fallback="silent")
gc.disable()
next(iter(loader))
cycle = [loader._route._pipelines[0]._pipe]
cycle.append(cycle)
loader.close()
del cycle
def collect_soon():
    gc.set_threshold(1)
    gc.enable()
os.register_at_fork(before=collect_soon)  # runs before those that are registered already
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(3)
signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
signal.alarm(120)
status = os.waitpid(child, 0)[1]
signal.alarm(0)
print(os.waitstatus_to_exitcode(status))
"""
    assert said(programs.run(code, str(image_root))).split()[-1] == "3"


class OwnedByParent:
    """An object that a child must not free."""

    def __init__(self, freed):
        self.freed, self.itself = freed, self

    def __del__(self):
        self.freed.append(os.getpid())


@pytest.mark.parametrize("where", ["garbage", "a batch under way", "a pipeline's results"])
def test_forked_child_does_not_free_objects_of_its_parent(exact_folder, monkeypatch, where):
    """CUDA aborts a child that frees GPU memory of its parent."""
    freed: list[int] = []
    loader = ours(exact_folder, 5, device="cpu")
    iterator = iter(loader)
    next(iterator)
    with no_gc():
        mine = OwnedByParent(freed)
        if where != "garbage":
            mine.itself = None
        if where == "a batch under way":
            iterator._drawn[0].mine = mine
        if where == "a pipeline's results":
            loader._route._pipelines[0]._done[-1] = mine
        del mine

        def in_child():
            nonlocal iterator, loader
            loader.close()
            iterator = loader = None
            gc.collect()
            return freed

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert call_in_child(in_child) == ("result", [])
        monkeypatch.undo()
    loader.close()
    del iterator, loader
    gc.collect()
    assert freed == [os.getpid()]


def test_forked_child_does_not_wait_for_the_parents_prefetch_thread():
    """The garbage collector may end a parent's iterator in the child."""
    thread = PrefetchThread(torch.device("cpu"))
    thread.submit(int)
    thread.wait()

    def in_child():
        thread.end(int, waits=True)
        return "ended"

    assert call_in_child(in_child, seconds=20) == ("result", "ended")
    thread.end(int, waits=True)
    thread._thread.join(60)
    assert not thread._thread.is_alive()


def test_collected_iterator_does_not_deadlock_with_a_running_iterator(exact_folder, monkeypatch):
    """An iterator in a reference cycle, such as an error's traceback, returns its pipelines while another iterator
    takes one."""
    from dali_compat.engine.dali.pipeline import DecodePipeline

    loader = ours(exact_folder, 5, device="cpu")
    expected = pixels(loader)
    with no_gc():
        cycle = [iter(loader)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        init = DecodePipeline.__init__
        monkeypatch.setattr(DecodePipeline, "__init__", lambda *args: (init(*args), gc.collect())[0])
        results = []
        thread = threading.Thread(target=lambda: results.append(pixels(loader)), daemon=True)
        thread.start()
        thread.join(60)
    assert results, "it waits for itself"
    assert_same_pixels(results[0], expected)


def test_batch_can_have_more_files_than_the_open_file_limit(image_root):
    """The loader raises the soft limit, which is 1024 on most systems."""
    code = """
import resource
from dali_compat import DataLoader, DALIImageFolder
from contract.both import SMALL
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
dataset = DALIImageFolder(sys.argv[1], SMALL)
for size in (300, 600):  # the second needs larger pipelines
    loader = DataLoader(dataset, size, sampler=list(range(24)) * 50, fallback="error", device="cpu")
    print(sum(len(labels) for images, labels in loader))
"""
    assert said(programs.run(code, str(image_root))) == "1200\n1200\n"


@pytest.mark.alike
@pytest.mark.parametrize("where", ["new", "mid-epoch", "held", "done"])
def test_program_exits_without_output(image_root, where):
    code = """
from dali_compat import DataLoader, DALIImageFolder
from contract.both import RANDOM
loader = DataLoader(DALIImageFolder(sys.argv[1], RANDOM), 4, fallback="error")
iterator = iter(loader)
if sys.argv[2] != "new":
    batch = next(iterator)
if sys.argv[2] == "held":
    sys.modules["keep"] = (loader, iterator, batch)
if sys.argv[2] == "done":
    list(iterator)
print("done")
"""
    result = programs.run(code, str(image_root), where)
    assert said(result) == "done\n" and result.stderr == ""


# ---- release of resources


def _pipelines():
    from dali_compat.engine.dali import forks

    return weakref.WeakSet(forks.live)


def _new_pipelines(before) -> list:
    """Return the pipelines created since; pipelines of other tests may end in the meantime."""
    return [pipeline for pipeline in _pipelines() if pipeline not in before]


@pytest.mark.parametrize("how", ["epoch", "mid-epoch", "persistent", "two iterators", "bad file", "image too small"])
def test_pipelines_are_freed_with_the_last_reference(own_root, how):
    with no_gc():
        before = _pipelines()
        transform = EXACT if how != "image too small" else T.Compose([T.RandomCrop(120), T.PILToTensor()])
        dataset = DALIImageFolder(own_root, transform)
        if how == "bad file":
            open(dataset.samples[5][0], "wb").close()
        options = dict(num_workers=1, persistent_workers=True) if how == "persistent" else {}
        loader = DataLoader(dataset, 1, fallback="error", **options)
        iterator = iter(loader)
        other = iter(loader) if how == "two iterators" else None
        failed = 0
        while True:
            try:
                next(iterator)
            except (OSError, ValueError):
                failed += 1
            except StopIteration:
                break
            if how == "two iterators":
                next(other)
            if how == "mid-epoch":
                break
        assert (failed > 0) == (how in ("bad file", "image too small"))
        assert _new_pipelines(before)
        del iterator, other, loader
        assert not _new_pipelines(before)


def test_pipeline_is_freed_in_the_parent_after_a_fork(own_root):
    with no_gc():
        loader = ours(DALIImageFolder(own_root, EXACT), 4)
        list(loader)
        pipe = weakref.ref(loader._route._pipelines[0]._pipe)
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0 and pipe() is not None
        del loader
        assert pipe() is None


def test_close_frees_pipelines_and_threads(exact_folder):
    next(iter(ours(exact_folder, 5)))  # on a GPU, starting the decoder creates threads
    warm.finish()
    before, threads = _pipelines(), {*threading.enumerate()}
    loader = ours(exact_folder, 5)
    list(loader)
    mine = [pipeline for pipeline in _pipelines() if pipeline.plan in loader._route.plans]
    assert _new_pipelines(before) and mine
    loader.close()
    assert all(pipeline._pipe is None for pipeline in mine)
    for thread in {*threading.enumerate()} - threads:  # an iterator's thread may still be ending
        thread.join(60)
    assert {*threading.enumerate()} <= threads


def test_epochs_share_one_pipeline(exact_folder):
    before = _pipelines()
    loader = ours(exact_folder, 5)
    for _ in range(4):
        list(loader)
        next(iter(loader))
    assert len(_new_pipelines(before)) == 1


def test_fork_hooks_run_in_order_before_and_in_reverse_order_after_a_fork(monkeypatch):
    called: list[tuple[str, str]] = []
    for stage, when in itertools.product(forks._ORDER, ("before", "after_in_parent", "after_in_child")):
        monkeypatch.setitem(forks._hooks[stage], when, functools.partial(called.append, (when, stage)))
    found = call_in_child(lambda: called)[1]
    before = [("before", stage) for stage in forks._ORDER]
    assert found == before + [("after_in_child", stage) for stage in reversed(forks._ORDER)]
    assert called == before + [("after_in_parent", stage) for stage in reversed(forks._ORDER)]


def test_each_fork_stage_has_a_hook():
    engine, others = ("dali.forks", "dali.warm", "planes.engines"), ("ops.operations", "ops.pixels.lists")
    for module in (*(f"engine.{name}" for name in engine), *others, "remote.event_loop"):
        importlib.import_module(f"dali_compat.{module}")
    assert all(forks._hooks.values())
    with pytest.raises(KeyError):
        forks.at_fork("another stage", before=bool)


@pytest.mark.parametrize("name", ["dali_compat prefetch", "dali_compat-each", "dali_compat_"])
def test_program_exits_if_interrupted_while_a_thread_starts(image_root, name):
    """concurrent.futures does not register such a thread, and Python waits for it at exit."""
    code = """
import threading
from types import SimpleNamespace
from contract.both import EXACT
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.ops.pixels.lists import each
from dali_compat.epoch.epoch import DaliEpoch

start = threading.Thread.start

def interrupted(thread):
    start(thread)
    if thread.name.startswith(sys.argv[2]):
        raise KeyboardInterrupt

threading.Thread.start = interrupted
if sys.argv[2] == "dali_compat prefetch":
    for batch in DataLoader(DALIImageFolder(sys.argv[1], EXACT), 4, fallback="error", device="cpu"):
        pass
elif sys.argv[2] == "dali_compat-each":
    each(len, ["a", "b"])
else:
    DaliEpoch.in_thread(SimpleNamespace(_threads=None, route=SimpleNamespace(threads=1)), int)
"""
    result = programs.run(code, str(image_root), name, seconds=120)
    assert result.returncode in (1, -2, 130) and result.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.alike
@pytest.mark.parametrize("kind, workers", [("files", 0), ("own", 0), ("own", 1), ("torch", 0), ("iter", 0)])
def test_program_exits_without_output_while_a_daemon_thread_iterates(image_root, kind, workers):
    """In the middle of an epoch, the thread ends without output and runs its ``finally`` block; nothing that it uses is
    closed before."""
    code = """
import threading, time
from torchvision.datasets import ImageFolder
import dali_compat.loader
from contract.both import EXACT
from contract.own_datasets import Plain
from dali_compat import DataLoader
from dali_compat.epoch.dali_batch import DaliBatch
from dali_compat.epoch.fallback import TorchIterator
from dali_compat.routes import FallbackRoute

kind, begun = sys.argv[2], threading.Event()

def slowly(function, seconds=0.3):
    def call(*args):
        begun.set()
        time.sleep(seconds)
        return function(*args)
    return call

for owner, name in ((DaliBatch, "finish"), (TorchIterator, "_next_one")):
    setattr(owner, name, slowly(getattr(owner, name)))
dataset = ImageFolder(sys.argv[1], EXACT)
if kind == "own":
    dataset = Plain(dataset, EXACT)
if kind == "torch":
    dataset = [dataset[0]] * 12
loader = DataLoader(dataset, 4, num_workers=int(sys.argv[3]), device="cpu", fallback="silent")
assert isinstance(loader._route, FallbackRoute) == (kind == "torch")
if kind == "iter":
    dali_compat.loader.choose = slowly(dali_compat.loader.choose, 2)

def load():
    try:
        while True:
            for batch in loader:
                print("a batch")
    except Exception:
        print("an error")
    finally:
        print("over", flush=True)

threading.Thread(target=load, daemon=True).start()
begun.wait()
"""
    result = programs.run(code, str(image_root), kind, str(workers), seconds=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "over\n", "")


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["del", "close"])
def test_gpu_memory_is_released_with_the_loader(photos_or_images, how):
    dataset = DALIImageFolder(photos_or_images, T.Compose([T.Resize(400), T.CenterCrop(384), T.ToTensor()]))
    for _ in range(2):  # memory that DALI and CUDA keep permanently, some of it only for a second decoder
        list(ours(dataset, 8))
    warm.finish()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, used = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(3):
        loader = ours(dataset, 8)
        for batch in loader:  # noqa: B007  (the last one is kept)
            pass
        del batch
        if how == "close":
            loader.close()
        else:
            del loader
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= used
    # nvJPEG and DALI's pool keep blocks for reuse, but the memory must not grow with every loader
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20


@pytest.mark.gpu
def test_batches_are_ready_on_the_current_stream(exact_folder):
    """A batch may be used on the stream that was current at next(), without further synchronization."""
    loader = ours(exact_folder, 5)
    expected = [batch[0].cpu() for batch in loader]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            for batch, wanted in zip(loader, expected, strict=True):
                busy = torch.randn(2000, 2000, device="cuda")
                for _ in range(5):
                    busy = busy @ busy
                assert torch.equal(batch[0].cpu(), wanted)
                del batch
