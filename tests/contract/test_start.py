"""The GPU's decoder starts in the background: when, how often, and never where no GPU is used. And no process uses
another GPU than its loader's."""

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as T

from contract.both import python, said
from dali_compat import DALIArrayDataset, DataLoader
from dali_compat.engine.dali import warm
from dali_compat.routes import resident

GPU = "cuda:1"  # named, so that nothing asks for the current one


@pytest.fixture
def begun(monkeypatch):
    """Indices of GPUs whose decoder has begun to start; none does."""
    calls = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(warm, "begin", calls.append)
    return calls


@pytest.fixture
def cuda_runs(monkeypatch):
    """torch believes that CUDA has started."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)


@pytest.fixture
def cuda_waits(monkeypatch):
    """torch believes that CUDA has not started, and can."""
    started = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(started))
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(True))
    return started


def _loader(dataset, **options) -> DataLoader:
    return DataLoader(dataset, 4, **{"fallback": "error", "device": GPU} | options)


def test_a_new_loader_begins_where_cuda_has_started(folder, begun, cuda_runs):
    _loader(folder)
    assert begun == [1]


def test_a_new_loader_leaves_cuda_alone(folder, begun, cuda_waits):
    loader = _loader(folder)
    loader.explain()
    iter(loader)
    assert begun == [] and not cuda_waits


def test_explain_begins_nothing(folder, begun, cuda_runs):
    loader = _loader(folder)
    begun.clear()
    loader.explain()
    assert begun == []


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"exact": True}], ids=["cpu", "exact"])
def test_nothing_begins_where_the_cpu_decodes(folder, begun, cuda_runs, options):
    iter(_loader(folder, **options))
    assert begun == []


def test_nothing_begins_where_torch_does_the_work(begun, cuda_runs):
    _loader(TensorDataset(torch.zeros(8, 3)), fallback="silent")
    assert begun == []


def test_nothing_begins_where_there_is_nothing_to_decode(begun, cuda_runs, monkeypatch):
    monkeypatch.setattr(resident, "free_memory", lambda device: 1 << 30)
    images = torch.zeros(8, 16, 16, 3, dtype=torch.uint8)
    loader = _loader(DALIArrayDataset(images, torch.arange(8), T.ToTensor()))
    assert isinstance(loader._route, resident.ResidentRoute) and begun == []


def test_close_frees_it(folder, begun, cuda_runs, monkeypatch):
    dropped = []
    monkeypatch.setattr(warm, "drop", dropped.append)
    _loader(folder).close()
    assert dropped == [1]
    _loader(folder, device="cpu").close()
    assert dropped == [1]


# ---- on a GPU, each in a process of its own

COUNTED = """
import os, sys, threading
import torch
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.engine.dali import warm
from contract.both import RANDOM
calls, make = [], warm.Handle
warm.Handle = lambda index: (calls.append(index), make(index))[1]
def made():
    return DataLoader(DALIImageFolder(sys.argv[1], RANDOM), 4, fallback="error")
"""
STARTED = COUNTED + "torch.zeros(1, device='cuda')\n"


def _says(code: str, *args: str) -> str:
    result = python(code, *args)
    assert result.stderr == ""
    return said(result)


@pytest.mark.gpu
def test_a_new_loader_does_not_start_cuda(image_root):
    code = COUNTED + "loader = made()\nloader.explain()\nprint(torch.cuda.is_initialized(), calls, len(warm._starts))"
    assert _says(code, str(image_root)) == "False [] 0\n"


@pytest.mark.gpu
def test_it_begins_once_a_process(image_root):
    code = """
first, second = made(), made()
print(len(warm._starts))
for loader in (first, second, first):
    print(sum(len(labels) for images, labels in loader))
warm.finish()
print(calls, warm._starts[0]._made)
"""
    assert _says(STARTED + code, str(image_root)) == "1\n24\n24\n24\n[0] None\n"


@pytest.mark.gpu
def test_it_succeeds(image_root):
    """Errors are left to the first pipeline: nobody would see that it never works."""
    code = "made()\nwarm.finish()\nprint(calls, type(warm._starts[0]._made).__name__)"
    assert _says(STARTED + code, str(image_root)) == "[0] Handle\n"


@pytest.mark.gpu
@pytest.mark.parametrize("then", ["nothing", "iter", "next", "close", "held"])
def test_a_program_ends_quietly_right_after(image_root, then):
    code = {
        "nothing": "",
        "iter": "iter(loader)",
        "next": "next(iter(loader))",
        "close": "loader.close()",
        "held": "warm.finish()\nsys.modules['keep'] = loader",
    }[then]
    assert _says(f"{STARTED}loader = made()\n{code}\nprint('done')", str(image_root)) == "done\n"


@pytest.mark.gpu
def test_a_fork_right_after(image_root):
    """The child may load with torch, and the parent on the GPU."""
    code = """
