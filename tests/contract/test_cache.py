"""cache=: what is decoded once and kept gives the same batches as what is decoded each time."""

import copy
import pickle
import re
import threading

import numpy as np
import pytest
import torch
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat import cache as cache_module
from dali_compat.engine import graph
from dali_compat.sources import Form
from helpers import make_image
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.transforms import v2

from contract import test_errors, test_odd_files
from contract.both import EXACT, RANDOM, assert_same_epoch, assert_same_pixels, error_of, ours, pixels, stock
from contract.storages import ARCHIVES, stored

ENOUGH = 100_000_000
SOME = 300_000  # bytes: six or so of the 24 images

TRANSFORMS = {
    "center crop": EXACT,
    "random resized crop": RANDOM,
    "resize, crop": T.Compose([T.Resize(48), T.CenterCrop(40), T.ToTensor()]),
    "pad, crop": T.Compose([T.Pad(7, padding_mode="reflect"), T.RandomCrop(32), T.ToTensor()]),
    "warp": T.Compose([T.RandomRotation(30), T.Resize((20, 30)), T.ToTensor()]),
    "color before all": T.Compose([T.ColorJitter(0.4), T.RandomCrop(40), T.PILToTensor()]),
    "v2": v2.Compose(
        [v2.ToImage(), v2.RandomCrop(40), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])]
    ),
    "called": T.Compose([T.RandomCrop(40), T.Lambda(lambda image: image.rotate(90)), T.PILToTensor()]),
}


def epochs(dataset, count=3, **options) -> list:
    """Batches of some epochs under one seed."""
    torch.manual_seed(0)
    loader = DataLoader(dataset, 5, shuffle=True, fallback="silent", **options)
    return [batch for _ in range(count) for batch in loader]


def kept(loader) -> int:
    """How many images the account says."""
    (line,) = [line for line in loader.explain().splitlines() if "cache of decoded images" in line]
    return int(re.search(r": ([\d,]+) images", line)[1].replace(",", ""))


@pytest.fixture
def decodes(monkeypatch):
    """The forms of the pipelines that are built, in order."""
    from dali_compat.engine.pipeline import DecodePipeline

    built, build = [], DecodePipeline._build
    monkeypatch.setattr(
        DecodePipeline, "_build", lambda self, template: built.append(self.form) or build(self, template)
    )
    return built


@pytest.mark.parametrize("budget", [ENOUGH, SOME, 1])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_batches_are_the_same(image_root, transform, budget):
    """exact=True, for which a GPU's loader decodes on the CPU, too: equal to the last bit on any device."""
    dataset = DALIImageFolder(image_root, TRANSFORMS[transform])
    assert_same_epoch(epochs(dataset, exact=True, cache=budget), _on_host(epochs(dataset, exact=True)))


@pytest.mark.parametrize("transform", ["center crop", "random resized crop", "resize, crop"])
def test_batches_are_the_same_by_default(image_root, transform):
    """On the CPU to the last bit. A GPU may decode a window and a whole image in different ways."""
    dataset = DALIImageFolder(image_root, TRANSFORMS[transform])
    mine, plain = epochs(dataset, cache=ENOUGH), _on_host(epochs(dataset))
    if torch.cuda.is_available():
        for (a, _), (b, _) in zip(mine, plain, strict=True):
            levels = 1 if a.dtype == torch.uint8 else 255
            assert (a.cpu().float() - b.float()).abs().mean() * levels < 0.5
    else:
        assert_same_epoch(mine, plain)


def _on_host(batches) -> list:
    return [[part.cpu() for part in batch] for batch in batches]


def test_each_image_is_decoded_once(image_root, decodes, monkeypatch):
    dataset = DALIImageFolder(image_root, EXACT, return_index=True)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    assert kept(loader) == 0
    expected = pixels(loader)
    assert kept(loader) == 24
    monkeypatch.setattr(graph, "decode", None)
    decodes.clear()
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
    assert [form.given for form in decodes] == ["pixels"]
    assert_same_pixels(expected, pixels(stock(dataset, 5)))


