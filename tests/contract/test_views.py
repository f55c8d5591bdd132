"""Transforms that return several views of an image: batches, pixels and random numbers."""

import functools
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers import make_folder
from parity.reference import reference
from PIL import Image, ImageFilter, ImageOps
from torch.utils import data
from torch.utils._pytree import tree_leaves, tree_map
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.arrays import pictures
from contract.both import EXACT, error_of, ours, outlines, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader, views
from dali_compat.engine.dali import graph
from dali_compat.ops.draws import compute
from dali_compat.randoms import Randoms

SMALL = T.Compose([T.Resize((16, 12)), T.PILToTensor()])
CROPPED = T.Compose([T.CenterCrop(40), T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)])
GRAY = T.Compose([T.Grayscale(3), T.CenterCrop(20), T.PILToTensor()])
SIMCLR = [
    T.RandomResizedCrop(24),
    T.RandomHorizontalFlip(),
    T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    T.RandomGrayscale(p=0.2),
    T.RandomSolarize(128, p=0.2),
]
AUGMENT = T.Compose([*SIMCLR, T.ToTensor()])
CENTRE = T.CenterCrop(20)
FLIP = T.Compose([T.CenterCrop(20), T.RandomHorizontalFlip(), T.PILToTensor()])


class TwoCrops:
    def __init__(self, base):
        self.base = base

    def __call__(self, x):
        return [self.base(x), self.base(x)]


class MultiCrop:
    """Crops with DINO's structure."""

    def __init__(self, large, small, count):
        self.large, self.small, self.count = large, small, count

    def __call__(self, image):
        crops = [self.large(image), self.large(image)]
        crops.extend(self.small(image) for _ in range(self.count))
        return crops


class OwnBlur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))


class DrawnColor:
    """Returns an image of a randomly drawn color."""

    def __call__(self, image):
        return Image.new("L", (1, 1), int(torch.randint(256, ()))).convert("RGB")


STRUCTURES = {
    "a list": lambda im: [SMALL(im), CROPPED(im)],
    "a tuple": lambda im: (SMALL(im), SMALL(im)),
    "a dict": lambda im: {"weak": SMALL(im), "strong": GRAY(im)},
    "nested": lambda im: {"global": [CROPPED(im), SMALL(im)], "local": (GRAY(im), {"x": SMALL(im)})},
    "a list of one": lambda im: [GRAY(im)],
    "views()": views(SMALL, CROPPED, GRAY),
    "after others": T.Compose([T.CenterCrop(44), T.RandomVerticalFlip(1.0), views(SMALL, GRAY)]),
    "of one crop": lambda im: [transform(T.CenterCrop(30)(im)) for transform in (SMALL, GRAY)],
    "the decoded image twice": lambda im: [T.PILToTensor()(T.CenterCrop(30)(im))] * 2,
    "the same steps twice": lambda im: [T.PILToTensor()(T.Resize((9, 9))(im)), T.PILToTensor()(T.Resize((9, 9))(im))],
}


def assert_equal_batches(mine, theirs) -> None:
    mine, theirs = list(mine), list(theirs)
    assert len(mine) == len(theirs) > 0
    for one, other in zip(mine, theirs, strict=True):
        assert torch.utils._pytree.tree_structure(one) == torch.utils._pytree.tree_structure(other)
        for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
            if isinstance(b, torch.Tensor):
                assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu(), b)
            else:
                assert a == b  # the target of a sample


def exact(dataset, *args, **options) -> DataLoader:
    """Return an exact loader on the CPU, which gives torch's batches for deterministic transforms."""
    return ours(dataset, *args, **{"exact": True, "device": "cpu"} | options)


@pytest.mark.parametrize("case", STRUCTURES)
def test_structure_of_batches_equals_that_of_default_collate(image_root, case):
    dataset = ImageFolder(image_root, STRUCTURES[case])
    assert_equal_batches(exact(dataset, 7), stock(dataset, 7))
    arrays = DALIArrayDataset(pictures(20, 50, 48, 3), list(range(20)), STRUCTURES[case])
    loader = exact(arrays, 7)
    assert_equal_batches(loader, stock(arrays, 7))
    assert loader.explain().startswith("resident")


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"batch_size": None}, {"drop_last": True}])
def test_batches_of_views_equal_torchs_for_each_loader_option(image_root, options):
    dataset = ImageFolder(image_root, STRUCTURES["nested"])
    options = {"batch_size": 5} | options
    loader = exact(dataset, **options)
    for _ in range(2):
        assert_equal_batches(loader, stock(dataset, **options))


