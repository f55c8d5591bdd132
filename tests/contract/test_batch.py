"""Containers, types and targets of a batch as in torch's collation; copies of loaders."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import EXACT, RANDOM, SMALL, error_of, ours, outline, outlines, stock
from dali_compat import DALIImageFolder, DataLoader


def test_a_batch_is_a_list_as_torchs(image_root):
    mine = next(iter(ours(DALIImageFolder(image_root, RANDOM), 5)))
    theirs = next(iter(stock(ImageFolder(image_root, RANDOM), 5)))
    assert type(mine) is type(theirs) is list and outline(mine) == outline(theirs)
    images, labels = mine
    assert type(images) is type(labels) is torch.Tensor
    assert labels.shape == (5,) and labels.dtype == torch.int64 and not images.requires_grad
    assert images.is_contiguous() and images.device == labels.device
    mine[0] = images.mul_(2)  # a list, and its tensors are writable


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_kept_are_not_overwritten(exact_folder, num_workers):
    kept = [batch[0] for batch in ours(exact_folder, 3, num_workers=num_workers)]
    copies = [batch[0].clone() for batch in ours(exact_folder, 3, num_workers=num_workers)]
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_one_image_outlives_its_batch_and_loader(exact_folder):
    loader = ours(exact_folder, 4, device="cpu")
    image = next(iter(loader))[0][2]
    loader.close()
    del loader
    assert torch.equal(image, exact_folder[2][0])


def test_collate_fn_gets_the_same_samples_as_in_torch(image_root):
    def collate(samples):
        assert type(samples) is list and all(type(sample) is tuple for sample in samples)
        kinds = {(type(image), image.dtype, type(target)) for image, target in samples}
        return kinds, torch.stack([image for image, _ in samples]), [target for _, target in samples]

    dataset = DALIImageFolder(image_root, SMALL)
    mine, theirs = (list(make(dataset, 5, collate_fn=collate)) for make in (ours, stock))
    assert [outline(batch) for batch in mine] == [outline(batch) for batch in theirs]


def test_samples_of_transforms_to_image_are_tv_tensors(image_root):
    dataset = ImageFolder(image_root, v2.Compose([v2.ToImage(), v2.CenterCrop(20)]))
    for make in (ours, stock):
        assert type(next(iter(make(dataset, collate_fn=list)))[0][0]) is tv_tensors.Image
        assert type(next(iter(make(dataset)))[0]) is torch.Tensor
        assert type(next(iter(make(dataset, batch_size=None)))[0]) is tv_tensors.Image


@pytest.mark.parametrize("mix", [v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])
def test_mixup_and_cutmix_in_collate_fn_give_mixed_labels(image_root, mix):
    dataset = ImageFolder(image_root, T.Compose([T.Resize((16, 16)), T.ToTensor()]))

    def collate(samples):
        return mix(*data.default_collate(samples))

    batches = [next(iter(make(dataset, 8, collate_fn=collate))) for make in (ours, stock)]
    (images, labels), theirs = batches
    assert images.shape == theirs[0].shape and images.dtype == theirs[0].dtype
    assert labels.shape == (8, 3) and torch.allclose(labels.sum(1), torch.ones(8, device=labels.device))


def test_default_collate_passed_explicitly_changes_nothing(folder):
    default = ours(folder, 5, collate_fn=data.default_collate)
    assert outlines(default) == outlines(ours(folder, 5)) and default.explain() == ours(folder, 5).explain()


def test_batches_of_any_container_keep_their_types(image_root):
    dataset = DALIImageFolder(image_root, SMALL)

    def collate(samples):
        images, targets = zip(*samples, strict=True)
        return {"pixels": torch.stack(images), "meta": {"target": torch.tensor(targets), "names": ["a"] * len(targets)}}

    def collate_named(samples):
        return Pair(OrderedDict(collate(samples)), len(samples))

    for function in (collate, collate_named):
        mine, theirs = (list(make(dataset, 7, collate_fn=function)) for make in (ours, stock))
        assert [outline(batch) for batch in mine] == [outline(batch) for batch in theirs]
        assert _types(mine) == _types(theirs)


class Pair(NamedTuple):
    first: Any
    second: Any


def _types(batch):
    if isinstance(batch, Mapping):
        return type(batch), {key: _types(value) for key, value in batch.items()}
    return type(batch), [_types(part) for part in batch] if isinstance(batch, (list, tuple)) else None


TARGETS = {
    "int": lambda t: t + 1,
    "float": lambda t: t / 2,
    "string": lambda t: f"class {t}",
    "tensor": lambda t: torch.arange(3) == t,
    "array": lambda t: np.full(2, t, np.float32),
    "dict": lambda t: {"label": t, "name": str(t)},
    "tuple": lambda t: (t, -t),
    "bool": lambda t: t == 1,
}


@pytest.mark.parametrize("kind", TARGETS)
def test_targets_of_any_type_are_collated_as_torchs(image_root, kind):
    dataset = DALIImageFolder(image_root, SMALL, target_transform=TARGETS[kind])
    assert outlines(ours(dataset, 5, shuffle=True)) == outlines(stock(dataset, 5, shuffle=True))


@pytest.mark.parametrize("dataset_kind", ["uneven images", "no target", "mixed samples"])
def test_errors_of_default_collate_are_torchs(image_root, dataset_kind):
    folder = {
        "uneven images": lambda: DALIImageFolder(image_root, T.Compose([T.Resize(20), T.PILToTensor()])),
        "no target": lambda: DALIImageFolder(image_root, SMALL, target_transform=lambda t: None),
        "mixed samples": lambda: data.ConcatDataset(
            [DALIImageFolder(image_root, SMALL, return_index=True), DALIImageFolder(image_root, SMALL)]
        ),
    }[dataset_kind]()
    order = [0, 24, 3, 25] if dataset_kind == "mixed samples" else None
    mine, theirs = (
        error_of(list, make(folder, 4, sampler=order, device="cpu") if make is ours else make(folder, 4, sampler=order))
        for make in (ours, stock)
    )
    assert type(mine) is type(theirs) and str(mine).startswith(str(theirs))


def test_memory_format_channels_last_gives_equal_values(image_root):
    dataset = DALIImageFolder(image_root, EXACT)
    plain, last = (
        next(iter(ours(dataset, 5, memory_format=f)))[0] for f in (torch.contiguous_format, torch.channels_last)
    )
    assert last.is_contiguous(memory_format=torch.channels_last) and not last.is_contiguous()
    assert torch.equal(plain, last)


RAGGED = {
    "unchanged": [T.PILToTensor()],
    "flipped": [T.RandomHorizontalFlip(1.0), T.PILToTensor()],
    "padded": [T.Pad(3), T.ToTensor()],
    "inverted": [T.RandomInvert(1.0), T.PILToTensor()],
    "normalized": [T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)],
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("transforms", RAGGED)
def test_memory_format_applies_to_images_of_different_sizes(image_root, transforms, memory_format):
    """The first class includes files decoded by PIL."""
    dataset = DALIImageFolder(image_root, T.Compose(RAGGED[transforms]))
    batches = list(ours(dataset, 5, collate_fn=list, memory_format=memory_format, device="cpu"))
    images = [image for batch in batches for image, _ in batch]
    assert len(images) == len(dataset) and len({image.shape for image in images}) > 5
    assert all(image[None].is_contiguous(memory_format=memory_format) for image in images)
    expected = [image for batch in stock(dataset, 5, collate_fn=list) for image, _ in batch]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(images, expected, strict=True))


def test_default_dtype_float64_gives_the_same_batches_as_torch(image_root):
    torch.set_default_dtype(torch.float64)
    try:
        assert outlines(ours(ImageFolder(image_root, RANDOM), 5)) == outlines(stock(ImageFolder(image_root, RANDOM), 5))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_can_be_copied_as_torchs(folder, copied, iterated):
    results = []
    for make in (ours, stock):
        loader = make(folder, 5, shuffle=True)
        if iterated:
            outlines(loader)
        results.append(outlines(copied(loader)))
        assert outlines(loader) == results[-1]
    assert results[0] == results[1]


# ---- on a GPU


@pytest.mark.gpu
def test_batches_are_on_the_current_gpu(folder):
    current = torch.device("cuda", torch.cuda.current_device())
    assert [[part.device for part in batch] for batch in ours(folder, 5)] == [[current] * 3] * 5


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", 0, torch.device("cuda")])
def test_batches_are_on_the_given_device(folder, device):
    expected = torch.device("cpu") if device == "cpu" else torch.device("cuda", 0)
    for arguments in (dict(), dict(batch_size=None), dict(collate_fn=data.default_collate)):
        assert [batch[0].device for batch in ours(folder, device=device, **arguments)] == [expected] * 24


@pytest.mark.gpu
def test_batches_of_a_fallback_are_on_the_gpu():
    loader = DataLoader(data.TensorDataset(torch.arange(6), torch.arange(6)), 2, fallback="silent")
    assert all(part.is_cuda for batch in loader for part in batch)
