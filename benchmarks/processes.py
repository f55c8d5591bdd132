"""Run a benchmark in one process, or in several that torchrun starts."""

import contextlib
import os

import common
import torch
import torch.distributed as dist


def several():
    return dist.is_initialized()


def first():
    return not several() or dist.get_rank() == 0


def everyones(value):
    """Return the values of all processes as a list."""
    if not several():
        return [value]
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def barrier(device):
    if several():
        dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


@contextlib.contextmanager
def joined(name):
    """Return (device, rank, processes) of this process; under torchrun, join the process group."""
    device, processes = torch.device(name), int(os.environ.get("WORLD_SIZE", 1))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        torch.cuda.set_device(device)
    if "WORLD_SIZE" not in os.environ:
        yield device, 0, 1
        return
    own = {"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}
    dist.init_process_group(**own)
    try:
        yield device, dist.get_rank(), processes
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def images_of(args, rank):
    """Yield the folder of images, which the first process creates and removes."""
    with common.folder(args.data, args.replicate) if rank == 0 else contextlib.nullcontext() as root:
        yield everyones(root)[0]
        everyones(None)