def test_a_full_cache(image_root, decodes):
    """What is in serves; the rest is decoded each time, no longer whole."""
    loader = ours(DALIImageFolder(image_root, EXACT), 24, cache=SOME, device="cpu")
    first = pixels(loader)
    assert 0 < kept(loader) < 24 and "it is full: the other images are decoded each time" in loader.explain()
    used = kept(loader)
    assert_same_pixels(pixels(loader), first)
    assert kept(loader) == used
    assert decodes == [Form("paths", keep=True), Form("pixels"), Form("paths")]


def test_a_share_of_memory(image_root, monkeypatch):
    monkeypatch.setattr(cache_module, "free_memory", lambda device: 4_000_000)
    assert "of 1.0 MB" in ours(DALIImageFolder(image_root, EXACT), cache=0.25).explain()
    monkeypatch.undo()
    assert 10_000_000 < cache_module.free_memory(torch.device("cpu")) < 1 << 50


def test_off_by_default(image_root, decodes):
    loader = ours(DALIImageFolder(image_root, EXACT), 24)
    assert "cache" not in loader.explain()
    assert len(pixels(loader)) == 1 and decodes == [Form("paths")]


def test_other_transforms_share_it(image_root, decodes):
    """Pixels do not depend on what follows."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    dataset.transform = T.Compose([T.CenterCrop(30), T.PILToTensor()])
    decodes.clear()
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 5)))
    assert [form.given for form in decodes] == ["pixels"]


def test_samples_may_change(image_root):
    """Images are known by their file, not by their place."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    dataset.samples.reverse()
    assert_same_epoch(loader, stock(dataset, 5))


def test_parts_and_copies_of_one_folder(image_root):
    dataset = DALIImageFolder(image_root, EXACT)
    twice = data.ConcatDataset([dataset, data.Subset(DALIImageFolder(image_root, EXACT), range(20))])
    loader = ours(twice, 7, sampler=[5, 5, 5, 29, *range(44)], cache=ENOUGH, device="cpu")
    expected = pixels(stock(twice, 7, sampler=[5, 5, 5, 29, *range(44)]))
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
    assert kept(loader) == 24


