"""JPEGs of all kinds with exact=True and a JPEG engine have torchvision's pixels.

A GPU's engine decodes thousands of files. Without a GPU, a few files are decoded in Python and Triton's interpreter
runs the kernels.
"""

import io
import random
import threading

import baseline
import interpreted
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms as T
from unit.test_planes import some_chain

from contract.jpeg_kinds import ACROSS, BOTH, DOWN, FOUR, FULL, GRAY, MARKERS, SAMPLINGS, Kind, kinds, make_jpeg
from contract.test_planes_route import PillowDecoding, PillowEngine
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.data.header import GRAY_JPEG, read_header
from dali_compat.data.headers import headers_of
from dali_compat.data.verdicts import BY_ENGINE
from dali_compat.engine.planes import engines, verified
from dali_compat.engine.planes.geometry import pixels_of, planes_of, whole_rows_of
from dali_compat.engine.planes.nvjpeg import EngineError
from dali_compat.routes.dali import DaliRoute

pytest.importorskip("triton")
runs = interpreted.runs
COUNT, MOST = (4200, 70) if interpreted.ON_GPU else (24, 36)  # number of files, and their largest side in pixels
DEVICE = "cuda" if interpreted.ON_GPU else "cpu"
WHOLE = T.Compose([T.CenterCrop(MOST + 2), T.PILToTensor()])  # with a black border
CHROMA = {GRAY: GRAY_JPEG, FULL: 0x11, ACROSS: 0x21, BOTH: 0x22, DOWN: 0x12, FOUR: 0}


class PythonEngine(PillowEngine):
    """An engine in Python for baseline JPEGs of every sampling that a GPU's engine may decode."""

    def __init__(self):
        super().__init__()
        self.exact[[chroma for chroma in CHROMA.values() if chroma]] = True

    def decoding(self, files, places):
        return PythonDecoding(self, files, places)


class PythonDecoding(PillowDecoding):
    def _decode(self, i, file, made):
        try:
            planes = baseline.planes_of(file)
        except (ValueError, KeyError, IndexError) as error:
            raise EngineError("a bad JPEG") from error
        assert planes[0].shape == tuple(self.places.sizes[i])
        for c, plane in enumerate(planes):
            begin, pitch = self.places.offsets[i, c], self.places.pitches[i, c]
            height, width = plane.shape
            made[begin : begin + height * pitch].reshape(height, pitch)[:, :width] = plane


def run_kernels_one_at_a_time(monkeypatch):
    """Serialise the kernels, because the interpreter is not thread-safe."""
    from dali_compat.engine.planes import kernels

    lock = threading.Lock()

    def locked(function):
        def called(*args):
            with lock:
                return function(*args)

        return called

    monkeypatch.setattr(kernels, "_BLOCK", 2048)  # fewer programs for the interpreter
    for name in ("render", "differs"):
        monkeypatch.setattr(kernels, name, locked(getattr(kernels, name)))


@pytest.fixture
def engine(monkeypatch):
    if interpreted.ON_GPU:
        monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", "1")
        found = engines.engine_of(torch.device("cuda", torch.cuda.current_device()))
        if isinstance(found, str):
            pytest.skip(f"this GPU's engine is not used: {found}")
    else:
        run_kernels_one_at_a_time(monkeypatch)
        found = PythonEngine()
        monkeypatch.setattr(DaliRoute, "jpeg_engine", lambda self: found)
    monkeypatch.setattr(verified, "_ENOUGH", 10**9)  # compare every file
    yield found
    found.wait_for_comparisons(100)


def write_folder(root, files):
    """Write {name: bytes} into one class folder."""
    (root / "class").mkdir(parents=True)
    for name, data in files.items():
        (root / "class" / name).write_bytes(data)
    return root


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """(folder, Kind of each file)."""
    rng, chosen = np.random.default_rng(1), kinds(COUNT, most=MOST)
    files = {f"{number:04}.jpg": make_jpeg(kind, rng) for number, kind in enumerate(chosen)}
    return write_folder(tmp_path_factory.mktemp("varied"), files), chosen


