"""The comparison functions and the reference detect wrong images and wrong draws."""

import json
import math
import re
import threading

import numpy as np
import pytest
import torch
from helpers import make_image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_compat import DALIImageFolder
from parity import catalogue
from parity.compare import Error, as_tensors, assert_same, error
from parity.dictation import Disagreement, _sources
from parity.difference import Pictures, PixelErrors, measure
from parity.measure import main
from parity.reference import _Numbers, reference
from parity.run import epoch, plan_of


def _picture(seed=0, height=60, width=80) -> torch.Tensor:
    return torch.from_numpy(make_image(np.random.default_rng(seed), height, width)).permute(2, 0, 1)


WRONG = {
    "one pixel down": lambda x: x.roll(1, 1),
    "one pixel right": lambda x: x.roll(1, 2),
    "channels swapped": lambda x: x.flip(0),
    "flipped": lambda x: x.flip(2),
    "upside down": lambda x: x.flip(1),
    "black": torch.zeros_like,
    "another picture": lambda x: _picture(1),
    "darker by one level": lambda x: (x.int() - 1).clamp(min=0).to(x.dtype),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_wrong_images_have_a_large_error(name, dtype):
    """The error is larger than any limit for resizing (.3 of 255)."""
    right, wrong = _picture(), WRONG[name](_picture())
    if dtype == torch.float32:
        right, wrong = right / 255, wrong / 255
    found = error([wrong, right], [right, right])
    assert found.mean > 0.3, found
    with pytest.raises(AssertionError):
        assert_same([wrong], [right])


def test_equal_images_have_no_error():
    assert error([_picture(), _picture(1)], [_picture(), _picture(1)]) == Error(0, 0)


def test_one_wrong_value_sets_the_maximum():
    wrong = _picture()
    wrong[1, 30, 40] ^= 0x80
    assert error([_picture(), wrong], [_picture()] * 2) == Error(128 / (2 * 3 * 60 * 80), 128)
    with pytest.raises(AssertionError):
        assert_same([wrong], [_picture()])


def test_mean_error_weights_values_not_images():
    small, large = torch.zeros(3, 1, 1), torch.zeros(3, 10, 10)
    assert error([small + 1, large], [small, large]).mean == pytest.approx(255 / 101)


def test_pixel_errors_report_the_mean_of_the_worst_image():
    """The worst image is the one with the largest mean."""
    errors, picture = PixelErrors(), torch.zeros(1, 2, 2)
    errors.add(picture, picture, np.ones(1))
    errors.add((picture, picture), (picture, picture + 4), np.ones(1))
    assert errors.result() == {"mean": 16 / 12, "max": 4, "worst_image_mean": 2} and errors.images == 2


def test_measure_creates_the_folder_of_its_results(tmp_path):
    path, first = tmp_path / "a" / "new" / "results.json", catalogue.TRANSFORMS[0]
    assert main(["--only", first.name, "--most", "2", "--device", "cpu", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert [row["of"] for row in result["transforms"]] == [first.expression]
    assert result["images"]["images"] == 2 and not result["recipes"]


@pytest.mark.parametrize("spec", ["T.Compose(", "T.Blink()", "nowhere:made", "nowhere.py:made", "json:nothing"])
def test_measure_with_an_invalid_transform_exits_with_its_error(spec):
    with pytest.raises(SystemExit, match=f"^parity: --transform {re.escape(spec)}: \\w+: .") as raised:
        main(["--device", "cpu", "--transform", spec])
    assert raised.value.__cause__ is None


def test_measure_reports_default_and_exact(photos):
    # bilinear resizing is exact before torchvision 0.21 with AVX512
    resize = v1.Resize(64, v1.InterpolationMode.BICUBIC)
    found, _ = measure(Pictures(photos, 2), [v1.Compose([resize, v1.CenterCrop(64)])], "cpu")
    assert found["exact"]["max"] == 0 < found["default"]["max"]


def test_errors_are_in_levels_of_255():
    """Floats are in 0..1, normalization is undone for each channel, and unscaled floats are already levels."""
    std, zero = (0.5, 0.25, 0.125), torch.zeros(3, 2, 2)
    wrong = torch.stack([zero[0], zero[0], zero[0] + 1])
    assert error([wrong], [zero]).max == 255
    assert error([wrong], [zero], std=std) == Error(255 * 0.125 / 3, 255 * 0.125)
    assert error([wrong], [zero], levels=1).max == 1
    assert error([wrong.to(torch.uint8)], [zero.to(torch.uint8)]).max == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.int16),
        lambda x: x[:, :-1],
        lambda x: x.permute(1, 2, 0),
        lambda x: x[:1],
        lambda x: x[None],
        lambda x: x[:, :0],
    ],
)
def test_error_refuses_another_shape_or_dtype(wrong):
    with pytest.raises(AssertionError):
        error([wrong(_picture())], [_picture()])


