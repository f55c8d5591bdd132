"""The resident route, for data sets of arrays, compared with torch's loader: order, pixels, errors, changes, memory."""

import copy
import io
import itertools
import pickle
import weakref

import numpy as np
import pytest
import torch
import torchvision.datasets as tv
from torch.utils import data
from torchvision import transforms as T
from torchvision.transforms import v2

from contract.arrays import COUNT, TORCHVISION, cifar, labels, pictures, reference
from contract.both import assert_same_epoch, assert_same_pixels, error_of, no_gc, stock
from contract.both import ours as ours_on_default
from contract.orders import CASES, Yields, global_states
from contract.test_iteration import (  # noqa: F401
    test_an_abandoned_epoch_does_not_affect_the_next,
    test_an_exhausted_iterator_stays_exhausted,
    test_order_after_an_abandoned_epoch_is_torchs,
    test_two_iterators_at_once_each_give_all_batches,
)
from contract.test_order import (  # noqa: F401
    test_batches_equal_torchs_for_each_sampler,
    test_batches_equal_torchs_for_subsets_and_concatenations,
    test_distributed_sampler_gives_torchs_shards,
    test_python_and_numpy_random_states_are_unchanged,
    test_sampler_error_is_raised_after_the_batches_before_it,
    test_wrong_index_of_a_concat_dataset_raises_torchs_error,
)
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader
from dali_compat.epoch import samplers
from dali_compat.routes import resident

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
TRAIN = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
TEST = T.Compose([T.ToTensor(), T.Normalize(MEAN, STD)])


def ours(dataset, *args, **kwargs):
    return ours_on_default(dataset, *args, **{"device": "cpu"} | kwargs)


def make(count=COUNT, transform=TEST, **kwargs) -> DALIArrayDataset:
    """Return a data set whose targets are the indices."""
    return DALIArrayDataset(pictures(count, 32, 32, 3), list(range(count)), transform, **kwargs)


