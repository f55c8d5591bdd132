"""The GPU's decoder starts once, in the background, and only if a GPU is used. A process uses only its loader's GPU."""

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as T

from contract.both import python, said
from dali_compat import DALIArrayDataset, DataLoader
from dali_compat.engine.dali import warm
from dali_compat.routes import resident

GPU = "cuda:1"  # named, so that the current device is not queried


@pytest.fixture
def starts(monkeypatch):
    """Indices of the GPUs whose decoder was started; the start itself is replaced."""
    calls = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(warm, "begin", calls.append)
    return calls


@pytest.fixture
def cuda_initialized(monkeypatch):
    """torch reports that CUDA is initialized."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)


@pytest.fixture
def cuda_not_initialized(monkeypatch):
    """torch reports that CUDA is not initialized yet, and records the initialization."""
    started = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(started))
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(True))
    return started


def _loader(dataset, **options) -> DataLoader:
    return DataLoader(dataset, 4, **{"fallback": "error", "device": GPU} | options)


def test_new_loader_starts_the_decoder_if_cuda_is_initialized(folder, starts, cuda_initialized):
    _loader(folder)
    assert starts == [1]


def test_new_loader_does_not_initialize_cuda(folder, starts, cuda_not_initialized):
    loader = _loader(folder)
    loader.explain()
    iter(loader)
    assert starts == [] and not cuda_not_initialized


def test_explain_does_not_start_the_decoder(folder, starts, cuda_initialized):
    loader = _loader(folder)
    starts.clear()
    loader.explain()
    assert starts == []


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"exact": True}], ids=["cpu", "exact"])
def test_decoder_is_not_started_if_the_cpu_decodes(folder, starts, cuda_initialized, options):
    iter(_loader(folder, **options))
    assert starts == []


def test_decoder_is_not_started_on_the_fallback_route(starts, cuda_initialized):
    _loader(TensorDataset(torch.zeros(8, 3)), fallback="silent")
    assert starts == []


def test_decoder_is_not_started_for_arrays(starts, cuda_initialized, monkeypatch):
    monkeypatch.setattr(resident, "free_memory", lambda device: 1 << 30)
    images = torch.zeros(8, 16, 16, 3, dtype=torch.uint8)
    loader = _loader(DALIArrayDataset(images, torch.arange(8), T.ToTensor()))
    assert isinstance(loader._route, resident.ResidentRoute) and starts == []


def test_close_drops_the_decoder(folder, starts, cuda_initialized, monkeypatch):
    dropped = []
    monkeypatch.setattr(warm, "drop", dropped.append)
    _loader(folder).close()
    assert dropped == [1]
    _loader(folder, device="cpu").close()
    assert dropped == [1]


# ---- tests on a GPU, each in a separate process

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


def _stdout_of(code: str, *args: str) -> str:
    result = python(code, *args)
    assert result.stderr == ""
    return said(result)


@pytest.mark.gpu
def test_new_loader_does_not_initialize_cuda_on_gpu(image_root):
    code = COUNTED + "loader = made()\nloader.explain()\nprint(torch.cuda.is_initialized(), calls, len(warm._starts))"
    assert _stdout_of(code, str(image_root)) == "False [] 0\n"


@pytest.mark.gpu
def test_decoder_is_started_once_per_process(image_root):
    code = """
first, second = made(), made()
print(len(warm._starts))
for loader in (first, second, first):
    print(sum(len(labels) for images, labels in loader))
warm.finish()
print(calls, warm._starts[0]._made)
"""
    assert _stdout_of(STARTED + code, str(image_root)) == "1\n24\n24\n24\n[0] None\n"


@pytest.mark.gpu
def test_start_of_the_decoder_succeeds(image_root):
    """An error of the start is left to the first pipeline, so that a start that never works would go unnoticed."""
    code = "made()\nwarm.finish()\nprint(calls, type(warm._starts[0]._made).__name__)"
    assert _stdout_of(STARTED + code, str(image_root)) == "[0] Handle\n"


@pytest.mark.gpu
@pytest.mark.parametrize("then", ["nothing", "iter", "next", "close", "held"])
def test_program_exits_without_output_after_the_start(image_root, then):
    code = {
        "nothing": "",
        "iter": "iter(loader)",
        "next": "next(iter(loader))",
        "close": "loader.close()",
        "held": "warm.finish()\nsys.modules['keep'] = loader",
    }[then]
    assert _stdout_of(f"{STARTED}loader = made()\n{code}\nprint('done')", str(image_root)) == "done\n"


@pytest.mark.gpu
def test_process_can_fork_after_the_start(image_root):
    """The child loads with torch, and the parent on the GPU."""
    code = """
import warnings
from contract.both import stock
warnings.simplefilter("ignore")  # Python warns of forks if threads are running
loader = made()
child = os.fork()
if child == 0:
    mine = stock(DALIImageFolder(sys.argv[1], RANDOM), 4)
    count = sum(len(labels) for images, labels in mine)
    os._exit(7 if count == 24 and not warm._starts else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(len(labels) for images, labels in loader))
"""
    assert _stdout_of(STARTED + code, str(image_root)) == "7 24\n"


@pytest.mark.gpu
def test_torchs_workers_can_be_forked_after_the_start(image_root):
    code = """
import warnings
warnings.simplefilter("ignore")
from contract.both import stock
loader = made()
print(sum(len(labels) for images, labels in stock(DALIImageFolder(sys.argv[1], RANDOM), 4, num_workers=2)))
print(sum(len(labels) for images, labels in loader))
"""
    assert _stdout_of(STARTED + code, str(image_root)) == "24\n24\n"


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
            # its threads, too, use no other GPU; the second epoch's files are known to it
            engine.wait_for_comparisons(60)
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
@pytest.mark.parametrize("how", ["plain", "exact", "exact engine", "PIL", "workers", "arrays", "policies"])
def test_process_uses_only_the_gpu_of_its_loader(image_root, how):
    """Only the loader names the GPU; the current device remains GPU 0."""
    assert said(python(OTHER_GPU, str(image_root), how)) == "False True\nTrue\nFalse True\n"
