"""JPEGs on the route through a GPU's JPEG engine, simulated with Pillow and with NumPy versions of the kernels.

The tests check which files the engine decodes, and the fallback for files that it decodes differently or refuses, and
for files that change or are damaged.
"""

import ctypes
import io
import itertools
import os
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import planes
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T

from contract.both import ours
from dali_compat import DALIImageFolder, DALIRecordIO, DataLoader, ImageReadError, views
from dali_compat.cli import main
from dali_compat.data.headers import headers_of
from dali_compat.engine.planes import engine as jpeg_engine
from dali_compat.engine.planes import engines, verified
from dali_compat.engine.planes.engine import EngineTimeout
from dali_compat.engine.planes.nvjpeg import EngineError, EngineMemoryError
from dali_compat.engine.planes.verified import VerifiedEngine
from dali_compat.epoch import planes_group
from dali_compat.routes.dali import DaliRoute

pytest.importorskip("triton")

TRAIN = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)])
EVALUATION = T.Compose([T.Resize(12), T.CenterCrop(8), T.ToTensor()])
CHAINS = {
    "train": TRAIN,
    "evaluation": EVALUATION,
    "jitter": T.Compose([T.RandomCrop(8), T.ColorJitter(0.4, 0.4), T.PILToTensor()]),
    "views": views(TRAIN, T.Compose([T.CenterCrop(6), T.PILToTensor()])),
    "nearest": T.Compose([T.Resize((9, 9), T.InterpolationMode.NEAREST), T.ToTensor()]),
    "several sizes": T.Compose([T.RandomHorizontalFlip(), T.RandomResizedCrop(8), T.PILToTensor()]),
}


class PillowEngine(VerifiedEngine):
    """A JPEG engine that decodes gray and 4:4:4 images with Pillow.

    Attributes:
        calls: number of files in each call.
        spoilt: contents of files that it decodes with one wrong pixel, in the last corner.
        flaky: contents of files that it decodes so in every other call.
        refuses: contents of files that it raises an error for.
        hangs: whether it never answers.
    """

    def __init__(self):
        self.device, self.disabled, self.name, self.exact = torch.device("cpu"), "", "Pillow's", np.zeros(256, bool)
        self.exact[[1, 0x11]] = True
        self.calls, self.spoilt, self.flaky, self.refuses, self.hangs = [], set(), set(), set(), False
        self._live = weakref.WeakValueDictionary()
        self._compare_on(self.device)

    def submit(self, files, places):
        files, chosen = files.checked()
        self.calls += [len(files)] if len(files) else []
        made = self.decoding(files, places if len(chosen) == len(places.bytes) else places.only(chosen))
        made.chosen = chosen
        self._live[id(made)] = made
        return made

    def decoding(self, files, places):
        return PillowDecoding(self, files, places)


class PillowDecoding:
    def __init__(self, engine, files, places):
        self.engine, self.files, self.places, self.bytes = engine, files, places, int(places.bytes.sum())

    def result(self):
        if self.engine.hangs:
            raise EngineTimeout
        made = np.full(int(self.places.bytes.sum()), 77, np.uint8)
        pairs = zip(self.files.addresses.tolist(), self.files.lengths.tolist(), strict=True)
        for i, (address, length) in enumerate(pairs):
            file = ctypes.string_at(address, length)
            if file in self.engine.refuses:
                raise EngineError("not supported")
            try:
                self._decode(i, file, made)
            except OSError as error:
                raise EngineError("a bad JPEG") from error
        return torch.from_numpy(made)

    def _decode(self, i, file, made):
        with Image.open(io.BytesIO(file)) as image:
            image.draft("YCbCr", image.size)
            pixels = np.array(image).reshape(image.height, image.width, -1)
        if file in self.engine.spoilt or (file in self.engine.flaky and len(self.engine.calls) % 2):
            pixels[-1, -1, 0] ^= 1
        for c in range(pixels.shape[2]):
            begin, pitch = self.places.offsets[i, c], self.places.pitches[i, c]
            height, width = pixels.shape[:2]
            assert (height, width) == tuple(self.places.sizes[i])  # otherwise it would write outside its planes
            made[begin : begin + height * pitch].reshape(height, pitch)[:, :width] = pixels[:, :, c]

    def cancel(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    from dali_compat.engine.planes import kernels

    for name in ("render", "differs", "pick"):
        monkeypatch.setattr(kernels, name, getattr(planes, name))
    made = PillowEngine()
    monkeypatch.setattr(DaliRoute, "jpeg_engine", lambda self: made)
    yield made
    made.wait_for_comparisons(60)  # before the engine of the next test


def picture(rng, height, width):
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """Twelve files, eight of which the engine supports."""
    rng = np.random.default_rng(0)
    (tmp_path / "class").mkdir()
    for number in range(12):
        image = picture(rng, *rng.integers(9, 20, 2).tolist())
        how = {"subsampling": 0} if number % 3 else {"subsampling": 2}
        if number % 5 == 1:
            image = image.convert("L")
        if number == 3:
            how["progressive"] = True
        image.save(tmp_path / "class" / f"{number:02}.{'png' if number == 6 else 'jpg'}", **how)
    return tmp_path


def load_epoch(dataset, **options):
    torch.manual_seed(3)
    options = {"batch_size": 6, "shuffle": True, "exact": True, "num_workers": 2, "fallback": "silent"} | options
    return list(ours(dataset, **options))


def load_without_engine(monkeypatch, dataset, **options):
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "jpeg_engine", lambda self: None)
        return load_epoch(dataset, **options)


