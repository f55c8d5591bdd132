"""Custom data sets that choose the crop window of each image."""

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
from contract.test_odd_datasets import assert_equals_torch, dataset_of
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


def _by_resized_crop(self, i):
    image = own.read_rgb(self.paths[i])
    window = T.RandomResizedCrop.get_params(image, (0.2, 1.0), (0.75, 1.3))
    return TENSOR(F.resized_crop(image, *window, (7, 8), T.InterpolationMode.BICUBIC)), window[0]


def _by_v2(self, i):
    image = own.read_rgb(self.paths[i])
    width, height = image.size
    window = int(np.random.randint(0, height - 6)), np.random.randint(0, width - 6), 6, 6
    return TENSOR(v2.functional.crop(image, *window)), window[1]


def _by_fractions_of_the_size(self, i):
    image = own.read_rgb(self.paths[i])
    width, height = image.size
    return TENSOR(image.crop((width * 0.1, height * 0.2, width * 0.9, height * 0.8)).resize((9, 9))), i


def _by_windows_of_several_sizes(self, i):
    return TENSOR(own.read_rgb(self.paths[i]).crop((1, 2, 7 + i % 4, 8 + i % 5))), i


def _by_nested_windows(self, i):
    """Patches of several scales, crops of crops, and random transforms between them."""
    image = own.read_rgb(self.paths[i])
    outer = image.crop((i % 2, 1, i % 2 + 10, 11))
    small = T.RandomHorizontalFlip(1.0)(outer).crop((i % 4, i % 3, i % 4 + 5, i % 3 + 5))
    return TENSOR(small), TENSOR(outer.resize((4, 4))), TENSOR(image.crop((0, i % 2, 8, 8 + i % 2))), i


@pytest.mark.parametrize(
    "get",
    [_by_box, _by_functional, _by_resized_crop, _by_v2, _by_fractions_of_the_size, _by_nested_windows],
    ids=lambda f: f.__name__,
)
def test_windows_chosen_by_a_data_set_equal_torchs(folder, get):
    """Pixels are bitwise equal, and the data set decodes no image itself; gray files have mode L when opened."""
    assert_equals_torch(lambda: dataset_of(folder, get))
    loader = ours(dataset_of(folder, get), 5, device="cpu", shuffle=True)
    list(loader)
    assert real(loader) == 0, loader.explain()


@pytest.mark.parametrize("get", [_by_windows_of_several_sizes, _by_nested_windows], ids=lambda f: f.__name__)
def test_windows_chosen_in_workers_equal_torchs(folder, get):
    options = {"num_workers": 2, "collate_fn": list}
    mine, theirs = (
        [sample for batch in make(dataset_of(folder, get), 4, **options) for sample in batch]
        for make in (lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), stock)
    )
    assert_same(mine, theirs)


def test_an_epoch_with_windows_resumes_in_its_middle(folder):
    loader = ours(dataset_of(folder, _by_box), 4, shuffle=True, device="cpu", num_workers=2)
    whole = iter(loader)
    next(whole)
    state, rest = loader.state_dict(), list(whole)
    again = ours(dataset_of(folder, _by_box), 4, shuffle=True, device="cpu", num_workers=2)
    again.load_state_dict(state)
    assert_same(list(again), rest)


def _assert_equals_torch(folder, get, workers=0):
    """Check that samples are bitwise equal to torch's, whether deferred or not."""
    options = {"num_workers": workers, "collate_fn": list}
    mine = ours(dataset_of(folder, get), 5, exact=True, device="cpu", fallback="silent", **options)
    assert_same(
        [one for batch in mine for one in batch],
        [one for batch in stock(dataset_of(folder, get), 5, **options) for one in batch],
    )


