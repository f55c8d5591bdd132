"""Translation of transforms, and the transform, reason and remedy that a refusal contains."""

import inspect

import pytest
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from dali_compat.inspection.untranslatable import describe
from dali_compat.ops.translators import _TRANSLATORS
from dali_compat.plan import step
from dali_compat.translate import Untranslatable, register, translate


def refusal(*transforms) -> Untranslatable:
    refused = translate(v2.Compose([*transforms])).refused
    assert refused is not None
    return refused


class ResizeSubclass(v1.Resize):
    def forward(self, img):
        return super().forward(img)


class Callable:
    def __call__(self, image):
        return image


def plain_function(image):
    return image


TO_TENSOR = v1.ToTensor()
PIL = v1.PILToTensor()
# (transforms, index of the refused one, text of the reason, text of the remedy)
REFUSALS = {
    "dict fill": (
        [v2.Pad(2, fill={tv_tensors.Image: 1})],
        0,
        "fill is a dict",
        "pass the fill for images as a number or a sequence",
    ),
    "fill for one channel": (
        [v1.Grayscale(), v1.Pad(2, fill=(1, 2, 3))],
        1,
        "fill=(1, 2, 3) does not fit an image with 1 channel(s)",
        "",
    ),
    "float fill": ([v2.Pad(2, fill=0.5)], 0, "fill=0.5 must consist of integers from 0 to 255", ""),
    "fill out of range": ([v1.Pad(2, fill=256)], 0, "fill=256 must consist of integers from 0 to 255", ""),
    "negative fill": ([v1.RandomCrop(5, 2, fill=-1)], 0, "fill=-1 must consist of integers from 0 to 255", ""),
    "negative padding": ([v1.Pad(-1)], 0, "padding is negative", "use a crop"),
    "negative padding of a crop": ([v1.RandomCrop(9, padding=(1, 1, 1, -1))], 0, "padding is negative", "use a crop"),
    "reflect on tensors": (
        [PIL, v1.Pad(1, padding_mode="reflect")],
        1,
        "padding_mode='reflect' is not supported on tensors",
        "move it before",
    ),
    "max_size": ([v1.Resize(20, max_size=20)], 0, "max_size=20 cannot be combined with size=20", ""),
    "Normalize on uint8": ([PIL, v1.Normalize([0.5], [0.5])], 1, "requires floating point tensors", "put ToTensor()"),
    "missing ToTensor": (
        [v1.Resize(9), v1.Normalize([0.5], [0.5])],
        1,
        "requires floating point tensors",
        "put ToTensor()",
    ),
    "std of zero": ([TO_TENSOR, v1.Normalize([0.5] * 3, [0.5, 0, 0.5])], 1, "std contains a zero", ""),
    "mean of two": (
        [TO_TENSOR, v1.Normalize([0.5] * 2, [0.5] * 3)],
        1,
        "mean=[0.5, 0.5] does not fit an image with 3 channel(s)",
        "",
    ),
    "ConvertImageDtype": (
        [v1.ConvertImageDtype(torch.float32)],
        0,
        "takes tensors, but gets a PIL image",
        "put PILToTensor()",
    ),
    "ToTensor twice": ([TO_TENSOR, v1.ToTensor()], 1, "takes PIL images, but gets a tensor", ""),
    "int64": ([PIL, v2.ToDtype(torch.int64)], 1, "dtype=torch.int64", "use uint8 or a floating point type"),
    "a mode": ([TO_TENSOR, v1.ToPILImage("RGB")], 1, "mode=RGB is not supported for a tensor of torch.float32", ""),
    "an order of many": ([v1.RandomOrder([v1.CenterCrop(9)] * 9)], 0, "it shuffles 9 transforms, but at most 8", ""),
    "colours for gray tensors": (
        [v1.Grayscale(), PIL, v1.Grayscale(3)],
        2,
        "num_output_channels=3 does not fit an image with 1 channel(s)",
        "",
    ),
    "callable class": (
        [Callable()],
        0,
        "no translation is registered for it",
        "to have it run on batches, register a translation",
    ),
    "Lambda": (
        [v1.Lambda(plain_function)],
        0,
        "no translation is registered for it",
        "to have it run on batches, write it as a class",
    ),
    "subclass": ([ResizeSubclass(20)], 0, "may behave differently from its base class", "to have it run on batches"),
    "inside containers": (
        [v1.Compose([nn.Sequential(v1.CenterCrop(9), ResizeSubclass(20))])],
        None,
        "its base class Resize",
        "to have it run on batches",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_transform_reason_and_remedy(name):
    transforms, at, reason, remedy = REFUSALS[name]
    error = refusal(*transforms)
    assert reason in error.reason and error.remedy.startswith(remedy) and bool(error.remedy) == bool(remedy)
    if at is not None:
        assert error.transform == describe(transforms[at])
    text = str(error)
    assert text.startswith(f"{error.transform}: {error.reason}") and text.endswith(error.remedy) and "\n" not in text


def test_refusal_of_a_function_contains_its_name():
    for transform, name in ((plain_function, "plain_function"), (lambda x: x, "<lambda>"), (torch.flip, "flip")):
        refused = translate(transform).refused
        assert refused.transform.endswith(name) and "no translation is registered" in refused.reason
        assert "write it as a class" in refused.remedy
    assert describe(Callable.__call__) == "Callable.__call__"


class Small(v1.Resize):
    """A subclass that changes only the constructor."""

    def __init__(self, size: int = 20):
        super().__init__(size, antialias=False)


class Preset(v2.Compose):
    def __init__(self):
        super().__init__([Small(), v2.CenterCrop(9)])

    def __repr__(self):
        return "Preset"


def test_subclass_with_another_constructor_is_translated():
    assert translate(Small()).translated[0].steps == translate(v1.Resize(20, antialias=False)).translated[0].steps
    steps = [step.op for entry in translate(Preset()).translated for step in entry.steps]
    assert steps == ["resize", "crop"]


class Looks:
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    "kind",
    [
        type("Sized", (v1.Resize,), {"size": [3]}),
        type("Looking", (v1.Resize, Looks), {}),
        type("Nothing", (v2.Resize,), {"make_params": lambda self, inputs: {}}),
    ],
)
def test_subclass_that_changes_behavior_is_refused(kind):
    assert "may behave differently" in refusal(kind(20)).reason


def test_subclass_instance_with_replaced_forward_is_refused():
    transform = Small()
    transform.forward = lambda image: image
    assert "forward method was replaced" in refusal(transform).reason


# ---- modified instances


def test_instance_with_replaced_forward_is_refused():
    transform = v1.Resize(20)
    transform.forward = lambda image: image
    assert "forward method was replaced" in refusal(transform).reason
    compose = v1.Compose([v1.CenterCrop(9)])
    compose.__dict__["__call__"] = lambda image: image
    assert "replaced" in refusal(compose).reason


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_transform_with_hooks_is_refused(hook):
    transform = v2.CenterCrop(20)
    handle = getattr(transform, hook)(lambda *args: None)
    assert "hooks" in refusal(transform).reason
    handle.remove()
    translate(transform)


def test_container_with_hooks_is_refused():
    container = nn.Sequential(v2.CenterCrop(20))
    container.register_forward_hook(lambda *args: None)
    assert "hooks" in refusal(container).reason


# ---- the registry


class FromTheFuture(nn.Module):
    """A transform whose constructor has a new argument."""

    def __init__(self, size, corners="square"):
        super().__init__()
        self.size, self.corners = size, corners


@pytest.fixture
def registered():
    yield
    _TRANSLATORS.pop(FromTheFuture, None)


def test_argument_without_translation_is_refused_unless_default(registered, monkeypatch):
    @register(FromTheFuture, consumes="size")
    def translator(t, spec):
        return (step("crop", spec, inside=False),)

    assert translate(FromTheFuture(3)).translated[0].steps[0].op == "crop"
    refused = refusal(FromTheFuture(3, corners="round"))
    assert "argument corners is not handled by its registered translation" in refused.reason
    assert 'consumes="corners"' in refused.remedy
    monkeypatch.setattr(translator, "__module__", "dali_compat.ops.windows")
    assert "not supported by this version" in refusal(FromTheFuture(3, corners="round")).reason
    odd = FromTheFuture(3)
    del odd.corners  # an argument stored under another name cannot be checked
    assert "corners" in refusal(odd).reason


def test_registering_a_transform_twice_raises(registered):
    register(FromTheFuture, None)(lambda t, spec: ())  # None: missing in this torchvision
    assert None not in _TRANSLATORS
    with pytest.raises(ValueError, match=r"already registered for .*FromTheFuture"):
        register(FromTheFuture)(lambda t, spec: ())
    with pytest.raises(ValueError, match=r"already registered for .*Resize"):
        register(v1.Resize)(lambda t, spec: ())
    assert _TRANSLATORS[v1.Resize][0].__name__ == "translate_resize"


@pytest.mark.parametrize("kind", _TRANSLATORS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_translator_consumes_every_constructor_argument(kind):
    """An argument not listed by the translator would be refused for every value except its default."""
    arguments = inspect.signature(kind).parameters.values()
    names = {p.name for p in arguments if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    function, consumed = _TRANSLATORS[kind]
    assert names == consumed, f"consumes= of {function.__name__} in {function.__module__}"


def test_transforms_in_v1_and_v2_are_registered_for_both():
    namesakes = {
        getattr(version, kind.__name__): kind
        for kind in _TRANSLATORS
        for version in (v1, v2)
        if kind in (getattr(v1, kind.__name__, None), getattr(v2, kind.__name__, None))
        and hasattr(version, kind.__name__)
    }
    missing = [
        f"register {other} next to {kind}, in {_TRANSLATORS[kind][0].__module__}"
        for other, kind in namesakes.items()
        if other not in _TRANSLATORS
    ]
    assert len(namesakes) > 60 and missing == []


def test_each_step_has_the_spec_of_its_output():
    transform = v2.Compose([v2.Grayscale(), v2.Resize((9, 8)), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)])
    translated = translate(transform).translated
    gives = [t.steps[-1].gives for t in translated]
    assert [(g.kind, g.channels, g.size, g.dtype) for g in gives] == [
        ("pil", 1, None, torch.uint8),
        ("pil", 1, (9, 8), torch.uint8),
        ("Image", 1, (9, 8), torch.uint8),
        ("Image", 1, (9, 8), torch.float16),
    ]


def test_rotation_with_expand_makes_the_size_unknown():
    def gives(expand):
        return translate(v1.Compose([v1.CenterCrop(20), v1.RandomRotation(30, expand=expand)])).gives.size

    assert gives(False) == (20, 20) and gives(True) is None


def test_branches_with_different_sizes_make_the_size_unknown():
    def gives(*sizes):
        return translate(v1.RandomChoice([v1.CenterCrop(size) for size in sizes])).gives.size

    assert gives(20, 20) == (20, 20) and gives(20, 30) is None and gives(30, 20) is None
    crops = v1.RandomApply([v1.CenterCrop(20)])
    assert translate(crops).gives.size is None
    assert translate(v1.Compose([v1.CenterCrop(20), crops])).gives.size == (20, 20)


def _last(crops):
    return crops[-1]


@pytest.mark.parametrize("interpolation", [InterpolationMode.BOX, InterpolationMode.LANCZOS])
@pytest.mark.parametrize("policy", [v1.AutoAugment, v1.RandAugment, v1.TrivialAugmentWide, v2.RandAugment, v1.AugMix])
def test_policies_with_unsupported_interpolation_are_refused(policy, interpolation):
    chain = translate(policy(interpolation=interpolation))
    assert chain.refused and f"interpolation={interpolation.value!r}" in str(chain.refused)


def test_aug_mix_with_bicubic_is_refused():
    assert translate(v1.AugMix(interpolation=InterpolationMode.BICUBIC)).refused
    assert not translate(v1.RandAugment(interpolation=InterpolationMode.BICUBIC)).refused
