"""timm's RandAugment, AutoAugment, RandomErasing and ToNumpy."""

import functools
import math
import random
import warnings
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image, ImageFilter, ImageOps
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from unit.statistics import differ, misfit, unlike_in

from contract.both import assert_same_epoch, outlines
from contract.own_datasets import Plain
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader, FallbackWarning, install, plan
from dali_compat.engine import pil
from dali_compat.inspection.replaced import STANDS_FOR
from dali_compat.ops import filters, kernels, timm_operations
from dali_compat.ops.draws import compute
from dali_compat.ops.timm_operations import OPERATIONS
from dali_compat.randoms import Randoms
from dali_compat.translate import translate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    timm = pytest.importorskip("timm.data")
    aa = pytest.importorskip("timm.data.auto_augment")
    tt = pytest.importorskip("timm.data.transforms")
if "getbands" in aa.AugMixAugment._apply_basic.__code__.co_names:
    pytest.skip("an older timm has fewer configurations", allow_module_level=True)
from timm.data.random_erasing import RandomErasing  # after the check for timm

from contract.timm_dictation import reference

CPU = torch.device("cpu")
RAND = ["rand", "rand-m9-mstd0.5-inc1", "rand-m9-n3-mstd0.5", "rand-m7-mstd101-inc1", "rand-m15-mmax30-p0.8-inc1"]
RAND += ["rand-m0-p1", "rand-mstd1-tweights", "rand-n4-p1-tweights", "rand-t3a", "rand-p1-t3aw-n4-inc1"]
AUTO = ["original", "originalr", "v0", "v0r", "3a", "original-mstd0.5", "v0-mstd0.7"]
HPARAMS = {"translate_const": 30, "img_mean": (124, 116, 104)}


def policy(config, **hparams):
    """Return a policy of timm, with its default choice of two interpolations."""
    kind = aa.rand_augment_transform if config.startswith("rand") else aa.auto_augment_transform
    return kind(config, HPARAMS | hparams)


def steps_of(transform):
    chain = translate(transform)
    assert not chain.refused, chain.refused
    return tuple(step for entry in chain.translated for step in entry.steps)


@functools.cache
def pictures(count=24, height=45, width=61):
    rng = np.random.default_rng(3)
    return torch.from_numpy(np.stack([make_image(rng, height, width) for _ in range(count)])).permute(0, 3, 1, 2)


@pytest.fixture(params=["on a CPU", "on any device"])
def implementation(request, monkeypatch):
    """Also run the implementation for GPUs."""
    if request.param == "on any device":
        changed = replace(plan.OPERATIONS["timm_augment"], kernel=timm_operations.augmented)
        monkeypatch.setitem(plan.OPERATIONS, "timm_augment", changed)


def by_kernels(steps, images, seed):
    arrays = compute(steps, np.tile(images.shape[-2:], (len(images), 1)), Randoms(seed, 0, len(images)), slice(None))
    for step, given in zip(steps, arrays, strict=True):
        images = kernels.run(step, images, given)
    return images


@pytest.fixture(autouse=True)
def posterize_to_zero_bits(monkeypatch):
    """Accept zero bits, which timm requests, as Pillow before 13 does."""

    def posterize(image, bits):
        mask = ~(2 ** (8 - bits) - 1)
        return image.point([i & mask for i in range(256)] * len(image.getbands()))

    setattr(posterize, STANDS_FOR, ImageOps.posterize)  # so that it does not count as replaced code
    monkeypatch.setattr(ImageOps, "posterize", posterize)


# ---- pixels


@pytest.mark.alike
@pytest.mark.parametrize("config", [*RAND, *AUTO])
def test_pixels_equal_timms_for_each_policy(config, implementation):
    """The kernels run on a batch, and Pillow on single images."""
    transform = policy(config)
    steps, images, changed = steps_of(transform), pictures(), 0
    for seed in range(2):
        ours = by_kernels(steps, images, seed)
        for row, image in enumerate(images):
            picture = T.functional.to_pil_image(image)
            theirs = reference(transform, steps, picture, seed, row)
            expected = T.functional.pil_to_tensor(theirs)
            assert torch.equal(ours[row], expected), row
            single = picture
            arrays = compute(steps, np.array([picture.size[::-1]]), Randoms(seed, row, 1), slice(None))
            for step, given in zip(steps, arrays, strict=True):
                single = pil.apply(single, step, {name: array[0] for name, array in given.items()})
            assert single.tobytes() == theirs.tobytes()
            changed += not torch.equal(expected, image)
    assert changed > 4


