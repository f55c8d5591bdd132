"""The way of a JPEG through a GPU's engine, with an engine that Pillow plays, and kernels that NumPy plays: who decodes
which file, and what becomes of those of which it makes other pixels, that change, are damaged, or that it refuses."""

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
from dali_compat.engine.planes.engine import EngineSilent
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


class Pillows(VerifiedEngine):
    """An engine that takes gray images and those of 4:4:4.

    Attributes:
        calls: how many files each call had.
        spoilt: files, as bytes, of which it makes one wrong pixel, in the last corner.
        moody: those of which it does so in every other call.
        refuses: files that it does not take.
        hangs: whether it does not answer.
    """

    def __init__(self):
        self.device, self.given_up, self.name, self.exact = torch.device("cpu"), "", "Pillow's", np.zeros(256, bool)
        self.exact[[1, 0x11]] = True
        self.calls, self.spoilt, self.moody, self.refuses, self.hangs = [], set(), set(), set(), False
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
        return Pillow(self, files, places)


class Pillow:
    def __init__(self, engine, files, places):
        self.engine, self.files, self.places, self.bytes = engine, files, places, int(places.bytes.sum())

    def result(self):
        if self.engine.hangs:
            raise EngineSilent
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
        if file in self.engine.spoilt or (file in self.engine.moody and len(self.engine.calls) % 2):
            pixels[-1, -1, 0] ^= 1
        for c in range(pixels.shape[2]):
            begin, pitch = self.places.offsets[i, c], self.places.pitches[i, c]
            height, width = pixels.shape[:2]
            assert (height, width) == tuple(self.places.sizes[i])  # or it would write beyond what is its
            made[begin : begin + height * pitch].reshape(height, pitch)[:, :width] = pixels[:, :, c]

    def cancel(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    from dali_compat.engine.planes import kernels

    for name in ("render", "differs", "pick"):
        monkeypatch.setattr(kernels, name, getattr(planes, name))
    made = Pillows()
    monkeypatch.setattr(DaliRoute, "jpeg_engine", lambda self: made)
    yield made
    made.settle(60)  # before the next test's


def picture(rng, height, width):
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """Twelve files, of which the engine takes eight."""
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


def loaded(dataset, **options):
    torch.manual_seed(3)
    options = {"batch_size": 6, "shuffle": True, "exact": True, "num_workers": 2, "fallback": "silent"} | options
    return list(ours(dataset, **options))


def expected(monkeypatch, dataset, **options):
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "jpeg_engine", lambda self: None)
        return loaded(dataset, **options)


def assert_alike(found, wanted):
    """Trees of tensors."""
    if isinstance(found, torch.Tensor):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
        return
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert_alike(one, other)


def compared(engine, dataset, **options):
    """The batches of an epoch after which each of its files has a verdict."""
    made = loaded(dataset, **options)
    engine.settle(60)
    engine.calls.clear()
    return made


def bytes_of(folder, *numbers):
    return {(folder / "class" / f"{number:02}.jpg").read_bytes() for number in numbers}


def counts(engine, dataset):
    found = headers_of(dataset).jpegs(engine.name, engine.exact, 10**6, len(dataset))
    return found._asdict()


def explained(loader, monkeypatch, engine):
    """The line of explain() on it."""
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "uses_jpeg_engine", True)
        patch.setattr(engines, "known_engine", lambda device: engine)
        (line,) = (line for line in loader.explain().splitlines() if "the JPEG engine decodes" in line)
    return line.strip()


