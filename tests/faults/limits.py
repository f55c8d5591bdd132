"""Loaders under limits of open files, processes, threads, memory, file size, /dev/shm or disk space:

    python tests/faults/limits.py --seconds 600 [--seed 1] [--first NUMBER]

Each round sets a random limit in a separate process, before or after the first batch, and loads two epochs. Every
sample has the pixels that it has without the limit, or the loop ends with an error that names a remedy. No sample is
omitted or reported as a bad image, and no process crashes or hangs. If at least 40 files may be open, or only caches
are limited, the epochs must be complete. Without the limit, the same loader then loads a complete third epoch. The exit
status is 1 if any round is wrong.

The limits of /dev/shm and the disk are mounts of a few KB, and skipped if this user may not mount.
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
from faults.run import fork_server_context

COUNT, SIDE = 40, 48
TIMEOUT = 200  # a process that takes longer hangs
ENOUGH_FILES = 40  # number of open files that must suffice for a loader
SPARE_FILES = 100  # open files that are available again without the limit
STORAGES = "folder", "indexed", "archive", "arrays", "own"
LIMITS = {
    "files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "memory": resource.RLIMIT_AS,
    "size of files": resource.RLIMIT_FSIZE,  # also those in shared memory
    "shared memory": None,
    "disk": None,
}
_NEWNS, _DETACH, _PRIVATE = 0x20000, 2, 0x44000  # CLONE_NEWNS, MNT_DETACH, MS_REC | MS_PRIVATE
_libc = ctypes.CDLL(None, use_errno=True)
# Parts of messages that name a remedy, from errors.remedy_of() and from torch for workers that have died.
REMEDIES = re.compile(
    r"ulimit -[nuf]|fs\.file-max|free memory|free space|raise your shared memory limit|DataLoader worker .* exited"
)
RIGHT, REFUSED, KILLED = "right", "refused", "killed"


class Round(NamedTuple):
    """A loader and its limit.

    Attributes:
        limit: a key of LIMITS.
        value: number of files or processes, additional bytes of memory, or bytes of a file or disk.
        held: additional files that the process keeps open.
        late: True if the limit is set after the first batch.
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


def round_of(number: int) -> Round:
    """Return the round of a number."""
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
    """Write the images and an archive of them."""
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
    """Return a link to the archive, because its index is stored next to it."""
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
        on_error=one.policy,
    )  # fmt: skip


def _samples(batch: Any) -> list[tuple[int, bytes]]:
    images, *_, numbers = batch
    return [(int(n), image.numpy().tobytes()) for image, n in zip(images, numbers, strict=True)]


def _act_as_user(active: bool) -> None:
    """Make the limits apply to an administrator's process by acting as another user while ``active``."""
    if os.geteuid() == 0:
        os.setresuid(65534 if active else 0, 0, 0)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        _libc.capget(header, sets)
        sets[0] = sets[1] & ~(active << 21 | active << 24)  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
        _libc.capset(header, sets)


def may_mount() -> bool:
    """Return True if a process of this user may mount a disk, tested in a separate process."""
    pid = os.fork()
    if not pid:
        os._exit(_libc.unshare(_NEWNS) != 0)
    return os.waitpid(pid, 0)[1] == 0


class Limit:
    """The limit of a round, for this process and the processes that it starts."""

    def __init__(self, one: Round, cache: Path):
        self._one, self._cache, self._held = one, cache, list[Any]()
        self._place = b"/dev/shm" if one.limit == "shared memory" else os.fsencode(cache)
        self.active = False
        if LIMITS[one.limit] is None:
            _check(_libc.unshare(_NEWNS))
            _check(_libc.mount(b"none", b"/", None, _PRIVATE, None))
        else:
            self._before = resource.getrlimit(LIMITS[one.limit])

    def set(self) -> None:
        one, value = self._one, self._one.value
        self.active = True
        held = one.held + SPARE_FILES if one.limit == "files" else 0
        self._held = [open(os.devnull, "rb") for _ in range(held)]
        if LIMITS[one.limit] is None:
            _check(_libc.mount(b"none", self._place, b"tmpfs", 0, f"size={value}".encode()))
            return
        if one.limit == "memory":
            value += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        elif one.limit == "processes":
            _act_as_user(True)
            value += len(os.listdir("/proc/self/task"))
        elif one.limit == "files":
            value += SPARE_FILES
        # a user may raise the soft limit again, as this package does for open files
        resource.setrlimit(LIMITS[one.limit], (value, value if one.limit == "files" else self._before[1]))

    def lift(self) -> None:
        if self.active:
            self.active, self._held = False, []
            if LIMITS[self._one.limit] is None:
                _check(_libc.umount2(self._place, _DETACH))
            else:
                if self._one.limit == "processes":
                    _act_as_user(False)
                if self._one.limit != "files":
                    resource.setrlimit(LIMITS[self._one.limit], self._before)


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Result(NamedTuple):
    """The result of a process.

    It has the samples of each epoch as (number, bytes), the error that ended the loop, the reasons in loader.errors,
    and the samples, or the error, without the limit.
    """

    had: list[list[tuple[int, bytes]]]
    error: str
    bad: list[str]
    after: list[tuple[int, bytes]] | str


def _child(number: int, root: str, cache: str, connection: Any) -> None:
    """Run a round and send its Result."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.environ["XDG_CACHE_HOME"] = cache
    torch.multiprocessing.set_start_method("fork", force=True)  # a server of processes would keep the limit
    one = round_of(number)
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
    _archive(Path(root), Path(cache))  # a mounted disk is gone now, together with its link
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
    """Return the samples without a limit, from torch's loader."""
    dataset = _loader(one, root, root).dataset
    return [sample for batch in data.DataLoader(dataset, COUNT) for sample in _samples(batch)]


def run_round(number: int, root: Path) -> tuple[str, str]:
    """Return a description of the error or "", and the outcome of a round."""
    one, context = round_of(number), fork_server_context()
    text = f"{number}: {one}"
    if LIMITS[one.limit] is None and not may_mount():
        return "", "left out"
    receiver, sender = context.Pipe(duplex=False)
    cache = tempfile.TemporaryDirectory(dir=root)
    process = context.Process(target=_child, args=(number, str(root), cache.name, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(TIMEOUT):
            return f"hangs; {text}", KILLED
        had, error, bad, after = receiver.recv()
    except EOFError:
        process.join()
        status = process.exitcode
        # libraries abort if they get no memory or thread at all, and so does torch's loader
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
    enough = one.limit == "files" and one.value - one.held >= ENOUGH_FILES and not one.late
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
            text, outcome = run_round(number, Path(folder))
            outcomes[f"{round_of(number).limit}: {outcome}"] += 1
            number += 1
            if text:
                wrong += 1
                print(f"# {text}", flush=True)
    print(f"{number - first} rounds: {wrong} wrong; {dict(sorted(outcomes.items()))}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
