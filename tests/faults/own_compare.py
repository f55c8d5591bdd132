"""Run one program, the source of a Dataset ``Own(paths, masks)``, with torch's loader and ours.

Without workers, a program draws the same numbers with both loaders, so all values are compared. With workers it draws
others. Then torch's loader is run with two seeds. Values that agree between the seeds are compared with ours, and for
the others only relations between the values of one sample, such as whether two of its images are always equal.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import numbers
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from helpers import make_image
from PIL import Image
from torch.utils import data

from dali_compat import DataLoader
from dali_compat.routes.dali import MOST_PIPELINES
from dali_compat.runtime.cores import usable_cores

# Allowed mean difference without exact=True, as a share of an image's range. These images are small, mostly border.
MEAN = 0.03
EXACT_MEAN = 1e-4  # for floats with exact=True: blurs, warps and elastic fields add in another order
EPOCHS = 2
THREADS = MOST_PIPELINES * (12 + usable_cores())  # more threads than this mean that some are started for each sample
_CLEAR_SHARE = 0.3  # share of samples whose images differ clearly

DIFFERS, RELATION, RAISES, LEAKS = "differs", "relation", "raises", "leaks"


class Setting(NamedTuple):
    """Options of a run.

    ``collate`` uses torch's function, else a batch is a list of samples. ``fallbacks`` includes programs on torch's
    route, which give the same unless a trial has side effects.
    """

    exact: bool = True
    workers: int = 0
    batch_size: int = 5
    collate: bool = False
    shuffle: bool = False
    persistent: bool = False
    fallbacks: bool = True
    device: str = "cpu"


class Finding(NamedTuple):
    """A difference; ``text`` names the place, the expected value and the actual one."""

    kind: str
    text: str


class RunResult(NamedTuple):
    """The result of a run.

    It has the values of each sample by path for each epoch, the error that ended the run, the route according to
    explain(), and the number of threads at the end.
    """

    epochs: list[list[dict[str, Any]]]
    error: str
    route: str = ""
    threads: int = 0


# ---- files


def make_files(root: Path, count: int = 12) -> None:
    """Write ``count`` images of several formats and sizes, and a gray mask of the same size for each."""
    rng = np.random.default_rng(5)
    for number in range(count):
        height, width = (int(side) for side in rng.integers(56, 150, 2))
        picture = Image.fromarray(make_image(rng, height, width))
        gray = picture.convert("L")
        stem, options = root / f"{number:02d}", dict(quality=92)
        if number == 3:
            picture = gray
        if number == 5:
            options["progressive"] = True
        if number == 8:
            exif = Image.Exif()
            exif[274] = 6
            options["exif"] = exif.tobytes()
        if number in (4, 7):
            picture = picture.convert("RGBA" if number == 4 else "P")
            picture.save(stem.with_suffix(".png"))
        else:
            picture.save(stem.with_suffix(".png" if number == 9 else ".jpg"), **options)
        gray.save(root / f"mask_{number:02d}.png")
    for stem in sorted(root.iterdir()):
        if stem.name[:2].isdigit():
            place = root / "folder" / f"class_{int(stem.name[:2]) % 3}"
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(stem, place)
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not an image")


def files_of(root: Path) -> tuple[list[str], list[str]]:
    """Return the images and their masks."""
    paths = sorted(str(path) for path in root.iterdir() if path.name[:2].isdigit())
    return paths, [str(root / f"mask_{Path(path).stem}.png") for path in paths]


# ---- running


def import_program(file: Path) -> Any:
    """Import the program as a new module."""
    spec = importlib.util.spec_from_file_location("program", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    spec.loader.exec_module(module)
    return module


def run_program(
    file: Path, files: tuple, setting: Setting, make: Callable[..., Any], seeds: tuple[int, int]
) -> RunResult:
    """Run a program with a loader. One seed is for torch's generator, the other for Python's and NumPy's."""
    torch.manual_seed(seeds[0])
    random.seed(seeds[1])
    np.random.seed(seeds[1])
    epochs: list[list[dict[str, Any]]] = []
    loader = None
    try:
        dataset = import_program(file).Own(*map(list, files))
        options: dict[str, Any] = dict(num_workers=setting.workers)
        if setting.shuffle:
            options["sampler"] = random.Random(7).sample(range(len(dataset)), len(dataset))
        if setting.workers and setting.persistent:
            options["persistent_workers"] = True
        if not setting.collate:
            options["collate_fn"] = list
        loader = make(dataset, setting.batch_size, **options)
        for epoch in range(EPOCHS):
            if epoch and hasattr(dataset, "between"):
                dataset.between()
            epochs.append([])
            for batch in loader:
                samples = [batch] if setting.collate else batch
                epochs[-1] += [dict(_values(sample)) for sample in samples]
        if hasattr(dataset, "kept"):
            epochs.append([dict(_values(dataset.kept))])
        error = ""
    except Exception as met:
        error = type(met).__name__ + _last_line(met)
    route = loader.explain() if isinstance(loader, DataLoader) else ""
    return RunResult(epochs, error, route, _threads())


