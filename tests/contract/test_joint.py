"""Images with masks, boxes, points and labels: torchvision's transforms change all, and DALI makes the images."""

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
    "boxes of all formats": (joint.OfAllFormats, joint.WARPS),
    "instances": (joint.Instances, joint.LSJ),
    "pair": (joint.Pair, None),
    "tensors": (joint.Tensors, None),
    "sized": (joint.Sized, None),
}
if not hasattr(tv_tensors, "KeyPoints"):  # SanitizeBoundingBoxes of older torchvisions refuses a mask of a whole image
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

    time.sleep(0.05)  # what was written just now is not left to DALI
    return folder


def made(kind, transforms, folder, make, **options):
    options = dict(collate_fn=list) | options
    batches = seeded(kind(folder, transforms), 5, shuffle=True, **options)(make)
    return [sample for batch in batches for sample in batch] if options["collate_fn"] is list else batches


def unlike(a, b, path="") -> list[str]:
    """Where two samples differ: in a value, a class, or what boxes and points say of themselves."""
    if isinstance(b, dict):
        return [one for key in b for one in unlike(a[key], b[key], f"{path}[{key!r}]")]
    if isinstance(b, (list, tuple)):
        return [one for n, (x, y) in enumerate(zip(a, b, strict=True)) for one in unlike(x, y, f"{path}[{n}]")]
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
def test_equal(folder, name):
    """With exact=True to the last bit: images, masks, boxes, points, labels, their classes, formats and canvases."""
    kind, transforms = CASES[name]
    loaders = []

    def make(*args, **kwargs):
        loaders.append(ours(*args, exact=True, device="cpu", **kwargs))
        return loaders[-1]

    mine, theirs = made(kind, transforms, folder, make), made(kind, transforms, folder, stock)
    assert not unlike(mine, theirs), unlike(mine, theirs)[:5]
    assert real(loaders[0]) <= len(theirs) / 2


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_all_but_pixels_is_equal_by_default(folder, name):
    """Labels, boxes, points and masks to the last bit; images as near as kernels are."""
    kind, transforms = CASES[name]
    mine = made(kind, transforms, folder, lambda *args, **kwargs: ours(*args, device="cpu", **kwargs))
    theirs = made(kind, transforms, folder, stock)
    for one, other in zip(_leaves(mine), _leaves(theirs), strict=True):
        if isinstance(other, torch.Tensor) and _is_image(other):
            assert one.shape == other.shape and one.dtype == other.dtype and type(one) is type(other)
            assert (one.double() - other.double()).abs().mean() <= (2.0 if other.dtype == torch.uint8 else 0.02)
        else:
            assert not unlike(one, other)


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
def test_workers_follow_the_seed_and_the_place(folder, name):
    """However many they are, and however large a batch is."""
    kind, transforms = CASES[name]

    def make(*args, **kwargs):
        return ours(*args, exact=True, device="cpu", **kwargs)

    one = made(kind, transforms, folder, make, num_workers=1)
    torch.manual_seed(0)
    loader = make(kind(folder, transforms), 3, shuffle=True, collate_fn=list, num_workers=2)
    other = [sample for batch in loader for sample in batch]
    assert not unlike(one, other)


def test_what_is_fixed_is_torchs_in_workers(folder):
    transforms = v2.Compose([v2.Resize(30), v2.CenterCrop((24, 28)), v2.RandomHorizontalFlip(1.0), *joint.TO_FLOAT])
    for kind in (joint.AsDict, joint.WithMask):
        mine = made(
            kind, transforms, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), num_workers=2
        )
        assert not unlike(mine, made(kind, transforms, folder, stock, num_workers=2))


@pytest.mark.parametrize("workers", [0, 1])
def test_stacked(folder, workers):
    """By default_collate, which gives plain tensors."""
    options = {"collate_fn": None, "num_workers": workers}
    transforms = v2.Compose([v2.Resize((30, 32)), *joint.TO_FLOAT])
    for kind, each in ((joint.WithMask, transforms), (joint.Pair, None)):
        if workers and kind is joint.Pair:
            continue  # whose numbers are others there
        mine = made(kind, each, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw), **options)
        theirs = made(kind, each, folder, stock, **options)
        assert not unlike(mine, theirs) and type(mine[0][1]) is torch.Tensor


def test_pipelines_are_few(folder):
    """Whatever is drawn: flips, sizes, windows and colours are numbers."""
    for name in ("ssd", "detr", "segmentation"):
        kind, transforms = CASES[name]
        loader = ours(kind(folder, transforms), 4, device="cpu", collate_fn=list)
        for _ in range(8):
            list(loader)
        assert real(loader) == 0
        assert len(loader._route._pipelines) <= 16 and len(loader._route.all_plans) <= 24, name
        plans = len(loader._route.all_plans)
        for _ in range(8):
            list(loader)
        assert len(loader._route.all_plans) <= plans + 2, name


@pytest.mark.parametrize("converted", [True, False])
def test_fills_by_class(folder, converted):
    """What was only opened is of a class of its format's; v2 looks for that very class."""
    transform = v2.Compose([v2.Pad(3, fill={Image.Image: 200, "others": 5}), *joint.TO_FLOAT])
    paths = [path for path, _ in folder.samples if Image.open(path).mode == "RGB"]

    class Filled(joint.Joint):
        def __getitem__(self, i):
            image = Image.open(paths[i % len(paths)])
            return transform(image.convert("RGB") if converted else image)

    mine = made(Filled, None, folder, lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw))
    assert not unlike(mine, made(Filled, None, folder, stock))
    assert {round(255 * float(image[0, 0, 0])) for image in mine} == {200 if converted else 5}
