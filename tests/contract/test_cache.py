"""cache=: batches of cached images equal batches of images that are decoded in each epoch."""

import copy
import pickle
import re
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import nvidia.dali as dali
import pytest
import torch
from faults.jpegs import SOS, pieces_of
from helpers import make_image
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.transforms import v2

import dali_compat.routes as route
from contract import test_errors, test_odd_files
from contract.both import EXACT, RANDOM, assert_same_epoch, assert_same_pixels, error_of, ours, pixels, stock
from contract.storages import ARCHIVES, stored
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.data.sources import Form
from dali_compat.engine.dali import graph
from dali_compat.routes import decoded_cache as cache_module
from dali_compat.routes.dali import DaliRoute
from dali_compat.routes.decoded_cache import DecodedCache

ENOUGH = 100_000_000
SOME = 300_000  # bytes of about six of the 24 images

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
    """Return the batches of `count` epochs under one seed."""
    torch.manual_seed(0)
    loader = DataLoader(dataset, 5, shuffle=True, fallback="silent", **options)
    return [batch for _ in range(count) for batch in loader]


def count_cached(loader) -> int:
    """Return the number of cached images from explain()."""
    (line,) = [line for line in loader.explain().splitlines() if "cache of decoded images" in line]
    return int(re.search(r": ([\d,]+) images", line)[1].replace(",", ""))


@pytest.fixture
def built_forms(monkeypatch):
    """Forms of the decode pipelines, in the order of their construction."""
    from dali_compat.engine.dali.pipeline import DecodePipeline

    built, build = [], DecodePipeline._build
    monkeypatch.setattr(
        DecodePipeline, "_build", lambda self, template: built.append(self.form) or build(self, template)
    )
    return built


@pytest.mark.alike
@pytest.mark.parametrize("budget", [ENOUGH, SOME, 1])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_exact_batches_are_the_same_with_a_cache(image_root, transform, budget):
    """exact=True decodes on the CPU also for a GPU, so batches are bitwise equal on any device."""
    dataset = DALIImageFolder(image_root, TRANSFORMS[transform])
    assert_same_epoch(epochs(dataset, exact=True, cache=budget), _on_host(epochs(dataset, exact=True)))


@pytest.mark.parametrize("transform", ["center crop", "random resized crop", "resize, crop"])
def test_default_batches_are_the_same_with_a_cache(image_root, transform):
    """Batches on the CPU are bitwise equal. A GPU may decode a window and a whole image differently."""
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


def test_each_image_is_decoded_only_once(image_root, built_forms, monkeypatch):
    dataset = DALIImageFolder(image_root, EXACT, return_index=True)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    assert count_cached(loader) == 0
    expected = pixels(loader)
    assert count_cached(loader) == 24
    monkeypatch.setattr(graph, "decode", None)
    built_forms.clear()
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
    assert [form.input for form in built_forms] == ["pixels"]
    assert_same_pixels(expected, pixels(stock(dataset, 5)))


def test_a_full_cache_serves_its_images_and_the_others_are_decoded(image_root, built_forms):
    """Later epochs decode the other images without caching them."""
    loader = ours(DALIImageFolder(image_root, EXACT), 24, cache=SOME, device="cpu")
    first = pixels(loader)
    assert 0 < count_cached(loader) < 24 and "it is full: the other images are decoded each time" in loader.explain()
    used = count_cached(loader)
    assert_same_pixels(pixels(loader), first)
    assert count_cached(loader) == used
    assert built_forms == [Form("paths", keep=True), Form("pixels"), Form("paths")]


@pytest.mark.parametrize("budget, count", [(59, 0), (60, 1), (119, 1), (120, 2), (179, 2), (180, 3), (1000, 4)])
def test_the_budget_is_never_exceeded(budget, count):
    """The test caches four images of 60 bytes."""
    cache = DecodedCache(budget, torch.device("cpu"), False)
    images = [torch.full((4, 5, 3), number, dtype=torch.uint8) for number in range(4)]
    cache.add(["0", "1"], images[:2])
    cache.add(["1", "2", "3"], images[1:])
    assert [name for name in "0123" if cache.get(name) is not None] == list("0123"[:count])
    assert sum(cache.get(name).nbytes for name in "0123"[:count]) <= budget and cache.full == (count < 4)
    assert all((cache.get(name) == int(name)).all() for name in "0123"[:count])


