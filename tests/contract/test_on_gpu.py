"""GPU counterparts of tests that run on the CPU: views, headers from processes, resuming, data sets and timm."""

import time
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import datasets
from torchvision import transforms as T

from contract.both import ours
from dali_compat import DALIArrayDataset, DALIImageFolder, DALIImageList, DataLoader, FallbackWarning, install, views
from dali_compat.data import headers
from dali_compat.epoch import epoch as epoch_module

pytestmark = pytest.mark.gpu

CROP = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.PILToTensor()])
PATIENCE = 60  # seconds


def batches_under_seed(loader, seed=7):
    torch.manual_seed(seed)
    return list(loader)


def assert_equal_trees(mine, theirs):
    """Check that nested lists of tensors are equal, on any device."""
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine.cpu(), theirs.cpu())
        return
    assert len(mine) == len(theirs) > 0
    for one, other in zip(mine, theirs, strict=True):
        assert_equal_trees(one, other)


SIMCLR = T.Compose(
    [
        T.RandomResizedCrop(24),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4)], p=0.8),
        T.RandomGrayscale(p=0.2),
        T.PILToTensor(),
    ]
)


@pytest.mark.parametrize(
    "transform", [views(CROP, CROP, T.Compose([T.CenterCrop(16), T.PILToTensor()])), views(SIMCLR, SIMCLR)]
)
def test_views_equal_the_cpus(photos_or_images, transform):
    dataset = DALIImageFolder(photos_or_images, transform)
    arguments = {"batch_size": 4, "shuffle": True, "exact": True, "num_workers": 2}
    found = [batches_under_seed(ours(dataset, device=device, **arguments)) for device in ("cuda", "cpu")]
    assert all(image.is_cuda for image in found[0][0][0])
    assert not torch.equal(found[0][0][0][0], found[0][0][0][1])
    assert_equal_trees(*found)


def test_views_by_the_fastest_kernels_are_close(photos_or_images):
    dataset = DALIImageFolder(photos_or_images, views(CROP, CROP))
    arguments = {"batch_size": 4, "num_workers": 2, "device": "cuda"}
    fast, exact = (batches_under_seed(ours(dataset, exact=exact, **arguments)) for exact in (False, True))
    for (mine, labels), (theirs, targets) in zip(fast, exact, strict=True):
        assert torch.equal(labels, targets)
        for one, other in zip(mine, theirs, strict=True):
            assert (one.float() - other.float()).abs().mean() < 2


def test_headers_come_from_processes_in_a_first_epoch(photos_or_images, monkeypatch):
    monkeypatch.setattr(epoch_module, "_MIN_UNREAD", 1)
    counts, own = [], headers.Headers.add
    monkeypatch.setattr(headers.Headers, "add", lambda self, *args: counts.append(len(args[0])) or own(self, *args))
    dataset = DALIImageFolder(photos_or_images, CROP)
    loader = ours(dataset, batch_size=2, num_workers=4, device="cuda", exact=True)
    torch.manual_seed(1)
    iterator, first = iter(loader), []
    assert iterator._epoch.prefetcher is not None
    end = time.monotonic() + PATIENCE
    while not all(process.is_ready() for process in iterator._epoch.prefetcher._processes):
        assert time.monotonic() < end
        time.sleep(0.01)
    first = list(iterator)
    assert sum(counts) > len(dataset) // 2
    again = batches_under_seed(ours(dataset, batch_size=2, num_workers=4, device="cpu", exact=True), seed=1)
    assert_equal_trees(first, again)


def folder(root):
    return DALIImageFolder(root, CROP)


