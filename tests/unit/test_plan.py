"""Golden tests of explain() and of the lowered plan of each recipe. docs/explain.md shows an example."""

import re

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.ops.arguments import resizes_in_integers
from dali_compat.plan import Options
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
VAL = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)])
IDIOM = v2.Compose(
    [v2.ToImage(), v2.RandomResizedCrop(224), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
)

ONE_PASS = "one pass: mean error .2 of 255 (exact=True: 0)"
RRC = "RandomResizedCrop(size=(224, 224), scale=(0.08, 1.0), ratio=(0.75, {}), interpolation=bilinear, antialias=True)"
RESIZE = "Resize(size=256, interpolation=bilinear, max_size=None, antialias=True)"
CPU, BATCH, EACH = "DALI on CPU", "torch, on the batch", "torch, image by image"
NORMALIZE = f"Normalize(mean={MEAN}, std={STD})"
# differ between versions of torchvision
V2_RRC, V2_NORMALIZE = (" ".join(repr(t).split()) for t in (v2.RandomResizedCrop(224), v2.Normalize(MEAN, STD)))
DECODE = ["(decode)", "decode", CPU, "exact"]

WHOLE = resizes_in_integers("bilinear")
NEAR = "mean error .02 of 255 and maximum 2 on photos (exact=True: 0)" if WHOLE else "exact"

# (recipe, exact): rows of explain()
ACCOUNTS = {
    ("train", False): [
        [RRC.format(1.3333), "crop (random_resized_crop), resize", f"{CPU} + {EACH}", NEAR],
        ["RandomHorizontalFlip(p=0.5)", "flip", BATCH, "exact"],
        ["ToTensor()", "to_dtype", BATCH, "within 1e-6"],
        [NORMALIZE, "normalize", BATCH, "within 1e-6"],
    ],
    ("train", True): [
        [RRC.format(1.3333), "crop (random_resized_crop), resize", f"{CPU} + {EACH}", "exact"],
        ["RandomHorizontalFlip(p=0.5)", "flip", BATCH, "exact"],
        ["ToTensor()", "to_dtype", BATCH, "exact"],
        [NORMALIZE, "normalize", BATCH, "exact"],
    ],
    ("val", False): [
        [RESIZE, "resize", EACH, NEAR],
        ["CenterCrop(size=(224, 224))", "crop (center_crop)", EACH, "exact"],
        ["ToTensor()", "to_dtype", BATCH, "within 1e-6"],
        [NORMALIZE, "normalize", BATCH, "within 1e-6"],
    ],
    ("val", True): [
        [RESIZE, "resize", EACH, "exact"],
        ["CenterCrop(size=(224, 224))", "crop (center_crop)", EACH, "exact"],
        ["ToTensor()", "to_dtype", BATCH, "exact"],
        [NORMALIZE, "normalize", BATCH, "exact"],
    ],
    ("idiom", False): [
        ["ToImage()", "nothing to do", "-", "exact"],
        [V2_RRC, "crop (random_resized_crop), resize", f"{CPU} + {EACH}", "exact"],
        ["ToDtype(scale=True)", "to_dtype", BATCH, "within 1e-6"],
        [V2_NORMALIZE, "normalize", BATCH, "within 1e-6"],
    ],
    ("idiom", True): [
        ["ToImage()", "nothing to do", "-", "exact"],
        [V2_RRC, "crop (random_resized_crop), resize", f"{CPU} + {EACH}", "exact"],
        ["ToDtype(scale=True)", "to_dtype", BATCH, "exact"],
        [V2_NORMALIZE, "normalize", BATCH, "exact"],
    ],
}
# (recipe, exact): DALI operators with the draws of their arguments, and torch operations on the batch
LOWERED = {
    ("train", True): ("crop(random_resized_crop)", "resize(resize) flip(bernoulli) to_dtype() normalize()"),
    ("val", True): ("", "resize(resize) crop(center_crop) to_dtype() normalize()"),
    ("idiom", True): ("crop(random_resized_crop)", "resize(resize) to_dtype() normalize()"),
}
LOWERED_GPU = {
    "train": ("crop(random_resized_crop) resize(resize_lowered) crop_mirror_normalize(bernoulli)", ""),
    "val": ("resize(resize_lowered) crop_mirror_normalize()", ""),
    "idiom": ("crop(random_resized_crop) resize(resize_lowered) crop_mirror_normalize()", ""),
}
LOWERED |= {(name, False): LOWERED[name, True] for name in LOWERED_GPU}
if WHOLE:  # else Pillow resizes
    LOWERED["train", False] = LOWERED["idiom", False] = (
        "crop(random_resized_crop)",
        "resize_mirror_normalize(resized_window)",
    )
    LOWERED["val", False] = "", "resize_mirror_normalize(resized_window)"
RECIPES = {"train": TRAIN, "val": VAL, "idiom": IDIOM}

every_account = pytest.mark.parametrize("name, exact", ACCOUNTS, ids=lambda value: str(value))


def _rows(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def _outline(steps) -> str:
    return " ".join(f"{s.op}({s.draw.name if s.draw else ''})" for s in steps)


@every_account
def test_lowered_operators_of_each_recipe(name, exact):
    plan = lower(translate(RECIPES[name]), Options(exact))
    assert (_outline(plan.dali), _outline(plan.batch)) == LOWERED[name, exact]
    assert plan.gives.dtype == torch.float32 and plan.gives.size == (224, 224)


@pytest.mark.parametrize("name", RECIPES)
def test_lowered_operators_of_each_recipe_on_gpu(name):
    plan = lower(translate(RECIPES[name]), Options(gpu=True))
    assert (_outline(plan.dali), _outline(plan.batch)) == LOWERED_GPU[name]


@every_account
def test_explain_of_each_recipe(name, exact, image_root):
    loader = DataLoader(
        DALIImageFolder(image_root, RECIPES[name]), 4, num_workers=2, device="cpu", exact=exact, pin_memory=True
    )
    first, *rows, odd, ignored = loader.explain(wide=True).splitlines()
    kernels = "exact=True" if exact else "exact=False, the fastest kernels"
    assert re.fullmatch(rf"DALI route on cpu: 2 CPU threads, 2 batches in flight, DALI \d+\.\d+\.\d+; {kernels}", first)
    assert _rows("\n".join(rows)) == [DECODE, *ACCOUNTS[name, exact]]
    assert odd.strip() == "files that DALI decodes differently from PIL go through PIL, one by one, in the same batch"
    assert ignored.strip() == "without effect: pin_memory=True"


def test_gpu_chain_without_random_steps_resizes_in_pillows_passes():
    def passes(transform, **options):
        plan = lower(translate(transform), Options(**options))
        return next(dict(s.draw.args)["passes"] for s in plan.dali if s.op == "resize")

    assert passes(TRAIN, gpu=True) == passes(IDIOM, gpu=True) == "one"
    assert passes(VAL, gpu=True) == "as Pillow"
    on_tensors = "width first" if resizes_in_integers("bilinear") else "one"
    assert passes(v2.Compose([v2.ToImage(), v2.Resize(256)]), gpu=True) == on_tensors


def on_planes(*transforms):
    """Return the operations of the kernels and of torch after them, or None if the JPEG engine is not used."""
    plan = lower(translate(v2.Compose([*transforms])), Options(exact=True, gpu=True))
    if not plan.from_planes:
        return None
    return tuple(" ".join(s.op for s in steps) for steps in (plan.planes, plan.after))


def test_planes_are_resized_only_if_torchvision_resizes_integers(monkeypatch):
    """Before 0.21, v2 resizes floats for bilinear interpolation with AVX512."""
    for integers in (True, False):
        target = "dali_compat.ops.arguments.resizes_in_integers"
        monkeypatch.setattr(target, lambda interpolation, integers=integers: integers)
        assert ("resize" in on_planes(IDIOM)[0]) == integers
        assert on_planes(TRAIN) == ("crop resize flip to_dtype normalize", "")


def test_operations_that_kernels_apply_to_planes():
    """Kernels filter to one size, or select pixels.

    torch applies the remaining steps as usual. If DALI has steps for images of several sizes, DALI decodes.
    """
    tensor, size = v2.ToImage(), (8, 8)
    nearest, box = ({"interpolation": InterpolationMode[name]} for name in ("NEAREST", "BOX"))
    assert on_planes(v1.RandomResizedCrop(8, **nearest), v1.ToTensor()) == ("crop resize to_dtype", "")
    assert on_planes(v1.Resize(9, InterpolationMode.NEAREST_EXACT), v1.CenterCrop(8)) == ("resize crop", "")
    assert on_planes(tensor, v2.RandomResizedCrop(8, **nearest)) == ("crop", "resize")
    assert on_planes(tensor, v2.Resize(size, antialias=False)) == ("", "resize")
    assert on_planes(v1.RandomResizedCrop(8, **box)) == ("crop", "resize")
    assert on_planes(v1.RandomCrop(8, padding=4)) == ("pad crop", "")
    assert on_planes(v1.RandomHorizontalFlip(), v1.RandomResizedCrop(8)) == ("flip crop", "resize")
    assert on_planes(v1.Resize(9), v1.ToTensor()) == ("", "resize to_dtype")
    assert on_planes(v1.CenterCrop(20), v1.Resize(9), v1.RandomHorizontalFlip()) == ("crop", "resize flip")
    assert on_planes(v1.ColorJitter(0.4), v1.RandomCrop(8)) == ("", "color_jitter crop")
    assert on_planes(v1.ToTensor()) == ("to_dtype", "") and on_planes(v1.PILToTensor()) == ("", "")
    assert on_planes(v1.Pad(4, fill=7), v1.RandomCrop(8)) is None
    assert on_planes(v1.RandomCrop(8), v1.Pad(4, fill=7), v1.Grayscale(3)) == ("crop", "pad grayscale")


def test_floating_point_resize_on_gpu_is_not_reported_as_exact():
    """A GPU sums in another order. Pillow and v2 sum integers for uint8 images."""

    def fidelity(*transforms):
        return lower(translate(v2.Compose([*transforms])), Options(exact=True, gpu=True)).lines[-1].fidelity

    rounded = "exact except for the order of additions"
    assert fidelity(v2.Resize(9)) == "exact"
    assert fidelity(v2.ToImage(), v2.Resize(9)) == ("exact" if resizes_in_integers("bilinear") else rounded)
    assert fidelity(v1.PILToTensor(), v1.Resize(9)) == fidelity(v1.ToTensor(), v2.Resize(9)) == rounded
    nearest = InterpolationMode.NEAREST
    assert fidelity(v1.ToTensor(), v1.Resize(9, nearest)) == "exact"
    assert (
        lower(translate(v1.Compose([v1.ToTensor(), v1.Resize(9)])), Options(exact=True)).lines[-1].fidelity == "exact"
    )


def test_crop_is_fused_into_resize_only_if_it_lies_inside():
    def ops(*transforms):
        plan = lower(translate(v1.Compose([*transforms, v1.PILToTensor()])), Options(gpu=True))
        return [s.op for s in plan.dali]

    assert ops(v1.Resize(256), v1.CenterCrop(224)) == ops(v1.Resize(256), v1.CenterCrop(256)) == ["resize"]
    assert ops(v1.Resize((50, 60)), v1.CenterCrop((50, 60))) == ops(v1.Resize(50), v1.RandomCrop(90)) == ["resize"]
    assert ops(v1.Resize(256), v1.CenterCrop(257)) == ops(v1.Resize((50, 60)), v1.CenterCrop(55)) == ["resize", "crop"]
    assert ops(v1.Resize(256), v1.CenterCrop((200, 257))) == ops(v1.Resize(256), v1.CenterCrop((257, 200)))
    assert ops(v1.Resize(256), v1.CenterCrop((200, 257))) == ["resize", "crop"]
    assert ops(v1.Resize(256, max_size=260), v1.CenterCrop(10)) == ["resize", "crop"]
    assert ops(v1.Resize(256), v1.RandomHorizontalFlip(), v1.CenterCrop(9)) == ["resize", "flip", "crop"]
    assert ops(v1.Resize(256), v1.CenterCrop(20), v1.CenterCrop(9)) == ["resize", "crop"]


def test_geometry_is_moved_before_pixelwise_steps():
    plan = lower(
        translate(v1.Compose([v1.ToTensor(), v1.RandomCrop(20), v1.RandomHorizontalFlip(), v1.Normalize(MEAN, STD)]))
    )
    assert _outline(plan.dali) == "crop(random_crop) crop_mirror_normalize(bernoulli)"
    assert [s.op for s in plan.steps] == ["pil_to_tensor", "to_dtype", "crop", "flip", "normalize"]
    assert [s.stream for s in plan.steps] == [0, 1, 2, 3, 4] and [s.stream for s in plan.dali] == [2, 3]


@pytest.mark.parametrize("exact", [True, False])
def test_lines_of_steps_after_a_moved_crop_say_on_the_batch(exact):
    """The crop runs before ToTensor, so all images have one size from there on."""
    chain = translate(v1.Compose([v1.ToTensor(), v1.CenterCrop(32), v1.GaussianBlur(3)]))
    places = [line.where for line in lower(chain, Options(exact=exact)).lines]
    assert places == [BATCH if exact else "DALI", "DALI", BATCH]


def test_equal_transforms_translate_equally():
    """Data sets of a ConcatDataset can share a plan, and an epoch can reuse the previous pipeline."""
    again = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(list(MEAN), list(STD))])
    assert lower(translate(VAL)).steps == lower(translate(again)).steps
    assert lower(translate(VAL)).steps != lower(translate(TRAIN)).steps
    hash(lower(translate(VAL)).steps)


def test_explain_omits_arguments_that_do_not_fit_a_terminal(image_root):
    long = v1.RandomResizedCrop(224, scale=(0.1, 1.0))
    transform = v1.Compose([long, v1.ToTensor()])
    loader = DataLoader(DALIImageFolder(image_root, transform), device="cpu", fallback="silent")
    first = [line.split("  ")[1] for line in loader.explain().splitlines()[2:-1]]
    assert first == ["RandomResizedCrop(size=(224, 224), ...)", "ToTensor()"]
    assert "ratio=" in loader.explain(wide=True)


@pytest.mark.parametrize(
    "added, announced", [([], True), ([v1.ToTensor()], False), ([v1.Lambda(lambda image: image)], False)]
)
def test_explain_announces_pil_samples_unless_a_callable_may_change_them(image_root, added, announced):
    """The result of a user's function is unknown before it is called."""
    transform = v1.Compose([v1.CenterCrop(40), *added])
    loader = DataLoader(DALIImageFolder(image_root, transform), device="cpu", fallback="silent")
    assert ("samples are PIL images" in loader.explain()) == announced