def assert_equal(found, expected):
    """Compare nested lists of tensors."""
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
        return
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def load_and_verify(engine, dataset, **options):
    """Return the batches of an epoch, after which the engine has verified each of its files."""
    made = load_epoch(dataset, **options)
    engine.wait_for_comparisons(60)
    engine.calls.clear()
    return made


def file_contents(folder, *numbers):
    return {(folder / "class" / f"{number:02}.jpg").read_bytes() for number in numbers}


def counts_of(engine, dataset):
    found = headers_of(dataset).jpegs(engine.name, engine.exact, 10**6, len(dataset))
    return found._asdict()


def engine_line(loader, monkeypatch, engine):
    """Return the line of explain() on the engine."""
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "uses_jpeg_engine", True)
        patch.setattr(engines, "known_engine", lambda device: engine)
        (line,) = (line for line in loader.explain().splitlines() if "the JPEG engine decodes" in line)
    return line.strip()


def test_explain_counts_the_files_that_the_engine_decodes(folder, engine, monkeypatch):
    engine.spoilt = file_contents(folder, 4)
    loader = ours(DALIImageFolder(folder, TRAIN), 5, exact=True, device="cpu")
    template = "the JPEG engine decodes {} files, whose pixels were compared with Pillow's"
    assert engine_line(loader, monkeypatch, engine) == template.format(0) + "; 12 files have not been compared yet"
    list(loader)
    engine.wait_for_comparisons(60)
    assert engine_line(loader, monkeypatch, engine) == template.format(7) + "; it does not decode 1 whose pixels differ"
    monkeypatch.setattr(verified, "MOST_PIXELS", 200)
    monkeypatch.setattr(verified, "_PER_BATCH", 200)
    loader = ours(data.ConcatDataset([loader.dataset, DALIImageFolder(folder, TRAIN)]), 16, exact=True, device="cpu")
    list(loader)
    engine.wait_for_comparisons(60)
    large = headers_of(loader.dataset.datasets[1]).jpegs(engine.name, engine.exact, 200, 12).large
    others = f"1 whose pixels differ and {large} of more than 200 pixels"
    assert (
        engine_line(loader, monkeypatch, engine)
        == template.format(7) + f"; it does not decode {others}; {8 - large} files have not been compared yet"
    )


ALL = {"engines": 8, "likely": 0, "others": 0, "waiting": 0, "large": 0, "unseen": 0}


@pytest.mark.parametrize("name", CHAINS)
def test_verified_files_are_decoded_by_the_engine_with_equal_pixels(folder, engine, monkeypatch, name):
    dataset = DALIImageFolder(folder, CHAINS[name])
    expected = load_without_engine(monkeypatch, dataset)
    assert not engine.calls and counts_of(engine, dataset) == ALL | {"engines": 0, "waiting": 8}
    assert_equal(load_and_verify(engine, dataset), expected)
    assert counts_of(engine, dataset) == ALL
    for _ in range(2):
        assert_equal(load_epoch(dataset), expected)
    assert sum(engine.calls) == 16