@pytest.mark.parametrize("interpolation", [Image.BILINEAR, Image.BICUBIC, Image.NEAREST])
def test_pixels_equal_timms_for_each_interpolation(interpolation, implementation):
    transform = policy("rand-m9-n3-p1-mstd0.5-inc1", interpolation=interpolation)
    steps = steps_of(transform)
    ours = by_kernels(steps, pictures(), 5)
    for row, image in enumerate(pictures()):
        theirs = reference(transform, steps, T.functional.to_pil_image(image), 5, row)
        assert torch.equal(ours[row], T.functional.pil_to_tensor(theirs)), row


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 1), (200, 190)])
def test_pixels_equal_timms_for_tiny_and_larger_images(size, implementation):
    transform, images = policy("rand-m9-n4-p1-mstd0.5-inc1"), pictures(16, *size)
    steps = steps_of(transform)
    ours = by_kernels(steps, images, 1)
    for row, image in enumerate(images):
        theirs = reference(transform, steps, T.functional.to_pil_image(image), 1, row)
        assert torch.equal(ours[row], T.functional.pil_to_tensor(theirs)), row


@pytest.mark.gpu
@pytest.mark.parametrize("config", [*RAND, *AUTO])
def test_pixels_on_gpu_equal_those_on_cpu(config):
    steps, images = steps_of(policy(config)), pictures()
    assert torch.equal(by_kernels(steps, images.cuda(), 3).cpu(), by_kernels(steps, images, 3))


@pytest.mark.gpu
def test_erased_regions_on_gpu_are_close_to_those_on_cpu():
    images = pictures().float() / 255
    for how in ERASING.values():
        steps = steps_of(T.Compose([T.ToTensor(), RandomErasing(0.7, device="cpu", **how)]))[2:]
        both = by_kernels(steps, images.cuda(), 3).cpu(), by_kernels(steps, images, 3)
        torch.testing.assert_close(*both, atol=1e-3, rtol=0)  # logarithms and cosines are rounded differently


def test_every_operation_has_a_kernel_that_agrees_with_timm():
    assert timm_operations._as_timm() == set(OPERATIONS)


def test_changed_operation_is_run_by_timm(monkeypatch):
    """Another version of timm may change an operation; it then runs on single images."""
    monkeypatch.setattr(aa, "invert", lambda image, **_: image.rotate(90))
    timm_operations._as_timm.cache_clear()
    try:
        assert timm_operations._as_timm() == set(OPERATIONS) - {"invert"}
        given = {"which": np.full(24, OPERATIONS.index("invert")), "value": np.zeros(24), "choice": np.zeros(24, int)}
        made = timm_operations.augmented(pictures(), given, interpolations=("bilinear",), fill=(1, 2, 3))
    finally:
        monkeypatch.undo()
        timm_operations._as_timm.cache_clear()
    expected = [T.functional.pil_to_tensor(T.functional.to_pil_image(image).rotate(90)) for image in pictures()]
    assert torch.equal(made, torch.stack(expected))


def test_error_names_an_operation_that_pillow_refuses(monkeypatch):
    def posterize(image, bits, lenient=ImageOps.posterize):
        if not 1 <= bits <= 8:
            raise ValueError("bits must be between or equal to 1 and 8")
        return lenient(image, bits)

    monkeypatch.setattr(ImageOps, "posterize", posterize)
    given = {"which": np.array([OPERATIONS.index("posterize")]), "value": np.zeros(1), "choice": np.zeros(1, int)}
    for kernel in (timm_operations.timm_augment, timm_operations.augmented):
        with pytest.raises(ValueError, match=r"timm's posterize\(0\): bits must be .*; use Pillow before 13"):
            kernel(pictures()[:1], given, interpolations=("bilinear",), fill=(1, 2, 3))


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 40), (45, 61)])
def test_fixed_point_blur_equals_pillows(size):
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (200, 3, *size), dtype=np.uint8))
    sigmas = np.concatenate([rng.uniform(0, 3, 190), [0, 1e-9, 1e-3, 0.1, 1, 2, 3, 9, 30, 1.7320508]])
    ours = filters.box_blur(images, sigmas)
    for image, sigma, mine in zip(images, sigmas.tolist(), ours, strict=True):
        theirs = T.functional.to_pil_image(image).filter(ImageFilter.GaussianBlur(sigma))
        assert torch.equal(mine, T.functional.pil_to_tensor(theirs)), sigma


