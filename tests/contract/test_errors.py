"""Bad and odd files: the error names the file, later batches are complete, and pixels equal PIL's."""

import copy
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import nvidia.dali as dali
import pytest
import torch
from helpers import interrupted, make_image
from PIL import Image, ImageFile, UnidentifiedImageError
from torch.utils import data
from torchvision import transforms as T
from torchvision.transforms import v2

from contract.both import EXACT, assert_same_pixels, error_of, ours, pixels, stock
from dali_compat import DALIImageFolder, ImageReadError
from dali_compat.engine import pil
from dali_compat.errors import read_error

BAD = 4  # index of the damaged file: the third batch of two


def _truncate(share):
    def damage(path):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])

    return damage


def _garbage(path):
    path.write_bytes(np.random.default_rng(0).bytes(4000))


def _text(path):
    path.write_text("<html>404 not found</html>")


def _only_a_jpeg_header(path):
    path.write_bytes(b"\xff\xd8\xff\xe0")


def _replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_of_several_sizes_names_two_files_and_the_remedy(image_root, threads):
    dataset = DALIImageFolder(image_root, T.Compose([T.Resize(24), T.ToTensor()]))
    sizes = [T.Resize(24)(Image.open(path)).size[::-1] for path, _ in dataset.samples]
    other = next(row for row, size in enumerate(sizes) if size != sizes[0])
    error = error_of(list, ours(dataset, len(dataset), device="cpu", num_workers=threads))
    named = [f"{dataset.samples[row][0]}, index {row}: {sizes[row][0]} x {sizes[row][1]}" for row in (0, other)]
    assert type(error) is RuntimeError and f"({'; '.join(named)}). Resize(n) keeps" in str(error)
    theirs = error_of(list, stock(dataset, len(dataset)))
    assert str(error).startswith(f"{theirs}; ") and str(error).endswith("add CenterCrop(n), or write Resize((n, n))")


DAMAGE = {
    "zero bytes": lambda path: path.write_bytes(b""),
    "cut at 30 %": _truncate(0.3),
    "cut at 70 %": _truncate(0.7),
    "cut at 98 %": _truncate(0.98),
    "cut in the header": _truncate(0.02),
    "garbage": _garbage,
    "text": _text,
    "start of a JPEG": _only_a_jpeg_header,
    "missing": Path.unlink,
    "a folder": _replaced_by_a_folder,
    "dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "cut PNG": lambda path: (Image.open(path).convert("RGB").save(path, "PNG"), _truncate(0.6)(path)),
}

TRANSFORMS = {
    "center crop": EXACT,
    "random crop": T.Compose([T.RandomCrop(40), T.PILToTensor()]),
    "random resized crop": T.Compose([T.RandomResizedCrop(16), T.ToTensor()]),
    "resize": T.Compose([T.Resize(30), T.CenterCrop(24), T.ToTensor()]),
}


def _run(loader):
    """Return each batch, or the error in its place."""
    results, iterator = [], iter(loader)
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except Exception as error:
            results.append(error)


def _path(dataset, index=BAD):
    return Path(dataset.samples[index][0])


@pytest.mark.alike
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_file_is_an_error_with_its_path_and_index(own_root, damage, transform):
    dataset = DALIImageFolder(own_root, TRANSFORMS[transform], return_index=True)
    DAMAGE[damage](_path(dataset))
    loader = ours(dataset, 2)
    theirs = error_of(dataset.__getitem__, BAD)
    assert isinstance(theirs, OSError)  # torchvision also refuses the file
    for _ in range(2):
        results = _run(loader)
        errors = [result for result in results if isinstance(result, Exception)]
        assert len(results) == 4 and len(errors) == 1 and results[2] is errors[0]
        assert isinstance(errors[0], ImageReadError) and isinstance(
            errors[0], type(theirs)
        )  # classes that scripts catch
        assert (errors[0].errno, errors[0].filename) == (theirs.errno, theirs.filename)
        assert str(_path(dataset)) in str(errors[0]) and f"index {BAD}" in str(errors[0])
        assert [r[2].tolist() for r in results if not isinstance(r, Exception)] == [[0, 1], [2, 3], [6, 7]]