def only_images(samples):
    return [image for image, _ in samples]


def test_pixels_are_equal_if_image_sizes_differ(folder, engine, monkeypatch):
    dataset, options = DALIImageFolder(folder, T.ToTensor()), {"collate_fn": only_images}
    expected = load_without_engine(monkeypatch, dataset, **options)
    assert len({image.shape for image in expected[0]}) > 1
    assert_equal(load_and_verify(engine, dataset, **options), expected)
    assert_equal(load_epoch(dataset, **options), expected)
    assert sum(engine.calls) == 8


def test_records_are_decoded_by_the_engine(folder, engine, monkeypatch, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed") / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, TRAIN)
    expected = load_without_engine(monkeypatch, dataset)
    engine.spoilt = file_contents(folder, 4)
    assert_equal(load_and_verify(engine, dataset), expected)
    assert_equal(load_epoch(dataset), expected)
    assert sum(engine.calls) == 7


@pytest.mark.parametrize("name", ["submit", "decoding", "compare"])
def test_archive_overwritten_during_an_epoch_raises_an_error(folder, engine, monkeypatch, tmp_path_factory, name):
    """The archive changes before the engine copies the files that it decodes, before it decodes them, or before a batch
    is compared. From then on the engine has copies."""
    if name == "submit":  # without files for DALI, which would read the mapped file in the meantime
        for file in (folder / "class").iterdir():
            if int(file.stem) % 3 == 0:
                file.unlink()
    packed = tmp_path_factory.mktemp("packed") / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset, shuffle=False)
    if name != "compare":
        load_and_verify(engine, dataset)
    do = getattr(engine, name)

    def overwrite_and_call(*args):
        data = bytearray(packed.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        with open(packed, "r+b") as file:
            file.write(data)
            if name == "submit":  # the mapped pages no longer exist
                file.truncate(len(data) // 2)
        return do(*args)

    monkeypatch.setattr(engine, name, overwrite_and_call)
    batches = iter(ours(dataset, 6, exact=True, device="cpu", num_workers=2))
    if name != "submit":
        assert_equal(next(batches), expected[0])
    with pytest.raises(ImageReadError, match="has changed"):
        list(batches)
    engine.wait_for_comparisons(60)
    assert name != "compare" or counts_of(engine, dataset)["engines"] == 4  # the files of the first batch


def padded_jpeg(data, length):
    """Return the JPEG with a comment that extends it to ``length`` bytes."""
    room = length - len(data) - 4
    return data[:2] + b"\xff\xfe" + (room + 2).to_bytes(2, "big") + bytes(room) + data[2:]


def test_archive_change_that_keeps_the_modification_time_is_found(folder, engine, monkeypatch, tmp_path):
    """A record becomes an image of another size but the same length, and the archive's modification time is restored.
    The engine would write outside the planes allocated for the image."""
    rng, (path, *_) = np.random.default_rng(0), sorted((folder / "class").glob("01.jpg"))
    made = []
    for side in (12, 90):
        file = io.BytesIO()
        picture(rng, side, 20).convert("L").save(file, "JPEG")
        made.append(padded_jpeg(file.getvalue(), 4000))
    path.write_bytes(made[0])
    packed = tmp_path / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset, shuffle=False)
    stat = packed.stat()
    packed.write_bytes(packed.read_bytes().replace(made[0], made[1]))
    os.utime(packed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = load_and_verify(engine, dataset, shuffle=False)
    assert_equal(found[1], expected[1])
    assert not engine.disabled and counts_of(engine, dataset)["engines"] == 4  # the files of the other batch
    reloaded = load_without_engine(monkeypatch, DALIRecordIO(packed, EVALUATION), shuffle=False)
    for _ in range(2):
        assert_equal(load_and_verify(engine, dataset, shuffle=False), reloaded)
    assert counts_of(engine, dataset)["engines"] == 8


# ---- files that the engine decodes


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_wrong_pixels_never_reach_a_batch(folder, engine, monkeypatch, shuffle, workers):
    """The wrong pixel is in a corner that no crop of the first epochs contains; then it is in every image."""
    options = {"shuffle": shuffle, "num_workers": workers}
    engine.spoilt = file_contents(folder, 4, 11)
    dataset = DALIImageFolder(folder, T.Compose([T.CenterCrop(4), T.PILToTensor()]))
    assert_equal(load_and_verify(engine, dataset, **options), load_without_engine(monkeypatch, dataset, **options))
    assert counts_of(engine, dataset) == ALL | {"engines": 6, "others": 2}
    dataset.transform = T.Compose([T.Resize((30, 30)), T.PILToTensor()])
    expected = load_without_engine(monkeypatch, dataset, **options)
    for _ in range(2):
        assert_equal(load_epoch(dataset, **options), expected)
    assert sum(engine.calls) == 12


def test_files_with_varying_pixels_are_not_decoded_by_the_engine(folder, engine, monkeypatch):
    engine.flaky = file_contents(folder, 4, 11)
    dataset = DALIImageFolder(folder, EVALUATION)
    assert_equal(load_and_verify(engine, dataset), load_without_engine(monkeypatch, dataset))
    assert counts_of(engine, dataset) == ALL | {"engines": 6, "others": 2}


def test_wrong_pixels_reach_the_batches_if_comparing_is_disabled(folder, engine, monkeypatch):
    """The tests above would notice wrong pixels."""
    monkeypatch.setattr(
        PillowEngine, "differs", lambda self, planes, places, expected: np.zeros(len(places.sizes), bool)
    )
    engine.spoilt = file_contents(folder, 4, 11)
    dataset = DALIImageFolder(folder, T.Compose([T.Resize((30, 30)), T.PILToTensor()]))
    expected = load_without_engine(monkeypatch, dataset, shuffle=False, batch_size=12)
    load_and_verify(engine, dataset)
    (images, _), (images_expected, _) = *load_epoch(dataset, shuffle=False, batch_size=12), *expected
    assert [i for i in range(12) if not torch.equal(images[i], images_expected[i])] == [4, 11]


def test_refused_files_are_decoded_by_dali(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    engine.refuses = file_contents(folder, 2, 4)
    assert_equal(load_and_verify(engine, dataset), expected)
    assert counts_of(engine, dataset) == ALL | {"engines": 6, "others": 2}
    assert_equal(load_epoch(dataset), expected)
    assert sum(engine.calls) == 6


def test_files_refused_after_verification_are_compared_again(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    load_and_verify(engine, dataset)
    engine.refuses = file_contents(folder, 4)
    for others in (0, 1, 1):
        assert_equal(load_and_verify(engine, dataset), expected)
        assert counts_of(engine, dataset)["others"] == others
    assert counts_of(engine, dataset) == ALL | {"engines": 7, "others": 1}


def test_replaced_file_is_compared_again(folder, engine, monkeypatch):
    """One new file has another size. One has the length and header of the old file, and the engine decodes it wrongly.
    One replaces a file that the engine decoded wrongly, and is decoded correctly."""
    dataset = DALIImageFolder(folder, EVALUATION)
    engine.spoilt = file_contents(folder, 5)
    load_and_verify(engine, dataset)
    assert counts_of(engine, dataset) == ALL | {"engines": 7, "others": 1}
    rng = np.random.default_rng(1)
    for number in (1, 5):
        picture(rng, 30, 28).save(folder / "class" / f"{number:02}.jpg", subsampling=0)
    path = folder / "class" / "04.jpg"
    data = bytearray(path.read_bytes())
    data[-8] ^= 16  # coded data
    path.write_bytes(data)
    engine.spoilt |= {bytes(data)}
    expected = load_without_engine(monkeypatch, DALIImageFolder(folder, EVALUATION))
    for _ in range(3):
        assert_equal(load_and_verify(engine, dataset), expected)
    assert counts_of(engine, dataset) == ALL | {"engines": 7, "others": 1}
    assert_equal(load_epoch(dataset), expected)
    assert sum(engine.calls) == 7


def test_pixels_are_equal_after_the_samples_are_reversed(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    engine.spoilt = file_contents(folder, 4)
    load_and_verify(engine, dataset)
    dataset.samples.reverse()
    expected = load_without_engine(monkeypatch, dataset)
    for _ in range(3):
        assert_equal(load_and_verify(engine, dataset), expected)
    assert counts_of(engine, dataset) == ALL | {"engines": 7, "others": 1}


def test_loaders_of_one_data_set_share_the_results_of_comparing(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, TRAIN)
    engine.spoilt = file_contents(folder, 4)
    expected = load_without_engine(monkeypatch, dataset, batch_size=3)
    found = []
    torch.manual_seed(3)
    options = {"shuffle": True, "exact": True, "fallback": "silent", "device": "cpu"}
    first = iter(ours(dataset, 3, num_workers=2, **options))
    found.append(next(first))
    for _ in range(2):
        list(ours(dataset, 5, num_workers=2, **options))
    assert_equal(found + list(first), expected)
    engine.wait_for_comparisons(60)
    assert counts_of(engine, dataset) == ALL | {"engines": 7, "others": 1}
    parts = data.ConcatDataset([dataset, data.Subset(dataset, [4, 5, 4])])
    engine.calls.clear()
    assert_equal(load_epoch(parts), load_without_engine(monkeypatch, parts))
    assert sum(engine.calls) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_resumed_in_a_new_loader_gives_the_same_pixels(folder, engine, monkeypatch, workers):
    """The state is loaded with the old data set and with a new one, whose files are not verified yet."""
    options = {"batch_size": 2, "num_workers": workers, "shuffle": True, "exact": True, "fallback": "silent"}
    expected = load_without_engine(monkeypatch, DALIImageFolder(folder, TRAIN), batch_size=2, num_workers=workers)
    engine.spoilt = file_contents(folder, 4, 5)
    dataset = DALIImageFolder(folder, TRAIN)
    torch.manual_seed(3)
    loader = ours(dataset, device="cpu", **options)
    batches = iter(loader)
    assert_equal([next(batches) for _ in range(2)], expected[:2])
    state = loader.state_dict()
    del batches
    for resumed_dataset in (dataset, DALIImageFolder(folder, TRAIN)):
        loader = ours(resumed_dataset, device="cpu", **options)
        loader.load_state_dict(state)
        assert_equal(list(loader), expected[2:])


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_files_are_handled_as_without_the_engine(folder, engine, monkeypatch, policy):
    (folder / "class" / "07.jpg").write_bytes(b"nonsense" * 50)
    engine.spoilt = file_contents(folder, 4)
    options = {"on_error": policy, "shuffle": False, "batch_size": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = load_without_engine(monkeypatch, DALIImageFolder(folder, TRAIN), **options)
        dataset = DALIImageFolder(folder, TRAIN)
        for _ in range(3):
            assert_equal(load_and_verify(engine, dataset, **options), expected)
    assert counts_of(engine, dataset)["others"] == 1


def test_images_that_are_too_small_are_skipped_as_without_the_engine(folder, engine, monkeypatch):
    options = {"on_error": "skip", "shuffle": False, "batch_size": 4}
    dataset = DALIImageFolder(folder, T.Compose([T.RandomCrop(12), T.PILToTensor()]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = load_without_engine(monkeypatch, dataset, **options)
        assert sum(len(images) for images, _ in expected) < 12
        for _ in range(3):
            assert_equal(load_and_verify(engine, dataset, **options), expected)


def test_files_beyond_the_pixel_limit_of_a_batch_are_compared_in_later_epochs(folder, engine, monkeypatch):
    """Files that are too large are never compared."""
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset, shuffle=False)
    monkeypatch.setattr(verified, "_PER_BATCH", 1100)
    before = -1
    while (now := counts_of(engine, dataset)["engines"]) > before:
        before = now
        assert_equal(load_and_verify(engine, dataset, shuffle=False), expected)
    assert counts_of(engine, dataset) == ALL
    other = DALIImageFolder(folder, EVALUATION)
    monkeypatch.setattr(verified, "MOST_PIXELS", 200)
    for _ in range(2):
        assert_equal(load_and_verify(engine, other, shuffle=False), expected)
    found = headers_of(other).jpegs(engine.name, engine.exact, 200, 12)
    assert found.engines + found.large == 8 and found.engines > 0 < found.large and not found.waiting


def test_nothing_more_is_compared_if_the_queue_is_full(folder, engine, monkeypatch):
    """Batches do not wait for the comparison."""
    release = threading.Event()
    monkeypatch.setattr(verified, "_WAITING", 5000)
    monkeypatch.setattr(
        PillowEngine, "_alike", lambda self, files, *rest: release.wait(60) and np.ones(len(files), bool)
    )
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    for _ in range(2):
        assert_equal(load_epoch(dataset), expected)
    assert counts_of(engine, dataset) == ALL | {"engines": 0, "waiting": 8}
    assert 0 < engine._waiting() <= 2 * 5000 and engine.room < 5000
    release.set()
    engine.wait_for_comparisons(60)
    assert engine.room == 5000


def test_engine_is_disabled_with_a_warning_if_memory_for_planes_is_exhausted(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    load_and_verify(engine, dataset)

    def submit(files, places):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine, "submit", submit)
    with pytest.warns(RuntimeWarning, match="too little free memory"):
        assert_equal(load_epoch(dataset), expected)
    assert_equal(load_epoch(dataset), expected)


def test_engine_is_disabled_with_a_warning_if_nvjpeg_has_no_memory(folder, engine, monkeypatch):
    """Running out of memory does not exclude any file from the engine."""
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    load_and_verify(engine, dataset)

    def result(self):
        raise EngineMemoryError("nvjpegDecodeBatched failed: no memory")

    with monkeypatch.context() as patch:
        patch.setattr(PillowDecoding, "result", result)
        with pytest.warns(RuntimeWarning, match="too little free memory"):
            assert_equal(load_epoch(dataset), expected)
        other = DALIImageFolder(folder, EVALUATION)
        engine.disabled, engine.exact[[1, 0x11]] = "", True
        assert_equal(load_and_verify(engine, other), expected)
    assert "no memory" in engine.disabled and counts_of(engine, other)["others"] == 0
    assert_equal(load_epoch(dataset), expected)
    assert not engine.calls and counts_of(engine, dataset)["engines"] == 8


def test_engine_is_disabled_with_a_warning_if_a_kernel_fails(folder, engine, monkeypatch):
    """The kernel of a later plan fails; the first kernels worked when the engine was tested for exactness."""

    def fail(self, planes, places):
        raise RuntimeError("no C compiler was found\nand more")

    dataset = DALIImageFolder(folder, CHAINS["views"])
    expected = load_without_engine(monkeypatch, dataset)
    load_and_verify(engine, dataset)
    monkeypatch.setattr(planes_group.PlanesProgram, "__call__", fail)
    with pytest.warns(RuntimeWarning, match=r"kernels failed \(RuntimeError: no C compiler was found\); JPEGs"):
        assert_equal(load_epoch(dataset), expected)
    engine.calls.clear()
    assert_equal(load_epoch(dataset), expected)
    assert not engine.calls


def test_engine_is_disabled_if_comparing_fails(folder, engine, monkeypatch):
    def differs(self, planes, places, expected):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PillowEngine, "differs", differs)
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset)
    assert_equal(load_and_verify(engine, dataset), expected)
    assert "out of memory" in engine.disabled
    assert_equal(load_epoch(dataset), expected)
    assert not engine.calls


def test_verified_files_are_remembered_across_runs_with_index_cache(folder, engine, monkeypatch, tmp_path):
    """A file that has changed is compared again; another list of files has a separate cache."""

    def run():
        return DALIImageFolder(folder / "images", TRAIN, index_cache=tmp_path / "cache")

    (folder / "images").mkdir()
    (folder / "class").rename(folder / "images" / "class")
    path = folder / "images" / "class" / "04.jpg"
    engine.spoilt = {path.read_bytes()}
    first = run()
    expected = load_without_engine(monkeypatch, first)
    for _ in range(2):  # the second epoch stores the results of the first
        load_and_verify(engine, first)
    second = run()
    assert_equal(load_epoch(second), expected)
    assert sum(engine.calls) == 7 and counts_of(engine, second) == ALL | {"engines": 7, "others": 1}
    for seed, name in enumerate(("05", "07")):
        picture(np.random.default_rng(seed), 30, 28).save(path.with_name(f"{name}.jpg"), subsampling=0)
    engine.spoilt.add(path.with_name("07.jpg").read_bytes())
    third = run()
    expected = load_without_engine(monkeypatch, DALIImageFolder(folder / "images", TRAIN))
    for _ in range(3):
        assert_equal(load_and_verify(engine, third), expected)
    assert counts_of(engine, third) == ALL | {"engines": 6, "others": 2}
    picture(np.random.default_rng(1), 30, 28).save(path.with_name("000.jpg"), subsampling=0)
    fourth = run()
    engine.calls.clear()
    assert_equal(load_epoch(fourth), load_without_engine(monkeypatch, fourth))
    engine.wait_for_comparisons(60)
    assert sum(engine.calls) == 2 * 9  # each file is compared twice


# ---- files similar to compared ones


@pytest.fixture
def similar(tmp_path):
    """Twenty files of one kind."""
    rng = np.random.default_rng(0)
    (tmp_path / "class").mkdir()
    for number in range(20):
        picture(rng, *rng.integers(9, 20, 2).tolist()).save(tmp_path / "class" / f"{number:02}.jpg", subsampling=0)
    return tmp_path


@pytest.fixture
def trusted(similar, engine, monkeypatch):
    """A data set of these files; the first four were compared, which is enough for the engine to trust the others."""
    monkeypatch.setattr(verified, "_ENOUGH", 4)
    monkeypatch.setattr(verified, "_EVERY", 2)
    dataset = DALIImageFolder(similar, EVALUATION)
    load_and_verify(engine, data.Subset(dataset, range(4)), shuffle=False)
    assert counts_of(engine, dataset) == ALL | {"engines": 4, "unseen": 16}
    engine._chance = itertools.cycle([0, 1, 1]).__next__  # the next batch compares half of the others
    return dataset


def test_engine_decodes_similar_files_when_they_are_first_loaded(trusted, engine, monkeypatch):
    expected = load_without_engine(monkeypatch, trusted, batch_size=10)
    for _ in range(3):
        assert_equal(load_and_verify(engine, trusted, batch_size=10), expected)
        found = counts_of(engine, trusted)
        assert found["engines"] + found["likely"] == 20 and 8 < found["likely"] < 16  # half of a batch
    assert_equal(load_epoch(trusted, batch_size=10), expected)
    assert sum(engine.calls) == 20  # and nothing more is compared


def test_all_files_are_compared_after_one_similar_file_differs(trusted, engine, monkeypatch):
    """The files that were decoded without comparison are compared, too."""
    expected = load_without_engine(monkeypatch, trusted, batch_size=20, shuffle=False)
    engine.spoilt = file_contents(Path(trusted.root), 4)
    assert_equal(load_and_verify(engine, trusted, batch_size=20, shuffle=False), expected)
    found = counts_of(engine, trusted)
    assert found["others"] == 1 and found["likely"] == 8
    assert_equal(load_and_verify(engine, trusted, batch_size=20, shuffle=False), expected)
    assert counts_of(engine, trusted) == ALL | {"engines": 19, "others": 1}


@pytest.mark.parametrize("known", [False, True])
def test_similar_file_with_damaged_structure_is_not_decoded_by_the_engine(trusted, engine, monkeypatch, known):
    """The damage exists when the file is first loaded, or occurs later."""
    if known:
        load_and_verify(engine, trusted, batch_size=20, shuffle=False)
        assert counts_of(engine, trusted)["likely"]
    path = trusted.samples[19][0]
    with open(path, "rb") as file:
        damaged = bytearray(file.read())
    damaged[-40:-30] = b"\xff\xd0\xff\xc0\x00\x01\xff\xd9\x00\x00"
    with open(path, "wb") as file:
        file.write(damaged)
    options = {"on_error": "skip", "shuffle": False, "batch_size": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = load_without_engine(monkeypatch, DALIImageFolder(trusted.root, EVALUATION), **options)
        for _ in range(2):
            assert_equal(load_and_verify(engine, trusted, **options), expected)


def test_similar_file_that_the_engine_refuses_is_decoded_by_dali(trusted, engine, monkeypatch):
    expected = load_without_engine(monkeypatch, trusted, batch_size=20, shuffle=False)
    with open(trusted.samples[19][0], "rb") as file:
        engine.refuses = {file.read()}
    assert_equal(load_and_verify(engine, trusted, batch_size=20, shuffle=False), expected)
    monkeypatch.setattr(verified, "_ENOUGH", 1000)  # more than there are, so that each file is compared
    for _ in range(2):
        assert_equal(load_and_verify(engine, trusted, batch_size=20, shuffle=False), expected)
    assert counts_of(engine, trusted) == ALL | {"engines": 19, "others": 1}


def test_similar_file_that_changes_is_read_again(trusted, engine, monkeypatch):
    load_and_verify(engine, trusted, batch_size=20, shuffle=False)
    picture(np.random.default_rng(7), 30, 28).save(trusted.samples[19][0], subsampling=0)
    expected = load_without_engine(monkeypatch, DALIImageFolder(trusted.root, EVALUATION), batch_size=20, shuffle=False)
    for _ in range(2):
        assert_equal(load_and_verify(engine, trusted, batch_size=20, shuffle=False), expected)


# ---- damaged files, and an engine that does not answer


def test_damaged_file_is_not_decoded_by_the_engine(folder, engine, monkeypatch):
    """The damage exists when the file is first loaded, or occurs after the file was verified."""
    path = folder / "class" / "02.jpg"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-40:-30] = b"\xff\xd0\xff\xc0\x00\x01\xff\xd9\x00\x00"
    options = {"on_error": "skip", "shuffle": False, "batch_size": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for first in (damaged, whole):
            path.write_bytes(first)
            dataset = DALIImageFolder(folder, EVALUATION)
            load_and_verify(engine, dataset, **options)
            path.write_bytes(damaged)
            found = load_epoch(dataset, **options)
            assert sum(engine.calls) == 7
            assert_equal(found, load_without_engine(monkeypatch, DALIImageFolder(folder, EVALUATION), **options))


@pytest.mark.parametrize("known", [False, True])
def test_error_names_a_file_that_was_deleted(folder, engine, known):
    dataset = DALIImageFolder(folder, EVALUATION)
    loader = DataLoader(dataset, 12, exact=True, device="cpu")
    list(loader)
    engine.wait_for_comparisons(60)
    if known:
        list(loader)
    (folder / "class" / "04.jpg").unlink()
    with pytest.raises(Exception, match=r"04\.jpg"):
        list(loader)


@pytest.mark.parametrize("first", [True, False])
def test_engine_is_disabled_if_it_does_not_answer(folder, engine, monkeypatch, first):
    """It hangs when files are compared, or later."""
    dataset = DALIImageFolder(folder, EVALUATION)
    expected = load_without_engine(monkeypatch, dataset, shuffle=False, batch_size=12)
    if not first:
        load_and_verify(engine, dataset)
    engine.hangs = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert_equal(load_epoch(dataset, shuffle=False, batch_size=12), expected)
            engine.wait_for_comparisons(60)
    assert engine.calls == [8] and "has not answered" in engine.disabled


def test_batches_with_many_pixels_are_split_into_groups(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, TRAIN)
    expected = load_without_engine(monkeypatch, dataset)
    load_and_verify(engine, dataset)
    monkeypatch.setattr(planes_group, "_MOST", 3000)
    assert_equal(load_epoch(dataset), expected)
    assert sum(engine.calls) == 8 and len(engine.calls) > 2


def test_number_of_groups_in_flight_is_bounded(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, TRAIN)
    options = {"batch_size": 2, "num_workers": 2, "prefetch_factor": 6}
    expected = load_without_engine(monkeypatch, dataset, **options)
    load_and_verify(engine, dataset)
    most, submit = [], engine.submit

    def counted(files, places):
        made = submit(files, places)
        most.append(len(engine._live))
        return made

    monkeypatch.setattr(engine, "submit", counted)
    monkeypatch.setattr(planes_group, "_MOST", 1)  # one image per group
    assert_equal(load_epoch(dataset, **options), expected)
    assert max(most) > 4
    most.clear()
    monkeypatch.setattr(jpeg_engine, "_IN_FLIGHT", 1)
    assert_equal(load_epoch(dataset, **options), expected)
    assert max(most) <= 2  # the current group, and one prepared ahead
