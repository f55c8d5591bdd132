"""Loaders in processes with few open files, processes and threads, little memory, or small files only:

    python tests/faults/limits.py --seconds 600 [--seed 1] [--first NUMBER]

Each round sets a limit at random in a process of its own, before or after the first batch, and loads two epochs. A
sample comes with the pixels that it has without the limit, or the loop ends with an error; no sample is left out or
taken for a bad image, and no process crashes or hangs. If at least 40 files may be open, all samples must come. The
exit status is 1 if any round is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from helpers import make_image

from dali_compat import DALIArrayDataset, DALIImageList, DALIWebDataset, DataLoader
from faults.run import forks

COUNT, SIDE = 40, 48
SECONDS = 200  # after which a process hangs
FEWEST = 40  # open files with which a loader has to work
STORAGES = "folder", "archive", "arrays", "own", "cached"
LIMITS = {
    "files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "memory": resource.RLIMIT_AS,
    "size of files": resource.RLIMIT_FSIZE,  # those of shared memory, too
}
RIGHT, REFUSED, KILLED = "right", "refused", "killed"


class Round(NamedTuple):
    """What is tried.

    Attributes:
        limit: one of LIMITS; value: files, processes, or bytes besides what the process has.
        held: files that the process has open besides.
        late: whether the limit is set after the first batch.
    """

    storage: str
    limit: str
    value: int
    held: int
    late: bool
    batch_size: int
    workers: int
    policy: str
    function: bool


def drawn(number: int) -> Round:
    """Returns the round of a number."""
    rng = random.Random(number)
    limit = rng.choice(list(LIMITS))
    held = 0
    if limit == "files":
        value = rng.choice([16, 24, 40, 64, 100, 200])
        held = rng.choice([0, 0, rng.randrange(value // 2)])
    elif limit == "processes":
        value = rng.randrange(0, 24)
    elif limit == "memory":
        value = rng.randrange(0, 2 << 30)
    else:
        value = rng.choice([0, 1 << 10, 1 << 16, 1 << 20])
    workers, policy = rng.choice([0, 0, 1, 2]), rng.choice(["raise", "skip", "skip", "replace"])
    return Round(
        rng.choice(STORAGES), limit, value, held, rng.random() < 0.3, rng.choice([4, 16, 40]), workers, policy,
        rng.random() < 0.3,
    )  # fmt: skip


def inverted(image: Image.Image) -> Image.Image:
    """A function without a translation."""
    return Image.fromarray(255 - np.asarray(image))


class Own(data.Dataset):
    def __init__(self, paths: list[str], transform: Any):
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def make_files(root: Path) -> None:
    """Writes the images, and an archive of them."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        Image.fromarray(make_image(rng, SIDE + number, SIDE)).save(root / f"{number:02d}.jpg", quality=90)
    with tarfile.open(root / "archive.tar", "w") as archive:
        for number, path in enumerate(_paths(root)):
            (root / f"{number:02d}.cls").write_text(str(number))
            archive.add(path, f"{number:02d}.jpg")
            archive.add(root / f"{number:02d}.cls", f"{number:02d}.cls")


def _paths(root: Path) -> list[str]:
    return [str(root / f"{number:02d}.jpg") for number in range(COUNT)]


def _loader(one: Round, root: Path) -> DataLoader:
    steps = [T.CenterCrop(SIDE), T.PILToTensor()]
    transform = T.Compose([inverted, *steps] if one.function else steps)
    numbers = list(range(COUNT))
    if one.storage == "own":
        dataset: Any = Own(_paths(root), transform)
    elif one.storage == "archive":
        dataset = DALIWebDataset(str(root / "archive.tar"), transform)
    elif one.storage == "arrays":
        images = np.stack([np.asarray(Image.open(path).convert("RGB"))[:SIDE] for path in _paths(root)])
        dataset = DALIArrayDataset(images, numbers, transform=transform)
    else:
        dataset = DALIImageList(_paths(root), numbers, transform=transform)
    return DataLoader(
        dataset, one.batch_size, num_workers=one.workers, device="cpu", exact=True, fallback="silent",
        on_error=one.policy, cache=1 << 26 if one.storage == "cached" else None,
    )  # fmt: skip


