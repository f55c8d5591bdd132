"""Files that are deleted, replaced or made unreadable while an epoch runs.

Each batch equals torch's for the files as they were before or after the change, or is an ImageReadError that names one
of them. A correct label never comes with a wrong image.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder, make_image
from PIL import Image
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.data import headers
from dali_compat.engine.dali.pipeline import DecodePipeline, PipelineError
from dali_compat.epoch import decode

BATCH, COUNT, SIDE = 3, 24, 80
CHANGED = (7, 13, 19)  # of batches 2, 4 and 6; the others are unchanged
TRANSFORMS = {
    "crop": T.Compose([T.CenterCrop(40), T.PILToTensor()]),
    "resize": T.Compose([T.Resize((40, 50)), T.CenterCrop(40), T.PILToTensor()]),
    "flip": T.Compose([T.Pad(9), T.CenterCrop(90), T.RandomHorizontalFlip(1.0), T.PILToTensor()]),
}


def _picture(seed: int, height: int, width: int) -> Image.Image:
    return Image.fromarray(make_image(np.random.default_rng(seed), height, width))


def _replace(path: Path, height: int, width: int, format: str = "JPEG") -> None:
    """Replace a file atomically, like a good tool."""
    _picture(len(path.name), height, width).save(path.with_suffix(".new"), format)
    os.replace(path.with_suffix(".new"), path)


def _overwrite(path: Path, height: int, width: int) -> None:
    """Overwrite a file, keeping its inode and times."""
    stat = path.stat()
    _picture(3, height, width).save(path, "JPEG")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


CHANGES = {
    "deleted": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path.name)),  # even root cannot read it
    "empty": lambda path: path.write_bytes(b""),
    "cut": _cut,
    "no image": lambda path: path.write_bytes(b"nonsense" * 500),
    "another image of the same size": lambda path: _replace(path, SIDE, SIDE),
    "another image of the same size and times": lambda path: _overwrite(path, SIDE, SIDE),
    "a larger image": lambda path: _replace(path, 120, 90),
    "a smaller image": lambda path: _replace(path, 50, 60),
    "a smaller image with the same times": lambda path: _overwrite(path, 50, 60),
    "a rotated image": lambda path: _replace(path, 100, 50),
    "a PNG": lambda path: _replace(path, SIDE, SIDE, "PNG"),
    "a PNG of another size": lambda path: _replace(path, 70, 96, "PNG"),
    "a GIF": lambda path: _replace(path, SIDE, SIDE, "GIF"),
    "a GIF of another size": lambda path: _replace(path, 70, 96, "GIF"),
}


@pytest.fixture
def root(tmp_path) -> Path:
    folder = make_folder(tmp_path / "own", classes=2, per_class=COUNT // 2, special=False)
    for seed, path in enumerate(sorted(folder.glob("*/*.jpg"))):
        _picture(1000 + seed, SIDE, SIDE).save(path)
    return folder


def _images_now(dataset, indices) -> list[torch.Tensor | None]:
    """Return the image that torch's loader reads from each file now, or None if it fails."""
    images = []
    for index in indices:
        try:
            images.append(dataset[index][0])
        except OSError:
            images.append(None)
    return images


def _results(iterator) -> list:
    """Return the rest of an epoch, with errors in place of batches."""
    results = []
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except ImageReadError as error:
            results.append(error)


