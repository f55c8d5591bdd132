"""Helpers that run a case on torch's loader and on dali_compat's."""

import contextlib
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils import data
from torchvision import transforms as T

from dali_compat import DataLoader

REPOSITORY = Path(__file__).resolve().parents[2]

# DALI on the CPU gives exactly torchvision's pixels, because decoding, cropping and flipping do not round
EXACT = T.Compose([T.CenterCrop(40), T.PILToTensor()])
EXACT_FLIPPED = T.Compose([T.CenterCrop(40), T.RandomVerticalFlip(1.0), T.PILToTensor()])
SMALL = T.Compose([T.Resize((16, 16)), T.PILToTensor()])
RANDOM = T.Compose([T.RandomResizedCrop(16, antialias=True), T.RandomHorizontalFlip(), T.ToTensor()])


OPTIONS = dict(exact=True, memory_format=torch.channels_last, fallback="error", device="cpu")


class Wrapped(data.Dataset):
    """A data set with __getitems__ around a folder, read by torch's own loader."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        return self.folder[index]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def stock(dataset, *args, **kwargs) -> data.DataLoader:
    return data.DataLoader(dataset, *args, **kwargs)


def ours(dataset, *args, **kwargs) -> DataLoader:
    """Return a loader on the default device. A fallback is an error, so that a test cannot compare torch with torch."""
    return DataLoader(dataset, *args, **{"fallback": "error"} | kwargs)


def outline(batch):
    """Return the parts that must be equal on any device: shape and dtype of images, the values of everything else."""
    if isinstance(batch, torch.Tensor):
        return (tuple(batch.shape), batch.dtype) if batch.ndim >= 3 else (batch.tolist(), batch.dtype)
    if isinstance(batch, (list, tuple)):
        return type(batch), [outline(part) for part in batch]
    if isinstance(batch, dict):
        return {key: outline(value) for key, value in batch.items()}
    return batch


def outlines(loader, epochs: int = 2, seed: int = 0) -> list[list]:
    """Return the outline of each batch of some epochs under one seed."""
    torch.manual_seed(seed)
    return [[outline(batch) for batch in loader] for _ in range(epochs)]


def pixels(loader) -> list[torch.Tensor]:
    return [batch[0].cpu() for batch in loader]


def assert_same_pixels(mine, theirs) -> None:
    mine, theirs = list(mine), list(theirs)
    assert len(mine) == len(theirs) > 0
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} values differ"


def assert_same_epoch(mine, theirs) -> None:
    """Check that two loaders give bitwise equal pixels and equal targets."""
    mine, theirs = list(mine), list(theirs)
    assert_same_pixels([batch[0].cpu() for batch in mine], [batch[0] for batch in theirs])
    assert [batch[1].tolist() for batch in mine] == [batch[1].tolist() for batch in theirs]


def assert_ours(loader, **options) -> None:
    """Check that a loader rebuilt by a framework is a dali_compat loader on the DALI route with these options."""
    assert type(loader) is DataLoader and loader.explain().startswith("DALI route")
    assert {name: getattr(loader, name) for name in options} == options


def error_of(function, *args, **kwargs) -> Exception:
    """Return the exception raised by a call; fail if there is none."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


def python(code: str, *args: str, seconds: int = 280) -> subprocess.CompletedProcess:
    """Run code in a new interpreter with this repository on its path."""
    prelude = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'tests')!r}]\n"
    command = [sys.executable, "-c", prelude + code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=REPOSITORY)


def said(result: subprocess.CompletedProcess) -> str:
    """Return the output of a program; fail if the program failed."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@contextlib.contextmanager
def no_gc():
    """Disable Python's cycle collector, so that only reference counts free objects."""
    import gc

    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