def images_of(samples):
    return [image for image, _ in samples]


def loaded(dataset, device=DEVICE, **options):
    """Return the images of an epoch under a fixed seed."""
    torch.manual_seed(5)
    options = {"batch_size": 12 if device == "cpu" else 200, "num_workers": 2, "exact": True} | options
    loader = DataLoader(dataset, device=device, fallback="error", collate_fn=images_of, **options)
    return [image.cpu() for batch in loader for image in batch]


def equal_lists(found, wanted):
    assert len(found) == len(wanted) > 0
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def torchvision_images(dataset):
    return [dataset[i][0] for i in range(len(dataset))]


def is_decoded_by_engine(engine, dataset):
    """Return an (N,) bool array of the files that the engine decodes from now on."""
    engine.wait_for_comparisons(100)
    return headers_of(dataset).verdicts(engine.name).decoders(len(dataset)) == BY_ENGINE


def test_generated_files_are_of_their_kinds():
    """Compare Pillow's and our headers with the kinds, and check that each value occurs."""
    rng, chosen = np.random.default_rng(0), kinds(600)
    for kind in chosen:
        data = make_jpeg(kind, rng)
        header = read_header(np.frombuffer(data, np.uint8))
        assert (header.height, header.width, header.chroma) == (kind.height, kind.width, CHROMA[kind.sampling])
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert image.size == (kind.width, kind.height) and image.mode == ("L" if kind.sampling == GRAY else "RGB")
            assert image.getexif().get(274, 0) == kind.orientation
            assert ("adobe" in image.info) is ("Adobe" in kind.markers)
            assert ("jfif" in image.info) is (kind.markers in ("JFIF", "Adobe"))
            steps = 8 * image.layer[0][1], 8 * image.layer[0][2]
            assert kind.sampling == GRAY or steps == SAMPLINGS[kind.sampling]
        assert (b"\xff\xdd" in data) is (kind.restart > 0) or kind.restart == 0
    for name in SAMPLINGS:
        mine = [kind for kind in chosen if kind.sampling == name]
        assert {kind.height for kind in mine} == {kind.width for kind in mine} == set(range(1, 71))
        assert {kind.quality for kind in mine} == set(range(1, 101))
        assert {kind.orientation for kind in mine} == set(range(9)) and {kind.markers for kind in mine} == set(MARKERS)


@runs
def test_planes_of_real_files_are_pillows_pixels(monkeypatch):
    """Planes are decoded in Python; the kernels upsample and convert colours as Pillow's libjpeg."""
    from dali_compat.engine.planes import kernels

    rng, chosen = (
        np.random.default_rng(2),
        [kind for kind in kinds(1200 if interpreted.ON_GPU else 60) if kind.sampling != FOUR],
    )
    files = [make_jpeg(kind, rng) for kind in chosen]
    sizes = np.array([(kind.height, kind.width) for kind in chosen])
    places = planes_of(sizes, *pixels_of(np.array([CHROMA[kind.sampling] for kind in chosen])))
    bytes_, wanted = np.zeros(int(places.bytes.sum()), np.uint8), []
    for i, file in enumerate(files):
        for plane, begin, pitch in zip(baseline.planes_of(file), places.offsets[i], places.pitches[i], strict=False):
            high, wide = plane.shape
            bytes_[begin : begin + high * pitch].reshape(high, pitch)[:, :wide] = plane
        with Image.open(io.BytesIO(file)) as image:
            wanted.append(torch.from_numpy(np.array(image.convert("RGB"))).reshape(-1))
    if not interpreted.ON_GPU:
        monkeypatch.setattr(kernels, "_BLOCK", 4096)  # fewer programs for the interpreter
    rows, layout = whole_rows_of(places)
    planes, rows = torch.from_numpy(bytes_).to(DEVICE), torch.from_numpy(rows).to(DEVICE)
    found = kernels.differs(planes, rows, layout, torch.cat(wanted).to(DEVICE)).tolist()
    assert [kind for kind, other in zip(chosen, found, strict=True) if other] == []
    wanted[7][5] ^= 1
    assert kernels.differs(planes, rows, layout, torch.cat(wanted).to(DEVICE)).nonzero().tolist() == [[7]]