def _check(results, numbers, before, after, paths) -> None:
    for result, batch in zip(results, numbers, strict=True):
        if isinstance(result, ImageReadError):
            named = [i for i in batch if str(paths[i]) in str(result)]
            assert named and set(named) <= set(CHANGED), result
            continue
        images, labels, indices = result
        assert indices.tolist() == batch and labels.tolist() == [i // (COUNT // 2) for i in batch]
        for image, index in zip(images, batch, strict=True):
            choices = [c for c in (before[index], after[index]) if c is not None]
            assert any(torch.equal(image, choice) for choice in choices), f"{paths[index]} is neither"


@pytest.mark.alike
@pytest.mark.parametrize("transform, workers", [*((name, 0) for name in TRANSFORMS), ("crop", 2)])
@pytest.mark.parametrize("change", CHANGES)
def test_files_changed_during_an_epoch_give_old_or_new_images_or_errors(root, change, transform, workers):
    """The change comes in the first epoch, before most headers are read, and in the second, when all are known."""
    dataset = DALIImageFolder(root, TRANSFORMS[transform], return_index=True)
    paths = [Path(path) for path, _ in dataset.samples]
    numbers = [batch.tolist() for batch in torch.arange(COUNT).split(BATCH)]
    loader = DataLoader(dataset, BATCH, device="cpu", exact=True, num_workers=workers, fallback="error")
    backup = root.parent / "backup"
    shutil.copytree(root, backup)
    before = _images_now(dataset, range(COUNT))
    for _ in range(2):
        iterator = iter(loader)
        results = [next(iterator)]
        for index in CHANGED:
            CHANGES[change](paths[index])
        after = _images_now(dataset, range(COUNT))
        results += _results(iterator)
        _check(results, numbers, before, after, paths)
        _check(_results(iter(loader)), numbers, after, after, paths)
        for index in CHANGED:  # restore the files for the second round
            path = paths[index]
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            shutil.copy2(backup / path.relative_to(root), path)
        _check(_results(iter(loader)), numbers, before, before, paths)


def test_file_that_is_being_written_is_read_again(root, monkeypatch):
    """The file is complete again when the loader checks why DALI failed."""
    dataset = DALIImageFolder(root, TRANSFORMS["crop"], return_index=True)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error")
    wanted = [images for images, _, _ in loader]
    path = Path(dataset.samples[CHANGED[0]][0])
    whole, receive, submit, submitted = path.read_bytes(), DecodePipeline.receive, DecodePipeline.submit, []

    def submit_as_the_writing_begins(pipeline, *args):
        if len(submitted) == CHANGED[0] // BATCH:
            path.write_bytes(whole[:60])
        submitted.append(args)
        return submit(pipeline, *args)

    def receive_while_it_is_written(pipeline, ticket):
        try:
            return receive(pipeline, ticket)
        except PipelineError:
            path.write_bytes(whole)
            raise

    monkeypatch.setattr(DecodePipeline, "submit", submit_as_the_writing_begins)
    monkeypatch.setattr(DecodePipeline, "receive", receive_while_it_is_written)
    for (images, _, indices), expected in zip(loader, wanted, strict=True):
        assert torch.equal(images, expected), indices
    assert path.read_bytes() == whole


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_become_unreadable_give_errors(root):
    dataset = DALIImageFolder(root, TRANSFORMS["crop"], return_index=True)
    loader = DataLoader(dataset, BATCH, device="cpu", fallback="error")
    iterator = iter(loader)
    next(iterator)
    for index in CHANGED:
        os.chmod(dataset.samples[index][0], 0)
    assert len(_results(iterator)) == COUNT // BATCH - 1
    errors = [result for result in _results(iter(loader)) if isinstance(result, ImageReadError)]
    assert len(errors) == len(CHANGED) and all("Permission" in str(error) for error in errors)


def test_batch_that_fails_twice_with_intact_files_raises(root, monkeypatch):
    """The batch is read once more, not repeatedly."""
    transforms = {"transform": TRANSFORMS["crop"], "target_transform": int}  # so no thread prepares the next batch
    dataset = DALIImageFolder(root, **transforms, return_index=True)
    iterator = iter(DataLoader(dataset, BATCH, device="cpu", exact=True, fallback="error"))
    next(iterator)
    receive, received = DecodePipeline.receive, []

    def failing(pipeline, ticket):
        receive(pipeline, ticket)
        received.append(ticket)
        if pipeline.batch_size == BATCH:  # not the pipelines that look for the damaged file
            raise PipelineError("half a file")

    monkeypatch.setattr(DecodePipeline, "receive", failing)
    with pytest.raises(PipelineError, match="half a file"):
        next(iterator)
    assert len(received) == 2 * (1 + BATCH)


@pytest.mark.parametrize("ending", ["bmp", "ppm"])
def test_rotated_image_with_the_same_file_length_is_read_with_its_new_size(root, ending):
    """The file length of these formats does not determine the sides."""
    for seed, path in enumerate(sorted(root.glob("*/*.jpg"))):
        _picture(seed, 80, 60).save(path.with_suffix(f".{ending}"))
        path.unlink()
    dataset = DALIImageFolder(root, TRANSFORMS["crop"], return_index=True)
    paths = [Path(path) for path, _ in dataset.samples]
    numbers = [batch.tolist() for batch in torch.arange(COUNT).split(BATCH)]
    loader = DataLoader(dataset, BATCH, device="cpu", exact=True, fallback="error")
    before = _images_now(dataset, range(COUNT))
    _check(_results(iter(loader)), numbers, before, before, paths)
    for index in CHANGED:
        length = paths[index].stat().st_size
        _picture(100 + index, 60, 80).save(paths[index])
        assert paths[index].stat().st_size == length
    after = _images_now(dataset, range(COUNT))
    _check(_results(iter(loader)), numbers, after, after, paths)


def _markers(data: bytearray, rng) -> None:
    """Write markers, which DALI accepts and Pillow refuses."""
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64


def _zeros(data: bytearray, rng) -> None:
    """Fill the rest with zeros, as after a crash."""
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)


