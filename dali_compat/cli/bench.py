"""Measure how fast your data loads, and report what limits it and what to change.

A first pass over random images is not timed. Then the files of these images are read twice, from the disk and from the
page cache, with as many threads as the loader has. The time from the disk counts if the data set is larger than the
free memory, otherwise the time from the page cache. Finally, a second pass is timed. limit() in limits.py determines
the bottleneck.
"""

from __future__ import annotations

import os

import torch
from torch.utils.data import RandomSampler, Subset
from tqdm import tqdm

from dali_compat import LoaderStats
from dali_compat.cli.arguments import UsageError, add_data, add_device, dataset_class, dataset_of, device_of
from dali_compat.cli.limits import Measured, advice, limit
from dali_compat.cli.timing import Passes, SampledFiles
from dali_compat.routes import FallbackRoute, in_processes

from ..runtime.cores import usable_cores
from ..runtime.messages import in_bytes, in_columns


def add_arguments(parser) -> None:
    add_data(parser)
    parser.add_argument("--batches", type=int, default=30, help="number of timed batches (default %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="num_workers (default: the loader's choice)")
    parser.add_argument("--prefetch-factor", type=int, help="batches in flight (default: the loader's choice)")
    parser.add_argument("--exact", action="store_true", help="torchvision's pixels (exact=True)")
    add_device(parser)


def run(args) -> int:
    device = device_of(args)
    if min(args.batch_size, args.batches) < 1 or args.workers < 0:
        raise UsageError("--batch-size and --batches must be at least 1, --workers at least 0")
    if args.prefetch_factor is not None and (args.prefetch_factor < 1 or not args.workers):
        raise UsageError("--prefetch-factor must be at least 1 and needs --workers, as in torch")
    dataset = dataset_of(args)
    files = SampledFiles(dataset, args.batch_size * args.batches)
    loader = make_loader(Subset(dataset, files.indices), args, device)
    print(f"{loader.explain()}\n")
    total = 2 * (_ahead(args) + args.batches)
    with tqdm(total=total, desc="measuring", unit="batch", mininterval=0.5, leave=False, disable=None) as bar:
        passes = Passes(loader, _ahead(args), device, bar.update)
        measured, parts, stats = measure(loader, passes, files, args)

    def rate(seconds: float) -> str:
        return f"{args.batch_size / seconds:,.0f}" if seconds else "-"

    found = limit(measured)
    rows = [("", "images/s"), *((name, rate(seconds)) for name, seconds in parts.items())]
    print(f"{in_columns([*rows, ('loading', rate(measured.loading))])}")
    if stats.objects:
        waited = f"batches waited for objects {stats.network / stats.seconds:.0%} of the time"
        print(
            f"object storage: {in_bytes(stats.fetched / stats.seconds)}/s, {stats.hits:,} of {stats.objects:,} objects "
            f"from disk, {stats.retries:,} requests sent again; {waited}"
        )
    print(f"\n{found.limit}: {found.why}\n\nWhat to change:")
    print(*(f"  {tip}" for tip in advice(found.limit, measured)), sep="\n")
    loader.close()
    return 0


def make_loader(dataset, args, device: torch.device):
    """Return a loader whose epochs have ``_ahead(args)`` untimed batches, then ``args.batches`` timed ones."""
    from dali_compat import DataLoader

    prefetch = {"prefetch_factor": args.prefetch_factor} if args.prefetch_factor else {}
    sampler = RandomSampler(dataset, num_samples=(args.batches + _ahead(args)) * args.batch_size)
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        device=device,
        exact=args.exact,
        on_error=args.on_error,
        fallback="silent",
        **prefetch,
    )


def _ahead(args) -> int:
    """Return the number of untimed batches of a pass, one more than are in flight at the start of an epoch."""
    return 1 + max(2, args.workers * (args.prefetch_factor or 2))


def measure(loader, passes: Passes, files: SampledFiles, args) -> tuple[Measured, dict[str, float], LoaderStats]:
    """Measure reading and loading. Return (measurements, {part of loading: seconds per batch}, loader's statistics)."""
    from ..runtime.device import free_memory

    passes.one()  # reads every file's header
    files.leave_out({error.index for error in loader.errors})
    route = loader._route
    threads, depth = getattr(route, "threads", max(1, args.workers)), getattr(route, "depth", args.prefetch_factor or 2)
    per_batch = args.batch_size / len(files)
    files.drop()
    cold, warm = (per_batch * files.read(threads) for _ in range(2))
    encoded, free = files.bytes / files.share, free_memory(torch.device("cpu"))
    if encoded > free:
        files.drop()
    loading = passes.one()
    stock = isinstance(route, FallbackRoute)
    read = cold if encoded > free else warm
    measured = Measured(
        loading=loading.seconds,
        read=read,
        host=loading.host,
        cpu=loading.cpu,
        cores=usable_cores(),
        threads=threads,
        python=loading.waited + loading.host if in_processes(route) else 0.0,
        called=getattr(route, "why", ""),
        others=loading.others,
        path=" ".join(args.path),
        folder=os.path.isdir(args.path[0]) and dataset_class(args.path[0]) is None,
        depth=depth,
        batch_size=args.batch_size,
        workers=args.workers,
        exact=args.exact,
        gpu=passes.device.type == "cuda",
        has_gpu=torch.cuda.is_available(),
        encoded=encoded,
        free=free,
        fallback=route.reason if stock else "",
    )
    parts = {"reading, page cache dropped": cold, "reading again": warm, "Python in next() alone": loading.host}
    return measured, parts, loading.stats