def test_collate_fn_gets_samples_with_views(image_root):
    def collate(samples):
        assert all(type(image) is dict and type(target) is int for image, target in samples)
        return torch.stack([image["weak"] for image, _ in samples]), [target for _, target in samples]

    dataset = ImageFolder(image_root, STRUCTURES["a dict"])
    mine, theirs = (list(loader(dataset, 5, collate_fn=collate)) for loader in (exact, stock))
    assert all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("arrays", [False, True])
def test_views_do_not_share_memory(tmp_path, arrays):
    """Writing to one view does not change another, even if all views are identical."""
    folder = tmp_path / "alike" / "class"
    folder.mkdir(parents=True)
    images = pictures(4, 30, 30, 3)
    for number, image in enumerate(np.asarray(images)):
        Image.fromarray(image).save(folder / f"{number}.png")
    plain = views(T.PILToTensor(), T.PILToTensor(), T.PILToTensor())
    dataset = DALIArrayDataset(images, [0] * 4, plain) if arrays else ImageFolder(folder.parent, plain)
    ((one, *others), _) = next(iter(ours(dataset, 4, device="cpu", memory_format=torch.channels_last)))
    before = [other.clone() for other in others]
    one.zero_()
    assert all(torch.equal(a, b) and a.any() for a, b in zip(others, before, strict=True))


def test_views_can_be_pil_images(image_root):
    dataset = ImageFolder(image_root, lambda im: (im, SMALL(im)))
    mine, theirs = (list(loader(dataset, 5, collate_fn=list)) for loader in (exact, stock))
    for one, other in zip([s for batch in mine for s in batch], [s for batch in theirs for s in batch], strict=True):
        (image, small), (wanted, theirs_small) = one[0], other[0]
        assert np.array_equal(np.asarray(image), np.asarray(wanted)) and torch.equal(small, theirs_small)


def test_parts_with_different_view_transforms_equal_torchs(image_root):
    parts = [ImageFolder(image_root, transform) for transform in (views(SMALL, SMALL), lambda im: [SMALL(im)] * 2)]
    dataset = data.ConcatDataset(parts)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    assert_equal_batches(exact(dataset, 6, sampler=order), stock(dataset, 6, sampler=order))


def test_views_have_the_memory_format_of_the_loader(image_root):
    dataset = ImageFolder(image_root, TwoCrops(AUGMENT))
    for images, _ in ours(dataset, 5, device="cpu", memory_format=torch.channels_last):
        assert all(view.is_contiguous(memory_format=torch.channels_last) for view in images)


# ---- pixels equal torchvision's for the same random numbers

RANDOM: dict[str, Any] = {
    "SimCLR": TwoCrops(AUGMENT),
    "SimCLR with a blur": TwoCrops(T.Compose([*SIMCLR, T.GaussianBlur(3), T.ToTensor()])),
    "DINO": MultiCrop(AUGMENT, T.Compose([T.RandomResizedCrop(12, (0.05, 0.3)), *SIMCLR[1:], T.ToTensor()]), 3),
    "weak and strong": lambda im: (T.ToTensor()(T.RandomCrop(20)(im)), T.ToTensor()(T.RandAugment()(CENTRE(im)))),
    "v2": views(
        v2.Compose([v2.RandomResizedCrop(20), v2.ToImage(), v2.RandomHorizontalFlip()]),
        v2.Compose([v2.ToImage(), v2.RandomCrop(16), v2.RandomErasing(p=0.5)]),
    ),
    "after a random crop of all": T.Compose([T.RandomCrop(36), TwoCrops(AUGMENT)]),
    "of a random crop": lambda im: [AUGMENT(one) for one in [T.RandomCrop(30)(im)] * 2],
    "a random view twice": lambda im: [AUGMENT(im)] * 2,
}  # fmt: skip


def _alternating_draws(im):
    """Draw the random numbers of two views alternately."""
    one, other = T.RandomResizedCrop(20)(im), T.RandomCrop(20)(im)
    one, other = T.RandomHorizontalFlip()(one), T.RandomVerticalFlip()(other)
    return {"one": T.PILToTensor()(one), "other": T.PILToTensor()(other)}


RANDOM["in turns"] = _alternating_draws


@pytest.mark.parametrize("case", RANDOM)
def test_pixels_with_exact_equal_torchvisions_for_random_views(image_root, case):
    dataset = ImageFolder(image_root, RANDOM[case])
    loader = ours(dataset, 8, exact=True, device="cpu", collate_fn=list)
    iterator = iter(loader)
    seed, plan = int(iterator._base_seed), loader._route.plans[0]
    mine = [sample for batch in iterator for sample, _ in batch]
    theirs = reference(RANDOM[case], plan, [path for path, _ in dataset.samples], seed)
    assert len(mine) == len(theirs) == len(dataset)
    # a blur of floats is rounded (docs/transforms.md), by up to one level of 255
    most = (1 + 1e-4) / 255 if "blur" in case else 0
    for one, other in zip(mine, theirs, strict=True):
        for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            assert float((a.float() - b.float()).abs().max()) <= most