def _random_bytes(data: bytearray, rng) -> None:
    at, length = int(rng.integers(300, len(data))), int(rng.integers(1, 500))
    data[at : at + length] = rng.bytes(len(data[at : at + length]))


@pytest.mark.alike
@pytest.mark.parametrize("times", ["its times", "new times"])
@pytest.mark.parametrize("damage", [_markers, _zeros, _random_bytes], ids=lambda one: one.__name__)
def test_known_file_damaged_in_place_raises_in_the_next_epoch(root, damage, times):
    """Length, sides and optionally the times of the file are unchanged."""
    dataset = DALIImageFolder(root, TRANSFORMS["crop"], return_index=True)
    paths = [Path(path) for path, _ in dataset.samples]
    numbers = [batch.tolist() for batch in torch.arange(COUNT).split(BATCH)]
    loader = DataLoader(dataset, BATCH, device="cpu", exact=True, fallback="error")
    before, refused = _images_now(dataset, range(COUNT)), 0
    _check(_results(iter(loader)), numbers, before, before, paths)
    for turn in range(8):
        whole = {index: paths[index].read_bytes() for index in CHANGED}
        for index in CHANGED:
            stat, data = paths[index].stat(), bytearray(whole[index])
            damage(data, np.random.default_rng([turn, index]))
            paths[index].write_bytes(data)
            assert paths[index].stat().st_size == stat.st_size
            if times == "its times":
                os.utime(paths[index], ns=(stat.st_atime_ns, stat.st_mtime_ns))
        after = _images_now(dataset, range(COUNT))
        for _ in range(2):
            results = _results(iter(loader))
            _check(results, numbers, after, after, paths)
            wrong = [any(after[index] is None for index in batch) for batch in numbers]
            assert [isinstance(result, ImageReadError) for result in results] == wrong
            refused += sum(wrong)
        for index, data in whole.items():
            paths[index].write_bytes(data)
        _check(_results(iter(loader)), numbers, before, before, paths)
    assert refused


def test_touched_file_is_checked_exactly_once_more(root, monkeypatch):
    """The bytes are unchanged, so one check before DALI decodes the file suffices."""
    dataset = DALIImageFolder(root, TRANSFORMS["crop"], return_index=True)
    loader = DataLoader(dataset, BATCH, device="cpu", exact=True, fallback="error")
    wanted = torch.cat([images for images, _, _ in loader])
    checked, look = [], headers.checked_header
    monkeypatch.setattr(decode, "is_intact", None)
    monkeypatch.setattr(headers, "checked_header", lambda path: checked.append(path) or look(path))
    list(loader)
    assert not checked
    os.chmod(dataset.samples[3][0], 0o600)
    for _ in range(3):
        assert torch.equal(torch.cat([images for images, _, _ in loader]), wanted)
        assert checked == [dataset.samples[3][0]]