def test_error_refuses_missing_images():
    for mine, theirs in (([], []), ([_picture()], []), ([_picture()], [_picture()] * 2)):
        with pytest.raises(AssertionError):
            error(mine, theirs)


def test_nan_is_within_no_limit():
    wrong = torch.zeros(3, 4, 4)
    wrong[0, 0, 0] = math.nan
    for images in ([wrong, torch.zeros(3, 4, 4)], [torch.zeros(3, 4, 4), wrong]):
        assert not error(images, [torch.zeros(3, 4, 4)] * 2).within(1e9, 1e9)


def test_as_tensors_gives_plain_tensors():
    for image in (tv_tensors.Image(_picture()), v1.functional.to_pil_image(_picture())):
        (plain,) = as_tensors([image])
        assert type(plain) is torch.Tensor and torch.equal(plain, _picture())
    (views,) = as_tensors([(_picture(), _picture(1))])
    assert torch.equal(views[1], _picture(1))


# ---- the reference

_CROP = v2.CenterCrop(50)
_NOISE = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()])
RANDOM = {
    f"{name} {type(make(T)).__name__}": make(T)
    for name, T in (("v1", v1), ("v2", v2))
    for make in (
        lambda T: T.RandomCrop(40),
        lambda T: T.RandomResizedCrop(40),
        lambda T: T.RandomHorizontalFlip(),
        lambda T: T.RandomGrayscale(0.5),
        lambda T: T.ColorJitter(0.5),
        lambda T: T.RandomRotation(30),
        lambda T: T.RandomAffine(30, (0.1, 0.2), (0.5, 1), (-9, 9, 3, 5)),
        lambda T: T.RandomPerspective(0.5, 0.8),
        lambda T: T.ElasticTransform(200.0),
        lambda T: T.GaussianBlur(9, (0.1, 9)),
        lambda T: T.RandomSolarize(90),
        lambda T: T.RandomApply([T.RandomInvert(1)]),
        lambda T: T.RandomChoice([T.RandomInvert(1), T.RandomVerticalFlip(1), T.RandomSolarize(90, 1)]),
        lambda T: T.RandomOrder([T.RandomInvert(1), T.RandomSolarize(90, 1), T.RandomPosterize(1, 1)]),
        lambda T: T.AutoAugment(),
        lambda T: T.RandAugment(4),
        lambda T: T.TrivialAugmentWide(),
        lambda T: T.AugMix(),
        lambda T: T.Compose([T.ToTensor(), T.RandomErasing(value="random")]),
    )
} | {
    f"v2 {type(transform).__name__}": transform
    for transform in (
        v2.RandomPhotometricDistort(),
        v2.RandomChannelPermutation(),
        v2.RandomZoomOut(side_range=(1, 1.1)),
        v2.RandomResize(30, 90),
        v2.ScaleJitter((60, 60)),
        v2.RandomShortestSize([30, 40, 50]),
        v2.JPEG((1, 90)),
        _NOISE,
    )
}


