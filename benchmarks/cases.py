"""Parse names of cases: NAME[:K[:D]][@KEY=VALUE,...] has K workers, D batches in flight, and further arguments.

    ours                                    one worker per core, the default of all loaders here
    ours:8:4                                num_workers=8, prefetch_factor=4
    ours@_GPU_JPEG_THREADS=8,exact=True     a constant of dali_compat, and an argument of its DataLoader
    ours:0@_DEPTH=3                         without num_workers; with workers torch sets prefetch_factor=2, not _DEPTH
    ours@DALI_COMPAT_JPEG_ENGINE=0          an environment variable: as on a GPU without a JPEG engine
    handwritten:4:5@hw_decoder_load=1.0     4 threads, 5 batches in flight, and an argument of handwritten_loader()
    handwritten:3@pipelines=3               three pipelines in turn

Constants are for tuning; a value that proves better belongs in the package. They are in capitals. If several modules
define a constant with different values, its name includes a module: planes_group._SHARE. Results from before 1.1 have
@BY_DEFAULT=False for today's @DALI_COMPAT_JPEG_ENGINE=0, and @BY_DEFAULT=True for today's default.
"""

import ast
import contextlib
import importlib
import itertools
import os
import pkgutil
from dataclasses import dataclass, field

import common
import loaders
import torch
import training_step
from torch.utils.data import DistributedSampler

_VARIABLES = "DALI_COMPAT_"


@dataclass
class Case:
    """A loader's name, threads, batches in flight, arguments, and constants to set while it is in use."""

    name: str
    workers: int
    depth: int | None
    arguments: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)


def parse(text, workers):
    """Parse a case's name; raise ValueError if it is invalid."""
    before, _, assignments = text.partition("@")
    case = Case(*common.split_case(before, workers))
    if case.name not in {"synthetic", *loaders.OPEN}:
        raise ValueError(f"{text}: expected synthetic, {', '.join(loaders.OPEN)}")
    for assignment in filter(None, assignments.split(",")):
        key, equals, value = assignment.partition("=")
        capitals = key.rpartition(".")[2].isupper()
        if not equals or case.name in ("synthetic", "torchvision") or (capitals and not case.name.startswith("ours")):
            raise ValueError(f"{text}: {assignment} is not an option of {case.name}")
        (case.constants if capitals else case.arguments)[key] = ast.literal_eval(value)
    for key in case.constants:
        if not key.startswith(_VARIABLES):
            places(key)
    return case


def places(key):
    """Return (modules of dali_compat with this constant, its name); raise ValueError if there is none, or several."""
    import dali_compat.data
    import dali_compat.engine
    import dali_compat.epoch
    import dali_compat.routes

    module, _, name = key.rpartition(".")
    packages = (dali_compat.data, dali_compat.engine, dali_compat.epoch, dali_compat.routes)
    found = itertools.chain(*(pkgutil.walk_packages(package.__path__, package.__name__ + ".") for package in packages))
    modules = [*packages, *(importlib.import_module(info.name) for info in found)]
    modules = [m for m in modules if name in vars(m) and m.__name__.endswith(f".{module}" if module else "")]
    values = {repr(vars(m)[name]) for m in modules}
    if len(values) != 1:
        raise ValueError(f"{key}: {'several constants' if values else 'no constant'} of dali_compat")
    return modules, name


@contextlib.contextmanager
def constants(values):
    """Set constants of dali_compat and environment variables within a block."""
    before, environment = [], dict(os.environ)
    try:
        for key, value in values.items():
            if key.startswith(_VARIABLES):
                os.environ[key] = str(value)
                continue
            modules, name = places(key)
            before += [(module, name, getattr(module, name)) for module in modules]
            for module in modules:
                setattr(module, name, value)
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for module, name, value in before:
            setattr(module, name, value)


class Reshuffled(DistributedSampler):
    """A DistributedSampler with another order in each epoch."""

    def __iter__(self):
        self.set_epoch(self.epoch + 1)
        return super().__iter__()


def synthetic_loader(settings):
    """Return a loader that repeats one batch on the device."""
    images = torch.randn(settings.batch_size, 3, loaders.CROP, loaders.CROP, device=settings.device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(training_step.CLASSES, (settings.batch_size,), device=settings.device)
    return loaders.Opened(lambda: itertools.repeat((images, labels)), lambda: None)


def open_case(case, settings):
    """Open the case's loader. With several shards, it loads only its shard of the files."""
    if case.name == "synthetic":
        return synthetic_loader(settings)
    data, sampler = loaders.dataset(case.name, settings.root), None
    if settings.shards > 1 and data is not None:
        sampler = Reshuffled(data, settings.shards, settings.shard, drop_last=True)
    return loaders.OPEN[case.name](settings, data, sampler, **case.arguments)
