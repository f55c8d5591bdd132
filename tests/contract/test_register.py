"""Custom transforms, called for each sample or registered; the example of docs/extending.md runs unchanged."""

import functools
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as T
from torchvision.transforms import v2

import dali_compat
from contract.both import REPOSITORY, assert_same_pixels, ours, pixels, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader, FallbackWarning, on_batch, register
from dali_compat.ops.translators import _TRANSLATORS


@pytest.fixture
def registry():
    before = dict(_TRANSLATORS)
    yield
    _TRANSLATORS.clear()
    _TRANSLATORS.update(before)


def test_example_of_extending_md_equals_torchs(image_root, registry):
    text = (REPOSITORY / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"runs this -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 16
    namespace = {}
    exec(code, namespace)
    transform = T.Compose(
        [T.CenterCrop(40), T.PILToTensor(), T.ConvertImageDtype(torch.float64), namespace["AddBias"](0.5)]
    )
    dataset = DALIImageFolder(image_root, transform)
    loader = ours(dataset, 5)
    (line,) = [line for line in loader.explain().splitlines() if "AddBias" in line]
    assert "torch, on the batch" in line and line.endswith("yours, not measured")
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 5)))


class Doubled:
    def __init__(self, chance=0.5):
        self.chance = chance


def _doubled(images, uniforms, chance):
    return torch.where((uniforms[:, :1] < chance)[:, :, None, None], images * 2, images)


def test_registering_an_object_raises_type_error():
    """A translation registered for an object would never be used."""
    with pytest.raises(TypeError, match="classes of transforms, got CenterCrop"):
        register(T.CenterCrop(8), consumes="size")


def test_random_numbers_of_a_registered_translation_depend_on_the_seed(image_root, registry):
    register(Doubled, consumes="chance")(lambda t, spec: on_batch(_doubled, spec, uniforms=1, chance=t.chance))
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.PILToTensor(), Doubled(0.4)]))
    plain = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.PILToTensor()]))
    epochs = []
    for batch_size in (24, 7):
        torch.manual_seed(3)
        epochs.append(torch.cat([images for images, _ in ours(dataset, batch_size)]))
    before = torch.cat([images for images, _ in ours(plain, 24)])
    assert torch.equal(*epochs)
    changed = [not torch.equal(a, b) for a, b in zip(epochs[0], before, strict=True)]
    assert 0 < sum(changed) < len(changed)


def test_unhandled_argument_of_a_registered_class_is_named_in_a_warning(image_root, registry):
    register(Doubled)(lambda t, spec: on_batch(_doubled, spec, uniforms=1, chance=0.5))
    transform = T.Compose([T.CenterCrop(40), T.PILToTensor(), Doubled(0.4)])
    with pytest.warns(FallbackWarning, match="argument chance is not handled"):
        DataLoader(DALIImageFolder(image_root, transform), device="cpu")


class EverySecondPixel:
    def __call__(self, image):
        return image[..., ::2, ::2]


def _halved(images):
    return images[..., ::2, ::2]


CHAINS_AROUND = {
    "a crop": ([T.CenterCrop(40), T.ToTensor()], [T.CenterCrop(12)]),
    "a resize": ([T.CenterCrop(40), T.ToTensor()], [T.Resize((31, 9)), T.CenterCrop((40, 6))]),
    "an erased window": ([T.CenterCrop(40), T.ToTensor()], [T.RandomErasing(1, (0.9, 0.9), (1, 1), value=7)]),
    "images of several sizes": ([T.ToTensor(), T.Resize((40, 40))], [T.CenterCrop(12)]),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("around", CHAINS_AROUND)
def test_transforms_after_a_registered_resize_use_the_new_size(image_root, registry, around, exact):
    before, after = CHAINS_AROUND[around]
    register(EverySecondPixel)(lambda t, spec: on_batch(_halved, spec.but(size=(20, 20))))
    dataset = DALIImageFolder(image_root, T.Compose([*before, EverySecondPixel(), *after]))
    loader = ours(dataset, 5, exact=exact)
    assert "Python" not in loader.explain()
    if around == "an erased window":  # 19 x 19 pixels are erased
        assert all((images == 7).sum().item() == 3 * 19 * 19 * len(images) for images, _ in loader)
        return
    for mine, theirs in zip(loader, stock(dataset, 5), strict=True):
        torch.testing.assert_close(mine[0], theirs[0], rtol=0, atol=0.1 if not exact else 1e-5)


def test_transforms_after_a_registered_resize_of_arrays_use_the_new_size(registry):
    """Arrays use the resident route."""
    register(EverySecondPixel)(lambda t, spec: on_batch(_halved, spec.but(size=(20, 20))))
    images = np.random.default_rng(0).integers(0, 256, (12, 40, 40, 3), dtype=np.uint8)
    dataset = DALIArrayDataset(images, list(range(12)), T.Compose([T.ToTensor(), EverySecondPixel(), T.CenterCrop(12)]))
    assert_same_pixels(pixels(ours(dataset, 5)), pixels(stock(dataset, 5)))


def test_transforms_after_a_random_choice_use_the_size_of_each_choice(image_root, registry):
    torch.manual_seed(0)
    register(EverySecondPixel)(lambda t, spec: on_batch(_halved, spec.but(size=(20, 20))))
    choice = T.RandomChoice([EverySecondPixel(), T.CenterCrop(30)])
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.ToTensor(), choice, T.CenterCrop(12)]))
    plain = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.ToTensor()]))
    chosen = set()
    for (mine, _), (image, _) in zip(ours(dataset, 1), ours(plain, 1), strict=True):
        ways = {"halved": image[..., ::2, ::2][..., 4:16, 4:16], "cropped": image[..., 14:26, 14:26]}
        (name,) = (name for name, way in ways.items() if torch.equal(mine, way))
        chosen.add(name)
    assert chosen == set(ways)


