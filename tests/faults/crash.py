"""A training that is killed at random moments and resumes from its last checkpoint each time.

    python tests/faults/crash.py --kills 100 [--device cuda] [--processes 8] [--seconds 120] [--json OUT.json]

Every run is a forked process for each rank, killed by SIGKILL. The checkpoint contains the loader's state and a record
of the samples: epoch, index, label and a checksum of the pixels. In the end, the record must equal that of an
uninterrupted run. One kill of four comes while a run starts, the others after its first batch.

A run is short, and on a GPU most of it is the start (CUDA, nvJPEG), so ``--processes`` trainings run in parallel. DATA
may name a folder of photos in ImageFolder's layout.
"""

import argparse
import contextlib
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA is initialized only in the forked processes

import numpy as np
import torch
import torch.distributed as dist
import torchvision.transforms as T
from torch.utils.data.distributed import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "benchmarks")]

from common import facts, write_json  # noqa: E402
from helpers import make_folder  # noqa: E402

from dali_compat import DALIArrayDataset, DALIImageFolder, DALIRecordIO, DataLoader, merge_states  # noqa: E402
from dali_compat.archives.pack import pack  # noqa: E402
from faults import crash_frameworks  # noqa: E402

EPOCHS, BATCH, IMAGES = 3, 4, 30
AUGMENTED = [T.RandomResizedCrop(16, antialias=True), T.RandomHorizontalFlip(), T.ToTensor()]


def noisy(image):
    """A function without a translation, which draws random numbers."""
    return image + torch.rand(())


def folder(place: Path):
    return DALIImageFolder(place / "images", T.Compose(AUGMENTED), return_index=True)


def arrays(place: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
    transform = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor()])
    return DALIArrayDataset(pixels, list(range(IMAGES)), transform)


def record(place: Path):
    return DALIRecordIO(place / "images.rec", T.Compose(AUGMENTED), return_index=True)


def function(place: Path):
    return DALIImageFolder(place / "images", T.Compose([*AUGMENTED, T.Lambda(noisy)]), return_index=True)


def fallback(place: Path):
    """Return a data set that torchvision must load."""
    dataset = folder(place)
    dataset.loader = lambda path: T.functional.to_pil_image(torch.full((3, 40, 40), len(path) % 256).byte())
    return dataset


KINDS = {"folder": folder, "arrays": arrays, "rec": record, "function": function, "fallback": fallback}


class Case(NamedTuple):
    """A training.

    Attributes:
        kind: a key of KINDS, or a framework of crash_frameworks, which trains on a folder.
        workers: number of workers of the loader.
        worlds: numbers of ranks, alternating from run to run. (1,) means no DistributedSampler.
    """

    kind: str
    workers: int
    worlds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}, {self.workers} workers, ranks {list(self.worlds)}"

    def train(self, place: Path, device: str, rank: int, world: int) -> None:
        train(place, self, device, rank, world)


CASES = [
    *(Case(kind, workers, (1,)) for kind in KINDS for workers in (0, 2)),
    Case("folder", 0, (2,)),
    Case("folder", 0, (2, 1, 3)),
    Case("arrays", 0, (2, 1, 3)),
    *(Case(kind, workers, (1,)) for kind in crash_frameworks.TRAININGS for workers in (0, 2)),
]


