"""Common behaviour of the four archive data sets, compared with torchvision's ImageFolder of the same files."""

import copy
import gc
import multiprocessing
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import DataLoader, Subset

import dali_compat
from archives.conftest import KINDS, inside, opened
from dali_compat import ImageReadError
from dali_compat.archives import files

TENSOR = T.Compose([T.Resize((24, 24)), T.PILToTensor()])


def same(ours, theirs) -> bool:
    return ours[0].mode == "RGB" and ours[0].tobytes() == theirs[0].tobytes() and ours[1] == theirs[1]


def test_samples_equal_imagefolders(make, stock):
    dataset = make()
    assert len(dataset) == len(stock) == 12
    assert all(same(dataset[i], stock[i]) for i in range(12))
    assert dataset.targets == stock.targets and all(type(target) is int for target in dataset.targets)
    assert (dataset.classes, dataset.class_to_idx) == (stock.classes, stock.class_to_idx)


def test_transforms_apply_and_return_index_adds_the_index(make, stock):
    dataset = make(TENSOR, lambda target: f"class {target}", return_index=True)
    stock.transform = TENSOR
    image, target, index = dataset[5]
    assert torch.equal(image, stock[5][0]) and (target, index) == (f"class {stock.targets[5]}", 5)
    dataset.transform = dataset.target_transform = stock.transform = None  # set after construction, as timm does
    assert same(dataset[5], stock[5]) and dataset[5][2] == 5


@pytest.mark.parametrize("index", [-1, -12, 11, np.int64(3), torch.tensor(2)])
def test_indices_are_accepted_as_by_a_list(make, stock, index):
    dataset = make()
    assert same(dataset[index], stock[int(index)])
    assert dataset.read([index])[0].tobytes() == Path(stock.samples[int(index)][0]).read_bytes()


@pytest.mark.parametrize("index, error", [(12, IndexError), (-13, IndexError), (1.5, TypeError), ("1", TypeError)])
def test_invalid_indices_raise_in_every_method(make, index, error):
    dataset = make()
    for read in (
        dataset.__getitem__,
        lambda i: dataset.read([0, i]),
        lambda i: dataset.locations([0, i]),
        dataset.copied,
    ):
        with pytest.raises(error):
            read(index)


def test_read_returns_read_only_views_of_the_files_bytes(make, stock):
    dataset = make()
    order = [7, 0, 11, 0, -1]
    arrays = dataset.read(order)
    for array, index in zip(arrays, order, strict=True):
        assert array.dtype == np.uint8 and array.ndim == 1 and not array.flags.writeable and not array.flags.owndata
        assert array.tobytes() == Path(stock.samples[index][0]).read_bytes()
    assert dataset.read([]) == []


def test_arrays_stay_valid_after_the_data_set_is_deleted(make, stock):
    dataset = make()
    array = dataset.read([3])[0]
    del dataset
    assert array.tobytes() == Path(stock.samples[3][0]).read_bytes()


def test_files_are_closed_when_the_data_set_is_deleted(make, recwarn):
    """python -X dev warns of open files."""
    gc.collect()
    warnings.simplefilter("always")
    dataset = make()
    dataset[0], dataset.read([0, 1])
    del dataset
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_locations_give_the_byte_range_of_each_image(make, stock):
    dataset = make()
    numbers, offsets, lengths = dataset.locations([4, -2])
    assert (offsets.dtype, lengths.dtype, numbers.shape) == (np.int64, np.int64, (2,))
    for row, index in enumerate([4, -2]):
        whole = Path(dataset.files[numbers[row]]).read_bytes()
        image = whole[offsets[row] : offsets[row] + lengths[row]]
        assert image == Path(stock.samples[index][0]).read_bytes()


def test_repr_has_torchvisions_format(make):
    dataset = make(TENSOR)
    text = repr(dataset)
    assert text.startswith(f"Dataset {type(dataset).__name__}\n") and "Number of datapoints: 12" in text
    assert str(dataset.root) in text and "PILToTensor" in text and "Files:" not in text


def test_pickled_and_copied_data_sets_have_the_same_samples(make, stock):
    dataset = make(TENSOR, return_index=True)
    dataset.read([0])
    assert dataset.targets
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert torch.equal(other[5][0], dataset[5][0]) and other[5][1:] == dataset[5][1:]
        assert other.read([4])[0].tobytes() == dataset.read([4])[0].tobytes()
        assert other.targets == dataset.targets


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_torchs_loader_reads_the_data_set_in_workers(make, stock, context, workers):
    if context == "spawn" and type(make()).__name__ != "DALIRecordIO":
        pytest.skip("starting processes takes seconds; one kind is enough")
    dataset = make(TENSOR, return_index=True)
    dataset[0], dataset.read([0])  # files are open when the workers start
    stock.transform = TENSOR
    loader = DataLoader(Subset(dataset, range(11, -1, -1)), 4, num_workers=workers, multiprocessing_context=context)
    images, labels, indices = (torch.cat(column) for column in zip(*loader, strict=True))
    assert indices.tolist() == list(range(11, -1, -1))
    assert labels.tolist() == stock.targets[::-1]
    assert torch.equal(images, torch.stack([stock[i][0] for i in indices]))


