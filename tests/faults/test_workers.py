"""Worker processes of user functions: killed, stopped, stuck and interrupted; and the program's end amid it."""

import contextlib
import errno
import gc
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import programs
import pytest
import torch
from contract.both import REPOSITORY, assert_same_epoch, assert_same_pixels, error_of, stock
from helpers import ALL, interrupted, some, while_within
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.plan import Call
from dali_compat.workers import Calls, processes
from dali_compat.workers.worker import stay_with_the_parent

CPU = torch.device("cpu")
LINES = 1 if ALL else 3  # from one line at which an interrupt comes to the next


def _rotate(image):
    return image.rotate(5)


def _chain(function=_rotate):
    return T.Compose([T.CenterCrop(41), function, T.PILToTensor()])


def _loader(root, function=_rotate, *args, **options):
    options = {"num_workers": 2} | options
    return DataLoader(DALIImageFolder(root, _chain(function)), *args, fallback="silent", device="cpu", **options)


def _workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children()]


@pytest.fixture(autouse=True)
def _nothing_stays():
    """Of processes, torch's, too, which a test may kill; and Ctrl-C works as before."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    gc.collect()
    _until(lambda: not _workers())


def _until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


# ---- the whole loader


class _Waits:
    """Never returns while a file is there; but for images that it need not wait for."""

    def __init__(self, file: Path, at_once: Sequence[Image.Image] = ()):
        self.file, self.at_once = file, {image.tobytes() for image in at_once}

    def __call__(self, image):
        while self.file.exists() and image.tobytes() not in self.at_once:
            self.file.with_name(f"began_{os.getpid()}").touch()
            time.sleep(0.01)
        return image.rotate(5)


def _begun(folder: Path) -> int:
    """How many processes hang there."""
    return len(list(folder.glob("began_*")))


@pytest.mark.parametrize("make", [stock, _loader], ids=["torch", "ours"])
def test_timeout(image_root, tmp_path, make):
    """As torch's; afterwards processes are new ones."""
    waits = _Waits(tmp_path / "wait")
    options = dict(num_workers=2, timeout=1)
    if make is stock:
        loader = stock(DALIImageFolder(image_root, _chain(waits)), 6, **options)
    else:
        loader = _loader(image_root, waits, 6, **options)
    waits.file.touch()
    iterator = iter(loader)
    for _ in range(2):  # the same iterator, too
        error = error_of(next, iterator)
        assert type(error) is RuntimeError and str(error) == "DataLoader timed out after 1 seconds"
    waits.file.unlink()
    del iterator
    loader.timeout = 120
    assert_same_epoch(loader, stock(DALIImageFolder(image_root, _chain()), 6))


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_killed_workers(image_root, tmp_path, context, workers):
    """Batches that they had are lost, with an error; the same iterator goes on with new ones, and so does the next."""
    wanted = [batch[0] for batch in stock(DALIImageFolder(image_root, _chain()), 2)]
    waits = _Waits(tmp_path / "wait", [image for image, _ in data.Subset(_cropped(image_root), range(2))])
    waits.file.touch()  # they have what comes after the first batch when they are killed
    loader = _loader(image_root, waits, 2, multiprocessing_context=context, num_workers=workers)
    iterator = iter(loader)
    assert torch.equal(next(iterator)[0], wanted[0])
    for pid in _workers():
        os.kill(pid, signal.SIGKILL)
    waits.file.unlink()
    lost, made = 0, {}
    for number in range(1, len(wanted)):
        try:
            made[number] = next(iterator)[0]
        except RuntimeError as error:
            assert "worker process exited unexpectedly" in str(error) and "SIGKILL" in str(error)
            lost += 1
    assert 1 <= lost <= 4 and len(made) == len(wanted) - 1 - lost
    for number, images in made.items():
        assert torch.equal(images, wanted[number])
    if context == "fork":
        assert_same_pixels([batch[0] for batch in loader], wanted)


def _cropped(root) -> ImageFolder:
    """What the functions of _loader() get."""
    return ImageFolder(root, T.CenterCrop(41))


