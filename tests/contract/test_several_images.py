"""Data sets of the user's whose samples have several images."""

import functools
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import make_folder
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract import own_datasets as own
from contract.both import error_of, ours, stock
from contract.test_odd_datasets import dataset_of
from contract.test_own_datasets import assert_same, real, seeded
from dali_compat import DataLoader
from dali_compat.data import headers
from dali_compat.engine.dali.pipeline import DecodePipeline

TENSOR = T.ToTensor()
CROP = T.Compose([T.RandomCrop(8), TENSOR])


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


def _two_crops(self, i):
    image = own.read_rgb(self.paths[i])
    return CROP(image), CROP(image), i


def _pair(self, i):
    return tuple(CROP(own.read_rgb(self.paths[i - number])) for number in range(2)), i


def _unlike_pair(self, i):
    return CROP(own.read_rgb(self.paths[i])), T.PILToTensor()(T.Resize((9, 9))(own.read_rgb(self.paths[i - 1])))


def _drawn(folder, get, batch, **options):
    """What all samples of an epoch have, in one tensor for each image."""
    batches = seeded(dataset_of(folder, get), batch, shuffle=True, **options)(
        lambda *a, **kw: ours(*a, device="cpu", **kw)
    )
    return [torch.cat(column) for column in zip(*batches, strict=True)]


def test_draws(folder):
    """Each image has its own. In workers nothing but the seed and the sample's place changes them."""
    first, second, order = _drawn(folder, _two_crops, 5, exact=True, num_workers=1)
    differ = (first != second).flatten(1).any(1)
    assert differ.sum() > 12
    assert_same(_drawn(folder, _two_crops, 4, exact=True, num_workers=2, prefetch_factor=3), [first, second, order])
    alone, _ = _drawn(folder, lambda self, i: (CROP(own.read_rgb(self.paths[i])), i), 5, exact=True, num_workers=2)
    assert torch.equal(alone, first)


def test_draws_are_torchs(folder):
    """Without workers, where the program's generators draw, as in torch's loader."""
    mine = _drawn(folder, _two_crops, 5, exact=True)
    theirs = seeded(dataset_of(folder, _two_crops), 5, shuffle=True)(stock)
    assert_same(mine, [torch.cat(column) for column in zip(*theirs, strict=True)])


class _Blur:
    """Pillow's, as in many public scripts of self-supervised learning."""

    def __init__(self, p):
        self.p, self.filter = p, ImageFilter.GaussianBlur()

    def __call__(self, image):
        if random.random() >= self.p:
            return image
        self.filter.radius = random.uniform(0.1, 2.0)  # of one object, again and again
        return image.filter(self.filter)


class _Solarize:
    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < 0.2 else image


def _multi_crop(self, i):
    """Two large views and two small ones, each of other steps."""
    image, sides = own.read_rgb(self.paths[i]), (40, 40, 16, 16)
    jitter, last = (
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        T.Compose([T.ToTensor(), T.Normalize(0.5, 0.2)]),
    )
    views = []
    for number, side in enumerate(sides):
        steps = [
            T.RandomResizedCrop(side, (0.3, 1.0), interpolation=T.InterpolationMode.BICUBIC),
            T.RandomHorizontalFlip(),
        ]
        steps += [jitter, T.RandomGrayscale(0.2), _Blur((1.0, 0.1, 0.5, 0.5)[number])]
        views.append(T.Compose([*steps, *[_Solarize()] * (number == 1), last])(image))
    return views, i


@pytest.mark.parametrize("batch", [3, 8])
def test_views_of_one_file_are_torchs(folder, batch):
    made = seeded(dataset_of(folder, _multi_crop), batch, shuffle=True)
    theirs = made(stock)
    assert_same(made(lambda *a, **kw: ours(*a, device="cpu", exact=True, **kw)), theirs)
    for (mine, order), (views, orders) in zip(made(lambda *a, **kw: ours(*a, device="cpu", **kw)), theirs, strict=True):
        assert torch.equal(order, orders)
        for one, other in zip(mine, views, strict=True):
            assert (one - other).abs().mean() < 0.05


@pytest.mark.parametrize(
    "filter",
    [ImageFilter.BLUR, ImageFilter.GaussianBlur((1, 2)), ImageFilter.GaussianBlur(0)],
    ids=["BLUR", "two radii", "none"],
)
def test_filters(folder, filter):
    """Pillow's own: real images, but for one radius."""

    def get(self, i):
        return TENSOR(own.read_rgb(self.paths[i]).resize((20, 20)).filter(filter)), i

    fallback = "error" if getattr(filter, "radius", None) == 0 else "silent"
    made = seeded(dataset_of(folder, get), 5)
    assert_same(made(lambda *a, **kw: ours(*a, device="cpu", exact=True, fallback=fallback, **kw)), made(stock))