REASONS = {
    "FileNotFoundError": FileNotFoundError(2, "No such file or directory", "a.jpg"),
    "UnidentifiedImageError": UnidentifiedImageError("cannot identify image file"),
    "DecompressionBombError": Image.DecompressionBombError("100 pixels"),
    "ValueError": ValueError("buffer is not large enough"),
    "of one that is both": read_error("a.jpg", FileNotFoundError(2, "No such file or directory", "a.jpg")),
}


class _RaisesReadError(data.Dataset):
    def __init__(self, reason):
        self.reason = reason

    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise read_error("cannot decode a.jpg, index 3", self.reason) from self.reason


@pytest.mark.parametrize("name", REASONS)
def test_a_read_error_is_an_instance_of_its_reasons_class(name):
    """The class must survive pickling by torch's workers."""
    reason = REASONS[name]
    made = read_error("cannot decode a.jpg, index 3", reason)
    copies = (
        pickle.loads(pickle.dumps(made)),
        copy.deepcopy(made),
        error_of(list, stock(_RaisesReadError(reason), num_workers=1)),
    )
    for error in (made, *copies):
        assert isinstance(error, ImageReadError) and isinstance(error, type(reason))
        assert type(error) is type(made) and "cannot decode a.jpg, index 3" in str(error)
    assert str(made) == str(copies[0]) == "cannot decode a.jpg, index 3"
    assert made.errno == copies[0].errno == getattr(reason, "errno", None)


@pytest.mark.parametrize("reason", [SyntaxError("broken PNG file"), IndexError(), StopIteration(), KeyError("a")])
def test_a_read_error_is_not_a_subclass_of_unsuitable_classes(reason):
    """A for loop would stop silently at StopIteration, and Python cannot combine some other classes."""
    made = read_error("cannot decode a.jpg", reason)
    assert type(made) is ImageReadError and str(pickle.loads(pickle.dumps(made))) == "cannot decode a.jpg"


@pytest.mark.parametrize("damage", ["zero bytes", "cut at 70 %", "missing", "garbage"])
def test_a_file_damaged_between_epochs_is_an_error(own_root, damage):
    """Its header was read while it was intact."""
    dataset = DALIImageFolder(own_root, EXACT)
    loader = ours(dataset, 2, device="cpu")
    assert len(pixels(loader)) == 4
    DAMAGE[damage](_path(dataset))
    results = _run(loader)
    assert [isinstance(result, ImageReadError) for result in results] == [False, False, True, False]
    assert str(_path(dataset)) in str(results[2]) and f"index {BAD}" in str(results[2])


def test_results_of_a_failed_batch_are_released(own_root):
    """DALI's results for the other files are either received or never made."""
    dataset = DALIImageFolder(own_root, EXACT)
    loader = ours(dataset, 4, device="cpu")
    pixels(loader)
    DAMAGE["cut at 70 %"](_path(dataset))
    assert [isinstance(result, ImageReadError) for result in _run(loader)] == [False, True]
    (pipeline,) = loader._route._pipelines
    assert not pipeline._done and {ticket for ticket, _ in pipeline._feed.flight} <= {None}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_repaired_file_is_read_in_the_next_epoch(own_root, damage):
    dataset = DALIImageFolder(own_root, EXACT)
    loader, path = ours(dataset, 2, device="cpu"), _path(dataset)
    good = path.read_bytes()
    DAMAGE[damage](path)
    assert any(isinstance(result, ImageReadError) for result in _run(loader))
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(good)
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_of_several_bad_files_is_named(own_root, num_workers):
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    for index in (0, 1, 2, 7):
        _path(dataset, index).write_bytes(b"bad")
    results = _run(ours(dataset, 2, num_workers=num_workers))
    assert [isinstance(result, ImageReadError) for result in results] == [True, True, False, True]
    assert str(_path(dataset, 0)) in str(results[0])  # the first of its batch, as in torchvision
    assert results[2][2].tolist() == [4, 5]


def test_the_index_in_an_error_is_the_samplers(own_root):
    subset = data.Subset(DALIImageFolder(own_root, EXACT), [5, 4, 3])
    _path(subset.dataset, 4).write_bytes(b"bad")
    error = error_of(list, ours(subset, 3))
    assert "index 1" in str(error) and str(_path(subset.dataset, 4)) in str(error)


def test_an_unreadable_file_is_a_permission_error(own_root):
    dataset = DALIImageFolder(own_root, EXACT)
    _path(dataset).chmod(0)
    if os.access(_path(dataset), os.R_OK):
        pytest.skip("root may read everything")
    error = error_of(list, ours(dataset, 2))
    assert isinstance(error, ImageReadError) and "Permission" in str(error)


