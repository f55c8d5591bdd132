"""Measure how fast your data loads, alone and beside a synthetic step, what limits it, and what to change.

What is loaded are batches of random images of the data set, each once before anything is timed. Loading alone, the step
alone and both together are timed over the same number of batches. On a GPU the step is a row of matrix products, as
many as take so long; on the CPU it sleeps, as if another device were at work. The bytes of the same files are read
alone, too, with the loader's number of threads: from the disk, where the system follows the request to drop them from
its memory, and again. What counts is the former where the data set is larger than the free memory. The rules by which
a limit is named are those of limit() and limit_beside() in dali_compat/cli/limits.py.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils.data import RandomSampler, Subset

from dali_compat.cli.chart import Bar, save_bars
from dali_compat.cli.check import TABLE, add_options, archive_class, open_table
from dali_compat.cli.limits import Beside, Measured, Setting, advice, limit, limit_beside
from dali_compat.cli.parity import transform_of
from dali_compat.plan import table
from dali_compat.routes.choose import StockRoute, in_python

RECIPES = {"train": "ImageNet, training", "eval": "ImageNet, evaluation"}
SIDE = 2048  # of the matrices of a GPU's step
LOOKED_AT = 64  # images whose size is looked up, for what all take when decoded
LOADS, STEPS, ALONE = "#1b7f4d", "#9aa5b1", "#2f6fb0"


def add_arguments(parser) -> None:
    parser.add_argument(
        "path", nargs="+", metavar="FOLDER", help="of class folders of images; or a table or an archive, as check"
    )
    add_options(parser)
    parser.add_argument(
        "--transform",
        default="train",
        metavar="SPEC",
        help="train or eval (ImageNet's, the default is train), or as parity's: module:name, file.py:name, or an "
        "expression of T (torchvision.transforms) and v2",
    )
    parser.add_argument(
        "--step",
        type=float,
        nargs="+",
        metavar="MS",
        help="length of the synthetic step in milliseconds, one or several (default: half, once and twice what loading "
        "a batch takes)",
    )
    parser.add_argument("--batch-size", type=int, help="images in a batch (default 256 on a GPU, 64 on the CPU)")
    parser.add_argument("--batches", type=int, default=30, help="how many are timed in each case (default %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="num_workers (default: the loader's choice)")
    parser.add_argument("--prefetch-factor", type=int, help="batches in flight (default: the loader's choice)")
    parser.add_argument("--exact", action="store_true", help="exact=True")
    parser.add_argument("--cache", type=_budget, help="cache=: bytes, or a share of the free memory, such as 0.5")
    parser.add_argument("--device", help="where batches go: cpu, cuda, cuda:1 (default: the GPU if there is one)")
    parser.add_argument(
        "--out", default="dali_compat_bench.png", help="where to save the chart (default ./%(default)s)"
    )


def run(args) -> int:
    """Measure, print what limits and what to change, save the chart. Returns 0."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.batch_size is None:
        args.batch_size = 256 if device.type == "cuda" else 64
    if min(args.batch_size, args.batches) < 1 or args.workers < 0 or min(args.step or [1]) <= 0:
        raise SystemExit("bench: --batch-size and --batches start at 1, --workers at 0, and --step is above 0")
    dataset = open_dataset(args)
    files = Files(dataset, args.batch_size * args.batches)
    loader = make_loader(Subset(dataset, files.indices), args, device)
    print(f"{loader.explain()}\n")
    measured, setting, speeds = measure(loader, files, args, device)
    found = limit(measured)
    rows = [("", "images/s", "what limits"), *speeds.rows, ("loading alone", speeds.rate(measured.alone), found.limit)]
    limits, bars = [found], speeds.bars(measured.alone)
    for milliseconds in args.step or [500 * measured.alone, 1000 * measured.alone, 2000 * measured.alone]:
        beside = measure_beside(loader, milliseconds, args, device)
        verdict = limit_beside(measured, beside)
        limits.append(verdict)
        rate = f"{speeds.rate(beside.together)} of {speeds.rate(beside.step)}"
        rows.append((f"beside a step of {1e3 * beside.step:.1f} ms", rate, verdict.limit))
        bars += speeds.bars_beside(beside)
    print(table(rows))
    print(f"\n{memory(device)}\n")
    for verdict in dict.fromkeys(limits):
        print(f"{verdict.limit}: {verdict.why}")
    print("\nWhat to change:")
    for name in dict.fromkeys(verdict.limit for verdict in limits):
        for line in advice(name, setting):
            print(f"  {name}: {line}")
    save_bars(args.out, f"{setting.path}: images/s, batch {args.batch_size}", bars, f"alone, {found.limit} limits")
    print(f"\nchart: {os.path.abspath(args.out)}")
    loader.close()
    return 0


