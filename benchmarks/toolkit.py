"""Question: how fast do the configs of examples/imagenet train with each loader, from a folder and from a .rec, and how
many CPU cores per GPU does that take?

Method. The toolkit itself in one process (or one per GPU, with torchrun): its options from configs/NAME.yaml, its data
sets, transforms and loaders, its training step, in eager mode unless --compile is given. For every number of --cores,
each of --sources and every config the cases take turns: "synthetic" trains on one fixed batch, "dali" and "torchvision"
are --loader of the toolkit. A turn opens its loader, takes --warmup steps (torchvision two per worker), then counts
steps for --seconds. About every tenth step it reads the loss, as the toolkit does for its progress line; in
torchvision's turns that is a multiple of its workers, which finish in bursts. The first round measures the whole table,
and further rounds repeat it until --budget ends. --json is written after every turn.

Cores. All threads of a process are limited to this number of its cores, num_workers is that number, and torch has as
many threads. With torchrun each rank has separate cores. Two cores of a virtual machine may share one hardware core:
"siblings" in the JSON is Linux's list for the first one.

Columns. waits: the share of the time in next(). Minutes per epoch: for ImageNet's 1,281,167 images at that speed,
without evaluation.

Confounders.
- All turns are in later epochs than the first, because dali_compat checks each file once: before its first turn on a
  source it runs a whole epoch, without steps. --replicate sets the number of images.
- An epoch that ends within a turn costs torchvision the start of its workers: "epochs_ended" of a row counts them.
  Choose --replicate so that none ends.
- Files come from memory; a disk can only make the loaders slower.
- cuDNN chooses its kernels in the synthetic turn, which comes first.
- A GPU's clock decreases as it warms up, so each round begins with a different loader.

All other options are the toolkit's, and override a config's: --batch-size 64 --size 160.

Commands.
    python benchmarks/toolkit.py --data PHOTOS --replicate 600 --sources folder rec --json OUT.json
    python benchmarks/toolkit.py --data PHOTOS --replicate 600 --configs resnet18 --cores 16 8 4 2 --json OUT.json
    torchrun --nproc-per-node 2 benchmarks/toolkit.py --data PHOTOS --replicate 600 --configs resnet18 --json OUT.json
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import itertools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback

import common
import torch

from dali_compat.archives.pack import pack

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "imagenet"
sys.path.insert(0, str(EXAMPLE))

import data  # noqa: E402
import options as options_  # noqa: E402
from ranks import Ranks  # noqa: E402
from train import Training  # noqa: E402

CONFIGS = ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "ghostnet", "efficientnet_b0", "vit_s_16"]
SOURCES = {"folder": "train", "rec": "train.rec"}
CASES = ["synthetic", "dali", "torchvision"]
IMAGENET = 1_281_167
LOOK = 10  # minimum number of steps: the toolkit's log_every


# ---- the machine


def available(ranks, count):
    """Return this rank's cores, out of the cores shared by the ranks of its host."""
    cores, local = sorted(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if count * local > len(cores):
        raise SystemExit(f"{local} ranks of {count} cores are more than the {len(cores)} there are")
    return set(cores[ranks.local_rank * count :][:count])


def limit_to(cores):
    """Run all present and future threads on these cores only."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cores)
    torch.set_num_threads(len(cores))


def siblings():
    """Return the cores that share the first one's hardware, from Linux; None if unknown."""
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{min(os.sched_getaffinity(0))}/topology/thread_siblings_list")
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return None


# ---- the images


@contextlib.contextmanager
def sources(args, ranks):
    """Yield a folder with train and val, and train.rec and val.rec if requested. The first rank creates and removes it.

    val is the same as train, since nothing here evaluates.
    """
    with contextlib.ExitStack() as stack:
        made = None
        if ranks.is_first:
            root = pathlib.Path(stack.enter_context(common.folder(args.data, args.replicate))).resolve()
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            made = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-toolkit-", dir=memory))
            stack.callback(shutil.rmtree, made)
            for split in ("train", "val"):
                (made / split).symlink_to(root, target_is_directory=True)
            if "rec" in args.sources:
                begin = time.perf_counter()
                pack(root, made / "train.rec")
                (made / "val.rec").symlink_to("train.rec")
                print(f"packed in {time.perf_counter() - begin:.1f} s", flush=True)
        yield ranks.gather(made)[0]
        ranks.wait()


# ---- one config


class Config:
    """The toolkit's run of a config on this rank: a model, and a loader for each case during its turn."""

    def __init__(self, name, place, cores, args, ranks, rest):
        words = ["--config", f"configs/{name}.yaml", "--out", str(place / "run"), "--data", str(place / "train")]
        words += ["--workers", str(cores), "--classes", str(common.MOST_CLASSES)]
        self.options = options_.parse([*words, "--compile" if args.compile else "--no-compile", *rest])
        self.place, self.ranks = place, ranks
        self.training = Training(self.options, ranks)
        self.training.model.plain.train()

    def loader(self, case, source):
        """Open the loader for one turn. Data sets are opened once for all configs."""
        if (case, source) == ("dali", "folder"):
            return self.training.loader
        options = dataclasses.replace(self.options, loader=case, data=str(self.place / SOURCES[source]))
        return data.loaders(options, self.ranks, *data.datasets(options))[0]

    def fixed(self):
        """Return an iterator that repeats one batch on the device forever."""
        options, device = self.options, self.ranks.device
        images = torch.randn(options.batch_size, 3, options.size, options.size, device=device)
        labels = torch.randint(common.MOST_CLASSES, (options.batch_size,), device=device)
        return itertools.repeat((images.to(memory_format=torch.channels_last), labels))


def endless(loader):
    """Yield batches of one epoch after another."""
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def timed(config, stream, every, seconds, least=0):
    """Train until ``seconds`` have passed on any rank, but for at least ``least`` steps. Return {steps, images_per_s,
    waiting, loss}."""
    training, ranks = config.training, config.ranks
    pending = torch.zeros(3, device=ranks.device)  # loss, correct answers, whether the time is over
    ranks.total(pending)  # all ranks begin together, and the GPUs are idle
    waited, begin = 0.0, time.perf_counter()
    for step in itertools.count(1):
        before = time.perf_counter()
        images, labels = next(stream)
        waited += time.perf_counter() - before
        loss, right = training.train_step(images, labels)
        pending[0] += loss
        pending[1] += right
        if step % every == 0:
            pending[2] = float(time.perf_counter() - begin >= seconds and step >= least)
            total, _, over = ranks.total(pending.clone())
            if over:
                break
    passed = time.perf_counter() - begin
    images = step * config.options.batch_size * ranks.world
    loss = total / step / ranks.world  # the mean over all ranks
    return {"steps": step, "images_per_s": images / passed, "waiting": waited / passed, "loss": loss}


def turn(config, case, source, cores, args, known):
    """Return the measurements of one turn. ``known`` contains the ids of data sets that dali_compat has read once."""
    every = LOOK if case == "synthetic" else cores * -(-LOOK // cores)
    if case == "synthetic":
        stream = config.fixed()
        timed(config, stream, every, 0, args.warmup)
        return timed(config, stream, every, args.seconds)
    loader = config.loader(case, source)
    if case == "dali" and id(loader.dataset) not in known:
        for _ in loader:
            pass
        known.add(id(loader.dataset))
    stream = endless(loader)
    try:
        before = timed(config, stream, cores, 0, 2 * cores if case == "torchvision" else args.warmup)["steps"]
        row = timed(config, stream, every, args.seconds)
        row["epochs_ended"] = (before + row["steps"] - 1) // len(loader)
        if case == "dali":
            row["plan"] = loader.explain()
    finally:
        stream.close()
        if case == "dali":
            loader.close()
    return row


# ---- all of them


def turns(args, number, source):
    """Return the cases of a round on a source: synthetic first, on the first source only, then the loaders in turn."""
    loaders = [case for case in args.cases if case != "synthetic"]
    start = number % max(1, len(loaders))
    first = ["synthetic"] if "synthetic" in args.cases and source == args.sources[0] else []
    return [*first, *loaders[start:], *loaders[:start]]


def run(args, rest, ranks, place, result):
    """Run all rounds while there is time, and append their rows to the result."""
    begin, known = time.perf_counter(), set()
    table = itertools.product(range(args.rounds), args.cores, args.sources, args.configs)
    for number, cores, source, name in table:
        config = None
        for case in turns(args, number, source):
            read = None if case == "synthetic" else source
            what = {"round": number, "cores": cores, "config": name, "source": read, "case": case}
            spent = time.perf_counter() - begin
            if ranks.gather(spent > args.budget)[0]:
                return
            if name in result["failed"]:
                continue
            faulthandler.dump_traceback_later(args.limit, exit=True)
            try:
                limit_to(args.available[cores])
                config = config or Config(name, place, cores, args, ranks, rest)
                row = turn(config, case, source, cores, args, known)
            except (Exception, SystemExit):
                if ranks.world > 1:
                    raise
                traceback.print_exc()
                result["failed"].append(name)
                continue
            finally:
                faulthandler.cancel_dump_traceback_later()
            if ranks.is_first:
                if "plan" in row:
                    result["plans"][f"{name}, {source}"] = row.pop("plan")
                result["rounds"].append({**what, "batch_size": config.options.batch_size, **row, "at": spent})
                print(common.line(result["rounds"][-1]), flush=True)
                common.write_json(args.json, result)
        if config is not None:
            config.training.loader.close()
            config.training.val_loader.close()


def report(result, args):
    """Print a row for each config, number of cores and source."""
    table = []
    for cores, name, source in itertools.product(args.cores, args.configs, args.sources):
        rows = [row for row in result["rounds"] if (row["cores"], row["config"]) == (cores, name)]
        rows = [row for row in rows if row["source"] in (source, None)]
        speed, waiting = common.medians(rows, "images_per_s"), common.medians(rows, "waiting")
        speeds = [speed[case]["median"] if case in speed else None for case in CASES]
        cells = [f"{name}, {source}", cores, *(value and f"{value:,.0f}" for value in speeds)]
        cells += [f"{waiting[case]['median']:.1%}" if case in waiting else None for case in CASES[1:]]
        cells += [value and f"{IMAGENET / value / 60:.1f}" for value in speeds[1:]]
        table.append([*cells, common.ratio(rows, "images_per_s", "dali", "torchvision")])
    header = ["config, source", "cores", *CASES, *(f"{case} waits" for case in CASES[1:])]
    header += [*(f"{case}, minutes an epoch" for case in CASES[1:]), "dali to torchvision"]
    print("\n" + common.markdown(header, table))


def parse(argv=None):
    """Return (our options, the toolkit's options)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", required=True, help="folder of images in ImageFolder layout")
    parser.add_argument("--replicate", type=int, default=0, metavar="N", help="every image N times, in memory")
    parser.add_argument("--configs", nargs="+", default=CONFIGS, choices=CONFIGS, metavar="NAME")
    parser.add_argument("--sources", nargs="+", default=["folder"], choices=list(SOURCES))
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--cores", nargs="+", type=int, help="CPU cores per GPU (default: its share of all)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="counted seconds per turn")
    parser.add_argument("--warmup", type=int, default=20, help="steps before counting starts")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no turn starts")
    parser.add_argument("--limit", type=float, default=180, help="seconds after which a turn counts as hung: it exits")
    parser.add_argument("--compile", action="store_true", help="torch.compile the models")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    return parser.parse_known_args(argv)


def main():
    args, rest = parse()
    args.cores = args.cores or [max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))]
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    data.open_dataset = functools.cache(data.open_dataset)  # all configs share the headers that were read
    ranks = Ranks(timeout=int(args.limit))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    args.available = {cores: available(ranks, cores) for cores in args.cores}
    facts = {**common.facts(), "siblings": siblings()}
    with sources(args, ranks) as place:
        settings = {key: str(value) for key, value in vars(args).items()} | {"toolkit": rest}
        result = {"benchmark": "toolkit", "facts": facts, "images": common.describe(place / "train", args.data)}
        result |= {"ranks": ranks.world, "settings": settings, "plans": {}, "failed": [], "rounds": []}
        ranks.say(f"{result['facts']}\n{result['images']}")
        run(args, rest, ranks, place, result)
    if ranks.is_first:
        report(result, args)
    ranks.leave()
    if result["failed"]:
        raise SystemExit(f"failed: {', '.join(result['failed'])}")


if __name__ == "__main__":
    main()