def test_the_parents_handlers_are_not_for_its_workers(tmp_path):
    """Which may save a model, or ask the cluster for another start."""
    before = signal.signal(signal.SIGTERM, lambda *_: (tmp_path / str(os.getpid())).touch())
    try:
        calls, call = _calls()
        assert _right(calls, call, 0)
        for pid in _workers():
            os.kill(pid, signal.SIGTERM)
        _until(lambda: not _workers())
        calls.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_ends_whose_parent_was_killed_before_it_looked(context):
    """Who has taken it over is its parent then, as far as the system knows."""
    receive, send = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(target=_start_an_orphan, args=(context, send))
    parent.start()
    assert receive.poll(120)
    orphan = receive.recv()
    parent.kill()
    parent.join()
    _until(lambda: not _runs(orphan))


def _start_an_orphan(context: str, send) -> None:
    multiprocessing.get_context(context).Process(target=_stay_when_told, args=(send,)).start()
    time.sleep(1000)


def _stay_when_told(send) -> None:
    parent = multiprocessing.parent_process()
    send.send(os.getpid())
    parent.join()
    stay_with_the_parent()
    time.sleep(1000)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_stopped_workers(image_root):
    """They are waited for."""
    wanted = stock(DALIImageFolder(image_root, _chain()), 2)
    iterator = iter(_loader(image_root, _rotate, 2))
    made, pids = [next(iterator)], _workers()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.5, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids])
    timer.start()
    assert_same_epoch([*made, *iterator], wanted)
    timer.join()


def _exits(image):
    sys.exit(3)


class _LeavesAChild:
    """Which has all that its parent had open, and lives while a file is there."""

    def __init__(self, file: Path):
        self.file = file

    def __call__(self, image):
        if os.fork() == 0:
            while self.file.exists():
                time.sleep(0.1)
            os._exit(0)
        os._exit(4)


def _raises_what_nobody_finds(image):
    class Hidden(Exception):
        pass

    raise Hidden("behind the curtain")


class _NotAgain:
    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_exits, "exit code 3"),
        (_LeavesAChild, "exit code 4"),
        (_raises_what_nobody_finds, "behind the curtain"),
        (lambda image: _NotAgain(), "invalid literal"),
        (lambda image: open(os.devnull), "cannot pickle"),
    ],
    ids=["exit", "exit beside a child", "a class of its own", "unpickled", "not pickled"],
)
def test_functions_that_misbehave(image_root, tmp_path, monkeypatch, function, text):
    """Every batch says so; none waits for ever."""
    monkeypatch.setattr(processes, "_GRACE", 60)
    lives = tmp_path / "lives"
    lives.touch()
    if function is _LeavesAChild:
        function = _LeavesAChild(lives)
    loader = DataLoader(
        DALIImageFolder(image_root, function), 12, collate_fn=list, fallback="silent", device="cpu", num_workers=2
    )
    for _ in range(2):
        iterator = iter(loader)
        for _ in range(2):
            assert text in str(error_of(next, iterator))
    lives.unlink()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_iterator_is_dropped_while_a_function_hangs(image_root, tmp_path, monkeypatch):
    """Nobody waits for it, and nothing stays: its process is ended."""
    patient, kill = threading.Event(), processes._kill
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    monkeypatch.setattr(processes, "_kill", lambda started: (patient.wait(60), kill(started)))
    waits = _Waits(tmp_path / "wait")
    loader = _loader(image_root, waits, 6)
    patient.set()
    list(loader)
    _until(lambda: not _workers())
    before = _descriptors()
    patient.clear()
    waits.file.touch()
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt), _interrupted_when(lambda: _begun(tmp_path) == 2):
        next(iterator)
    pids = _workers()
    assert len(pids) == 2
    del iterator
    assert _workers() == pids
    patient.set()
    _until(lambda: not _workers() and _descriptors() <= before)