# ---- random numbers


def _flip_flags(transform, count=4000, seed=3) -> np.ndarray:
    """Return for each view and sample whether it is flipped."""
    dataset = DALIArrayDataset(np.zeros((1, 24, 24, 3), np.uint8), [0], transform)
    loader = ours(dataset, 1, device="cpu")
    iter(loader)
    sizes, randoms = np.full((count, 2), 24), Randoms(seed, 0, count)
    flags = []
    for view in loader._route.plans[0].views:
        arrays = compute(view.steps, sizes, randoms, slice(None))
        flags += [values["flag"] for step, values in zip(view.steps, arrays, strict=True) if step.op == "flip"]
    return np.array(flags)


def test_views_draw_independently():
    """The means equal torchvision's, and the covariances are zero, each within 4 sigma."""
    flags = _flip_flags(MultiCrop(FLIP, FLIP, 2))
    count = flags.shape[1]
    assert len(flags) == 4
    assert (abs(flags.mean(1) - 0.5) < 4 * 0.5 / count**0.5).all()
    together = np.cov(flags, ddof=0)[~np.eye(4, dtype=bool)]
    assert (abs(together) < 4 * 0.25 / count**0.5).all()


def test_common_steps_of_views_are_drawn_once():
    one, other = _flip_flags(lambda im: [T.PILToTensor()(flipped) for flipped in [T.RandomHorizontalFlip()(im)] * 2])
    assert (one == other).all() and 0 < one.mean() < 1


def test_first_views_do_not_depend_on_the_number_of_views():
    pair, more = _flip_flags(MultiCrop(FLIP, FLIP, 0)), _flip_flags(MultiCrop(FLIP, FLIP, 5))
    assert (pair == more[:2]).all()


def test_views_depend_only_on_the_seed(image_root):
    """Batch size and number of workers make no difference."""
    dataset = ImageFolder(image_root, TwoCrops(AUGMENT))
    made = []
    for batch_size, workers in ((4, 0), (4, 2), (12, 0)):
        torch.manual_seed(5)
        batches = list(ours(dataset, batch_size, num_workers=workers, device="cpu"))
        made.append([torch.cat([images[view] for images, _ in batches]) for view in (0, 1)])
    for other in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], other, strict=True))
    assert not torch.equal(*made[0])


# ---- functions without a translation


@pytest.mark.parametrize("make", [ImageFolder, DALIArrayDataset])
def test_views_with_functions_draw_as_in_torchs_loader(image_root, make):
    transform = TwoCrops(T.Compose([T.RandomCrop(20), DrawnColor(), T.PILToTensor()]))
    dataset = make(image_root, transform) if make is ImageFolder else make(pictures(24, 30, 30, 3), [0] * 24, transform)

    def drawn(load, workers, **options):
        torch.manual_seed(1)
        return list(load(dataset, 6, num_workers=workers, **options))

    ours = functools.partial(DataLoader, device="cpu", exact=True, fallback="silent")
    for workers in (0, 2):
        for mine, theirs in zip(drawn(ours, workers), drawn(stock, workers), strict=True):
            assert all(map(torch.equal, mine[0], theirs[0])) and not torch.equal(*mine[0])


def test_batches_equal_torchs_if_one_view_has_a_function(image_root):
    turned = T.Compose([T.CenterCrop(20), T.Lambda(functools.partial(Image.Image.rotate, angle=90)), T.PILToTensor()])
    dataset = ImageFolder(image_root, views(SMALL, turned, CROPPED))
    for workers in (0, 2):
        loader = DataLoader(dataset, 7, exact=True, device="cpu", fallback="silent", num_workers=workers)
        assert_equal_batches(loader, stock(dataset, 7))


class Preset:
    def __init__(self):
        self.chain = T.Compose([T.Resize(24), T.CenterCrop(20), T.ToTensor()])

    def __call__(self, image):
        return self.chain(image)


class Equalized:
    def __call__(self, image):
        return ImageOps.equalize(image)


class Inverted:
    def __call__(self, image):
        return ImageOps.invert(image)


