"""Custom data sets whose samples have several images."""

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


def _pair_of_different_transforms(self, i):
    return CROP(own.read_rgb(self.paths[i])), T.PILToTensor()(T.Resize((9, 9))(own.read_rgb(self.paths[i - 1])))


def _columns(folder, get, batch, **options):
    """Return the samples of an epoch, concatenated into one tensor per element of a sample."""
    batches = seeded(dataset_of(folder, get), batch, shuffle=True, **options)(
        lambda *a, **kw: ours(*a, device="cpu", **kw)
    )
    return [torch.cat(column) for column in zip(*batches, strict=True)]


def test_each_image_of_a_sample_draws_its_own_numbers(folder):
    """In workers, the numbers depend only on the seed and on the sample's position."""
    first, second, order = _columns(folder, _two_crops, 5, exact=True, num_workers=1)
    differ = (first != second).flatten(1).any(1)
    assert differ.sum() > 12
    assert_same(_columns(folder, _two_crops, 4, exact=True, num_workers=2, prefetch_factor=3), [first, second, order])
    single, _ = _columns(folder, lambda self, i: (CROP(own.read_rgb(self.paths[i])), i), 5, exact=True, num_workers=2)
    assert torch.equal(single, first)


def test_random_numbers_equal_torchs_without_workers(folder):
    """The program's generators are used, as in torch's loader."""
    mine = _columns(folder, _two_crops, 5, exact=True)
    theirs = seeded(dataset_of(folder, _two_crops), 5, shuffle=True)(stock)
    assert_same(mine, [torch.cat(column) for column in zip(*theirs, strict=True)])


class _Blur:
    """A blur with Pillow's filter, as in many public scripts of self-supervised learning."""

    def __init__(self, p):
        self.p, self.filter = p, ImageFilter.GaussianBlur()

    def __call__(self, image):
        if random.random() >= self.p:
            return image
        self.filter.radius = random.uniform(0.1, 2.0)  # one filter object is reused for all images
        return image.filter(self.filter)


class _Solarize:
    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < 0.2 else image


def _multi_crop(self, i):
    """Return two large views and two small ones, each with different steps."""
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


def test_views_of_one_file_equal_torchs(folder):
    made = seeded(dataset_of(folder, _multi_crop), 3, shuffle=True)
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
def test_images_filtered_by_pillow_equal_torchs(folder, filter):
    """Only a Gaussian blur with a single radius is deferred."""

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


def test_images_share_the_random_numbers_of_their_common_steps(folder):
    """Steps after the common ones draw separately, whatever the order of the images."""
    small, flip = T.Resize(4), T.Compose([T.RandomHorizontalFlip(), TENSOR])

    def get(self, i):
        crop = T.RandomCrop(8)(own.read_rgb(self.paths[i]))
        return TENSOR(small(crop)), TENSOR(crop), flip(crop), flip(crop), CROP(own.read_rgb(self.paths[i]))

    low, high, *flipped, other = _columns(folder, get, 7, exact=True)
    assert torch.equal(low, torch.stack([TENSOR(small(T.ToPILImage()(image))) for image in high]))
    sides = torch.tensor([[torch.equal(x, y) for x, y in zip(high, one, strict=True)] for one in flipped])
    assert torch.equal(torch.where(sides[0][:, None, None, None], high, high.flip(-1)), flipped[0])
    assert torch.equal(torch.where(sides[1][:, None, None, None], high, high.flip(-1)), flipped[1])
    assert sides.any(1).all() and not sides.all(1).any() and not torch.equal(sides[0], sides[1])
    assert (other != high).flatten(1).any(1).sum() > 12


def test_pil_image_in_a_sample_equals_the_tensor_made_from_it(folder):
    def get(self, i):
        crop = T.RandomCrop(8)(own.read_rgb(self.paths[i])) if i > 3 else own.read_rgb(self.paths[i])
        return TENSOR(crop), crop

    for batch in ours(dataset_of(folder, get), 4, exact=True, device="cpu", collate_fn=list):
        assert all(torch.equal(tensor, TENSOR(image)) for tensor, image in batch)


def test_epoch_resumed_in_a_new_loader_gives_the_remaining_batches(folder):
    options = dict(shuffle=True, device="cpu", num_workers=2)
    loader = ours(dataset_of(folder, _two_crops), 4, **options)
    whole = iter(loader)
    next(whole), next(whole)
    state, rest = loader.state_dict(), list(whole)
    resumed = ours(dataset_of(folder, _two_crops), 4, **options)
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)


def _any_number(self, i):
    made = [self.transform(own.read_rgb(self.paths[i - number])) for number in range((i + 2) % 4)]
    if i % 5 == 1 and made:
        made[0] = made[0] * 1.0
    return (made, i) if i % 7 else {"one": made, "again": tuple(made), "image": Image.open(self.paths[i]).convert("L")}


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_may_have_different_numbers_of_images(folder, workers):
    """The samples contain deferred tensors, real tensors and PIL images."""
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


def test_pil_images_in_a_sample_equal_torchs(folder):
    def get(self, i):
        image = own.read_rgb(self.paths[i])
        return T.CenterCrop(8)(image), [T.CenterCrop(9)(image), image]

    loader = DataLoader(dataset_of(folder, get), 5, device="cpu", fallback="silent", collate_fn=list, num_workers=1)
    mine = [sample for batch in loader for sample in batch]
    for (one, (two, three)), theirs in zip(mine, dataset_of(folder, get), strict=True):
        assert np.array_equal(one, theirs[0]) and np.array_equal(two, theirs[1][0])
        assert np.array_equal(three, theirs[1][1])


