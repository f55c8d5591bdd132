"""python -m dali_compat run executes a program in the same way as python does."""

import functools
import json
import os
import shutil
import subprocess
import sys
import types

import programs
import pytest
import torch
from PIL import Image

from contract.both import REPOSITORY
from dali_compat.patch import loader as patched_loader

ABOUT = """
import json, os, sys
module = sys.modules["__main__"]
spec = None if __spec__ is None else (__spec__.name, __spec__.origin)
about = [sys.argv, sys.path[0], __name__, __file__, __package__, spec, vars(module) is globals(), __doc__]
about += [type(__loader__).__name__, __builtins__ is __import__("builtins"), "torch" in sys.modules]
print(json.dumps(about), flush=True)
def fails():
    {}["key"]
"""
TRAINS = """
import json, sys
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

WEIGHT = 3  # spawned processes find it when they import the program again

def loaders(root):
    images = DataLoader(ImageFolder(root, T.Compose([T.CenterCrop(40), T.PILToTensor()])), 5)
    return images, DataLoader(TensorDataset(torch.arange(4)), 4)

def look(rank, root, queue):
    images, others = loaders(root)
    kinds = [f"{type(loader).__module__}.{type(loader).__name__}" for loader in (images, others)]
    about = WEIGHT, sys.argv[1:], "timm" in sys.modules, __name__
    queue.put((rank, kinds, images.exact, [len(labels) for _, labels in images], *about))

if __name__ == "__main__":
    queue = mp.get_context("spawn").SimpleQueue()
    look("parent", sys.argv[1], queue)
    print(json.dumps(queue.get()))
    mp.spawn(look, (sys.argv[1], queue), nprocs=1)
    print(json.dumps(queue.get()))
    sys.exit(3)
"""


def python(*arguments, cwd, **environment):
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=cwd, env=environment)


def assert_same_behavior(cwd, *program, options=(), **environment):
    """Run a program with python and with dali_compat run; exit code, output and errors must be equal."""
    theirs = python(*program, cwd=cwd, **environment)
    ours = python("-m", "dali_compat", "run", *options, *program, cwd=cwd, **environment)
    assert ours.stdout == theirs.stdout
    assert ours.returncode == theirs.returncode, ours.stderr
    assert ours.stderr == theirs.stderr
    return ours


@pytest.fixture
def scripts(tmp_path):
    (tmp_path / "sub" / "package").mkdir(parents=True)
    (tmp_path / "sub" / "neighbour.py").write_text("NAME = 'neighbour'\n")
    for name, end in {
        "ends": "import neighbour",
        "fails": "fails()",
        "exits": "sys.exit(7)",
        "exits_with_text": "sys.exit('no such data')",
        "interrupted": "raise KeyboardInterrupt",
        "hooked": "sys.excepthook = lambda *what: print('hook', what[0].__name__)\nfails()",
    }.items():
        (tmp_path / "sub" / f"{name}.py").write_text(f'"""What it is."""{ABOUT}{end}\n')
    (tmp_path / "sub" / "wrong.py").write_text("def :\n")
    (tmp_path / "sub" / "package" / "__init__.py").write_text("")
    (tmp_path / "sub" / "package" / "__main__.py").write_text(ABOUT)
    (tmp_path / "sub" / "package" / "inner.py").write_text(ABOUT + "fails()\n")
    return tmp_path


@pytest.mark.parametrize("name", ["ends", "fails", "exits", "exits_with_text", "interrupted", "hooked", "wrong"])
def test_script_runs_as_with_python(scripts, name):
    assert_same_behavior(scripts, f"sub/{name}.py", "--lr", "0.1", "-m", "--exact")


def test_module_runs_as_with_python(scripts):
    assert_same_behavior(scripts / "sub", "-m", "package", "a", options=["--exact", "--on-error", "skip"])
    assert "KeyError" in assert_same_behavior(scripts / "sub", "-m", "package.inner").stderr
    assert "No module named" in assert_same_behavior(scripts / "sub", "-m", "absent").stderr


def test_console_command_finds_modules_in_the_working_directory(scripts):
    """The folder of the console command would otherwise be the first entry of sys.path."""
    (scripts / "bin").mkdir()
    (scripts / "bin" / "dali_compat").write_text("from dali_compat.cli import main\nraise SystemExit(main())\n")
    theirs = python("-m", "package", "a", cwd=scripts / "sub")
    ours = python(str(scripts / "bin" / "dali_compat"), "run", "-m", "package", "a", cwd=scripts / "sub")
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_folder_runs_and_missing_script_fails_as_with_python(scripts):
    assert_same_behavior(scripts, "sub/package", "a")
    assert assert_same_behavior(scripts, "sub/absent.py").returncode == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has PYTHONSAFEPATH since 3.11")
