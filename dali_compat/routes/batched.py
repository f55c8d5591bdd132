"""batched(), a function that transforms batches of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torchvision import tv_tensors

from ..engine.fused import Program
from ..errors import Unsupported
from ..ops.arguments import version_of
from ..ops.draws import ImageTooSmall, compute, is_random
from ..plan import ImageSpec, Options, Plan
from ..randoms import Randoms
from ..runtime.decorators import no_compile
from ..runtime.device import filled
from ..runtime.messages import report_fallback
from ..translate import translate
from ..translate.lower import lower


def batched(
    transform: Callable[..., Any], *, exact: bool = False, fallback: Literal["warn", "silent", "error"] = "warn"
) -> nn.Module:
    """Return a module that transforms batches (N, C, H, W) on any device, with separate random numbers for each image.

    A torchvision transform draws random numbers once per batch. It flips, for example, all images or none. This module
    draws them for each image, from torch's CPU generator (``torch.manual_seed``) and with torchvision's distributions.
    Transforms without a translation are applied by torchvision, image by image.

    Args:
        transform: a torchvision transform, v1 or v2, or a registered callable, for CHW tensors.
        exact: see DataLoader.
        fallback: see DataLoader. "warn" reports once why torchvision applies the transform image by image.

    Returns:
        A module that takes uint8 images in [0, 255] or floating point images in [0, 1]. It returns the transformed
        images as one tensor, or as a list if their sizes differ. If ``transform`` returns several images in a list,
        tuple or dict, the module returns batches in the same structure, unless the number of images varies. With a v2
        transform, further arguments may be tensors, or lists of N boxes, masks or dictionaries. torchvision then
        transforms sample by sample, and lists remain lists.

    Examples:
        >>> import torch
        >>> from torchvision.transforms import v2
        >>> import dali_compat
        >>> augment = dali_compat.batched(v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]))
        >>> augment(torch.rand(8, 3, 32, 32)).shape
        torch.Size([8, 3, 32, 32])
    """
    if fallback not in ("warn", "silent", "error"):
        raise ValueError(f"fallback must be 'warn', 'silent' or 'error', got {fallback!r}")
    return Batched(transform, exact, fallback)


class Batched(nn.Module):
    """The module that batched() returns."""

    def __init__(self, transform: Callable[..., Any], exact: bool, fallback: str):
        super().__init__()
        self.transform, self.exact, self.fallback = transform, exact, fallback
        self._reported: set[str] = set()

    @no_compile
    def forward(self, images: torch.Tensor, *others: Any) -> Any:
        """Return the transformed batch. With ``others``, return a tuple of all transformed arguments.

        Raises:
            TypeError: ``images`` is not a batch, or a v1 transform gets ``others``.
            ValueError: an image is too small, or the batch is empty.
            RuntimeError: a CUDA graph is being captured, or kernels cannot run the transform and fallback="error".
        """
        if not isinstance(images, torch.Tensor) or images.ndim != 4:
            got = f"shape {tuple(images.shape)}" if isinstance(images, torch.Tensor) else type(images).__name__
            raise TypeError(f"batched() takes a tensor of images (N, C, H, W), got {got}")
        if not len(images):
            raise ValueError("batched() takes one image or more, got an empty batch")
        if others and version_of(self.transform) != "v2":
            raise TypeError(f"{type(self.transform).__name__} takes only images; use v2 transforms for boxes and masks")
        try:
            plan = self._plan(images, others)
        except Unsupported as error:
            report_fallback(f"torchvision transforms a batch image by image: {error}", self.fallback, self._reported)
            return self._each(images, *others)
        if images.is_cuda:
            with torch.cuda.device(images.device):
                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError(
                        "batched() draws random numbers on the host, and a CUDA graph would repeat them; call it "
                        "outside the graph"
                    )
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            return self._run(images, plan)

    def _plan(self, images: torch.Tensor, others: Sequence[Any]) -> Plan:
        """Return the plan of the transform, with its current attributes, for these images.

        Raises:
            Unsupported: kernels cannot run the transform on these arguments.
        """
        kind = "Image" if isinstance(images, tv_tensors.Image) else "tensor"
        channels, height, width = images.shape[1:]
        if others or (isinstance(images, tv_tensors.TVTensor) and kind == "tensor"):
            raise Unsupported("kernels take only images, not boxes and masks")
        if images.requires_grad and torch.is_grad_enabled():
            raise Unsupported("the images require gradients, and kernels compute none; call detach() on the images")
        if channels not in (1, 3) or not (images.is_floating_point() or images.dtype == torch.uint8):
            raise Unsupported(
                f"images have {channels} channels of {images.dtype}; kernels take 1 or 3 channels of uint8 or floats"
            )
        spec = ImageSpec(kind, images.dtype, channels=channels, size=(height, width))
        plan = lower(translate(self.transform, spec, views=True), Options(self.exact, gpu=images.is_cuda), decoded=True)
        for one in plan.chains:
            if one.gives.kind not in ("tensor", "Image"):
                raise Unsupported(f"{type(self.transform).__name__} does not return tensors")
        return plan

    def _run(self, images: torch.Tensor, plan: Plan) -> Any:
        seed = 0  # drawn from torch's generator only if a step is random, as in torchvision
        if any(is_random(step) for one in plan.chains for step in one.batch):
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        made = []
        for number, one in enumerate(plan.chains, 1):
            sizes = np.broadcast_to(np.array(one.takes.size), (len(images), 2)).copy(order="F")
            try:
                arrays = compute(one.batch, sizes, Randoms(seed, 0, len(images)), slice(None))
            except ImageTooSmall as error:
                raise ValueError(f"{error} (image {error.row} of the batch)") from None
            own = images if number == len(plan.chains) else images.clone()  # functions may modify it in place
            program = Program(one.batch, one.takes, images.device)
            made.append(_finished(program(own.as_subclass(torch.Tensor), arrays), one.gives))
        return filled(plan.structure, made) if plan.views else made[0]

    def _each(self, *inputs: Any) -> Any:
        """Transform the samples of the batch one by one with torchvision, and return the resulting batch."""
        split = list(map(_split, inputs))
        if len(set(map(len, split))) > 1:
            lengths = ", ".join(str(len(one)) for one in split)
            raise ValueError(f"all arguments of batched() need the same number of samples, got {lengths}")
        made = [self.transform(*sample) for sample in zip(*split, strict=True)]
        if len(inputs) == 1 or not all(isinstance(one, tuple) and len(one) == len(inputs) for one in made):
            return _combined(made)
        of_each = zip(inputs, zip(*made, strict=True), strict=True)
        return tuple(
            _combined(several) if isinstance(given, torch.Tensor) else list(several) for given, several in of_each
        )


def _finished(images: Any, gives: ImageSpec) -> Any:
    """Return the images of a batch as tensors of the class that the transform returns."""
    if isinstance(images, list):
        return [_finished(image, gives) for image in images]
    if 0 in images.stride():  # an expanded gray image, whose channels share memory
        images = images.contiguous()
    return tv_tensors.Image(images) if gives.kind == "Image" else images


def _split(batch: Any) -> Sequence[Any]:
    """Return one entry per image. Raise TypeError if ``batch`` is not a tensor, list or tuple."""
    if isinstance(batch, tv_tensors.TVTensor):
        return [tv_tensors.wrap(one, like=batch) for one in batch.unbind()]
    if not isinstance(batch, (torch.Tensor, list, tuple)):
        raise TypeError(f"batched() takes tensors and lists with one entry per image, got {type(batch).__name__}")
    return list(batch)


def _combined(samples: Sequence[Any]) -> Any:
    """Return a batch of samples. Tensors of equal shape and dtype are stacked, and containers are combined item by
    item. Samples that do not match become a list."""
    first = samples[0]
    alike = len(set(map(type, samples))) == 1
    if alike and (isinstance(first, tuple) or type(first) is list) and len(set(map(len, samples))) == 1:
        batches = [_combined(several) for several in zip(*samples, strict=True)]
        return type(first)(*batches) if hasattr(first, "_fields") else type(first)(batches)
    if alike and type(first) is dict and all(one.keys() == first.keys() for one in samples):
        return {key: _combined([one[key] for one in samples]) for key in first}
    if isinstance(first, torch.Tensor) and len({(one.shape, one.dtype) for one in samples}) == 1:
        boxes = isinstance(first, tv_tensors.BoundingBoxes)  # concatenated to (N, 4)
        if boxes and (len(first) != 1 or len({one.canvas_size for one in samples}) != 1):
            return list(samples)
        batch = torch.cat(list(samples)) if boxes else torch.stack(list(samples))
        return tv_tensors.wrap(batch, like=first) if isinstance(first, tv_tensors.TVTensor) else batch
    return list(samples)