def train(place: Path, case: Case, device: str, rank: int, world: int) -> None:
    """Train from the checkpoint to the end."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    checkpoint = place / "checkpoint"
    if case.kind in crash_frameworks.TRAININGS:
        seen, samples = crash_frameworks.train(case.kind, place, case.workers, device, any_seed(), EPOCHS, BATCH)
        save({"seen": seen, "samples": samples}, place / "over")
        return
    before = torch.load(checkpoint) if checkpoint.exists() else None
    torch.manual_seed(0 if before is None else any_seed())
    dataset = KINDS[case.kind](place)
    sampler = own = None
    if case.worlds != (1,):
        sampler = DistributedSampler(dataset, world, rank)
        # not the global generator: steps draw from it, and their number depends on that of the ranks
        own = torch.Generator().manual_seed(0)
    loader = DataLoader(
        dataset, BATCH, sampler is None, sampler, num_workers=case.workers, device=device, generator=own
    )
    epoch, seen = 0, []
    if before is not None:
        loader.load_state_dict(before["loader"])
        epoch, seen = before["epoch"], before["seen"]
    while epoch < EPOCHS:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels, *indices in loader:
            torch.rand(3)  # like dropout
            indices = indices[0] if indices else labels
            sums = [zlib.crc32(image.numpy().tobytes()) for image in images.cpu()]
            mine = [(epoch, *row) for row in zip(indices.tolist(), labels.tolist(), sums, strict=True)]
            parts = _gathered((mine, loader.state_dict()), world)
            seen += [row for rows, _ in parts for row in rows]
            if rank == 0:
                state = merge_states([state for _, state in parts])
                save({"loader": state, "epoch": epoch, "seen": seen}, checkpoint)
        epoch += 1
        states = _gathered(loader.state_dict(), world)
        if rank == 0:
            save({"loader": merge_states(states), "epoch": epoch, "seen": seen}, checkpoint)
    if rank == 0:
        save({"seen": seen, "samples": len(dataset)}, place / "over")


def any_seed() -> int:
    """Return a random seed, which must not matter to a resumed process."""
    return random.SystemRandom().getrandbits(30)


def _gathered(mine, world: int) -> list:
    if world == 1:
        return [mine]
    parts = [None] * world
    dist.all_gather_object(parts, mine)
    return parts


def save(what, path: Path) -> None:
    torch.save(what, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


class RunResult(NamedTuple):
    """The result of one run.

    Attributes:
        ended: True if the run came to its end, False if it was killed.
        first: seconds to its first checkpoint, or None.
        took: total seconds.
    """

    ended: bool
    first: float | None
    took: float


class Moment(NamedTuple):
    """A time, ``seconds`` after the first checkpoint of a run or after its start."""

    after_a_batch: bool
    seconds: float


def start(place: Path, case: Case, device: str, rank: int, world: int) -> int:
    """Start a process that trains, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        if world > 1:
            dist.init_process_group("gloo", f"file://{place}/store{_runs}", rank=rank, world_size=world)
        case.train(place, device, rank, world)
        code = 0
    except BaseException:
        (place / f"error of rank {rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


_runs = 0


def run(place: Path, case: Case, device: str, world: int, kill: Moment | None) -> RunResult:
    """Train, and kill all ranks at that moment."""
    global _runs
    _runs += 1
    file, first = place / "checkpoint", None
    before = _version_of(file)
    begin = time.monotonic()
    pids = {start(place, case, device, rank, world) for rank in range(world)}
    while pids:
        pids -= {pid for pid in pids if os.waitpid(pid, os.WNOHANG) != (0, 0)}
        now = time.monotonic() - begin
        if first is None and _version_of(file) not in (before, [], None):
            first = now
        since = first if kill is not None and kill.after_a_batch else 0
        if pids and kill is not None and since is not None and now > since + kill.seconds:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                with contextlib.suppress(ProcessLookupError):  # a worker that has not seen its parent yet survives
                    os.killpg(pid, signal.SIGKILL)
            return RunResult(False, first, now)
        time.sleep(0.002)
    if not (place / "over").exists():
        raise RuntimeError("\n".join(path.read_text() for path in place.glob("error of rank *")))
    return RunResult(True, first, time.monotonic() - begin)


def _version_of(checkpoint: Path) -> object:
    """Return a value that changes with every checkpoint, or None if there is none."""
    try:
        return sorted(map(str, checkpoint.glob("step-*"))) if checkpoint.is_dir() else checkpoint.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def take_record(place: Path) -> tuple[list, int]:
    """Return the record of a finished training, and the number of samples. Remove its files."""
    over = torch.load(place / "over")
    (place / "over").unlink()
    shutil.rmtree(place / "checkpoint") if (place / "checkpoint").is_dir() else (place / "checkpoint").unlink()
    return over["seen"], over["samples"]


class KillCounts(NamedTuple):
    """The result of killing trainings.

    Attributes:
        kills: number of kills.
        after_a_batch: number of kills after the first checkpoint of a run.
        trainings: number of trainings that were killed, resumed to their end, and compared.
        checksum: checksum of the record of the uninterrupted run.
    """

    kills: int
    after_a_batch: int
    trainings: int
    checksum: int


def check(place: Path, case: Case, device: str, kills: int, seed: int, until: float) -> KillCounts:
    """Compare interrupted runs with one uninterrupted run.

    ``until`` is the time.monotonic() after which no run is killed.

    Raises:
        AssertionError: their records differ.
    """
    rng = random.Random(seed)
    uninterrupted = run(place, case, device, case.worlds[0], None)
    whole, samples = take_record(place)
    assert len({(epoch, index) for epoch, index, *_ in whole}) == EPOCHS * samples
    started = uninterrupted.first or 0.0
    killed = after_a_batch = trainings = 0
    while killed < kills and time.monotonic() < until:
        for world in cycle(case.worlds):
            moment = None
            if killed < kills and time.monotonic() < until:
                later = rng.random() < 0.75
                most = (uninterrupted.took - started) / 3 if later else started  # several kills for each training
                moment = Moment(later, rng.uniform(0, most))
            went = run(place, case, device, world, moment)
            if went.ended:
                break
            killed += 1
            after_a_batch += went.first is not None
        compare(whole, take_record(place)[0], samples, max(case.worlds))
        trainings += 1
    return KillCounts(killed, after_a_batch, trainings, zlib.crc32(repr(whole).encode()))


def compare(whole: list, seen: list, samples: int, world: int) -> None:
    """Compare two records.

    For one rank, the rows must be equal and in the same order. For several ranks, each sample must occur once in an
    epoch with the same pixels, except for the last ones that a DistributedSampler repeats.
    """
    if world == 1:
        assert seen == whole, _difference(whole, seen)
        return
    first = {}
    for row in seen:
        first.setdefault(row[:2], row)
    expected = {}
    for row in whole:
        expected.setdefault(row[:2], row)
    wrong = [(row, expected.get(key)) for key, row in first.items() if row != expected.get(key)]
    assert not wrong and first.keys() == expected.keys(), (len(wrong), wrong[:3])
    assert len(seen) <= EPOCHS * (samples + world - 1)


def _difference(whole: list, seen: list) -> str:
    row = next((row for row, (a, b) in enumerate(zip(whole, seen, strict=False)) if a != b), min(len(whole), len(seen)))
    return f"{len(seen)} rows of {len(whole)}; from row {row} on: {seen[row : row + 3]} for {whole[row : row + 3]}"


def prepare(place: Path) -> None:
    if "DATA" in os.environ:
        (place / "images").symlink_to(Path(os.environ["DATA"]).resolve())
    else:
        make_folder(place / "images", classes=3, per_class=IMAGES // 3, low=40, high=60)
    pack(place / "images", place / "images.rec")


def make_place(place: Path, number: int) -> Path:
    """Return a folder for one of several parallel trainings with the same images."""
    made = place / str(number)
    made.mkdir(exist_ok=True)
    for name in ("images", "images.rec"):
        if not (made / name).exists():
            (made / name).symlink_to(place / name)
    return made


def check_in_parallel(
    pool: ProcessPoolExecutor, place: Path, case: Case, device: str, kills: int, processes: int, seed: int, until: float
) -> KillCounts:
    """Distribute the kills of check() among processes. The uninterrupted runs must have equal records, too."""
    shares = [kills // processes + (number < kills % processes) for number in range(processes)]
    jobs = [
        pool.submit(check, make_place(place, number), case, device, share, seed + number, until)
        for number, share in enumerate(shares)
        if share
    ]
    found = [job.result() for job in jobs]
    assert len({one.checksum for one in found}) == 1, "uninterrupted trainings differ"
    return KillCounts(*(sum(column) for column in zip(*(one[:3] for one in found), strict=True)), found[0].checksum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each case")
    parser.add_argument("--seed", type=int, default=any_seed(), help="of the moments")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose text has one of these")
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--processes", type=int, help="trainings side by side (default: 1; on a GPU 8)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of kills, in all, shared among cases")
    parser.add_argument("--json", type=Path, help="write what was found here")
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    processes = options.processes or (1 if device == "cpu" else 8)
    chosen = [case for case in CASES if any(part in str(case) for part in options.only)]
    for case in chosen:  # before processes are forked
        if case.kind in crash_frameworks.TRAININGS:
            crash_frameworks.import_framework(case.kind)
    settings = {"device": device, "processes": processes, "seed": options.seed, "kills of each case": options.kills}
    result: dict = {"benchmark": "crash", "facts": facts(), "arguments": settings, "rounds": []}
    print(f"--seed {options.seed}, {device}", flush=True)
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as made,
        ProcessPoolExecutor(processes, mp.get_context("fork")) as pool,
    ):
        prepare(Path(made))
        for number, case in enumerate(chosen, 1):
            since, until = time.monotonic(), begin + options.seconds * number / len(chosen)
            found = check_in_parallel(pool, Path(made), case, device, options.kills, processes, options.seed, until)
            took = time.monotonic() - since
            entry = {"round": 0, "case": str(case), **found._asdict(), "seconds": round(took, 1)}
            result["rounds"].append(entry)
            write_json(options.json, result)
            print(
                f"{case}: the same after {found.kills} kills ({found.after_a_batch} of them after a batch)"
                f" of {found.trainings} trainings, {took:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
