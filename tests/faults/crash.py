"""A training that is killed at random moments, and goes on from its last checkpoint each time.

    python tests/faults/crash.py --kills 100

Every run is a forked process, one for each rank, ended by SIGKILL. Its checkpoint has the loader's state and what it
has seen: epoch, index, label and a checksum of the pixels of every sample. In the end that is what a run without an
interruption has seen.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torchvision.transforms as T
from torch.utils.data.distributed import DistributedSampler

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from helpers import make_folder  # noqa: E402

from dali_compat import DALIArrayDataset, DALIImageFolder, DALIRecordIO, DataLoader, merge_states  # noqa: E402
from dali_compat.archives.pack import pack  # noqa: E402

EPOCHS, BATCH, IMAGES = 3, 4, 30
AUGMENTED = [T.RandomResizedCrop(16, antialias=True), T.RandomHorizontalFlip(), T.ToTensor()]


def noisy(image):
    """A function without a translation, which draws."""
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
    """torchvision does the work."""
    dataset = folder(place)
    dataset.loader = lambda path: T.functional.to_pil_image(torch.full((3, 40, 40), len(path) % 256).byte())
    return dataset


DATA = {"folder": folder, "arrays": arrays, "rec": record, "function": function, "fallback": fallback}


def train(place: Path, kind: str, workers: int, rank: int, world: int, ranks: bool) -> None:
    """From the checkpoint to the end. ``ranks``: a DistributedSampler, whatever the number of ranks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    checkpoint = place / "checkpoint"
    before = torch.load(checkpoint) if checkpoint.exists() else None
    torch.manual_seed(0 if before is None else random.SystemRandom().getrandbits(30))
    dataset = DATA[kind](place)
    sampler = DistributedSampler(dataset, world, rank) if ranks else None
    own = (
        torch.Generator().manual_seed(0) if ranks else None
    )  # steps draw from the global one as often as there are some
    loader = DataLoader(dataset, BATCH, sampler is None, sampler, num_workers=workers, device="cpu", generator=own)
    epoch, seen = 0, []
    if before is not None:
        loader.load_state_dict(before["loader"])
        epoch, seen = before["epoch"], before["seen"]
    while epoch < EPOCHS:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels, *indices in loader:
            torch.rand(3)  # as dropout does
            indices = indices[0] if indices else labels
            sums = [zlib.crc32(image.numpy().tobytes()) for image in images]
            mine = [(epoch, *row) for row in zip(indices.tolist(), labels.tolist(), sums, strict=True)]
            parts = _gathered((mine, loader.state_dict()), world)
            seen += [row for rows, _ in parts for row in rows]
            if rank == 0:
                state = merge_states([state for _, state in parts])
                _save({"loader": state, "epoch": epoch, "seen": seen}, checkpoint)
        epoch += 1
        states = _gathered(loader.state_dict(), world)
        if rank == 0:
            _save({"loader": merge_states(states), "epoch": epoch, "seen": seen}, checkpoint)
    if rank == 0:
        _save({"seen": seen}, place / "over")


def _gathered(mine, world: int) -> list:
    if world == 1:
        return [mine]
    parts = [None] * world
    dist.all_gather_object(parts, mine)
    return parts


def _save(what, path: Path) -> None:
    torch.save(what, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def start(place: Path, kind: str, workers: int, rank: int, world: int, ranks: bool) -> int:
    """The id of a process that trains."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        if world > 1:
            dist.init_process_group("gloo", f"file://{place}/store{_runs}", rank=rank, world_size=world)
        train(place, kind, workers, rank, world, ranks)
        code = 0
    except BaseException:
        (place / f"error of rank {rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


_runs = 0


def run(place: Path, kind: str, workers: int, world: int, ranks: bool, after: float | None) -> bool:
    """Trains; kills after so many seconds. Whether it had ended by then."""
    global _runs
    _runs += 1
    pids = [start(place, kind, workers, rank, world, ranks) for rank in range(world)]
    end = None if after is None else time.monotonic() + after
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and os.waitpid(pid, os.WNOHANG) != (0, 0):
                codes[pid] = 1
        if end is not None and time.monotonic() > end and len(codes) < len(pids):
            for pid in [pid for pid in pids if pid not in codes]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return False
        time.sleep(0.002)
    if not (place / "over").exists():
        raise RuntimeError("\n".join(path.read_text() for path in place.glob("error of rank *")))
    return True


def stream(place: Path) -> list:
    seen = torch.load(place / "over")["seen"]
    for name in ("over", "checkpoint"):
        (place / name).unlink()
    return seen


def check(place: Path, kind: str, workers: int, worlds: list[int], kills: int, rng: random.Random) -> int:
    """Runs with interruptions against one without; gives how often it was killed.

    Raises:
        AssertionError: they have not seen the same.
    """
    ranks = worlds != [1]
    begin = time.monotonic()
    run(place, kind, workers, worlds[0], ranks, None)
    whole, took = stream(place), time.monotonic() - begin
    assert len({(epoch, index) for epoch, index, *_ in whole}) == EPOCHS * IMAGES
    killed = 0
    while killed < kills:
        for world in cycle(worlds):
            if run(place, kind, workers, world, ranks, rng.uniform(0, 1.2 * took) if killed < kills else None):
                break
            killed += 1
        compare(whole, stream(place), max(worlds))
    return killed


def compare(whole: list, seen: list, world: int) -> None:
    """One rank: the same rows in the same order. Several: each sample once in an epoch, but for the last ones that a
    DistributedSampler repeats, and with the same pixels."""
    if world == 1:
        assert seen == whole
        return
    first = {}
    for row in seen:
        first.setdefault(row[:2], row)
    expected = {}
    for row in whole:
        expected.setdefault(row[:2], row)
    wrong = [(row, expected.get(key)) for key, row in first.items() if row != expected.get(key)]
    assert not wrong and first.keys() == expected.keys(), (len(wrong), wrong[:3])
    assert len(seen) <= EPOCHS * (IMAGES + world - 1)


def prepare(place: Path) -> None:
    make_folder(place / "images", classes=3, per_class=IMAGES // 3, low=40, high=60)
    pack(place / "images", place / "images.rec")


def cases() -> list[tuple[str, int, list[int]]]:
    """(data, workers, numbers of ranks by turns)."""
    return [
        *((kind, workers, [1]) for kind in DATA for workers in (0, 2)),
        ("folder", 0, [2]),
        ("folder", 0, [2, 1, 3]),
        ("arrays", 0, [2, 1, 3]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of each case")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose text has one of these")
    arguments = parser.parse_args()
    seed = random.SystemRandom().getrandbits(30) if arguments.seed is None else arguments.seed
    print(f"--seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as made:
        prepare(Path(made))
        for kind, workers, worlds in cases():
            text = f"{kind}, {workers} workers, ranks {worlds}"
            if any(part in text for part in arguments.only):
                begin = time.monotonic()
                killed = check(Path(made), kind, workers, worlds, arguments.kills, random.Random(seed))
                print(f"{text}: the same after {killed} kills, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