def test_explain_counts(folder, engine, monkeypatch):
    engine.spoilt = bytes_of(folder, 4)
    loader = ours(DALIImageFolder(folder, TRAIN), 5, exact=True, device="cpu")
    said = "the JPEG engine decodes {} files, whose pixels were compared with Pillow's"
    assert explained(loader, monkeypatch, engine) == said.format(0) + "; 12 files are not compared yet"
    list(loader)
    engine.settle(60)
    assert explained(loader, monkeypatch, engine) == said.format(7) + ", but not 1 because its pixels differ"
    monkeypatch.setattr(verified, "MOST_PIXELS", 200)
    monkeypatch.setattr(verified, "_PER_BATCH", 200)
    loader = ours(data.ConcatDataset([loader.dataset, DALIImageFolder(folder, TRAIN)]), 16, exact=True, device="cpu")
    list(loader)
    engine.settle(60)
    large = headers_of(loader.dataset.datasets[1]).jpegs(engine.name, engine.exact, 200, 12).large
    others = f"1 because its pixels differ and {large} of more than 200 pixels"
    assert (
        explained(loader, monkeypatch, engine)
        == said.format(7) + f", but not {others}; {8 - large} files are not compared yet"
    )


ALL = {"engines": 8, "likely": 0, "others": 0, "waiting": 0, "large": 0, "unseen": 0}


@pytest.mark.parametrize("name", CHAINS)
def test_pixels_and_places(folder, engine, monkeypatch, name):
    dataset = DALIImageFolder(folder, CHAINS[name])
    wanted = expected(monkeypatch, dataset)
    assert not engine.calls and counts(engine, dataset) == ALL | {"engines": 0, "waiting": 8}
    assert_alike(compared(engine, dataset), wanted)
    assert counts(engine, dataset) == ALL
    for _ in range(2):
        assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 16


def images_alone(samples):
    return [image for image, _ in samples]


def test_results_of_several_sizes(folder, engine, monkeypatch):
    dataset, options = DALIImageFolder(folder, T.ToTensor()), {"collate_fn": images_alone}
    wanted = expected(monkeypatch, dataset, **options)
    assert len({image.shape for image in wanted[0]}) > 1
    assert_alike(compared(engine, dataset, **options), wanted)
    assert_alike(loaded(dataset, **options), wanted)
    assert sum(engine.calls) == 8