class AddOne:
    def __call__(self, image):
        return image.add_(1)


IN_PLACE = {
    "the first of two views": dali_compat.views(T.Compose([T.PILToTensor(), AddOne()]), T.PILToTensor()),
    "the last of two": dali_compat.views(T.PILToTensor(), T.Compose([T.PILToTensor(), AddOne()])),
    "both": dali_compat.views(*[T.Compose([T.PILToTensor(), AddOne()])] * 2),
    "by chance": dali_compat.views(T.Compose([T.PILToTensor(), T.RandomApply([AddOne()], 1.0)]), T.PILToTensor()),
    "one gray plane, three times": T.Compose([T.Grayscale(3), T.PILToTensor(), AddOne()]),
}


@pytest.mark.parametrize("case", IN_PLACE)
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "files"])
def test_registered_in_place_function_changes_only_its_own_images(image_root, registry, case, arrays):
    """Writing to the images of a batch does not change other images either."""
    register(AddOne)(lambda t, spec: on_batch(lambda images: images.add_(1), spec))
    if arrays:
        images = np.random.default_rng(0).integers(0, 250, (12, 40, 40, 3), dtype=np.uint8)
        dataset = DALIArrayDataset(images, list(range(12)), IN_PLACE[case])
    else:
        dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), IN_PLACE[case]]))
    for (mine, _), (theirs, _) in zip(ours(dataset, 5, exact=True), stock(dataset, 5), strict=True):
        mine, theirs = ([images] if isinstance(images, torch.Tensor) else images for images in (mine, theirs))
        for number, (image, other) in enumerate(zip(mine, theirs, strict=True)):
            assert torch.equal(image.cpu(), other), f"view {number}"
            image.zero_()


@pytest.mark.parametrize("first", [[T.CenterCrop(40)], []], ids=["equal sizes", "several sizes"])
def test_registered_resize_without_declared_size_raises(image_root, registry, first):
    """Later crops would silently have wrong coordinates."""
    register(EverySecondPixel)(lambda t, spec: on_batch(_halved, spec))
    dataset = DALIImageFolder(image_root, T.Compose([*first, T.ToTensor(), EverySecondPixel(), T.CenterCrop(12)]))
    with pytest.raises(ValueError, match=r"_halved\(\) returned \(\d, 3, \d+, \d+\) of .* spec.but\(size="):
        next(iter(ours(dataset, 2)))


WRONG = {
    "one channel of three": (lambda images: images[:, :1], r"\(2, 3, 40, 40\)"),
    "floats before ToTensor, not divided by 255": (lambda images: images**0.5, "of torch.uint8; .*dtype="),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_undeclared_channels_or_dtype_raise(image_root, registry, wrong):
    function, message = WRONG[wrong]
    register(EverySecondPixel)(lambda t, spec: on_batch(function, spec))
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), EverySecondPixel(), T.ToTensor()]))
    with pytest.raises(ValueError, match=f"its translation declares .*{message}"):
        next(iter(ours(dataset, 2)))


# ---- called for each sample


class Spy:
    """Records its arguments and returns them unchanged."""

    seen = []

    def __call__(self, image):
        Spy.seen.append(image)
        return image


PLACES = {
    "first": ([Spy(), T.CenterCrop(40), T.PILToTensor()], Image.Image),
    "after a crop": ([T.CenterCrop(40), Spy(), T.PILToTensor()], Image.Image),
    "gray": ([T.Grayscale(), T.CenterCrop(40), Spy(), T.PILToTensor()], Image.Image),
    "after ToTensor": ([T.CenterCrop(40), T.ToTensor(), Spy()], torch.Tensor),
    "after ToImage": ([v2.ToImage(), v2.CenterCrop(40), Spy(), v2.ToDtype(torch.float32, scale=True)], torch.Tensor),
    "twice": (
        [T.CenterCrop(40), Spy(), T.PILToTensor(), Spy(), T.ConvertImageDtype(torch.float64)],
        (Image.Image, torch.Tensor),
    ),
    "in a container": ([T.Compose([T.CenterCrop(40), nn.Sequential(v2.PILToTensor()), Spy()])], torch.Tensor),
}


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
@pytest.mark.parametrize("place, workers", [*((place, 0) for place in PLACES), ("twice", 2)])
def test_callable_gets_the_same_images_as_in_torchvision(image_root, place, workers):
    transforms, kind = PLACES[place]
    dataset = DALIImageFolder(image_root, T.Compose(transforms))
    theirs = pixels(stock(dataset, 5))
    expected, Spy.seen = Spy.seen, []
    loader = DataLoader(dataset, 5, device="cpu", num_workers=workers, exact=True)
    mine = pixels(loader)
    received, Spy.seen = Spy.seen, []
    assert_same_pixels(mine, theirs)
    if not workers:  # workers record in their own memory
        assert len(received) == len(expected) > 0
        assert all(isinstance(image, kind) for image in received)
        assert list(map(_outline, received)) == list(map(_outline, expected))