@pytest.mark.parametrize(("get", "times"), [(_two_crops, 1), (_multi_crop, 1), (_pair, 2)])
def test_images_of_one_file_are_decoded_together(tmp_path, get, times, monkeypatch):
    counts, submit = [], DecodePipeline.submit
    monkeypatch.setattr(
        DecodePipeline, "submit", lambda self, images, *args: counts.append(len(images)) or submit(self, images, *args)
    )
    folder = ImageFolder(make_folder(tmp_path / "images", classes=2, per_class=6, special=False))
    assert sum(len(order) for *_, order in ours(dataset_of(folder, get), 5, device="cpu")) == 12
    assert sum(counts) == times * 12


def test_draws_that_images_share(folder):
    """Those of what they have gone through together, in whatever order; what comes after draws for itself."""
    small, flip = T.Resize(4), T.Compose([T.RandomHorizontalFlip(), TENSOR])

    def get(self, i):
        crop = T.RandomCrop(8)(own.read_rgb(self.paths[i]))
        return TENSOR(small(crop)), TENSOR(crop), flip(crop), flip(crop), CROP(own.read_rgb(self.paths[i]))

    low, high, *flipped, other = _drawn(folder, get, 7, exact=True)
    assert torch.equal(low, torch.stack([TENSOR(small(T.ToPILImage()(image))) for image in high]))
    sides = torch.tensor([[torch.equal(x, y) for x, y in zip(high, one, strict=True)] for one in flipped])
    assert torch.equal(torch.where(sides[0][:, None, None, None], high, high.flip(-1)), flipped[0])
    assert torch.equal(torch.where(sides[1][:, None, None, None], high, high.flip(-1)), flipped[1])
    assert sides.any(1).all() and not sides.all(1).any() and not torch.equal(sides[0], sides[1])
    assert (other != high).flatten(1).any(1).sum() > 12


def test_an_image_beside_its_tensor(folder):
    """A random one that stays in PIL is the one that the tensor was made of."""

    def get(self, i):
        crop = T.RandomCrop(8)(own.read_rgb(self.paths[i])) if i > 3 else own.read_rgb(self.paths[i])
        return TENSOR(crop), crop

    for batch in ours(dataset_of(folder, get), 4, exact=True, device="cpu", collate_fn=list):
        assert all(torch.equal(tensor, TENSOR(image)) for tensor, image in batch)


def test_resume(folder):
    """In the middle of an epoch, in a new loader."""
    for workers in (0, 2):
        loader = ours(dataset_of(folder, _two_crops), 4, shuffle=True, device="cpu", num_workers=workers)
        whole = iter(loader)
        next(whole), next(whole)
        state, rest = loader.state_dict(), list(whole)
        again = ours(dataset_of(folder, _two_crops), 4, shuffle=True, device="cpu", num_workers=workers)
        again.load_state_dict(state)
        assert_same(list(again), rest)


def _any_number(self, i):
    made = [self.transform(own.read_rgb(self.paths[i - number])) for number in range((i + 2) % 4)]
    if i % 5 == 1 and made:
        made[0] = made[0] * 1.0
    return (made, i) if i % 7 else {"one": made, "again": tuple(made), "image": Image.open(self.paths[i]).convert("L")}


@pytest.mark.parametrize("workers", [0, 2])
def test_another_number_in_each_sample(folder, workers):
    """Of all kinds, some of them real, and images that stay in PIL, for a collate_fn."""
    options = dict(collate_fn=list, num_workers=workers)
    mine, theirs = (
        [sample for batch in make(dataset_of(folder, _any_number), workers or 1, **options) for sample in batch]
        for make in (lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), stock)
    )
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(one, dict):
            assert np.array_equal(one.pop("image"), other.pop("image"))
            assert all(x is y for x, y in zip(one["one"], one["again"], strict=True))
        assert_same(one, other)
    del options["collate_fn"]
    errors = [
        error_of(list, make(dataset_of(folder, _any_number), 5)) for make in (stock, lambda *a: ours(*a, device="cpu"))
    ]
    assert type(errors[0]) is type(errors[1]) and str(errors[1]).startswith(str(errors[0]))


