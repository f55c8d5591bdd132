"""Processes that inspect files (data/prefetch.py) return the headers that this process would read, or nothing."""

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
from dali_compat.data.prefetch import HeaderPrefetcher, checked_header
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
def test_worker_modules_do_not_import_torch(module):
    """Importing it would delay the first epoch by seconds, and take half a gigabyte in each process."""
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


def identical(found, wanted):
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_prefetcher_with_pythonsafepath_finds_packages_of_pythonpath(paths, tmp_path, monkeypatch):
    """The first folder of PYTHONPATH then comes first in sys.path."""
    packages = Path(np.__file__).parents[1]
    (tmp_path / "deps").symlink_to(packages)
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.remove({os.fspath(packages)!r})")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/deps:{tmp_path}")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    made = HeaderPrefetcher(1)
    try:
        wait_until_ready(made)
        assert identical(made.result(made.request(paths)), facts_of([checked_header(path) for path in paths]))
    finally:
        made.close()


def test_look_returns_the_kind_and_whether_the_file_is_intact(paths):
    for path, kind in zip(paths, KINDS.values(), strict=True):
        header = checked_header(path)
        assert header.kind == kind and header.intact == (kind == DALI), path
        assert kind == UNREADABLE or (header.height, header.width) == (40, 50)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 200])
def test_results_equal_look_when_fetched_in_any_order(started, paths, count):
    several = [(paths * 40)[shift : shift + count] for shift in range(3)]
    tickets = [started.request(files) for files in several]
    for i in (1, 2, 0):
        assert identical(started.result(tickets[i]), facts_of([checked_header(path) for path in several[i]]))


def test_results_that_are_never_fetched_do_not_block_later_requests(started, paths):
    dropped = [started.request(paths) for _ in range(20)]
    assert None not in dropped
    assert identical(started.result(started.request(paths[:3])), facts_of([checked_header(path) for path in paths[:3]]))


def test_request_that_would_fill_the_pipe_returns_none(started, paths):
    assert started.request(paths * 10_000) is None
    assert started.request(paths) is not None


def test_request_before_processes_have_started_returns_none(paths, monkeypatch):
    monkeypatch.setattr(forks, "_CODE", "import time; time.sleep(600)")  # never ready
    made = HeaderPrefetcher(1)
    try:
        assert made.request(paths) is None
    finally:
        made.close()


@pytest.mark.parametrize("has_answered", [False, True])
def test_prefetcher_stops_all_processes_when_one_is_killed(paths, has_answered):
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


@pytest.mark.parametrize("method", ["send", "answer"])
def test_prefetcher_is_not_used_after_keyboard_interrupt(paths, method, monkeypatch):
    made = HeaderPrefetcher(2)
    wait_until_ready(made)
    ticket = made.request(paths)

    def interrupted(*args):
        raise KeyboardInterrupt

    processes = list(made._processes)
    monkeypatch.setattr(prefetch._Process, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.request(paths) if method == "send" else made.result(ticket)
    monkeypatch.undo()
    assert made.request(paths) is None
    assert method == "answer" or made.result(ticket) is None
    prefetch._end(processes)


def test_process_ends_when_its_parent_closes_the_pipe():
    made = HeaderPrefetcher(1)
    wait_until_ready(made)
    process = made._processes[0]
    process.requests.close()
    assert process._process.wait(timeout=60) == 0
    made.close()


def test_prefetched_headers_do_not_overwrite_known_ones(paths):
    headers, keys = Headers(), np.arange(3)
    index, facts = np.array([4, 0, 2]), facts_of([checked_header(path) for path in paths[:3]])
    assert headers.unseen(5) == 5 and headers.unknown(index, keys).all()
    headers.add(index[:2], keys[:2], facts[:2])
    headers.use_pil(4)
    headers.add(index, keys, facts)
    found = headers.facts(index, keys, None)
    assert found["kinds"].tolist() == [PIL, PIL, PIL] and found["intact"].tolist() == [True, False, False]
    assert headers.unseen(5) == 2 and headers.unknown(index, keys + 1).all()
