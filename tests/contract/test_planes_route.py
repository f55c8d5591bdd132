"""The way of a JPEG through a GPU's engine, with an engine that Pillow plays: who decodes which file, and what becomes
of those that change, are damaged, or that it refuses."""

import ctypes
import io
import warnings

import interpreted
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from contract.both import ours
from dali_compat import DALIImageFolder, DALIRecordIO, DataLoader, views
from dali_compat.cli import main
from dali_compat.engine.planes.engine import EngineSilent
from dali_compat.engine.planes.nvjpeg import EngineError
from dali_compat.routes.dali import DaliRoute

pytest.importorskip("triton")

TRAIN = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)])
EVALUATION = T.Compose([T.Resize(12), T.CenterCrop(8), T.ToTensor()])
CHAINS = {
    "train": TRAIN,
    "evaluation": EVALUATION,
    "jitter": T.Compose([T.RandomCrop(8), T.ColorJitter(0.4, 0.4), T.PILToTensor()]),
    "views": views(TRAIN, T.Compose([T.CenterCrop(6), T.PILToTensor()])),
    "call": T.Compose([T.Resize((9, 9)), T.Lambda(lambda image: image.rotate(90)), T.ToTensor()]),
}


@interpreted.elsewhere
def test_interpreted():
    interpreted.run(__file__)


class Pillows:
    """An engine that takes gray images and those of 4:4:4."""

    def __init__(self):
        self.exact = np.zeros(256, bool)
        self.exact[[1, 0x11]] = True
        self.calls, self.refuses, self.silent = [], set(), False

    def submit(self, files, places):
        self.calls.append(len(files.addresses))
        return Pillow(self, files, places)

    def refused(self, files, places):
        return [i for i, length in enumerate(files.lengths.tolist()) if length in self.refuses]

    def give_up(self):
        self.exact[:] = False


class Pillow:
    def __init__(self, engine, files, places):
        self.engine, self.files, self.places = engine, files, places

    def result(self):
        if self.engine.silent:
            raise EngineSilent
        made = np.full(int(self.places.bytes.sum()), 77, np.uint8)
        pairs = zip(self.files.addresses.tolist(), self.files.lengths.tolist(), strict=True)
        for i, (address, length) in enumerate(pairs):
            if length in self.engine.refuses:
                raise EngineError("not supported")
            self._decode(i, ctypes.string_at(address, length), made)
        return torch.from_numpy(made)

    def _decode(self, i, file, made):
        with Image.open(io.BytesIO(file)) as image:
            image.draft("YCbCr", image.size)
            pixels = np.array(image).reshape(image.height, image.width, -1)
        for c in range(pixels.shape[2]):
            begin, pitch = self.places.offsets[i, c], self.places.pitches[i, c]
            height, width = pixels.shape[:2]
            assert (height, width) == tuple(self.places.sizes[i])  # or it would write beyond what is its
            made[begin : begin + height * pitch].reshape(height, pitch)[:, :width] = pixels[:, :, c]

    def cancel(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    made = Pillows()
    monkeypatch.setattr(DaliRoute, "jpeg_engine", lambda self: made)
    return made


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


@interpreted.runs_interpreted
@pytest.mark.parametrize("name", CHAINS)
def test_pixels_and_places(folder, engine, monkeypatch, name):
    dataset = DALIImageFolder(folder, CHAINS[name])
    wanted = expected(monkeypatch, dataset)
    assert not engine.calls
    for _ in range(2):
        assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 16


@interpreted.runs_interpreted
def test_records(folder, engine, monkeypatch, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed") / "train.rec"
    assert main(["pack", str(folder), str(packed)]) == 0
    dataset = DALIRecordIO(packed, TRAIN)
    wanted = expected(monkeypatch, dataset)
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 8


@interpreted.runs_interpreted
def test_a_file_that_grows(folder, engine, monkeypatch):
    """What room was made for is not what the file has now."""
    dataset = DALIImageFolder(folder, EVALUATION)
    loader = DataLoader(dataset, 12, exact=True, device="cpu")
    list(loader)
    picture(np.random.default_rng(1), 90, 80).save(folder / "class" / "01.jpg", subsampling=0)
    assert_alike(list(loader), expected(monkeypatch, DALIImageFolder(folder, EVALUATION), shuffle=False, batch_size=12))
    assert engine.calls == [8, 7]


@interpreted.runs_interpreted
def test_damaged_bytes_do_not_reach_it(folder, engine, monkeypatch):
    path = folder / "class" / "02.jpg"
    data = bytearray(path.read_bytes())
    data[-40:-30] = b"\xff\xd0\xff\xc0\x00\x01\xff\xd9\x00\x00"
    path.write_bytes(data)
    options = {"on_error": "skip", "shuffle": False, "batch_size": 12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = loaded(DALIImageFolder(folder, EVALUATION), **options)
        assert engine.calls == [7]
        assert_alike(found, expected(monkeypatch, DALIImageFolder(folder, EVALUATION), **options))


@interpreted.runs_interpreted
def test_a_file_that_vanishes_is_named(folder, engine):
    loader = DataLoader(DALIImageFolder(folder, EVALUATION), 12, exact=True, device="cpu")
    list(loader)
    (folder / "class" / "04.jpg").unlink()
    with pytest.raises(Exception, match=r"04\.jpg"):
        list(loader)


@interpreted.runs_interpreted
def test_what_it_refuses_is_decoded_as_before(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False, batch_size=12)
    engine.refuses = {(folder / "class" / "04.jpg").stat().st_size}
    loader = DataLoader(dataset, 12, exact=True, device="cpu")
    for _ in range(2):
        assert_alike(list(loader), wanted)
    assert engine.calls == [8, 7]


@interpreted.runs_interpreted
def test_it_does_not_answer(folder, engine, monkeypatch):
    dataset = DALIImageFolder(folder, EVALUATION)
    wanted = expected(monkeypatch, dataset, shuffle=False, batch_size=12)
    engine.silent = True
    loader = DataLoader(dataset, 12, exact=True, device="cpu")
    for _ in range(2):
        assert_alike(list(loader), wanted)
    assert engine.calls == [8]


@interpreted.runs_interpreted
def test_many_pixels_go_in_several_groups(folder, engine, monkeypatch):
    from dali_compat.epoch import planes_group

    dataset = DALIImageFolder(folder, TRAIN)
    wanted = expected(monkeypatch, dataset)
    monkeypatch.setattr(planes_group, "_MOST", 3000)
    assert_alike(loaded(dataset), wanted)
    assert sum(engine.calls) == 8 and len(engine.calls) > 2
