"""Conversions between images, tensors and dtypes, arithmetic on tensors, and the corresponding batch steps."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from .operations import Outcome, State, Step, UnknownOperation, flagged, is_plain, operation, step

_DEFERRED = ("RGB", "L", "P", "1")  # modes whose tensors have a predictable state


def _tensor(s: State, kind: str) -> State:
    """Return the state of a tensor of a PIL image's pixels."""
    if s.kind != "pil" or s.mode not in _DEFERRED:
        raise UnknownOperation
    return State(kind, s.mode, s.shape)


def _steps(s: State, after: State) -> tuple[Step, ...] | None:
    return (step("pil_to_tensor", after),) if s.mode in ("RGB", "L") and is_plain(after) else None


@operation("pil_to_tensor")
def pil_to_tensor(s: State, like: str) -> Outcome:
    after = _tensor(s, "tensor")
    return Outcome(after, _steps(s, after))


@operation("to_image")
def to_image(s: State, like: str) -> Outcome:
    """Return the outcome of torchvision.transforms.v2.functional.to_image or tv_tensors.Image()."""
    if s.kind in ("tensor", "Image") and len(s.shape) == 3:
        after = s._replace(kind="Image")
        return Outcome(after, (step("identity", after),) if is_plain(after) else None)
    after = _tensor(s, "Image")
    return Outcome(after, _steps(s, after))


@operation("to_mask")
def to_mask(s: State, like: str) -> Outcome:
    """Return the outcome of tv_tensors.Mask()."""
    return Outcome(_tensor(s, "Mask") if s.kind == "pil" else s._replace(kind="Mask"))  # kernels make no masks


@operation("to_tensor")
def to_tensor(s: State, like: str) -> Outcome:
    after, dtype = _tensor(s, "tensor"), torch.get_default_dtype()
    made = after._replace(dtype=dtype)
    first = _steps(s, after)
    return Outcome(made, first and (*first, step("to_dtype", made, dtype=dtype, like="v1")))


operation("convert_image_dtype")(lambda s, like, dtype=torch.float32: _to_dtype(s, dtype, "v1"))


@operation("to_dtype")
def to_dtype(s: State, like: str, dtype=torch.float32, scale=False) -> Outcome:
    return _to_dtype(s, dtype, "v2" if scale and s.kind != "Mask" else "cast")


def _to_dtype(s: State, dtype, like: str) -> Outcome:
    if s.kind == "pil" or not isinstance(dtype, torch.dtype):
        raise UnknownOperation
    if dtype == s.dtype:
        return Outcome(s, (), same=True)
    after = s._replace(dtype=dtype)
    known = is_plain(s) and (dtype.is_floating_point or (dtype == torch.uint8 and like != "cast"))
    return Outcome(after, (step("to_dtype", after, dtype=dtype, like=like),) if known else None)


def computed(name: str, s: State, other) -> Outcome:
    """Return the outcome of torch's add, sub, mul, div or rsub.

    Args:
        name: name of the operation.
        s: state of the tensor.
        other: a number, or a tensor of one number for each channel.
    """
    values, after, dtype = _operands(s, other), s._replace(kind="tensor", normalized=True), s.dtype
    if not dtype.is_floating_point:
        if s.dtype != torch.uint8 or not (name == "div" or type(other) is float):  # integers overflow
            raise UnknownOperation
        dtype = torch.get_default_dtype()
    after = after._replace(dtype=dtype)
    if not is_plain(s) or dtype not in (torch.float32, torch.float64):  # half precision uses the number unrounded
        return Outcome(after)
    layout = (("values", (len(values),), "float64"),)
    made = flagged("arithmetic", after, values, layout, name=name)
    if s.dtype != torch.uint8:
        return Outcome(after, made)
    if name == "div" and values == (255.0,):
        after = after._replace(normalized=False)
        return Outcome(after, (step("to_dtype", after, dtype=dtype, like="v1"),))
    return Outcome(after, (step("to_dtype", after, dtype=dtype, like="cast"), *made))


def _operands(s: State, other) -> tuple[float, ...]:
    if type(other) in (int, float):
        return (float(other),)
    if type(other) is not torch.Tensor or other.dtype != s.dtype or other.requires_grad or other.device.type != "cpu":
        raise UnknownOperation
    if tuple(other.shape) not in ((s.channels, 1, 1), (1, 1, 1)):
        raise UnknownOperation
    return tuple(other.flatten().tolist())


@operation("normalize")
def normalize(s: State, like: str, mean, std, inplace=False) -> Outcome:
    means, stds = (_values(one, s.channels) for one in (mean, std))
    if inplace or s.kind in ("pil", "Mask") or not s.dtype.is_floating_point or 0 in stds:
        raise UnknownOperation
    after = s._replace(normalized=True)
    return Outcome(after, (step("normalize", after, mean=means, std=stds),) if is_plain(s) else None)


def _values(values, channels: int) -> tuple[float, ...]:
    several = tuple(map(float, values)) if hasattr(values, "__iter__") else (float(values),)
    several *= channels if len(several) == 1 else 1
    if len(several) != channels:
        raise UnknownOperation
    return several


@operation("grayscale_to_rgb")
def grayscale_to_rgb(s: State, like: str) -> Outcome:
    if s.channels == 3:
        return Outcome(s, (), same=True)
    after = s._replace(shape=(3, *s.shape[1:]), mode="RGB")
    fits = is_plain(s) and (s.kind != "pil" or s.mode == "L")
    return Outcome(after, (step("repeat_channels", after),) if fits else None)


@operation("as_subclass")
def as_subclass(s: State, like: str, kind) -> Outcome:
    """Return the outcome of torch.Tensor.as_subclass()."""
    name = {torch.Tensor: "tensor", tv_tensors.Image: "Image", tv_tensors.Mask: "Mask"}[kind]
    after = s._replace(kind=name)
    return Outcome(after, (step("identity", after),) if is_plain(s) and is_plain(after) else None)


@operation("to_pil_image")
def to_pil_image(s: State, like: str, mode=None) -> Outcome:
    if s.kind not in ("tensor", "Image") or mode is not None or not is_plain(s) or s.normalized:
        raise UnknownOperation
    if s.dtype not in (torch.uint8, torch.float32):
        raise UnknownOperation
    after = State("pil", "RGB" if s.channels == 3 else "L", s.shape)
    return Outcome(after, (step("tensor_to_pil", after),))
