"""Question: how much of a model's training speed on synthetic data remains with real images?

Method. Full training steps (forward, loss, backward, update) of one batch: bf16 autocast, channels_last, SGD with
momentum, cudnn.benchmark. One process; for each model and kind of step the cases take turns (A B C, B C A, ...) for
--rounds rounds. A turn takes --drain batches without a step, to empty a queue that filled while the loader waited for
its turn, then --warmup steps, then --steps steps that count, with the device synchronised at both ends. A share is a
turn's speed relative to synthetic's in the same round; the table has the median of shares, and their range.

Kinds of step (--kinds):
    eager         unmodified PyTorch
    compiled      torch.compile(model), and SGD with fused=True
    graphs        the same with mode="reduce-overhead": CUDA graphs. A loader's batch is a new tensor each step, which
                  torch copies into the graph's input; the synthetic batch is copied, too
    ..._item      each of them with loss.item() after every step: the thread waits for the GPU, so that no part
                  of next() is hidden

Cases: synthetic (one fixed batch on the device: the upper bound), ours, handwritten, and, if requested, torchvision
(--workers processes, pinned memory, non-blocking copies), ours_exact. cases.py describes how a name specifies threads,
batches in flight, pipelines and other arguments: handwritten:4:5@hw_decoder_load=1.0. Ours and handwritten return
channels_last batches; the loop converts torchvision's.

Models (--models): torchvision's by name, vit_s_16 (torchvision's class, the sizes of ViT-S/16), and timm's if it is
installed.

Several GPUs. torchrun starts a process for each; the model is wrapped in DistributedDataParallel, each process loads
its part of the images, and the slowest process's time counts. Synthetic runs on the same GPUs.

With --profile torch's profiler reports, after the rounds, which kernels and copies a loader adds to a step, and how
much longer the model's kernels take next to them.

Columns. next() is the time of a step's next(loader): the elapsed time, and the calling thread's processor time.

Confounders.
- Loaders stay open between their turns. Their threads sleep, but they fill their queues during the next case's first
  steps, and they keep their memory. --reopen closes them after each turn; torchvision's workers always end with it.
- All cases run with CUDA_DEVICE_MAX_CONNECTIONS=32, which dali_compat sets on import, so that only the loader
  differs. Set the variable to another number to measure its effect.
- An epoch that ends within a turn costs its loader the start of the next: --replicate makes epochs long. In a first
  epoch ours reads each file's header. With --seen, it runs a whole epoch before its first turn, so that all turns are
  in later epochs.
- torchvision's workers finish in bursts: its warm-up is at least two batches per worker, and its steps a multiple of
  workers.
- With --replicate the files come from memory; a disk can only make the loaders slower.
- On the CPU there is no autocast (bf16 convolutions are emulated); the script is only a functional test there.
- A GPU's clock decreases as it warms up; taking turns spreads that over the cases.

Table. Printed at the end in Markdown; --json has every turn, written after each. --budget ends it in time: no round
starts that would exceed it; the remaining time is divided among the remaining models and kinds.

Command.
    python benchmarks/training.py --data PHOTOS --replicate 2000 --models resnet18 resnet50 --kinds eager compiled \\
        --cases synthetic ours handwritten:4:5@hw_decoder_load=1.0 --json OUT.json
    torchrun --nproc-per-node 2 benchmarks/training.py --data PHOTOS --replicate 2000 --models resnet50 --json OUT.json
"""

import contextlib
import dataclasses
import faulthandler
import itertools
import os
import statistics
import time
import traceback

import cases
import common
import gpu_time
import loaders
import processes
import torch
import training_step

KINDS = [program + item for program in ("eager", "compiled", "graphs") for item in ("", "_item")]
BEFORE = 8  # steps on synthetic data before the first round, for compilation, recording of graphs and choice of kernels


class Source:
    """A case's batches, kept from one turn to the next."""

    def __init__(self, case, settings, seen):
        self.case, self.settings = case, dataclasses.replace(settings, workers=case.workers, depth=case.depth)
        self._seen = seen
        self.opened = self.stream = self.plan = None

    def open(self):
        if self.stream is None:
            self.opened = cases.open_case(self.case, self.settings)
            if self._seen and self.case.name.startswith("ours"):
                loaders.see(self.opened, self.settings.device)
            self.stream = loaders.endless(self.opened)
            loaders.check(next(self.stream), self.settings)
            self.plan = self.opened.explain()

    def close(self):
        if self.stream is not None:
            self.stream.close()
            self.opened.close()
            self.opened = self.stream = None
            loaders.release(self.settings.device)