@pytest.fixture
def dataset():
    return make()


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few samples, so that a small epoch has several."""
    monkeypatch.setattr(resident, "_CHUNK_BYTES", {"cpu": 12 * 4 * 3072, "cuda": 12 * 4 * 3072})


@pytest.fixture
def folder(small_chunks):
    """A data set for the imported tests of folders."""
    return make(24)


@pytest.fixture
def exact_folder(folder):
    return folder


@pytest.fixture
def random_folder(small_chunks):
    return make(24, TRAIN)


# ---- the data sets


@pytest.mark.parametrize("case", TORCHVISION)
def test_torchvision_data_sets_in_memory_equal_torchs(tmp_path, monkeypatch, case):
    dataset = TORCHVISION[case](tmp_path, monkeypatch)
    dataset.transform = T.Compose([T.Pad(2), T.ToTensor()])
    options = dict(batch_size=7, sampler=[*range(COUNT)][::-1])
    mine = ours(dataset, **options)
    assert mine.explain().startswith(f"resident on cpu: {COUNT} images of ")
    assert_same_epoch(mine, stock(dataset, **options))
    mine, theirs = next(iter(mine)), next(iter(stock(dataset, **options)))
    assert mine[1].dtype == theirs[1].dtype and mine[1].shape == theirs[1].shape
    with_lists = dict(options, collate_fn=list)
    for a, b in zip(ours(dataset, **with_lists), stock(dataset, **with_lists), strict=True):
        assert [type(target) for _, target in a] == [type(target) for _, target in b]
        assert [str(target) for _, target in a] == [str(target) for _, target in b]


IMAGES = {
    "RGB": lambda: pictures(12, 9, 7, 3),
    "one channel": lambda: pictures(12, 9, 7, 1),
    "gray": lambda: pictures(12, 9, 7),
    "RGB tensor": lambda: torch.from_numpy(pictures(12, 9, 7, 3)),
    "gray tensor": lambda: torch.from_numpy(pictures(12, 9, 7)),
    "planes underneath": lambda: pictures(12, 3, 9, 7).transpose(0, 2, 3, 1),
    "every other": lambda: pictures(24, 9, 7, 3)[::2],
    "backwards": lambda: pictures(12, 9, 7, 3)[::-1, :, ::-1],
    "not to be written to": lambda: np.frombuffer(pictures(12, 9, 7, 3).tobytes(), np.uint8).reshape(12, 9, 7, 3),
    "three wide": lambda: pictures(12, 9, 3),
}


@pytest.mark.parametrize("case", IMAGES)
# the warning of torch's own loader is expected here
@pytest.mark.filterwarnings("error", "ignore:torch's own loader reads")
def test_arrays_of_each_layout_equal_torchs(case):
    dataset = DALIArrayDataset(IMAGES[case](), range(12), T.Compose([T.CenterCrop((8, 6)), T.PILToTensor()]))
    assert len(dataset) == 12
    assert_same_epoch(ours(dataset, 5), stock(dataset, 5))


@pytest.mark.parametrize("case", IMAGES)
def test_single_image_with_negative_strides_equals_torchs(case):
    """NumPy reports such an array as contiguous, although its stride is negative."""
    images = np.asarray(IMAGES[case]())[:1][::-1]
    dataset = DALIArrayDataset(images, np.arange(1.0)[::-1], T.PILToTensor())
    assert_same_epoch(ours(dataset, 5), stock(dataset, 5))


UNCOLLATABLE_TARGETS = {
    "beyond int64": lambda: np.arange(COUNT, dtype=np.uint64) + np.uint64(2**63),
    "sparse": lambda: torch.eye(COUNT).to_sparse(),
}


@pytest.mark.parametrize("case", UNCOLLATABLE_TARGETS)
def test_targets_that_default_collate_refuses_reach_collate_fn(case, dataset):
    dataset.targets = UNCOLLATABLE_TARGETS[case]()
    options = {"batch_size": 7, "collate_fn": lambda samples: [float(target.sum()) for _, target in samples]}
    assert list(ours(dataset, **options)) == list(stock(dataset, **options))


def test_samples_have_the_types_of_cifar_samples():
    images = pictures(12, 9, 7, 3)
    dataset = DALIArrayDataset(images, labels(12), target_transform=lambda target: -target)
    image, target = dataset[3]
    assert image.mode == "RGB" and np.array_equal(np.asarray(image), images[3]) and target == -labels(12)[3]
    assert DALIArrayDataset(images[..., :1], labels(12))[0][0].mode == "L"
    assert "Number of datapoints: 12" in repr(dataset)


@pytest.mark.parametrize(
    "images, targets, error",
    [
        ([[0]], [0], TypeError),
        (pictures(3, 8, 8, 3), [0, 1], ValueError),
        (pictures(3, 8, 8, 4), [0, 1, 2], ValueError),
        (pictures(3, 3, 8, 8), [0, 1, 2], ValueError),
        (pictures(3, 8), [0, 1, 2], ValueError),
        (pictures(3, 8, 8, 3).astype(np.float32), [0, 1, 2], ValueError),
        (torch.zeros(3, 8, 8, dtype=torch.int64), [0, 1, 2], ValueError),
    ],
)
def test_invalid_arrays_raise(images, targets, error):
    with pytest.raises(error):
        DALIArrayDataset(images, targets)


TARGETS = {
    "ints": labels,
    "tuple": lambda: tuple(labels()),
    "numpy ints": lambda: list(np.array(labels())),
    "bools": lambda: [bool(label % 2) for label in labels()],
    "floats": lambda: [label / 3 for label in labels()],
    "mixed": lambda: [0.5, *labels()[1:]],
    "ints and bools": lambda: [label if i < 9 else bool(label % 2) for i, label in enumerate(labels())],
    "names": lambda: [str(label) for label in labels()],
    "pairs": lambda: [(label, -label) for label in labels()],
    "array": lambda: np.array(labels()),
    "uint8 array": lambda: np.array(labels(), np.uint8),
    "float array": lambda: np.array(labels(), np.float32),
    "matrix": lambda: np.arange(3 * COUNT).reshape(COUNT, 3),
    "tensor": lambda: torch.tensor(labels()),
    "float tensor": lambda: torch.rand(COUNT, 5),
    "huge": lambda: [2**62, *labels()[1:]],
    "masked array": lambda: np.ma.masked_array(np.array(labels()), np.arange(COUNT) % 3 == 1),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("kind", [DALIArrayDataset, tv.CIFAR10])
def test_targets_are_collated_as_in_torchs_loader(case, kind, dataset):
    if kind is tv.CIFAR10:
        dataset = copy.copy(dataset)
        dataset.__class__ = kind
    dataset.targets = TARGETS[case]()
    for mine, theirs in zip(ours(dataset, 7), stock(dataset, 7), strict=True):
        assert type(mine[1]) is type(theirs[1])
        if isinstance(mine[1], torch.Tensor):
            torch.testing.assert_close(mine[1], theirs[1], rtol=0, atol=0, equal_nan=True)
        else:
            assert str(mine[1]) == str(theirs[1])


# ---- order


@pytest.mark.alike
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize(
    "case", ["plain", "shuffle", "generator", "random sampler", "replacement", "weighted", "batch sampler"]
)
def test_global_random_state_equals_torchs(dataset, case, options, small_chunks):
    mine, theirs = (maker(dataset, **options, **CASES[case](dataset)) for maker in (ours, stock))
    assert global_states(mine) == global_states(theirs)


def test_global_random_state_equals_torchs_if_the_sampler_draws(dataset, small_chunks):
    case = CASES["draws in the sampler"]
    mine, theirs = (maker(dataset, num_workers=2, **case(dataset)) for maker in (ours, stock))
    assert global_states(mine) == global_states(theirs)


@pytest.mark.parametrize("case", ["generator", "replacement, generator"])
@pytest.mark.parametrize("taken", [1, 2, 5, 6, 8, 10])
@pytest.mark.parametrize("size", [5, 7])
def test_generator_state_equals_torchs_when_an_epoch_ends_early(dataset, case, taken, size):
    states = []
    for maker in (ours, stock):
        options = CASES[case](dataset) | {"batch_size": size}
        loader = maker(dataset, **options)
        generator = options.get("generator") or options["sampler"].generator
        for _ in zip(range(taken), loader, strict=False):
            pass
        states.append(generator.get_state())
    assert torch.equal(*states)


# ---- pixels


PIXELS = {
    "train": TRAIN,
    "test": TEST,
    "v2": v2.Compose(
        [
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "color of the padding": T.Compose([T.RandomCrop(30, padding=(3, 1), fill=(9, 200, 31)), T.PILToTensor()]),
    "reflected": T.Compose([T.RandomCrop(32, padding=4, padding_mode="reflect"), T.RandomVerticalFlip(), T.ToTensor()]),
    "two colors": T.Compose([T.Pad(2, fill=9), T.RandomCrop(34), T.Pad(1, fill=7), T.ToTensor()]),
    "crop, then padding": T.Compose(
        [
            T.RandomCrop(20),
            T.RandomHorizontalFlip(),
            T.Pad((5, 0, 2, 9)),
            T.RandomVerticalFlip(),
            T.RandomCrop((27, 25)),
            T.RandomHorizontalFlip(),
            T.PILToTensor(),
        ]
    ),
    "beyond the image": T.Compose(
        [T.RandomHorizontalFlip(), T.CenterCrop((45, 20)), T.RandomVerticalFlip(), T.ToTensor()]
    ),
    "half precision": v2.Compose([v2.RandomCrop(28), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "gray": T.Compose([T.RandomCrop(32, padding=4), T.Grayscale(3), T.ToTensor(), T.Normalize(MEAN, STD)]),
    "erased after normalisation": T.Compose([TRAIN, T.RandomErasing(0.8)]),
    "colors": T.Compose([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.3), TRAIN]),
    "policy": T.Compose([T.RandomCrop(32, padding=4), T.RandAugment(), T.ToTensor(), T.Normalize(MEAN, STD)]),
    "in any order": T.Compose([T.RandomOrder([T.RandomVerticalFlip(), T.RandomCrop(32, padding=4)]), T.ToTensor()]),
    "window": T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]),
    "sizes": T.Compose([T.Resize(40), T.RandomCrop(36), T.PILToTensor()]),
    "padded to size": T.Compose([T.RandomCrop(40, pad_if_needed=True, fill=3), T.RandomHorizontalFlip(), T.ToTensor()]),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", PIXELS)
def test_pixels_equal_torchvisions_for_the_same_parameters(case, device):
    """Pixels are bit-identical, on a GPU, too."""
    dataset = make(transform=PIXELS[case])
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).tolist()
    iterator = iter(ours(dataset, 9, sampler=order, device=device))
    mine = torch.cat([batch[0].cpu() for batch in iterator])
    assert_same_pixels(mine, reference(dataset, order, iterator._base_seed))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_pixels_of_one_channel_equal_torchvisions(tmp_path, monkeypatch, device):
    dataset = TORCHVISION["MNIST"](tmp_path, monkeypatch)
    dataset.transform = T.Compose(
        [T.RandomCrop(28, padding=2, fill=7), T.ToTensor(), T.Normalize((0.1307,), (0.3081,))]
    )
    iterator = iter(ours(dataset, 9, device=device))
    mine = torch.cat([batch[0].cpu() for batch in iterator])
    assert_same_pixels(mine, reference(dataset, range(COUNT), iterator._base_seed))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("together", [1, 7, 12, 33, 10**6])
@pytest.mark.parametrize("transform", ["train", "policy"])
def test_results_do_not_depend_on_chunks(monkeypatch, together, transform, device):
    policy = T.Compose([T.RandomCrop(32, padding=4), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomInvert(), T.ToTensor()])
    dataset = make(transform=TRAIN if transform == "train" else policy)

    def epoch(together, batch_size):
        monkeypatch.setattr(
            resident, "_CHUNK_BYTES", {"cpu": 4 * 3 * 40 * 40 * together, "cuda": 4 * 3 * 40 * 40 * together}
        )
        torch.manual_seed(3)
        batches = list(ours(dataset, batch_size, shuffle=True, device=device))
        return torch.cat([images for images, _ in batches]).cpu(), torch.cat([target for _, target in batches]).tolist()

    images, targets = epoch(together, 5)
    expected, same = epoch(10**6, 8)
    assert torch.equal(images, expected) and targets == same


def test_batches_are_slices_of_chunks(small_chunks):
    """The first chunk is a single batch, so that it is ready early."""
    loader = ours(make(36), 4)
    assert "up to 12 samples are transformed together" in str(loader.explain())
    batches = [images for images, _ in loader]
    storages = [images.untyped_storage().data_ptr() for images in batches]
    assert [len(list(run)) for _, run in itertools.groupby(storages)] == [1, 3, 3, 2]


@pytest.mark.gpu
def test_pixels_on_gpu_equal_pixels_on_cpu():
    runs = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(3)
        runs.append(
            torch.cat([images.cpu() for images, _ in ours(make(transform=TRAIN), 5, shuffle=True, device=device)])
        )
    assert torch.equal(*runs)


@pytest.mark.parametrize("transform", [TRAIN, v2.Compose([v2.RandomCrop(32, padding=4), v2.ToImage()])])
def test_channels_last_has_the_same_values(transform):
    dataset = make(transform=transform)
    runs = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        runs.append([images for images, _ in ours(dataset, 9, memory_format=memory_format)])
        assert all(images.is_contiguous(memory_format=memory_format) for images in runs[-1])
    assert_same_pixels(*runs)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_format_is_kept_if_parts_have_different_transforms(memory_format, together, request):
    if not together:
        request.getfixturevalue("small_chunks")
    dataset = data.ConcatDataset([make(transform=TEST), make(transform=T.Compose([T.RandomVerticalFlip(1), TEST]))])
    options = dict(batch_size=7, sampler=[i * 29 % (2 * COUNT) for i in range(2 * COUNT)])
    batches = list(ours(dataset, memory_format=memory_format, **options))
    assert len(batches) > 3 and all(images.is_contiguous(memory_format=memory_format) for images, _ in batches)
    assert_same_epoch(batches, stock(dataset, **options))


def _times_two(image):
    return image * 2


def test_each_part_of_a_concat_dataset_keeps_its_transforms(small_chunks):
    def parts():
        return data.ConcatDataset(
            [
                make(transform=TEST),
                data.Subset(make(10, T.Compose([T.RandomHorizontalFlip(1.0), TEST])), [3, 1, 1]),
                make(8, T.Compose([TEST, T.RandomVerticalFlip(1.0)]), target_transform=lambda target: target - 100),
            ]
        )

    order = [0, 40, 45, 50, 41, 44, 1, 2, 42, 43, 49, -1, -9, -12]
    for batch_size in (4, 14, 1):
        mine = ours(parts(), batch_size, sampler=order, fallback="silent")
        assert mine.explain().count("part ") == 3
        assert_same_epoch(mine, stock(parts(), batch_size, sampler=order))


def test_parts_of_different_shapes_raise_torchs_error():
    dataset = data.ConcatDataset([make(8), make(8, T.Compose([T.CenterCrop(20), TEST]))])
    assert_same_epoch(ours(dataset, 4), stock(dataset, 4))
    mine, theirs = (error_of(list, maker(dataset, 3)) for maker in (ours, stock))
    assert type(mine) is type(theirs) and str(mine).startswith(str(theirs))  # followed by the images and a remedy
    shapes = [[tuple(image.shape) for image, _ in batch] for batch in ours(dataset, 3, collate_fn=list)]
    assert shapes == [[tuple(image.shape) for image, _ in batch] for batch in stock(dataset, 3, collate_fn=list)]


class Solarized:
    def __call__(self, image):
        return image.point([min(v, 255 - v) for v in range(256)] * 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transform_without_a_translation_falls_back_to_torch(num_workers):
    dataset = make(transform=T.Compose([T.Pad(1), Solarized(), T.RandomHorizontalFlip(1.0), TEST]))
    loader = ours(dataset, 7, num_workers=num_workers, fallback="silent")
    reason = "  because Solarized: no translation is registered for it, and it uses the image's point"
    assert loader.explain().splitlines()[1].startswith(reason)
    assert_same_epoch(loader, stock(dataset, 7))


def test_samples_without_a_transform_are_pil_images():
    dataset = make(transform=None)
    for mine, theirs in zip(ours(dataset, 7, collate_fn=list), stock(dataset, 7, collate_fn=list), strict=True):
        assert [(a.tobytes(), i) for a, i in mine] == [(b.tobytes(), i) for b, i in theirs]
    errors = [error_of(list, maker(dataset, 7)) for maker in (ours, stock)]
    assert type(errors[0]) is type(errors[1]) is TypeError
    assert str(errors[0]) == f"{errors[1]}. Add ToTensor() or v2.ToImage() to the transform"


def test_five_crop_and_lambda_equal_torchs():
    dataset = make(
        transform=T.Compose([T.FiveCrop(20), T.Lambda(lambda crops: torch.stack([T.ToTensor()(c) for c in crops]))])
    )
    assert_same_epoch(ours(dataset, 7, fallback="silent"), stock(dataset, 7))


# ---- collate_fn, target_transform


def test_collate_fn_gets_the_same_samples_as_in_torchs_loader(dataset):
    def collate(samples):
        assert all(type(sample) is tuple and type(sample[1]) is int for sample in samples)
        return {"images": torch.stack([image for image, _ in samples]), "targets": [target for _, target in samples]}

    for mine, theirs in zip(ours(dataset, 7, collate_fn=collate), stock(dataset, 7, collate_fn=collate), strict=True):
        assert torch.equal(mine["images"], theirs["images"]) and mine["targets"] == theirs["targets"]


def test_batches_are_lists_and_single_samples_tuples(dataset):
    assert type(next(iter(ours(dataset, 4)))) is list
    mine, theirs = (next(iter(maker(dataset, batch_size=None))) for maker in (ours, stock))
    assert type(mine) is type(theirs) and torch.equal(mine[0], theirs[0]) and mine[1:] == theirs[1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_target_transform_draws_as_in_torchs_loader(num_workers):
    dataset = make(target_transform=lambda target: target * 10 + int(torch.randint(10, ())))
    runs = []
    for maker in (ours, stock):
        torch.manual_seed(5)
        loader = maker(dataset, 7, shuffle=True, num_workers=num_workers)
        runs.append([batch[1] // 10 for batch in loader])
        runs.append(torch.get_rng_state() if num_workers else None)
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))
    assert num_workers == 0 or torch.equal(runs[1], runs[3])


# ---- errors


@pytest.mark.parametrize("kind", ["CIFAR10", "MNIST", "SVHN", "USPS", "ours"])
@pytest.mark.parametrize("index", [COUNT, -COUNT - 1, 1.5, "3", None, torch.tensor(99)])
def test_wrong_index_raises_torchs_error(tmp_path, monkeypatch, kind, index):
    dataset = make() if kind == "ours" else TORCHVISION[kind](tmp_path, monkeypatch)
    dataset.transform = T.ToTensor()
    batches = [[0, 1], [2, index], [3], [-1]]
    results = []
    for maker in (ours, stock):
        iterator, outcomes = iter(maker(dataset, batch_sampler=batches)), []
        while True:
            try:
                outcomes.append(next(iterator)[1].tolist())
            except StopIteration:
                break
            except Exception as error:
                outcomes.append((type(error), str(error)))
        results.append(outcomes)
    assert len(results[0]) == len(results[1]) == 4
    for mine, theirs in zip(*results, strict=True):
        assert mine == theirs or (mine[0] is theirs[0] and mine[1].startswith(f"{theirs[1].rstrip('.')}. "))


def test_error_of_a_crop_larger_than_the_image_names_the_sample(small_chunks):
    dataset = data.ConcatDataset([make(10), make(10, T.Compose([T.RandomCrop(33), TEST]))])
    loader, results = ours(dataset, 2, sampler=[0, 1, 2, 11, 3, 4]), []
    iterator = iter(loader)
    for _ in range(3):
        try:
            results.append(next(iterator)[1].tolist())
        except ValueError as error:
            results.append(str(error))
    assert results[0] == [0, 1] and results[2] == [3, 4]
    assert results[1] == "Required crop size (33, 33) is larger than input image size (32, 32) (index 11)"


def test_epoch_continues_after_an_error_in_collate_fn(dataset):
    def collate(samples):
        if samples[0][1] == 5:
            raise KeyError("five")
        return [target for _, target in samples]

    iterator, outcomes = iter(ours(dataset, 5, collate_fn=collate, sampler=range(15))), []
    for _ in range(3):
        try:
            outcomes.append(next(iterator))
        except KeyError:
            outcomes.append("error")
    assert outcomes == [[0, 1, 2, 3, 4], "error", [10, 11, 12, 13, 14]]


# ---- epochs


def test_epochs_depend_only_on_the_seed():
    def epochs(seed):
        torch.manual_seed(seed)
        loader = ours(make(transform=TRAIN), 6)
        return [torch.cat([images for images, _ in loader]) for _ in range(2)]

    first, again, other = epochs(0), epochs(0), epochs(1)
    assert all(map(torch.equal, first, again))
    assert not (first[0] == first[1]).flatten(1).all(1).all() and not torch.equal(first[0], other[0])


def test_writing_to_a_batch_does_not_change_other_batches(dataset):
    expected = [images for images, _ in stock(dataset, 4)]
    batches = list(ours(dataset, 4))
    for (images, targets), wanted in zip(batches, expected, strict=True):
        assert torch.equal(images, wanted)
        images.zero_()
        targets.fill_(-1)
    assert all(targets.tolist() == [-1] * len(targets) for _, targets in batches)
    assert_same_pixels([images for images, _ in ours(dataset, 4)], expected)


def test_writing_to_the_next_batch_does_not_break_backward(dataset):
    """A prefetcher may normalize the next batch in place; autograd must not report that the current one changed."""
    iterator, weight = iter(ours(dataset, 4, sampler=range(16))), torch.ones(3, 3, 3, 3, requires_grad=True)
    next(iterator)
    (images, _), (following, _) = next(iterator), next(iterator)
    loss = torch.nn.functional.conv2d(images, weight).sum()
    following.mul_(2)
    loss.backward()


def test_batches_can_be_used_across_grad_modes(dataset, small_chunks):
    expected = [images for images, _ in stock(dataset, 4)]
    loader = ours(dataset, 4)
    with torch.inference_mode():
        assert_same_pixels([images for images, _ in loader], expected)
        iterator = iter(loader)
        first = [next(iterator)[0], next(iterator)[0]]
    rest = [images for images, _ in iterator]
    assert_same_pixels(first + rest, expected)
    weight = torch.ones(3, 3, 3, 3, requires_grad=True)
    for images in (rest[0], next(iter(loader))[0]):
        torch.nn.functional.conv2d(images, weight).sum().backward()


def test_copied_and_pickled_loaders_give_the_same_batches(dataset):
    loader = ours(dataset, 7)
    list(loader)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert_same_epoch(other, stock(dataset, 7))
    file = io.BytesIO()
    torch.save(dataset, file)


def test_data_set_works_in_torchs_loader_with_workers(dataset):
    assert_same_epoch(stock(dataset, 7, num_workers=2), ours(dataset, 7))


# ---- changes


def _replace_data(dataset):
    dataset.data = pictures(COUNT, 32, 32, 3, seed=5)


def _shrink(dataset):
    dataset.data, dataset.targets = dataset.data[5:20], dataset.targets[5:20]


def _change_shape(dataset):
    dataset.data = pictures(COUNT, 20, 40, 3)


def _replace_targets(dataset):
    dataset.targets = [target + 1 for target in dataset.targets]


def _change_targets_in_place(dataset):
    dataset.targets[3] = 77


def _change_type_of_targets(dataset):
    dataset.targets = [float(target) for target in dataset.targets]


def _replace_transform(dataset):
    dataset.transform = T.Compose([T.Pad(3, fill=9), T.ToTensor()])


def _change_transform_in_place(dataset):
    dataset.transform = copy.deepcopy(dataset.transform)
    dataset.transform.transforms.insert(0, T.RandomHorizontalFlip(1.0))


def _replace_target_transform(dataset):
    dataset.target_transform = lambda target: -target


@pytest.mark.parametrize(
    "change",
    [
        _replace_data,
        _shrink,
        _change_shape,
        _replace_targets,
        _change_targets_in_place,
        _change_type_of_targets,
        _replace_transform,
        _change_transform_in_place,
        _replace_target_transform,
    ],
)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_changes_of_the_data_set_apply_to_the_next_epoch(dataset, change, options):
    sampler = range(14)
    loader = ours(dataset, 4, sampler=sampler, **options)
    for _ in range(2):
        assert_same_epoch(loader, stock(dataset, 4, sampler=sampler))
    change(dataset)
    for _ in range(2):
        assert_same_epoch(loader, stock(dataset, 4, sampler=sampler))
        assert [b[1].dtype for b in loader] == [b[1].dtype for b in stock(dataset, 4, sampler=sampler)]


def test_switching_qmnist_to_target_vectors_equals_torchs(tmp_path, monkeypatch):
    dataset = TORCHVISION["QMNIST"](tmp_path, monkeypatch)
    dataset.transform = T.ToTensor()
    loader = ours(dataset, 7)
    assert_same_epoch(loader, stock(dataset, 7))
    dataset.compat = False
    assert_same_epoch(loader, stock(dataset, 7))


def test_in_place_change_of_an_image_tensor_applies_to_the_next_epoch():
    """A tensor counts its changes; on a GPU, changes of a NumPy array are not detected, as documented."""
    images = torch.from_numpy(pictures(12, 8, 8, 3))  # not planar, so that it is copied
    dataset = DALIArrayDataset(images, labels(12), T.ToTensor())
    loader = ours(dataset, 5)
    assert_same_epoch(loader, stock(dataset, 5))
    images[2:5] = 7
    assert_same_epoch(loader, stock(dataset, 5))


def test_in_place_change_of_targets_applies_to_the_next_epoch(dataset):
    for targets in (np.array(labels()), torch.tensor(labels())):
        dataset.targets = targets
        loader = ours(dataset, 5)
        assert_same_epoch(loader, stock(dataset, 5))
        targets[4] = 99
        assert_same_epoch(loader, stock(dataset, 5))


# ---- memory


def _resident_pixels(loader):
    return [held.pixels for held in loader._route.datasets.values()]


def test_loaders_of_one_array_share_a_copy(dataset):
    train, validation = (ours(part, 4) for part in data.random_split(dataset, [30, 10]))
    list(train), list(validation)
    assert _resident_pixels(train)[0] is _resident_pixels(validation)[0] is not None


def test_copies_are_freed_when_they_are_no_longer_used():
    with no_gc():
        loader = ours(make(), 4)
        iterator = iter(loader)
        next(iterator)
        copies = [weakref.ref(pixels) for pixels in _resident_pixels(loader)]
        loader.close()
        assert copies[0]() is not None and next(iterator)  # a running iterator continues
        del iterator
        assert copies[0]() is None
        list(loader)
        copies = [weakref.ref(pixels) for pixels in _resident_pixels(loader)]
        loader.dataset.data = pictures(COUNT, 32, 32, 3, seed=5)
        list(loader)
        assert copies[0]() is None
        copies = [weakref.ref(pixels) for pixels in _resident_pixels(loader)]
        del loader
        assert copies[0]() is None


def test_planar_arrays_are_not_copied_on_the_cpu(tmp_path, monkeypatch):
    dataset = cifar(tmp_path, monkeypatch)
    dataset.transform = TEST
    loader = ours(dataset, 4)
    list(loader)
    assert _resident_pixels(loader)[0].images.data_ptr() == dataset.data.ctypes.data


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_too_large_for_the_memory_fall_back_to_torch(dataset, monkeypatch, device):
    monkeypatch.setattr(resident, "free_memory", lambda device: 2 * dataset.data.nbytes - 10)
    loader = DataLoader(dataset, 7, device=device, fallback="silent")
    batches = list(loader)
    explained = loader.explain()
    assert explained.startswith("torchvision route")
    assert "0.1 MB" in explained and f"50% of the free memory of {device}" in explained
    assert_same_epoch(batches, stock(dataset, 7))
    with pytest.raises(RuntimeError, match="free memory"):
        list(DataLoader(dataset, 7, device=device, fallback="error"))
    monkeypatch.setattr(resident, "free_memory", lambda device: 2 * dataset.data.nbytes)
    assert_same_epoch(loader, stock(dataset, 7))
    assert loader.explain().startswith("resident on")
    dataset.data = dataset.data.copy()  # releasing the old copy makes room for the new one
    monkeypatch.setattr(resident, "free_memory", lambda device: dataset.data.nbytes)
    assert_same_epoch(loader, stock(dataset, 7))
    assert loader.explain().startswith("resident on")


@pytest.mark.gpu
def test_free_memory_of_a_gpu_includes_torchs_cache():
    free = resident.free_memory(torch.device("cuda", 0))
    block = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    assert free - resident.free_memory(torch.device("cuda", 0)) >= 200 << 20
    del block  # torch keeps the block for reuse
    assert abs(free - resident.free_memory(torch.device("cuda", 0))) < 64 << 20


@pytest.mark.gpu
def test_batch_on_another_stream_waits_for_its_chunk(small_chunks):
    dataset = make(400)
    expected = torch.cat([images for images, _ in stock(dataset, 20)])
    iterator, images = iter(ours(dataset, 20, device="cuda")), []
    streams = [torch.cuda.Stream(), torch.cuda.current_stream()]
    for number in range(20):
        with torch.cuda.stream(streams[number % 2]):
            images.append(next(iterator)[0].clone())
    torch.cuda.synchronize()
    assert torch.equal(torch.cat(images).cpu(), expected)


# ---- unsupported data sets


class OwnGetItem(tv.CIFAR10):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target, index


class PlainSubclass(DALIArrayDataset):
    """A subclass that reads its data as the base class does."""


def _with_attribute(dataset, name, value):
    setattr(dataset, name, value)
    return dataset


def _as_cifar(kind):
    dataset = make()
    dataset.__class__ = kind
    return dataset


REFUSED = {
    "an own __getitem__": (lambda: _as_cifar(OwnGetItem), "OwnGetItem overrides __getitem__"),
    "floats": (lambda: _with_attribute(make(), "data", pictures(COUNT, 32, 32, 3).astype(np.float32)), "float32"),
    "four channels": (lambda: _with_attribute(make(), "data", pictures(COUNT, 32, 32, 4)), "shape"),
    "too few targets": (lambda: _with_attribute(make(), "targets", [1, 2]), "40 images, but 2 targets"),
    "with other data sets": (
        lambda: data.ConcatDataset([make(), data.TensorDataset(torch.zeros(3))]),
        "TensorDataset",
    ),
    "wrapped for v2": (lambda: tv.wrap_dataset_for_transforms_v2(_as_cifar(tv.CIFAR10)), "overrides __getitem__"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_data_set_falls_back_to_torch_with_the_reason(case):
    dataset, reason = REFUSED[case]
    loader = DataLoader(dataset(), 4, device="cpu", fallback="silent")
    assert loader.explain().startswith("torchvision route") and reason in loader.explain()
    with pytest.raises(RuntimeError, match="fallback='error'"):
        DataLoader(dataset(), 4, device="cpu", fallback="error")


def test_subclass_with_the_inherited_getitem_is_resident():
    dataset = PlainSubclass(pictures(COUNT, 32, 32, 3), labels(), TEST)
    assert_same_epoch(ours(dataset, 4), stock(dataset, 4))


def test_arrays_concatenated_with_a_folder_fall_back_to_torch(image_root):
    dataset = data.ConcatDataset([make(8), DALIImageFolder(image_root, T.Compose([T.CenterCrop(32), TEST]))])
    loader = DataLoader(dataset, 4, device="cpu", fallback="silent")
    assert loader.explain().startswith("torchvision route")
    assert_same_epoch(loader, stock(dataset, 4))


def test_explain_lists_arrays_parts_and_steps(dataset):
    dataset.transform = TRAIN
    loader = ours(data.ConcatDataset([dataset, make(20)]), 256, exact=True, pin_memory=True)
    lines = loader.explain().splitlines()
    assert lines[0].startswith("resident on cpu: 40 images of 32x32, 0.1 MB + 20 images of 32x32, 0.1 MB; up to ")
    text = "\n".join(lines)
    for expected in (
        "part 1 of the data set:",
        "RandomCrop(size=(32, 32), padding=4)",
        "torch, on the batch",
        "pin_memory=True",
    ):
        assert expected in text
    assert "decode" not in text and "DALI" not in text


def test_sampler_is_drawn_ahead_only_if_random_states_allow(dataset):
    def allowed(**options):
        return samplers.max_draw_ahead(stock(dataset, 5, **options)._index_sampler)

    everything = 10**9
    assert allowed() > everything and allowed(shuffle=True) > everything
    # of 8, because the generator is drawn from again with the last batch
    assert allowed(shuffle=True, generator=torch.Generator()) == 7
    assert allowed(sampler=data.RandomSampler(dataset, True, 70, generator=torch.Generator())) == 0
    assert allowed(sampler=data.RandomSampler(dataset, True, 70)) > everything
    assert allowed(sampler=Yields(lambda: iter(range(5)), 5)) == 0