class _Obeys:
    """Hangs; told to end, it takes some time to leave a note."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, image):
        signal.signal(signal.SIGTERM, self._end)
        (self.folder / f"began_{os.getpid()}").touch()
        while True:
            time.sleep(0.01)

    def _end(self, *_):
        time.sleep(0.05)
        (self.folder / f"ended_{os.getpid()}").touch()
        os._exit(0)


def test_a_process_that_is_ended_may_still_tidy_up(image_root, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    monkeypatch.setattr(processes, "_TIDY", 60)
    iterator = iter(_loader(image_root, _Obeys(tmp_path), 6))
    with pytest.raises(KeyboardInterrupt), _interrupted_when(lambda: _begun(tmp_path) == 2):
        next(iterator)
    del iterator
    _until(lambda: not _workers())
    assert len(list(tmp_path.glob("ended_*"))) == 2


def _interrupted_when(condition):
    """While this thread waits for processes."""
    return interrupted(KeyboardInterrupt, within=processes.Processes.wait, when=condition)


# ---- calls alone: what an interrupt, or a system without room, leaves behind


def _add(image):
    return image + 1


IMAGES = torch.arange(8 * 3 * 4 * 4, dtype=torch.uint8).view(8, 3, 4, 4)


def _calls(function=_add, workers: int = 2, timeout: float = 0) -> tuple[Calls, Call]:
    loader = SimpleNamespace(
        num_workers=workers, multiprocessing_context=None, worker_init_fn=None, dataset=None, timeout=timeout
    )
    return Calls(1, loader, CPU, depth=2), Call((function,), ("a test's",))


def _right(calls: Calls, call: Call, value: int) -> bool:
    """Two batches in flight, as an epoch has them, give what they should."""
    batches = [(IMAGES + value), (IMAGES + value + 1)]
    called = [calls.submit(call, images, "tensor", list(range(8))) for images in batches]
    made = [one.images(CPU)[1] for one in called]
    return all(torch.equal(one, images + 1) for one, images in zip(made, batches, strict=True))


OURS = tuple(map(str, (REPOSITORY / "dali_compat" / "workers").glob("*.py")))


class _At:
    """Raises KeyboardInterrupt in this thread: at the n-th of the lines of the code under test, as they are first
    reached; or, with ``opcodes``, at the n-th instruction."""

    def __init__(self, number: int, opcodes: bool = False):
        self.number, self.opcodes, self.count, self._seen = number, opcodes, 0, set()

    def __enter__(self):
        self._here = os.getpid(), threading.get_ident()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, event, arg):
        if frame.f_code.co_filename not in OURS or (os.getpid(), threading.get_ident()) != self._here:
            return None
        if frame.f_code.co_name == "_interrupts_later":  # none comes there: that is what it is for
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self.opcodes, not self.opcodes
        return self._line

    def _line(self, frame, event, arg):
        place = frame.f_code.co_filename, frame.f_lineno
        if os.getpid() == self._here[0] and (event == "opcode" or (event == "line" and place not in self._seen)):
            self._seen.add(place)
            self.count += 1
            if self.count == self.number:
                raise KeyboardInterrupt
        return self._line


class _AddsWhen:
    """When a file is there."""

    def __init__(self, file: Path):
        self.file = file

    def __call__(self, image):
        while not self.file.exists():
            time.sleep(0.002)
        return image + 1


def _interrupted(number: int, opcodes: bool, file: Path) -> bool:
    """Whether the n-th place was reached. After it the same calls give what they should: nothing of the batches that
    were under way. Answers are always waited for, so that the places are the same each time."""
    calls, call = _calls(_AddsWhen(file), workers=1)
    file.touch()
    assert _right(calls, call, 0)
    file.unlink()
    called, hit = [], False
    try:
        with while_within(processes.Processes.wait, file.touch), _At(number, opcodes):
            called += [calls.submit(call, IMAGES + 100, "tensor", list(range(8)))]
            called += [calls.submit(call, IMAGES + 101, "tensor", list(range(8)))]
            called[0].images(CPU)
    except KeyboardInterrupt:
        hit = True
    file.touch()
    for one in called:
        one.cancel()
    assert _right(calls, call, 7)
    calls.close()
    return hit


def test_an_interrupt_at_any_line(tmp_path):
    """Of submit() and images(): later batches are right, and neither processes nor descriptors stay."""
    file = tmp_path / "go"
    _interrupted(0, False, file)
    _until(lambda: not _workers())
    before = _descriptors()
    lines = itertools.count(1, LINES)
    assert next(number for number in lines if not _interrupted(number, False, file)) > 100
    _until(lambda: not _workers() and _descriptors() <= before)


def test_an_interrupt_at_any_instruction(tmp_path):
    """Of a fixed seed."""
    with _At(0, True) as all_of_them:
        calls, call = _calls()
        calls.submit(call, IMAGES, "tensor", list(range(8))).images(CPU)
        calls.close()
    for number in some(random.Random(10).sample(range(1, all_of_them.count), 60)):
        _interrupted(number, True, tmp_path / "go")


def test_an_interrupt_while_processes_start():
    """At any line; those that have been started end."""
    lines, hit = itertools.count(1, LINES), True
    before = None
    while hit:
        number, (calls, call) = next(lines), _calls()
        try:
            with _At(number):
                calls.prepare(call)
            hit = False
        except KeyboardInterrupt:
            pass
        assert _right(calls, call, 3)
        calls.close()
        if before is None:
            _until(lambda: not _workers())
            before = _descriptors()
    assert number > 40
    del calls, call
    _until(lambda: not _workers() and _descriptors() <= before)


def test_ctrl_c_while_a_process_starts(monkeypatch):
    """The interrupt comes when it has started, whichever thread the system has told of it."""
    calls, call = _calls()
    over, start = threading.Event(), BaseProcess.start

    def interrupted_start(process):
        os.kill(os.getpid(), signal.SIGINT)
        start(process)

    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(BaseProcess, "start", interrupted_start)
            with pytest.raises(KeyboardInterrupt):
                calls.prepare(call)
    finally:
        over.set()
        other.join()
    assert _right(calls, call, 3)
    calls.close()


def test_an_alarm_when_ctrl_cs_handler_is_set_back(monkeypatch):
    """Nothing stays blocked."""
    set_handler, handlers = signal.signal, []

    def alarmed(number, handler):
        set_handler(number, handler)
        handlers.append(handler)
        if len(handlers) == 2:
            raise TimeoutError("a step takes too long")

    monkeypatch.setattr(processes.signal, "signal", alarmed)
    with pytest.raises(TimeoutError), processes._interrupts_later(multiprocessing.get_context("fork")):
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class _Sends(processes.Processes):
    """What sends messages, without processes: the socket has sent one when an alarm comes."""

    def __init__(self, alarm):
        self._tasks, self._unsent, self.sent = self, deque([b"one", b"two"]), []
        self._alarm = alarm

    def send(self, message, flags):
        self.sent.append(message)
        raise self._alarm


def test_an_alarm_as_of_a_socket():
    """It reaches the user: nobody takes it for the socket's, and the message for one that was not sent."""
    with pytest.raises(TimeoutError, match="a step"):
        _Sends(TimeoutError("a step takes too long"))._send()
    full = _Sends(BlockingIOError())
    full._send()
    assert full.sent == [b"one"]


