"""Chains of transforms drawn at random: what stands before and behind a transform does not change what it does."""

import random

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from parity.compare import error
from parity.run import epoch

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")

INTERPOLATIONS = [InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC]
WARPS = INTERPOLATIONS[:2]  # torchvision has no others on tensors
FILLS = [0, 77, (10, 200, 30)]
BORDERS = [((10, 200, 30), "constant"), (77, "constant"), (0, "edge"), (0, "reflect"), (0, "symmetric")]
# by name: (T, pick) -> a transform of PIL images, where pick(list) chooses
STEPS = {
    "Resize": lambda T, pick: T.Resize(pick([64, (70, 50), 33]), pick(INTERPOLATIONS)),
    "CenterCrop": lambda T, pick: T.CenterCrop(pick([50, (60, 90)])),
    "RandomCrop": lambda T, pick: T.RandomCrop(40, pick([None, 4]), True, *pick(BORDERS)),
    "RandomResizedCrop": lambda T, pick: T.RandomResizedCrop(pick([48, (50, 70)]), interpolation=pick(INTERPOLATIONS)),
    "Pad": lambda T, pick: T.Pad(pick([3, (2, 5), (1, 2, 3, 4)]), *pick(BORDERS)),
    "RandomHorizontalFlip": lambda T, pick: T.RandomHorizontalFlip(),
    "RandomRotation": lambda T, pick: T.RandomRotation(pick([30, (90, 90)]), pick(WARPS), pick([False, True])),
    "RandomAffine": lambda T, pick: T.RandomAffine(20, (0.1, 0.2), (0.5, 1.5), 10, pick(WARPS), pick(FILLS)),
    "RandomPerspective": lambda T, pick: T.RandomPerspective(0.4, 0.7, pick(WARPS), pick(FILLS)),
    "ColorJitter": lambda T, pick: T.ColorJitter(pick([0, 0.5]), 0.4, pick([0, 1.0]), pick([0, 0.5])),
    "Grayscale": lambda T, pick: T.Grayscale(3),
    "RandomGrayscale": lambda T, pick: T.RandomGrayscale(0.5),
    "GaussianBlur": lambda T, pick: T.GaussianBlur(pick([3, (5, 11)])),
    "RandomSolarize": lambda T, pick: T.RandomSolarize(pick([0, 100])),
    "RandomAdjustSharpness": lambda T, pick: T.RandomAdjustSharpness(pick([0.5, 3])),
    "RandomAutocontrast": lambda T, pick: T.RandomAutocontrast(),
    "AutoAugment": lambda T, pick: T.AutoAugment(fill=pick(FILLS)),
    "TrivialAugmentWide": lambda T, pick: T.TrivialAugmentWide(interpolation=pick(WARPS)),
    "RandomApply": lambda T, pick: T.RandomApply([_step(T, pick), _step(T, pick)]),
    "RandomChoice": lambda T, pick: T.RandomChoice([_step(T, pick), _step(T, pick)]),
    "RandomOrder": lambda T, pick: T.RandomOrder([_step(T, pick), _step(T, pick)]),
    "Lambda": lambda T, pick: T.Lambda(_same),
}


def _same(image):
    return image


def _step(T, pick):
    return STEPS[pick(list(STEPS))](T, pick)


def _chain(T, seed: int):
    pick = random.Random(seed).choice
    steps = [*pick([[], [T.CenterCrop((90, 80))]]), *(_step(T, pick) for _ in range(pick([2, 3, 4])))]
    if T is v2 and pick([True, False]):  # the rest on tensors
        steps.insert(pick(range(len(steps))), T.ToImage())
        return T.Compose([*steps, T.ToDtype(torch.float32, scale=True)])
    return T.Compose([*steps, *pick([[T.PILToTensor()], [T.ToTensor(), T.RandomErasing()]])])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
def test_a_chain_is_torchvisions(T, seed, device, image_root):
    transform = _chain(T, seed)
    found = error(*epoch(image_root, transform, device, True, most=4, fallback="silent"))
    print(f"measured {found}: {transform}")
    # .00021/7: warps of ragged images, blurs, and what later steps make of that. A GPU's tensors are as near as its
    # floats
    assert found.within(0.001 if device == "cpu" else 0.02, 255), f"{found}: {transform}"
