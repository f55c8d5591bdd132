"""A GPU's JPEG engine gives Pillow's pixels; files that it refuses or decodes differently take the usual path."""

import contextlib
import gc
import io
import os

import numpy as np
import pytest
import torch
from helpers import each_of
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms as T
from torchvision.transforms import v2

from contract.both import ours
from dali_compat import DALIImageFolder, DALIRecordIO, DataLoader, views
from dali_compat.cli import main
from dali_compat.data.header import read_header
from dali_compat.data.headers import headers_of
from dali_compat.data.verdicts import BY_ENGINE
from dali_compat.engine.planes import engines, nvjpeg, verified
from dali_compat.engine.planes.engine import Decoder
from dali_compat.engine.planes.nvjpeg import EngineError, Nvjpeg

pytestmark = pytest.mark.gpu

NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE])
CHAINS = {
    "train": TRAIN,
    "bicubic": T.Compose([T.RandomResizedCrop((30, 20), interpolation=T.InterpolationMode.BICUBIC), T.PILToTensor()]),
    "evaluation": T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), NORMALIZE]),
    "squeezed": T.Compose([T.Resize((17, 65)), T.RandomVerticalFlip(), T.ToTensor()]),
    "beyond": T.Compose([T.Resize(20), T.CenterCrop(32), T.PILToTensor()]),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(24, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
    ),
    "half": v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "jitter": T.Compose([T.RandomResizedCrop(24), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.ToTensor()]),
    "policy": T.Compose([T.RandomResizedCrop(24), T.TrivialAugmentWide(), T.ToTensor(), T.RandomErasing(1.0)]),
    "turned": T.Compose([T.RandomRotation(20), T.RandomResizedCrop(24), T.ToTensor()]),
    "views": views(TRAIN, T.Compose([T.CenterCrop(16), T.PILToTensor()])),
}


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", "1")
    found = engines.engine_of(torch.device("cuda", torch.cuda.current_device()))
    if isinstance(found, str):
        pytest.skip(f"this GPU's engine is not used: {found}")
    monkeypatch.setattr(verified, "_ENOUGH", 10**9)  # compare every file
    yield found
    found.wait_for_comparisons(60)  # before the next test counts its calls


@pytest.fixture
def decoded(engine, monkeypatch):
    """List of the number of files in each call of the engine."""
    counts, decode = [], Decoder.decode

    def counted(self, files, *args):
        counts.append(len(files))
        decode(self, files, *args)

    monkeypatch.setattr(Decoder, "decode", counted)
    return counts


class SpoiltDecoding:
    """A decoding that changes one value, the last one, of each spoilt file."""

    def __init__(self, engine, files, places, spoilt):
        self._files, self._places, self._spoilt = files, places, spoilt
        self._decoding = engine(self, places)
        self.cancel = self._decoding.cancel

    def checked(self):
        files, chosen = self._files.checked()
        self._wrong = [i for i, array in enumerate(each_of(files)) if array.tobytes() in self._spoilt]
        return files, chosen

    def result(self):
        planes = self._decoding.result()
        self.chosen = self._decoding.chosen
        places = self._places if len(self.chosen) == len(self._places.bytes) else self._places.only(self.chosen)
        for i in self._wrong:
            (height, width), pitch = places.sizes[i], places.pitches[i, 0]
            planes[int(places.offsets[i, 0] + (height - 1) * pitch + width - 1)] ^= 1
        return planes


@pytest.fixture
def spoilt(engine, monkeypatch):
    """Set of file contents that the engine decodes with a wrong pixel."""
    files_spoilt, submit = set(), engine.submit
    monkeypatch.setattr(engine, "submit", lambda files, places: SpoiltDecoding(submit, files, places, files_spoilt))
    return files_spoilt


def run_epoch_and_compare(engine, loader):
    """Return the batches of an epoch after all pending comparisons are complete."""
    batches = list(loader)
    engine.wait_for_comparisons(60)
    return batches


