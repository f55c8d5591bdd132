"""The device of a loader's batches, its pipelines and their threads."""

import os
from itertools import pairwise

import pytest
import torch

from dali_compat.data.sources import BYTES, PATHS, Form
from dali_compat.engine.dali import warm
from dali_compat.engine.dali.forks import live
from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.epoch import epoch as epoch_module
from dali_compat.routes import resolve_device
from dali_compat.routes.dali import DaliRoute


@pytest.fixture
def gpu(monkeypatch):
    """A machine with two GPUs. Number 1 is current, and CUDA is not initialized."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("device", [None, "cuda", torch.device("cuda")])
def test_resolve_device_without_index_reads_the_current_gpu_only_on_start(gpu, monkeypatch, device):
    assert resolve_device(device, start=False) == torch.device("cuda")
    assert resolve_device(device, start=True) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolve_device(device, start=False) == torch.device("cuda", 1)


@pytest.mark.parametrize("device", [0, "cuda:0", torch.device("cuda", 0)])
def test_resolve_device_with_index_returns_that_gpu(gpu, device):
    assert resolve_device(device, start=False) == resolve_device(device, start=True) == torch.device("cuda", 0)


def test_creating_a_loader_does_not_initialize_cuda(gpu, monkeypatch, image_root):
    from torchvision import transforms as T

    import dali_compat.routes as route
    from dali_compat import DALIImageFolder, DataLoader

    def started():
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "current_device", started)
    monkeypatch.setattr(route, "dali_problem", lambda gpu: None)
    loader = DataLoader(DALIImageFolder(image_root, T.ToTensor()), fallback="error")
    assert loader.explain().startswith("DALI route on cuda:")


def test_resolve_device_without_gpu_returns_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(None, start=True) == torch.device("cpu")


# ---- borrowed and cached pipelines


@pytest.fixture
def loader(image_root):
    from torchvision import transforms as T

    from dali_compat import DALIImageFolder, DataLoader

    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.PILToTensor()]))
    loader = DataLoader(dataset, 4, device="cpu", fallback="error")
    yield loader
    loader.close()


class FakeEpoch:
    """The attributes of an epoch that a pipeline reads."""

    over = False


def test_borrow_returns_an_idle_pipeline_that_is_large_enough(loader):
    route, [plan] = loader._route, loader._route.plans
    first, second = FakeEpoch(), FakeEpoch()
    small = route.borrow(plan, 3, Form(PATHS), first)
    assert small.batch_size == 4  # the loader's batch size
    assert route.borrow(plan, 4, Form(PATHS), second) is not small  # borrowed by the first
    first.over = True
    third = FakeEpoch()
    assert route.borrow(plan, 4, Form(PATHS), third) is small
    third.over = second.over = True
    large = route.borrow(plan, 5, Form(PATHS), FakeEpoch())
    assert large is not small and large.batch_size == 5


def test_borrow_returns_an_idle_pipeline_only_for_its_plan_and_form(loader):
    route, [plan] = loader._route, loader._route.plans
    epoch, other = FakeEpoch(), FakeEpoch()
    idle = route.borrow(plan, 4, Form(PATHS), epoch)
    epoch.over = True
    assert route.borrow(plan, 4, Form(BYTES), other) is not idle
    assert route.borrow(plan.__class__(**vars(plan)), 4, Form(PATHS), other) is not idle
    assert route.borrow(plan, 4, Form(PATHS), other) is idle


@pytest.fixture
def used_pipelines(loader, monkeypatch):
    """Record the pipeline of each batch; a second pipeline is opened at the second batch."""
    monkeypatch.setattr(DaliRoute, "engines_decode_all", True)
    monkeypatch.setattr(epoch_module, "_SAMPLES_BEFORE_SECOND", 1)
    monkeypatch.setattr(warm, "in_background", lambda function: function())
    used, submit = [], DecodePipeline.submit
    monkeypatch.setattr(DecodePipeline, "submit", lambda self, *args: used.append(self) or submit(self, *args))
    return used


def test_two_pipelines_alternate_when_jpeg_engines_decode(loader, monkeypatch, used_pipelines):
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "engines_decode_all", False)
        wanted = [images for images, _ in loader]
        assert len(wanted) > 4 and len(set(used_pipelines)) == 1
    for _ in range(2):  # the second epoch starts with both
        used_pipelines.clear()
        assert all(map(torch.equal, wanted, (images for images, _ in loader)))
        one, other = loader._route._pipelines
        assert len(used_pipelines) == len(wanted) and {*used_pipelines} == {one, other}
        assert all(a is not b for a, b in pairwise(used_pipelines[2:]))
    for _ in loader:
        break  # an interrupted epoch keeps both, too
    assert all(map(torch.equal, wanted, (images for images, _ in loader)))
    assert {one, other} == set(loader._route._pipelines)


def test_epoch_when_second_pipeline_fails_to_open_continues_with_one(loader, monkeypatch, used_pipelines):
    def open_copy(self):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(DecodePipeline, "open_copy", open_copy)
    for _ in range(2):
        assert sum(len(images) for images, _ in loader) == len(loader.dataset)
    assert len(set(used_pipelines)) == 1


def test_second_pipeline_that_opens_after_close_is_closed(loader, monkeypatch, used_pipelines):
    later, others = [], list(live)  # pipelines of other tests
    monkeypatch.setattr(warm, "in_background", later.append)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    (open_another,), route = later, loader._route
    loader.close()
    open_another()
    assert not route._pipelines and not any(pipeline.usable for pipeline in live if pipeline not in others)


def test_idle_pipeline_is_closed_when_the_transform_changes(loader):
    from torchvision import transforms as T

    before = len(list(loader))
    [old], [plan] = loader._route._pipelines, loader._route.plans
    loader.dataset.transform = T.Compose([T.CenterCrop(41), T.PILToTensor()])
    assert len(list(loader)) == before
    assert plan not in loader._route.plans and not old.usable
    assert [pipeline.plan for pipeline in loader._route._pipelines] == loader._route.plans


def test_borrowed_pipeline_is_kept_when_the_transform_changes(loader):
    from torchvision import transforms as T

    iterator = iter(loader)
    next(iterator)
    [old] = loader._route._pipelines
    loader.dataset.transform = T.Compose([T.CenterCrop(41), T.PILToTensor()])
    next(iter(loader))
    assert old.usable and old in loader._route._pipelines
    assert {tuple(images.shape[2:]) for images, _ in iterator} == {(40, 40)}


def test_changed_num_workers_takes_effect_in_the_next_epoch(loader):
    for threads in (1, 3):
        loader.num_workers = threads
        list(loader)
        assert {pipeline.threads for pipeline in loader._route._pipelines} == {threads}


@pytest.mark.parametrize("cores, processes, workers, threads", [
    (12, None, 0, 12), (12, "4", 0, 3), (12, "5", 0, 2), (12, "100", 0, 1), (100, None, 0, 16), (100, "2", 0, 16),
    (12, "4", 5, 5), (12, "", 0, 12),
])  # fmt: skip
def test_default_threads_are_the_share_of_the_cores_of_this_process(
    image_root, monkeypatch, cores, processes, workers, threads
):
    """torchrun sets LOCAL_WORLD_SIZE to the number of processes on the machine."""
    from torchvision import transforms as T

    from dali_compat import DALIImageFolder, DataLoader

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    if processes is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    dataset = DALIImageFolder(image_root, T.ToTensor())
    assert DataLoader(dataset, device="cpu", num_workers=workers)._route.threads == threads


@pytest.mark.parametrize(
    "engines, available, threads, load, explained",
    [
        (None, 12, 12, 1, "12 CPU threads, or 4 if the GPU has enough JPEG engines"),
        (7, 12, 4, 1, "4 CPU threads (of 12: the GPU has 7 JPEG engines, and more threads would slow a training step)"),
        (8, 3, 3, 1, "3 CPU threads (the GPU has 8 JPEG engines)"),
        (1, 12, 12, 0.25, "12 CPU threads (the GPU has 1 JPEG engine)"),
        (0, 12, 12, 0, "12 CPU threads (the GPU has no JPEG engines)"),
    ],
)
def test_threads_depend_on_the_number_of_jpeg_engines(monkeypatch, engines, available, threads, load, explained):
    """With many engines, more threads would slow a training step; without engines, the threads decode."""
    from dali_compat.engine.dali import warm
    from dali_compat.routes import explain
    from dali_compat.routes.dali import DaliRoute

    monkeypatch.setattr(warm, "known_jpeg_engines", lambda index: engines)
    monkeypatch.setattr(explain, "hidden_jpeg_engines", lambda index: None)
    route = DaliRoute(torch.device("cuda", 0), available, 4, 256, [], {}, gpu_jpegs=True)
    assert (route.threads, route.load, explain._threads(route)) == (threads, load, explained)
    if engines == 7:  # limited by the number of pixels
        large = DaliRoute(torch.device("cuda", 0), 12, 4, 256, [], {}, gpu_jpegs=True, large=True)
        assert (large.threads, large.load) == (12, 0.7)
    other = DaliRoute(torch.device("cuda", 0), available, 4, 256, [], {})  # PNG, or exact=True
    assert (other.threads, other.load, explain._threads(other)) == (available, 1, f"{available} CPU threads")