@pytest.mark.parametrize("storage", ARCHIVES)
def test_archives(image_root, storage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = stored(image_root, storage, tmp_path)(EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    expected = pixels(stock(dataset, 5))
    assert_same_pixels(pixels(loader), expected)
    monkeypatch.setattr(dataset, "read", None)  # no byte of the archive is asked for again
    assert_same_pixels(pixels(loader), expected)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_the_loader_begins_anew(image_root, copied):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    expected = pixels(loader)
    other = copied(loader)
    assert other.cache == ENOUGH and kept(other) == 0 and kept(loader) == 24
    assert_same_pixels(pixels(other), expected)


def test_close_frees_it(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    expected = pixels(loader)
    loader.close()
    assert kept(loader) == 0
    assert_same_pixels(pixels(loader), expected)


def test_settings_that_make_other_pixels_begin_anew(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    loader.exact = True
    assert kept(loader) == 0
    loader.cache = None
    assert "cache" not in loader.explain()


def test_abandoned_epochs_and_several_at_once(image_root):
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=SOME, num_workers=2, device="cpu")
    expected = pixels(stock(dataset, 5))
    next(iter(loader))
    results = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: pixels(loader)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i in range(3):
        assert_same_pixels(results[i], expected)


def test_odd_files_among_ordinary_ones(tmp_path):
    """PIL decodes them each time, beside what is kept."""
    dataset = DALIImageFolder(test_odd_files.make_odd_folder(tmp_path / "odd"), EXACT)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    loader = ours(dataset, 6, sampler=order, device="cpu", cache=ENOUGH)
    expected = pixels(stock(dataset, 6, sampler=order))
    for _ in range(3):
        assert_same_pixels(pixels(loader), expected)
    assert 20 <= kept(loader) < len(dataset)


@pytest.mark.parametrize("damage", ["zero bytes", "cut at 70 %", "garbage", "cut PNG"])
def test_a_bad_file(own_root, damage):
    """It stays an error, in later epochs too, and the others come."""
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    test_errors.DAMAGE[damage](test_errors._path(dataset))
    loader = ours(dataset, 2, cache=ENOUGH)
    for _ in range(3):
        results = test_errors._run(loader)
        assert [type(r) for r in results if isinstance(r, Exception)] == [ImageReadError]
        assert str(test_errors._path(dataset)) in str(results[2])
        assert [r[2].tolist() for r in results if not isinstance(r, Exception)] == [[0, 1], [2, 3], [6, 7]]
    assert kept(loader) >= 6


def test_one_image_smaller_than_the_crop(own_root):
    """An error of an argument, not of a decoder, in an epoch that decodes nothing."""
    dataset = DALIImageFolder(own_root, EXACT)
    small = dataset.samples[test_errors.BAD][0]
    Image.fromarray(make_image(np.random.default_rng(1), 45, 45)).save(small)
    loader = ours(dataset, 2, cache=ENOUGH)
    list(loader)
    dataset.transform = T.Compose([T.RandomCrop(50), T.PILToTensor()])
    error = error_of(list, loader)
    assert isinstance(error, ValueError) and small in str(error)


# ---- in the GPU's memory


@pytest.mark.gpu
@pytest.mark.parametrize("place", [None, "cpu"])
@pytest.mark.parametrize("budget", [ENOUGH, SOME])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_batches_are_the_same_from_a_gpu(image_root, transform, budget, place):
    dataset = DALIImageFolder(image_root, TRANSFORMS[transform])
    mine = _on_host(epochs(dataset, exact=True, cache=budget, cache_device=place))
    assert_same_epoch(mine, _on_host(epochs(dataset, exact=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("place, given", [(None, "pixels on the GPU"), ("cuda:0", "pixels on the GPU"), ("cpu", "pixels")])
def test_each_image_is_decoded_once_to_a_gpu(image_root, decodes, monkeypatch, place, given):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, cache_device=place)
    expected = pixels(loader)
    assert kept(loader) == 24 and ("in host memory" if place == "cpu" else "in cuda:0's memory") in loader.explain()
    monkeypatch.setattr(graph, "decode", None)
    decodes.clear()
    for _ in range(3):
        assert_same_pixels(pixels(loader), expected)
    assert [form.given for form in decodes] == [given]


@pytest.mark.gpu
def test_an_image_that_is_kept_is_read_at_once(image_root):
    """By a batch that is started while the one that kept it is on its way; and by many of the same batch."""
    order = [0, 1, 2, 0, 0, 1] * 20 + list(range(24)) * 5
    dataset = DALIImageFolder(image_root, RANDOM)
    mine = epochs(data.Subset(dataset, order), 2, exact=True, cache=ENOUGH)
    assert_same_epoch(_on_host(mine), _on_host(epochs(data.Subset(dataset, order), 2, exact=True)))


@pytest.mark.gpu
def test_what_a_gpu_has_no_room_for_stays_on_the_host(image_root, monkeypatch):
    dataset = DALIImageFolder(image_root, EXACT)
    host, gpu = "in host memory", "in cuda:0's memory"
    for cache, free, place in (
        (ENOUGH, 2 * ENOUGH, gpu), (ENOUGH, 2 * ENOUGH - 1, host), (0.5, 4 * ENOUGH, gpu), (0.6, 4 * ENOUGH, host)
    ):
        monkeypatch.setattr(cache_module, "free_memory", lambda device, free=free: free)
        loader = ours(dataset, 5, cache=cache)
        pixels(loader)
        assert place in loader.explain() and kept(loader) == 24
        assert place == host or "200.0 MB" in loader.explain() or cache == ENOUGH


@pytest.mark.gpu
def test_close_frees_a_gpus_memory(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH)
    pixels(loader)
    before = torch.cuda.memory_allocated()
    used = sum(Image.open(path).size[0] * Image.open(path).size[1] * 3 for path, _ in loader.dataset.samples)
    loader.close()
    assert before - torch.cuda.memory_allocated() >= used


def test_without_effect_where_torchvision_works(image_root):
    loader = DataLoader(DALIImageFolder(image_root, EXACT, loader=Image.open), 5, cache=ENOUGH, fallback="silent")
    assert "without effect: cache=100000000" in loader.explain()