# ---- random numbers


def timm_calls(transform, count=4000):
    """Return, for each of many images, the names and arguments of the functions that timm calls."""
    random.seed(1)
    np.random.seed(1)
    found, now = [], []
    ops = getattr(transform, "ops", None) or [op for ops in transform.policy for op in ops]

    def record(function):
        def called(image, *args, resample, **_):
            if function is getattr(aa, "gaussian_blur_rand", None):
                args = (function(SimpleNamespace(filter=lambda blur: blur.radius), *args),)
            now.append((function.__name__.removesuffix("_rand"), float(args[0]) if args else 0.0))
            return image

        return called

    own = [op.aug_fn for op in ops]
    try:
        for op in ops:
            op.aug_fn = record(op.aug_fn)
        for _ in range(count):
            transform(Image.new("RGB", (8, 8)))
            found.append(tuple(now))
            now.clear()
    finally:
        for op, function in zip(ops, own, strict=True):
            op.aug_fn = function
    return found


def our_calls(transform, count=4000):
    steps = steps_of(transform)
    arrays = compute(steps, np.tile([8, 8], (count, 1)), Randoms(2, 0, count), slice(None))
    pairs = [zip(a["which"].reshape(count, -1), a["value"].reshape(count, -1), strict=True) for a in arrays]
    rows = zip(*pairs, strict=True)
    return [
        tuple(
            (OPERATIONS[which], value)
            for whiches, values in row
            for which, value in zip(whiches.tolist(), values.tolist(), strict=True)
            if which >= 0
        )
        for row in rows
    ]


@pytest.mark.alike
@pytest.mark.parametrize("config", [*RAND, *AUTO])
def test_distributions_of_operations_equal_timms(config):
    ours, theirs = our_calls(policy(config)), timm_calls(policy(config))
    assert not unlike_in([tuple(n for n, _ in row) for row in ours], [tuple(n for n, _ in row) for row in theirs])
    values = [{}, {}]
    for sample, by_name in zip((ours, theirs), values, strict=True):
        for name, value in (pair for row in sample for pair in row):
            by_name.setdefault(name, []).append(value)
    assert values[0].keys() == values[1].keys()
    for name in values[0]:
        assert not differ(values[0][name], values[1][name]), name


def test_comparison_detects_wrong_distributions():
    ours, theirs = our_calls(policy("rand-m9-mstd0.5-inc1-p0.6")), timm_calls(policy("rand-m9-mstd0.5-inc1"))
    assert unlike_in([len(row) for row in ours], [len(row) for row in theirs])
    ours = [value for row in our_calls(policy("rand-m9-mstd0.9-n3-p1")) for name, value in row if name == "rotate"]
    theirs = [value for row in timm_calls(policy("rand-m9-mstd0.3-n3-p1")) for name, value in row if name == "rotate"]
    assert differ(ours, theirs)


def test_interpolations_and_signs_are_equally_likely_for_each_operation():
    steps = steps_of(policy("rand-m9-p1"))
    first, second = compute(steps, np.tile([8, 8], (20000, 1)), Randoms(0, 0, 20000), slice(None))
    for one in (first, second):
        assert not misfit(np.bincount(one["choice"]), [0.5, 0.5])
        assert not misfit(np.bincount(one["which"])[np.unique(one["which"])], [1 / 15] * 15)
    turned = first["value"][first["which"] == OPERATIONS.index("rotate")]
    assert not misfit([(turned < 0).sum(), (turned > 0).sum()], [0.5, 0.5])
    both = Counter(zip(first["choice"].tolist(), second["choice"].tolist(), strict=True))
    assert not misfit(list(both.values()), [0.25] * 4)