def test_an_image_added_twice_is_counted_once():
    """A sampler with replacement repeats an image in a batch."""
    cache = DecodedCache(120, torch.device("cpu"), False)
    images = [torch.full((4, 5, 3), number, dtype=torch.uint8) for number in range(2)]
    cache.add(["0", "0"], [images[0], images[0]])
    cache.add(["0", "1", "1"], [images[0], images[1], images[1]])
    assert not cache.full and all((cache.get(str(number)) == number).all() for number in range(2))


def test_cache_as_a_fraction_is_a_share_of_free_memory(image_root, monkeypatch):
    monkeypatch.setattr(cache_module, "free_memory", lambda device: 4_000_000)
    assert "of 1.0 MB" in ours(DALIImageFolder(image_root, EXACT), cache=0.25).explain()
    monkeypatch.undo()
    assert 10_000_000 < cache_module.free_memory(torch.device("cpu")) < 1 << 50


def test_no_cache_is_used_by_default(image_root, built_forms):
    loader = ours(DALIImageFolder(image_root, EXACT), 24)
    assert "cache" not in loader.explain()
    assert len(pixels(loader)) == 1 and built_forms == [Form("paths")]


def test_the_cache_is_kept_when_the_transform_changes(image_root, built_forms):
    """Cached pixels do not depend on the transform."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    dataset.transform = T.Compose([T.CenterCrop(30), T.PILToTensor()])
    built_forms.clear()
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 5)))
    assert [form.input for form in built_forms] == ["pixels"]


def test_the_cache_follows_files_when_samples_are_reordered(image_root):
    """Cache keys are paths, not indices."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    dataset.samples.reverse()
    assert_same_epoch(loader, stock(dataset, 5))


def test_parts_and_copies_of_one_folder_share_cached_images(image_root):
    dataset = DALIImageFolder(image_root, EXACT)
    twice = data.ConcatDataset([dataset, data.Subset(DALIImageFolder(image_root, EXACT), range(20))])
    loader = ours(twice, 7, sampler=[5, 5, 5, 29, *range(44)], cache=ENOUGH, device="cpu")
    expected = pixels(stock(twice, 7, sampler=[5, 5, 5, 29, *range(44)]))
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
    assert count_cached(loader) == 24


