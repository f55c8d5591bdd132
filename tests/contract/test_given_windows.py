"""Data sets of the user's that choose a window of each image themselves."""

import io
import random
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from contract import own_datasets as own
from contract.both import error_of, ours, stock
from contract.test_odd_datasets import assert_as_torch, of
from contract.test_own_datasets import assert_same, real
from dali_compat.engine.dali import pipeline
from dali_compat.tracing import trial

TENSOR = T.ToTensor()


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


def _by_box(self, i):
    image = own.read_rgb(self.paths[i])
    left, top = i % 3, i % 5
    return TENSOR(image.crop((left, top, left + 8, top + 9))), i


def _by_functional(self, i):
    image = own.read_rgb(self.paths[i])
    top, left, height, width = T.RandomCrop.get_params(image, (10, 11))
    crop = F.crop(image, top, left, height, width)
    if random.random() < 0.5:
        crop = F.hflip(crop)
    return F.normalize(F.to_tensor(crop), (0.5,) * 3, (0.25,) * 3), top, left


def _resized(self, i):
    image = own.read_rgb(self.paths[i])
    window = T.RandomResizedCrop.get_params(image, (0.2, 1.0), (0.75, 1.3))
    return TENSOR(F.resized_crop(image, *window, (7, 8), T.InterpolationMode.BICUBIC)), window[0]


def _by_v2(self, i):
    image = own.read_rgb(self.paths[i])
    width, height = image.size
    window = int(np.random.randint(0, height - 6)), np.random.randint(0, width - 6), 6, 6
    return TENSOR(v2.functional.crop(image, *window)), window[1]


def _of_fractions(self, i):
    image = own.read_rgb(self.paths[i])
    width, height = image.size
    return TENSOR(image.crop((width * 0.1, height * 0.2, width * 0.9, height * 0.8)).resize((9, 9))), i


def _of_any_size(self, i):
    return TENSOR(own.read_rgb(self.paths[i]).crop((1, 2, 7 + i % 4, 8 + i % 5))), i


def _twice(self, i):
    """Patches of several scales, windows of windows, and random transforms between them."""
    image = own.read_rgb(self.paths[i])
    outer = image.crop((i % 2, 1, i % 2 + 10, 11))
    small = T.RandomHorizontalFlip(1.0)(outer).crop((i % 4, i % 3, i % 4 + 5, i % 3 + 5))
    return TENSOR(small), TENSOR(outer.resize((4, 4))), TENSOR(image.crop((0, i % 2, 8, 8 + i % 2))), i


@pytest.mark.parametrize(
    "get", [_by_box, _by_functional, _resized, _by_v2, _of_fractions, _twice], ids=lambda f: f.__name__
)
def test_they_are_torchs(folder, get):
    """To the last bit, and the data set has made none of them itself; gray files are L when they are opened."""
    assert_as_torch(lambda: of(folder, get))
    loader = ours(of(folder, get), 5, device="cpu", shuffle=True)
    list(loader)
    assert real(loader) == 0, loader.explain()


@pytest.mark.parametrize("get", [_by_box, _of_fractions, _of_any_size, _twice], ids=lambda f: f.__name__)
def test_workers(folder, get):
    options = {"num_workers": 2, "collate_fn": list}
    mine, theirs = (
        [sample for batch in make(of(folder, get), 4, **options) for sample in batch]
        for make in (lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), stock)
    )
    assert_same(mine, theirs)


def test_in_the_middle_of_an_epoch(folder):
    loader = ours(of(folder, _by_box), 4, shuffle=True, device="cpu", num_workers=2)
    whole = iter(loader)
    next(whole)
    state, rest = loader.state_dict(), list(whole)
    again = ours(of(folder, _by_box), 4, shuffle=True, device="cpu", num_workers=2)
    again.load_state_dict(state)
    assert_same(list(again), rest)


def _assert_torchs(folder, get):
    """To the last bit, whoever makes the images."""
    for workers in (0, 2):
        options = {"num_workers": workers, "collate_fn": list}
        mine = ours(of(folder, get), 5, exact=True, device="cpu", fallback="silent", **options)
        assert_same(
            [one for batch in mine for one in batch],
            [one for batch in stock(of(folder, get), 5, **options) for one in batch],
        )