def test_the_cause_is_torchvisions_error(own_root):
    dataset = DALIImageFolder(own_root, EXACT)
    _truncate(0.7)(_path(dataset))
    mine, theirs = error_of(list, ours(dataset, 2)), error_of(list, stock(dataset, 2))
    assert type(mine.__cause__) is type(theirs) and str(theirs) in str(mine)


def test_truncated_files_are_read_if_pillow_allows_them(own_root, monkeypatch):
    dataset = DALIImageFolder(own_root, EXACT)
    _truncate(0.7)(_path(dataset))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same_pixels(pixels(ours(dataset, 2, device="cpu")), pixels(stock(dataset, 2)))


@pytest.mark.parametrize("crop", [T.RandomCrop(400), v2.RandomCrop((400, 20)), T.RandomCrop(300, padding=4)])
def test_images_smaller_than_the_crop_raise_torchvisions_error(own_root, crop):
    end = v2.PILToTensor() if isinstance(crop, v2.RandomCrop) else T.PILToTensor()
    dataset = DALIImageFolder(own_root, (v2 if isinstance(crop, v2.RandomCrop) else T).Compose([crop, end]))
    mine, theirs = error_of(list, ours(dataset, 2)), error_of(list, stock(dataset, 2))
    assert type(mine) is type(theirs) is ValueError
    assert str(mine).startswith(str(theirs).rstrip(".")) and dataset.samples[0][0] in str(mine)


def test_one_image_smaller_than_the_crop_fails_only_its_batch(own_root):
    small = DALIImageFolder(own_root, EXACT).samples[BAD][0]
    for path, _ in DALIImageFolder(own_root).samples:
        Image.fromarray(make_image(np.random.default_rng(1), 90, 90)).resize(
            (20, 20) if path == small else (90, 90)
        ).save(path)
    dataset = DALIImageFolder(own_root, T.Compose([T.RandomCrop(50), T.PILToTensor()]), return_index=True)
    loader = ours(dataset, 2)
    for _ in range(2):
        results = _run(loader)
        assert isinstance(results[2], ValueError) and small in str(results[2]) and f"index {BAD}" in str(results[2])
        assert [results[i][2].tolist() for i in (0, 1, 3)] == [[0, 1], [2, 3], [6, 7]]


def test_an_error_when_dali_starts_a_batch_fails_only_that_batch(own_root, monkeypatch):
    """A GPU without memory for the batch raises such an error."""
    dataset, calls, schedule_run = DALIImageFolder(own_root, EXACT), [], dali.Pipeline.schedule_run

    def fails_once(pipe):
        calls.append(pipe)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        schedule_run(pipe)

    monkeypatch.setattr(dali.Pipeline, "schedule_run", fails_once)
    loader, expected = ours(dataset, 2, device="cpu"), pixels(stock(dataset, 2))
    results = _run(loader)
    assert [str(result) == "no memory" for result in results] == [False, False, True, False]
    assert_same_pixels([results[i][0] for i in (0, 1, 3)], [expected[i] for i in (0, 1, 3)])
    assert_same_pixels(pixels(loader), expected)


def test_an_error_of_target_transform_fails_only_its_batch(own_root):
    def refuse(target):
        if target:
            raise LookupError("no such target")
        return target

    dataset = DALIImageFolder(own_root, EXACT, refuse)
    mine, theirs = _run(ours(dataset, 3)), _run(stock(dataset, 3))
    assert [type(result) for result in mine] == [type(result) for result in theirs]


def test_an_error_of_collate_fn_fails_only_its_batch(own_root):
    def refuse(samples):
        if samples[0][1]:
            raise LookupError("no")
        return torch.stack([image for image, _ in samples])

    dataset = DALIImageFolder(own_root, EXACT)
    mine, theirs = (_run(make(dataset, 2, collate_fn=refuse)) for make in (ours, stock))
    assert [type(result) for result in mine] == [type(result) for result in theirs]