@pytest.mark.parametrize("config", ["rand-mstd1-tweights", "v0-mstd0.7", "3a"])
def test_random_numbers_do_not_depend_on_how_a_batch_is_split(config):
    steps, sizes = steps_of(policy(config)), np.random.default_rng(0).integers(8, 99, (60, 2))
    whole = compute(steps, sizes, Randoms(7, 100, 60), slice(None))
    for at in range(0, 60, 13):
        part = sizes[at : at + 13]
        for one, all_of_it in zip(
            compute(steps, part, Randoms(7, 100 + at, len(part)), slice(None)), whole, strict=True
        ):
            assert {k: a.tobytes() for k, a in one.items()} == {
                k: a[at : at + 13].tobytes() for k, a in all_of_it.items()
            }


# ---- unsupported policies


def _changed_policy(config, change):
    transform = policy(config)
    change(transform)
    return transform


class Mine(aa.AugmentOp):
    pass


REFUSED = {
    "a subclass of an operation": (
        lambda t: setattr(t.ops[3], "__class__", Mine),
        "its operation Mine is not a supported AugmentOp",
    ),
    "an attribute": (lambda t: setattr(t.ops[3], "strength", 2), "not a supported AugmentOp"),
    "a function": (lambda t: setattr(t.ops[3], "aug_fn", aa.invert), "Rotate is not supported"),
    "a level": (lambda t: setattr(t.ops[3], "level_fn", lambda level, _: 1 / 0), "Rotate is not supported"),
    "another level": (lambda t: setattr(t.ops[3], "level_fn", aa._shear_level_to_arg), "Rotate is not supported"),
    "another bound": (lambda t: setattr(t.ops[3], "magnitude_max", "5"), "raises TypeError"),
    "no reach": (
        lambda t: vars(t.ops[3]).update(vars(aa.AugmentOp("TranslateX")) | {"hparams": {}}),
        "differ in inter",
    ),
    "half a layer": (lambda t: setattr(t, "num_layers", 1.5), "num_layers=1.5"),
    "weights": (lambda t: setattr(t, "choice_weights", [1.0] * 15), "choice_weights"),
    "a fill of one": (lambda t: t.ops[3].kwargs.update(fillcolor=(1, 2, 3)), "differ in interpolation or fill"),
    "a filter": (lambda t: [op.kwargs.update(resample=Image.LANCZOS) for op in t.ops], "cannot warp with resample"),
    "a fractional fill": (lambda t: [op.kwargs.update(fillcolor=(0.5, 1, 2)) for op in t.ops], "img_mean"),
    "no operations": (lambda t: t.ops.clear(), "no operations"),
    "too many of a few": (lambda t: vars(t).update(num_layers=16, choice_weights=[1 / 15] * 15), "choice_weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_operation_is_refused_with_the_reason(name):
    change, reason = REFUSED[name]
    chain = translate(_changed_policy("rand-m9-mstd0.5", change))
    assert chain.refused and reason in str(chain.refused)


def test_replaced_code_of_timm_is_refused(monkeypatch):
    def call(self, image):
        return image.transpose(Image.Transpose.ROTATE_90)

    for kind, config in ((aa.RandAugment, "rand"), (aa.AutoAugment, "v0")):
        transform = policy(config)
        monkeypatch.setattr(kind, "__call__", call)
        assert f"{kind.__name__}.__call__ was replaced" in str(translate(transform).refused)
    monkeypatch.undo()
    monkeypatch.setattr(aa.AugmentOp, "__call__", lambda self, image: self.aug_fn(image, **self.kwargs))
    assert "AugmentOp.__call__ of this version of timm is not supported" in str(translate(policy("rand-p1")).refused)
    monkeypatch.undo()
    monkeypatch.setattr(aa, "_LEVEL_DENOM", 20.0)  # other changes of this code are detected by their effect
    assert "Rotate of this version of timm is not supported" in str(translate(policy("rand-m9-p1")).refused)
    monkeypatch.undo()
    monkeypatch.setattr(aa, "invert", lambda image, **_: image)
    assert "Invert is not supported" in str(translate(policy("rand-p1")).refused)


def test_policy_is_refused_for_tensors_and_gray_images():
    after = T.Compose([T.CenterCrop(8), T.PILToTensor(), policy("rand")])
    assert "takes PIL images" in str(translate(after).refused)
    gray = T.Compose([T.Grayscale(), policy("rand")])
    assert "does not fit an image with 1 channel(s)" in str(translate(gray).refused)


def test_translation_does_not_change_random_states():
    random.seed(4)
    np.random.seed(4)
    before = random.getstate(), np.random.get_state()[1].tolist()
    steps_of(policy("rand-m9-mstd0.5-inc1"))
    steps_of(policy("v0"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# ---- RandomErasing

ERASING = {
    "const": {},
    "rand": dict(mode="rand"),
    "pixel": dict(mode="pixel"),
    "several": dict(min_count=1, max_count=3, max_area=0.5),
    "several of pixels": dict(min_count=2, max_count=4, mode="pixel", max_area=0.9, min_aspect=0.1),
    "hardly fits": dict(min_area=0.8, max_area=1.0, max_count=2, min_aspect=0.5, mode="rand"),
}


@pytest.mark.parametrize("name", ERASING)
def test_erased_regions_equal_timms(name):
    erase = RandomErasing(0.7, device="cpu", **ERASING[name])
    transform = T.Compose([T.ToTensor(), erase])
    steps, changed = steps_of(transform), 0
    for seed in range(3):
        ours = by_kernels([s for s in steps if s.op != "pil_to_tensor"], pictures(), seed)
        for row, image in enumerate(pictures()):
            theirs = reference(transform, steps, T.functional.to_pil_image(image), seed, row)
            torch.testing.assert_close(ours[row], theirs, atol=1e-6, rtol=1e-6)
            changed += not torch.equal(theirs, T.functional.to_tensor(T.functional.to_pil_image(image)))
    assert 20 < changed < 72


def test_distribution_of_erased_regions_equals_timms():
    count, erase = 3000, RandomErasing(0.6, max_count=2, device="cpu")
    steps = [s for s in steps_of(T.Compose([T.ToTensor(), erase])) if s.op == "erase"]
    random.seed(0)
    theirs = [(erase(torch.ones(1, 30, 40)) == 0).sum().item() for _ in range(count)]
    ours = (by_kernels(steps, torch.ones(count, 3, 30, 40), 0)[:, 0] == 0).sum((1, 2)).tolist()
    assert not differ(ours, theirs)


def test_unsupported_random_erasing_is_refused():
    erase = RandomErasing(0.5, device="cpu")
    assert "takes tensors" in str(translate(erase).refused)
    for change in ({"brush": 3}, {"device": "cuda"}):
        if torch.cuda.is_available() and "device" in change:
            continue
        other = RandomErasing(0.5, device="cpu")
        vars(other).update(change)
        assert translate(T.Compose([T.ToTensor(), other])).refused
    other = RandomErasing(0.5, mode="pixel", device="cpu")
    assert "random colors are not supported for torch.uint8" in str(
        translate(T.Compose([T.PILToTensor(), other])).refused
    )
    other = RandomErasing(0.5, min_count=3, max_count=2, device="cpu")
    assert "min_count=3 must be from 0 to max_count=2" in str(translate(T.Compose([T.ToTensor(), other])).refused)


# ---- ToNumpy


def test_arrays_are_collated_as_in_torchs_loader(image_root):
    folder = timm.ImageDataset(str(image_root), transform=T.Compose([T.CenterCrop(32), tt.ToNumpy()]))
    for collate in (None, timm.loader.fast_collate):
        loader = DataLoader(folder, 5, fallback="error", device="cpu", collate_fn=collate)
        assert "Python" not in loader.explain()
        assert_same_epoch(loader, data.DataLoader(folder, 5, collate_fn=collate))
        assert outlines(loader) == outlines(data.DataLoader(folder, 5, collate_fn=collate))


def test_custom_collate_fn_gets_arrays(image_root):
    def collate(samples):
        assert {type(image) for image, _ in samples} == {np.ndarray}
        return torch.from_numpy(np.stack([image[::-1] for image, _ in samples])), torch.tensor([t for _, t in samples])

    folder = timm.ImageDataset(str(image_root), transform=T.Compose([T.CenterCrop(32), tt.ToNumpy()]))
    loader = DataLoader(folder, 5, fallback="error", device="cpu", collate_fn=collate)
    assert_same_epoch(loader, data.DataLoader(folder, 5, collate_fn=collate))


def as_floats(array):
    assert type(array) is np.ndarray
    return torch.from_numpy(array.astype(np.float32) / 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_transform_after_to_numpy_gets_an_array(image_root, workers):
    transform = T.Compose([T.CenterCrop(32), tt.ToNumpy(), as_floats, T.Normalize((3, 4, 5), (6, 7, 8))])
    folder = timm.ImageDataset(str(image_root), transform=transform)
    with pytest.warns(FallbackWarning, match="it gets a NumPy array here"):
        loader = DataLoader(folder, 5, device="cpu", num_workers=workers)
    assert_same_epoch(loader, data.DataLoader(folder, 5))


# ---- whole chains, and create_loader


def _epoch_and_reference(loader, inner, root, transform):
    """Return our images of an epoch, and timm's images for the same random numbers."""
    torch.manual_seed(0)
    iterator = iter(inner)
    (plan,) = inner._route.plans
    batches = [batch[0] for batch in iterator]
    paths = [path for path, _ in timm.ImageDataset(str(root)).reader.samples]
    return torch.cat(batches), [
        reference(transform, plan.steps, pil_loader(path), iterator._base_seed, place)
        for place, path in enumerate(paths)
    ]


@pytest.mark.parametrize("interpolation", ["random", "bicubic"])
@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "v0", "3a"])
def test_training_transform_equals_timms(image_root, config, interpolation):
    """The whole of create_transform(), including RandomErasing."""
    options = dict(interpolation=interpolation, auto_augment=config, re_prob=0.5, re_mode="pixel", color_jitter=None)
    transform = timm.create_transform(48, is_training=True, **options)
    folder = timm.ImageDataset(str(image_root), transform=transform)
    loader = DataLoader(folder, 7, exact=True, fallback="error", device="cpu")
    assert "Python" not in loader.explain()
    ours, theirs = _epoch_and_reference(loader, loader, image_root, transform)
    assert len(ours) == len(theirs) == 24
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "original", "3a"])
def test_custom_data_set_with_a_policy_draws_timms_numbers(image_root, config):
    folder = ImageFolder(image_root)
    dataset = Plain(folder, T.Compose([T.Resize((32, 40)), policy(config), T.ToTensor()]))
    batches = seeded(dataset, 7, shuffle=True)
    mine = batches(lambda *a, **kw: DataLoader(*a, exact=True, fallback="silent", device="cpu", **kw))
    assert_same(mine, batches(data.DataLoader))


@pytest.mark.parametrize("prefetcher", [True, False])
@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "original-mstd0.5", "3a"])
def test_create_loader_works_completely_under_install(image_root, prefetcher, config):
    dataset = timm.ImageDataset(str(image_root))
    options = dict(
        is_training=True, auto_augment=config, re_prob=0.3, re_mode="pixel", interpolation="random", device=CPU,
        use_prefetcher=prefetcher, num_workers=1, persistent_workers=False,
    )  # fmt: skip
    with install(device="cpu", fallback="error"):
        loader = timm.create_loader(dataset, (3, 32, 32), 6, **options)
    inner = loader.loader if prefetcher else loader
    assert isinstance(inner, DataLoader) and "Python" not in inner.explain()
    images = torch.cat([images for images, _ in loader])
    assert images.shape == (24, 3, 32, 32) and images.dtype == torch.float32
    theirs = torch.cat([images for images, _ in timm.create_loader(dataset, (3, 32, 32), 6, **options)])
    assert abs(images.mean() - theirs.mean()) < 0.5 and math.isfinite(images.std())