def turn(source, step, item, args):
    """Return the numbers of one case's turn in this process."""
    case, device = source.case, source.settings.device
    warmup, steps, drain = args.warmup, args.steps, args.drain
    if case.name == "torchvision" and case.workers:
        warmup, steps = max(warmup, 2 * case.workers), -(-steps // case.workers) * case.workers
    if case.name in ("torchvision", "synthetic"):
        drain = 0  # a reopened loader and synthetic data have no queue
    with cases.constants(case.constants):
        source.open()
        for _ in range(drain):
            next(source.stream)
        timed(source.stream, step, item, warmup, device)
        processes.barrier(device)
        row = timed(source.stream, step, item, steps, device)
    if args.reopen or case.name == "torchvision":
        source.close()
    return {"workers": case.workers, "steps": steps, **row}


def timed(stream, step, item, steps, device):
    """Return milliseconds per step, and the part in next(): elapsed, and processor time of this thread."""
    waited = spent = 0.0
    loss = None
    loaders.synchronise(device)
    begin = time.perf_counter()
    for _ in range(steps):
        before, processor = time.perf_counter(), time.thread_time()
        images, labels = next(stream)
        waited += time.perf_counter() - before
        spent += time.thread_time() - processor
        loss = step(images, labels)
        if item:
            loss.item()
    loaders.synchronise(device)
    each = 1e3 / max(steps, 1)
    took = each * (time.perf_counter() - begin)
    loss = None if loss is None else loss.item()
    return {"ms_per_step": took, "next_ms": each * waited, "next_cpu_ms": each * spent, "loss": loss}


@contextlib.contextmanager
def going_on(what, failed):
    """Print an error and add ``what`` to ``failed``. With several processes, raise the error, since the others would
    wait."""
    try:
        yield
    except (Exception, SystemExit):
        if processes.several():
            raise
        traceback.print_exc()
        failed.append(what)


def rounds(model, program, sources, until, args, result):
    """Run turns of all cases on one model, compiled or not, while there is time, and append them to the result."""
    device = sources[args.cases[0]].settings.device
    faulthandler.dump_traceback_later(args.limit, exit=True)
    began = time.perf_counter()
    step = training_step.make_step(model, program, device, args.backend)
    fixed = loaders.endless(cases.synthetic_loader(sources[args.cases[0]].settings))
    timed(fixed, step, False, BEFORE, device)
    made = {"model": model, "program": program, "seconds": time.perf_counter() - began}
    result["models"].append(made)
    kinds = [kind for kind in args.kinds if kind.removesuffix("_item") == program]
    longest = 0.0
    for number in range(args.rounds):
        begin = time.perf_counter()
        if processes.everyones(number and begin + longest > until)[0]:
            break
        start = number % len(args.cases)
        for kind, text in itertools.product(kinds, args.cases[start:] + args.cases[:start]):
            if text in result["failed"]:
                continue
            faulthandler.dump_traceback_later(args.limit, exit=True)
            with going_on(text, result["failed"]):
                row = turn(sources[text], step, kind.endswith("_item"), args)
                row = max(processes.everyones(row), key=lambda row: row["ms_per_step"])
                images = 1e3 * args.batch_size * sources[text].settings.shards / row["ms_per_step"]
                row = {"round": number, "model": model, "kind": kind, "case": text, "images_per_s": images, **row}
                result["plans"][text] = sources[text].plan
                result["rounds"].append(row)
                keep(args, result, row)
        longest = max(longest, time.perf_counter() - begin)
    if args.profile:
        profiled(model, program, sources, fixed, step, args, result)
    if program != "eager":
        counters = torch._dynamo.utils.counters
        made["compiled_graphs"] = counters["stats"]["unique_graphs"]
        made["cudagraph_skips"] = counters["inductor"]["cudagraph_skips"]
    keep(args, result, made)


def profiled(model, program, sources, fixed, step, args, result):
    """Record the GPU work that each case adds, in result["gpu_time"]."""
    device = sources[args.cases[0]].settings.device
    alone = gpu_time.spent(lambda steps: timed(fixed, step, False, steps, device), args.profile)
    for text in args.cases:
        source = sources[text]
        if source.case.name in ("synthetic", "torchvision") or text in result["failed"]:
            continue
        with cases.constants(source.case.constants):
            source.open()
            timed(source.stream, step, False, args.warmup, device)
            stream = source.stream
            mine = gpu_time.spent(lambda steps, stream=stream: timed(stream, step, False, steps, device), args.profile)
        row = {"model": model, "program": program, "case": text, **gpu_time.added(mine, alone)}
        result["gpu_time"].append(row)
        for kernel in row["kernels"]:
            print(f"  {kernel['ms']:7.3f} ms {kernel['launches']:6.1f} launches a step  {kernel['name'][:80]}")
        keep(args, result, {key: value for key, value in row.items() if key != "kernels"})


def keep(args, result, row):
    """In the first process, print the row and write the result so far."""
    if processes.first():
        print(common.line(row), flush=True)
        common.write_json(args.json, result)


def report(result, args):
    """Print the table, and add the shares to the result's summary."""
    table, result["summary"] = [], {}
    for model, kind in itertools.product(args.models, args.kinds):
        turns = [row for row in result["rounds"] if (row["model"], row["kind"]) == (model, kind)]
        columns = [common.medians(turns, key) for key in ("images_per_s", "ms_per_step", "next_ms", "next_cpu_ms")]
        for case in columns[0]:
            shares = common.paired(turns, "images_per_s", case, "synthetic")
            share = {"median": statistics.median(shares), "min": min(shares), "max": max(shares)} if shares else None
            result["summary"][f"{model}, {kind}, {case}"] = {"share": share, "rounds": columns[0][case]["n"]}
            numbers = [
                f"{column[case]['median']:,.{digits}f}" for column, digits in zip(columns, (0, 2, 2, 2), strict=True)
            ]
            table.append([f"{model}, {kind}, {case}", *numbers, *common.spread(share, ".3f"), columns[0][case]["n"]])
    header = ["model, kind, case", "images/s", "ms a step", "ms in next()", "of it processor"]
    print("\n" + common.markdown([*header, "to synthetic", "min - max", "rounds"], table))


def options():
    options = common.parser(__doc__)
    options.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
    options.add_argument("--kinds", nargs="+", default=["eager"], choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    options.add_argument("--cases", nargs="+", default=["synthetic", "ours", "handwritten"], metavar="CASE")
    options.add_argument("--drain", type=int, default=16, help="batches taken without a step when a turn begins")
    options.add_argument("--warmup", type=int, default=16, help="steps before timing starts")
    options.add_argument("--steps", type=int, default=64, help="steps to time")
    options.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="start no later round")
    options.add_argument("--limit", type=float, default=300, help="seconds after which a turn counts as hung: it exits")
    options.add_argument("--seen", action="store_true", help="all turns are in later epochs than a loader's first")
    options.add_argument("--profile", type=int, default=0, metavar="STEPS", help="profile this many steps of each case")
    options.add_argument("--reopen", action="store_true", help="close every loader after its turn")
    options.add_argument("--backend", default="inductor", help="backend of torch.compile")
    here = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    options.set_defaults(workers=max(1, here))
    return options


def main():
    parser, begin = options(), time.perf_counter()
    args = parser.parse_args()
    try:
        for model in args.models:
            training_step.maker(model)
        parsed = {text: cases.parse(text, args.workers) for text in args.cases}
    except ValueError as error:
        parser.error(str(error))
    torch.backends.cudnn.benchmark = True
    where = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.profile and not where.startswith("cuda"):
        parser.error("--profile needs a GPU")
    with processes.joined(where) as (device, rank, size), processes.images_of(args, rank) as root:
        settings = loaders.Settings(str(root), device, args.batch_size, args.workers)
        settings = dataclasses.replace(settings, channels_last=True, shard=rank, shards=size)
        sources = {text: Source(case, settings, args.seen) for text, case in parsed.items()}
        result = {
            "benchmark": "training",
            "facts": common.facts(),
            "images": common.describe(root, args.data),
            "processes": size,
            "settings": {key: str(value) for key, value in vars(args).items()},
            "models": [],
            "plans": {},
            "failed": [],
            "gpu_time": [],
            "rounds": [],
        }
        keep(args, result, {"facts": result["facts"], "images": result["images"]})
        programs = dict.fromkeys(kind.removesuffix("_item") for kind in args.kinds)
        todo = list(itertools.product(args.models, programs))
        for done, (model, program) in enumerate(todo):
            now = time.perf_counter()
            until = now + (begin + args.budget - now) / (len(todo) - done)
            if processes.everyones(now > until)[0]:
                result["failed"].append(f"{model} {program}: no time was left")
                continue
            with going_on(f"{model} {program}", result["failed"]):
                rounds(model, program, sources, until, args, result)
            loaders.release(device)
        faulthandler.cancel_dump_traceback_later()
        if rank == 0:
            report(result, args)
            common.write_json(args.json, result)
        for source in sources.values():
            source.close()
    if result["failed"]:
        raise SystemExit(f"failed: {', '.join(result['failed'])}")


if __name__ == "__main__":
    main()
