"""Tests of image folders, run with archives of the same images; comparisons of storages; and archive-specific tests."""

import copy
import pickle

import pytest
import torch
from torch.utils import data
from torchvision.datasets import ImageFolder

from contract import test_errors, test_odd_files, test_order
from contract.both import (
    EXACT,
    EXACT_FLIPPED,
    RANDOM,
    SMALL,
    assert_same_epoch,
    assert_same_pixels,
    ours,
    pixels,
    stock,
)
from contract.storages import ARCHIVES, stored
from contract.test_batch import (  # noqa: F401
    test_batches_that_are_kept_are_not_overwritten,
    test_one_image_outlives_its_batch_and_loader,
)
from contract.test_iteration import (  # noqa: F401
    test_a_closed_loader_can_start_a_new_epoch,
    test_an_iterator_outlives_its_loader,
    test_two_iterators_at_once_each_give_all_batches,
)
from contract.test_order import (  # noqa: F401
    test_wrong_index_of_a_concat_dataset_raises_torchs_error,
    test_wrong_index_raises_torchs_error,
)
from contract.test_processes import (  # noqa: F401
    test_forked_child_can_iterate_on_the_cpu,
    test_threads_can_iterate_over_one_loader_at_once,
    test_torchs_workers_can_be_forked_during_an_epoch,
)
from dali_compat import DALIImageFolder, DALIRecordIO, DataLoader, ImageReadError

BAD = test_errors.BAD


@pytest.fixture(scope="module", params=ARCHIVES)
def storage(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The folder of the archives of image_root, which is also the user's cache folder."""
    archives = tmp_path_factory.mktemp("archives")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(archives / "cache"))
        yield archives


@pytest.fixture
def archive(storage, image_root, archives):
    """Return a function that opens the archive of image_root."""
    return stored(image_root, storage, archives)


@pytest.fixture
def folder(archive):
    return archive(SMALL, return_index=True)


@pytest.fixture
def exact_folder(archive):
    return archive(EXACT, return_index=True)


# ---- the samples and pixels of the folder


@pytest.mark.parametrize(
    "case", ["shuffle", "drop_last", "weighted", "negative", "varying batches", "tensor", "batch_size=None, sampler"]
)
def test_batches_equal_torchs_for_each_sampler(folder, case):
    test_order.test_batches_equal_torchs_for_each_sampler(folder, case, num_workers=0)


def test_batches_equal_torchs_with_workers(folder):
    test_order.test_batches_equal_torchs_for_each_sampler(folder, "shuffle", num_workers=2)


@pytest.mark.parametrize("case", ["subset of an array", "random_split", "concat by +", "subset of a concat, tensor"])
def test_batches_equal_torchs_for_subsets_and_concatenations(folder, case):
    test_order.test_batches_equal_torchs_for_subsets_and_concatenations(folder, case, shuffle=True)


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"num_workers": 2}], ids=str)
def test_pixels_equal_those_of_the_folder(archive, image_root, options):
    """Pixels are bit-identical on any device, with the random numbers of the same seed."""
    runs = []
    for dataset in (
        archive(RANDOM, lambda target: -target),
        DALIImageFolder(image_root, RANDOM, lambda target: -target),
    ):
        torch.manual_seed(0)
        loader = ours(dataset, 5, shuffle=True, **options)
        runs.append([(images.cpu(), labels.cpu()) for _ in range(2) for images, labels in loader])
    assert_same_epoch(*runs)


def test_explain_equals_that_of_the_folder(archive, image_root):
    assert ours(archive(RANDOM)).explain() == ours(DALIImageFolder(image_root, RANDOM)).explain()


def test_odd_files_in_a_batch_with_ordinary_ones_equal_torchs(storage, tmp_path):
    """Files that PIL must decode are in one batch with ordinary JPEGs."""
    root = test_odd_files.make_odd_folder(tmp_path / "odd")
    dataset = stored(root, storage, tmp_path)(EXACT)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    loader = ours(dataset, 6, sampler=order, device="cpu")
    expected = pixels(stock(ImageFolder(root, EXACT), 6, sampler=order))
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)


def test_batches_from_two_archives_equal_torchs(storage, archive, own_root, image_root, tmp_path):
    """The archives have different images, and a batch has rows of both."""
    other = stored(own_root, storage, tmp_path)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0)).tolist()
    mine = ours(data.ConcatDataset([archive(EXACT), other(EXACT)]), 7, sampler=order, device="cpu")
    folders = data.ConcatDataset([ImageFolder(root, EXACT) for root in (image_root, own_root)])
    assert_same_epoch(mine, stock(folders, 7, sampler=order))