@pytest.mark.parametrize("seed", range(12))
def test_a_file_damaged_in_the_middle_gives_pils_pixels_or_an_error(own_root, seed):
    """PIL may decode the overwritten bytes with a warning or refuse them."""
    dataset = DALIImageFolder(own_root, EXACT)
    rng, content = np.random.default_rng(seed), bytearray(_path(dataset).read_bytes())
    for at in rng.integers(len(content) // 2, len(content) - 20, 3):
        content[at] = rng.integers(0, 255)
    _path(dataset).write_bytes(content)
    mine, theirs = _run(ours(dataset, 2, device="cpu")), _run(stock(dataset, 2))
    assert [isinstance(result, OSError) for result in mine] == [isinstance(result, OSError) for result in theirs]
    assert_same_pixels(*([r[0] for r in results if not isinstance(r, OSError)] for results in (mine, theirs)))


def test_a_file_replaced_by_one_of_another_size_is_read(own_root):
    dataset = DALIImageFolder(own_root, EXACT)
    loader = ours(dataset, 2, device="cpu")
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 2)))
    Image.fromarray(make_image(np.random.default_rng(5), 300, 55)).save(_path(dataset))
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 2)))


def test_a_replaced_file_is_read_without_pillow(own_root, monkeypatch):
    """The header is read again before DALI decodes the file."""
    dataset, by_pillow = DALIImageFolder(own_root, EXACT), []
    own = pil.load
    monkeypatch.setattr(pil, "load", lambda source, *rest: by_pillow.append(source) or own(source, *rest))
    loader = ours(dataset, 2, device="cpu")
    list(loader)
    assert not by_pillow
    Image.fromarray(make_image(np.random.default_rng(5), 300, 55)).save(_path(dataset))
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 2)))
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 2)))
    assert not by_pillow


def test_images_of_a_batch_with_a_png_replaced_by_a_gif_keep_their_order(own_root):
    """DALI cannot decode the GIF, which keeps the name of the PNG."""
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    Image.open(_path(dataset)).save(_path(dataset), "PNG")
    loader = ours(dataset, 8, device="cpu")
    assert len(list(loader)) == 1
    Image.open(_path(dataset)).save(_path(dataset), "GIF")
    (mine,), (theirs,) = loader, stock(dataset, 8)
    assert mine[1].tolist() == theirs[1].tolist() and mine[2].tolist() == theirs[2].tolist()
    assert_same_pixels([mine[0]], [theirs[0]])


class HandlerError(Exception):
    """An exception raised by a signal handler."""


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_an_error_of_a_signal_handler_is_not_a_bad_image(own_root, monkeypatch, on_error):
    """The error is raised while the loader waits for Pillow."""
    dataset = DALIImageFolder(own_root, EXACT)
    for path, _ in dataset.samples:
        Image.open(path).convert("P").save(path, "GIF")
    wanted, own = pixels(stock(dataset, 4)), pil.load
    loading, go = threading.Event(), threading.Event()
    monkeypatch.setattr(pil, "load", lambda *args: (loading.set(), go.wait(60), own(*args))[2])
    loader = ours(dataset, 4, device="cpu", on_error=on_error)

    def handler_error() -> HandlerError:
        go.set()  # the end of an epoch waits for work in progress
        return HandlerError()

    with pytest.raises(HandlerError), interrupted(handler_error, within=threading.Condition.wait, when=loading.is_set):
        list(loader)
    assert loader.errors == []
    assert_same_pixels(pixels(loader), wanted)


SAVE_AS = {
    "PNG": lambda image, path: image.save(path, "PNG"),
    "gray PNG": lambda image, path: image.convert("L").save(path, "PNG"),
    "TIFF": lambda image, path: image.save(path, "TIFF"),
    "WebP": lambda image, path: image.save(path, "WEBP", lossless=True),
    "BMP": lambda image, path: image.save(path, "BMP"),
}


@pytest.mark.parametrize("share", [0.3, 0.98])
@pytest.mark.parametrize("kind", SAVE_AS)
def test_truncated_files_allowed_in_pillow_are_not_sent_to_dali(own_root, monkeypatch, capfd, kind, share):
    """C libraries would write warnings about them to stderr."""
    dataset = DALIImageFolder(own_root, EXACT)
    SAVE_AS[kind](Image.open(_path(dataset)).convert("RGB"), _path(dataset))
    _truncate(share)(_path(dataset))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    mine = _run(ours(dataset, 2, device="cpu"))
    assert capfd.readouterr().err == ""
    if kind == "WebP":
        assert [isinstance(one, ImageReadError) for one in mine] == [False, False, True, False]
    else:
        assert_same_pixels([images for images, _ in mine], pixels(stock(dataset, 2)))
