"""Damaged images through torchvision and through our loader, in processes that may crash:

    python tests/faults/run.py --files 100000 [--device cuda] [--engine] [--seed 1] [--save FOLDER] [--photos FOLDER]

On a GPU every other process uses exact=True. With --engine all of them do, and also the GPU's JPEG engine. Print the
disagreements and a table, and save the files. The exit status is 1 if there was a disagreement.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing as mp
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from faults.compare import AGREED, CRASHED, MEANING, PIXELS, FileResult, compare, write
from faults.mutations import mutated
from faults.originals import originals

CHUNK = 500  # files of a process
SECONDS = 240  # a process that sends nothing for so long hangs
_MODES = ("whole", "window")


class Job(NamedTuple):
    """Some files of a seed and the options of compare(). ``numbers`` is for mutated(), ``engine`` for compare()."""

    numbers: tuple[int, ...]
    seed: int
    device: str
    window: bool
    photos: str | None = None
    engine: bool = False


class Outcome(NamedTuple):
    job: Job
    number: int
    name: str
    found: FileResult


def _child(job: Job, connection) -> None:
    """Write the job's files and send the result of each."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # decoders print messages about damaged files
    os.environ["DALI_COMPAT_JPEG_ENGINE"] = str(int(job.engine))
    known, names = originals(job.photos), {}
    with tempfile.TemporaryDirectory(prefix="dali_compat_faults_") as root:
        for number in job.numbers:
            name, data = mutated(known, job.seed, number)
            names[f"{number}.img"] = number, name
            write(Path(root) / f"class_{number % 3}" / f"{number}.img", data)
        exact = job.device == "cpu" or job.engine or job.numbers[0] // CHUNK % 2 == 0
        damaged = {file for file, (_, name) in names.items() if not name.startswith("whole of ")}
        how = {"exact": exact, "window": job.window, "damaged": damaged, "engine": job.engine}
        for found in compare(Path(root), job.device, **how):
            connection.send(Outcome(job, *names[found.file], found))
    connection.send(None)


def fork_server_context() -> mp.context.ForkServerContext:
    """Return a context whose server has imported slow modules. It does not know the folder of the tests."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        ["torchvision.transforms.v2", "nvidia.dali.fn", "nvidia.dali.plugin.base_iterator", "dali_compat.loader"]
    )
    return context


def _attempt(job: Job) -> tuple[list[Outcome], bool]:
    """Return the outcomes that the job's process sent, and True if it ended normally."""
    context = fork_server_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, sender))
    process.start()
    sender.close()
    found = []
    try:
        while receiver.poll(SECONDS):
            message = receiver.recv()
            if message is None:
                return found, True
            found.append(message)
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
        receiver.close()
    return found, False


def results(job: Job) -> list[Outcome]:
    """Return the outcome of every file. If a process crashes, halves of the remaining files are tried recursively."""
    done, well = _attempt(job)
    if well:
        return done
    left = sorted(set(job.numbers) - {outcome.number for outcome in done})
    if len(left) == 1:
        name, _ = mutated(originals(job.photos), job.seed, left[0])
        return [*done, Outcome(job, left[0], name, FileResult(name, CRASHED))]
    halves = left[: len(left) // 2], left[len(left) // 2 :]
    return done + [outcome for half in halves if half for outcome in results(job._replace(numbers=tuple(half)))]


def hunt(
    count: int, seed: int, device: str = "cpu", processes: int = 2, photos: str | None = None, engine: bool = False
) -> Iterator[Outcome]:
    """Yield outcomes. Alternate chunks are decoded whole and by windows; with an ``engine``, all by windows, because it
    returns images of one size."""
    jobs = [
        Job(
            tuple(range(begin, min(begin + CHUNK, count))),
            seed,
            device,
            engine or begin // CHUNK % 4 >= 2,
            photos,
            engine,
        )
        for begin in range(0, count, CHUNK)
    ]
    with ThreadPoolExecutor(processes) as pool:
        for outcomes in pool.map(results, jobs):
            yield from outcomes


def table(outcomes: Iterable[Outcome]) -> str:
    """Return a table of the files tried, agreed, and disagreed by format."""
    counted: dict[str, collections.Counter] = {}
    differences = [outcome.found for outcome in outcomes if outcome.found.outcome == PIXELS]
    for outcome in outcomes:
        kind = outcome.name.rsplit(".", 1)[1]
        counted.setdefault(kind, collections.Counter())[outcome.found.outcome] += 1
    total = sum(counted.values(), collections.Counter())
    lines = [f"{'format':8}{'tried':>8}{'agreed':>8}" + "".join(f"{kind:>10}" for kind in MEANING)]
    for kind, counts in [*sorted(counted.items()), ("all", total)]:
        row = f"{kind:8}{sum(counts.values()):8}{counts[AGREED]:8}"
        lines.append(row + "".join(f"{counts[outcome]:10}" for outcome in MEANING))
    lines += [f"{kind}: {meaning}" for kind, meaning in MEANING.items()]
    if differences:
        mean, largest = max(found.mean for found in differences), max(found.max for found in differences)
        lines.append(f"other pixels by up to {mean:.3g} levels on average, and by {largest:.0f}")
    return "\n".join(lines)


def _save(outcome: Outcome, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name, data = mutated(originals(outcome.job.photos), outcome.job.seed, outcome.number)
    (folder / f"{outcome.found.outcome} {outcome.job.seed}-{outcome.number} {name}").write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", action="store_true", help="the GPU's JPEG engine decodes")
    parser.add_argument("--processes", type=int, default=2, help="each with a CUDA context of its own on a GPU")
    parser.add_argument("--photos", help="a folder; some of its JPEGs are damaged, too")
    save = Path(tempfile.gettempdir()) / "dali_compat_faults"
    parser.add_argument("--save", type=Path, default=save, help="a folder for what disagrees")
    options = parser.parse_args()
    begin, outcomes = time.monotonic(), []
    chosen = options.files, options.seed, options.device, options.processes, options.photos, options.engine
    for outcome in hunt(*chosen):
        outcomes.append(outcome)
        if outcome.found.outcome != AGREED:
            mode = _MODES[outcome.job.window]
            print(f"{outcome.number} ({mode}) {outcome.found.outcome}: {outcome.name} {outcome.found.text[:100]} "
                  f"mean {outcome.found.mean:.3g} max {outcome.found.max:.0f}", flush=True)  # fmt: skip
            _save(outcome, options.save)
    print(table(outcomes))
    wrong = sum(outcome.found.outcome != AGREED for outcome in outcomes)
    saved = f", saved in {options.save}" if wrong else ""
    took = time.monotonic() - begin
    print(f"{len(outcomes)} files, seed {options.seed}, {options.device}: {wrong} disagreed{saved}; {took:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
