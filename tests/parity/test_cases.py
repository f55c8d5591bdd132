"""Run each case of cases/ through an epoch of the DALI route, and through the PIL path for files that DALI cannot
decode."""

import functools
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.engine.dali.graph import _FINE_WARPS
from dali_compat.engine.pil import load
from dali_compat.ops.arguments import resizes_in_integers
from dali_compat.ops.draws import compute
from dali_compat.randoms import Randoms
from parity import catalogue
from parity.cases import CASES
from parity.cases.case import NEAR
from parity.compare import as_tensors, assert_same, error
from parity.difference import Pictures, measure
from parity.reference import reference
from parity.run import epoch_of_either, ours, plan_of

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning", "ignore:RandomErasing")


def _fidelities():
    """Yield each case with exact=False and True, or only with True if both have the same plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            if case.calls:
                continue
            default, exact = plan_of(case.make()), plan_of(case.make(), exact=True)
            if (default.dali, default.batch) != (exact.dali, exact.batch):
                yield pytest.param(case, False, id=f"{case.name}-default")
            yield pytest.param(case, True, id=f"{case.name}-exact")


def _cases(condition=lambda case: True):
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if condition(c)])


@pytest.mark.alike
@pytest.mark.parametrize(("case", "exact"), list(_fidelities()))
def test_epoch_images_equal_torchvision_within_limits(case, exact, device, pictures):
    mine, theirs = epoch_of_either(pictures, case.make(), device, exact, most=case.most)
    found = error(mine, theirs, case.std, case.levels)
    limits = case.limits(exact, device, theirs[0].dtype)
    print(f"measured {case.name}: {found}, limits {limits}")
    assert found.within(*limits), f"{found}, limits {limits}"


@_cases(lambda case: case.calls)
def test_untranslated_transforms_give_torchvisions_images(case, image_root):
    dataset, made = DALIImageFolder(image_root, case.make()), []
    for way in (
        torch.utils.data.DataLoader,
        functools.partial(DataLoader, exact=True, device="cpu", fallback="silent"),
    ):
        torch.manual_seed(1)
        made.append([image for batch in way(dataset, 3, collate_fn=list) for image, _ in batch])
    assert_same(*map(as_tensors, made))


@pytest.mark.alike
@_cases(lambda case: not case.calls)
def test_pil_path_equals_torchvision_bit_for_bit(case, image_root):
    """Images are processed one by one in PIL.

    Sums in another order are allowed: PIL images are blurred as in v1 in both versions, the field of ElasticTransform
    is computed here, and grayscale of floats follows v2.
    """
    transform, plan = case.make(), plan_of(case.make())
    paths = [path for path, _ in DALIImageFolder(image_root).samples[:5]]
    sizes = np.array([Image.open(path).size[::-1] for path in paths])
    arrays = compute(plan.steps, sizes, Randoms(5, 0, len(paths)), slice(None))
    rows = [[{name: array[i] for name, array in step.items()} for step in arrays] for i in range(len(paths))]
    made = (load(path, [(plan.steps, lambda size, row=row: row)]) for path, row in zip(paths, rows, strict=True))
    mine = as_tensors(image for (image,) in made)
    sums = any(word in repr(case.make()) for word in ("Blur", "Elastic")) or "Grayscale of floats" in case.name
    found = error(mine, as_tensors(reference(transform, plan, paths, seed=5)), case.std, case.levels)
    limits = (1e-4, 1.001) if sums else (0, 0)
    assert found.within(*limits), found


BATCHED = (
    "SimCLR",
    "preset augmix",
    "nested",
    "RandomPerspective ragged",
    "RandomErasing random",
    "Lambda that draws",
    "AugMix",
    "ElasticTransform",
    "GaussianNoise",
    "RandomOrder ragged",
)


@_cases(lambda case: case.name.removeprefix("v2 ") in BATCHED and not case.calls)
def test_batch_size_and_threads_do_not_change_images(case, device, pictures):
    """Random draws depend on a sample's position in the epoch, not on its batch, and pixels on its file."""
    expected, *_ = ours(pictures, case.make(), device, True, most=6, fallback="silent")
    for batch_size, options in ((1, {}), (4, {"num_workers": 2, "prefetch_factor": 3})):
        made, *_ = ours(
            pictures, case.make(), device, True, batch_size=batch_size, most=6, fallback="silent", **options
        )
        assert_same(made, expected)


