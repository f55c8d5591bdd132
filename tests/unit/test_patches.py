"""Functions that tracing/patches.py replaces exist in the installed Pillow, torchvision and torch, and are replaced."""

import copy
import functools
import importlib
import inspect
import pickle
from operator import attrgetter

import pytest
import torch
from PIL import Image, ImageEnhance, ImageFile, ImageOps
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms, tv_tensors
from torchvision.transforms import _functional_pil, autoaugment, functional, v2
from torchvision.transforms.v2 import _auto_augment, _geometry
from torchvision.transforms.v2.functional import _utils

from dali_compat.inspection.replaced import STANDS_FOR, refuse_replaced
from dali_compat.tracing import patches
from dali_compat.tracing.decoders import DECODERS
from dali_compat.tracing.images import _ENHANCERS, _METHODS
from dali_compat.tracing.operations import OUTCOMES
from dali_compat.tracing.tensors import REAL_CLASS

METHODS = ["convert", "copy", "crop", "filter", "load", "resize", "transform", "transpose"]
ENHANCERS = ["Brightness", "Color", "Contrast", "Sharpness"]
OF_IMAGEOPS = ["autocontrast", "equalize", "expand", "invert", "posterize", "solarize"]
IN_V1_AND_V2 = """
adjust_brightness adjust_contrast adjust_gamma adjust_hue adjust_saturation adjust_sharpness affine
autocontrast center_crop crop equalize erase gaussian_blur invert normalize pad perspective posterize resize
resized_crop rgb_to_grayscale rotate solarize
""".split()  # noqa: SIM905  (a list of these would take 24 lines)
IN_V1 = ["convert_image_dtype", "hflip", "pil_to_tensor", "to_grayscale", "to_pil_image", "to_tensor", "vflip"]
IN_V2 = ["grayscale_to_rgb", "horizontal_flip", "jpeg", "permute_channels", "to_dtype", "vertical_flip"]
OF_PIL_IMAGES = [
    "adjust_gamma",
    "adjust_hue",
    "gaussian_blur",
    "jpeg",
    "permute_channels",
    "rgb_to_grayscale",
]
OTHERS = [
    "as_subclass",
    "augment",
    "to_image",
    "to_mask",
    "transpose",
    "upright",
]  # operations without a function to replace
DECODED = ["decode_image", "decode_jpeg", "decode_png", "read_image"]

TAKEN_OVER = [
    (Image, "blend"),
    *((ImageOps, name) for name in OF_IMAGEOPS),
    *((functional, name) for name in (*IN_V1, *IN_V1_AND_V2)),
    (_functional_pil, "pad"),
    (autoaugment, "_apply_op"),
    (_utils, "_get_kernel"),
    (_auto_augment, "_AutoAugmentBase._apply_image_or_video_transform"),
    *((importlib.import_module("torchvision.io.image"), name) for name in DECODED),
]
WRAPPED = [
    *((Image, f"Image.{name}") for name in METHODS),
    (ImageFile, "ImageFile.load"),
    *((ImageEnhance, f"{name}.__init__") for name in ENHANCERS),
]


def for_each(places):
    return pytest.mark.parametrize("owner, name", places, ids=[f"{owner.__name__}.{name}" for owner, name in places])


@pytest.fixture(autouse=True)
def installed():
    patches.install()


def kernels(name):
    return {function.__name__: registry for function, registry in _utils._KERNEL_REGISTRY.items()}[name]


def is_patched(function):
    return function.__module__ == patches.__name__


@for_each(TAKEN_OVER)
def test_function_when_installed_has_replaced_code(owner, name):
    function = attrgetter(name)(owner)
    assert f"_dali_compat_{function.__name__}" in function.__code__.co_names


@for_each(WRAPPED)
def test_method_when_installed_stands_for_pillows(owner, name):
    assert hasattr(attrgetter(name)(owner), STANDS_FOR)


@pytest.mark.parametrize("name", [*IN_V1_AND_V2, *IN_V2])
def test_v2_function_when_installed_has_kernels_of_deferred_tensors(name):
    function = getattr(v2.functional, name)
    kinds = [kind for kind, real in REAL_CLASS.items() if real in kernels(name)]  # some have no kernel for masks
    assert len(kinds) > 1 and all(is_patched(_utils._get_kernel(function, kind)) for kind in kinds)