FLIPS = {
    "hflip": F.hflip,
    "transpose": lambda image: image.transpose(0),
    "v2": v2.RandomHorizontalFlip(1.0),
    "rotated": T.RandomRotation((30, 30)),
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_a_size_read_between_a_method_lookup_and_its_call_equals_torchs(folder, flip):
    """m.resize is looked up before m.width decodes the image."""

    def get(self, i):
        m = flip(own.read_rgb(self.paths[i]))
        m = m.resize((m.width // 2 + i % 2, m.height // 2))
        return TENSOR(m.crop((1, 1, m.width - 1, m.height - 2))), i

    _assert_equals_torch(folder, get, workers=2 if flip is F.hflip else 0)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_windows_that_are_fractions_of_the_size_equal_torchs(folder, mode):
    def get(self, i):
        m = own.read_rgb(self.paths[i])
        m = m.crop((m.width // 8, m.height // 8, m.width - m.width // 8, m.height - m.height // 8))
        m = F.pad(m, [4, 1], 0, mode)
        m = m.resize((m.width // 2, m.height // 2))
        return TENSOR(m.crop((m.width // 8, m.height // 8, m.width - m.width // 8, m.height - m.height // 8))), i

    _assert_equals_torch(folder, get, workers=2 if mode == "edge" else 0)


@pytest.mark.alike
@pytest.mark.parametrize("method", ["convert", "copy", "crop", "getbands", "getexif", "load", "resize", "transpose"])
def test_a_method_looked_up_before_and_called_after_decoding_equals_torchs(folder, method):
    """The call must see the pixel that was assigned before it."""
    arguments = {"convert": ("L",), "crop": ((0, 0, 8, 8),), "resize": ((9, 8),), "transpose": (0,)}.get(method, ())

    def get(self, i):
        image = T.functional.hflip(own.read_rgb(self.paths[i]))
        call, close = getattr(image, method), image.close
        image.putpixel((1, 1), (255, 0, i))
        made = call(*arguments)
        tensor = T.functional.pil_to_tensor(made if isinstance(made, Image.Image) else image)
        close()
        return tensor, i

    _assert_equals_torch(folder, get)


BOXES = [(-2, 1, 6, 9), (0, 0, 8, 1000), (900, 900, 908, 908), (3, 3, 3, 8), None]


def test_windows_beyond_the_image_equal_torchs(folder):
    """Such windows have black edges or no pixels."""

    def get(self, i):
        crop = own.read_rgb(self.paths[i]).crop(BOXES[i % 5] if i % 2 else (1, 2, 9, 10))
        return TENSOR(crop), crop.size

    assert_equals_torch(lambda: dataset_of(folder, get), 1)


@pytest.mark.parametrize("box", [(8, 1, 2, 6), ("a", 1, 2, 3), (1, 2, 3), (float("nan"), 1, 2, 3)])
def test_invalid_windows_raise_pils_errors(folder, box):

    def get(self, i):
        return TENSOR(own.read_rgb(self.paths[i]).crop(box if i else (1, 2, 9, 10)))

    errors = [
        error_of(list, make(dataset_of(folder, get), 1)) for make in (stock, lambda *args: ours(*args, device="cpu"))
    ]
    assert type(errors[0]) is type(errors[1]) and str(errors[1]).startswith(str(errors[0]))


def test_narrow_windows_equal_torchs(folder):
    """This includes the left edge, which is decoded differently in a JPEG."""

    def get(self, i):
        image = own.read_rgb(self.paths[i])
        return TENSOR(image.crop((0, 16, 1 + (i + 1) % 3, 20))), TENSOR(image.crop((i, 0, i + 2, 2)))

    assert_equals_torch(lambda: dataset_of(folder, get), 1)


def test_windows_of_many_sizes_need_few_plans(folder):
    loader = ours(dataset_of(folder, _by_windows_of_several_sizes), 4, device="cpu", collate_fn=list)
    list(loader)
    assert real(loader) == 0
    # three sizes and all others, for gray files and for other files
    assert len(loader._route._representatives) <= 2 * 4


def test_reading_the_size_of_a_window_does_not_decode(folder):
    """The size follows from the window."""

    def get(self, i):
        crop = own.read_rgb(self.paths[i]).crop((1, 1, 9, 8))
        assert crop.size == (8, 7) and crop.mode == "RGB"
        return TENSOR(crop)

    loader = ours(dataset_of(folder, get), 4, device="cpu")
    list(loader)
    assert real(loader) == 0


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_file_that_shrank_after_opening_is_an_error_that_names_the_change(folder, tmp_path, monkeypatch, policy):
    """on_error does not hide the error, because the rest of its batch would be lost without being counted."""
    monkeypatch.setattr(trial, "_SAMPLES", 1)  # sample 3 is not tried
    for number in range(6):
        Image.new("RGB", (20, 20), (number, 100, 0)).save(tmp_path / f"{number}.png")
    paths = sorted(map(str, tmp_path.glob("*.png")))
    time.sleep(0.05)  # files written just now are not deferred

    def get(self, i):
        image = own.read_rgb(paths[i])
        if i == 3 and image.size == (20, 20):
            made = image.crop((8, 8, 16, 16))
            Image.new("RGB", (12, 12), (9, 9, 9)).save(paths[3])
            return TENSOR(made)
        return TENSOR(image.crop((2, 2, 10, 10)))

    dataset = dataset_of(folder, get)
    dataset.paths = paths
    loader = ours(dataset, 6, exact=True, device="cpu", on_error=policy)
    with pytest.raises((ValueError, OSError), match="changed since"):
        list(loader)


def test_an_unexplained_error_of_dalis_is_raised(folder, monkeypatch):
    """The images are in memory, so that no file can be checked."""

    def get(self, i):
        return TENSOR(Image.open(io.BytesIO(Path(self.paths[i]).read_bytes())).convert("RGB").crop((1, 1, 9, 8)))

    def fail(self, ticket):
        raise pipeline.PipelineError("no reason")

    loader = ours(dataset_of(folder, get), 4, device="cpu")
    monkeypatch.setattr(pipeline.DecodePipeline, "receive", fail)
    monkeypatch.setattr(pipeline, "undecodable", lambda *args: [])
    with pytest.raises(pipeline.PipelineError, match="no reason"):
        list(loader)


PADDED = [
    {"padding": [3, 1, 4, 2], "fill": (1, 2, 3)},
    {"padding": [3, 1, 4, 2], "padding_mode": "reflect"},
]


def _in_some_window(self, i):
    """Return an image with a window inside of it, without a window, or padded in two ways."""
    image = F.adjust_brightness(own.read_rgb(self.paths[i]), 1 + i % 3 / 2)
    if i % 4 == 0:
        image = F.crop(image, 1, 2, image.height - 5, image.width - 9)
    elif i % 4 < 3:
        image = F.pad(image, **PADDED[i % 4 - 1])
    if i % 5 == 0:
        image = F.hflip(image)
    return F.normalize(F.to_tensor(F.resize(image, (20, 24))), (0.5,) * 3, (0.25,) * 3), i


def test_images_after_colors_in_windows_of_several_kinds_equal_torch(folder):
    dataset = dataset_of(folder, _in_some_window)
    assert_same(list(ours(dataset, 12, device="cpu", exact=True)), list(stock(dataset, 12)))
    assert_same(list(ours(dataset, 12, device="cpu")), list(stock(dataset, 12)), limit=0.02)
