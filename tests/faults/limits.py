"""Loaders in processes with few open files, processes and threads, little memory, small files, little /dev/shm, or a
full disk for caches:

    python tests/faults/limits.py --seconds 600 [--seed 1] [--first NUMBER]

Each round sets a limit at random in a process of its own, before or after the first batch, and loads two epochs. A
sample comes with the pixels that it has without the limit, or the loop ends with an error that names a remedy; no
sample is left out or taken for a bad image, and no process crashes or hangs. If at least 40 files may be open, or only
caches are limited, all samples must come. Without the limit the same loader then loads a third epoch, complete. The
exit status is 1 if any round is wrong.

The limits of /dev/shm and the disk are mounts of a few KB, and left out if this user may not mount.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import random
import re
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

from dali_compat import DALIArrayDataset, DALIImageFolder, DALIImageList, DALIWebDataset, DataLoader
from faults.run import forks

COUNT, SIDE = 40, 48
SECONDS = 200  # after which a process hangs
FEWEST = 40  # open files with which a loader has to work
FREED = 100  # open files that are free without the limit
STORAGES = "folder", "indexed", "archive", "arrays", "own", "cached"
LIMITS = {
    "files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "memory": resource.RLIMIT_AS,
    "size of files": resource.RLIMIT_FSIZE,  # those of shared memory, too
    "shared memory": None,
    "disk": None,
}
_NEWNS, _DETACH, _PRIVATE = 0x20000, 2, 0x44000  # CLONE_NEWNS, MNT_DETACH, MS_REC | MS_PRIVATE
_libc = ctypes.CDLL(None, use_errno=True)
# parts of messages that name what to do: errors.remedy_of(), and torch's own of workers that have died
REMEDIES = re.compile(
    r"ulimit -[nuf]|fs\.file-max|free memory|free space|raise your shared memory limit|DataLoader worker .* exited"
)
RIGHT, REFUSED, KILLED = "right", "refused", "killed"


class Round(NamedTuple):
    """What is tried.

    Attributes:
        limit: one of LIMITS; value: files, processes, or bytes besides what the process has, of files, or of a disk.
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
    elif limit == "size of files":
        value = rng.choice([0, 1 << 10, 1 << 16, 1 << 20])
    else:
        value = rng.choice([1 << 12, 1 << 14, 1 << 16, 1 << 20])
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
    (root / "classes" / "only").mkdir(parents=True)
    for number in range(COUNT):
        Image.fromarray(make_image(rng, SIDE + number, SIDE)).save(root / f"{number:02d}.jpg", quality=90)
        os.link(root / f"{number:02d}.jpg", root / "classes" / "only" / f"{number:02d}.jpg")
    with tarfile.open(root / "archive.tar", "w") as archive:
        for number, path in enumerate(_paths(root)):
            (root / f"{number:02d}.cls").write_text(str(number))
            archive.add(path, f"{number:02d}.jpg")
            archive.add(root / f"{number:02d}.cls", f"{number:02d}.cls")


def _paths(root: Path) -> list[str]:
    return [str(root / f"{number:02d}.jpg") for number in range(COUNT)]


def _archive(root: Path, cache: Path) -> Path:
    """A link to the archive, because its index is next to it."""
    archive = cache / "archive.tar"
    if not archive.exists():
        archive.symlink_to(root / "archive.tar")
    return archive


def _loader(one: Round, root: Path, cache: Path) -> DataLoader:
    steps = [T.CenterCrop(SIDE), T.PILToTensor()]
    transform = T.Compose([inverted, *steps] if one.function else steps)
    numbers = list(range(COUNT))
    if one.storage == "own":
        dataset: Any = Own(_paths(root), transform)
    elif one.storage == "indexed":
        dataset = DALIImageFolder(root / "classes", transform, index_cache=True, return_index=True)
    elif one.storage == "archive":
        dataset = DALIWebDataset(str(_archive(root, cache)), transform)
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
    images, *_, numbers = batch
    return [(int(n), image.numpy().tobytes()) for image, n in zip(images, numbers, strict=True)]


def _as_a_user(active: bool) -> None:
    """The system does not limit the administrator's processes: the process counts as another user's while this is
    active."""
    if os.geteuid() == 0:
        os.setresuid(65534 if active else 0, 0, 0)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        _libc.capget(header, sets)
        sets[0] = sets[1] & ~(active << 21 | active << 24)  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
        _libc.capset(header, sets)


def may_mount() -> bool:
    """Whether a process of this user may have a disk of its own; asked in a process of its own."""
    pid = os.fork()
    if not pid:
        os._exit(_libc.unshare(_NEWNS) != 0)
    return os.waitpid(pid, 0)[1] == 0