@pytest.mark.parametrize("name", OF_PIL_IMAGES)
def test_v2_function_when_installed_has_a_kernel_of_deferred_images(name):
    assert is_patched(kernels(name)[Image.Image])


def test_core_of_images_when_installed_is_a_property():
    assert Image.Image.im.fget.__module__.startswith("dali_compat")


@for_each([(_geometry, "_get_fill"), (_auto_augment, "_get_fill")])
def test_comparisons_of_classes_when_installed_are_replaced(owner, name):
    assert hasattr(getattr(owner, name), STANDS_FOR)


def test_to_dtype_when_installed_is_replaced():
    assert hasattr(getattr(v2.ToDtype, "transform", None) or v2.ToDtype._transform, STANDS_FOR)


@pytest.mark.parametrize("module", [transforms, v2])
def test_transforms_when_installed_are_still_translated(module):
    """Translation refuses a torchvision class if its methods or functions were replaced."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    assert len(kinds) > 20
    for kind in kinds:
        refuse_replaced(kind.__new__(kind))


def test_wrap_when_installed_takes_deferred_tensors():
    """torchvision 0.20 has no such method that deferred tensors could override."""
    assert hasattr(tv_tensors.TVTensor, "wrap") or is_patched(tv_tensors.wrap)


def test_collation_when_installed_takes_deferred_tensors():
    assert REAL_CLASS.keys() <= default_collate_fn_map.keys()


def test_torchcodecs_decoders_when_imported_are_replaced():
    module = pytest.importorskip("torchcodec.decoders._image_decoders", exc_type=Exception)
    patches.install()
    for name in DECODED[:3]:
        assert f"_dali_compat_{name}" in getattr(module, name).__code__.co_names, name


def test_names_in_this_file_equal_those_of_the_package():
    """A replaced function must be listed above."""
    ops = {f"ImageOps.{name}" for name in OF_IMAGEOPS}
    assert ops | {*IN_V1_AND_V2, *IN_V1, *IN_V2, *OTHERS} == OUTCOMES.keys()
    assert {*METHODS} == {*_METHODS, "load"}
    assert {*ENHANCERS} == _ENHANCERS.keys()
    assert {*DECODED} == DECODERS["torchvision.io.image"].keys()


def parameters(function):
    """Return the names of the parameters after the first one."""
    return list(inspect.signature(function).parameters)[1:]


@pytest.mark.parametrize("name", OUTCOMES)
def test_parameters_of_outcomes_equal_those_of_the_replaced_function(name):
    """Arguments reach the outcome as they were passed, by position or by name."""
    modules = [ImageOps] if "." in name else [functional, v2.functional]
    own = parameters(OUTCOMES[name])[1:]
    for module in modules:
        function = getattr(module, name.rpartition(".")[2], None)
        if function is not None and own != ["factors", "named"]:  # of _adjustment()
            theirs = parameters(function)
            assert own[: len(theirs)] == theirs


@for_each([place for place in TAKEN_OVER if place[0] is not _auto_augment])
def test_function_when_installed_keeps_its_signature(owner, name):
    """Functions are called by name, inspected, wrapped and pickled as before."""
    function, original = getattr(owner, name), getattr(owner, name).__wrapped__
    assert inspect.signature(function) == inspect.signature(original) and function.__defaults__ == original.__defaults__
    assert pickle.loads(pickle.dumps(function)) is copy.deepcopy(function) is function
    wrapper = functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))
    assert inspect.signature(wrapper) == inspect.signature(original) and wrapper.__name__ == name


@for_each([place for place in TAKEN_OVER if place[0] is not _auto_augment])
@pytest.mark.parametrize("kwargs", [{}, {"unknown": 1}], ids=["missing", "unknown"])
def test_function_when_arguments_are_wrong_raises_the_originals_error(owner, name, kwargs):
    function = getattr(owner, name)
    errors = []
    for call in (function, function.__wrapped__):
        with pytest.raises(TypeError) as raised:
            call(**kwargs)
        errors.append(str(raised.value))
    assert errors[0] == errors[1] and errors[0].startswith(f"{name}()")


def test_scripted_function_when_installed_is_the_original():
    image = torch.rand(3, 4, 5)
    assert torch.equal(torch.jit.script(functional.hflip)(image), image.flip(-1))