def count_verified(engine, dataset):
    """Return the number of files verified to decode to Pillow's pixels."""
    return int((headers_of(dataset).verdicts(engine.name).decoders(len(dataset)) == BY_ENGINE).sum())


def loaded(dataset, device, **options):
    torch.manual_seed(3)
    options = {"batch_size": 8, "shuffle": True, "num_workers": 2, "exact": True} | options
    return list(ours(dataset, device=device, **options))


def assert_equal_trees(found, expected):
    """Check that nested lists of tensors are equal."""
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected.cpu())
        return
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_equal_trees(one, other)


def picture(rng, height, width):
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def write(folder, images, **how):
    """Save each (name, image, options) in one class folder."""
    (folder / "class").mkdir(parents=True, exist_ok=True)
    for name, image, more in images:
        image.save(folder / "class" / name, **{**how, **more})
    return folder


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """Folder of JPEGs of all sizes and samplings, with some files that the engine refuses."""
    rng, images = np.random.default_rng(1), []
    for number in range(120):
        image = picture(rng, *rng.integers(1, 71, 2).tolist())
        how = {"quality": int(rng.integers(1, 101)), "subsampling": int(rng.integers(0, 3))}
        how["optimize"] = bool(rng.integers(0, 2))
        if number % 3 == 0:
            how["restart_marker_blocks"] = int(rng.integers(1, 5))
        if number % 7 == 0:
            image = image.convert("L")
        images.append((f"{number:03}.jpg", image, how))
    others = {"progressive.jpg": {"progressive": True}, "x.png": {}, "y.bmp": {}}
    images += [(name, picture(rng, 50, 60), how) for name, how in others.items()]
    images += [("cmyk.jpg", picture(rng, 50, 60).convert("CMYK"), {})]
    return write(tmp_path_factory.mktemp("varied"), images)


@pytest.mark.parametrize("name", CHAINS)
def test_exact_batches_equal_the_cpus(varied, engine, decoded, name):
    dataset = DALIImageFolder(varied, CHAINS[name])
    expected = loaded(dataset, "cpu")
    assert_equal_trees(loaded(dataset, "cuda"), expected)
    engine.wait_for_comparisons(60)
    decoded.clear()
    assert_equal_trees(loaded(dataset, "cuda"), expected)
    found = count_verified(engine, dataset)
    assert sum(decoded) == found > 60


@pytest.mark.parametrize("name", ["train", "evaluation", "views"])
def test_batches_of_photos_equal_the_cpus(photos_or_images, engine, decoded, name):
    dataset = DALIImageFolder(photos_or_images, CHAINS[name])
    expected = loaded(dataset, "cpu")
    for _ in range(2):
        decoded.clear()
        assert_equal_trees(loaded(dataset, "cuda", memory_format=torch.channels_last), expected)
        engine.wait_for_comparisons(60)
    assert decoded


def test_files_of_a_verified_kind_are_decoded_at_first_sight(varied, engine, decoded, monkeypatch):
    """Only a few of them are compared."""
    dataset = DALIImageFolder(varied, CHAINS["train"])
    expected = loaded(dataset, "cpu", shuffle=False)
    engine.compare_again(np.arange(256))
    monkeypatch.setattr(verified, "_ENOUGH", 8)
    monkeypatch.setattr(engine, "_chance", lambda: 1.0)  # compare none of them
    loaded(Subset(dataset, range(60)), "cuda")
    engine.wait_for_comparisons(60)
    for _ in range(2):
        assert_equal_trees(loaded(dataset, "cuda", shuffle=False), expected)
        engine.wait_for_comparisons(60)
    found = headers_of(dataset).jpegs(engine.name, engine.exact, 10**6, len(dataset))
    assert found.engines >= 40 and found.likely >= 30 and found.others == 0


def test_common_samplings_of_the_engine_are_verified(engine):
    taken = [chroma for chroma in (1, 0x11, 0x21, 0x22, 0x12) if engine.exact[chroma]]
    assert 0x22 in taken and 0x11 in taken and not engine.exact[0]