import warnings
from contract.both import stock
warnings.simplefilter("ignore")  # Python warns of forks beside threads
loader = made()
child = os.fork()
if child == 0:
    mine = stock(DALIImageFolder(sys.argv[1], RANDOM), 4)
    count = sum(len(labels) for images, labels in mine)
    os._exit(7 if count == 24 and not warm._starts else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(len(labels) for images, labels in loader))
"""
    assert _says(STARTED + code, str(image_root)) == "7 24\n"


@pytest.mark.gpu
def test_torchs_workers_right_after(image_root):
    code = """
import warnings
warnings.simplefilter("ignore")
from contract.both import stock
loader = made()
print(sum(len(labels) for images, labels in stock(DALIImageFolder(sys.argv[1], RANDOM), 4, num_workers=2)))
print(sum(len(labels) for images, labels in loader))
"""
    assert _says(STARTED + code, str(image_root)) == "24\n24\n"


OTHER_GPU = """
import ctypes, os, sys
import torch
from torchvision import transforms as T
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader
from dali_compat.engine.planes.engines import known_engine
from contract.both import RANDOM

def in_use(index):
    "Whether this process has a CUDA context there."
    flags, active = ctypes.c_uint(), ctypes.c_int()
    answer = ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active))
    assert answer == 0, answer
    return bool(active.value)

dataset, options = DALIImageFolder(sys.argv[1], RANDOM), {}
if sys.argv[2].startswith("exact"):
    options = {"exact": True}
    os.environ["DALI_COMPAT_JPEG_ENGINE"] = str(int(sys.argv[2].endswith("engine")))
elif sys.argv[2] == "PIL":
    dataset.samples = dataset.imgs = [one for one in dataset.samples if one[0].endswith(".png")] * 8
    dataset.targets = [target for _, target in dataset.samples]
elif sys.argv[2].startswith("cache"):
    options = {"cache": 1 << 30, "cache_device": sys.argv[2].split()[1]}
elif sys.argv[2] == "workers":
    dataset.transform = T.Compose([*RANDOM.transforms, T.Lambda(torch.neg)])
    options = {"num_workers": 2, "fallback": "silent"}
elif sys.argv[2] == "policies":
    chosen = [T.RandAugment(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    dataset.transform = T.Compose([T.RandomResizedCrop(32), *chosen, T.ToTensor()])
elif sys.argv[2] == "arrays":
    images = torch.randint(256, (64, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    dataset = DALIArrayDataset(images, torch.arange(64), RANDOM)
loader = DataLoader(dataset, 4, **{"fallback": "error"} | options, device="cuda:1")

def epochs():
    torch.manual_seed(0)
    made = []
    for _ in range(2):
        made += [images for images, labels in loader]
        engine = known_engine(torch.device("cuda:1"))
        if engine is not None and not isinstance(engine, str):
            engine.settle(60)  # its threads, too, use no other GPU; the second epoch's files are known to it
            assert "the JPEG engine decodes 0 files" not in loader.explain()
    return made

made = epochs()
assert all(images.device == torch.device("cuda:1") for images in made)
torch.cuda.synchronize(1)
print(in_use(0), in_use(1))
torch.cuda.set_device(1)  # as users should
print(all(torch.equal(one, other) for one, other in zip(made, epochs(), strict=True)))
del made
loader.close()
print(in_use(0), in_use(1))
"""


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    "how", ["plain", "exact", "exact engine", "PIL", "cache cuda", "cache cpu", "workers", "arrays", "policies"]
)
def test_a_process_uses_no_gpu_but_its_own(image_root, how):
    """Where the loader alone names it: the current device stays GPU 0."""
    assert said(python(OTHER_GPU, str(image_root), how)) == "False True\nTrue\nFalse True\n"
