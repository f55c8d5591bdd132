"""torchvision's random transforms in a custom data set draw the same numbers as in torch's loader."""

import functools

import pytest
import torch
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract import own_datasets as own
from contract.both import ours, stock
from contract.test_joint import differences, load_samples
from contract.test_own_datasets import real

CROP, CROP2 = T.RandomResizedCrop(32), v2.RandomResizedCrop(32)
IMAGE, FLOAT, TENSOR = v2.ToImage(), v2.ToDtype(torch.float32, scale=True), T.ToTensor()
JITTER = (0.4, 0.4, 0.4, 0.1)
CHAINS = {
    "RandAugment": T.Compose([CROP, T.RandAugment(2, 9), TENSOR]),
    "AutoAugment": T.Compose([CROP, T.RandomHorizontalFlip(), T.AutoAugment(), TENSOR]),
    "TrivialAugmentWide": T.Compose([CROP, T.TrivialAugmentWide(31, T.InterpolationMode.BILINEAR, [3, 4, 5]), TENSOR]),
    "RandAugment of v2": v2.Compose([CROP2, v2.RandAugment(2, 9), IMAGE, FLOAT]),
    "AutoAugment of v2": v2.Compose([IMAGE, CROP2, v2.AutoAugment(fill={tv_tensors.Image: 7, "others": 0}), FLOAT]),
    "TrivialAugmentWide of v2": v2.Compose([IMAGE, CROP2, v2.TrivialAugmentWide(), FLOAT]),
    "RandAugment of resized tensors": v2.Compose([IMAGE, v2.Resize((32, 32)), v2.RandAugment(2, 9), FLOAT]),
    "TrivialAugmentWide of resized tensors": v2.Compose([IMAGE, v2.Resize((32, 32)), v2.TrivialAugmentWide(), FLOAT]),
    "ColorJitter": T.Compose([CROP, T.ColorJitter(*JITTER), T.RandomGrayscale(), TENSOR]),
    "ColorJitter of v2": v2.Compose([IMAGE, CROP2, v2.ColorJitter(*JITTER), v2.RandomSolarize(0.5), FLOAT]),
    "SimCLR": T.Compose(
        [
            CROP,
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([T.GaussianBlur(5)], p=0.5),
            T.RandomHorizontalFlip(),
            TENSOR,
            T.RandomErasing(),
        ]
    ),
    "five ways": T.Compose(
        [
            T.RandomChoice([T.CenterCrop(30), T.Resize((33, 31)), T.RandomCrop(29), T.Pad(2), T.RandomRotation(9)]),
            T.Resize((32, 32)),
            T.RandomOrder([T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomInvert()]),
            TENSOR,
            T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
    ),
    "crops at their edges": v2.Compose(
        [v2.RandomCrop(70, padding=9, pad_if_needed=True, fill=5), v2.RandomHorizontalFlip(), v2.CenterCrop(90), IMAGE]
    ),
    "reflected": T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(40, 12, True, padding_mode="reflect"), TENSOR]),
    "sharp": T.Compose(
        [T.CenterCrop(30), T.RandomAdjustSharpness(3), T.RandomAutocontrast(), T.RandomEqualize(), TENSOR]
    ),
    "affine": T.Compose([T.CenterCrop(40), T.RandomAffine(20, (0.2, 0.1), (0.5, 1.5), (0, 9, 0, 9), fill=9), TENSOR]),
}
JITTER_OF_FLOATS = v2.Compose([IMAGE, FLOAT, CROP2, v2.ColorJitter(*JITTER), v2.RandomPhotometricDistort()])
MADE_BY_TORCHVISION = {
    "AugMix": T.Compose([CROP, T.AugMix(), TENSOR]),
    "AugMix of v2": v2.Compose([IMAGE, CROP2, v2.AugMix(5, 2, 4, 0.7, fill=9), FLOAT]),
    "jitter of floats": JITTER_OF_FLOATS,
    "some are mixed": T.Compose([CROP, T.RandomApply([T.AugMix(all_ops=False)], p=0.2), TENSOR]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_batches_with_exact_equal_torchs_for_each_transform(own_root, name):
    """The pixels are bit-identical, and few pipelines are used."""
    folder, loaders = ImageFolder(own_root), []

    def make(*args, **kwargs):
        loaders.append(ours(*args, exact=True, device="cpu", **kwargs))
        return loaders[-1]

    mine, theirs = (load_samples(own.Plain, CHAINS[name], folder, load) for load in (make, stock))
    assert not differences(mine, theirs), differences(mine, theirs)[:3]
    assert real(loaders[-1]) == 0
    assert len(loaders[-1]._route._representatives) <= 8


@pytest.mark.parametrize("name", MADE_BY_TORCHVISION)
def test_batches_equal_torchs_if_torchvision_computes_the_images(own_root, name):
    make = functools.partial(ours, exact=True, device="cpu", fallback="silent")
    mine, theirs = (
        load_samples(own.Plain, MADE_BY_TORCHVISION[name], ImageFolder(own_root), one) for one in (make, stock)
    )
    assert not differences(mine, theirs), differences(mine, theirs)[:3]


def test_jitter_of_floats_without_exact_is_deferred(own_root):
    """With exact=True it is not, because torch's last bit depends on the place of a value in memory."""
    loaders = []

    def make(*args, **kwargs):
        loaders.append(ours(*args, device="cpu", **kwargs))
        return loaders[-1]

    mine, theirs = (load_samples(own.Plain, JITTER_OF_FLOATS, ImageFolder(own_root), one) for one in (make, stock))
    assert loaders[0].explain().startswith("DALI route") and real(loaders[0]) == 0
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-3)