# ---- what is measured


class Files:
    """Random samples of a data set, and where their bytes are.

    Attributes:
        indices: of the samples, at most so many.
        bytes: of all of them.
        share: they are this share of the data set.
    """

    def __init__(self, dataset, most: int):
        self._dataset = dataset
        self.indices = random.Random(0).sample(range(len(dataset)), min(most, len(dataset)))
        self.share = len(self.indices) / len(dataset)
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.indices)

    def drop(self) -> None:
        """Ask the system to forget the files' contents. Archives are mapped, and stay."""
        for index in self.indices:
            source = self._source(index)
            if isinstance(source, str) and hasattr(os, "posix_fadvise"):
                file = os.open(source, os.O_RDONLY)
                try:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)

    def read(self, threads: int) -> float:
        """Seconds that reading all of them takes."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            self.bytes = sum(pool.map(self._read, self.indices))
        return time.perf_counter() - begin

    def pixels(self) -> int:
        """Bytes of all of them when decoded, estimated from some."""
        from dali_compat.data.sources import opened

        chosen, total = self.indices[:LOOKED_AT], 0
        for index in chosen:
            with opened(self._source(index)) as file, Image.open(file) as image:
                total += 3 * image.width * image.height
        return total * len(self) // len(chosen)

    def _read(self, index: int) -> int:
        from dali_compat.data.sources import Parts

        with Parts(self._source(index)) as parts:
            return len(parts.read(parts.size, 0))

    def _source(self, index: int) -> Any:
        from dali_compat.archives.archive import Archive
        from dali_compat.data.sources import Record

        archive = isinstance(self._dataset, Archive)
        return Record(self._dataset, index) if archive else self._dataset.samples[index][0]


class Pass(NamedTuple):
    """Seconds for a batch: all, the calling thread's processor time in next(), and all processor time."""

    seconds: float
    host: float
    cpu: float


class Speeds:
    """Seconds for a batch as images/s, in rows and bars."""

    def __init__(self, batch_size: int, cold: float, warm: float, host: float):
        self._batch_size = batch_size
        self._parts = {"reading, memory asked to forget": cold, "reading again": warm, "the host's part alone": host}

    def rate(self, seconds: float) -> str:
        return f"{self._batch_size / seconds:,.0f}" if seconds else "-"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        return [(name, self.rate(seconds), "") for name, seconds in self._parts.items()]

    def bars(self, alone: float) -> list[Bar]:
        """Of loading alone. Its parts are text, for some are a hundred times as fast."""
        return [self._bar("loading alone", alone, ALONE)]

    def bars_beside(self, beside: Beside) -> list[Bar]:
        name = f"{1e3 * beside.step:.1f} ms step"
        return [
            self._bar(f"{name}, synthetic", beside.step, STEPS),
            self._bar(f"{name}, loaded", beside.together, LOADS),
        ]

    def _bar(self, name: str, seconds: float, color: str) -> Bar:
        return Bar(name, self._batch_size / seconds, self.rate(seconds), color)


def open_dataset(args):
    """The data set that the path names, with the transform."""
    import dali_compat
    from dali_compat.archives.paths import expand
    from dali_compat.parity.catalogue import RECIPES as CATALOGUE

    known = RECIPES.get(args.transform)
    transform = CATALOGUE[known].made("v1") if known else transform_of(args.transform, "bench")
    try:
        files = expand(args.path)
        kinds = {archive_class(file) for file in files}
        if kinds == {None} and len(files) == 1:
            dataset: Any = dali_compat.DALIImageFolder(files[0], transform)
        elif len(kinds) == 1 and None not in kinds:
            kind, options = kinds.pop() or "", dict(args.option)
            if kind == "DALILMDB":
                options.setdefault("labels", 0)
            if kind == TABLE:
                dataset = open_table(files, options, transform=transform)
            else:
                dataset = getattr(dali_compat, kind)(args.path, transform, **options)
        else:
            raise ValueError("neither one folder, nor a CSV table, nor archives of one kind")
    except (OSError, ImportError, TypeError, ValueError) as error:
        raise SystemExit(f"bench: {' '.join(args.path)}: {error}") from None
    if not len(dataset):
        raise SystemExit(f"bench: {' '.join(args.path)}: no images")
    return dataset


