"""Archives that are written to, truncated, replaced or deleted while a program reads them.

Each batch contains the samples as they were indexed, or is an ImageReadError that names the archive. A label never
comes with another image. The program does not crash if an archive was truncated before a batch begins.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from archives.conftest import KINDS, copied, inside
from contract.both import Wrapped
from helpers import make_image
from PIL import Image
from torch.utils.data import ConcatDataset
from torchvision import transforms as T

import dali_compat
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.archives.pack import pack
from dali_compat.engine.dali.pipeline import DecodePipeline

BATCH, COUNT, SIDE = 4, 24, 32
TRANSFORM = T.Compose([T.CenterCrop(24), T.PILToTensor()])


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """Two archives of each kind, ``first`` and ``second``, that differ only in their pixels.

    The images are uncompressed, so that they have the same positions in both.
    """
    root = tmp_path_factory.mktemp("packed")
    for number, name in enumerate(("first", "second")):
        for index in range(COUNT):
            folder = root / name / f"class_{index // (COUNT // 2)}"
            folder.mkdir(parents=True, exist_ok=True)
            image = make_image(np.random.default_rng([number, index]), SIDE, SIDE)
            Image.fromarray(image).save(folder / f"{index:02d}.bmp")
        for ending in KINDS if find_spec("lmdb") else KINDS.keys() - {"lmdb"}:
            pack(root / name, root / f"{name}.{ending}")
    return root


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    if request.param == "lmdb":
        pytest.importorskip("lmdb")
    return request.param


@pytest.fixture
def archive(packed, kind, tmp_path, monkeypatch) -> Path:
    """A copy of the first archive of a kind, with an old modification time, because clocks resolve only some ms."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = copied(packed / f"first.{kind}", tmp_path / f"own.{kind}")
    os.utime(inside(copy), (1e9, 1e9))
    return copy


def _second_contents(archive: Path, packed: Path) -> bytes:
    return inside(packed / f"second{archive.suffix}").read_bytes()


def _overwrite(archive: Path, packed: Path) -> None:
    """Overwrite all of it in place, with the same inode and length."""
    data = _second_contents(archive, packed)
    with open(inside(archive), "r+b") as file:
        assert os.fstat(file.fileno()).st_size == len(data)
        file.write(data)


