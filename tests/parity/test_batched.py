"""batched() compared with torchvision's transforms, which are applied image by image with the same random numbers."""

import re

import numpy as np
import pytest
import torch
from helpers import make_image
from unit.test_laws import PICTURE, features, unlike

from dali_compat import batched
from dali_compat.errors import Unsupported
from dali_compat.ops.draws import is_random
from parity import catalogue
from parity.cases.case import FLOAT, NEAR, SAME
from parity.compare import as_tensors, error
from parity.reference import reference

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning", "ignore:RandomErasing")

COUNT, HEIGHT, WIDTH = 6, 48, 64
SIDES = {"224": "32", "256": "40", "288": "44", "112": "20"}  # smaller sizes than for the photos of the catalogue
_rng = np.random.default_rng(0)
BYTES = torch.from_numpy(np.stack([make_image(_rng, HEIGHT, WIDTH) for _ in range(COUNT)])).permute(0, 3, 1, 2)
IMAGES = {"uint8": BYTES, "float": BYTES / 255, "gray": BYTES[:, 1:2]}
LIMITS = {"ElasticTransform": NEAR, "GaussianBlur": NEAR}  # measured .000054/1; .000081/1
FLOAT_LIMITS = dict.fromkeys(["Grayscale", "RandomGrayscale"], FLOAT)  # .0000023/.00003
FLOAT_LIMITS |= dict.fromkeys(["AugMix", "RandomChoice", "RandomOrder"], FLOAT)  # colour operations: .000016/.00014


def _made(entry, version):
    return catalogue._made(re.sub(r"\d+", lambda side: SIDES.get(side[0], side[0]), entry.expression), version)


def _rows():
    """Yield each row of the catalogue, for each version and kind of images, that batched() runs with kernels."""
    for entry in catalogue.TRANSFORMS:
        for version in entry.versions():
            for name, images in IMAGES.items():
                try:
                    batched(_made(entry, version))._plan(images, ())
                except Unsupported:
                    continue
                if name == "gray" and entry.name == "RandomGrayscale":  # draws, but changes nothing
                    continue
                policies = "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix"
                refuses = ("JPEG",) if version == "v2" else policies
                # torchvision refuses floats, at least for some operations
                if name == "float" and entry.name in refuses:
                    continue
                yield pytest.param(entry, version, name, id=f"{entry.name}-{version}-{name}")


def _seed_of(seed: int) -> int:
    torch.manual_seed(seed)
    return int(torch.empty((), dtype=torch.int64).random_())


@pytest.mark.alike
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("entry, version, name", list(_rows()))
def test_batched_equals_torchvision_for_each_image(entry, version, name, exact, device):
    transform, images = _made(entry, version), IMAGES[name].to(device)
    module = batched(transform, exact=exact, fallback="error")
    torch.manual_seed(3)
    mine = module(images)
    if isinstance(mine, tuple):
        mine = torch.stack(mine, 1)
    theirs = as_tensors(reference(transform, module._plan(images, ()), list(IMAGES[name]), _seed_of(3)))
    found, limits = error(as_tensors(mine), theirs), LIMITS.get(entry.name, SAME)
    if name == "float":
        limits = FLOAT_LIMITS.get(entry.name, limits)
    if device != "cpu":  # fused multiply-add, and resizing: .0011/1 of bytes, .00004/.0017 of floats on an H200
        limits = (1e-4, 4e-3) if name == "float" else (3e-3, 1)
    print(f"measured {entry.name} {version} {name}: {found}, limits {limits}")
    assert found.within(*limits), f"{found}, limits {limits}"


def test_kernels_run_all_transforms_but_conversions_and_padding():
    done = {row.values[0].name for row in _rows()}
    assert {entry.name for entry in catalogue.TRANSFORMS} - done == {
        "Pad",  # in mode "constant" for tensors only
        "PILToTensor",
        "ToTensor",
        "ToPILImage",
    }


# ---- distributions

MANY = 600
PICTURES = torch.from_numpy(PICTURE).permute(2, 0, 1)
RANDOM_TRANSFORMS = {
    "flip": "RandomHorizontalFlip(0.3)",
    "crop": "RandomCrop(20, padding=4)",
    "resized crop": "RandomResizedCrop(20, antialias=True)",
    "erasing": "RandomErasing(0.7)",
    "jitter": "ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "affine": "RandomAffine(20, (0.1, 0.1), (0.8, 1.2))",
    "policy": "TrivialAugmentWide()",
    "choice": "RandomChoice([RandomInvert(1), RandomHorizontalFlip(1), Identity()])",
}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", RANDOM_TRANSFORMS)
def test_batched_has_torchvisions_distribution(name, version):
    transform = catalogue._made(RANDOM_TRANSFORMS[name].replace("Identity()", "Pad(0)"), version)
    torch.manual_seed(0)
    module = batched(transform, fallback="error", exact=True)
    mine = features([*module(PICTURES.expand(2 * MANY, -1, -1, -1).contiguous())])
    assert any(map(is_random, module._plan(PICTURES[None], ()).steps))
    torch.manual_seed(1)
    theirs = features([transform(PICTURES) for _ in range(MANY)])
    assert unlike(mine, theirs) == []


@pytest.mark.parametrize("name", RANDOM_TRANSFORMS)
def test_one_draw_for_a_whole_batch_has_another_distribution(name):
    """torchvision draws once for a whole batch; the comparison of distributions must detect that."""
    transform = catalogue._made(RANDOM_TRANSFORMS[name].replace("Identity()", "Pad(0)"), "v2")
    torch.manual_seed(2)
    mine = features([*transform(PICTURES.expand(2 * MANY, -1, -1, -1).contiguous())])
    torch.manual_seed(1)
    assert unlike(mine, features([transform(PICTURES) for _ in range(MANY)])) != []
