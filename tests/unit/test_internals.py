"""Private names that the package uses, tested one by one with the installed versions."""

import ast
import ctypes
import importlib
import inspect
import io
import multiprocessing.spawn
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import programs
import pytest
import torch
from PIL import Image
from torch.utils import data
from torch.utils.data import dataloader

import dali_compat
from dali_compat.runtime import internals

PACKAGE = Path(dali_compat.__file__).parent
# Modules that reimplement private functions of torchvision, timm or Pillow, or read attributes of known data sets.
FOLLOWERS = "ops/", "tracing/", "inspection/", "data/", "archives/"


def _trees():
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _defined(tree: ast.AST) -> set[str]:
    """Return the functions, classes, variables and attributes that a module defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_private_names_of_others_are_used_in_one_module():
    trees = _trees()
    own = set.union(*map(_defined, trees.values()))
    own |= {"_replace", "_asdict", "_make", "_exit"}  # of namedtuples and os, documented
    own |= {name for names in internals.ITERATORS.values() for name in names} | {*internals.ITERATORS}
    found = {
        f"{path}: {node.attr}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own
    }
    theirs = {one for one in found if not one.startswith((*FOLLOWERS, "runtime/internals.py"))}
    assert theirs == set()


def test_hooks_of_a_fork_are_registered_in_one_module():
    users = {
        path
        for path, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    }
    assert users == {"runtime/forks.py"}


# ---- Python


FIXED = {"3.10.14": False, "3.10.15": True, "3.11.9": False, "3.11.10": True, "3.12.0": True}  # CPython's issue 112275


@pytest.mark.parametrize("version", FIXED)
def test_head_lock_is_taken_in_versions_with_the_fork_deadlock(monkeypatch, version):
    calls = []

    class Library(ctypes.PyDLL):
        def __getattr__(self, name):
            calls.append((name, super().__getattr__(name)(ctypes.c_ulong(0), None)))
            return lambda *args: None

    monkeypatch.setattr(ctypes, "PyDLL", Library)
    monkeypatch.setattr(sys, "version_info", (*map(int, version.split(".")), "final", 0))
    internals.take_head_lock()
    assert calls == ([] if FIXED[version] else [("PyThreadState_SetAsyncExc", 0)])  # no thread was changed


def test_reset_lock_frees_a_lock_of_another_thread():
    lock = threading.RLock()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    assert not lock.acquire(blocking=False)
    internals.reset_lock(lock)
    assert lock.acquire(blocking=False)


def test_at_exit_before_threads_runs_before_python_joins_threads():
    code = """
import threading
from dali_compat.runtime.internals import at_exit_before_threads
ends = threading.Event()
threading.Thread(target=ends.wait).start()
at_exit_before_threads(ends.set)
print("end")
"""
    assert programs.run(code, seconds=60).returncode == 0


def test_callers_start_at_the_caller_of_the_calling_function():
    def here():
        return next(internals.callers()).f_code.co_name

    assert here() == "test_callers_start_at_the_caller_of_the_calling_function"


@pytest.mark.parametrize("is_module", [True, False])
def test_module_runner_runs_a_module_and_a_folder(tmp_path, is_module):
    (tmp_path / ("mine.py" if is_module else "__main__.py")).write_text("print(__name__)")
    code = f"""
import sys
from dali_compat.runtime.internals import module_runner
sys.path.insert(0, {str(tmp_path)!r})
module_runner()({"mine" if is_module else "__main__"!r}, alter_argv={is_module})
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout == "__main__\n"


def test_spawned_processes_get_preparation_data():
    """install() adds itself to this data."""
    assert [*inspect.signature(multiprocessing.spawn.get_preparation_data).parameters] == ["name"]
    assert "get_preparation_data" in Path(multiprocessing.spawn.__file__).with_name("popen_spawn_posix.py").read_text()


# ---- torch and DALI


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in internals.ITERATORS.items() for name in ("__init__", *names)]
)
def test_torch_iterators_have_private_attribute(kind, name):
    made = getattr(dataloader, kind)
    loader = data.DataLoader([1, 2], num_workers="Multi" in kind)
    iterator = made(loader) if kind != "_BaseDataLoaderIter" else iter(loader)
    assert hasattr(iterator, name)


def test_torch_fetcher_of_iterable_dataset_has_dataset_iter_and_ended():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter([1])

    fetcher = iter(data.DataLoader(Stream()))._dataset_fetcher
    assert next(fetcher.dataset_iter) == 1 and fetcher.ended is False