def test_windows_at_any_offset_equal_the_cpus(tmp_path, engine, decoded):
    rng = np.random.default_rng(2)
    names = [(f"{i}{s}.jpg", picture(rng, 79, 77), {"subsampling": s}) for s in (0, 1, 2) for i in range(100)]
    folder = write(tmp_path, names)  # 64 offsets of a window in either direction
    dataset = DALIImageFolder(folder, T.Compose([T.RandomCrop(14), T.PILToTensor()]))
    expected = loaded(dataset, "cpu", batch_size=100)
    for calls in (6, 3):  # comparing decodes twice
        decoded.clear()
        assert_equal_trees(loaded(dataset, "cuda", batch_size=100), expected)
        engine.wait_for_comparisons(60)
        assert decoded == [100] * calls


def test_large_images_among_small_ones_are_decoded_in_several_calls(tmp_path, engine, decoded, monkeypatch):
    from dali_compat.epoch import planes_group

    monkeypatch.setattr(planes_group, "_MOST", 2**22)
    rng = np.random.default_rng(3)
    sizes = [(40, 50), (3000, 2000), (64, 64), (1500, 2500), (9, 9)]
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, *size), {}) for i, size in enumerate(sizes)])
    dataset = DALIImageFolder(folder, CHAINS["train"])
    expected = loaded(dataset, "cpu")
    for _ in range(2):
        decoded.clear()
        assert_equal_trees(loaded(dataset, "cuda"), expected)
        engine.wait_for_comparisons(60)
    assert len(decoded) > 1 and sum(decoded) == 5


def test_images_with_long_sides_are_decoded_in_small_calls(tmp_path, engine, monkeypatch):
    rng, counts, decode = np.random.default_rng(3), [], Nvjpeg.decode

    def counted(self, files, *others):
        counts.append(len(files))
        return decode(self, files, *others)

    monkeypatch.setattr(nvjpeg, "_ROOM", 3 * 1400**2)
    monkeypatch.setattr(Nvjpeg, "decode", counted)
    sizes = [(40, 50), (1400, 900), (64, 64), (1100, 1390), (9, 9), (1030, 30), (1200, 1200), (300, 1040)]
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, *size), {}) for i, size in enumerate(sizes)])
    dataset = DALIImageFolder(folder, CHAINS["train"])
    expected = loaded(dataset, "cpu")
    for calls in (4, 2):  # comparing decodes twice
        counts.clear()
        assert_equal_trees(loaded(dataset, "cuda"), expected)
        engine.wait_for_comparisons(60)
        assert len(counts) == calls and sum(counts) == 4 * calls


def test_wrong_pixels_never_reach_a_batch(tmp_path, engine, spoilt, decoded):
    """The wrong pixel is the last of a file, outside the windows of the first epoch."""
    rng = np.random.default_rng(8)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 60, 70), {"subsampling": i % 3}) for i in range(8)])
    spoilt |= {(folder / "class" / f"{i}.jpg").read_bytes() for i in (2, 5)}
    dataset = DALIImageFolder(folder, T.Compose([T.CenterCrop(20), T.PILToTensor()]))
    assert_equal_trees(loaded(dataset, "cuda"), loaded(dataset, "cpu"))
    engine.wait_for_comparisons(60)
    dataset.transform = T.Compose([T.Resize((60, 70)), T.PILToTensor()])
    expected = loaded(dataset, "cpu")
    decoded.clear()
    for _ in range(2):
        assert_equal_trees(loaded(dataset, "cuda"), expected)
    assert decoded == [6, 6]


def test_a_wrong_pixel_reaches_the_batch_without_comparison(tmp_path, engine, spoilt, monkeypatch):
    """Verify the spoilt fixture with the comparison disabled."""
    monkeypatch.setattr(engine, "differs", lambda planes, places, wanted: np.zeros(len(places.sizes), bool))
    rng = np.random.default_rng(8)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 60, 70), {"subsampling": i % 3}) for i in range(8)])
    spoilt.add((folder / "class" / "2.jpg").read_bytes())
    dataset = DALIImageFolder(folder, T.Compose([T.Resize((60, 70)), T.PILToTensor()]))
    loader = DataLoader(dataset, 8, exact=True, device="cuda")
    ((first, _),) = run_epoch_and_compare(engine, loader)
    ((second, _),) = loader
    assert [i for i in range(8) if not torch.equal(first[i], second[i])] == [2]