@runs
def test_every_kind_of_jpeg_equals_torchvisions(varied, engine):
    """Compare all pixels, before and after verification; then the engine decodes nearly all files that it supports."""
    folder, chosen = varied
    dataset = DALIImageFolder(folder, WHOLE)
    expected = torchvision_images(dataset)
    for _ in range(2):
        assert equal_lists(loaded(dataset), expected)
        own = is_decoded_by_engine(engine, dataset)
    for name, chroma in CHROMA.items():
        mine = own[[kind.sampling == name for kind in chosen]]
        assert mine.mean() >= 0.9 if chroma and engine.exact[chroma] else not mine.any(), (name, mine.mean())


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [FULL, ACROSS, BOTH, DOWN])
def test_windows_at_every_offset_equal_torchvisions(tmp_path, engine, sampling):
    """Offsets are modulo 16 in both directions, by center crops of growing images. unit/test_planes.py tests planes."""
    rng, side = np.random.default_rng(3), 14
    offsets = [(y, x) for y in range(16) for x in range(16)]
    sizes = {f"{y:02}{x:02}.jpg": Kind(sampling, side + 2 * y, side + 2 * x) for y, x in offsets}
    folder = write_folder(tmp_path, {name: make_jpeg(kind, rng) for name, kind in sizes.items()})
    dataset = DALIImageFolder(folder, T.Compose([T.CenterCrop(side), T.PILToTensor()]))
    expected = torchvision_images(dataset)
    for _ in range(2):
        assert equal_lists(loaded(dataset), expected)
        own = is_decoded_by_engine(engine, dataset)
    assert own.all()


@runs
@pytest.mark.parametrize("seed", range(10 if interpreted.ON_GPU else 1))
def test_random_chains_equal_the_cpus(varied, engine, monkeypatch, seed):
    """Chains have crops, sizes, flips, conversions and further transforms; files come in another order."""
    folder, chosen = varied
    large = [i for i, kind in enumerate(chosen) if kind.height > 3 and kind.width > 2]  # crops do not pad
    large = large[: 600 if interpreted.ON_GPU else 200]
    dataset = DALIImageFolder(folder, some_chain(random.Random(seed), seed))
    some = Subset(dataset, large)
    with monkeypatch.context() as patch:
        patch.setattr(DaliRoute, "jpeg_engine", lambda self: None)
        expected = loaded(some, "cpu", shuffle=True)
    for _ in range(2):
        assert equal_lists(loaded(some, shuffle=True), expected), dataset.transform
        own = is_decoded_by_engine(engine, dataset)[large]
    assert own.mean() > 0.7


@pytest.mark.gpu
def test_large_photos_among_small_ones_need_bounded_memory(tmp_path, engine):
    """Each batch has about three images of 6,000 x 4,000 pixels."""
    rng = np.random.default_rng(4)
    small = [Kind(BOTH, *rng.integers(30, 300, 2).tolist()) for _ in range(120)]
    files = {f"{number:03}.jpg": make_jpeg(kind, rng) for number, kind in enumerate(small)}
    large = make_jpeg(Kind(BOTH, 4000, 6000), rng)
    files |= {f"{number}5.jpg": large for number in range(12)}  # between the small ones
    chain = T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToTensor()])
    dataset = DALIImageFolder(write_folder(tmp_path, files), chain)
    expected = loaded(dataset, "cpu", shuffle=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        assert equal_lists(loaded(dataset, shuffle=True, batch_size=33), expected)
        own = is_decoded_by_engine(engine, dataset)
    assert own.all() and torch.cuda.max_memory_allocated() - before < 4 * 2**30