def test_profiler_check_is_true_within_torchs_profiler():
    profiles = internals.profiler_check()
    assert not profiles()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert profiles()
    assert not profiles()


@pytest.mark.gpu
def test_current_stream_of_equals_torchs_current_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert internals.current_stream_of(torch.device("cuda", 0)) == stream.cuda_stream


def test_torch_has_cuda_get_current_raw_stream():
    if torch.backends.cuda.is_built():
        assert callable(torch._C._cuda_getCurrentRawStream)


def test_version_of_a_tensor_changes_after_in_place_operation():
    tensor = torch.zeros(2)
    before = internals.version_of(tensor)
    assert internals.version_of(tensor) == before
    tensor.add_(1)
    assert internals.version_of(tensor) > before


def test_collate_functions_are_the_registered_ones_except_torchs(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    before = internals.collate_functions()  # functions for deferred tensors, if a data set was traced

    def own(batch, *, collate_fn_map=None):
        return "own"

    monkeypatch.setitem(default_collate_fn_map, int, own)
    assert internals.collate_functions() == before | {int: own} and data.default_collate([1, 2]) == "own"


def test_leaves_by_path_are_named():
    assert internals.leaves_by_path((1, {"a": [2, 3]})) == {"[0]": 1, "[1]['a'][0]": 2, "[1]['a'][1]": 3}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    "wrap", [list, lambda made: data.Subset(made, [0, 1]), lambda made: data.ConcatDataset([made])]
)
def test_data_set_being_read_returns_the_data_set_of_the_loader(batch_size, wrap):
    class Mine(data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index > 1:
                raise IndexError
            found.append(internals.data_set_being_read())
            return index

    found: list = []
    dataset = Mine() if wrap is list else wrap(Mine())
    list(data.DataLoader(dataset, batch_size))
    assert all(one is dataset for one in found) and len(found) == 2
    dataset[0]
    assert found[-1] is None


def test_pipelines_of_dali_are_weak_references_to_all():
    dali = pytest.importorskip("nvidia.dali")
    pipeline = dali.Pipeline(1, 1, None)
    assert [one for one in internals.pipelines_of(dali.Pipeline) if one() is pipeline]
    del pipeline


# ---- frameworks and Pillow


def test_accelerate_has_what_install_looks_for():
    accelerate = pytest.importorskip("accelerate.data_loader")
    assert accelerate.__name__ == internals.ACCELERATE and accelerate.DataLoaderDispatcher
    assert "dataloader" in inspect.signature(accelerate.skip_first_batches).parameters
    assert "dataloader" in inspect.signature(accelerate.prepare_data_loader).parameters
    assert "base_dataloader" in inspect.getsource(accelerate.DataLoaderAdapter.__init__)
    assert internals.PREPARED in inspect.getsource(importlib.import_module("accelerate").Accelerator.prepare)
    state = importlib.import_module("accelerate.state")
    assert callable(state.is_initialized) and "device" in inspect.getsource(state.PartialState)


def test_framework_calls_are_those_of_the_frameworks():
    assert internals.framework_calls() == []
    space = {"__name__": internals.ACCELERATE, "calls": internals.framework_calls}
    exec("def prepare(loader): return [frame.f_locals['loader'] for frame in calls()]", space)
    assert space["prepare"]("mine") == ["mine"]


@pytest.mark.parametrize("damage", [slice(100), slice(10), slice(0)])
def test_file_of_returns_the_file_of_a_pillow_error(tmp_path, damage):
    buffer = io.BytesIO()
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(buffer, "PNG")
    file = tmp_path / "broken.png"
    file.write_bytes(buffer.getvalue()[damage])
    with open(file, "rb") as opened, pytest.raises(OSError, match="image") as caught:
        Image.open(opened).load()
    assert internals.file_of(caught.value) == str(file)
    assert internals.file_of(ValueError("x")) == ""


# ---- Lightning


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_trainer_is_at_last_batch_only_for_its_own_loader(name, tmp_path):
    lightning = pytest.importorskip(name)
    loader, other = (torch.utils.data.DataLoader(torch.ones(4, 1)) for _ in range(2))
    found = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            return self.layer(batch).sum()

        def on_train_batch_end(self, *args):
            found.append([internals.trainer_is_at_last_batch(one) for one in (loader, other)])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=3, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(Module(), loader)
    assert found == [[False, False], [False, False], [True, False]]
    assert not internals.trainer_is_at_last_batch(loader)