def _outline(image):
    return (image.mode, image.size) if isinstance(image, Image.Image) else (image.dtype, image.shape, image.device.type)


class TwoViews:
    """Two views, as in typical SimCLR code."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        return [self.transform(image), self.transform(image)]


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
def test_views_of_a_custom_transform_equal_torchs(image_root):
    dataset = DALIImageFolder(image_root, TwoViews(T.Compose([T.CenterCrop(40), T.PILToTensor()])))
    mine = list(DataLoader(dataset, 5, device="cpu", num_workers=2))
    for (views, labels), (expected, theirs) in zip(mine, stock(dataset, 5), strict=True):
        assert len(views) == 2 and torch.equal(labels, theirs)
        for view, other in zip(views, expected, strict=True):
            assert torch.equal(view, other)


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
def test_five_crop_and_ten_crop_equal_torchs(image_root):
    transform = T.Compose([T.CenterCrop(50), T.FiveCrop(30), T.Lambda(_stack)])
    dataset = DALIImageFolder(image_root, transform)
    assert_same_pixels(pixels(DataLoader(dataset, 5, device="cpu", num_workers=2)), pixels(stock(dataset, 5)))
    dataset.transform = v2.Compose([v2.CenterCrop(50), v2.TenCrop(30), v2.ToImage()])
    mine = DataLoader(dataset, 5, device="cpu", exact=True)
    for (views, _), (expected, _) in zip(mine, stock(dataset, 5), strict=True):
        assert len(views) == len(expected) == 10
        assert all(torch.equal(a, b) for a, b in zip(views, expected, strict=True))


def _stack(crops):
    return torch.stack([T.functional.pil_to_tensor(crop) for crop in crops])


class OnlyRandomNumbers:
    def __call__(self, image):
        return torch.rand(2), np.random.rand(), int(torch.randint(1000, ()))


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_callable_draws_the_same_numbers_as_in_torchs_loader(image_root, workers):
    dataset = DALIImageFolder(image_root, OnlyRandomNumbers())
    epochs = []
    for load in (stock, functools.partial(DataLoader, device="cpu")):
        torch.manual_seed(3)
        np.random.seed(3)
        batches = [images for images, _ in load(dataset, 5, num_workers=workers)]
        epochs.append([torch.cat([b[i] for b in batches]) for i in range(3)])
    assert all(map(torch.equal, *epochs)) and len(set(epochs[0][2].tolist())) > 15


class RaisesForWidth40:
    def __call__(self, image):
        if image.size[0] == 40:
            raise KeyError("no such thing")
        return image


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_error_in_a_callable_is_raised_unchanged(image_root, workers):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), RaisesForWidth40(), T.PILToTensor()]))
    loader = DataLoader(dataset, 5, device="cpu", num_workers=workers)
    for _ in range(2):
        with pytest.raises(KeyError, match="no such thing"):
            next(iter(loader))
    dataset.transform = T.Compose([T.CenterCrop(41), RaisesForWidth40(), T.PILToTensor()])
    assert len(list(loader)) == len(loader)


def _set_id(worker):
    info = torch.utils.data.get_worker_info()
    assert info.id == worker and info.num_workers == 2
    Spy.where = worker


class WorkerId:
    def __call__(self, image):
        return torch.tensor(Spy.where)


@pytest.mark.filterwarnings("ignore::dali_compat.FallbackWarning")
def test_worker_init_fn_runs_in_workers(image_root):
    loader = DataLoader(
        DALIImageFolder(image_root, WorkerId()), 24, device="cpu", num_workers=2, worker_init_fn=_set_id
    )
    assert set(next(iter(loader))[0].tolist()) <= {0, 1}


def test_cutmix_and_mixup_work_on_batches_and_in_collate_fn(image_root):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), T.ToTensor()]))
    mix = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)])
    after = [mix(images, labels) for images, labels in ours(dataset, 6)]
    within = list(ours(dataset, 6, collate_fn=lambda batch: mix(*torch.utils.data.default_collate(batch))))
    assert [images.shape for images, _ in after + within] == [(6, 3, 40, 40)] * 8
    assert [labels.shape for _, labels in after + within] == [(6, 3)] * 8
    assert all(torch.allclose(labels.sum(1), torch.ones(6)) for _, labels in after)
