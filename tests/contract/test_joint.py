"""Images with masks, boxes, points and labels, transformed together."""

import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract import joint_datasets as joint
from contract.both import ours, stock
from contract.test_own_datasets import real, seeded

CASES = {
    "ssd": (joint.Joint, joint.SSD),
    "large scale jitter": (joint.Joint, joint.LSJ),
    "detr": (joint.Joint, joint.DETR),
    "segmentation": (joint.WithMask, joint.SEGMENTATION),
    "all of it": (joint.AsDict, joint.LSJ),
    "warps": (joint.AsDict, joint.WARPS),
    "warps of tensors": (joint.WithMask, joint.WARPS_OF_TENSORS),
    "boxes of all formats": (joint.AllBoxFormats, joint.WARPS),
    "instances": (joint.Instances, joint.LSJ),
    "pair": (joint.Pair, None),
    "tensors": (joint.Tensors, None),
    "sized": (joint.ReadsSize, None),
}
if not hasattr(tv_tensors, "KeyPoints"):  # SanitizeBoundingBoxes of older torchvision refuses a mask of a whole image
    del CASES["all of it"]


@pytest.fixture
def folder(own_root):
    folder = ImageFolder(own_root)
    for number, (path, _) in enumerate(folder.samples):
        with Image.open(path) as image:
            mask = image.convert("L").point(lambda value: value // 32)
            if number % 2:
                mask = mask.convert("P")
            mask.save(path.replace(".jpg", "_mask.png"))
    import time

    time.sleep(0.05)  # files written just now are not deferred
    return folder


def load_samples(kind, transforms, folder, make, **options):
    options = dict(collate_fn=list) | options
    batches = seeded(kind(folder, transforms), 5, shuffle=True, **options)(make)
    return [sample for batch in batches for sample in batch] if options["collate_fn"] is list else batches


def differences(a, b, path="") -> list[str]:
    """Return the differences between two samples in values, types, and the format or canvas of boxes and points."""
    if isinstance(b, dict):
        return [one for key in b for one in differences(a[key], b[key], f"{path}[{key!r}]")]
    if isinstance(b, (list, tuple)):
        return [one for n, (x, y) in enumerate(zip(a, b, strict=True)) for one in differences(x, y, f"{path}[{n}]")]
    if type(a) is not type(b):
        return [f"{path}: {type(a)} {type(b)}"]
    if not isinstance(b, torch.Tensor):
        return [] if a == b else [path]
    for name in ("format", "canvas_size"):
        if getattr(a, name, None) != getattr(b, name, None):
            return [f"{path}.{name}"]
    if a.shape != b.shape or a.dtype != b.dtype:
        return [f"{path}: {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"]
    same = torch.equal(*(one.as_subclass(torch.Tensor) for one in (a, b)))
    far = (a.double() - b.double()).abs().mean() if a.numel() else 0
    return [] if same else [f"{path}: {far}"]


@pytest.mark.parametrize("name", CASES)
def test_exact_samples_equal_torchs(folder, name):
    """Compare bitwise, with types, formats and canvases."""
    kind, transforms = CASES[name]
    loaders = []

    def make(*args, **kwargs):
        loaders.append(ours(*args, exact=True, device="cpu", **kwargs))
        return loaders[-1]

    mine, theirs = load_samples(kind, transforms, folder, make), load_samples(kind, transforms, folder, stock)
    assert not differences(mine, theirs), differences(mine, theirs)[:5]
    assert real(loaders[0]) <= len(theirs) / 2


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_default_samples_equal_torchs_except_for_pixels(folder, name):
    """Labels, boxes, points and masks are bitwise equal; pixels are close."""
    kind, transforms = CASES[name]
    mine = load_samples(kind, transforms, folder, lambda *args, **kwargs: ours(*args, device="cpu", **kwargs))
    theirs = load_samples(kind, transforms, folder, stock)
    for one, other in zip(_leaves(mine), _leaves(theirs), strict=True):
        if isinstance(other, torch.Tensor) and _is_image(other):
            assert one.shape == other.shape and one.dtype == other.dtype and type(one) is type(other)
            assert (one.double() - other.double()).abs().mean() <= (2.0 if other.dtype == torch.uint8 else 0.02)
        else:
            assert not differences(one, other)


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value]


def _is_image(tensor) -> bool:
    return not isinstance(tensor, (tv_tensors.Mask, tv_tensors.BoundingBoxes)) and tensor.shape[0] == 3


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_samples_do_not_depend_on_workers_or_batch_size(folder, name):
    kind, transforms = CASES[name]

    def make(*args, **kwargs):
        return ours(*args, exact=True, device="cpu", **kwargs)

    one = load_samples(kind, transforms, folder, make, num_workers=1)
    torch.manual_seed(0)
    loader = make(kind(folder, transforms), 3, shuffle=True, collate_fn=list, num_workers=2)
    other = [sample for batch in loader for sample in batch]
    assert not differences(one, other)


def test_samples_of_fixed_transforms_in_workers_equal_torchs(folder):
    transforms = v2.Compose([v2.Resize(30), v2.CenterCrop((24, 28)), v2.RandomHorizontalFlip(1.0), *joint.TO_FLOAT])
    for kind in (joint.AsDict, joint.WithMask):
        mine = load_samples(
            kind, transforms, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), num_workers=2
        )
        assert not differences(mine, load_samples(kind, transforms, folder, stock, num_workers=2))


@pytest.mark.parametrize("workers", [0, 1])
def test_default_collate_stacks_images_and_masks_as_torchs(folder, workers):
    """default_collate gives plain tensors."""
    options = {"collate_fn": None, "num_workers": workers}
    transforms = v2.Compose([v2.Resize((30, 32)), *joint.TO_FLOAT])
    for kind, each in ((joint.WithMask, transforms), (joint.Pair, None)):
        if workers and kind is joint.Pair:
            continue  # its random numbers differ in workers
        mine = load_samples(
            kind, each, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), **options
        )
        theirs = load_samples(kind, each, folder, stock, **options)
        assert not differences(mine, theirs) and type(mine[0][1]) is torch.Tensor


def test_random_transforms_need_few_pipelines(folder):
    """Flips, sizes, windows and colours are inputs of a pipeline."""
    for name in ("ssd", "detr", "segmentation"):
        kind, transforms = CASES[name]
        loader = ours(kind(folder, transforms), 4, device="cpu", collate_fn=list)
        for _ in range(4):
            list(loader)
        assert real(loader) == 0
        assert len(loader._route._pipelines) <= 16 and len(loader._route._representatives) <= 24, name
        plans = len(loader._route._representatives)
        for _ in range(4):
            list(loader)
        assert len(loader._route._representatives) <= plans + 2, name


@pytest.mark.parametrize("converted", [True, False])
def test_fill_by_class_equals_torchs(folder, converted):
    """v2 looks up the exact class, which is the format's class for an image that was only opened."""
    transform = v2.Compose([v2.Pad(3, fill={Image.Image: 200, "others": 5}), *joint.TO_FLOAT])
    paths = [path for path, _ in folder.samples if Image.open(path).mode == "RGB"]

    class Filled(joint.Joint):
        def __getitem__(self, i):
            image = Image.open(paths[i % len(paths)])
            return transform(image.convert("RGB") if converted else image)

    mine = load_samples(Filled, None, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw))
    assert not differences(mine, load_samples(Filled, None, folder, stock))
    assert {round(255 * float(image[0, 0, 0])) for image in mine} == {200 if converted else 5}