def _samples(batch: Any) -> list[tuple[int, bytes]]:
    images, numbers = batch
    return [(int(n), image.numpy().tobytes()) for image, n in zip(images, numbers, strict=True)]


def _as_a_user() -> None:
    """The system does not limit the administrator's processes: the process counts as another user's from here on."""
    if os.getuid() == 0:
        os.setresuid(65534, 0, 0)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        libc.capget(header, sets)
        for capability in (21, 24):  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
            sets[0] &= ~(1 << capability)
        libc.capset(header, sets)


def _limit(one: Round) -> list[Any]:
    """Sets the limit; returns what holds descriptors."""
    held = [open(os.devnull, "rb") for _ in range(one.held)]
    value = one.value
    if one.limit == "memory":
        value += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    elif one.limit == "processes":
        _as_a_user()
        value += len(os.listdir("/proc/self/task"))
    resource.setrlimit(LIMITS[one.limit], (value, value))
    return held


def _child(number: int, root: str, connection: Any) -> None:
    """Sends (epoch, number of the sample, checksum) one by one, and at last what ended the loop, and loader.errors."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    one = drawn(number)
    had: list[list[tuple[int, bytes]]] = []
    error, bad = "", []
    held: list[Any] = []
    try:
        held = [] if one.late else _limit(one)
        loader = _loader(one, Path(root))
        for _ in range(2):
            had.append([])
            for batch in loader:
                had[-1] += _samples(batch)
                if one.late and not held:
                    held = [_limit(one)]
        bad = [found.reason for found in loader.errors]
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    del held
    for name in LIMITS.values():  # of memory, for the message
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(name, (resource.getrlimit(name)[1],) * 2)
    connection.send((had, error, bad))
    connection.close()
    os._exit(0)


def expected(one: Round, root: Path) -> list[tuple[int, bytes]]:
    """The samples without a limit."""
    plain = one._replace(workers=0, batch_size=COUNT, policy="raise")
    return [sample for batch in _loader(plain, root) for sample in _samples(batch)]


def tried(number: int, root: Path) -> tuple[str, str]:
    """Returns what is wrong with the round of a number, or "", and its outcome."""
    one, context = drawn(number), forks()
    text = f"{number}: {one}"
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(number, str(root), sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return f"hangs; {text}", KILLED
        had, error, bad = receiver.recv()
    except EOFError:
        process.join()
        status = process.exitcode
        # libraries abort if they get no memory or thread at all; torch's loader is not better off there
        harmless = one.limit in ("memory", "processes")
        return "" if harmless else f"ended with status {status}; {text}", KILLED
    finally:
        process.kill()
        process.join()
        receiver.close()
    right = expected(one, root)
    for epoch, samples in enumerate(had):
        if samples != right[: len(samples)] or (not error and len(samples) != len(right)):
            numbers = [number for number, _ in samples]
            return f"epoch {epoch} has {len(numbers)} samples {numbers}, {error}; {text}", RIGHT
    if bad:
        return f"took good images for bad ones: {bad[:2]}; {text}", RIGHT
    free = one.value - one.held
    if error and one.limit == "files" and free >= FEWEST and not one.late:
        return f"{error[:300]}; {text}", REFUSED
    return "", REFUSED if error else RIGHT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="the number of the first round, instead of a seed's")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    first = options.seed * 1_000_000 if options.first is None else options.first
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        wrong, number, end = 0, first, time.monotonic() + options.seconds
        while time.monotonic() < end:
            text, outcome = tried(number, Path(folder))
            outcomes[f"{drawn(number).limit}: {outcome}"] += 1
            number += 1
            if text:
                wrong += 1
                print(f"# {text}", flush=True)
    print(f"{number - first} rounds: {wrong} wrong; {dict(sorted(outcomes.items()))}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