def test_pil_images_in_a_batch_are_torchs(folder):
    def get(self, i):
        image = own.read_rgb(self.paths[i])
        return T.CenterCrop(8)(image), [T.CenterCrop(9)(image), image]

    loader = DataLoader(dataset_of(folder, get), 5, device="cpu", fallback="silent", collate_fn=list, num_workers=1)
    mine = [sample for batch in loader for sample in batch]
    for (one, (two, three)), theirs in zip(mine, dataset_of(folder, get), strict=True):
        assert np.array_equal(one, theirs[0]) and np.array_equal(two, theirs[1][0])
        assert np.array_equal(three, theirs[1][1])


def test_one_that_is_kept(folder):
    """A tensor, or the image that two of them are made of: what is kept is what the sample has."""

    def get(self, i):
        crop = T.RandomCrop(8)(own.read_rgb(self.paths[i]))
        made = TENSOR(crop), TENSOR(crop), CROP(own.read_rgb(self.paths[i - 1]))
        if i % 6 == 2:
            self.kept[i] = made[i % 3]
        if i % 6 == 4:
            self.kept[i] = crop
        return made, i

    dataset = dataset_of(folder, get, kept={})
    loader = ours(dataset, 5, exact=True, device="cpu", collate_fn=list)
    samples = {i: made for batch in loader for made, i in batch}
    assert real(loader) == 0 and len(dataset.kept) == 8
    for i, kept in dataset.kept.items():
        if i % 6 == 2:
            assert torch.equal(kept, samples[i][i % 3])
        else:
            assert all(torch.equal(TENSOR(kept), made) for made in samples[i][:2])


def test_files_that_pillow_decodes_are_in_one_batch_with_deferred_ones(tmp_path):
    paths = []
    for number in range(6):
        gray = np.random.default_rng(number).integers(0, 256, (30 + number, 40), np.uint8)
        paths.append(str(tmp_path / f"{number}.{('png', 'gif')[number % 2]}"))
        Image.fromarray(gray).save(paths[-1])
    time.sleep(0.05)  # files that were written just now are not deferred
    folder = SimpleNamespace(samples=[(path, 0) for path in paths])
    mine, theirs = (
        seeded(dataset_of(folder, _two_crops), 3, exact=True)(ours_on_cpu),
        seeded(dataset_of(folder, _two_crops), 3)(stock),
    )
    assert_same(mine, theirs)


def ours_on_cpu(*args, **kwargs):
    return ours(*args, device="cpu", **kwargs)


def test_images_change_one_by_one(folder):
    """To autograd, too."""
    first, second, _ = next(iter(ours(dataset_of(folder, _two_crops), 5, device="cpu")))
    before = second.clone()
    (second * torch.ones(1, requires_grad=True)).sum().backward()
    product = (second * torch.ones(1, requires_grad=True)).sum()
    first.zero_()
    product.backward()
    assert torch.equal(second, before)
    first, second = next(iter(ours(dataset_of(folder, _twice), 5, device="cpu")))
    first.zero_()
    assert second.any()


def _twice(self, i):
    image = self.transform(own.read_rgb(self.paths[i]))
    return image, image


def _masked(self, i):
    """A gray image that is not normalised may be a mask."""
    image, mask = own.read_rgb(self.paths[i]), Image.open(self.paths[i]).convert("L")
    return own.AFTER(T.CenterCrop(16)(image)), T.PILToTensor()(T.CenterCrop(16)(mask))


def test_headers_are_read_once(folder, monkeypatch):
    """Those of each image of a sample, although one transform is for all."""
    loader = ours(
        dataset_of(folder, lambda self, i: [self.transform(own.read_rgb(self.paths[i - n])) for n in (0, 1)]),
        5,
        device="cpu",
    )
    list(loader)
    monkeypatch.setattr(headers, "read_header", None)
    assert len(list(loader)) == 5


def test_explain_says_how_many_images_a_sample_has(folder):
    text = ours(dataset_of(folder, own.TwoCrops.__getitem__), 5, device="cpu").explain()
    assert "a sample has 2 images" in text
    text = ours(dataset_of(folder, _unlike_pair), 5, device="cpu").explain()
    assert "image 1 of a sample:" in text and "image 2 of a sample:" in text
    text = ours(dataset_of(folder, _masked), 5, device="cpu").explain()
    assert "torchvision makes image 2 of a sample" in text and "a sample has 2 images" in text


