"""data/prefetch.py: processes that look at files give what looking at them here gives, or nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_compat.data import prefetch
from dali_compat.data.header import DALI, PIL, UNREADABLE
from dali_compat.data.headers import Headers, facts_of
from dali_compat.data.prefetch import HeaderPrefetcher, look
from dali_compat.runtime import forks

KINDS = {
    "jpeg.jpg": DALI,
    "cut.jpg": PIL,
    "marked.jpg": PIL,
    "png.png": DALI,
    "palette.gif": PIL,
    "text.jpg": UNREADABLE,
    "missing.jpg": UNREADABLE,
    "ünïcode \udcff.jpg": DALI,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
    image.save(root / "jpeg.jpg")
    image.save(root / "png.png")
    image.save(root / "palette.gif")
    data = (root / "jpeg.jpg").read_bytes()
    (root / "cut.jpg").write_bytes(data[:-200])
    (root / "marked.jpg").write_bytes(data[:-300] + b"\xff\x27" + data[-298:])
    (root / "text.jpg").write_bytes(b"no image")
    (root / "ünïcode \udcff.jpg").write_bytes(data)
    return [os.fspath(root / name) for name in KINDS]


@pytest.mark.parametrize("module", ["dali_compat.data.prefetch", "dali_compat.remote.event_loop"])
def test_processes_start_without_torch(module):
    """With it a first epoch would have them seconds later, and each would take half a gigabyte."""
    code = f"import sys, {module}; print({{'torch', 'torchvision', 'nvidia.dali'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


@pytest.fixture(scope="module")
def started():
    made = HeaderPrefetcher(2)
    wait_until_ready(made)
    yield made
    made.close()


def wait_until_ready(prefetcher):
    end = time.monotonic() + 60
    while not all(process.is_ready() for process in prefetcher._processes):
        assert time.monotonic() < end
        time.sleep(0.01)


def same(found, wanted):
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_packages_of_pythonpath_where_the_current_folder_is_kept_out(paths, tmp_path, monkeypatch):
    """Its first folder is Python's first then."""
    packages = Path(np.__file__).parents[1]
    (tmp_path / "deps").symlink_to(packages)
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.remove({os.fspath(packages)!r})")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/deps:{tmp_path}")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    made = HeaderPrefetcher(1)
    try:
        wait_until_ready(made)
        assert same(made.result(made.request(paths)), facts_of([look(path) for path in paths]))
    finally:
        made.close()


def test_a_look_tells_who_reads_a_file_and_whether_it_is_intact(paths):
    for path, kind in zip(paths, KINDS.values(), strict=True):
        header = look(path)
        assert header.kind == kind and header.intact == (kind == DALI), path
        assert kind == UNREADABLE or (header.height, header.width) == (40, 50)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 200])
def test_answers_are_what_a_look_gives_whatever_the_order(started, paths, count):
    several = [(paths * 40)[shift : shift + count] for shift in range(3)]
    tickets = [started.request(files) for files in several]
    for i in (1, 2, 0):
        assert same(started.result(tickets[i]), facts_of([look(path) for path in several[i]]))


def test_answers_that_nobody_asked_for_are_in_nobodys_way(started, paths):
    dropped = [started.request(paths) for _ in range(20)]
    assert None not in dropped
    assert same(started.result(started.request(paths[:3])), facts_of([look(path) for path in paths[:3]]))


def test_a_request_that_would_fill_a_pipe_is_refused(started, paths):
    assert started.request(paths * 10_000) is None
    assert started.request(paths) is not None


def test_whoever_has_not_started_is_not_waited_for(paths, monkeypatch):
    monkeypatch.setattr(forks, "_CODE", "import time; time.sleep(600)")  # never
    made = HeaderPrefetcher(1)
    try:
        assert made.request(paths) is None
    finally:
        made.close()


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_process_that_is_killed_ends_them_all(paths, has_answered):
    made = HeaderPrefetcher(2)
    wait_until_ready(made)
    killed, ids = made._processes[1], [process._process.pid for process in made._processes]
    if not has_answered:
        os.kill(ids[1], signal.SIGSTOP)
    ticket = made.request(paths)
    assert not has_answered or killed.answers.poll(60)
    os.kill(ids[1], signal.SIGKILL)
    killed._process.wait()
    assert (made.result(ticket) is not None) == has_answered
    assert made.request(paths) is None
    made.close()
    for number in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@pytest.mark.parametrize("method", ["ask", "answer"])
def test_an_interrupt_ends_their_use(paths, method, monkeypatch):
    made = HeaderPrefetcher(2)
    wait_until_ready(made)
    ticket = made.request(paths)

    def interrupted(*args):
        raise KeyboardInterrupt

    processes = list(made._processes)
    monkeypatch.setattr(prefetch._Process, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.request(paths) if method == "ask" else made.result(ticket)
    monkeypatch.undo()
    assert made.request(paths) is None
    assert method == "answer" or made.result(ticket) is None
    prefetch._end(processes)


def test_they_end_with_whoever_asks():
    made = HeaderPrefetcher(1)
    wait_until_ready(made)
    process = made._processes[0]
    process.requests.close()
    assert process._process.wait(timeout=60) == 0
    made.close()


def test_what_is_known_meanwhile_stays(paths):
    headers, keys = Headers(), np.arange(3)
    index, facts = np.array([4, 0, 2]), facts_of([look(path) for path in paths[:3]])
    assert headers.unseen(5) == 5 and headers.unknown(index, keys).all()
    headers.add(index[:2], keys[:2], facts[:2])
    headers.use_pil(4)
    headers.add(index, keys, facts)
    found = headers.facts(index, keys, None)
    assert found["kinds"].tolist() == [PIL, PIL, PIL] and found["intact"].tolist() == [True, False, False]
    assert headers.unseen(5) == 2 and headers.unknown(index, keys + 1).all()