def _write_one_byte(archive: Path, packed: Path) -> None:
    """Change a byte in the middle, which has no checksum in the index."""
    with open(inside(archive), "r+b") as file:
        file.seek(os.fstat(file.fileno()).st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _cut(archive: Path, packed: Path) -> None:
    os.truncate(inside(archive), 100)


def _empty(archive: Path, packed: Path) -> None:
    os.truncate(inside(archive), 0)


def _append(archive: Path, packed: Path) -> None:
    with open(inside(archive), "ab") as file:
        file.write(bytes(100))


def _replace(archive: Path, packed: Path) -> None:
    new = inside(archive).with_suffix(".new")
    new.write_bytes(_second_contents(archive, packed))
    os.replace(new, inside(archive))


def _delete(archive: Path, packed: Path) -> None:
    inside(archive).unlink()


WRITES = {"written": _overwrite, "one byte": _write_one_byte, "cut": _cut, "empty": _empty, "longer": _append}
REPLACEMENTS = {"replaced": _replace, "deleted": _delete}


def _dataset(archive: Path, **kwargs):
    return getattr(dali_compat, KINDS[archive.suffix[1:]])(archive, TRANSFORM, return_index=True, **kwargs)


def _wanted(dataset) -> list[torch.Tensor]:
    return [dataset[index][0] for index in range(len(dataset))]


def _check_batch(batch, wanted) -> None:
    images, labels, indices = batch
    assert torch.equal(images, torch.stack([wanted[index] for index in indices.tolist()]))
    assert labels.tolist() == [index // (COUNT // 2) for index in indices.tolist()]


def _assert_batch_raises(iterator, archive: Path) -> None:
    with pytest.raises(ImageReadError, match="has changed since it was indexed; create a new data set") as caught:
        next(iterator)
    assert str(inside(archive)) in str(caught.value)


@pytest.mark.parametrize("change", WRITES)
def test_archive_changed_between_epochs_raises_for_every_batch(archive, packed, change):
    dataset = _dataset(archive)
    wanted = _wanted(dataset)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error")
    for batch in loader:
        _check_batch(batch, wanted)
    WRITES[change](archive, packed)
    iterator = iter(loader)
    for _ in range(COUNT // BATCH):
        _assert_batch_raises(iterator, archive)
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(ImageReadError, match="has changed since it was indexed"):
        dataset[0]


@pytest.mark.parametrize("change", WRITES)
def test_archive_changed_before_the_first_epoch_raises(archive, packed, change):
    dataset = _dataset(archive)
    WRITES[change](archive, packed)
    _assert_batch_raises(iter(DataLoader(dataset, BATCH, device="cpu", fallback="error")), archive)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("change", ["written", "one byte", "longer"])
def test_archive_changed_during_an_epoch_gives_old_samples_or_raises(archive, packed, change, epoch):
    """Batches in flight are included, which DALI may have read before or after the change."""
    dataset = _dataset(archive)
    wanted = _wanted(dataset)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error")
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    _check_batch(next(iterator), wanted)
    WRITES[change](archive, packed)
    for number in range(1, COUNT // BATCH):
        try:
            _check_batch(next(iterator), wanted)
            assert number == 1  # it was prepared before
        except ImageReadError as error:
            assert str(inside(archive)) in str(error)
    if change != "written":
        return
    again = _dataset(archive)
    for batch in DataLoader(again, BATCH, device="cpu", fallback="error"):
        _check_batch(batch, _wanted(again))


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("change", WRITES)
def test_archive_changed_while_dali_decodes_raises(archive, packed, monkeypatch, change, epoch):
    """The change comes after the headers are read and before the result is used."""
    dataset = _dataset(archive)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error", num_workers=1, prefetch_factor=1)
    for _ in range(epoch):
        list(loader)
    receive, received = DecodePipeline.receive, []

    def receive_and_write(pipeline, ticket):
        made = receive(pipeline, ticket)
        if not received:
            WRITES[change](archive, packed)
        received.append(ticket)
        return made

    monkeypatch.setattr(DecodePipeline, "receive", receive_and_write)
    iterator = iter(loader)
    _assert_batch_raises(iterator, archive)
    assert received
    _assert_batch_raises(iterator, archive)


def test_archive_with_overwritten_bytes_that_dali_refuses_raises(archive, monkeypatch):
    """Looking for the damaged sample must not read bytes that may be gone."""
    dataset = _dataset(archive)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error", num_workers=1, prefetch_factor=1)
    submit = DecodePipeline.submit

    def write_and_submit(pipeline, images, *args):
        with open(inside(archive), "r+b") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
        return submit(pipeline, images, *args)

    monkeypatch.setattr(DecodePipeline, "submit", write_and_submit)
    _assert_batch_raises(iter(loader), archive)


@pytest.mark.parametrize("change", REPLACEMENTS)
def test_replaced_or_deleted_archive_is_read_until_it_is_reopened(archive, packed, change):
    dataset = _dataset(archive)
    wanted = _wanted(dataset)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error")
    iterator = iter(loader)
    _check_batch(next(iterator), wanted)
    REPLACEMENTS[change](archive, packed)
    for _ in range(2):
        for batch in iterator:
            _check_batch(batch, wanted)
        iterator = iter(loader)
    dataset._files.__init__(dataset.files, dataset._files._stats)  # reopen the files, as happens if too many are open
    with pytest.raises(ImageReadError, match=r"has changed since it was indexed|No such file") as caught:
        next(iter(loader))
    assert str(inside(archive)) in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_changed_archive_with_torchs_loader_raises(archive, packed, workers):
    dataset = Wrapped(_dataset(archive))
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="silent", num_workers=workers)
    assert len(list(loader)) == COUNT // BATCH
    _overwrite(archive, packed)
    with pytest.raises(ImageReadError, match="has changed since it was indexed"):
        list(loader)


def test_changed_archive_in_concat_dataset_with_on_error_skips_only_its_samples(archive, packed, tmp_path):
    kept = copied(packed / f"second{archive.suffix}", tmp_path / f"kept{archive.suffix}")
    folder = DALIImageFolder(packed / "first", TRANSFORM, return_index=True)
    parts = [_dataset(archive), _dataset(kept), folder]
    loader = DataLoader(ConcatDataset(parts), 5, device="cpu", fallback="error", on_error="skip")
    assert sum(len(labels) for _, labels, _ in loader) == 3 * COUNT
    wanted = [*_wanted(parts[1]), *_wanted(parts[2])]
    _overwrite(archive, packed)
    with pytest.warns(dali_compat.BadImageWarning):
        images = torch.cat([images for images, _, _ in loader])
    assert torch.equal(images, torch.stack(wanted))
    assert len(loader.errors) == COUNT and all("has changed" in error.reason for error in loader.errors)
    assert {error.path.partition(",")[0] for error in loader.errors} == {str(inside(archive))}
