"""Tests of the test helpers: the generated folder, and the report of a hanging test."""

import shutil
import subprocess
import sys

import helpers
import hung
import numpy as np
import programs
import pytest
from helpers import make_folder, make_image
from PIL import Image

_HANGS = """
import os, time, hung

def child_sleeps():
    while os.getppid() == parent:
        time.sleep(0.1)

def parent_sleeps(): time.sleep(100)

parent = os.getpid()

hung._DEBUGGERS = ()  # gdb takes a minute for torch's symbols if the machine is busy
hung.prepare()
hung.limit("called off", 0.1)()
child = os.fork() or child_sleeps()
hung.limit("a test", 1)
parent_sleeps()
"""


def test_image_root_has_the_documented_images(image_root):
    classes = sorted(path.name for path in image_root.iterdir())
    assert classes == ["class_a", "class_b", "class_c"]
    files = sorted(image_root.glob("*/*"))
    assert len(files) == 24
    assert [path.name for path in files[:3]] == ["00.jpg", "01.jpg", "02.png"]
    gray, progressive, alpha = (Image.open(path) for path in files[:3])
    assert gray.mode == "L"
    assert progressive.mode == "RGB" and progressive.info["progressive"]
    assert alpha.mode == "RGBA" and len(np.unique(np.asarray(alpha)[..., 3])) > 10
    assert len({Image.open(path).size for path in files}) > 12


def test_make_folder_is_reproducible_with_a_seed(tmp_path):
    first, second, other = (make_folder(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    contents = [[path.read_bytes() for path in sorted(root.glob("*/*"))] for root in (first, second, other)]
    assert contents[0] == contents[1] != contents[2]


def test_make_image_is_smoother_than_noise():
    image = make_image(np.random.default_rng(0), 90, 120).astype(int)
    assert image.shape == (90, 120, 3)
    step = np.abs(np.diff(image, axis=1)).mean()
    assert 1 < step < 20  # uniform noise has 85


def test_a_hang_is_reported_for_all_processes():
    done = programs.run(_HANGS, seconds=60)
    assert done.returncode == 1 and "a test has not ended within 1 s" in done.stderr
    assert "in parent_sleeps" in done.stderr and "in child_sleeps" in done.stderr


def test_a_program_that_hangs_in_c_is_reported_with_its_python_stack(tmp_path, monkeypatch):
    monkeypatch.setattr(hung, "_DEBUGGERS", ())  # gdb would read the symbols of torch and DALI for half a minute
    code = "import ctypes, sys, time\nprint('said before', file=sys.stderr, flush=True)\nctypes.PyDLL(None).pause()"
    with open(tmp_path / "stderr", "w") as file, monkeypatch.context() as context:
        context.setattr(hung, "_stderr", file)
        with pytest.raises(subprocess.TimeoutExpired):
            programs.run(code, seconds=5)
    report = (tmp_path / "stderr").read_text()
    assert "said before" in report and 'File "<string>", line 3 in <module>' in report


@pytest.mark.skipif(not (shutil.which("py-spy") or shutil.which("gdb")), reason="needs a debugger")
def test_native_stack_of_a_process_is_reported(tmp_path, monkeypatch):
    code = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).pause()"
    with (
        open(tmp_path / "stderr", "w") as file,
        monkeypatch.context() as context,
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process,
    ):
        process.stdout.readline()
        context.setattr(hung, "_stderr", file)
        hung._native(process.pid)
        process.kill()
    report = (tmp_path / "stderr").read_text()
    assert "pause" in report or "ptrace" in report or "ermi" in report  # or why it cannot attach


def test_a_hang_is_reported_without_debuggers(tmp_path, monkeypatch):
    monkeypatch.setattr(hung, "_DEBUGGERS", (["no such debugger"], ["false"]))
    with open(tmp_path / "stderr", "w") as file, monkeypatch.context() as context:
        context.setattr(hung, "_stderr", file)
        with pytest.raises(subprocess.TimeoutExpired):
            programs.run("import time\ntime.sleep(100)", seconds=5)
    assert 'File "<string>", line 2 in <module>' in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize(("everything", "found"), [(False, [0, 6, 10]), (True, list(range(12)))])
def test_some_selects_one_of_each_five(monkeypatch, everything, found):
    monkeypatch.setattr(helpers, "ALL", everything)
    assert helpers.some(list(range(12))) == found
