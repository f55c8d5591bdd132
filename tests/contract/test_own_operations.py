"""Operations in a custom data set that are deferred to DALI; their results equal torch's."""

import functools
import os
import time

import pytest
import torch
from helpers import some
from PIL import Image, ImageEnhance, ImageOps
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from contract.both import ours, stock
from contract.test_joint import differences
from contract.test_own_datasets import real, seeded
from dali_compat.data.sources import ORIENTATION

SMALL, TENSOR = T.Resize((32, 40)), T.Compose([T.Resize((32, 40)), T.ToTensor()])
MEAN, STD = (torch.tensor(three).view(3, 1, 1) for three in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))

# ---- tensors

OF_TENSORS = {
    "to a Pillow image and back": lambda x: F.to_tensor(F.to_pil_image(F.to_tensor(SMALL(x)))),
    "divided": lambda x: F.pil_to_tensor(SMALL(x)) / 255,
    "divided as floats": lambda x: F.pil_to_tensor(SMALL(x)).float().div(255),
    "divided by another number": lambda x: F.pil_to_tensor(SMALL(x)) / 127.5 - 1,
    "scaled to -1 and 1": lambda x: TENSOR(x) * 2 - 1,
    "normalised by hand": lambda x: TENSOR(x).sub(MEAN).div(STD),
    "normalised by operators": lambda x: (TENSOR(x) - MEAN) / STD,
    "several operators": lambda x: 1 - torch.mul(0.5 * TENSOR(x) + 0.1, 3).add(-0.2),
    "randomly chosen operators": lambda x: TENSOR(x) * 2.5 if torch.rand(1) < 0.5 else TENSOR(x) * 0.5 - MEAN,
    "random factor and offset": lambda x: TENSOR(x) * float(torch.rand(1)) + float(torch.rand(1)),
    "adjusted by keyword": lambda x: F.adjust_hue(F.adjust_contrast(TENSOR(x), contrast_factor=2), hue_factor=0.1),
    "halves": lambda x: TENSOR(x).half(),
    "bfloat16": lambda x: TENSOR(x).bfloat16(),
    "doubles": lambda x: TENSOR(x).double() * 0.1,
    "flipped": lambda x: TENSOR(x).flip(-1),
    "flipped in dimensions": lambda x: torch.flip(TENSOR(x), (1, 2)) if torch.rand(1) < 0.5 else TENSOR(x).flip([-2]),
    "BGR": lambda x: TENSOR(x)[[2, 1, 0]],
    "random order of channels": lambda x: TENSOR(x)[..., torch.randperm(3), :, :],
    "BGR with full slices": lambda x: TENSOR(x)[[2, 1, 0], :, :],
    "after ndimension()": lambda x: TENSOR(x) if TENSOR(x).ndimension() == 3 else None,
    "BGR by flipping": lambda x: TENSOR(x).flip(0),
    "a window": lambda x: F.to_tensor(x)[:, 5:35, 7:40],
    "a window at random": lambda x: F.to_tensor(x)[..., int(torch.randint(0, 20, ())) :, 3:][:, :30, :30],
    "three channels": lambda x: TENSOR(x)[:3].cpu().contiguous(),
    "operations on tv_tensors": lambda x: tv_tensors.Image(SMALL(x)).flip(-1)[:, 2:30] / 255,
    "contiguous tv_tensors": lambda x: tv_tensors.Image(SMALL(x)).contiguous(),
}

# ---- PIL images


def _random_size():
    return (32, 32) if torch.rand(1) < 0.5 else (20, 40)


def thumbnail(x):
    x.thumbnail((50, 45))
    return T.CenterCrop(24)(F.to_tensor(x))


def thumbnail_of_several(x):
    before, large = SMALL(x), x.copy()
    x.thumbnail((30, 300), Image.Resampling.BILINEAR)
    large.thumbnail((1000, 1000))
    return F.to_tensor(before), T.CenterCrop(20)(F.to_tensor(x)), TENSOR(large)


def enhanced(x):
    x = ImageEnhance.Brightness(SMALL(x)).enhance(0.7)
    x = ImageEnhance.Contrast(x).enhance(float(torch.rand(1)) + 0.5)
    return F.to_tensor(ImageEnhance.Color(x).enhance(1.6))