def _route(file: Path, files: tuple, device: str) -> str:
    try:
        dataset = import_program(file).Own(*map(list, files))
        return DataLoader(dataset, device=device, fallback="silent").explain().partition(" ")[0]
    except Exception as error:
        return type(error).__name__


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _last_line(error: Exception) -> str:
    return f": {str(error).strip().splitlines()[-1][:200]}" if str(error).strip() else ""


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a sample with their paths. Types are values, too."""
    if isinstance(value, dict):
        yield f"{path}#keys", (type(value).__name__, tuple(map(str, value)))
        for key, one in value.items():
            yield from _values(one, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield f"{path}#length", (type(value).__name__, len(value))
        for number, one in enumerate(value):
            yield from _values(one, f"{path}[{number}]")
    elif isinstance(value, torch.Tensor):
        plain = value.as_subclass(torch.Tensor).detach()
        yield f"{path}#kind", (_name(value), tuple(plain.shape), str(plain.dtype))
        yield path, plain.to("cpu", copy=True)
    elif isinstance(value, np.ndarray):
        yield f"{path}#kind", ("ndarray", value.shape, str(value.dtype))
        yield path, torch.from_numpy(np.array(value)) if value.dtype.kind in "uifb" else value.tolist()
    elif isinstance(value, Image.Image):
        yield f"{path}#kind", ("image", value.mode, value.size)
        pixels = np.array(value.convert("RGB") if value.mode in ("P", "1", "CMYK") else value)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        yield path, torch.from_numpy(np.ascontiguousarray(pixels))
    else:
        yield path, value


def _name(tensor: torch.Tensor) -> str:
    """Return the name of the class that isinstance() sees."""
    return getattr(tensor, "__class__", type(tensor)).__name__


# ---- comparing


def compare(file: Path, files: tuple, setting: Setting, limit: float = MEAN) -> tuple[list[Finding], str]:
    """Return the differences of a program, and its route."""
    warnings.simplefilter("ignore")
    if not setting.fallbacks and (route := _route(file, files, setting.device)) == "torchvision":
        return [], route
    one = run_program(file, files, setting, data.DataLoader, (1, 1))
    # Without workers, all numbers equal those of torch's loader, unless the program takes a seed from the system.
    other = one
    if setting.workers or ".seed()" in file.read_text():
        other = run_program(file, files, setting, data.DataLoader, (2, 2))
    if one.error.partition(":")[0] != other.error.partition(":")[0]:
        return [], "random errors"

    def make(*args: Any, **options: Any) -> DataLoader:
        return DataLoader(*args, exact=setting.exact, device=setting.device, fallback="silent", **options)

    mine = run_program(file, files, setting, make, (1, 1))
    found = list(_differences(one, other, mine, setting, limit))
    if mine.threads - one.threads > THREADS:
        found.append(Finding(LEAKS, f"{mine.threads - one.threads} threads more"))
    route = "error" if one.error else mine.route.partition(" ")[0]
    del one, other, mine
    gc.collect()
    return found, route


def _differences(
    one: RunResult, other: RunResult, mine: RunResult, setting: Setting, limit: float
) -> Iterator[Finding]:
    if one.error.partition(":")[0] != mine.error.partition(":")[0]:
        yield Finding(RAISES, f"expected {one.error or 'no error'}, got {mine.error or 'no error'}")
        return
    if [len(epoch) for epoch in one.epochs] != [len(epoch) for epoch in mine.epochs]:
        if not one.error:
            yield Finding(DIFFERS, f"expected {list(map(len, one.epochs))} samples, got {list(map(len, mine.epochs))}")
        return
    theirs, twice, ours = (list(itertools.chain(*each.epochs)) for each in (one, other, mine))
    if one.error or len(theirs) != len(twice):
        return
    paths = sorted(set().union(*theirs))
    fixed = {path for path in paths if all(_same(a.get(path), b.get(path)) for a, b in zip(theirs, twice, strict=True))}
    per_epoch = len(one.epochs[0])
    reported: set[str] = set()
    for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        for path in sorted(set(a) | set(b)):
            about = path.partition("#")[0]
            if path not in fixed or about in reported:
                continue
            text = _difference(a.get(path), b.get(path), setting.exact, limit)
            if text:
                reported.add(about)
                where = f"epoch {number // per_epoch}, sample {number % per_epoch}, {path or 'the sample'}"
                yield Finding(DIFFERS, f"{where}: {text}")
    yield from _relations(theirs, twice, ours, paths, 0.0 if setting.exact else limit)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    are_numbers = isinstance(a, numbers.Number) and isinstance(b, numbers.Number)  # NumPy scalars of such a size
    return (are_numbers or type(a) is type(b)) and bool(a == b or (a != a and b != b))


def _difference(theirs: Any, mine: Any, exact: bool, limit: float) -> str:
    """Describe a difference, or return "" if there is none or it is within the limit of the setting."""
    if _same(theirs, mine):
        return ""
    if not isinstance(theirs, torch.Tensor) or not isinstance(mine, torch.Tensor):
        return f"expected {str(theirs)[:150]}, got {str(mine)[:150]}"
    distance = _distance(theirs, mine)
    if distance is None:
        return f"expected shape {tuple(theirs.shape)}, got {tuple(mine.shape)}"
    if theirs.ndim >= 2 and distance <= ((EXACT_MEAN if theirs.is_floating_point() else 0) if exact else limit):
        return ""
    return f"values differ by {distance:.4g} of their range on average, shape {tuple(theirs.shape)}"


def _distance(a: Any, b: Any) -> float | None:
    """Return the mean difference as a share of an image's range, or None if these are not images of one shape."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or a.ndim < 2:
        return (
            None if not isinstance(a, torch.Tensor) or a.shape != getattr(b, "shape", None) else float(not _same(a, b))
        )
    if not a.numel():
        return 0.0
    has_levels = not a.is_floating_point() or a.abs().max() > 16  # 0 to 255, also as floats
    return float((a.double() - b.double()).abs().mean()) / (255 if has_levels else 1)


def _relations(theirs: list, twice: list, ours: list, paths: list[str], limit: float) -> Iterator[Finding]:
    """Yield pairs of images of a sample that are always equal with one loader only."""
    images = [path for path in paths if all(isinstance(one.get(path), torch.Tensor) for one in theirs)]
    images = [path for path in images if theirs[0][path].ndim >= 2]
    for a, b in itertools.combinations(images, 2):
        expected = [_distance(one[a], one.get(b)) for one in (*theirs, *twice)]
        got = [_distance(one.get(a), one.get(b)) for one in ours]
        if all(one == 0 for one in expected):
            worst = max((1.0 if one is None else one) for one in got)
            if worst > limit:
                yield Finding(
                    RELATION, f"{a} and {b} are always equal in torch's loader, and differ by {worst:.3g} here"
                )
        elif all(one == 0 for one in got) and len(got) >= 12:
            tells = sum(one is None or one > 2 * MEAN for one in expected) / len(expected)
            if tells >= _CLEAR_SHARE:
                yield Finding(
                    RELATION, f"{a} and {b} are always equal here, and differ in {tells:.0%} in torch's loader"
                )