def array(root):
    images = torch.randint(0, 256, (60, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return DALIArrayDataset(images, list(range(60)), T.Compose([T.RandomCrop(28, 2), T.ToTensor()]))


@pytest.mark.parametrize("made", [folder, array])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_continues_with_the_same_batches(photos_or_images, made, workers):
    def new():
        return ours(made(photos_or_images), batch_size=4, shuffle=True, num_workers=workers, device="cuda", exact=True)

    torch.manual_seed(3)
    loader, wanted = new(), []
    for number, batch in enumerate(loader):
        wanted.append(batch)
        if number == 2:
            state = loader.state_dict()
    after = list(loader)
    torch.manual_seed(100)
    other = new()
    other.load_state_dict(state)
    assert_equal_trees(list(other), wanted[3:])
    assert_equal_trees(list(other), after)


def test_batches_of_an_image_list_equal_the_cpus(photos_or_images):
    found = datasets.ImageFolder(photos_or_images)
    paths, targets = zip(*found.samples, strict=True)
    dataset = DALIImageList(paths, [float(target) for target in targets], CROP)
    arguments = {"batch_size": 4, "num_workers": 2, "exact": True}
    assert_equal_trees(*(batches_under_seed(ours(dataset, device=device, **arguments)) for device in ("cuda", "cpu")))


class SeveralImages(data.Dataset):
    """Two views of each photo, and one crop at two resolutions."""

    crop, small, tensor = T.RandomCrop(24, pad_if_needed=True), T.Resize(12), T.ToTensor()

    def __init__(self, root):
        self.paths = [path for path, _ in datasets.ImageFolder(root).samples]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        crop = self.crop(image)
        return CROP(image), CROP(image), self.tensor(crop), self.tensor(self.small(crop)), index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_images_of_a_sample_equal_the_cpus(photos_or_images, num_workers):
    dataset = SeveralImages(photos_or_images)
    on_cpu = batches_under_seed(ours(dataset, 5, device="cpu", exact=True, num_workers=num_workers))
    for epoch in range(2):  # a JPEG engine may decode in the second epoch
        loader = ours(dataset, 5, exact=True, num_workers=num_workers)
        made = batches_under_seed(loader)
        assert all(one.is_cuda for batch in made for one in batch), epoch
        assert_equal_trees(made, on_cpu)
    assert "a sample has 4 images" in loader.explain()


def test_timms_prefetcher_gets_batches_from_the_gpu(photos_or_images):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timm = pytest.importorskip("timm.data")
    dataset = timm.ImageDataset(str(photos_or_images))
    options = dict(is_training=False, use_prefetcher=True, num_workers=2, device=torch.device("cuda"))
    with install(fallback="error", exact=True):
        loader = timm.create_loader(dataset, (3, 32, 32), 4, **options)
    assert isinstance(loader.loader, DataLoader) and loader.loader.explain().startswith("DALI route on cuda")
    theirs = timm.create_loader(dataset, (3, 32, 32), 4, **options)
    for (images, labels), (expected, targets) in zip(loader, theirs, strict=True):
        assert images.is_cuda and torch.equal(labels, targets)
        assert (images - expected).abs().max() < 1e-5


def through_numpy(samples):
    return torch.from_numpy(np.stack([image.numpy() for image, _ in samples])), torch.tensor([t for _, t in samples])


def into_a_cpu_tensor(samples):
    """Fill a tensor on the CPU image by image, as is common."""
    made = torch.zeros(len(samples), *samples[0][0].shape)
    for number, (image, _) in enumerate(samples):
        made[number] += image * float(torch.rand(()))
    return made, [target for _, target in samples]


@pytest.mark.parametrize("collate", [through_numpy, into_a_cpu_tensor])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_that_fails_with_gpu_samples_gets_cpu_samples(photos_or_images, collate, num_workers):
    dataset = DALIImageFolder(photos_or_images, CROP)
    arguments = dict(batch_size=4, shuffle=True, exact=True, num_workers=num_workers, collate_fn=collate)
    wanted = batches_under_seed(ours(dataset, device="cpu", **arguments))
    loader = DataLoader(dataset, device="cuda", **arguments)
    with pytest.warns(FallbackWarning, match=f"collate_fn {collate.__name__} cannot take samples on a GPU") as warned:
        found = batches_under_seed(loader)
    assert len(warned) == 1 and found[0][0].is_cuda
    assert all(torch.equal(one.cpu(), other) for (one, _), (other, _) in zip(found, wanted, strict=True))


@pytest.mark.parametrize("mode", ["batch", "pair", "elem", "half"])
def test_timms_mixup_collate_stays_on_the_gpu(photos_or_images, mode):
    """The collate function fills a tensor without a copy to the CPU."""
    mixup = pytest.importorskip("timm.data.mixup")
    dataset = DALIImageFolder(photos_or_images, CROP)
    classes = len(dataset.classes)
    collate = mixup.FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode=mode, num_classes=classes)
    arguments = dict(batch_size=4, shuffle=True, exact=True, num_workers=2, collate_fn=collate, drop_last=True)
    found = [
        batches_under_seed(ours(dataset, device=device, fallback="error", **arguments)) for device in ("cuda", "cpu")
    ]
    assert found[0][0][0].is_cuda and found[0][0][1].is_cuda
    for (image, target), (other, wanted) in zip(*found, strict=True):
        assert torch.equal(image.cpu(), other)
        torch.testing.assert_close(target.cpu(), wanted)
