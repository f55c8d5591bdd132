"""Functions that compute the Outcome of conversions between images, tensors and dtypes, and of arithmetic on
tensors."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from .operations import Outcome, State, Step, UnknownOutcome, flagged, is_supported, operation, step

_MODES = "RGB", "L", "P", "1"  # modes of PIL images whose uint8 tensors have the same channels


def _tensor_state(s: State, kind: str) -> State:
    """Return the state of the tensor that a PIL image is converted to."""
    if s.kind != "pil" or s.mode not in _MODES:
        raise UnknownOutcome
    return State(kind, s.mode, s.shape)


def _to_tensor_steps(s: State, after: State) -> tuple[Step, ...] | None:
    return (step("pil_to_tensor", after),) if s.mode in ("RGB", "L") and is_supported(after) else None


@operation("pil_to_tensor", is_cached=True)
def pil_to_tensor(s: State, backend: str) -> Outcome:
    after = _tensor_state(s, "tensor")
    return Outcome(after, _to_tensor_steps(s, after))


@operation("to_image", is_cached=True, keeps_strides=True)
def to_image(s: State, backend: str) -> Outcome:
    if s.kind in ("tensor", "Image") and len(s.shape) == 3:
        after = s._replace(kind="Image")
        return Outcome(after, (step("identity", after),) if is_supported(after) else None)
    after = _tensor_state(s, "Image")
    return Outcome(after, _to_tensor_steps(s, after))


@operation("to_mask", is_cached=True)
def to_mask(s: State, backend: str) -> Outcome:
    return Outcome(_tensor_state(s, "Mask") if s.kind == "pil" else s._replace(kind="Mask"))  # no kernel returns masks


@operation("to_tensor", is_cached=True)
def to_tensor(s: State, backend: str) -> Outcome:
    as_bytes, dtype = _tensor_state(s, "tensor"), torch.get_default_dtype()
    after, steps = as_bytes._replace(dtype=dtype), _to_tensor_steps(s, as_bytes)
    return Outcome(after, steps and (*steps, step("to_dtype", after, dtype=dtype, like="v1")))


@operation("convert_image_dtype", is_cached=True, keeps_strides=True)
def convert_image_dtype(s: State, backend: str, dtype=torch.float32) -> Outcome:
    return _to_dtype(s, dtype, "v1")


@operation("to_dtype", is_cached=True, keeps_strides=True)
def to_dtype(s: State, backend: str, dtype=torch.float32, scale=False) -> Outcome:
    return _to_dtype(s, dtype, "v2" if scale and s.kind != "Mask" else "cast")


def _to_dtype(s: State, dtype, like: str) -> Outcome:
    """Return the outcome of a conversion to ``dtype``. Values are scaled unless ``like`` is "cast"."""
    if s.kind == "pil" or not isinstance(dtype, torch.dtype):
        raise UnknownOutcome
    if dtype == s.dtype:
        return Outcome(s, (), is_same_object=True)
    after = s._replace(dtype=dtype)
    has_kernel = is_supported(s) and (dtype.is_floating_point or (dtype == torch.uint8 and like != "cast"))
    return Outcome(after, (step("to_dtype", after, dtype=dtype, like=like),) if has_kernel else None)


def arithmetic(name: str, s: State, other) -> Outcome:
    """Return the outcome of torch's add, sub, mul, div or rsub. ``other`` is a number, or a tensor with one number in
    total or one per channel."""
    values, after, dtype = _operands(s, other), s._replace(kind="tensor", normalized=True), s.dtype
    if not dtype.is_floating_point:
        if s.dtype != torch.uint8 or not (name == "div" or type(other) is float):  # uint8 overflows
            raise UnknownOutcome
        dtype = torch.get_default_dtype()
    after = after._replace(dtype=dtype)
    if not is_supported(s) or dtype not in (torch.float32, torch.float64):  # torch does not round the number to half
        return Outcome(after)
    layout = (("values", (len(values),), "float64"),)
    steps = flagged("arithmetic", after, values, layout, name=name)
    if s.dtype != torch.uint8:
        return Outcome(after, steps)
    if name == "div" and values == (255.0,):
        after = after._replace(normalized=False)
        return Outcome(after, (step("to_dtype", after, dtype=dtype, like="v1"),))
    return Outcome(after, (step("to_dtype", after, dtype=dtype, like="cast"), *steps))


def _operands(s: State, other) -> tuple[float, ...]:
    if type(other) in (int, float):
        return (float(other),)
    if type(other) is not torch.Tensor or other.dtype != s.dtype or other.requires_grad or other.device.type != "cpu":
        raise UnknownOutcome
    if tuple(other.shape) not in ((s.channels, 1, 1), (1, 1, 1)):
        raise UnknownOutcome
    return tuple(other.flatten().tolist())


@operation("normalize", is_cached=True, keeps_strides=True)
def normalize(s: State, backend: str, mean, std, inplace=False) -> Outcome:
    means, stds = (_per_channel(one, s.channels) for one in (mean, std))
    if inplace or s.kind in ("pil", "Mask") or not s.dtype.is_floating_point or 0 in stds:
        raise UnknownOutcome
    after = s._replace(normalized=True)
    return Outcome(after, (step("normalize", after, mean=means, std=stds),) if is_supported(s) else None)


def _per_channel(values, channels: int) -> tuple[float, ...]:
    numbers = tuple(map(float, values)) if hasattr(values, "__iter__") else (float(values),)
    numbers *= channels if len(numbers) == 1 else 1
    if len(numbers) != channels:
        raise UnknownOutcome
    return numbers


@operation("grayscale_to_rgb")
def grayscale_to_rgb(s: State, backend: str) -> Outcome:
    if s.channels == 3:
        return Outcome(s, (), is_same_object=True)
    after = s._replace(shape=(3, *s.shape[1:]), mode="RGB")
    has_step = is_supported(s) and (s.kind != "pil" or s.mode == "L")
    return Outcome(after, (step("repeat_channels", after),) if has_step else None)


@operation("as_subclass")
def as_subclass(s: State, backend: str, kind) -> Outcome:
    name = {torch.Tensor: "tensor", tv_tensors.Image: "Image", tv_tensors.Mask: "Mask"}[kind]
    after = s._replace(kind=name)
    return Outcome(after, (step("identity", after),) if is_supported(s) and is_supported(after) else None)


@operation("to_pil_image")
def to_pil_image(s: State, backend: str, mode=None) -> Outcome:
    if s.kind not in ("tensor", "Image") or mode is not None or not is_supported(s) or s.normalized:
        raise UnknownOutcome
    if s.dtype not in (torch.uint8, torch.float32):
        raise UnknownOutcome
    after = State("pil", "RGB" if s.channels == 3 else "L", s.shape)
    return Outcome(after, (step("tensor_to_pil", after),))