@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_cannot_be_read(own_root, workers):
    """Its sample is bad, and its file is named."""
    folder = ImageFolder(own_root)
    bad = folder.samples[3][0]
    content = open(bad, "rb").read()
    open(bad, "wb").write(content[: len(content) // 2])
    time.sleep(0.05)  # files that were written just now are not left to DALI

    def get(self, i):
        return [self.transform(own.read_rgb(self.paths[i - number])) for number in range(2)], i

    options = dict(device="cpu", exact=True, num_workers=workers)
    error, theirs = (
        error_of(list, ours(dataset_of(folder, get), 3, **options)),
        error_of(list, stock(dataset_of(folder, get), 3)),
    )
    assert type(error) is type(theirs) and str(theirs) in str(error)
    for policy in ("skip", "replace"):
        loader = ours(dataset_of(folder, get), 3, on_error=policy, **options)
        with pytest.warns(match="of 8 samples were"):
            made = list(loader)
        assert {one.index for one in loader.errors} >= {3, 4} and {one.path for one in loader.errors} == {bad}
        assert all("\n" not in one.reason and "truncated" in one.reason for one in loader.errors)
        rows = [(pair, i) for images, numbers in made for *pair, i in zip(*images, numbers.tolist(), strict=True)]
        assert len(rows) == (6 if policy == "skip" else 8)
        for pair, i in rows:
            assert_same(pair, dataset_of(folder, get)[i][0])


def _pyramid(self, i):
    """As scripts for depth do: each size is made of the one before, plain and with other colours."""
    image, found = own.read_rgb(self.paths[i]), []
    for side in (64, 32, 16, 8):
        image = image.resize((side, side))
        found += [TENSOR(image), TENSOR(ImageOps.invert(image))]
    return found


def _two_pyramids(self, i):
    return _pyramid(self, i) + _pyramid(self, i - 1)


def _crops_of_one(self, i):
    image = T.Resize((32, 32))(own.read_rgb(self.paths[i]))
    return [CROP(image) for _ in range(8)]


@pytest.mark.parametrize("get", [_pyramid, _two_pyramids, _crops_of_one])
def test_what_images_have_in_common_is_made_once(folder, get):
    """Where making each from its file would take far longer, torch's loader does the work, and a warning says so."""
    dataset = dataset_of(folder, get)
    exact = functools.partial(DataLoader, exact=True, device="cpu")
    with pytest.warns(match="makes several images of one that it has transformed; move their common"):
        batches = seeded(dataset, 4)(exact)
    assert_same(batches, seeded(dataset, 4)(stock))


def test_views_of_a_file_are_not_too_many(folder):
    """What they have in common is the decoded file."""
    dataset = dataset_of(folder, lambda self, i: [*map(CROP, [own.read_rgb(self.paths[i])] * 8)])
    assert len(next(iter(ours(dataset, 4, device="cpu")))) == 8


BLUR, GRAY = T.GaussianBlur(5), T.RandomGrayscale(0.3)
JITTER = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.6)
TO_FLOAT = T.Compose([TENSOR, T.Normalize((0.5,) * 3, (0.25,) * 3)])
WINDOW = T.RandomResizedCrop(16)
VIEW = T.Compose([WINDOW, JITTER, GRAY, T.RandomHorizontalFlip(), T.RandomSolarize(100, 0.4), TO_FLOAT])
OTHER_VIEW = T.Compose([WINDOW, T.RandomApply([BLUR]), JITTER, T.RandomInvert(), T.RandomAutocontrast(), TO_FLOAT])
POLICY = T.Compose([WINDOW, T.RandomChoice([T.RandAugment(), JITTER, T.RandomPosterize(3), BLUR, GRAY]), TO_FLOAT])


def _random_views(self, i):
    image = own.read_rgb(self.paths[i])
    return VIEW(image), OTHER_VIEW(image), VIEW(image), i


def _random_operations(self, i):
    return POLICY(own.read_rgb(self.paths[i])), i


@pytest.mark.parametrize(("get", "exact"), [(_random_views, True), (_random_operations, True), (_random_views, False)])
def test_random_operations_of_many_kinds_share_pipelines(folder, get, exact, monkeypatch):
    """Building a pipeline takes a second, so their number must not grow with the variety of samples."""
    used, submit = set(), DecodePipeline.submit
    monkeypatch.setattr(DecodePipeline, "submit", lambda self, *args: used.add(self) or submit(self, *args))
    batches = seeded(dataset_of(folder, get), 8, shuffle=True)
    for made, meant in zip(
        batches(lambda *a, **kw: ours(*a, device="cpu", exact=exact, **kw)), batches(stock), strict=True
    ):
        for one, other in zip(made, meant, strict=True):
            assert torch.equal(one, other) if exact else (one.float() - other.float()).abs().mean() < 0.02
    assert 1 <= len(used) <= 2
