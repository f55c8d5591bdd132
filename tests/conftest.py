"""Fixtures, markers and time limits for all tests."""

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
# The slowest files, excluded by -m "not slow". Update this list when a file becomes slow or fast.
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
# Files whose tests run for many seconds in processes. They are scheduled first, so that the run does not end with one
# of them on one core while the others are idle.
FIRST = (
    *("examples/", "docs/test_joint.py", "docs/test_toolkit.py", "docs/test_training.py"),
    *(f"faults/test_{name}.py" for name in ("crash", "faults", "own_programs", "workers")),
    *("test_interpreted.py", "test_types.py"),
)


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # background jobs of a shell, and their children, ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hung.prepare()
    gc.disable()  # collecting the tests creates many objects and no garbage
    if getattr(config.option, "dist", "") == "load":  # the default of -n would leave the last tests to one process
        config.option.dist = "worksteal"


def pytest_collectstart():
    """Configure torch before each file is collected. xdist's controller collects nothing and does not import torch."""
    import torch
    from torch.utils.data import _utils
    from torchvision.transforms import v2

    # Seconds to wait for a worker process to exit; torch's default is 5. The workers of an iterator that an exception
    # kept alive do not exit, because the queues' threads are collected first.
    _utils.MP_STATUS_CHECK_INTERVAL = 0.5
    if not hasattr(v2.Transform, "make_params"):  # torchvision renamed it in 0.21
        v2.Transform.make_params = lambda self, inputs: self._get_params(inputs)
    if count := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # threads of several processes would compete for the cores
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(count)))
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # for child processes


def pytest_collection_finish():
    """Exempt the objects that exist now from garbage collection, which many tests trigger."""
    gc.collect()
    gc.freeze()
    gc.enable()
    pages.collapse()


def pytest_runtest_logfinish():
    pages.collapse_after_forks()


def pytest_unconfigure():
    gc.unfreeze()  # so that the interpreter exits normally


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
    """Return the cases to skip because similar cases of the same test run."""
    from helpers import some

    cases = {}
    for item in items:
        if item.get_closest_marker("alike") and not item.get_closest_marker("gpu"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    return {item for case in cases.values() for item in set(case) - set(some(case))}


@pytest.hookimpl(optionalhook=True)  # defined by pytest-timeout
def pytest_timeout_set_timer(item, settings):
    item.cancel_timeout = hung.limit(item.nodeid, settings.timeout)
    return True


@pytest.fixture(autouse=True)
def nvjpeg_stays_open(request):
    """Keep nvJPEG open during GPU tests; this makes creating a decoder several times faster."""
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
    """Create an ImageFolder root with 3 classes of 8 images of various sizes.

    Includes one grayscale JPEG, one progressive JPEG and one PNG with alpha.
    """
    from helpers import make_folder

    root = make_folder(tmp_path_factory.mktemp("images"))
    time.sleep(0.05)  # custom data sets read recently written files themselves
    return root


@pytest.fixture(scope="session")
def photos() -> Path:
    """Return an ImageFolder root with real photos: the folder in the environment variable DATA, or docs/photos."""
    return Path(os.environ.get("DATA") or REPOSITORY / "docs" / "photos")


@pytest.fixture(scope="session")
def odd() -> Path:
    """Return the folder of unusual image files given by the environment variable ODD."""
    if not os.environ.get("ODD"):
        pytest.skip("ODD names no folder of unusual image files")
    return Path(os.environ["ODD"])
