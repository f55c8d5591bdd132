"""Training steps of the models that training.py names: eager, compiled, or as CUDA graphs."""

import contextlib
import functools

import torch
import torch.distributed as dist
import torchvision

CLASSES = 1000


def maker(name):
    """Return a function that creates the model; raise ValueError if its name is unknown."""
    if name == "vit_s_16":
        return functools.partial(torchvision.models.VisionTransformer, 224, 16, 12, 6, 384, 1536)
    if name in torchvision.models.list_models():
        return functools.partial(torchvision.models.get_model, name, weights=None)
    with contextlib.suppress(ImportError):
        import timm

        if timm.is_model(name):
            return functools.partial(timm.create_model, name)
    raise ValueError(f"{name} is not a model of torchvision, or of timm if it is installed")


def make_step(name, program, device, backend):
    """Return a function that trains a new model on one batch and returns the loss."""
    torch.manual_seed(0)
    model = maker(name)(num_classes=CLASSES).to(device, memory_format=torch.channels_last).train()
    if dist.is_initialized():
        ids = [device.index] if device.type == "cuda" else None
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    compiled = program != "eager"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=compiled or None)
    criterion = torch.nn.CrossEntropyLoss()
    if compiled:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model = torch.compile(model, mode="reduce-overhead" if program == "graphs" else None, backend=backend)

    def step(images, labels):
        images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        if program == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