def test_pythonsafepath_has_the_same_effect_as_with_python(scripts):
    (scripts / "sub" / "ends.py").write_text(ABOUT)
    assert_same_behavior(scripts, "sub/ends.py", PYTHONSAFEPATH="1")


SCRIPT = "run: pass a script, or -m and a module, as in: run train.py --epochs 90\n"


def test_run_without_a_program_prints_usage(scripts):
    done = python("-m", "dali_compat", "run", "--exact", cwd=scripts)
    assert done.returncode == 2 and done.stderr == SCRIPT


def test_loaders_of_a_program_and_of_processes_it_spawns_are_replaced(tmp_path, image_root):
    """The program imports torch after install()."""
    (tmp_path / "train.py").write_text(TRAINS)
    options = ["--exact", "--device", "cpu"]
    done = python("-m", "dali_compat", "run", *options, "train.py", str(image_root), "--lr", "1", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    parent, child = map(json.loads, done.stdout.splitlines())
    kinds = ["dali_compat.patch.loader.InstalledLoader", "torch.utils.data.dataloader.DataLoader"]
    seen = [kinds, True, [5, 5, 5, 5, 4], 3, [str(image_root), "--lr", "1"], False]
    assert parent == ["parent", *seen, "__main__"] and child == [0, *seen, "__mp_main__"]
    lines = [
        "train.py:12 runs on DALI (cpu)",
        "train.py:13 runs on torch's own loader, because no images were found in",
    ]
    assert all(done.stderr.count(line) == 2 for line in lines)  # the spawned process reports its own loaders


OWN = """
import sys
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Own(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.tensor(np.asarray(Image.open(sys.argv[1]).convert("RGB")))

loader = DataLoader(Own(), 3)
print(next(iter(loader)).shape[0])
"""


REASON = "because Own uses the image's"


@pytest.fixture
def own_program(tmp_path, monkeypatch, image_root):
    """Return a function that runs OWN after other lines, and returns the process and the line of the loader."""
    monkeypatch.chdir(tmp_path)

    def run(before, *options, python=programs.python):
        (tmp_path / "own.py").write_text(before + OWN)
        line = (before + OWN).count("\n", 0, (before + OWN).index("loader =")) + 1
        image = str(next(image_root.rglob("*.png")))
        return python("-m", "dali_compat", "run", "--device", "cpu", *options, "own.py", image), line

    return run


def test_run_reports_a_data_set_that_reads_pixels(own_program, tmp_path):
    """In a new interpreter, without imported modules, and in one with torchvision."""
    for run_python in functools.partial(python, cwd=tmp_path), programs.python:
        done, line = own_program("", python=run_python)
        assert f"own.py:{line} runs on torch's own loader, {REASON}" in done.stderr and done.stdout == "3\n"
        assert "FallbackWarning" not in done.stderr


def test_report_depends_on_quiet_fallback_and_rank(own_program, monkeypatch):
    done, line = own_program("", "--quiet")
    warned = f"own.py:{line}: FallbackWarning: torchvision does the work: Own uses"
    assert warned in done.stderr and "runs on" not in done.stderr
    done, _ = own_program("", "--fallback", "error")
    assert (
        done.returncode == 1
        and "RuntimeError: fallback='error', but torchvision does the work: Own uses" in done.stderr
    )
    monkeypatch.setenv("RANK", "1")
    assert "runs on" not in own_program("")[0].stderr


PREPARED = """
import sys
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

class Looks(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image * (1 if image.max() < 2 else 2), target

transform = T.Compose([T.CenterCrop(40), T.ToTensor()])
loaders = [DataLoader(kind(sys.argv[1], transform), 5) for kind in (ImageFolder, Looks)]
if sys.argv[2] == "iterated":
    print([sum(len(labels) for _, labels in loader) for loader in loaders])
loaders = [Accelerator(cpu=True).prepare(loader) for loader in loaders]
for epoch in range(2):
    print([sum(len(labels) for _, labels in loader) for loader in loaders])
"""


@pytest.mark.parametrize("before", ["new", "iterated"])
def test_run_reports_each_loader_that_accelerate_prepares_once(tmp_path, monkeypatch, image_root, before):
    """Two loaders are created in one line, and the second falls back."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PREPARED)
    done = programs.python("-m", "dali_compat", "run", "--device", "cpu", "train.py", image_root, before)
    assert done.returncode == 0 and set(done.stdout.splitlines()) == {"[24, 24]"}, done.stderr
    dali, fallen = [line.partition(" runs on ")[2] for line in done.stderr.splitlines() if " runs on " in line]
    assert dali == "DALI (cpu)" and fallen.startswith("torchvision, because Looks overrides __getitem__")


ON_A_GPU = """
import sys, types
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

loader = DataLoader(ImageFolder(sys.argv[1]), 4)
loader._route = types.SimpleNamespace(device=torch.device(sys.argv[2]), close=lambda: None)
raise {}
"""
NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
DEVICE_ERRORS = [  # messages of torch
    TypeError(NUMPY),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    RuntimeError("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"),
]


def test_device_error_is_followed_by_a_hint_to_use_the_cpu(tmp_path, monkeypatch, image_root):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ON_A_GPU.format(repr(DEVICE_ERRORS[0])))
    done = programs.python("-m", "dali_compat", "run", "--device", "cpu", "train.py", image_root, "cuda:0")
    *_, theirs, ours = done.stderr.splitlines()
    assert done.returncode == 1 and theirs == f"TypeError: {NUMPY}"
    assert "batches are on cuda:0" in ours and ours.endswith("run it with --device cpu")


BAD_FILE = """
import sys
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, ToTensor

def train():
    for images, labels in DataLoader(ImageFolder(sys.argv[1], Compose([CenterCrop(40), ToTensor()])), 5):
        print(len(labels))

train()
"""


@pytest.fixture
def bad_folder(tmp_path, image_root):
    shutil.copytree(image_root, tmp_path / "images")
    bad = sorted((tmp_path / "images").rglob("*.jpg"))[1]
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    (tmp_path / "train.py").write_text(BAD_FILE)
    return tmp_path


def test_unreadable_file_is_reported_without_frames_of_the_loader(bad_folder, monkeypatch):
    monkeypatch.chdir(bad_folder)
    done = programs.python("-m", "dali_compat", "run", "--device", "cpu", "--quiet", "train.py", "images")
    first, *calls, error, remedy = done.stderr.splitlines()
    assert done.returncode == 1 and first == "Traceback (most recent call last):"
    assert [line.strip() for line in calls if line.startswith("  File")] == [
        f'File "{bad_folder}/train.py", line 11, in <module>',
        f'File "{bad_folder}/train.py", line 8, in train',
    ]
    assert error.startswith(f"dali_compat.errors.ImageReadError: cannot decode {bad_folder}/images/class_")
    assert "--on-error replace loads another image" in remedy and "--on-error skip" in remedy


def test_images_of_several_sizes_are_reported_without_frames_of_the_loader(tmp_path, image_root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for width in (40, 50):
        Image.new("RGB", (width, 40)).save(folder / f"{width}.png")
    (tmp_path / "train.py").write_text(BAD_FILE.replace("CenterCrop(40), ", ""))
    done = programs.python("-m", "dali_compat", "run", "--device", "cpu", "--quiet", "train.py", "images")
    assert done.returncode == 1 and done.stderr.count("  File") == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("RuntimeError: stack expects") and "50.png" in error and "CenterCrop(n)" in error


def test_excepthook_of_the_program_gets_all_frames(bad_folder, monkeypatch):
    monkeypatch.chdir(bad_folder)
    hook = (
        "import traceback\nsys.excepthook = lambda kind, error, trace: print(len(traceback.extract_tb(trace)))\ntrain()"
    )
    (bad_folder / "train.py").write_text(BAD_FILE.rsplit("train()", 1)[0] + hook)
    done = programs.python("-m", "dali_compat", "run", "--device", "cpu", "--quiet", "train.py", "images")
    assert int(done.stdout.split()[-1]) > 5


def test_on_error_option_handles_unreadable_files(bad_folder, monkeypatch):
    monkeypatch.chdir(bad_folder)
    options = ["--device", "cpu", "--quiet", "--on-error", "skip"]
    done = programs.python("-m", "dali_compat", "run", *options, "train.py", "images")
    assert done.returncode == 0 and sum(map(int, done.stdout.split())) == 23 and "BadImageWarning" in done.stderr


@pytest.fixture
def installed_loader(monkeypatch):
    """A loader as created after install(), with batches on a GPU."""
    loader = types.SimpleNamespace(_route=types.SimpleNamespace(device=torch.device("cuda:0")))
    monkeypatch.setattr(patched_loader, "made", [loader])
    return loader


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=["numpy", "model", "weights"])
def test_remedy_for_device_errors_is_shown_only_if_batches_are_on_a_gpu(installed_loader, error):
    assert "batches are on cuda:0" in patched_loader.remedy(error)
    installed_loader._route.device = torch.device("cpu")
    assert patched_loader.remedy(error) == ""
    installed_loader._route = None
    assert patched_loader.remedy(error) == ""


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: out of memory"), KeyError("cuda and cpu")], ids=repr)
def test_remedy_is_not_shown_for_other_errors(installed_loader, error):
    assert patched_loader.remedy(error) == ""
