"""Measure how fast your data loads, with and without a synthetic step, what limits it, and what to change.

Batches are made of random images of the data set. Each image is loaded once before the timing. Loading, the step, and
both together are timed over the same number of batches. On a GPU, the step is a series of matrix products that takes
the given time; on the CPU it sleeps, as if another device were busy. Reading the bytes of the same files is also timed,
with the loader's number of threads: first from the disk, if the system drops them from the page cache as requested, and
then again. The first time counts if the data set is larger than the free memory. limit() and limit_beside() of
dali_compat/cli/limits.py determine the bottleneck.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import RandomSampler, Subset
from tqdm import tqdm

from dali_compat import LoaderStats
from dali_compat.cli.arguments import (
    UsageError,
    add_data,
    add_device,
    budget,
    dataset_class,
    dataset_of,
    device_of,
    try_to_write,
)
from dali_compat.cli.limits import BUSY, Bottleneck, Measured, advice, limit, limit_beside, shares
from dali_compat.cli.timing import Passes, SampledFiles, memory
from dali_compat.routes import StockRoute, in_processes

from ..runtime.cores import usable_cores
from ..runtime.messages import in_bytes, in_columns

STEPS = (0.5, 1, 2)  # multiples of the time that loading a batch takes


def add_arguments(parser) -> None:
    add_data(parser)
    parser.add_argument(
        "--step",
        type=float,
        nargs="+",
        metavar="MS",
        help="length of the synthetic step in milliseconds, one or several (default: half, once and twice what loading "
        "a batch takes)",
    )
    parser.add_argument("--batches", type=int, default=30, help="how many are timed in each case (default %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="num_workers (default: the loader's choice)")
    parser.add_argument("--prefetch-factor", type=int, help="batches in flight (default: the loader's choice)")
    parser.add_argument("--exact", action="store_true", help="exact=True")
    parser.add_argument("--out", metavar="PAGE", help="write an HTML page, too, with a chart of what limits")
    parser.add_argument("--cache", type=budget, help="cache=: bytes, or a share of the free memory, such as 0.5")
    add_device(parser)


def run(args) -> int:
    """Measure, with a progress bar on stderr, and print the bottlenecks and recommendations. Return 0."""
    device = device_of(args)
    if min(args.batch_size, args.batches) < 1 or args.workers < 0 or min(args.step or [1]) <= 0:
        raise UsageError("--batch-size and --batches start at 1, --workers at 0, and --step is above 0")
    if args.prefetch_factor is not None and (args.prefetch_factor < 1 or not args.workers):
        raise UsageError("--prefetch-factor starts at 1 and needs --workers, as in torch")
    if args.out:
        try_to_write(args.out)
    dataset = dataset_of(args)
    files = SampledFiles(dataset, args.batch_size * args.batches)
    loader = make_loader(Subset(dataset, files.indices), args, device)
    print(f"{loader.explain()}\n")
    whole, count = _ahead(args) + args.batches, len(args.step or STEPS)
    batches = 2 * whole + count * (args.batches + whole)
    with tqdm(total=batches, desc="measuring", unit="batch", mininterval=0.5, leave=False, disable=None) as bar:
        passes = Passes(loader, args.batches, _ahead(args), device, bar.update)
        measured, parts, stats = measure(loader, passes, files, args)
        steps = args.step or [1000 * share * measured.alone for share in STEPS]
        beside_steps = [passes.beside(milliseconds) for milliseconds in steps]

    def rate(seconds: float) -> str:
        return f"{args.batch_size / seconds:,.0f}" if seconds else "-"

    found = [limit(measured)]
    rows = [("", "images/s", "what limits"), *((name, rate(seconds), "") for name, seconds in parts.items())]
    rows.append(("loading alone", rate(measured.alone), found[0].limit))
    for beside in beside_steps:
        found.append(limit_beside(measured, beside))
        both = f"{rate(beside.together)} of {rate(beside.step)}"
        rows.append((f"beside a step of {1e3 * beside.step:.1f} ms", both, found[-1].limit))
    print(f"{in_columns(rows)}\n\n{memory(device)}")
    if stats.objects:
        waited = f"batches waited {stats.network / stats.seconds:.0%} of the time"
        print(
            f"object storage: {in_bytes(stats.fetched / stats.seconds)}/s, {stats.hits:,} of {stats.objects:,} objects "
            f"from disk, {stats.retries:,} requests sent again; {waited}"
        )
    print()
    for one in dict.fromkeys(found):
        print(f"{one.limit}: {one.why}")
    limits = dict.fromkeys(one.limit for one in found)
    tips = [f"{name}: {line}" for name in limits for line in advice(name, measured)]
    print("\n".join(["\nWhat to change:", *(f"  {tip}" for tip in tips)]))
    if args.out:
        made = page(measured.path, measured, found, rows, tips, loader.explain(wide=True))
        Path(args.out).write_text(made, encoding="utf-8")
        print(f"\npage: {Path(args.out).absolute()}")
    loader.close()
    return 0


def make_loader(dataset, args, device: torch.device):
    """Return a loader with enough batches for a pass."""
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
        cache=args.cache,
        on_error=args.on_error,
        fallback="silent",
        **prefetch,
    )


def _ahead(args) -> int:
    """Return the number of untimed batches: those in flight at the start of an epoch, and one more."""
    return 1 + max(2, args.workers * (args.prefetch_factor or 2))


def measure(loader, passes: Passes, files: SampledFiles, args) -> tuple[Measured, dict[str, float], LoaderStats]:
    """Measure reading, and loading without a step. Also returns the seconds of parts of loading a batch, and the
    loader's counts."""
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
    alone = passes.one()
    stock = isinstance(route, StockRoute)
    read = cold if encoded > free else warm
    measured = Measured(
        alone=alone.seconds,
        read=read,
        host=alone.host,
        cpu=alone.cpu,
        cores=usable_cores(),
        threads=threads,
        python=alone.waited + alone.host if in_processes(route) else 0.0,
        called=getattr(route, "why", ""),
        others=alone.others,
        path=" ".join(args.path),
        folder=os.path.isdir(args.path[0]) and dataset_class(args.path[0]) is None,
        depth=depth,
        batch_size=args.batch_size,
        workers=args.workers,
        exact=args.exact,
        gpu=passes.device.type == "cuda",
        gpu_there=torch.cuda.is_available(),
        encoded=encoded,
        decoded=files.pixels() / files.share,
        free=free,
        cached=args.cache is not None,
        fallback=route.reason if stock else "",
    )
    parts = {"reading, page cache dropped": cold, "reading again": warm, "Python in next() alone": alone.host}
    return measured, parts, alone.stats


