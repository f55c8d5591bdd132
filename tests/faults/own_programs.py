"""Random custom data sets through torch's loader and ours, in processes that may crash or hang:

    python tests/faults/own_programs.py --seconds 3600 [--seed 1] [--processes 1] [--device cuda] [--save FOLDER]
    python tests/faults/own_programs.py --program saved.py ...

Print and save the source of each wrong program, shortened, with the expected and the actual values. The exit status is
1 if any program was wrong.
"""

from __future__ import annotations

import argparse
import ast
import collections
import faulthandler
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from dali_compat.engine.dali import warm
from faults.own_compare import MEAN, Finding, Setting, compare, files_of, make_files
from faults.own_vocabulary import program
from faults.run import fork_server_context

CHUNK = 20  # programs of a process
SECONDS = 100  # a program that takes longer hangs
CRASHED, HUNG = "crashed", "hung"


class Job(NamedTuple):
    """A program, its setting, and the allowed difference of pixels without exact=True."""

    number: int
    source: str
    setting: Setting
    limit: float = MEAN


class Outcome(NamedTuple):
    job: Job
    found: tuple[Finding, ...]
    route: str = ""


def jobs_of(seed: int, device: str = "cpu") -> Iterator[Job]:
    """Yield programs endlessly, each with a setting."""
    number = seed * 1_000_000
    while True:
        rng = random.Random(f"a setting {number}")
        setting = Setting(
            exact=rng.random() < 0.6,
            workers=2 if rng.random() < 0.25 else 0,
            batch_size=rng.choice([1, 4, 5, 12]),
            shuffle=rng.random() < 0.3,
            persistent=rng.random() < 0.3,
            fallbacks=number % 4 == 0,
            device=device,
            collate=rng.random() < 0.15,
        )
        source = program(number)
        amplifies = any(word in source for word in _AMPLIFYING)
        yield Job(number, source, setting, 4 * MEAN if amplifies else MEAN)
        number += 1


# Operations that amplify a difference of one level.
_AMPLIFYING = (
    "posterize",
    "olarize",
    "quali",
    "utocontrast",
    "Aug",
    '"P"',
    '"1"',
    "NEAREST",
    "harpness",
    "ontrast",
    "V.JPEG",
)


# ---- processes

_held: list[warm.Handle] = []  # of this process


def _child(jobs: list[Job], root: str, connection, log: str) -> None:
    """Send the outcome of each program."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    if jobs[0].setting.device == "cuda":  # the JPEG engine stays open, because the driver takes long to reopen it
        _held.append(warm.Handle(torch.cuda.current_device()))
    mp.set_start_method("fork", force=True)  # for the loaders, which inherit the method of their process
    from torch.utils.data import _utils

    _utils.MP_STATUS_CHECK_INTERVAL = 0.5  # torch's loader waits this long for each worker that does not end
    files = files_of(Path(root))
    with tempfile.TemporaryDirectory(prefix="dali_compat_own_") as folder:
        for job in jobs:
            file = Path(folder) / f"program_{job.number}.py"
            file.write_text(job.source)
            connection.send(job.number)
            found, route = compare(file, files, job.setting, job.limit)
            connection.send(Outcome(job, tuple(found), route))
    connection.send(None)
    os._exit(0)


def attempt(jobs: list[Job], root: str, seconds: float = SECONDS) -> list[Outcome]:
    """Return the outcomes of some programs, up to the first crash or hang."""
    context = fork_server_context()
    receiver, sender = context.Pipe(duplex=False)
    descriptor, log = tempfile.mkstemp(prefix="dali_compat_own_")
    os.close(descriptor)
    process = context.Process(target=_child, args=(jobs, root, sender, log))
    process.start()
    sender.close()
    done: list[Outcome] = []
    why = HUNG
    try:
        while receiver.poll(seconds):
            message = receiver.recv()
            if message is None:
                return done
            if isinstance(message, Outcome):
                done.append(message)
    except EOFError:
        process.join(10)
        why = CRASHED
    finally:
        process.kill()
        process.join()
        receiver.close()
        text = Path(log).read_text(errors="replace")
        os.unlink(log)
    about = f"exit code {process.exitcode}: {_stack(text)}" if why == CRASHED else f"no answer within {seconds:.0f} s"
    return [*done, Outcome(jobs[len(done)], (Finding(why, about),))]


def _stack(log: str) -> str:
    """Return the end of a crashed process's output, which is Python's stack as printed by faulthandler."""
    lines = [line.strip() for line in log.strip().splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines) - 3)
    return " / ".join(lines[max(0, at) : at + 6])[:600]


def results(jobs: list[Job], root: str) -> list[Outcome]:
    """Return the outcomes of all programs.

    A program that crashes or hangs does not end the others. Wrong programs are tried again in a separate process.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        outcomes += attempt(jobs[len(outcomes) :], root)
    return [_confirmed(one, root) if one.found else one for one in outcomes]


def _confirmed(outcome: Outcome, root: str) -> Outcome:
    """Run a program again in a separate process.

    A crash is kept even if it does not occur again. A difference is dropped.
    """
    again = attempt([outcome.job], root)[0]
    kinds = {one.kind for one in outcome.found}
    if again.found or not kinds & {CRASHED, HUNG}:
        return again
    return outcome._replace(
        found=tuple(Finding(one.kind, one.text + " (not in a separate process)") for one in outcome.found)
    )