@pytest.mark.parametrize("storage", ARCHIVES)
def test_a_cached_archive_is_read_only_once(image_root, storage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dataset = stored(image_root, storage, tmp_path)(EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    expected = pixels(stock(dataset, 5))
    assert_same_pixels(pixels(loader), expected)
    monkeypatch.setattr(dataset, "read", None)  # the second epoch must not read the archive
    assert_same_pixels(pixels(loader), expected)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_has_an_empty_cache(image_root, copied):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    expected = pixels(loader)
    other = copied(loader)
    assert other.cache == ENOUGH and count_cached(other) == 0 and count_cached(loader) == 24
    assert_same_pixels(pixels(other), expected)


def test_close_empties_the_cache(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    expected = pixels(loader)
    loader.close()
    assert count_cached(loader) == 0
    assert_same_pixels(pixels(loader), expected)


def test_the_cache_is_emptied_when_exact_changes(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    pixels(loader)
    loader.exact = True
    assert count_cached(loader) == 0
    loader.cache = None
    assert "cache" not in loader.explain()


def test_concurrent_epochs_after_an_abandoned_one_give_the_same_batches(image_root):
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


def test_odd_files_are_decoded_by_pil_in_each_epoch(tmp_path):
    dataset = DALIImageFolder(test_odd_files.make_odd_folder(tmp_path / "odd"), EXACT)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    loader = ours(dataset, 6, sampler=order, device="cpu", cache=ENOUGH)
    expected = pixels(stock(dataset, 6, sampler=order))
    for _ in range(3):
        assert_same_pixels(pixels(loader), expected)
    assert 20 <= count_cached(loader) < len(dataset)


@pytest.mark.parametrize("damage", ["zero bytes", "cut at 70 %", "garbage", "cut PNG"])
def test_a_bad_file_is_an_error_in_each_epoch(own_root, damage):
    """The other batches are complete."""
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    test_errors.DAMAGE[damage](test_errors._path(dataset))
    loader = ours(dataset, 2, cache=ENOUGH)
    for _ in range(3):
        results = test_errors._run(loader)
        assert [isinstance(r, ImageReadError) for r in results if isinstance(r, Exception)] == [True]
        assert str(test_errors._path(dataset)) in str(results[2])
        assert [r[2].tolist() for r in results if not isinstance(r, Exception)] == [[0, 1], [2, 3], [6, 7]]
    assert count_cached(loader) >= 6


@pytest.mark.parametrize("before", [False, True], ids=["from the start", "after its header was read"])
def test_a_broken_stream_that_only_dali_accepts_is_not_cached(own_root, before):
    """Insert a marker into the coded data, which libjpeg reports as an error."""
    dataset = DALIImageFolder(own_root, EXACT, return_index=True)
    if before:
        list(ours(dataset, 2, device="cpu"))
    path = test_errors._path(dataset)
    pieces = [list(piece) for piece in pieces_of(path.read_bytes())]
    for piece in pieces:
        if piece[0] == SOS:
            half = len(piece[1]) // 2
            piece[1] = piece[1][:half] + b"\x55\xff\x27" + piece[1][half:]
    path.write_bytes(b"".join(content for _, content in pieces))
    loader = ours(dataset, 2, cache=ENOUGH, device="cpu")
    for _ in range(3):
        results = test_errors._run(loader)
        assert [isinstance(result, ImageReadError) for result in results].index(True) == 2
        assert [r[2].tolist() for r in results if not isinstance(r, Exception)] == [[0, 1], [2, 3], [6, 7]]


def test_an_image_smaller_than_the_crop_is_named_when_it_is_cached(own_root):
    """The error comes from an argument, in an epoch without decoding."""
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
def test_batches_are_the_same_with_a_cache_on_either_device(image_root, transform, budget, place):
    dataset = DALIImageFolder(image_root, TRANSFORMS[transform])
    mine = _on_host(epochs(dataset, exact=True, cache=budget, cache_device=place))
    assert_same_epoch(mine, _on_host(epochs(dataset, exact=True)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "place, given", [(None, "pixels on the GPU"), ("cuda", "pixels on the GPU"), ("cpu", "pixels")]
)
def test_each_image_is_decoded_only_once_for_a_gpu(image_root, built_forms, monkeypatch, place, given):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, cache_device=place)
    expected = pixels(loader)
    assert count_cached(loader) == 24 and ("in host memory" if place == "cpu" else "in GPU memory") in loader.explain()
    monkeypatch.setattr(graph, "decode", None)
    built_forms.clear()
    for _ in range(3):
        assert_same_pixels(pixels(loader), expected)
    assert [form.input for form in built_forms] == [given]


@pytest.mark.gpu
def test_an_image_can_be_read_as_soon_as_it_is_cached(image_root):
    """It is read by a batch that starts before the caching batch is complete, and repeatedly by one batch."""
    order = [0, 1, 2, 0, 0, 1] * 20 + list(range(24)) * 5
    dataset = DALIImageFolder(image_root, RANDOM)
    mine = epochs(data.Subset(dataset, order), 2, exact=True, cache=ENOUGH)
    assert_same_epoch(_on_host(mine), _on_host(epochs(data.Subset(dataset, order), 2, exact=True)))


@pytest.mark.gpu
def test_archives_and_folders_share_a_cache_on_a_gpu(image_root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    both = data.ConcatDataset([stored(image_root, "tar", tmp_path)(EXACT), DALIImageFolder(image_root, EXACT)])
    loader = ours(both, 5, cache=ENOUGH, exact=True)
    expected = pixels(ours(both, 5, exact=True))
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
    assert count_cached(loader) == 48


@pytest.mark.gpu
def test_close_frees_the_memory_of_a_gpu(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH)
    iterator = iter(loader)
    batches = list(iterator)
    before, used = torch.cuda.memory_allocated(), loader._route.cache.bytes
    loader.close()
    assert used > 0 and before - torch.cuda.memory_allocated() >= used
    del batches, iterator


@pytest.mark.parametrize(
    "budget, place, most",
    [
        (1000, None, 1000),
        (4000, None, 2000),
        (0.25, None, 1000),
        (0.75, None, 2000),
        (3000, "cuda", 3000),
        (0.75, "cuda", 3000),
    ],
)
def test_the_cache_takes_at_most_half_of_a_gpu_unless_requested(monkeypatch, budget, place, most):
    """Free memory is measured at the first batch, because CUDA may not be initialised before it."""
    monkeypatch.setattr(cache_module, "free_memory", lambda device: 4000 if device.type == "cuda" else 1 / 0)
    cache = DecodedCache(budget, torch.device("cuda"), False, place)
    assert cache._limit is None and "in GPU memory: 0 images" in str(cache)
    cache._set_limit()
    assert cache._limit == most


def test_another_gpu_gets_an_empty_cache():
    """Cached pixels stay on their device."""
    loader = SimpleNamespace(cache=ENOUGH, exact=False, cache_device=None)
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    before = DaliRoute(first, 1, 2, 5, [], {}, cache=route._cache(loader, first, None))
    assert route._cache(loader, first, before) is before.cache
    assert route._cache(loader, second, before) is not before.cache


# ---- memory


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_the_cache_counts_as_full_when_memory_runs_out(image_root, monkeypatch, error):
    """Batches do not change."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    copies, calls = cache_module._copies, []

    def fail(images, place):
        calls.append(images)
        if len(calls) == 3:
            raise error
        return copies(images, place)

    monkeypatch.setattr(cache_module, "_copies", fail)
    expected = pixels(stock(dataset, 5))
    for _ in range(2):
        assert_same_pixels(pixels(loader), expected)
        assert count_cached(loader) == 10 and "it is full" in loader.explain()


@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_error_of_dalis_fails_only_its_own_batch(image_root, monkeypatch, at):
    """Simulate a GPU that runs out of memory when DALI is fed."""
    dataset = DALIImageFolder(image_root, EXACT)
    loader = ours(dataset, 5, cache=ENOUGH, device="cpu")
    expected = pixels(loader)
    feed, calls = dali.Pipeline._feed_input, []

    def fail(self, *arguments, **options):
        calls.append(None)
        if len(calls) == at:
            raise RuntimeError("cudaErrorMemoryAllocation")
        return feed(self, *arguments, **options)

    monkeypatch.setattr(dali.Pipeline, "_feed_input", fail)
    results = test_errors._run(loader)
    (bad,) = [i for i, result in enumerate(results) if isinstance(result, Exception)]
    assert "cudaErrorMemoryAllocation" in str(results[bad])
    for i, (result, images) in enumerate(zip(results, expected, strict=True)):
        assert i == bad or torch.equal(result[0], images)
    assert_same_pixels(pixels(loader), expected)


def test_close_frees_images_while_an_iterator_exists(image_root):
    loader = ours(DALIImageFolder(image_root, EXACT), 5, cache=ENOUGH, device="cpu")
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    images = list(map(weakref.ref, loader._route.cache._images.values()))
    assert len(images) == 24
    loader.close()
    assert not any(image() is not None for image in images)


def test_explain_reports_that_cache_has_no_effect_on_a_fallback(image_root):
    def opened(path):
        return np.asarray(Image.open(path).convert("RGB"))

    transform = T.Compose([T.ToPILImage(), EXACT])
    loader = DataLoader(DALIImageFolder(image_root, transform, loader=opened), 5, cache=ENOUGH, fallback="silent")
    assert "without effect: cache=100000000" in loader.explain()