def make_loader(dataset, args, device: torch.device):
    """Of batches enough for a pass."""
    from dali_compat import DataLoader

    prefetch = {"prefetch_factor": args.prefetch_factor} if args.prefetch_factor else {}
    if prefetch and not args.workers:
        raise SystemExit("bench: --prefetch-factor needs --workers, as in torch")
    sampler = RandomSampler(dataset, num_samples=(args.batches + _ahead(args)) * args.batch_size)
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        device=device,
        exact=args.exact,
        cache=args.cache,
        fallback="silent",
        **prefetch,
    )


def _ahead(args) -> int:
    """Batches that are not timed: those in flight when an epoch begins, and one more."""
    return 1 + max(2, args.workers * (args.prefetch_factor or 2))


def measure(loader, files: Files, args, device: torch.device) -> tuple[Measured, Setting, Speeds]:
    """Reading, and loading alone."""
    from dali_compat.engine.device import free_memory

    one_pass(loader, args, device)  # which looks at every file's header
    route = loader._route
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, depth = getattr(route, "threads", max(1, args.workers)), getattr(route, "depth", args.prefetch_factor or 2)
    per_batch = args.batch_size / len(files)
    files.drop()
    cold, warm = (per_batch * files.read(threads) for _ in range(2))
    encoded, free = files.bytes / files.share, free_memory(torch.device("cpu"))
    if encoded > free:
        files.drop()
    alone = one_pass(loader, args, device)
    stock = isinstance(route, StockRoute)
    read = cold if encoded > free else warm
    measured = Measured(alone.seconds, read, alone.host, alone.cpu, cores, threads, device.type == "cuda")
    setting = Setting(
        path=" ".join(args.path),
        folder=os.path.isdir(args.path[0]) and archive_class(args.path[0]) is None,
        cores=cores,
        threads=threads,
        depth=depth,
        batch_size=args.batch_size,
        exact=args.exact,
        gpu=measured.gpu,
        gpu_there=torch.cuda.is_available(),
        encoded=encoded,
        decoded=files.pixels() / files.share,
        free=free,
        cached=args.cache is not None,
        fallback=route.reason if stock else "",
        python=() if stock else tuple(in_python(route)),
    )
    return measured, setting, Speeds(args.batch_size, cold, warm, alone.host)


def measure_beside(loader, milliseconds: float, args, device: torch.device) -> Beside:
    """A step alone, and with batches of the loader."""
    step = synthetic_step(milliseconds, device)
    begin = time.perf_counter()
    for _ in range(args.batches):
        step(None)
    _synchronize(device)
    alone = (time.perf_counter() - begin) / args.batches
    return Beside(alone, one_pass(loader, args, device, step).seconds)


def one_pass(loader, args, device: torch.device, step: Callable[[Any], None] | None = None) -> Pass:
    """Iterate once; timed from where the batches that were in flight at the beginning are gone."""
    ahead, begin, cpu = _ahead(args), 0.0, 0.0
    for number, batch in enumerate(loader, 1):
        if step is not None:
            step(batch[0])
        if number == ahead:
            _synchronize(device)
            loader.stats(reset=True)
            begin, cpu = time.perf_counter(), _processor_time()
    _synchronize(device)
    seconds, stats = time.perf_counter() - begin, loader.stats(reset=True)
    return Pass(*(value / stats.batches for value in (seconds, stats.host, _processor_time() - cpu)))


def synthetic_step(milliseconds: float, device: torch.device) -> Callable[[Any], None]:
    """A function that takes a batch's images, or None, and keeps the device busy for about so long."""
    if device.type != "cuda":
        return lambda images: time.sleep(milliseconds / 1e3)
    a, out = (torch.randn(SIDE, SIDE, device=device, dtype=torch.float16) for _ in range(2))

    def multiply(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    multiply(64)  # its clock rises
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    multiply(256)
    end.record()
    end.synchronize()
    count = max(1, round(256 * milliseconds / begin.elapsed_time(end)))

    def step(images) -> None:
        if isinstance(images, torch.Tensor) and images.numel():
            out.view(-1)[0] = images[(0,) * images.ndim]  # not before the batch is there
        multiply(count)

    return step


def memory(device: torch.device) -> str:
    """What this process has held at most, and what of the GPU is in use, by whomever."""
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = f"memory: {peak / 1e6:,.0f} MB of the host at most"
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        text += f"; {(total - free) / 1e6:,.0f} MB of the GPU in use, by all processes"
    return text


def _processor_time() -> float:
    """Of this process, and of those that it has waited for."""
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _budget(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)