FLIPS = {
    "hflip": F.hflip,
    "transpose": lambda image: image.transpose(0),
    "v2": v2.RandomHorizontalFlip(1.0),
    "rotated": T.RandomRotation((30, 30)),
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_a_size_that_is_read_between_a_method_and_its_call(folder, flip):
    """m.resize is looked up before m.width makes the image real."""

    def get(self, i):
        m = flip(own.read_rgb(self.paths[i]))
        m = m.resize((m.width // 2 + i % 2, m.height // 2))
        return TENSOR(m.crop((1, 1, m.width - 1, m.height - 2))), i

    _assert_torchs(folder, get)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_shares_of_the_size(folder, mode):
    def get(self, i):
        m = own.read_rgb(self.paths[i])
        m = m.crop((m.width // 8, m.height // 8, m.width - m.width // 8, m.height - m.height // 8))
        m = F.pad(m, [4, 1], 0, mode)
        m = m.resize((m.width // 2, m.height // 2))
        return TENSOR(m.crop((m.width // 8, m.height // 8, m.width - m.width // 8, m.height - m.height // 8))), i

    _assert_torchs(folder, get)


@pytest.mark.alike
@pytest.mark.parametrize("method", ["convert", "copy", "crop", "getbands", "getexif", "load", "resize", "transpose"])
def test_a_method_that_is_called_when_the_image_is_real(folder, method):
    """After an assignment to a pixel, which all later calls have to see."""
    arguments = {"convert": ("L",), "crop": ((0, 0, 8, 8),), "resize": ((9, 8),), "transpose": (0,)}.get(method, ())

    def get(self, i):
        image = T.functional.hflip(own.read_rgb(self.paths[i]))
        call, close = getattr(image, method), image.close
        image.putpixel((1, 1), (255, 0, i))
        made = call(*arguments)
        tensor = T.functional.pil_to_tensor(made if isinstance(made, Image.Image) else image)
        close()
        return tensor, i

    _assert_torchs(folder, get)


@pytest.mark.parametrize("box", [(-2, 1, 6, 9), (0, 0, 8, 1000), (900, 900, 908, 908), (3, 3, 3, 8), None])
def test_windows_beyond_the_image(folder, box):
    """They have black edges; and windows without pixels."""

    def get(self, i):
        crop = own.read_rgb(self.paths[i]).crop(box if i % 2 else (1, 2, 9, 10))
        return TENSOR(crop), crop.size

    assert_as_torch(lambda: of(folder, get), 1)


@pytest.mark.parametrize("box", [(8, 1, 2, 6), ("a", 1, 2, 3), (1, 2, 3), (float("nan"), 1, 2, 3)])
def test_what_is_no_window(folder, box):
    """PIL's errors."""

    def get(self, i):
        return TENSOR(own.read_rgb(self.paths[i]).crop(box if i else (1, 2, 9, 10)))

    errors = [error_of(list, make(of(folder, get), 1)) for make in (stock, lambda *args: ours(*args, device="cpu"))]
    assert type(errors[0]) is type(errors[1]) and str(errors[1]).startswith(str(errors[0]))


def test_narrow_windows(folder):
    """At the left edge, where a JPEG is decoded from, too."""

    def get(self, i):
        image = own.read_rgb(self.paths[i])
        return TENSOR(image.crop((0, 16, 1 + (i + 1) % 3, 20))), TENSOR(image.crop((i, 0, i + 2, 2)))

    assert_as_torch(lambda: of(folder, get), 1)


def test_many_sizes_have_one_pipeline(folder):
    loader = ours(of(folder, _of_any_size), 4, device="cpu", collate_fn=list)
    list(loader)
    assert real(loader) == 0
    assert len(loader._route.all_plans) <= 2 * 4  # three sizes and all others, of gray files and of others


def test_a_size_that_is_known(folder):
    """Behind windows of one size."""

    def get(self, i):
        crop = own.read_rgb(self.paths[i]).crop((1, 1, 9, 8))
        assert crop.size == (8, 7) and crop.mode == "RGB"
        return TENSOR(crop)

    loader = ours(of(folder, get), 4, device="cpu")
    list(loader)
    assert real(loader) == 0


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_file_that_became_smaller_since_it_was_opened_is_an_error_that_says_so(folder, tmp_path, monkeypatch, policy):
    """With on_error, too: the rest of its batch would be lost without being counted."""
    monkeypatch.setattr(trial, "_FEW", 1)  # sample 3 is not tried
    for number in range(6):
        Image.new("RGB", (20, 20), (number, 100, 0)).save(tmp_path / f"{number}.png")
    paths = sorted(map(str, tmp_path.glob("*.png")))
    time.sleep(0.05)  # what was written just now is not deferred

    def get(self, i):
        image = own.read_rgb(paths[i])
        if i == 3 and image.size == (20, 20):
            made = image.crop((8, 8, 16, 16))
            Image.new("RGB", (12, 12), (9, 9, 9)).save(paths[3])
            return TENSOR(made)
        return TENSOR(image.crop((2, 2, 10, 10)))

    dataset = of(folder, get)
    dataset.paths = paths
    loader = ours(dataset, 6, exact=True, device="cpu", on_error=policy)
    with pytest.raises((ValueError, OSError), match="changed since"):
        list(loader)


def test_an_error_of_dalis_that_no_image_explains_is_raised(folder, monkeypatch):
    """Of images in memory, too, which have no file to look at."""

    def get(self, i):
        return TENSOR(Image.open(io.BytesIO(Path(self.paths[i]).read_bytes())).convert("RGB").crop((1, 1, 9, 8)))

    def fail(self, ticket):
        raise pipeline.PipelineError("no reason")

    loader = ours(of(folder, get), 4, device="cpu")
    monkeypatch.setattr(pipeline.DecodePipeline, "receive", fail)
    monkeypatch.setattr(pipeline, "undecodable", lambda *args: [])
    with pytest.raises(pipeline.PipelineError, match="no reason"):
        list(loader)
