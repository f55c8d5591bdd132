"""Which device a loader's batches come out on."""

import pytest
import torch

from dali_compat.route import resolve_device


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose current GPU is number 1, where CUDA has not started."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.parametrize("device", [None, "cuda", torch.device("cuda")])
def test_the_current_gpu_is_asked_for_when_an_epoch_starts(gpu, monkeypatch, device):
    assert resolve_device(device, start=False) == torch.device("cuda")
    assert resolve_device(device, start=True) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolve_device(device, start=False) == torch.device("cuda", 1)


@pytest.mark.parametrize("device", [0, "cuda:0", torch.device("cuda", 0)])
def test_a_named_gpu_is_that_gpu(gpu, device):
    assert resolve_device(device, start=False) == resolve_device(device, start=True) == torch.device("cuda", 0)


def test_making_a_loader_does_not_start_cuda(gpu, monkeypatch, image_root):
    from torchvision import transforms as T

    from dali_compat import DALIImageFolder, DataLoader, route

    def started():
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "current_device", started)
    monkeypatch.setattr(route, "dali_problem", lambda gpu: None)
    loader = DataLoader(DALIImageFolder(image_root, T.ToTensor()), fallback="error")
    assert loader.explain().startswith("DALI route on cuda:")


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(None, start=True) == torch.device("cpu")
