"""The error about an image that is too small for a crop names that image, even if the crop is applied at random."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import ours
from dali_compat import DALIImageFolder
from dali_compat.engine import pil
from dali_compat.epoch import decode
from dali_compat.ops.draws import ImageTooSmall, compute
from dali_compat.plan import Gate, ImageSpec, Step, draw
from dali_compat.randoms import Randoms

SMALL, LARGE, CROP = 20, 60, 50
COUNT, BAD = 24, (5, 13, 22)


@pytest.fixture
def mixed_sizes(tmp_path):
    """21 images of 60 x 60 and three of 20 x 20."""
    (tmp_path / "a").mkdir()
    for number in range(COUNT):
        side = SMALL if number in BAD else LARGE
        Image.new("RGB", (side, side), (number, 0, 0)).save(tmp_path / "a" / f"{number:02d}.png")
    return tmp_path


CONDITIONAL = {
    "RandomApply": lambda m: [m.RandomApply([m.RandomCrop(CROP)], 0.5)],
    "RandomChoice": lambda m: [m.RandomChoice([m.RandomCrop(CROP), m.CenterCrop(CROP), m.Resize((LARGE, LARGE))])],
    "RandomOrder in RandomApply": lambda m: [
        m.RandomApply([m.RandomOrder([m.RandomHorizontalFlip(), m.RandomCrop(CROP)])], 0.6)
    ],
    "RandomApply in RandomChoice": lambda m: [
        m.RandomChoice([m.RandomApply([m.RandomCrop(CROP)], 0.7), m.RandomVerticalFlip(), m.RandomCrop(CROP)])
    ],
    "RandomChoice in RandomApply in RandomApply": lambda m: [
        m.RandomApply([m.RandomApply([m.RandomChoice([m.RandomCrop(CROP), m.RandomVerticalFlip()])], 0.8)], 0.8)
    ],
    "several, one after another": lambda m: [
        m.RandomApply([m.RandomHorizontalFlip()], 0.5),
        m.RandomApply([m.RandomCrop(CROP)], 0.3),
        m.RandomChoice([m.RandomCrop(CROP - 1), m.RandomVerticalFlip()]),
    ],
}


@pytest.mark.parametrize("name, module", zip(CONDITIONAL, (T, v2) * 3, strict=True))
def test_error_names_an_image_that_is_too_small(mixed_sizes, module, name):
    transform = module.Compose([*CONDITIONAL[name](module), module.Resize((8, 8)), module.PILToTensor()])
    dataset = DALIImageFolder(mixed_sizes, transform)
    loader, order = ours(dataset, 12, device="cpu", fallback="silent"), torch.arange(COUNT).split(12)
    torch.manual_seed(0)
    names = []
    for _ in range(20):
        iterator = iter(loader)
        for batch in order:
            try:
                images, _ = next(iterator)
                assert images[:, 0, 4, 4].tolist() == batch.tolist()
            except ValueError as error:
                names += [i for i in batch.tolist() if f"({dataset.samples[i][0]}, index {i})" in str(error)] or [
                    str(error)
                ]
    assert len(names) > 6 and set(names) == set(BAD), names


def test_error_names_an_image_decoded_by_pil(tmp_path):
    (tmp_path / "a").mkdir()
    for number, side in enumerate((LARGE, LARGE, SMALL, LARGE)):
        Image.new("CMYK", (side, side)).save(tmp_path / "a" / f"{number}.jpg")
    loader = ours(DALIImageFolder(tmp_path, T.Compose([T.RandomCrop(CROP), T.PILToTensor()])), 4, device="cpu")
    with pytest.raises(ValueError, match=r"2\.jpg, index 2\)"):
        next(iter(loader))


def _step(op, stream, when=(), **drawn):
    return Step(op, ImageSpec(), draw=draw(**drawn), stream=stream, when=when)


@pytest.mark.parametrize("rows", [slice(None), list(range(0, 64, 2))], ids=["all rows", "some rows"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_row_of_the_error_is_the_row_with_the_small_size(depth, rows):
    """The number of conditions before the crop and the selection of rows make no difference."""
    gates = tuple(Gate(stream, 1) for stream in range(depth))
    chooses = [_step("choose", gate.stream, gates[:i], name="bernoulli", p=0.8) for i, gate in enumerate(gates)]
    crop = _step("crop", depth, gates, name="random_crop", size=(CROP, CROP))
    count, seen = len(np.arange(64)[rows]), set()
    for seed in range(40):
        bad = seed % count
        sizes = np.full((count, 2), LARGE)
        sizes[bad] = SMALL
        try:
            compute((*chooses, crop), sizes, Randoms(seed, 0, 64), rows)
        except ImageTooSmall as error:
            assert error.row == bad and str(error).startswith("Required crop size")
            seen.add(bad)
    assert len(seen) > 10


WHOLE = T.Compose([T.Resize(12), T.ToTensor()])
CROPPED = T.Compose([T.CenterCrop(12), T.ToTensor()])


@pytest.fixture
def two_sizes(tmp_path):
    """Four images, of 16 x 16 and 16 x 32."""
    (tmp_path / "a").mkdir()
    for number in range(4):
        Image.effect_noise((16, 16 + 16 * (number % 2)), 90).convert("RGB").save(tmp_path / "a" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("transform", [WHOLE, CROPPED], ids=["ragged", "equal sizes"])
def test_result_of_unexpected_size_is_replaced_by_pillows_or_raises(two_sizes, monkeypatch, transform):
    """If the results of both DALI and Pillow have another size than computed, the error reports it."""
    theirs = [image for image, _ in ImageFolder(two_sizes, transform)]
    loader = ours(DALIImageFolder(two_sizes, transform), 4, exact=True, device="cpu", collate_fn=list)
    finished = decode._run_torch_steps

    def cut(plan, images, arrays):
        made = finished(plan, images, arrays)
        return made[..., 1:] if isinstance(made, torch.Tensor) else [made[0][..., 1:], *made[1:]]

    monkeypatch.setattr(decode, "_run_torch_steps", cut)
    (mine,) = loader
    assert all(torch.equal(one, other) for (one, _), other in zip(mine, theirs, strict=True))
    if transform is CROPPED:
        monkeypatch.setattr(pil, "as_tensor", lambda image: image[..., 1:])
        with pytest.raises(RuntimeError, match=r"crop.* returned an image of .*, expected "):
            list(loader)