def _claimed(plan) -> tuple[float, float]:
    """Return the (mean, max) pixel error that a plan's description allows."""
    promised = [words.split(" (")[0] for line in plan.lines for words in line.fidelity.split(", ")]
    found = [mean for words in promised for mean in re.findall(r"mean error \.(\d+) of 255", words)]
    means = [(int(digits) + 0.5) / 10 ** len(digits) for digits in found]  # explain() rounds to the last digit
    maxima = [int(most) for words in promised for most in re.findall(r"maximum (\d+)", words)]
    assert len(maxima) == len(means), f"no maximum in {promised}"
    floats = 255e-6 * sum(words == "within 1e-6" for words in promised)
    return sum(means) + floats, sum(maxima) + floats


# errors that explain() rounds to zero
ROUNDED = {
    "ElasticTransform": NEAR,  # sums in another order
}


def _classes(transform) -> set[str]:
    """Return the names of a transform's class and of the classes it contains."""
    inside = transform if isinstance(transform, nn.Sequential) else getattr(transform, "transforms", None) or ()
    return {type(transform).__name__}.union(*map(_classes, inside))


@pytest.mark.filterwarnings("ignore")
def test_every_transform_of_the_catalogue_has_cases():
    named = set().union(*(_classes(case.make()) for case in CASES))
    without = {entry.name for entry in catalogue.TRANSFORMS} - named
    assert not without, f"write cases in tests/parity/cases: {without}"


PAIRS = [
    catalogue.Entry(f"Compose([{pair}])", "photo")
    for pair in (
        "Resize(256), CenterCrop(224)",
        "RandomResizedCrop(224), RandomHorizontalFlip()",
        "RandomCrop(224, padding=8, pad_if_needed=True), RandomHorizontalFlip()",
        "Resize((224, 224)), ToTensor()",
        "ToTensor(), Resize(64)",
        "CenterCrop(33), Resize((16, 30), InterpolationMode.BICUBIC)",
        "Resize((256, 256)), RandomRotation(30, InterpolationMode.BILINEAR)",
        "RandomResizedCrop(224), ColorJitter(0.4, 0.4, 0.4, 0.1)",
        "Pad(2), Resize(64)",
        "Grayscale(3), Resize(64, InterpolationMode.LANCZOS)",
    )
]
MEASURED = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "parity_cpu.json").read_text())
PROMISED = {row["of"]: row for row in MEASURED["transforms"]} | {row["name"]: row for row in MEASURED["recipes"]}
LEAST = 1e-4  # shown in the table as <.0001
# The table was measured with the warps of DALI 2, and with PyTorch's integer arithmetic for resizing bytes.
AS_IN_THE_TABLE = _FINE_WARPS and resizes_in_integers("bilinear")


@pytest.mark.parametrize("entry", [*catalogue.TRANSFORMS, *PAIRS], ids=lambda entry: entry.expression)
def test_photo_errors_are_within_explain_and_the_docs(entry, photos):
    """Check the larger error of v1 and v2 on the CPU. test_kinds.py checks that every registered transform has a
    row."""
    ways = [entry.made(version) for version in entry.versions() or catalogue.VERSIONS]
    found, _ = measure(Pictures(photos), ways, "cpu")
    for mode, exact in (("default", False), ("exact", True)):
        claimed = np.max([_claimed(plan_of(way, exact)) for way in ways], 0)
        mean, most = map(sum, zip(claimed, ROUNDED.get(entry.name, (0, 0)), strict=True))
        if "ColorJitter" in entry.expression and most:  # its factors amplify an error of one level, as in SimCLR's row
            most = max(most, PROMISED["SimCLR"][mode]["max"])
        print(f"measured {entry.name} {mode}: {found[mode]}, claimed {mean, most}")
        assert found[mode]["mean"] <= mean and found[mode]["max"] <= most, (mode, found[mode], mean, most)
        if AS_IN_THE_TABLE and (promised := PROMISED.get(entry.expression, {}).get(mode)):
            assert promised["mean"] <= mean and promised["max"] <= most, (mode, promised, mean, most)
            assert found[mode]["mean"] <= max(promised["worst_image_mean"], LEAST), (mode, found[mode], promised)
            assert found[mode]["max"] <= max(promised["max"], LEAST), (mode, found[mode], promised)


@pytest.mark.parametrize("size", [8, 64, 300, 512])
@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR", "BICUBIC"])
def test_resized_floats_equal_torchvision_at_a_border(interpolation, size, photos):
    """In both versions, with a border of another color."""
    resize = f"ToTensor(), Pad(2), Resize({size}, InterpolationMode.{interpolation}, antialias=True)"
    entry = catalogue.Entry(f"Compose([{resize}])", "photo")
    found, _ = measure(Pictures(photos), [entry.made(version) for version in catalogue.VERSIONS], "cpu")
    assert found["default"]["max"] <= 255e-6 and found["exact"]["max"] == 0, found
