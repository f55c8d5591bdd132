"""Arguments, attributes and what a batch is made of: torch's, and ours."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
import torch
from contract.both import EXACT, RANDOM, SMALL, error_of, ours, outline, outlines, stock
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import dali_compat
from dali_compat import DALIDataLoader, DALIImageFolder, DataLoader

OPTIONS = {"device": None, "exact": False, "fallback": "warn", "memory_format": torch.contiguous_format}


def _parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


# ---- signatures


@pytest.mark.parametrize("of", [lambda c: c, lambda c: c.__init__, lambda c: object.__new__(c).__init__])
def test_signature_is_torchs_and_our_options(of):
    torchs, mine = _parameters(of(data.DataLoader)), _parameters(of(DataLoader))
    assert mine[: len(torchs)] == torchs
    assert mine[len(torchs) :] == [(name, inspect.Parameter.KEYWORD_ONLY, value) for name, value in OPTIONS.items()]


def test_signature_of_the_folder_is_torchvisions_and_return_index():
    torchvisions, mine = _parameters(ImageFolder), _parameters(DALIImageFolder)
    assert mine[: len(torchvisions)] == torchvisions
    assert mine[len(torchvisions) :] == [("return_index", inspect.Parameter.KEYWORD_ONLY, False)]


def test_names_and_types(folder):
    loader = ours(folder)
    assert DALIDataLoader is DataLoader and set(dali_compat.__all__) <= set(dir(dali_compat))
    assert isinstance(loader, data.DataLoader) and type(loader).__name__ == "DataLoader"
    assert isinstance(folder, ImageFolder)
    assert isinstance(iter(loader), data.dataloader._BaseDataLoaderIter)


def test_the_class_can_be_subscripted(folder):
    class Mine(DataLoader[int]):
        pass

    assert outlines(Mine(folder, 4, fallback="error")) == outlines(stock(folder, 4))


def test_positional_arguments_are_torchs(folder):
    def collate(samples):
        return [sample[1] for sample in samples]

    arguments = (5, None, None, None, 2, collate, False, True, 0, None, None, torch.Generator())
    mine, theirs = ours(folder, *arguments), stock(folder, *arguments)
    assert (mine.collate_fn, mine.drop_last, mine.num_workers) == (collate, True, 2)
    assert [*mine] == [*theirs]


# ---- errors of arguments

BAD = {
    "num_workers": dict(num_workers=-1),
    "timeout": dict(timeout=-1),
    "prefetch_factor without workers": dict(prefetch_factor=2),
    "prefetch_factor": dict(num_workers=1, prefetch_factor=-1),
    "persistent_workers": dict(persistent_workers=True),
    "sampler and shuffle": dict(sampler=[1], shuffle=True),
    "batch_sampler and batch_size": dict(batch_sampler=[[1]], batch_size=3),
    "batch_sampler and drop_last": dict(batch_sampler=[[1]], drop_last=True),
    "batch_sampler and sampler": dict(batch_sampler=[[1]], sampler=[1]),
    "batch_size=None and drop_last": dict(batch_size=None, drop_last=True),
    "batch_size": dict(batch_size=0),
    "type of batch_size": dict(batch_size="3"),
    "type of drop_last": dict(drop_last=3),
    "context without workers": dict(multiprocessing_context="fork"),
    "context": dict(num_workers=1, multiprocessing_context="knife"),
    "type of context": dict(num_workers=1, multiprocessing_context=3),
    "unknown": dict(no_such_argument=1),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_of_arguments_are_torchs(folder, case):
    mine, theirs = error_of(ours, folder, **BAD[case]), error_of(stock, folder, **BAD[case])
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize("arguments", [dict(shuffle=True), dict(sampler=[1]), dict(batch_sampler=[[1]])])
def test_errors_of_arguments_with_an_iterable_data_set(arguments):
    mine, theirs = (error_of(make, Stream(), **arguments) for make in (data.DataLoader, DataLoader))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


def test_shuffling_nothing_raises_as_torchs(tmp_path):
    (tmp_path / "empty").mkdir()
    dataset = DALIImageFolder(tmp_path, EXACT, allow_empty=True)
    mine, theirs = error_of(ours, dataset, shuffle=True), error_of(stock, dataset, shuffle=True)
    assert type(mine) is type(theirs) and str(mine) == str(theirs)
    assert list(ours(dataset)) == list(stock(dataset)) == []


@pytest.mark.parametrize("wrong", [dict(fallback="loud"), dict(memory_format=torch.preserve_format)])
def test_errors_of_our_own_options(folder, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DataLoader(folder, **wrong)


def test_len_of_an_iterable_data_set_is_torchs():
    loader = DataLoader(Stream(), 2, fallback="silent")
    mine, theirs = error_of(len, loader), error_of(len, data.DataLoader(Stream(), 2))
    assert type(mine) is type(theirs) is TypeError and str(mine) == str(theirs)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_attributes_that_may_not_change(folder, name):
    mine, theirs = (error_of(setattr, make(folder), name, 1) for make in (ours, stock))
    assert type(mine) is type(theirs) is ValueError and str(mine) == str(theirs)


def test_attributes_are_torchs(folder):
    """Frameworks rebuild loaders from public attributes, so each must be the name of a constructor argument."""
    mine, theirs = vars(ours(folder, 4, num_workers=2)), vars(stock(folder, 4, num_workers=2))
    public = {name for name in mine if not name.startswith("_")}
    assert public == {name for name in theirs if not name.startswith("_")} | set(OPTIONS)
    assert public <= set(inspect.signature(DataLoader).parameters)


# ---- arguments that must not disturb


def _fail(worker):
    raise AssertionError("no worker process must start")


ACCEPTED = {
    "worker_init_fn": (dict(num_workers=2, worker_init_fn=_fail), "worker_init_fn=_fail"),
    "pin_memory": (dict(pin_memory=True), "pin_memory=True"),
    "timeout": (dict(num_workers=2, timeout=5), "timeout=5"),
    "persistent_workers": (dict(num_workers=2, persistent_workers=True), "persistent_workers=True"),
    "multiprocessing_context": (dict(num_workers=2, multiprocessing_context="fork"), "multiprocessing_context="),
    "in_order": (dict(num_workers=2, in_order=False), "in_order=False"),
    "num_workers": (dict(num_workers=3), "3 CPU threads"),
    "prefetch_factor": (dict(num_workers=1, prefetch_factor=5), "5 batches in flight"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_arguments_are_honoured_or_said_to_do_nothing(folder, name):
    arguments, line = ACCEPTED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pin_memory on a machine without GPU: torch's own warning
        loader = ours(folder, 5, **arguments)
        explained = loader.explain()
        assert line in explained
        if name not in ("num_workers", "prefetch_factor"):
            assert line in explained.split("without effect:")[1]
        assert outlines(loader) == outlines(stock(folder, 5))


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 3}])
def test_defaults_are_not_said_to_do_nothing(folder, arguments):
    assert "without effect" not in ours(folder, **arguments).explain()


# ---- collation and the batch


def test_a_batch_is_torchs_list(image_root):
    mine = next(iter(ours(DALIImageFolder(image_root, RANDOM), 5)))
    theirs = next(iter(stock(ImageFolder(image_root, RANDOM), 5)))
    assert type(mine) is type(theirs) is list and outline(mine) == outline(theirs)
    images, labels = mine
    assert type(images) is type(labels) is torch.Tensor
    assert labels.shape == (5,) and labels.dtype == torch.int64 and not images.requires_grad
    assert images.is_contiguous() and images.device == labels.device
    mine[0] = images.mul_(2)  # a list, of tensors that may be written to


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


def test_collate_gets_torchs_samples(image_root):
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
def test_mixing_collates(image_root, mix):
    dataset = ImageFolder(image_root, T.Compose([T.Resize((16, 16)), T.ToTensor()]))

    def collate(samples):
        return mix(*data.default_collate(samples))

    batches = [next(iter(make(dataset, 8, collate_fn=collate))) for make in (ours, stock)]
    (images, labels), theirs = batches
    assert images.shape == theirs[0].shape and images.dtype == theirs[0].dtype
    assert labels.shape == (8, 3) and torch.allclose(labels.sum(1), torch.ones(8, device=labels.device))


def test_default_collate_passed_by_hand_is_the_default(folder):
    default = ours(folder, 5, collate_fn=data.default_collate)
    assert outlines(default) == outlines(ours(folder, 5)) and default.explain() == ours(folder, 5).explain()


def test_collates_of_any_container(image_root):
    dataset = DALIImageFolder(image_root, SMALL)

    def collate(samples):
        images, targets = zip(*samples)
        return {"pixels": torch.stack(images), "meta": {"target": torch.tensor(targets), "names": ["a"] * len(targets)}}

    mine, theirs = (list(make(dataset, 7, collate_fn=collate)) for make in (ours, stock))
    assert [outline(batch) for batch in mine] == [outline(batch) for batch in theirs]


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
def test_targets_of_any_kind(image_root, kind):
    dataset = DALIImageFolder(image_root, SMALL, target_transform=TARGETS[kind])
    assert outlines(ours(dataset, 5, shuffle=True)) == outlines(stock(dataset, 5, shuffle=True))


@pytest.mark.parametrize("dataset_kind", ["uneven images", "no target", "mixed samples"])
def test_what_default_collate_refuses(image_root, dataset_kind):
    folder = {
        "uneven images": lambda: DALIImageFolder(image_root, T.Compose([T.Resize(20), T.PILToTensor()])),
        "no target": lambda: DALIImageFolder(image_root, SMALL, target_transform=lambda t: None),
        "mixed samples": lambda: data.ConcatDataset(
            [DALIImageFolder(image_root, SMALL, return_index=True), DALIImageFolder(image_root, SMALL)]
        ),
    }[dataset_kind]()
    order = [0, 24, 3, 25] if dataset_kind == "mixed samples" else None
    mine, theirs = (error_of(list, make(folder, 4, sampler=order, device="cpu") if make is ours else
                             make(folder, 4, sampler=order)) for make in (ours, stock))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


def test_memory_format(image_root):
    dataset = DALIImageFolder(image_root, EXACT)
    plain, last = (next(iter(ours(dataset, 5, memory_format=f)))[0] for f in (torch.contiguous_format, torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last) and not last.is_contiguous()
    assert torch.equal(plain, last)


def test_default_dtype(image_root):
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
    for batch in ours(folder, 5):
        assert [part.device for part in batch] == [current] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", 0, torch.device("cuda")])
def test_device(folder, device):
    expected = torch.device("cpu") if device == "cpu" else torch.device("cuda", 0)
    for arguments in (dict(), dict(batch_size=None), dict(collate_fn=data.default_collate)):
        for batch in ours(folder, device=device, **arguments):
            assert batch[0].device == expected


@pytest.mark.gpu
def test_fallback_ends_on_the_gpu():
    loader = DataLoader(data.TensorDataset(torch.arange(6), torch.arange(6)), 2, fallback="silent")
    assert all(part.is_cuda for batch in loader for part in batch)