def test_batches_from_an_archive_and_a_folder_equal_torchs(archive, image_root):
    """Two parts share a plan, and a third has another transform; a batch has rows of each."""

    def parts(kind):
        return data.ConcatDataset(
            [DALIImageFolder(image_root, EXACT), kind(EXACT, lambda target: target + 10), kind(EXACT_FLIPPED)]
        )

    order = torch.randperm(72, generator=torch.Generator().manual_seed(0)).tolist()
    mine = ours(parts(archive), 7, sampler=order, device="cpu")
    folders = parts(lambda *args: ImageFolder(image_root, *args))
    assert_same_epoch(mine, stock(folders, 7, sampler=order))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_copied_and_pickled_archives_give_the_same_pixels(exact_folder, copied):
    first = ours(exact_folder, 5, device="cpu")
    expected = pixels(first)
    assert_same_pixels(pixels(ours(copied(exact_folder), 5, device="cpu")), expected)
    assert_same_pixels(pixels(copied(first)), expected)


# ---- errors


@pytest.fixture
def damaged(storage, own_root, tmp_path):
    """Return a function that opens an archive of eight images after ``damage`` was done to image BAD."""

    def make(damage):
        dataset = ImageFolder(own_root)
        test_errors.DAMAGE[damage](test_errors._path(dataset))
        return stored(own_root, storage, tmp_path)(EXACT, return_index=True)

    return make


@pytest.mark.parametrize("damage", ["zero bytes", "cut at 70 %", "garbage", "cut PNG"])
def test_bad_record_raises_an_error_with_its_position(damaged, damage):
    dataset = damaged(damage)
    loader = ours(dataset, 2)
    for _ in range(2):
        results = test_errors._run(loader)
        assert [isinstance(r, ImageReadError) for r in results if isinstance(r, Exception)] == [True]
        assert str(results[2]).startswith(f"cannot decode {dataset.files[0]}, byte {dataset.locations([BAD])[1][0]}, ")
        assert str(results[2]).count(f"index {BAD}") == 1
        assert [r[2].tolist() for r in results if not isinstance(r, Exception)] == [[0, 1], [2, 3], [6, 7]]


def test_archive_that_changed_raises_for_each_batch(storage, own_root, tmp_path):
    """The indexed positions are no longer valid, so no batch is returned."""
    dataset = stored(own_root, storage, tmp_path)(EXACT)
    with open(dataset.files[0], "ab") as file:
        file.write(bytes(4096))
    results = test_errors._run(ours(dataset, 2))
    assert len(results) == 4
    for result in results:
        assert isinstance(result, ImageReadError)
        assert dataset.files[0] in str(result) and "has changed since it was indexed" in str(result)


# ---- subclasses


class OwnItems(DALIRecordIO):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target + 100


@pytest.fixture
def record_file(image_root, archives):
    return stored(image_root, "rec", archives)().files[0]


def test_subclass_with_its_own_getitem_runs_for_each_sample(record_file):
    loader = DataLoader(OwnItems(record_file, EXACT), 5, fallback="silent")
    assert "OwnItems runs in" in loader.explain()
    assert [batch[1].min() >= 100 for batch in loader] == [True] * 5


def test_subclass_with_the_inherited_getitem_is_an_archive(record_file):
    class Named(DALIRecordIO):
        title = "mine"

    assert ours(Named(record_file, EXACT)).explain().startswith("DALI route")


# ---- reading


def test_bytes_are_read_once_per_epoch(record_file, monkeypatch):
    """Headers are parsed from the bytes passed to DALI, which are views of the file."""
    dataset, reads = DALIRecordIO(record_file, EXACT), []
    read = dataset.read
    monkeypatch.setattr(dataset, "read", lambda indices: reads.append(list(indices)) or read(indices))
    for name in ("part", "copied"):
        monkeypatch.setattr(dataset, name, None)
    list(ours(dataset, 12, device="cpu"))
    assert reads == [list(range(12)), list(range(12, 24))]


def test_jpegs_are_recognized_by_their_first_bytes(image_root, own_root, tmp_path, archives):
    assert stored(image_root, "tar", archives)().mostly_jpeg
    for path, _ in ImageFolder(own_root).samples[:5]:
        test_odd_files.ODD["gray.png"](test_errors.Path(path).with_suffix(".png"))
        test_errors.Path(path).unlink()
    assert not stored(own_root, "tar", tmp_path)().mostly_jpeg