_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
.bar{background:#8b949e44;border-radius:3px;position:relative;height:1.3rem}
.bar div{background:#2f81d6;height:100%;border-radius:3px}.bar.limits div{background:#c9510c}
.bar::after{content:"";position:absolute;left:BUSY;top:-2px;bottom:-2px;border-left:2px dashed currentColor}
.row{display:grid;grid-template-columns:11rem 1fr 3.5rem;gap:.7rem;align-items:center;margin:.3rem 0}
.row span:last-child{text-align:right}td,th{padding:.1rem .8rem .1rem 0;text-align:left}
table{overflow-x:auto;display:block}
@media(max-width:30rem){.row{grid-template-columns:7.5rem 1fr 3rem;font-size:.85rem}}
"""


def page(
    name: str, measured: Measured, found: list[Bottleneck], rows: list[tuple[str, str, str]], tips: list[str], plan: Any
) -> str:
    """Return the HTML page. ``rows`` are those of the printed table, ``plan`` is the result of explain()."""
    of_time = shares(measured)
    highest = max(of_time, key=lambda one: of_time[one])
    bars = "".join(
        f'<div class="row"><span>{escape(what)}</span><div class="bar{" limits" * (what == highest and part >= BUSY)}">'
        f'<div style="width:{min(part, 1):.1%}"></div></div><span>{part:.0%}</span></div>'
        for what, part in of_time.items()
    )
    why = "".join(f"<li><b>{escape(one.limit)}</b>: {escape(one.why)}</li>" for one in dict.fromkeys(found))
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    change = "".join(f"<li>{escape(tip)}</li>" for tip in tips)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{escape(name)}</title>
<style>{_STYLE.replace("BUSY", f"{BUSY:.0%}")}</style>
<h1>The bottleneck of {escape(name)}: {escape(found[0].limit)}</h1>
<p>Shares of the time from one batch to the next, loading alone. What reaches {BUSY:.0%} limits; where
nothing does, it is the decoder.</p>
{bars}<ul>{why}</ul><h2>Speed</h2><table>{table}</table><h2>What to change</h2><ul>{change}</ul>
<h2>What runs where</h2>{plan._repr_html_()}</html>
"""