def test_a_forked_child_and_its_parent_read_at_the_same_time(make, stock):
    dataset = make()
    expected = [Path(path).read_bytes() for path, _ in stock.samples]
    dataset[0]

    def child() -> None:
        ok = all(dataset.copied(i) == expected[i] for i in range(12) for _ in range(50))
        os._exit(0 if ok and [a.tobytes() for a in dataset.read(range(12))] == expected else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert all(dataset.copied(i) == expected[i] for i in range(12) for _ in range(50))
    process.join(60)
    assert process.exitcode == 0


def test_threads_read_at_the_same_time(make, stock):
    dataset = make()
    expected = [Path(path).read_bytes() for path, _ in stock.samples]

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(12).tolist()
        arrays = dataset.read(order)
        return all(a.tobytes() == expected[i] == dataset.copied(i) for i, a in zip(order, arrays, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(100)))


def test_archives_with_more_files_than_the_open_file_limit_are_read(packed, kind, tmp_path, stock, monkeypatch):
    monkeypatch.setattr(files, "_limit", lambda: 2)
    if kind == "lmdb":
        paths = [packed / "all.lmdb"] * 5
    else:
        paths = [tmp_path / f"part-{i}.{kind}" for i in range(5)]
        for path in paths:
            path.symlink_to(packed / f"all.{kind}")
    dataset = getattr(dali_compat, KINDS[kind])(paths)
    assert len(dataset) == 60 and dataset.targets == stock.targets * 5 and "Files: 5" in repr(dataset)
    assert dataset.locations([0, 12, 59])[0].tolist() == [0, 1, 4]
    order = [(7 * i) % 60 for i in range(60)]
    arrays = dataset.read(order)
    for index, array in zip(order, arrays, strict=True):
        assert array.tobytes() == Path(stock.samples[index % 12][0]).read_bytes()
        assert same(dataset[index], stock[index % 12])
    assert sum(file is not None for file in dataset._files._open) <= 2


def test_an_undecodable_image_is_reported_with_file_byte_and_index(archive_copy):
    dataset = opened(archive_copy)
    _, [offset], [length] = dataset.locations([5])
    data = bytearray(inside(archive_copy).read_bytes())
    if archive_copy.suffix == ".tfrecord":  # keep size and time, so that the index and its checksums are not read again
        stat = inside(archive_copy).stat()
    data[offset : offset + length] = bytes(length)
    inside(archive_copy).write_bytes(data)
    if archive_copy.suffix == ".tfrecord":
        os.utime(inside(archive_copy), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        dataset = opened(archive_copy)
    with pytest.raises(ImageReadError) as caught:
        dataset[5]
    text = str(caught.value)
    assert (
        str(inside(archive_copy)) in text
        and f"byte {offset}" in text
        and "index 5" in text
        and "UnidentifiedImage" in text
    )
    assert isinstance(dataset[4][0], Image.Image)
    if archive_copy.suffix == ".rec":  # only one kind, because torch sometimes takes 5 s to end workers after an error
        with pytest.raises(ImageReadError, match="index 5"):
            list(DataLoader(Subset(dataset, [5]), num_workers=1, collate_fn=list))


@pytest.mark.parametrize("change", ["shorter", "touched", "gone"])
def test_a_file_changed_between_indexing_and_opening_raises(archive_copy, change):
    dataset = opened(archive_copy)
    path = inside(archive_copy)
    if change == "shorter":
        os.truncate(path, path.stat().st_size // 2)
    elif change == "touched":
        os.utime(path, (1, 1))
    else:
        path.unlink()
    for read in (dataset.__getitem__, lambda i: dataset.read([i]), dataset.copied):
        with pytest.raises(ImageReadError) as caught:
            read(11)
        assert str(path) in str(caught.value)
        assert ("No such file" if change == "gone" else "has changed since it was indexed") in str(caught.value)


def test_a_file_truncated_while_open_raises_instead_of_crashing(archive_copy):
    """Access beyond the end of a truncated memory map raises SIGBUS, so the test runs in a child process."""
    dataset = opened(archive_copy)
    dataset.read([0, 11])
    os.truncate(inside(archive_copy), 4096)

    def child() -> None:
        with pytest.raises(ImageReadError, match="has changed since it was indexed"):
            dataset[11]
        with pytest.raises(ImageReadError, match="has changed since it was indexed"):
            dataset.read([11])
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_missing_files_and_empty_archives_are_refused(kind, tmp_path):
    dataset = getattr(dali_compat, KINDS[kind])
    for path in (tmp_path / f"none.{kind}", tmp_path / f"none-*.{kind}", []):
        with pytest.raises(FileNotFoundError):
            dataset(path)
    if kind != "lmdb":
        (tmp_path / f"empty.{kind}").touch()
        with pytest.raises(ValueError, match="contains no images"):
            dataset(tmp_path / f"empty.{kind}")