def hunt(jobs: Iterator[Job], root: str, seconds: float, processes: int = 1) -> Iterator[Outcome]:
    """Yield outcomes until the time or the programs end."""
    end = time.monotonic() + seconds

    def chunks() -> Iterator[list[Job]]:
        while time.monotonic() < end:
            some = [job for job, _ in zip(jobs, range(CHUNK), strict=False)]
            if not some:
                return
            yield some

    with ThreadPoolExecutor(processes) as pool:
        waiting = collections.deque()
        source = chunks()
        for _ in range(processes):
            waiting += [pool.submit(results, some, root) for some in [next(source, None)] if some]
        while waiting:
            outcomes = waiting.popleft().result()
            waiting += [pool.submit(results, some, root) for some in [next(source, None)] if some]
            yield from outcomes


# ---- the shortest program


def minimized(outcome: Outcome, root: str, seconds: float = 300) -> Outcome:
    """Return the outcome of a shorter program with the simplest setting and a finding of the same kind."""
    end = time.monotonic() + seconds
    kinds = {one.kind for one in outcome.found}

    def attempt_again(job: Job) -> Outcome | None:
        again = attempt([job], root, SECONDS if HUNG in kinds else 60)[0]
        return again if {one.kind for one in again.found} & kinds else None

    best = outcome
    for change in (dict(workers=0), dict(shuffle=False), dict(persistent=False), dict(batch_size=4)):
        if best.job.setting._replace(**change) != best.job.setting:
            best = attempt_again(best.job._replace(setting=best.job.setting._replace(**change))) or best
    best = attempt_again(best.job._replace(source=ast.unparse(ast.parse(best.job.source)))) or best
    at, before = 0, best
    while time.monotonic() < end:
        shorter = _shorter(best.job.source, at)
        if shorter is None and best is before:
            break
        if shorter is None:  # removed parts may have needed the remaining ones
            at, before = 0, best
            continue
        made = attempt_again(best.job._replace(source=shorter))
        best, at = (made, at) if made else (best, at + 1)
    return best


def _shorter(source: str, at: int) -> str | None:
    """Return the program without its ``at``-th removable part, counted from the end, or None."""
    tree = ast.parse(source)
    parts = list(_parts(tree))[::-1]
    if at >= len(parts):
        return None
    body, number, instead = parts[at]
    body[number : number + 1] = instead
    if not body and isinstance(instead, list):
        body.append(ast.Pass())
    return ast.unparse(ast.fix_missing_locations(tree))


def _parts(tree: ast.AST) -> Iterator[tuple[list, int, list]]:
    """Yield removable parts: statements, blocks around others, elements of lists."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if not isinstance(body, list):
                continue
            for number, one in enumerate(body):
                if isinstance(one, (ast.If, ast.For, ast.With, ast.Try)):
                    yield body, number, one.body
                if not isinstance(one, (ast.Return, ast.ClassDef, ast.Pass)) and getattr(one, "name", "") not in (
                    "__init__",
                    "__len__",
                    "__getitem__",
                ):
                    yield body, number, []
        if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
            for number in range(len(node.elts)):
                yield node.elts, number, []
        if isinstance(node, (ast.Import, ast.ImportFrom)) and len(node.names) > 1:
            for number in range(len(node.names)):
                yield node.names, number, []


# ---- the command


def as_program(outcome: Outcome) -> str:
    """Return a program that reproduces a finding."""
    lines = [f"# {one.kind}: {one.text}" for one in outcome.found]
    return "\n".join([f"# number {outcome.job.number}, {outcome.job.setting}", *lines, outcome.job.source])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, help="the number of the first program, instead of a seed's")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--program", type=Path, nargs="*", default=[], help="saved programs, instead of random ones")
    parser.add_argument("--whole", action="store_true", help="programs are not made shorter")
    parser.add_argument("--save", type=Path, default=Path(tempfile.gettempdir()) / "dali_compat_own_programs")
    options = parser.parse_args()
    begin, count, wrong = time.monotonic(), 0, 0
    routes: collections.Counter[str] = collections.Counter()
    jobs = jobs_of(options.seed, options.device)
    if options.first is not None:
        seed = options.first // 1_000_000
        jobs = (job for job in jobs_of(seed, options.device) if job.number >= options.first)
    if options.program:
        settings = [one._replace(device=options.device) for one in SETTINGS]
        jobs = iter([Job(at, file.read_text(), one) for at, file in enumerate(options.program) for one in settings])
    with tempfile.TemporaryDirectory(prefix="dali_compat_own_") as root:
        make_files(Path(root))
        for outcome in hunt(jobs, root, options.seconds, options.processes):
            count, wrong = count + 1, wrong + bool(outcome.found)
            routes[outcome.route or "crash"] += 1
            if outcome.found:
                shortest = outcome if options.whole else minimized(outcome, root)
                print(as_program(shortest), flush=True)
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"{outcome.job.number}.py").write_text(as_program(shortest))
    took = time.monotonic() - begin
    print(f"{count} programs, seed {options.seed}: {wrong} wrong; {dict(routes)}; {took:.0f} s")
    return int(wrong > 0)


SETTINGS = (Setting(), Setting(exact=False), Setting(workers=2))  # for saved programs


if __name__ == "__main__":
    sys.exit(main())