def enhanced_at_random(x):
    kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, ImageEnhance.Sharpness)
    return F.to_tensor(kind[int(torch.randint(0, 4, ()))](SMALL(x)).enhance(float(torch.rand(1)) * 2))


OF_PIL = {
    "crops resized, some to the size that they have": lambda x: F.to_tensor(
        F.resized_crop(x, 2, 3, *_random_size(), [32, 32])
    ),
    "crops resized by v2": lambda x: F.to_tensor(v2.functional.resized_crop(x, 2, 3, *_random_size(), [32, 32])),
    "crops beyond the edges": lambda x: F.to_tensor(F.resized_crop(x, -2, 30, 60, 100, [32, 32])),
    "smaller edges of crops resized": lambda x: T.CenterCrop(20)(F.to_tensor(F.resized_crop(x, 2, 3, 40, 36, [24]))),
    "contrast with a cutoff": lambda x: F.to_tensor(ImageOps.autocontrast(SMALL(x), 9 * int(torch.rand(1) < 0.2))),
    **{f"transposed {way}": lambda x, way=way: F.to_tensor(SMALL(x).transpose(way)) for way in Image.Transpose},
    "transposed at random": lambda x: F.to_tensor(SMALL(x).transpose(int(torch.randint(0, 7, ())))),
    "rotated as tensors": lambda x: v2.functional.rotate(F.pil_to_tensor(SMALL(x)), 180 * int(torch.randint(0, 2, ()))),
    "mirrored": lambda x: TENSOR(ImageOps.flip(ImageOps.mirror(x))),
    "grayscale": lambda x: TENSOR(ImageOps.grayscale(x)),
    "contained": lambda x: T.CenterCrop(30)(F.to_tensor(ImageOps.contain(x, (40, 50)))),
    "covered": lambda x: T.CenterCrop(30)(F.to_tensor(ImageOps.cover(x, (40, 50), Image.Resampling.BILINEAR))),
    "scaled": lambda x: T.CenterCrop(24)(F.to_tensor(ImageOps.scale(x, 0.6))),
    "border cropped": lambda x: TENSOR(ImageOps.crop(x, 7)),
    "expanded": lambda x: F.to_tensor(ImageOps.expand(SMALL(x), 5, (3, 4, 5))),
    "expanded by four widths": lambda x: F.to_tensor(ImageOps.expand(SMALL(x), (1, 2, 3, 4), 77)),
    "inverted": lambda x: F.to_tensor(ImageOps.invert(SMALL(x))),
    "posterized and solarized": lambda x: F.to_tensor(ImageOps.solarize(ImageOps.posterize(SMALL(x), 3))),
    "autocontrast": lambda x: F.to_tensor(ImageOps.autocontrast(SMALL(x))),
    "equalised": lambda x: F.to_tensor(ImageOps.equalize(SMALL(x))),
    "exif_transpose": lambda x: TENSOR(ImageOps.exif_transpose(x)),
    "enhanced": enhanced,
    "enhanced at random": enhanced_at_random,
    "images by keyword": lambda x: F.normalize(
        tensor=F.to_tensor(pic=F.resize(img=x, size=[32, 40])), mean=[0.5], std=[2]
    ),
    "images of Pillow by keyword": lambda x: F.to_tensor(
        ImageOps.solarize(threshold=90, image=ImageOps.invert(image=x))
    ),
    "defaults": lambda x: TENSOR(ImageOps.equalize(ImageOps.autocontrast(x, 0, preserve_tone=False), mask=None)),
    "gamma": lambda x: F.to_tensor(F.adjust_gamma(SMALL(x), float(torch.rand(1)) + 0.5, 1.2)),
}
MADE_BY_PIL = {  # Pillow or torchvision may compute these
    "empty crop resized": lambda x: F.to_tensor(F.resized_crop(x, 2, 3, int(torch.randint(2, ())), 20, [16, 16])),
    "thumbnail of several": thumbnail_of_several,
    "thumbnail": thumbnail,
    "gamma of tensors": lambda x: F.adjust_gamma(TENSOR(x), 0.8),
    "fitted": lambda x: F.to_tensor(ImageOps.fit(x, (32, 40))),
    "autocontrast with cutoff": lambda x: TENSOR(ImageOps.autocontrast(x, cutoff=2)),
    "coloured": lambda x: TENSOR(ImageOps.colorize(ImageOps.grayscale(x), "black", "white")),
    "reducing gap": lambda x: F.to_tensor(x.resize((33, 31), Image.Resampling.BILINEAR, reducing_gap=3.0)),
    "padded": lambda x: F.to_tensor(ImageOps.pad(x, (40, 44), color=(9, 8, 7), centering=(0.2, 0.9))),
    "padded with black": lambda x: F.to_tensor(ImageOps.pad(x, (40, 44), Image.Resampling.BILINEAR)),
    "a small thumbnail": lambda x: (x.thumbnail((9, 9)), F.to_tensor(x))[1][:, :3, :3],
    "expanded with a name": lambda x: TENSOR(ImageOps.expand(x, 5, "red")),
    "degenerate of Contrast": lambda x: TENSOR(ImageEnhance.Contrast(x).degenerate),
    "reduced": lambda x: TENSOR(x.reduce(2)),
}