def test_explain_names_a_function_between_transforms(image_root):
    folder = ImageFolder(image_root, T.Compose([T.CenterCrop(30), Equalized(), Inverted(), Preset()]))
    loader = DataLoader(folder, 4, device="cpu", exact=True, fallback="error")
    for mine, theirs in zip(loader, stock(folder, 4), strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    assert "because Equalized: no translation is registered for it" in loader.explain()


def test_explain_names_the_random_function_called_by_a_wrapper(image_root):
    def coin(image):
        return EXACT(image) if random.random() < 0.5 else SMALL(image)

    loader = DataLoader(ImageFolder(image_root, coin), 4, device="cpu")
    assert "it uses random.random()" in loader.explain()


# ---- epochs


class Scheduled:
    epoch = 0

    def __call__(self, image):
        return [SMALL(image), GRAY(image)] if self.epoch else SMALL(image)


@pytest.mark.parametrize("persistent", [False, True])
def test_scheduled_transform_is_read_in_each_epoch(image_root, persistent):
    transform = Scheduled()
    dataset = ImageFolder(image_root, transform)
    loader = exact(dataset, 8, num_workers=2 * persistent, persistent_workers=persistent)
    for transform.epoch in (0, 1, 0):
        assert_equal_batches(loader, stock(dataset, 8))


def test_next_epoch_uses_the_same_plan_and_pipeline(image_root, monkeypatch):
    """One pipeline decodes each file of a batch once."""
    decode, decoders = graph.decode, []
    monkeypatch.setattr(graph, "decode", lambda *args, **kwargs: decoders.append(args) or decode(*args, **kwargs))
    loader = ours(ImageFolder(image_root, MultiCrop(AUGMENT, FLIP, 2)), 8, device="cpu")
    list(loader)
    plans, pipelines = loader._route.plans, list(loader._route._pipelines)
    list(loader)
    assert loader._route.plans == plans and loader._route._pipelines == pipelines
    assert len(pipelines) == len(decoders) == 1


# ---- errors


@pytest.fixture
def damaged_root(tmp_path):
    root = make_folder(tmp_path / "damaged", classes=2, per_class=4, special=False)
    sorted(root.glob("*/*.jpg"))[2].write_bytes(b"no image")
    return root


def test_unreadable_file_raises_or_is_handled_in_all_views(damaged_root):
    dataset = DALIImageFolder(damaged_root, views(SMALL, GRAY))
    assert "cannot decode" in str(error_of(list, exact(dataset, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = [[len(view) for view in images] for images, _ in exact(dataset, 4, on_error="skip")]
        assert sizes == [[3, 3], [4, 4]]
        replaced = exact(dataset, 4, on_error="replace")
        assert [[len(view) for view in images] for images, _ in replaced] == [[4, 4], [4, 4]]
    assert len(replaced.errors) == 1


def test_image_too_small_for_one_view_raises(image_root):
    dataset = ImageFolder(image_root, views(SMALL, T.Compose([T.RandomCrop(5000), T.PILToTensor()])))
    assert "larger than input image size" in str(error_of(list, exact(dataset, 4)))


def test_error_in_a_function_of_a_view_raises_unless_on_error_in_python(image_root):
    dataset = DALIImageFolder(image_root, views(SMALL, T.Compose([T.CenterCrop(20), _raise_for_some, T.PILToTensor()])))
    options = {"device": "cpu", "fallback": "silent", "on_error": "skip"}
    assert "too dark" in str(error_of(list, DataLoader(dataset, 4, **options)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(dataset, 4, on_error_in_python=True, **options)
        made = [len(images[0]) for images, _ in loader]
    assert 0 < len(loader.errors) == len(dataset) - sum(made)


def _raise_for_some(image):
    if sum(image.getpixel((0, 0))) % 3 == 0:
        raise ValueError("too dark")
    return image


# ---- views()


def test_views_applies_each_transform_and_validates_arguments():
    image = Image.new("RGB", (60, 50))
    made = views(SMALL, GRAY)(image)
    assert type(made) is list and [tuple(one.shape) for one in made] == [(3, 16, 12), (3, 20, 20)]
    assert "Views(transforms=" in repr(views(SMALL))
    with pytest.raises(AttributeError):
        views(SMALL).transforms = ()
    for wrong in ((), (SMALL, 3)):
        with pytest.raises(TypeError, match="views"):
            views(*wrong)


def test_views_work_in_torchs_loader_with_workers(image_root):
    (images, _), *_ = stock(ImageFolder(image_root, views(SMALL, GRAY)), 4, num_workers=1)
    assert [tuple(view.shape) for view in images] == [(4, 3, 16, 12), (4, 3, 20, 20)]


def test_shapes_and_order_of_random_views_equal_torchs(image_root):
    dataset = ImageFolder(image_root, RANDOM["DINO"])
    mine, theirs = (loader(dataset, 5, shuffle=True) for loader in (functools.partial(ours, device="cpu"), stock))
    assert outlines(mine, epochs=1) == outlines(theirs, epochs=1)
    assert tree_map(len, next(iter(ours(dataset, 5, device="cpu")))[0]) == [5] * 5