class Limit:
    """The limit of a round, for this process and those that it starts."""

    def __init__(self, one: Round, cache: Path):
        self._one, self._cache, self._held = one, cache, list[Any]()
        self._place = b"/dev/shm" if one.limit == "shared memory" else os.fsencode(cache)
        self.active = False
        if LIMITS[one.limit] is None:
            _demand(_libc.unshare(_NEWNS))
            _demand(_libc.mount(b"none", b"/", None, _PRIVATE, None))
        else:
            self._before = resource.getrlimit(LIMITS[one.limit])

    def set(self) -> None:
        one, value = self._one, self._one.value
        self.active = True
        held = one.held + FREED if one.limit == "files" else 0
        self._held = [open(os.devnull, "rb") for _ in range(held)]
        if LIMITS[one.limit] is None:
            _demand(_libc.mount(b"none", self._place, b"tmpfs", 0, f"size={value}".encode()))
            return
        if one.limit == "memory":
            value += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        elif one.limit == "processes":
            _as_a_user(True)
            value += len(os.listdir("/proc/self/task"))
        elif one.limit == "files":
            value += FREED
        # a user may raise the soft limit again, as this package does with that of files
        resource.setrlimit(LIMITS[one.limit], (value, value if one.limit == "files" else self._before[1]))

    def lift(self) -> None:
        if self.active:
            self.active, self._held = False, []
            if LIMITS[self._one.limit] is None:
                _demand(_libc.umount2(self._place, _DETACH))
            else:
                if self._one.limit == "processes":
                    _as_a_user(False)
                if self._one.limit != "files":
                    resource.setrlimit(LIMITS[self._one.limit], self._before)


def _demand(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Result(NamedTuple):
    """What a process has seen: the samples of each epoch as (number, bytes), the error that ended the loop, the reasons
    in loader.errors, and the samples, or the error, without the limit."""

    had: list[list[tuple[int, bytes]]]
    error: str
    bad: list[str]
    after: list[tuple[int, bytes]] | str


def _child(number: int, root: str, cache: str, connection: Any) -> None:
    """Sends a Result."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.environ["XDG_CACHE_HOME"] = cache
    torch.multiprocessing.set_start_method("fork", force=True)  # a server of processes would keep the limit
    one = drawn(number)
    had: list[list[tuple[int, bytes]]] = []
    error, bad, loader = "", [], None
    limit = Limit(one, Path(cache))
    try:
        if not one.late:
            limit.set()
        loader = _loader(one, Path(root), Path(cache))
        for _ in range(2):
            had.append([])
            for batch in loader:
                had[-1] += _samples(batch)
                if not limit.active:
                    limit.set()
        bad = [found.reason for found in loader.errors]
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    limit.lift()
    _archive(Path(root), Path(cache))  # a disk of its own is gone now, with its link
    after: Any = []
    try:
        for batch in loader or _loader(one, Path(root), Path(cache)):
            after += _samples(batch)
    except Exception as failure:
        after = f"{type(failure).__name__}: {failure}"
    connection.send(Result(had, error, bad, after))
    connection.close()
    os._exit(0)


def expected(one: Round, root: Path) -> list[tuple[int, bytes]]:
    """The samples without a limit, of torch's own loader."""
    dataset = _loader(one, root, root).dataset
    return [sample for batch in data.DataLoader(dataset, COUNT) for sample in _samples(batch)]


def tried(number: int, root: Path) -> tuple[str, str]:
    """Returns what is wrong with the round of a number, or "", and its outcome."""
    one, context = drawn(number), forks()
    text = f"{number}: {one}"
    if LIMITS[one.limit] is None and not may_mount():
        return "", "left out"
    receiver, sender = context.Pipe(duplex=False)
    cache = tempfile.TemporaryDirectory(dir=root)
    process = context.Process(target=_child, args=(number, str(root), cache.name, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return f"hangs; {text}", KILLED
        had, error, bad, after = receiver.recv()
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
        cache.cleanup()
    right = expected(one, root)
    for epoch, samples in enumerate(had):
        if samples != right[: len(samples)] or (not error and len(samples) != len(right)):
            numbers = [number for number, _ in samples]
            return f"epoch {epoch} has {len(numbers)} samples {numbers}, {error}; {text}", RIGHT
    if bad:
        return f"took good images for bad ones: {bad[:2]}; {text}", RIGHT
    if after != right:
        return f"is not usable without the limit: {str(after)[-300:]}; {error[-200:]}; {text}", RIGHT
    enough = one.limit == "files" and one.value - one.held >= FEWEST and not one.late
    if error and (enough or one.limit == "disk" or not REMEDIES.search(error)):
        return f"{error[-400:]}; {text}", REFUSED
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