class _Exchanges(processes.Processes):
    """In the place of processes: each exchange takes as long as it may, or until something comes.

    Args:
        comes: [(seconds from the beginning, whether it is the answer)].
        sleeps: {number of an exchange: seconds for which this process does not run after it}.
    """

    def __init__(self, comes, sleeps):
        self.trouble, self._comes, self._sleeps = "", list(comes), sleeps
        self.now, self.count, self.answer = 0.0, 0, processes.Answer()

    def _exchange(self, seconds: float) -> bool:
        came = bool(self._comes) and self._comes[0][0] <= self.now + seconds
        if came:
            at, is_answer = self._comes.pop(0)
            self.now = max(self.now, at)
            self.answer.message = b"" if is_answer else None
        else:
            self.now += seconds
        self.now += self._sleeps.get(self.count, 0)
        self.count += 1
        return came

    def close(self):
        pass


@pytest.mark.parametrize(
    ("comes", "sleeps", "in_time"),
    [
        ([(2.9, False), (5.8, False), (8.7, True)], {}, True),  # others' answers count
        ([(2.9, False), (6.0, True)], {}, False),
        ([], {}, False),
        ([(1.5, True)], {0: 60}, True),  # it has come while this process was stopped
        ([(70, True)], {0: 60}, False),
    ],
)
def test_a_timeout_is_for_silence(monkeypatch, comes, sleeps, in_time):
    """As long as any of the processes answers in time, the others are waited for."""
    made = _Exchanges(comes, sleeps)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: made.now))
    if in_time:
        made.wait(made.answer, timeout=3)
    else:
        with pytest.raises(RuntimeError, match="timed out after 3 seconds"):
            made.wait(made.answer, timeout=3)
    assert made.answer.there == in_time


