"""Create the model by name and share it between the ranks, with its optimizer, average and learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
import torchvision
from options import Options
from ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn


class Model:
    """A model in its several forms.

    Attributes:
        plain: The module, which is evaluated and saved. --parallel fsdp shards its parameters.
        average: An exponential moving average of it, or None.
        train: The module for training steps, which wraps the same parameters in DistributedDataParallel and
            torch.compile.
        optimizer, scaler: Those of its parameters.
    """

    def __init__(self, options: Options, ranks: Ranks, classes: int) -> None:
        whole = options.parallel == "ddp"  # shards are contiguous, so with FSDP only the images are channels_last
        layout = torch.channels_last if options.channels_last and whole else torch.contiguous_format
        self.plain: nn.Module = create(options.model, classes, options.model_args)
        self.plain.to(ranks.device, memory_format=layout)
        self.average = _average(self.plain, options) if options.ema else None
        self.train = self.plain
        if options.parallel == "fsdp":
            for module in filter(None, (self.plain, self.average and self.average.module)):
                shard(module, ranks)
        elif ranks.world > 1:
            on_gpu = ranks.device.type == "cuda"
            self.train = DistributedDataParallel(
                self.plain, [ranks.local_rank] if on_gpu else None, gradient_as_bucket_view=True
            )
        if options.compile:
            # compile one program for each image size, since there are only a few progressive sizes
            self.train = torch.compile(self.train, dynamic=False)
        self.optimizer = _optimizer(self.plain, options)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")

    def after_step(self) -> None:
        if self.average is not None:
            self.average.update_parameters(self.plain)


def create(name: str, classes: int, arguments: dict[str, Any]) -> nn.Module:
    """Return torchvision's model of this name, or timm's if torchvision has none.

    Raises:
        ValueError: Neither library has it.
    """
    if not name.startswith("timm/") and name in torchvision.models.list_models(torchvision.models):
        return torchvision.models.get_model(name, num_classes=classes, **arguments)
    try:
        import timm
    except ImportError:
        raise ValueError(f"torchvision has no model {name!r}; timm has more: pip install timm") from None
    name = name.removeprefix("timm/")
    if not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{name}*")[:5])
        raise ValueError(f"neither torchvision nor timm has a model {name!r}" + (f"; timm has {near}" if near else ""))
    return timm.create_model(name, num_classes=classes, **arguments)


def shard(module: nn.Module, ranks: Ranks) -> None:
    """Apply FSDP2: each rank keeps a part of every parameter, and gathers a block's parameters before it is computed.

    Blocks are the children of a Sequential or ModuleList at the top of the model, such as a stage's blocks in a ResNet
    or the layers of a transformer. The remaining parameters, stem and head, form one group. All are float32 and
    autocast converts them, so that the numbers equal DistributedDataParallel's.
    """
    from torch.distributed.fsdp import fully_shard  # torch 2.6 or newer

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for part in module.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            for block in part:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _average(module: nn.Module, options: Options) -> AveragedModel:
    """Average parameters and the statistics of norm layers.

    With FSDP they are averaged one by one, since no kernel accepts a list of both sharded and whole tensors.
    """
    if options.parallel == "fsdp":
        return AveragedModel(module, avg_fn=get_ema_avg_fn(options.ema), use_buffers=True)
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(options.ema), use_buffers=True)


def _optimizer(module: nn.Module, options: Options) -> torch.optim.Optimizer:
    """Exclude biases and norm weights, which are vectors, from weight decay (Goyal et al., "Accurate, large
    minibatch SGD", 2017)."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, nesterov=options.momentum > 0)


def learning_rate(options: Options, epoch: float, images_a_step: int) -> float:
    """Return the learning rate at a point of the run, in epochs: linear warm-up, then a cosine to zero.

    It depends on the number of images seen, not of steps, so that a run can continue on another number of ranks.
    """
    peak = options.lr * images_a_step / 256
    if epoch < options.warmup:
        return peak * (epoch + 0.01) / (options.warmup + 0.01)
    done = (epoch - options.warmup) / max(1e-9, options.epochs - options.warmup)
    return peak * (1 + math.cos(math.pi * min(1.0, done))) / 2