def test_records(folder, engine, monkeypatch, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed") / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, TRAIN)
    wanted = expected(monkeypatch, dataset)
    engine.spoilt = bytes_of(folder, 4)
    assert_alike(compared(engine, dataset), wanted)
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 7


@pytest.mark.parametrize("name", ["submit", "decoding", "compare"])
def test_an_archive_that_is_written_to_meanwhile(folder, engine, monkeypatch, tmp_path_factory, name):
    """Before the engine copies what it was seen to decode, before it decodes that, and before it has compared a batch:
    from then on it has copies."""
    if name == "submit":  # DALI has none of the files: it would read what is mapped meanwhile
        for file in (folder / "class").iterdir():
            if int(file.stem) % 3 == 0:
                file.unlink()
    packed = tmp_path_factory.mktemp("packed") / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False)
    if name != "compare":
        compared(engine, dataset)
    do = getattr(engine, name)

    def written_to(*args):
        data = bytearray(packed.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        with open(packed, "r+b") as file:
            file.write(data)
            if name == "submit":  # what was mapped is there no more
                file.truncate(len(data) // 2)
        return do(*args)

    monkeypatch.setattr(engine, name, written_to)
    batches = iter(ours(dataset, 6, exact=True, device="cpu", num_workers=2))
    if name != "submit":
        assert_alike(next(batches), wanted[0])
    with pytest.raises(ImageReadError, match="has changed"):
        list(batches)
    engine.settle(60)
    assert name != "compare" or counts(engine, dataset)["engines"] == 4  # of the first batch


def as_long(data, length):
    """A JPEG with a comment."""
    room = length - len(data) - 4
    return data[:2] + b"\xff\xfe" + (room + 2).to_bytes(2, "big") + bytes(room) + data[2:]


def test_an_archive_that_is_written_to_unnoticed(folder, engine, monkeypatch, tmp_path):
    """By who puts back the time of its change: a record has become an image of other sides, of the same length. The
    engine would write beyond the planes that were made for it."""
    rng, (path, *_) = np.random.default_rng(0), sorted((folder / "class").glob("01.jpg"))
    made = []
    for side in (12, 90):
        file = io.BytesIO()
        picture(rng, side, 20).convert("L").save(file, "JPEG")
        made.append(as_long(file.getvalue(), 4000))
    path.write_bytes(made[0])
    packed = tmp_path / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False)
    stat = packed.stat()
    packed.write_bytes(packed.read_bytes().replace(made[0], made[1]))
    os.utime(packed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = compared(engine, dataset, shuffle=False)
    assert_alike(found[1], wanted[1])
    assert not engine.given_up and counts(engine, dataset)["engines"] == 4  # of the other batch
    fresh = expected(monkeypatch, DALIRecordIO(packed, EVALUATION), shuffle=False)
    for _ in range(2):
        assert_alike(compared(engine, dataset, shuffle=False), fresh)
    assert counts(engine, dataset)["engines"] == 8


# ---- what it is trusted with


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_wrong_pixels_never_reach_a_batch(folder, engine, monkeypatch, shuffle, workers):
    """One, in a corner that no window of any epoch has; then windows that have it."""
    options = {"shuffle": shuffle, "num_workers": workers}
    engine.spoilt = bytes_of(folder, 4, 11)
    dataset = DALIImageFolder(folder, T.Compose([T.CenterCrop(4), T.PILToTensor()]))
    assert_alike(compared(engine, dataset, **options), expected(monkeypatch, dataset, **options))
    assert counts(engine, dataset) == ALL | {"engines": 6, "others": 2}
    dataset.transform = T.Compose([T.Resize((30, 30)), T.PILToTensor()])
    wanted = expected(monkeypatch, dataset, **options)
    for _ in range(2):
        assert_alike(loaded(dataset, **options), wanted)
    assert sum(engine.calls) == 12


def test_what_it_decodes_now_so_now_so_is_not_its(folder, engine, monkeypatch):
    engine.moody = bytes_of(folder, 4, 11)
    dataset = DALIImageFolder(folder, EVALUATION)
    assert_alike(compared(engine, dataset), expected(monkeypatch, dataset))
    assert counts(engine, dataset) == ALL | {"engines": 6, "others": 2}


def test_a_wrong_pixel_would_show(folder, engine, monkeypatch):
    """The same where the engine is taken at its word."""
    monkeypatch.setattr(Pillows, "differs", lambda self, planes, places, wanted: np.zeros(len(places.sizes), bool))
    engine.spoilt = bytes_of(folder, 4, 11)
    dataset = DALIImageFolder(folder, T.Compose([T.Resize((30, 30)), T.PILToTensor()]))
    wanted = expected(monkeypatch, dataset, shuffle=False, batch_size=12)
    compared(engine, dataset)
    (images, _), (images_wanted, _) = *loaded(dataset, shuffle=False, batch_size=12), *wanted
    assert [i for i in range(12) if not torch.equal(images[i], images_wanted[i])] == [4, 11]


def test_what_it_refuses_is_decoded_as_before(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    engine.refuses = bytes_of(folder, 2, 4)
    assert_alike(compared(engine, dataset), wanted)
    assert counts(engine, dataset) == ALL | {"engines": 6, "others": 2}
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 6


def test_what_it_refuses_later_is_compared_anew(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    compared(engine, dataset)
    engine.refuses = bytes_of(folder, 4)
    for others in (0, 1, 1):
        assert_alike(compared(engine, dataset), wanted)
        assert counts(engine, dataset)["others"] == others
    assert counts(engine, dataset) == ALL | {"engines": 7, "others": 1}


def test_a_file_that_is_replaced_is_compared_anew(folder, engine, monkeypatch):
    """By one of other sides; by one of the same length and header, of which the engine makes something else; one that
    was not the engine's, by one that is."""
    dataset = DALIImageFolder(folder, EVALUATION)
    engine.spoilt = bytes_of(folder, 5)
    compared(engine, dataset)
    assert counts(engine, dataset) == ALL | {"engines": 7, "others": 1}
    rng = np.random.default_rng(1)
    for number in (1, 5):
        picture(rng, 30, 28).save(folder / "class" / f"{number:02}.jpg", subsampling=0)
    path = folder / "class" / "04.jpg"
    data = bytearray(path.read_bytes())
    data[-8] ^= 16  # coded
    path.write_bytes(data)
    engine.spoilt |= {bytes(data)}
    wanted = expected(monkeypatch, DALIImageFolder(folder, EVALUATION))
    for _ in range(3):
        assert_alike(compared(engine, dataset), wanted)
    assert counts(engine, dataset) == ALL | {"engines": 7, "others": 1}
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 7


def test_samples_that_change_places(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    engine.spoilt = bytes_of(folder, 4)
    compared(engine, dataset)
    dataset.samples.reverse()
    wanted = expected(monkeypatch, dataset)
    for _ in range(3):
        assert_alike(compared(engine, dataset), wanted)
    assert counts(engine, dataset) == ALL | {"engines": 7, "others": 1}


def test_several_loaders(folder, engine, monkeypatch):
    """Over one data set, at once: what one of them has found out, the others know."""
    dataset = DALIImageFolder(folder, TRAIN)
    engine.spoilt = bytes_of(folder, 4)
    wanted = expected(monkeypatch, dataset, batch_size=3)
    found = []
    torch.manual_seed(3)
    options = {"shuffle": True, "exact": True, "fallback": "silent", "device": "cpu"}
    first = iter(ours(dataset, 3, num_workers=2, **options))
    found.append(next(first))
    for _ in range(2):
        list(ours(dataset, 5, num_workers=2, **options))
    assert_alike(found + list(first), wanted)
    engine.settle(60)
    assert counts(engine, dataset) == ALL | {"engines": 7, "others": 1}
    parts = data.ConcatDataset([dataset, data.Subset(dataset, [4, 5, 4])])
    engine.calls.clear()
    assert_alike(loaded(parts), expected(monkeypatch, parts))
    assert sum(engine.calls) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_goes_on(folder, engine, monkeypatch, workers):
    """From a state, in a new loader: files that were compared before it, and those that were not."""
    options = {"batch_size": 2, "num_workers": workers, "shuffle": True, "exact": True, "fallback": "silent"}
    wanted = expected(monkeypatch, DALIImageFolder(folder, TRAIN), batch_size=2, num_workers=workers)
    engine.spoilt = bytes_of(folder, 4, 5)
    dataset = DALIImageFolder(folder, TRAIN)
    torch.manual_seed(3)
    loader = ours(dataset, device="cpu", **options)
    batches = iter(loader)
    assert_alike([next(batches) for _ in range(2)], wanted[:2])
    state = loader.state_dict()
    del batches
    for again in (dataset, DALIImageFolder(folder, TRAIN)):
        loader = ours(again, device="cpu", **options)
        loader.load_state_dict(state)
        assert_alike(list(loader), wanted[2:])


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_files_beside_it(folder, engine, monkeypatch, policy):
    (folder / "class" / "07.jpg").write_bytes(b"nonsense" * 50)
    engine.spoilt = bytes_of(folder, 4)
    options = {"on_error": policy, "shuffle": False, "batch_size": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = expected(monkeypatch, DALIImageFolder(folder, TRAIN), **options)
        dataset = DALIImageFolder(folder, TRAIN)
        for _ in range(3):
            assert_alike(compared(engine, dataset, **options), wanted)
    assert counts(engine, dataset)["others"] == 1


def test_an_image_that_is_too_small_beside_it(folder, engine, monkeypatch):
    options = {"on_error": "skip", "shuffle": False, "batch_size": 4}
    dataset = DALIImageFolder(folder, T.Compose([T.RandomCrop(12), T.PILToTensor()]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = expected(monkeypatch, dataset, **options)
        assert sum(len(images) for images, _ in wanted) < 12
        for _ in range(3):
            assert_alike(compared(engine, dataset, **options), wanted)


def test_more_pixels_than_a_batch_may_bring(folder, engine, monkeypatch):
    """The rest is compared in later epochs; what is too large, never."""
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False)
    monkeypatch.setattr(verified, "_PER_BATCH", 1100)
    before = -1
    while (now := counts(engine, dataset)["engines"]) > before:
        before = now
        assert_alike(compared(engine, dataset, shuffle=False), wanted)
    assert counts(engine, dataset) == ALL
    other = DALIImageFolder(folder, EVALUATION)
    monkeypatch.setattr(verified, "MOST_PIXELS", 200)
    for _ in range(2):
        assert_alike(compared(engine, other, shuffle=False), wanted)
    found = headers_of(other).jpegs(engine.name, engine.exact, 200, 12)
    assert found.engines + found.large == 8 and found.engines > 0 < found.large and not found.waiting


def test_too_much_waits(folder, engine, monkeypatch):
    """Nobody waits for it, and nothing more is compared meanwhile."""
    held = threading.Event()
    monkeypatch.setattr(verified, "_WAITING", 5000)
    monkeypatch.setattr(Pillows, "_alike", lambda self, files, *rest: held.wait(60) and np.ones(len(files), bool))
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    for _ in range(2):
        assert_alike(loaded(dataset), wanted)
    assert counts(engine, dataset) == ALL | {"engines": 0, "waiting": 8}
    assert 0 < engine._waiting() <= 2 * 5000 and engine.room < 5000
    held.set()
    engine.settle(60)
    assert engine.room == 5000


def test_no_memory_for_planes(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    compared(engine, dataset)

    def submit(files, places):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine, "submit", submit)
    with pytest.warns(RuntimeWarning, match="no memory"):
        assert_alike(loaded(dataset), wanted)
    assert_alike(loaded(dataset), wanted)


def test_nvjpeg_has_no_memory(folder, engine, monkeypatch):
    """No file is to blame: none is said to be the CPU's for good."""
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    compared(engine, dataset)

    def result(self):
        raise EngineMemoryError("nvjpegDecodeBatched: no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Pillow, "result", result)
        with pytest.warns(RuntimeWarning, match="no memory"):
            assert_alike(loaded(dataset), wanted)
        other = DALIImageFolder(folder, EVALUATION)
        engine.given_up, engine.exact[[1, 0x11]] = "", True
        assert_alike(compared(engine, other), wanted)
    assert "no memory" in engine.given_up and counts(engine, other)["others"] == 0
    assert_alike(loaded(dataset), wanted)
    assert not engine.calls and counts(engine, dataset)["engines"] == 8


def test_kernels_fail(folder, engine, monkeypatch):
    """Those of a later plan: the first ones have worked when the engine was asked whether it is exact."""

    def called(self, planes, places):
        raise RuntimeError("no C compiler was found\nand more")

    dataset = DALIImageFolder(folder, CHAINS["views"])
    wanted = expected(monkeypatch, dataset)
    compared(engine, dataset)
    monkeypatch.setattr(planes_group.PlanesProgram, "__call__", called)
    with pytest.warns(RuntimeWarning, match="kernels failed, RuntimeError: no C compiler was found; JPEGs"):
        assert_alike(loaded(dataset), wanted)
    engine.calls.clear()
    assert_alike(loaded(dataset), wanted)
    assert not engine.calls


def test_comparing_fails(folder, engine, monkeypatch):
    def differs(self, planes, places, wanted):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Pillows, "differs", differs)
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset)
    assert_alike(compared(engine, dataset), wanted)
    assert "out of memory" in engine.given_up
    assert_alike(loaded(dataset), wanted)
    assert not engine.calls


def test_a_later_run_begins_with_what_is_known(folder, engine, monkeypatch, tmp_path):
    """With index_cache. A file that has changed meanwhile is compared anew, and another list of files is another."""

    def run():
        return DALIImageFolder(folder / "images", TRAIN, index_cache=tmp_path / "cache")

    (folder / "images").mkdir()
    (folder / "class").rename(folder / "images" / "class")
    path = folder / "images" / "class" / "04.jpg"
    engine.spoilt = {path.read_bytes()}
    first = run()
    wanted = expected(monkeypatch, first)
    for _ in range(2):  # the second keeps what the first has found out
        compared(engine, first)
    second = run()
    assert_alike(loaded(second), wanted)
    assert sum(engine.calls) == 7 and counts(engine, second) == ALL | {"engines": 7, "others": 1}
    for seed, name in enumerate(("05", "07")):
        picture(np.random.default_rng(seed), 30, 28).save(path.with_name(f"{name}.jpg"), subsampling=0)
    engine.spoilt.add(path.with_name("07.jpg").read_bytes())
    third = run()
    wanted = expected(monkeypatch, DALIImageFolder(folder / "images", TRAIN))
    for _ in range(3):
        assert_alike(compared(engine, third), wanted)
    assert counts(engine, third) == ALL | {"engines": 6, "others": 2}
    picture(np.random.default_rng(1), 30, 28).save(path.with_name("000.jpg"), subsampling=0)
    fourth = run()
    engine.calls.clear()
    assert_alike(loaded(fourth), expected(monkeypatch, fourth))
    engine.settle(60)
    assert sum(engine.calls) == 2 * 9  # to compare each twice


# ---- files that are like those which were compared


@pytest.fixture
def many(tmp_path):
    """Twenty files of one kind."""
    rng = np.random.default_rng(0)
    (tmp_path / "class").mkdir()
    for number in range(20):
        picture(rng, *rng.integers(9, 20, 2).tolist()).save(tmp_path / "class" / f"{number:02}.jpg", subsampling=0)
    return tmp_path


@pytest.fixture
def likely(many, engine, monkeypatch):
    """A data set of them, of which the first four were compared, which the engine has for enough."""
    monkeypatch.setattr(verified, "_ENOUGH", 4)
    monkeypatch.setattr(verified, "_EVERY", 2)
    dataset = DALIImageFolder(many, EVALUATION)
    compared(engine, data.Subset(dataset, range(4)), shuffle=False)
    assert counts(engine, dataset) == ALL | {"engines": 4, "unseen": 16}
    engine._chance = itertools.cycle([0, 1, 1]).__next__  # the next batch compares half of the others
    return dataset


def test_the_engine_decodes_what_is_like_them_at_first_sight(likely, engine, monkeypatch):
    wanted = expected(monkeypatch, likely, batch_size=10)
    for _ in range(3):
        assert_alike(compared(engine, likely, batch_size=10), wanted)
        found = counts(engine, likely)
        assert found["engines"] + found["likely"] == 20 and 8 < found["likely"] < 16  # of a batch half
    assert_alike(loaded(likely, batch_size=10), wanted)
    assert sum(engine.calls) == 20  # and nothing more is compared


def test_one_that_is_other_ends_it(likely, engine, monkeypatch):
    """All files are compared from then on, those that it has decoded so far, too."""
    wanted = expected(monkeypatch, likely, batch_size=20, shuffle=False)
    engine.spoilt = bytes_of(Path(likely.root), 4)
    assert_alike(compared(engine, likely, batch_size=20, shuffle=False), wanted)  # the fourth is compared among others
    found = counts(engine, likely)
    assert found["others"] == 1 and found["likely"] == 8
    assert_alike(compared(engine, likely, batch_size=20, shuffle=False), wanted)
    assert counts(engine, likely) == ALL | {"engines": 19, "others": 1}


@pytest.mark.parametrize("known", [False, True])
def test_damage_that_structure_shows_does_not_reach_it(likely, engine, monkeypatch, known):
    """At the first sight of such a file, and later."""
    if known:
        compared(engine, likely, batch_size=20, shuffle=False)
        assert counts(engine, likely)["likely"]
    path = likely.samples[19][0]
    with open(path, "rb") as file:
        damaged = bytearray(file.read())
    damaged[-40:-30] = b"\xff\xd0\xff\xc0\x00\x01\xff\xd9\x00\x00"
    with open(path, "wb") as file:
        file.write(damaged)
    options = {"on_error": "skip", "shuffle": False, "batch_size": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = expected(monkeypatch, DALIImageFolder(likely.root, EVALUATION), **options)
        for _ in range(2):
            assert_alike(compared(engine, likely, **options), wanted)


def test_one_that_it_refuses_is_found(likely, engine, monkeypatch):
    wanted = expected(monkeypatch, likely, batch_size=20, shuffle=False)
    with open(likely.samples[19][0], "rb") as file:
        engine.refuses = {file.read()}
    assert_alike(compared(engine, likely, batch_size=20, shuffle=False), wanted)
    monkeypatch.setattr(verified, "_ENOUGH", 1000)  # more than there are: they are compared one by one
    for _ in range(2):
        assert_alike(compared(engine, likely, batch_size=20, shuffle=False), wanted)
    assert counts(engine, likely) == ALL | {"engines": 19, "others": 1}


def test_one_that_changes_is_looked_at_anew(likely, engine, monkeypatch):
    compared(engine, likely, batch_size=20, shuffle=False)
    picture(np.random.default_rng(7), 30, 28).save(likely.samples[19][0], subsampling=0)
    wanted = expected(monkeypatch, DALIImageFolder(likely.root, EVALUATION), batch_size=20, shuffle=False)
    for _ in range(2):
        assert_alike(compared(engine, likely, batch_size=20, shuffle=False), wanted)


# ---- bytes, and answers


def test_damaged_bytes_do_not_reach_it(folder, engine, monkeypatch):
    """At their first sight, and when it was known to decode the file."""
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
            compared(engine, dataset, **options)
            path.write_bytes(damaged)
            found = loaded(dataset, **options)
            assert sum(engine.calls) == 7
            assert_alike(found, expected(monkeypatch, DALIImageFolder(folder, EVALUATION), **options))


@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_vanishes_is_named(folder, engine, known):
    dataset = DALIImageFolder(folder, EVALUATION)
    loader = DataLoader(dataset, 12, exact=True, device="cpu")
    list(loader)
    engine.settle(60)
    if known:
        list(loader)
    (folder / "class" / "04.jpg").unlink()
    with pytest.raises(Exception, match=r"04\.jpg"):
        list(loader)


@pytest.mark.parametrize("first", [True, False])
def test_it_does_not_answer(folder, engine, monkeypatch, first):
    """When files are to be compared, or later."""
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False, batch_size=12)
    if not first:
        compared(engine, dataset)
    engine.hangs = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert_alike(loaded(dataset, shuffle=False, batch_size=12), wanted)
            engine.settle(60)
    assert engine.calls == [8] and "has not answered" in engine.given_up


def test_many_pixels_go_in_several_groups(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, TRAIN)
    wanted = expected(monkeypatch, dataset)
    compared(engine, dataset)
    monkeypatch.setattr(planes_group, "_MOST", 3000)
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 8 and len(engine.calls) > 2


def test_planes_in_flight_are_bounded(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, TRAIN)
    options = {"batch_size": 2, "num_workers": 2, "prefetch_factor": 6}
    wanted = expected(monkeypatch, dataset, **options)
    compared(engine, dataset)
    most, submit = [], engine.submit

    def counted(files, places):
        made = submit(files, places)
        most.append(len(engine._live))
        return made

    monkeypatch.setattr(engine, "submit", counted)
    monkeypatch.setattr(planes_group, "_MOST", 1)  # an image a group
    assert_alike(loaded(dataset, **options), wanted)
    assert max(most) > 4
    most.clear()
    monkeypatch.setattr(jpeg_engine, "_IN_FLIGHT", 1)
    assert_alike(loaded(dataset, **options), wanted)
    assert max(most) <= 2  # one ahead, and the one that is asked for