def test_explain_counts_verified_and_refused_files(tmp_path, engine, spoilt):
    rng = np.random.default_rng(8)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 60, 70), {}) for i in range(8)])
    spoilt.add((folder / "class" / "2.jpg").read_bytes())
    loader = DataLoader(DALIImageFolder(folder, TRAIN), 8, exact=True, device="cuda")
    assert (
        "the JPEG engine decodes 0 files" in loader.explain() and "8 files have not been compared" in loader.explain()
    )
    run_epoch_and_compare(engine, loader)
    assert "the JPEG engine decodes 7 files" in loader.explain() and "does not decode 1 whose" in loader.explain()


def test_a_resumed_epoch_equals_the_cpus(varied, engine, spoilt):
    """A new loader resumes from a state, with files compared before it and files not yet compared."""
    dataset = DALIImageFolder(varied, TRAIN)
    spoilt |= {path.read_bytes() for path in (varied / "class").glob("00*.jpg")}
    expected = loaded(dataset, "cpu")
    options = {"batch_size": 8, "shuffle": True, "num_workers": 2, "exact": True, "device": "cuda"}
    torch.manual_seed(3)
    loader = ours(dataset, **options)
    batches = iter(loader)
    assert_equal_trees([next(batches) for _ in range(5)], expected[:5])
    state = loader.state_dict()
    del batches
    engine.wait_for_comparisons(60)
    for again in (dataset, DALIImageFolder(varied, TRAIN)):
        loader = ours(again, **options)
        loader.load_state_dict(state)
        assert_equal_trees(list(loader), expected[5:])


def other_coded_data(data: bytes) -> bytes:
    """Return a copy of a JPEG with one flipped bit, decoded by Pillow to other pixels."""
    before = np.asarray(Image.open(io.BytesIO(data)))
    for place in range(len(data) - 30, len(data) // 2, -1):
        made = bytearray(data)
        made[place] ^= 16
        with contextlib.suppress(OSError):
            if not np.array_equal(np.asarray(Image.open(io.BytesIO(made))), before):
                return bytes(made)
    raise AssertionError("Pillow refuses them all")


def test_a_changed_file_is_read_anew(tmp_path, engine, decoded):
    """One file changes its size, which determined the allocated memory; another only its coded data."""
    rng = np.random.default_rng(4)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 50, 60), {}) for i in range(8)])
    dataset = DALIImageFolder(folder, CHAINS["evaluation"])
    loader = DataLoader(dataset, 8, exact=True, device="cuda")
    run_epoch_and_compare(engine, loader)
    picture(rng, 500, 640).save(folder / "class" / "3.jpg")
    path = folder / "class" / "5.jpg"
    path.write_bytes(other_coded_data(path.read_bytes()))
    expected = loaded(DALIImageFolder(folder, CHAINS["evaluation"]), "cpu", shuffle=False)
    decoded.clear()
    assert_equal_trees(run_epoch_and_compare(engine, loader), expected)
    assert decoded == [6]
    for _ in range(2):
        assert_equal_trees(run_epoch_and_compare(engine, loader), expected)


def test_a_damaged_file_is_skipped_as_on_the_cpu(tmp_path, engine, decoded):
    rng = np.random.default_rng(5)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 90, 80), {}) for i in range(8)])
    path = folder / "class" / "2.jpg"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 9] = b"\xff\xd0\xff\xc0\x00\x01\xff\xd9\x00"
    path.write_bytes(data)
    loader = DataLoader(DALIImageFolder(folder, CHAINS["evaluation"]), 8, exact=True, device="cuda", on_error="skip")
    expected = loaded(DALIImageFolder(folder, CHAINS["evaluation"]), "cpu", shuffle=False, on_error="skip")
    for calls in (2, 1):
        decoded.clear()
        ((images, _),) = run_epoch_and_compare(engine, loader)
        assert_equal_trees(images, expected[0][0])
        assert decoded == [7] * calls


