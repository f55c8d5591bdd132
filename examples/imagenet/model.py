"""The model by its name, shared by the ranks, with its optimizer, its average and its learning rate."""

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
        plain: the module itself: what is evaluated and saved. Its parameters are sharded with --parallel fsdp.
        average: an exponential moving average of it, or None.
        train: what a training step calls: the same parameters behind DistributedDataParallel and torch.compile.
        optimizer, scaler: of its parameters.
    """

    def __init__(self, options: Options, ranks: Ranks, classes: int) -> None:
        whole = options.parallel == "ddp"  # shards are contiguous: with FSDP only the images are channels_last
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
            # one program for each size of images: progressive sizes bring a few
            self.train = torch.compile(self.train, dynamic=False)
        self.optimizer = _optimizer(self.plain, options)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")

    def after_step(self) -> None:
        if self.average is not None:
            self.average.update_parameters(self.plain)


def create(name: str, classes: int, arguments: dict[str, Any]) -> nn.Module:
    """torchvision's model of that name, or timm's where torchvision has none.

    Raises:
        ValueError: neither has it.
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
    """FSDP2: each rank keeps a part of every parameter, and gathers a block's just before it is computed.

    A block is what stands in a Sequential or ModuleList at the top of the model: a stage's blocks in a ResNet,
    the layers of a transformer. What is left, stem and head, is a group of its own. It is all in float32, and autocast
    casts, so that the numbers are DistributedDataParallel's.
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
    """Of parameters and of the norms' statistics. A list of sharded and whole tensors is no list that one kernel takes,
    so with FSDP they are averaged one by one."""
    if options.parallel == "fsdp":
        return AveragedModel(module, avg_fn=get_ema_avg_fn(options.ema), use_buffers=True)
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(options.ema), use_buffers=True)


def _optimizer(module: nn.Module, options: Options) -> torch.optim.Optimizer:
    """Biases and norms are vectors, and have no weight decay: Goyal et al., "Accurate, large minibatch SGD", 2017."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, nesterov=options.momentum > 0)


def learning_rate(options: Options, epoch: float, images_a_step: int) -> float:
    """At a point of the run, in epochs: linear warm-up, then a cosine to zero. A function of how many images were seen,
    not of steps: it goes on as it was on another number of ranks."""
    peak = options.lr * images_a_step / 256
    if epoch < options.warmup:
        return peak * (epoch + 0.01) / (options.warmup + 0.01)
    done = (epoch - options.warmup) / max(1e-9, options.epochs - options.warmup)
    return peak * (1 + math.cos(math.pi * min(1.0, done))) / 2