def test_image_kept_by_the_data_set_equals_the_image_of_the_sample(folder):
    """The data set keeps a tensor, or the PIL image that two tensors are made from."""

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


def test_batch_with_files_decoded_by_pillow_and_by_dali_equals_torchs(tmp_path):
    paths = []
    for number in range(6):
        gray = np.random.default_rng(number).integers(0, 256, (30 + number, 40), np.uint8)
        paths.append(str(tmp_path / f"{number}.{('png', 'gif')[number % 2]}"))
        Image.fromarray(gray).save(paths[-1])
    time.sleep(0.05)  # recently written files are not deferred
    folder = SimpleNamespace(samples=[(path, 0) for path in paths])
    mine, theirs = (
        seeded(dataset_of(folder, _two_crops), 3, exact=True)(ours_on_cpu),
        seeded(dataset_of(folder, _two_crops), 3)(stock),
    )
    assert_same(mine, theirs)


def ours_on_cpu(*args, **kwargs):
    return ours(*args, device="cpu", **kwargs)


def test_in_place_change_of_one_image_does_not_affect_others(folder):
    """This includes autograd's version counters."""
    first, second, _ = next(iter(ours(dataset_of(folder, _two_crops), 5, device="cpu")))
    before = second.clone()
    (second * torch.ones(1, requires_grad=True)).sum().backward()
    product = (second * torch.ones(1, requires_grad=True)).sum()
    first.zero_()
    product.backward()
    assert torch.equal(second, before)
    first, second = next(iter(ours(dataset_of(folder, _same_image_twice), 5, device="cpu")))
    first.zero_()
    assert second.any()


def _same_image_twice(self, i):
    image = self.transform(own.read_rgb(self.paths[i]))
    return image, image


def _image_and_mask(self, i):
    """Return an image and a gray image; it may be a mask, because it is not normalized."""
    image, mask = own.read_rgb(self.paths[i]), Image.open(self.paths[i]).convert("L")
    return own.AFTER(T.CenterCrop(16)(image)), T.PILToTensor()(T.CenterCrop(16)(mask))


def test_headers_are_read_only_once_per_file(folder, monkeypatch):
    """Two images of a sample share one transform."""
    loader = ours(
        dataset_of(folder, lambda self, i: [self.transform(own.read_rgb(self.paths[i - n])) for n in (0, 1)]),
        5,
        device="cpu",
    )
    list(loader)
    monkeypatch.setattr(headers, "read_header", None)
    assert len(list(loader)) == 5


def test_explain_gives_the_number_of_images_per_sample(folder):
    text = ours(dataset_of(folder, own.TwoCrops.__getitem__), 5, device="cpu").explain()
    assert "a sample has 2 images" in text
    text = ours(dataset_of(folder, _pair_of_different_transforms), 5, device="cpu").explain()
    assert "image 1 of a sample:" in text and "image 2 of a sample:" in text
    text = ours(dataset_of(folder, _image_and_mask), 5, device="cpu").explain()
    assert "torchvision, not DALI, computes image 2 of a sample" in text and "a sample has 2 images" in text


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_makes_its_samples_bad_and_is_named(own_root, workers):
    folder = ImageFolder(own_root)
    bad = folder.samples[3][0]
    content = open(bad, "rb").read()
    open(bad, "wb").write(content[: len(content) // 2])
    time.sleep(0.05)  # recently written files are not decoded by DALI

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
    """Return an image pyramid, as in scripts for depth estimation: each size is made from the one before."""
    image, found = own.read_rgb(self.paths[i]), []
    for side in (64, 32, 16, 8):
        image = image.resize((side, side))
        found += [TENSOR(image), TENSOR(ImageOps.invert(image))]
    return found


def _two_pyramids(self, i):
    return _pyramid(self, i) + _pyramid(self, i - 1)


def _crops_of_one_resized_image(self, i):
    image = T.Resize((32, 32))(own.read_rgb(self.paths[i]))
    return [CROP(image) for _ in range(8)]


@pytest.mark.parametrize("get", [_pyramid, _two_pyramids, _crops_of_one_resized_image])
def test_data_set_with_many_images_per_transformed_image_falls_back(folder, get):
    """Computing each image from its file would take far longer than torch's loader does."""
    dataset = dataset_of(folder, get)
    exact = functools.partial(DataLoader, exact=True, device="cpu")
    with pytest.warns(match="makes several images from one that it has transformed; move their common"):
        batches = seeded(dataset, 4)(exact)
    assert_same(batches, seeded(dataset, 4)(stock))


def test_many_views_of_one_file_are_deferred(folder):
    """The views share only the decoded file."""
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
    """Building a pipeline takes a second, so the number of pipelines must not grow with the variety of samples."""
    used, submit = set(), DecodePipeline.submit
    monkeypatch.setattr(DecodePipeline, "submit", lambda self, *args: used.add(self) or submit(self, *args))
    batches = seeded(dataset_of(folder, get), 8, shuffle=True)
    for made, expected in zip(
        batches(lambda *a, **kw: ours(*a, device="cpu", exact=exact, **kw)), batches(stock), strict=True
    ):
        for one, other in zip(made, expected, strict=True):
            assert torch.equal(one, other) if exact else (one.float() - other.float()).abs().mean() < 0.02
    assert 1 <= len(used) <= 2