def test_files_that_the_engine_refuses_are_decoded_otherwise(tmp_path, engine, decoded, monkeypatch):
    """The engine refuses one file at first sight and another one later."""
    rng = np.random.default_rng(6)
    folder = write(tmp_path, [(f"{i}.jpg", picture(rng, 50 + i, 60), {}) for i in range(8)])
    refused, decode = [(folder / "class" / "5.jpg").stat().st_size], Nvjpeg.decode

    def refusing(self, files, lengths, *others):
        if set(refused) & set(lengths.tolist()):
            raise EngineError("nvjpegDecodeBatched failed: not supported")
        decode(self, files, lengths, *others)

    monkeypatch.setattr(Nvjpeg, "decode", refusing)
    dataset = DALIImageFolder(folder, CHAINS["evaluation"])
    loader = DataLoader(dataset, 8, exact=True, device="cuda")
    expected = loaded(dataset, "cpu", shuffle=False)
    assert_equal_trees(run_epoch_and_compare(engine, loader), expected)
    assert decoded[0] == 8
    decoded.clear()
    assert_equal_trees(run_epoch_and_compare(engine, loader), expected)
    assert decoded == [7]
    refused.append((folder / "class" / "2.jpg").stat().st_size)
    for _ in range(2):  # the call fails; the seven files are compared again
        assert_equal_trees(run_epoch_and_compare(engine, loader), expected)
    decoded.clear()
    assert_equal_trees(list(loader), expected)
    assert decoded == [6]


def test_the_engine_is_not_used_when_disabled(varied, monkeypatch, decoded):
    monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", "0")
    dataset = DALIImageFolder(varied, CHAINS["train"])
    for _ in range(2):
        assert_equal_trees(loaded(dataset, "cuda"), loaded(dataset, "cpu"))
    assert not decoded


def test_files_in_an_archive_are_decoded_by_the_engine(varied, engine, decoded, tmp_path):
    assert main(["pack", str(varied), str(tmp_path / "train.rec")]) == 0
    dataset = DALIRecordIO(tmp_path / "train.rec", CHAINS["train"])
    expected = loaded(dataset, "cpu")
    for _ in range(2):
        decoded.clear()
        assert_equal_trees(loaded(dataset, "cuda"), expected)
        engine.wait_for_comparisons(60)
    assert sum(decoded) == count_verified(engine, dataset) > 60


def test_generated_440_jpegs_are_440_for_pillow():
    """These JPEGs are generated for the comparison."""
    *_, upright = engines.generated_jpegs()
    for file in upright:
        header = read_header(file)
        with Image.open(io.BytesIO(file.tobytes())) as image:
            assert image.layer[0][1:3] == (1, 2) and image.size == (header.width, header.height)
            image.load()
        assert header.chroma == 0x12


def test_concurrent_loaders_and_abandoned_epochs_equal_the_cpus(varied, engine):
    dataset = DALIImageFolder(varied, CHAINS["train"])
    expected = loaded(dataset, "cpu")
    torch.manual_seed(3)
    first = iter(ours(dataset, device="cuda", exact=True, batch_size=8, shuffle=True, num_workers=2))
    got = [next(first)]
    for _ in range(3):
        other = iter(ours(dataset, device="cuda", exact=True, batch_size=5))
        next(other)
        got.append(next(first))
    assert_equal_trees(got, expected[:4])
    del first, other
    assert_equal_trees(loaded(dataset, "cuda"), expected)


def test_a_forked_child_exits_without_freeing_the_engine(varied, engine):
    dataset = DALIImageFolder(varied, CHAINS["train"])
    batches = iter(ours(dataset, device="cuda", exact=True, batch_size=8, num_workers=2))
    next(batches)
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    next(batches)
