"""What every test can use: the gpu marker, a time limit, and folders of images."""

import gc
import os
import signal
import time
from pathlib import Path

import hung
import pages
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS = 300
_CONTRACT = """
aside batch batched cache calls changes dataset depths errors fallback frameworks install_frameworks iteration
jpeg_kinds lightning on_error order processes real_images resident resume resume_frameworks review run stats
storages timm timm_policies too_small torchvision_sets views
"""
_UNIT = """
batch_color batch_geometry batch_lists distributions distributions_fed distributions_policy distributions_values
graph_geometry laws warm
"""
# What takes longest: left out by -m "not slow". A file that is no longer slow, or new and slow, changes its place here.
SLOW = (
    *("examples/", "faults/"),
    *(f"contract/test_{name}.py" for name in _CONTRACT.split()),
    *(
        f"parity/test_{name}.py"
        for name in ("batched", "cases", "chains", "compare", "files", "in_memory", "only", "photos", "resize", "ties")
    ),
    *(f"unit/test_{name}.py" for name in _UNIT.split()),
    *(f"archives/test_{name}.py" for name in ("datasets", "lmdb", "pack")),
    *(
        "docs/test_commands.py",
        "remote/test_archives.py",
        "remote/test_commands.py",
        "examples/test_imagenet.py",
        "test_bench.py",
        "test_check.py",
        "test_cli.py",
        "test_installation.py",
        "test_interpreted.py",
    ),
)
# Whose tests take many seconds each, with processes of their own: they come first, or the run would end with one of
# them and a core that waits.
FIRST = (
    *("examples/", "docs/test_joint.py", "docs/test_toolkit.py", "docs/test_training.py"),
    *(f"faults/test_{name}.py" for name in ("crash", "faults", "own_programs", "workers")),
    *("test_interpreted.py", "test_types.py"),
)


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs ignore it, and what they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hung.prepare()
    gc.disable()  # until all tests are collected: there is much to go through, and no garbage
    if getattr(config.option, "dist", "") == "load":  # what -n gives: one process would be left with the last tests
        config.option.dist = "worksteal"


def pytest_collectstart():
    """In the processes that run tests, before each file: the one that starts these, and waits, does without torch."""
    import torch
    from torch.utils.data import _utils
    from torchvision.transforms import v2

    # seconds for a worker process to end by itself, 5 of torch's own. That of an iterator that was held by an error
    # does not: its queues' threads are garbage before it
    _utils.MP_STATUS_CHECK_INTERVAL = 0.5
    if not hasattr(v2.Transform, "make_params"):  # its name since torchvision 0.21
        v2.Transform.make_params = lambda self, inputs: self._get_params(inputs)
    if count := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # torch's threads of several processes wait for each other
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(count)))
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # of what they start


def pytest_collection_finish():
    """What is there before the first test stays: no collection, of which many tests ask for some, goes through it."""
    gc.collect()
    gc.freeze()
    gc.enable()
    pages.collapse()


def pytest_runtest_logfinish():
    pages.collapse_after_forks()


def pytest_unconfigure():
    gc.unfreeze()  # for the interpreter's end


def pytest_collection_modifyitems(config, items):
    import torch

    left_out = _left_out(items)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: not _path(item).startswith(FIRST))
    for item in items:
        if _path(item).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))


def _path(item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def _left_out(items) -> set:
    """Cases of tests that are marked alike."""
    from helpers import some

    cases = {}
    for item in items:
        if item.get_closest_marker("alike") and not item.get_closest_marker("gpu"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    return {item for case in cases.values() for item in set(case) - set(some(case))}


@pytest.hookimpl(optionalhook=True)  # of pytest-timeout, where that is installed
def pytest_timeout_set_timer(item, settings):
    item.cancel_timeout = hung.limit(item.nodeid, settings.timeout)
    return True


@pytest.fixture(autouse=True)
def nvjpeg_stays_open(request):
    """Beside tests on a GPU: a decoder is made in a fraction of the time then."""
    if request.node.get_closest_marker("gpu"):
        request.getfixturevalue("nvjpeg")


@pytest.fixture(scope="session")
def nvjpeg():
    from dali_compat.engine.dali import warm

    handle = warm.Handle(0)
    yield
    handle.close()


@pytest.fixture(scope="session")
def image_root(tmp_path_factory) -> Path:
    """An ImageFolder root: 3 classes x 8 images of varied sizes;
    one gray JPEG, one progressive JPEG, one PNG with alpha."""
    from helpers import make_folder

    root = make_folder(tmp_path_factory.mktemp("images"))
    time.sleep(0.05)  # data sets of one's own read files themselves that were written just now
    return root


@pytest.fixture(scope="session")
def photos() -> Path:
    """Real photos as an ImageFolder root: the folder that DATA names, or those of docs/."""
    return Path(os.environ.get("DATA") or REPOSITORY / "docs" / "photos")


@pytest.fixture(scope="session")
def odd() -> Path:
    """The folder of unusual image files that ODD names."""
    if not os.environ.get("ODD"):
        pytest.skip("ODD names no folder of unusual image files")
    return Path(os.environ["ODD"])