# ---- several images in one sample

VIEW = T.Compose([T.RandomResizedCrop(24), T.ToTensor()])


def views_and_stack(x):
    views = [VIEW(x), VIEW(x)]
    return {"all": torch.stack(views, 1), "first": views[0], "nested": [torch.cat(views), 3]}


def modified_view(x):
    one, other = VIEW(x), VIEW(x)
    stacked = torch.stack((one, other))
    one += 1
    return stacked, float(one.sum())


def shape_of_stack(x):
    stacked = torch.stack([VIEW(x), VIEW(x)])
    return (stacked, stacked.shape) if torch.rand(1) < 0.3 else (stacked, 0)


OF_SEVERAL = {
    "stacked": lambda x: torch.stack([VIEW(x), VIEW(x)]),
    "stacked elsewhere": lambda x: (3, {"views": torch.stack([VIEW(x) for _ in range(3)], dim=-1)}),
    "channels of several": lambda x: torch.cat([VIEW(x), VIEW(x)], 0),
    "side by side": lambda x: torch.cat((VIEW(x), VIEW(x)), dim=2),
    "five crops": T.Compose([T.FiveCrop(24), lambda many: torch.stack([T.ToTensor()(x) for x in many])]),
    "of tv_tensors": lambda x: torch.stack([v2.functional.to_image(SMALL(x)), tv_tensors.Image(SMALL(x))]),
}


class Changed(data.Dataset):
    def __init__(self, root, change):
        self.paths, self.change = [path for path, _ in ImageFolder(root).samples], change

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.change(Image.open(self.paths[i]).convert("RGB")), i


# The limit that explain() prints for a resize on a CPU
NEAR = 0.02


# Operations that are compared with exact=False, too; tests/parity compares the kernels of the others
BY_DEFAULT = some([*OF_TENSORS, *OF_SEVERAL, *OF_PIL])


def assert_deferred(root, change, near=NEAR, kind=Changed, by_default=True):
    """Compare with torch's batches: bit for bit with exact=True, within ``near`` by default. All images must be
    deferred."""
    theirs = seeded(kind(root, change), 3, shuffle=True, collate_fn=list)(stock)
    for exact in (True, False) if by_default else (True,):
        loaders = []

        def make(*args, exact=exact, loaders=loaders, **kwargs):
            loaders.append(ours(*args, exact=exact, device="cpu", **kwargs))
            return loaders[-1]

        mine = seeded(kind(root, change), 3, shuffle=True, collate_fn=list)(make)
        wrong = differences(mine, theirs)
        if exact:
            assert not wrong, wrong[:3]
        assert all(float(text.rpartition(": ")[2]) <= near for text in wrong), wrong[:3]
        assert real(loaders[0]) == 0


@pytest.mark.alike
@pytest.mark.parametrize("name", OF_TENSORS)
def test_tensor_operations_are_deferred_and_equal_torchs(own_root, name):
    assert_deferred(own_root, OF_TENSORS[name], by_default=name in BY_DEFAULT)


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_stacked_images_are_deferred_and_equal_torchs(own_root, name):
    assert_deferred(own_root, OF_SEVERAL[name], by_default=name in BY_DEFAULT)
    assert_batches_equal_torchs(Changed(own_root, OF_SEVERAL[name]), shuffle=True)