def test_a_forked_child_holds_none_of_the_sockets():
    """Processes end when nobody holds them; a child of the parent's may live for days."""
    calls, call = _calls()
    before = _sockets_in_a_child()
    calls.prepare(call)
    assert _sockets() > before
    assert _sockets_in_a_child() == before
    assert _right(calls, call, 3)
    calls.close()


def _sockets() -> int:
    """Open ones."""
    count = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own is closed again
            count += stat.S_ISSOCK(os.fstat(number).st_mode)
    return count


def _sockets_in_a_child() -> int:
    child = os.fork()
    if child == 0:
        count = 255
        try:
            count = _sockets()
        finally:
            os._exit(count)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class _Owner:
    """As an iterator: it closes its calls when it goes."""

    def __init__(self, calls: Calls):
        self.calls, self.itself = calls, self

    def __del__(self):
        self.calls.close()


def test_calls_that_end_as_garbage(monkeypatch):
    """No descriptor is closed twice: it may be another's by then."""
    problems = []
    gc.collect()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: problems.append(repr(args)))
    for _ in range(5):
        calls, call = _calls()
        called = calls.submit(call, IMAGES, "tensor", list(range(8)))
        _Owner(calls)
        del calls, called
        gc.collect()
    assert not problems
    _until(lambda: not _workers())


def test_descriptors_run_out():
    """The error says what to raise; what had been opened is closed, but for a pipe that multiprocessing forgets."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(0, 12, 2):
        calls, call = _calls()
        before, taken = _descriptors(), set(os.listdir("/proc/self/fd"))
        free = (number for number in itertools.count() if str(number) not in taken)  # tests before this one leave gaps
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, spare, None)), limit[1]))
        try:
            error = error_of(calls.prepare, call)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert isinstance(error, OSError) and error.errno == errno.EMFILE
        assert "cannot start a worker process" in str(error) and "ulimit -n" in str(error)
        assert _right(calls, call, 1)
        calls.close()
        del calls, call, error
        _until(lambda: not _workers() and _descriptors() <= before + 2)


@pytest.mark.parametrize("what", ["memfd_create", "posix_fallocate"])
def test_no_memory_to_share(monkeypatch, what):
    """All goes by message, however large."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, what, full)
    calls, call = _calls()
    large = torch.arange(8 * 3 * 200 * 200).view(8, 3, 200, 200)
    for _ in range(2):
        called = [calls.submit(call, large + i, "tensor", list(range(8))) for i in range(3)]
        for i, one in enumerate(called):
            assert torch.equal(one.images(CPU)[1], large + i + 1)
    calls.close()


def test_the_store_of_a_python_without_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    calls, call = _calls()
    assert _right(calls, call, 0)
    calls.close()


# ---- the end of the program

PROGRAM = """
import multiprocessing, os, signal, threading, time
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.workers.processes import Processes
from torchvision import transforms as T

HOW = ""  # of a child; where processes are spawned it is of no interest

def function(image):
    if os.path.exists(STUCK + HOW):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(STUCK + HOW + " is", "w").close()
        time.sleep(1000)
    if HOW == "threads":
        threading.Thread(target=time.sleep, args=(1000,)).start()
    return image.rotate(5)

def alarm(number, frame):
    while frame and frame.f_code is not Processes.wait.__code__:
        frame = frame.f_back
    if frame and os.path.exists(STUCK + HOW + " is"):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

def scenario(how, context, workers):
    global HOW
    HOW = how
    transform = T.Compose([T.CenterCrop(40), function, T.PILToTensor()])
    loader = DataLoader(DALIImageFolder(ROOT, transform), 4, fallback="silent", device="cpu", num_workers=workers,
                        multiprocessing_context=context, persistent_workers=workers > 0)
    iterator = iter(loader)
    if how != "started":
        next(iterator)
    children = multiprocessing.active_children()
    if how in ("stuck", "parent killed"):
        open(STUCK + HOW, "w").close()
        signal.signal(signal.SIGALRM, alarm)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            list(iterator)
        except KeyboardInterrupt:
            pass
    if how == "stopped":
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
    if how == "dead":
        os.kill(children[0].pid, signal.SIGKILL)
    sys.modules["keep"] = loader, iterator
    print("end", flush=True)
    if how == "parent killed":
        os.kill(os.getpid(), signal.SIGKILL)

def start(*how):
    # a forked child that ends as a program does; all that it starts has to end before its output does
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(there, 1), os.dup2(there, 2)
        os.close(there)
        scenario(*how)
        sys.exit()
    os.close(there)
    return how, child, open(here)

ROOT, STUCK = sys.argv[1:]
if __name__ == "__main__":
    hows = [(how, "fork", 2) for how in ("started", "held", "stuck", "stopped", "dead", "threads", "parent killed")]
    for how, child, output in list(map(start, *zip(*hows, ("held", None, 0), ("stopped", "spawn", 1)))):
        said = output.read()
        print(*how, "->", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said, flush=True)
"""


