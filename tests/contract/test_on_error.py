"""on_error: unreadable samples are replaced or skipped, and listed; the epoch continues."""

import io
import os
import pickle
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torch.utils.data import default_collate
from torchvision import transforms as T
from torchvision.datasets import CIFAR10
from torchvision.datasets.folder import default_loader

from contract.both import EXACT, Wrapped, error_of, no_gc, ours, stock
from contract.storages import ARCHIVES, stored
from dali_compat import BadImageWarning, DALIImageFolder, DataLoader, SampleError

BAD = (1, 4)  # of eight
GOOD = [i for i in range(8) if i not in BAD]
ON_CPU = dict(device="cpu", fallback="silent")


def _truncate(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


DAMAGE = {"no image": lambda path: path.write_bytes(b"bad"), "cut": _truncate, "missing": Path.unlink}


def _damaged(root, damage="no image", transform=EXACT, bad=BAD, **options):
    dataset = DALIImageFolder(root, transform, return_index=True, **options)
    for index in bad:
        DAMAGE[damage](Path(dataset.samples[index][0]))
    return dataset


def _epoch(loader, quiet=True):
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", BadImageWarning)
        return list(loader)


def _indices(batches) -> list[list[int]]:
    return [batch[2].tolist() for batch in batches]


def _assert_samples_match_indices(batches, dataset) -> None:
    """Check that every image and label belongs to its index."""
    for images, labels, indices in batches:
        for image, label, index in zip(images, labels.tolist(), indices.tolist(), strict=True):
            expected, target, _ = dataset[index]
            assert label == target and torch.equal(image.cpu(), expected)


@pytest.mark.parametrize("damage, num_workers", [*((damage, 0) for damage in DAMAGE), ("cut", 2)])
def test_skip_leaves_out_bad_samples_and_lists_them(own_root, damage, num_workers):
    dataset = _damaged(own_root, damage)
    loader = ours(dataset, 3, on_error="skip", num_workers=num_workers, device="cpu")
    for _ in range(2):
        batches = _epoch(loader)
        assert _indices(batches) == [[0, 2], [3, 5], [6, 7]]
        _assert_samples_match_indices(batches, dataset)
    assert [(e.path, e.index, e.epoch) for e in loader.errors] == [(dataset.samples[i][0], i, 0) for i in BAD]
    assert len(loader) == 3


@pytest.mark.parametrize("damage, num_workers", [*((damage, 0) for damage in DAMAGE), ("cut", 2)])
def test_replace_fills_bad_samples_with_others_of_the_epoch(own_root, damage, num_workers):
    dataset = _damaged(own_root, damage)
    loader = ours(dataset, 3, on_error="replace", num_workers=num_workers, device="cpu")
    epochs = []
    for _ in range(2):
        torch.manual_seed(0)
        batches = _epoch(loader)
        found = sum(_indices(batches), [])
        assert [len(batch[0]) for batch in batches] == [3, 3, 2]
        assert [found[i] for i in GOOD] == GOOD and all(found[i] in GOOD for i in BAD)
        _assert_samples_match_indices(batches, dataset)
        epochs.append(found)
    assert epochs[0] == epochs[1]  # the replacements are the same whether a bad sample is new or known
    assert {error.index for error in loader.errors} == set(BAD)
    torch.manual_seed(1)
    others = [sum(_indices(_epoch(loader)), []) for _ in range(5)]
    assert len({tuple(found[i] for i in BAD) for found in others}) > 1  # different in each epoch


def test_a_replacement_is_the_same_for_new_and_known_bad_samples(own_root):
    """Batches with random transforms are bitwise equal."""
    transform = T.Compose([T.RandomResizedCrop(24), T.ColorJitter(0.4), T.RandomHorizontalFlip(), T.ToTensor()])
    dataset = _damaged(own_root, "cut", transform)
    loader = ours(dataset, 4, on_error="replace", device="cpu")
    epochs = []
    for _ in range(2):
        torch.manual_seed(3)
        epochs.append(_epoch(loader))
    for first, second in zip(*epochs, strict=True):
        assert all(map(torch.equal, first, second))


def test_replacements_are_augmented_independently(own_root):
    """One image replaces seven others, with the random parameters of their positions."""
    transform = T.Compose([T.RandomCrop(24), T.PILToTensor()])
    dataset = _damaged(own_root, transform=transform, bad=range(1, 8))
    ((images, _, indices),) = _epoch(ours(dataset, 8, on_error="replace", device="cpu"))
    assert indices.tolist() == [0] * 8
    assert len({image.numpy().tobytes() for image in images.cpu()}) > 4


def test_bad_candidates_for_a_replacement_are_listed(own_root):
    """The candidates are not samples of the epoch."""

    class First(data.Sampler):
        def __iter__(self):
            return iter([0, 1])

        def __len__(self):
            return 2

    dataset = _damaged(own_root, bad=range(1, 8))
    loader = ours(dataset, 2, sampler=First(), on_error="replace", device="cpu")
    for _ in range(3):
        _epoch(loader)
    assert {1} < {error.index for error in loader.errors} <= set(range(1, 8))
    assert all(error.path == dataset.samples[error.index][0] for error in loader.errors)


def test_an_empty_batch_is_skipped(own_root):
    dataset = _damaged(own_root, bad=(2, 3))
    assert _indices(_epoch(ours(dataset, 2, on_error="skip", device="cpu"))) == [[0, 1], [4, 5], [6, 7]]
    dataset = _damaged(own_root, bad=range(8))
    loader = ours(dataset, 2, on_error="skip", device="cpu")
    assert _epoch(loader) == [] and len(loader.errors) == 8
    assert _epoch(loader) == []


def test_replace_raises_if_no_sample_can_be_read(own_root):
    error = error_of(_epoch, ours(_damaged(own_root, bad=range(8)), 2, on_error="replace", device="cpu"))
    assert isinstance(error, OSError) and "cannot decode" in str(error)


def test_bad_samples_are_skipped_or_replaced_without_batches(own_root):
    dataset = _damaged(own_root)
    skipped = _epoch(ours(dataset, None, on_error="skip", device="cpu"))
    assert [index for _, _, index in skipped] == GOOD
    replaced = _epoch(ours(dataset, None, on_error="replace", device="cpu"))
    assert len(replaced) == 8 and [replaced[i][2] for i in GOOD] == GOOD


def test_a_repaired_file_is_used_in_the_next_epoch(own_root):
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    path = Path(dataset.samples[1][0])
    good = path.read_bytes()
    path.write_bytes(b"bad")
    loader = ours(dataset, 4, on_error="skip", device="cpu")
    assert _indices(_epoch(loader)) == _indices(_epoch(loader)) == [[0, 2, 3], [4, 5, 6, 7]]
    path.write_bytes(good)
    batches = _epoch(loader)
    assert _indices(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    _assert_samples_match_indices(batches, dataset)


def test_a_file_repaired_with_the_same_size_is_used_in_the_next_epoch(own_root):
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    path = Path(dataset.samples[1][0])
    good = path.read_bytes()
    path.write_bytes(bytes(len(good)))
    loader = ours(dataset, 4, on_error="skip", device="cpu")
    assert _indices(_epoch(loader)) == _indices(_epoch(loader)) == [[0, 2, 3], [4, 5, 6, 7]]
    path.write_bytes(good)
    assert _indices(_epoch(loader)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_image_smaller_than_the_crop_is_a_bad_sample(own_root, policy):
    dataset = DALIImageFolder(own_root, T.Compose([T.RandomCrop(100), T.PILToTensor()]), return_index=True)
    sizes = [dataset.loader(path).size for path, _ in dataset.samples]
    small = {i for i, size in enumerate(sizes) if min(size) < 100}
    assert 0 < len(small) < 8
    loader = ours(dataset, 8, on_error=policy, device="cpu")
    (batch,) = _epoch(loader)
    assert batch[0].shape[0] == (8 if policy == "replace" else 8 - len(small))
    assert not small & set(batch[2].tolist()) and {error.index for error in loader.errors} == small
    assert all(error.reason.startswith("ValueError: Required crop size") for error in loader.errors)


def test_warnings_name_the_sample_and_count_skipped_ones(own_root):
    dataset = _damaged(own_root)
    loader = ours(dataset, 3, on_error="skip", device="cpu")
    with pytest.warns(BadImageWarning) as caught:
        _epoch(loader, quiet=False)
    assert {warning.filename for warning in caught} == {__file__}  # the line of the loop
    first, last = (str(warning.message) for warning in caught)
    assert dataset.samples[1][0] in first and "index 1" in first and "skipped" in first
    assert "epoch 0: 2 of 8 samples were skipped" in last
    with warnings.catch_warnings():  # the same samples do not warn again
        warnings.simplefilter("error")
        _epoch(loader, quiet=False)
    DAMAGE["no image"](Path(dataset.samples[2][0]))
    with pytest.warns(BadImageWarning, match="epoch 2: 3 of 8 samples were skipped") as caught:
        _epoch(loader, quiet=False)
    assert len(caught) == 1
    assert "a sample that cannot be read is skipped" in loader.explain()
    error = loader.errors[0]
    assert isinstance(error, SampleError) and "UnidentifiedImageError" in error.reason


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, Wrapped], ids=["DALI", "torch"])
def test_a_warning_raised_as_an_error_ends_only_one_next(own_root, wrap, num_workers):
    """The epoch continues after the warning about a sample, and stays over after the final warning."""
    loader = ours(wrap(_damaged(own_root)), 3, on_error="skip", num_workers=num_workers, **ON_CPU)
    iterator, warned, indices_seen = iter(loader), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error", BadImageWarning)
        while len(warned) < 5:
            try:
                indices_seen += next(iterator)[2].tolist()
            except BadImageWarning as warning:
                warned.append(str(warning))
            except StopIteration:
                break
    assert len(warned) == 2 and "of 8 samples were skipped" in warned[1], warned
    assert set(indices_seen) <= set(GOOD) and indices_seen[-2:] == GOOD[-2:]


def test_a_folder_without_bad_files_does_not_warn(own_root):
    loader = ours(DALIImageFolder(own_root, EXACT, return_index=True), 3, on_error="replace", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", BadImageWarning)
        assert sum(_indices(list(loader)), []) == list(range(8))
    assert loader.errors == []


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("storage", ARCHIVES)
def test_bad_records_of_an_archive_are_skipped_or_replaced(own_root, tmp_path, storage, policy):
    _damaged(own_root)
    dataset = stored(own_root, storage, tmp_path)(EXACT, return_index=True)
    loader = ours(dataset, 3, on_error=policy, device="cpu")
    for _ in range(2):
        batches = _epoch(loader)
        found = sum(_indices(batches), [])
        assert found == GOOD if policy == "skip" else [found[i] for i in GOOD] == GOOD
        _assert_samples_match_indices(batches, dataset)
    assert [error.path for error in loader.errors] == [dataset.place(i) for i in BAD]


def test_samples_of_a_deleted_archive_are_skipped(own_root, tmp_path):
    """The samples of the folder remain."""
    archive = stored(own_root, "tar", tmp_path)(EXACT)
    both = data.ConcatDataset([DALIImageFolder(own_root, EXACT), archive])
    (tmp_path / "all.tar").unlink()
    loader = ours(both, 16, on_error="skip", device="cpu")
    (batch,) = _epoch(loader)
    assert len(batch[0]) == 8 and len(loader.errors) == 8


def _refuse_bright_images(image):
    if image.float().mean() > _refuse_bright_images.most:
        raise LookupError("too bright")
    return image


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_functions_are_raised_unless_on_error_in_python(own_root, policy, num_workers):
    plain = DALIImageFolder(own_root, EXACT, return_index=True)
    means = [plain[i][0].float().mean().item() for i in range(8)]
    _refuse_bright_images.most = sorted(means)[5]
    bright = {i for i in range(8) if means[i] > _refuse_bright_images.most}
    dataset = DALIImageFolder(
        own_root, T.Compose([*EXACT.transforms, T.Lambda(_refuse_bright_images)]), return_index=True
    )
    options = dict(on_error=policy, num_workers=num_workers, **ON_CPU)
    assert isinstance(error_of(_epoch, ours(dataset, 4, **options)), LookupError)
    loader = ours(dataset, 4, on_error_in_python=True, **options)
    batches = _epoch(loader)
    found = sum(_indices(batches), [])
    assert not bright & set(found) and len(found) == (8 if policy == "replace" else 6)
    _assert_samples_match_indices(batches, dataset)
    assert {error.index for error in loader.errors} == bright


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_errors_of_target_transform_are_raised_unless_on_error_in_python(own_root, policy):
    def refuse(target):
        if target:
            raise LookupError("no such target")
        return target

    dataset = DALIImageFolder(own_root, EXACT, refuse, return_index=True)
    assert isinstance(error_of(_epoch, ours(dataset, 4, on_error=policy, device="cpu")), LookupError)
    batches = _epoch(ours(dataset, 4, on_error=policy, on_error_in_python=True, device="cpu"))
    assert all(label == 0 for _, labels, _ in batches for label in labels.tolist())
    assert sum(len(batch[0]) for batch in batches) == (8 if policy == "replace" else 4)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_files_of_a_custom_data_set_are_skipped_or_replaced(own_root, policy, num_workers):
    dataset = Wrapped(_damaged(own_root))
    loader = ours(dataset, 3, on_error=policy, num_workers=num_workers, **ON_CPU)
    for _ in range(2):
        torch.manual_seed(0)
        batches = _epoch(loader)
        found = sum(_indices(batches), [])
        if policy == "skip":
            assert _indices(batches) == [[0, 2], [3, 5], [6, 7]]
        else:
            assert len(found) == 8 and [found[i] for i in GOOD] == GOOD and all(found[i] in GOOD for i in BAD)
        _assert_samples_match_indices(batches, dataset)
    assert {(error.index, error.epoch) for error in loader.errors} == {(i, 0) for i in BAD}
    assert "its images are deferred" in loader.explain()


def test_torchs_loader_names_each_bad_file(own_root):
    """This includes bad candidates for a replacement."""
    dataset = _damaged(own_root, bad=range(1, 8), loader=_load_and_read)
    loader = ours(dataset, 8, on_error="replace", **ON_CPU)
    _epoch(loader)
    assert "torchvision route" in loader.explain()
    assert {error.index for error in loader.errors} == set(range(1, 8))
    assert all(error.path == dataset.samples[error.index][0] for error in loader.errors)


def _open_by_path(path):
    return Image.open(path).convert("RGB")


def _open_by_file(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def _open_with_wrapped_error(path):
    try:
        return _open_by_path(path)
    except Exception as error:
        raise OSError("a bad sample") from error


class CustomDataset(data.Dataset):
    """A custom data set whose images are deferred unless it reads their pixels."""

    def __init__(self, folder, open_image, reads_pixels):
        self.paths, self.open_image, self.reads_pixels = [path for path, *_ in folder.samples], open_image, reads_pixels

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.open_image(self.paths[index])
        return EXACT(Image.fromarray(np.asarray(image)) if self.reads_pixels else image)


@pytest.mark.parametrize("reads_pixels", [True, False])
@pytest.mark.parametrize("open_image", [_open_by_path, _open_by_file, _open_with_wrapped_error])
@pytest.mark.parametrize("damage", DAMAGE)
def test_files_opened_in_custom_code_are_named(own_root, damage, open_image, reads_pixels):
    dataset = CustomDataset(_damaged(own_root, damage), open_image, reads_pixels)
    loader = DataLoader(dataset, 4, on_error="skip", **ON_CPU)
    assert sum(map(len, _epoch(loader))) == len(GOOD)
    assert [(error.path, error.index) for error in loader.errors] == [(dataset.paths[i], i) for i in BAD]
    assert loader.explain().startswith("torchvision route" if reads_pixels else "DALI route")


def test_a_bad_image_in_memory_is_listed_by_the_data_sets_name(own_root):
    dataset = CustomDataset(
        _damaged(own_root), lambda path: Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB"), True
    )
    loader = DataLoader(dataset, 4, on_error="skip", num_workers=1, **ON_CPU)
    assert sum(map(len, _epoch(loader))) == len(GOOD)
    assert [error.path for error in loader.errors] == ["CustomDataset"] * len(BAD)


def _load_and_read(path):
    return default_loader(path).point(lambda value: value)  # reads the pixels


@pytest.mark.parametrize("persistent", [False, True])
def test_torchs_loader_skips_all_samples_in_each_epoch(own_root, persistent):
    dataset = Wrapped(_damaged(own_root, bad=range(8)))
    loader = ours(dataset, 3, on_error="skip", num_workers=1, persistent_workers=persistent, **ON_CPU)
    assert [_epoch(loader), _epoch(loader)] == [[], []] and len(loader.errors) == 8


def test_torchs_loader_counts_the_skipped_samples_of_each_epoch(own_root):
    dataset = Wrapped(_damaged(own_root))
    loader = ours(dataset, 3, on_error="skip", num_workers=1, persistent_workers=True, **ON_CPU)
    for epoch in range(2):
        with pytest.warns(BadImageWarning, match=f"epoch {epoch}: {2 + epoch} of 8 samples were skipped") as caught:
            _epoch(loader, quiet=False)
        assert {one.filename for one in caught if one.category is BadImageWarning} == {__file__}
        DAMAGE["no image"](Path(dataset.folder.samples[2][0]))


def test_replacements_of_torchs_loader_do_not_depend_on_workers(own_root):
    dataset = Wrapped(_damaged(own_root))
    for seed in range(3):
        indices_seen = []
        for num_workers in (0, 1, 2):
            torch.manual_seed(seed)
            indices_seen.append(
                _indices(_epoch(ours(dataset, 3, on_error="replace", num_workers=num_workers, **ON_CPU)))
            )
        assert indices_seen[0] == indices_seen[1] == indices_seen[2]


SPLITS = {"subset": data.SubsetRandomSampler([0, 1, 2]), "list": [0, 1, 2], "tensor": torch.arange(3)}


@pytest.mark.parametrize("sampler", SPLITS.values(), ids=SPLITS)
def test_replacements_come_from_the_samplers_split(own_root, sampler):
    dataset = _damaged(own_root)
    for seed in range(10):
        torch.manual_seed(seed)
        loader = ours(dataset, 3, sampler=sampler, on_error="replace", device="cpu")
        assert set(sum(_indices(_epoch(loader)), [])) <= {0, 2}


def test_replacements_use_the_transform_of_their_part(own_root):
    _damaged(own_root)
    small = T.Compose([T.CenterCrop(40), T.PILToTensor()])
    parts = [DALIImageFolder(own_root, transform, return_index=True) for transform in (small, EXACT)]
    loader = ours(data.ConcatDataset(parts), 5, on_error="replace", device="cpu")
    batches = _epoch(loader)
    assert sum(len(batch[0]) for batch in batches) == 16 and {error.index for error in loader.errors} == {1, 4, 9, 12}
    _assert_samples_match_indices(batches, parts[0])


def test_a_custom_collate_fn_gets_the_remaining_samples(own_root):
    sizes_seen = []

    def collate(samples):
        sizes_seen.append(len(samples))
        return default_collate(samples)

    dataset = _damaged(own_root)
    assert _indices(_epoch(ours(dataset, 3, on_error="skip", collate_fn=collate, device="cpu"))) == [
        [0, 2],
        [3, 5],
        [6, 7],
    ]
    assert sizes_seen == [2, 2, 2]


def test_an_index_error_is_raised(own_root):
    dataset = _damaged(own_root)
    for make in (ours, stock):
        options = dict(on_error="skip", device="cpu") if make is ours else {}
        assert isinstance(error_of(list, make(dataset, batch_sampler=[[0, 99]], **options)), IndexError)


def test_a_wrong_policy_is_named(own_root):
    error = error_of(ours, DALIImageFolder(own_root, EXACT), on_error="ignore")
    assert isinstance(error, ValueError) and str(error) == "on_error must be 'raise', 'skip' or 'replace', got 'ignore'"


def test_a_loader_is_pickled_with_its_policy(own_root):
    loader = ours(_damaged(own_root), 3, on_error="skip", device="cpu")
    _epoch(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert _indices(_epoch(copy)) == [[0, 2], [3, 5], [6, 7]] and len(copy.errors) == 2


@pytest.mark.parametrize("sampler", [data.SubsetRandomSampler(torch.arange(8)), torch.arange(8)])
def test_indices_in_tensors_are_listed_once(own_root, sampler):
    loader = ours(_damaged(own_root), 3, sampler=sampler, on_error="skip", device="cpu")
    for _ in range(2):
        _epoch(loader)
    assert sorted(error.index for error in loader.errors) == list(BAD)


class _TakesLists(Wrapped):
    def __getitem__(self, indices):
        return default_collate([self.folder[index] for index in indices])


def test_a_list_as_index_is_skipped_as_one_sample(own_root):
    dataset = _TakesLists(_damaged(own_root))
    loader = ours(dataset, None, sampler=[[0, 2], [1, 3], [5, 6]], on_error="skip", **ON_CPU)
    assert _indices(_epoch(loader)) == [[0, 2], [5, 6]] and [error.index for error in loader.errors] == [[1, 3]]


class _RaisesFromItself(data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        try:
            if index == 2:
                raise OSError("bad")
        except OSError as error:
            raise error from error
        return index


@pytest.mark.filterwarnings("ignore")
def test_an_error_raised_from_itself_is_listed():
    loader = DataLoader(_RaisesFromItself(), 4, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[0, 1, 3]]
    assert loader.errors == [SampleError("_RaisesFromItself", 2, 0, "OSError: bad")]


class _WithoutLength(data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        return self.folder[index]


def test_skip_works_for_a_data_set_without_length(own_root):
    dataset = _WithoutLength(_damaged(own_root))
    assert _indices(_epoch(ours(dataset, 3, sampler=[0, 1, 2], on_error="skip", **ON_CPU))) == [[0, 2]]


class _SetUpByWorker(Wrapped):
    worker = None

    def __getnewargs__(self):
        return (self.folder,)

    def __new__(cls, folder):
        return super().__new__(cls)

    def __getitem__(self, index):
        return self.worker


def _set_up(worker):
    data.get_worker_info().dataset.worker = worker


def test_a_worker_init_fn_may_set_up_the_data_set(own_root):
    dataset = _SetUpByWorker(_damaged(own_root))
    options = dict(num_workers=1, worker_init_fn=_set_up, multiprocessing_context="spawn")
    (batch,) = ours(dataset, 8, on_error="skip", **options, **ON_CPU)
    assert batch.tolist() == [0] * 8


class _Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_on_error_has_no_effect_on_an_iterable_data_set():
    explained = ours(_Stream(), 2, on_error="skip", **ON_CPU).explain()
    assert "without effect: on_error=skip" in explained and "is skipped" not in explained


def test_a_policy_set_after_construction_applies(own_root):
    loader = ours(_damaged(own_root), 3, device="cpu")
    loader.on_error = "skip"
    assert _indices(_epoch(loader)) == [[0, 2], [3, 5], [6, 7]]


def test_on_error_in_python_applies_when_changed(own_root):
    dataset = DALIImageFolder(own_root, EXACT, _refuse_target_one, return_index=True)
    loader = ours(dataset, 4, on_error="skip", device="cpu")
    assert isinstance(error_of(_epoch, loader), LookupError)
    loader.on_error_in_python = True
    assert _indices(_epoch(loader)) == [[0, 1, 2, 3]]
    loader.on_error_in_python = False
    assert isinstance(error_of(_epoch, loader), LookupError)


def _refuse_target_one(target):
    if target == 1:
        raise LookupError("no such target")
    return target


def test_an_epoch_resumed_after_an_interrupt_repeats_the_batch(own_root):
    """The next epoch and one resumed from the state have the same batch at the same position."""
    transform = T.Compose([T.RandomResizedCrop(16), T.PILToTensor()])
    interrupts = []

    def collate(samples):
        if interrupts:
            raise interrupts.pop()
        return default_collate(samples)

    loader = ours(
        _damaged(own_root, transform=transform, bad=[0]), 3, on_error="skip", collate_fn=collate, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadImageWarning)
        torch.manual_seed(0)
        whole = list(loader)
        torch.manual_seed(0)
        interrupts.append(KeyboardInterrupt())
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
            next(iterator)
        loader.load_state_dict(loader.state_dict())
        resumed = list(loader)
        torch.manual_seed(0)
        again = list(loader)
    for epoch in (resumed, again):
        for first, second in zip(whole, epoch, strict=True):
            assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_bad_images_do_not_keep_an_epoch_alive(own_root, policy):
    """Errors refer to tracebacks, tracebacks to batches, and batches to pipelines."""
    loader = ours(_damaged(own_root), 3, on_error=policy, device="cpu")
    with no_gc():
        for _ in range(2):  # with new and with known bad samples
            iterator = iter(loader)
            epoch = weakref.ref(iterator._epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BadImageWarning)
                for _ in range(2):
                    try:
                        next(iterator)
                    except OSError:
                        assert policy == "raise"
            del iterator
            assert epoch() is None


def test_replacements_keep_the_memory_format(own_root):
    transform = T.Compose([T.CenterCrop(40), T.ToTensor()])
    dataset = _damaged(own_root, transform=transform)
    for size in (1, 3):
        loader = ours(dataset, size, on_error="replace", memory_format=torch.channels_last, device="cpu")
        assert all(batch[0].is_contiguous(memory_format=torch.channels_last) for batch in _epoch(loader))


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_image_too_small_after_a_function_is_a_bad_sample(own_root, policy):
    transform = T.Compose([T.PILToTensor(), T.Lambda(_identity), T.RandomCrop(100)])
    dataset = DALIImageFolder(own_root, transform, return_index=True)
    small = {i for i, (path, _) in enumerate(dataset.samples) if min(dataset.loader(path).size) < 100}
    assert 0 < len(small) < 8
    assert isinstance(error_of(_epoch, ours(dataset, 8, on_error=policy, **ON_CPU)), ValueError)
    loader = ours(dataset, 8, on_error=policy, on_error_in_python=True, **ON_CPU)
    (batch,) = _epoch(loader)
    assert len(batch[0]) == (8 if policy == "replace" else 8 - len(small))
    assert not small & set(batch[2].tolist()) and {error.index for error in loader.errors} == small


def _identity(image):
    return image


def test_errors_of_target_transform_are_skipped_for_arrays():
    def refuse(target):
        if target == 3:
            raise LookupError("no such target")
        return target

    dataset = CIFAR10.__new__(CIFAR10)  # without reading files
    dataset.data, dataset.targets = np.zeros((8, 32, 32, 3), np.uint8), list(range(8))
    dataset.transform, dataset.target_transform = T.ToTensor(), refuse
    loader = ours(dataset, 4, on_error="skip", on_error_in_python=True, **ON_CPU)
    assert [labels.tolist() for _, labels in _epoch(loader)] == [[0, 1, 2], [4, 5, 6, 7]]


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_bad_files_are_skipped_or_replaced_on_a_gpu(own_root, damage, policy, exact):
    dataset = _damaged(own_root, damage)
    loader = ours(dataset, 3, on_error=policy, device="cuda", exact=exact)
    epochs = []
    for _ in range(2):
        torch.manual_seed(0)
        batches = _epoch(loader)
        found = sum(_indices(batches), [])
        assert found == GOOD if policy == "skip" else len(found) == 8 and [found[i] for i in GOOD] == GOOD
        assert all(batch[0].is_cuda for batch in batches)
        if exact:
            _assert_samples_match_indices(batches, dataset)
        epochs.append(found)
    assert epochs[0] == epochs[1] and {error.index for error in loader.errors} == set(BAD)


def _exit_process(image):
    os._exit(1)


def test_a_worker_that_exits_is_an_error_and_no_bad_sample(own_root):
    dataset = DALIImageFolder(own_root, T.Compose([*EXACT.transforms, T.Lambda(_exit_process)]))
    loader = ours(dataset, 4, on_error="skip", on_error_in_python=True, num_workers=1, **ON_CPU)
    error = error_of(_epoch, loader)
    assert isinstance(error, RuntimeError) and "exited unexpectedly" in str(error) and loader.errors == []


class Broken(data.Dataset):
    """1,000 numbers, of which some cannot be read. torch's loader reads them, because there are no images."""

    def __init__(self, *bad):
        self.bad = bad

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"bad {index}")
        return torch.tensor(index)


@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.filterwarnings("ignore::dali_compat.BadImageWarning", "ignore:resuming from this state")
def test_replacements_with_persistent_workers_differ_between_epochs_and_are_repeated_by_resuming(batch_size):
    def loader():
        torch.manual_seed(0)
        options = dict(sampler=range(16), num_workers=1, persistent_workers=True, on_error="replace")
        return DataLoader(Broken(3), batch_size, **options, **ON_CPU)

    def epoch(one):
        return torch.cat([batch.reshape(-1) for batch in one]).tolist()

    whole = loader()
    epochs = [epoch(whole) for _ in range(3)]
    assert len({numbers[3] for numbers in epochs}) == 3
    assert all(numbers[:3] == [0, 1, 2] and numbers[4:] == [*range(4, 16)] for numbers in epochs)
    interrupted = loader()
    epoch(interrupted)
    next(iter(interrupted))
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    done = batch_size or 1
    assert epoch(resumed) == epochs[1][done:] and epoch(resumed) == epochs[2]


def test_failures_before_and_after_a_checkpoint_are_counted_once():
    def loader():
        return DataLoader(Broken(1, 2, 30), 4, sampler=range(40), num_workers=2, on_error="skip", **ON_CPU)

    interrupted = loader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadImageWarning)
        for _ in zip(range(4), interrupted, strict=False):
            pass
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    with pytest.warns(BadImageWarning, match="epoch 0: 3 of 40 samples were skipped"):
        assert len(list(resumed)) == 6