def test_stacked_images_in_a_worker_equal_torchs(own_root):
    dataset = Changed(own_root, lambda x: torch.stack([TENSOR(x), TENSOR(x)], 1))
    assert_batches_equal_torchs(dataset, num_workers=1)


def assert_batches_equal_torchs(dataset, **options):
    theirs = seeded(dataset, 3, **options)(stock)
    assert not differences(seeded(dataset, 3, **options)(functools.partial(ours, exact=True, device="cpu")), theirs)


@pytest.mark.parametrize("change", [views_and_stack, modified_view, shape_of_stack])
def test_stacked_images_equal_torchs_if_some_are_inspected(own_root, change):
    """The data set inspects them itself, or the sample contains them a second time."""
    make = functools.partial(ours, exact=True, fallback="silent", device="cpu")
    for options in (dict(collate_fn=list), {}) if change is not shape_of_stack else (dict(collate_fn=list),):
        theirs = seeded(Changed(own_root, change), 3, shuffle=True, **options)(stock)
        assert not differences(seeded(Changed(own_root, change), 3, shuffle=True, **options)(make), theirs)


@pytest.mark.alike
@pytest.mark.parametrize("name", OF_PIL)
def test_pil_operations_are_deferred_and_equal_torchs(own_root, name):
    assert_deferred(own_root, OF_PIL[name], by_default=name in BY_DEFAULT)


@pytest.mark.alike
@pytest.mark.parametrize("name", MADE_BY_PIL)
def test_pil_operations_that_may_not_be_deferred_equal_torchs(own_root, name):
    theirs = seeded(Changed(own_root, MADE_BY_PIL[name]), 3, shuffle=True)(stock)
    mine = seeded(Changed(own_root, MADE_BY_PIL[name]), 3, shuffle=True)
    assert not differences(mine(lambda *args, **kwargs: ours(*args, exact=True, fallback="silent", **kwargs)), theirs)


@pytest.mark.alike
@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_transpose_in_a_data_set_is_deferred(own_root, orientation):
    class Turned(Changed):
        def __getitem__(self, i):
            image = Image.open(self.paths[i])
            return self.change(ImageOps.exif_transpose(image).convert("RGB")), i

    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    for path, _ in ImageFolder(own_root).samples[::2]:
        with Image.open(path) as image:
            image.copy().save(path, exif=exif, quality=90)
    time.sleep(0.05)  # recently written files are not decoded by DALI
    assert_deferred(own_root, TENSOR, kind=Turned)


OF_GRAY = {
    "normalised": T.Compose([SMALL, T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,), (0.25,))]),
    "of v2": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(24), v2.ToDtype(torch.float32, True), v2.Normalize([0.5], [0.2])]
    ),
    "with color jitter": T.Compose([T.ColorJitter(0.3, 0.3), TENSOR, T.Normalize((0.5,), (0.25,))]),
    "of three channels": T.Compose([T.Grayscale(3), TENSOR, T.Normalize((0.5,) * 3, (0.25,) * 3)]),
}


@pytest.mark.alike
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("name", OF_GRAY)
def test_normalized_gray_images_are_deferred_and_masks_equal_torchs(own_root, name, suffix):
    """Gray images that are normalized are deferred to DALI. Other gray images may be masks, which must be identical by
    default, too."""

    class Gray(Changed):
        def __getitem__(self, i):
            image = Image.open(self.paths[i])
            return {"image": self.change(image), "mask": F.pil_to_tensor(image.rotate(30).resize((20, 20), 0))}

    for path, _ in ImageFolder(own_root).samples:
        Image.open(path).convert("L").save(
            path.rpartition(".")[0] + suffix + "~", "PNG" if suffix == ".png" else "JPEG"
        )
        os.unlink(path)
        os.rename(path.rpartition(".")[0] + suffix + "~", path.rpartition(".")[0] + suffix)
    time.sleep(0.05)  # recently written files are not decoded by DALI
    assert_deferred(own_root, OF_GRAY[name], kind=Gray)
    batches = [seeded(Gray(own_root, OF_GRAY[name]), 3)(make) for make in (stock, ours)]
    assert all(torch.equal(a["mask"], b["mask"]) for a, b in zip(*batches, strict=True))