@pytest.mark.parametrize("name", RANDOM)
def test_reference_uses_the_plans_draws(name, image_root):
    """Another seed gives other images, and torchvision's functions are restored afterwards."""
    transform = v2.Compose([_CROP, RANDOM[name]])
    paths = [path for path, _ in DALIImageFolder(image_root).samples[:10]]
    before = [getattr(owner, name) for owner, name, _ in _sources(_Numbers())]
    first, again, other = (as_tensors(reference(transform, plan_of(transform), paths, seed)) for seed in (1, 1, 2))
    assert_same(first, again)
    assert [getattr(owner, name) for owner, name, _ in _sources(_Numbers())] == before
    if [image.shape for image in first] == [image.shape for image in other]:
        assert error(first, other).mean > 1


def test_torchvision_draws_normally_after_the_reference(image_root):
    path, _ = DALIImageFolder(image_root).samples[0]
    for _ in range(2):
        torch.manual_seed(3)
        expected = torch.rand(2), v1.RandomHorizontalFlip()(_picture()), torch.empty(3).uniform_()
        reference(RANDOM["v1 ColorJitter"], plan_of(RANDOM["v1 ColorJitter"]), [path])
        torch.manual_seed(3)
        found = torch.rand(2), v1.RandomHorizontalFlip()(_picture()), torch.empty(3).uniform_()
        assert all(map(torch.equal, expected, found))
    with pytest.raises(RuntimeError, match="mine"):
        reference(_fails, plan_of(None), [path])
    assert torch.rand(100).unique().numel() > 90


def _fails(image):
    raise RuntimeError("mine")


WRONG_PLANS = {
    "another draw": (v1.RandomCrop(5), v1.RandomHorizontalFlip(), "asks for window where the plan has coin"),
    "no draw": (v1.RandomHorizontalFlip(), None, "asks for coin where the plan has nothing"),
    "one draw too many": (
        v1.RandomHorizontalFlip(),
        [v1.RandomHorizontalFlip(), v1.RandomVerticalFlip()],
        "not asked for coin",
    ),
    "another order": ([v1.RandomInvert(), v1.RandomCrop(5)], [v1.RandomCrop(5), v1.RandomInvert()], "asks for coin"),
    "a window beyond the image": ([v1.CenterCrop(9), v1.RandomCrop(5)], v1.RandomCrop(5), "in an image of 9 x 9"),
    "another size": (v2.RandomCrop(6), v2.RandomCrop(5), "a window of 5 x 5 instead of 6 x 6"),
    "a number out of range": (v1.RandomRotation(5), v1.RandomRotation((20, 21)), "not between -5"),
    "another choice": (
        v2.RandomChoice([v2.RandomInvert(1)]),
        v2.RandomChoice([_CROP, v2.RandomInvert(1)], p=[0, 1]),
        "not between",
    ),
    "another kind of noise": (_NOISE, v2.ElasticTransform(), "asks for noise"),
    "fewer operations": (v1.RandAugment(1), v1.RandAugment(2), "not asked for operation"),
    "more operations": (v1.RandAugment(3), v1.RandAugment(2), "asks for"),
}


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_reference_raises_if_the_plan_draws_something_else(name, image_root):
    transform, drawn, words = WRONG_PLANS[name]
    transform, drawn = (v2.Compose(t) if isinstance(t, list) else t for t in (transform, drawn))
    path, _ = DALIImageFolder(image_root).samples[0]
    with pytest.raises(Disagreement, match=words):
        reference(transform, plan_of(drawn), [path])


def test_reference_does_not_affect_other_threads(image_root):
    """A loader may run at the same time as the reference."""
    flip = v1.RandomHorizontalFlip()
    drawn = []

    def transform(image):
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(5)))
        thread.start()
        thread.join()
        return flip(image)

    path, _ = DALIImageFolder(image_root).samples[0]
    reference(transform, plan_of(flip), [path])
    assert drawn[0].unique().numel() == 5


def test_an_epoch_with_another_seed_has_a_large_error(image_root, monkeypatch):
    """The comparison fails if the engine and the reference use different random numbers."""
    from dali_compat.epoch import iterator

    own = iterator.Progress.seed.fget
    monkeypatch.setattr(iterator.Progress, "seed", property(lambda self: own(self) + 1))
    transform = v2.Compose([v2.RandomResizedCrop(40), v2.PILToTensor()])
    assert error(*epoch(image_root, transform, "cpu", True, most=6)).mean > 1