def test_the_end_of_the_program(image_root, tmp_path):
    """It hangs nowhere, says nothing, and leaves no process behind."""
    file = tmp_path / "program.py"
    file.write_text(f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}]\n{PROGRAM}")
    code = f"__file__ = {str(file)!r}  # which a spawned process imports\n{PROGRAM}"
    result = programs.run(code, str(image_root), str(tmp_path / "stuck"))
    hows = [f"{how} fork 2" for how in ("started", "held", "stuck", "stopped", "dead", "threads", "parent killed")]
    hows += ["held None 0", "stopped spawn 1"]
    codes = {how: -signal.SIGKILL if how.startswith("parent") else 0 for how in hows}
    assert result.stdout.splitlines() == [line for how, code in codes.items() for line in (f"{how} -> {code} end", "")]
    assert (result.returncode, result.stderr) == (0, "")


INTERRUPTED = """
import os, random, signal, threading, time, torch, warnings
warnings.simplefilter("ignore")  # of torch's own loader over a data set of ours
from dali_compat import DALIImageFolder, DataLoader
from torch.utils.data import DataLoader as Stock
from torchvision import transforms as T

def function(image):
    return image.rotate(5)

def epoch(loader):
    torch.manual_seed(3)
    return list(loader)

dataset = DALIImageFolder(sys.argv[1], T.Compose([T.CenterCrop(40), function, T.PILToTensor()]), return_index=True)
wanted = epoch(Stock(dataset, 4, shuffle=True))
loader = DataLoader(dataset, 4, shuffle=True, fallback="silent", device="cpu", num_workers=2)
draw, hits, tries, seconds = random.Random(7), 0, 0, 1.0
epoch(loader)
while hits < 10 and tries < 100:
    timer = threading.Timer(draw.uniform(0, seconds), os.killpg, (os.getpgrp(), signal.SIGINT))
    over, tries = False, tries + 1
    try:
        timer.start()
        epoch(loader)
        over = True
        time.sleep(1000)
    except KeyboardInterrupt:
        hits += not over
    timer.join()
    begin = time.monotonic()
    for mine, theirs in zip(epoch(loader), wanted, strict=True):
        assert all(map(torch.equal, mine, theirs)), (mine[1:], theirs[1:])
    seconds = time.monotonic() - begin
print(hits)
"""


def test_ctrl_c(image_root):
    """To all processes of a terminal at once. The next epoch is torch's, and no worker prints its traceback."""
    result = programs.run(INTERRUPTED, str(image_root), new_session=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "10\n", "")


def test_a_full_dev_shm(image_root):
    """Nothing of ours is there."""
    code = (
        f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}]\n"
        + """
import torch
from dali_compat import DALIImageFolder, DataLoader
from torchvision import transforms as T

def views(image):
    return {"a": T.functional.pil_to_tensor(image), "b": "text"}

for function in (lambda image: image.rotate(5), views):
    transform = T.Compose([T.CenterCrop(100), function])
    loader = DataLoader(DALIImageFolder(sys.argv[1], transform), 12, fallback="silent", device="cpu", num_workers=2,
                        collate_fn=len)
    print(list(loader))
"""
    )
    full = "mount -t tmpfs -o size=4k none /dev/shm && echo x >/dev/shm/x"
    may = shutil.which("unshare") and subprocess.run(["unshare", "-m", "sh", "-c", full], capture_output=True)
    if not may or may.returncode:
        pytest.skip("this user may not mount")
    shell = f'{full}; exec "$0" -c "$1" "$2"'
    command = ["unshare", "-m", "sh", "-c", shell, sys.executable, code, image_root]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=REPOSITORY)
    assert result.stdout == "[12, 12]\n[12, 12]\n", result.stderr
