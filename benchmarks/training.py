"""Question: how much of a model's training speed on synthetic data is left when real images feed it?

Method. ResNet-18 and ResNet-50, bf16 autocast, channels_last, SGD with momentum, cudnn.benchmark: full steps
(forward, loss, backward, update) of one batch. The cases take turns (A B C, B C A, ...) for --rounds rounds; every
measurement is a process of its own, so that none inherits another's memory, threads or CUDA context. After --warmup
steps it times --steps steps, with the device synchronised at both ends. Ratios are ratios of medians over rounds,
with the range of the ratios within one round in brackets.

Cases: synthetic (one fixed batch on the device: the ceiling), torchvision (--workers processes, pinned memory, copies
that do not block), ours, and, if asked for, handwritten, ours_exact and ours_channels_last (also by
--channels-last-loader: the loader hands over channels_last batches; otherwise the loop converts them). NAME:K runs a
case with K workers, NAME:K:D with D batches in flight.

Confounders.
- All cases run with CUDA_DEVICE_MAX_CONNECTIONS=32, which dali_compat sets on import, so that only the loader
  differs. Set the variable to another number to see what that does.
- The synthetic batch is channels_last already; the loaders' batches are converted by the loop, about .1 ms a step.
- torchvision's workers finish in bursts: its warm-up is at least two batches a worker, and its steps a multiple of
  workers.
- With --replicate the files come from memory; a disk can only make the loaders slower.
- On the CPU there is no autocast (bf16 convolutions are emulated): there the script only shows that it works.
- The clock of a GPU falls as it warms; turns spread that over the cases.

Table. Printed at the end in Markdown; --json has every round. results/README.md keeps the committed ones.

Command.
    python benchmarks/training.py --data PHOTOS --replicate 2000 --rounds 3 --json OUT.json
"""

import argparse
import itertools
import json
import subprocess
import sys
import time

import common
import loaders
import torch
import torchvision

CLASSES = 1000


def synthetic_loader(settings, data):
    images = torch.randn(settings.batch_size, 3, loaders.CROP, loaders.CROP, device=settings.device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (settings.batch_size,), device=settings.device)
    return loaders.Opened(lambda: itertools.repeat((images, labels)), lambda: None)


def measure(args):
    """One case, in this process: images a second of full training steps."""
    name, workers, depth = common.split_case(args.case, args.workers)
    device = torch.device(args.device)
    settings = loaders.Settings(args.data, device, args.batch_size, workers, depth)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, args.model)(num_classes=CLASSES)
    model = model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = torch.nn.CrossEntropyLoss()

    def step(images, labels):
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    open_loader = synthetic_loader if name == "synthetic" else loaders.OPEN[name]
    opened = open_loader(settings, loaders.dataset(name, args.data))
    stream = loaders.endless(opened)
    warmup, steps = args.warmup, args.steps
    if name == "torchvision" and workers:
        warmup, steps = max(warmup, 2 * workers), -(-steps // workers) * workers
    loaders.check(next(stream), settings)
    for _ in range(warmup):
        step(*next(stream))
    loaders.synchronise(device)
    begin = time.perf_counter()
    for _ in range(steps):
        loss = step(*next(stream))
    loaders.synchronise(device)
    elapsed = time.perf_counter() - begin
    row = {
        "workers": workers,
        "images_per_s": steps * settings.batch_size / elapsed,
        "ms_per_step": 1e3 * elapsed / steps,
        "steps": steps,
        "warmup_steps": warmup,
        "loss": loss.item(),
        "plan": opened.explain(),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        row["device_mib_in_use"] = (total - free) >> 20
    stream.close()
    opened.close()
    return row


def in_own_process(args, model, case, root, device):
    """Run measure() in a fresh interpreter; it prints the row as a line of JSON."""
    command = [sys.executable, __file__, "--data", str(root), "--model", model, "--case", case, "--device", device]
    for name in ("batch_size", "workers", "warmup", "steps"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=args.limit)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        raise SystemExit(f"{model} {case} failed with status {done.returncode}\n{done.stdout}")
    return rows[-1] if done.returncode == 0 else {**rows[-1], "exit_status": done.returncode}


def report(result, models, cases):
    table = []
    result["summary"] = {}
    for model in models:
        rounds = [row for row in result["rounds"] if row["model"] == model]
        speed = common.medians(rounds, "images_per_s")
        result["summary"][model] = speed
        for case in cases:
            share = common.ratio(rounds, "images_per_s", case, "synthetic")
            table.append([f"{model}, {case}", *common.spread(speed.get(case), ",.0f"), share])
    print("\n" + common.markdown(["model, case", "images/s", "min - max", "to synthetic"], table))


def main():
    options = common.parser(__doc__)
    options.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
    options.add_argument("--cases", nargs="+", default=["synthetic", "torchvision", "ours"], metavar="NAME[:K[:D]]")
    options.add_argument("--channels-last-loader", action="store_true", help="add the case ours_channels_last")
    options.add_argument("--warmup", type=int, default=24, help="steps before timing starts")
    options.add_argument("--steps", type=int, default=96, help="steps to time")
    options.add_argument("--limit", type=float, default=180, help="seconds after which a measurement counts as hung")
    options.add_argument("--case", help=argparse.SUPPRESS)
    options.add_argument("--model", help=argparse.SUPPRESS)
    options.set_defaults(rounds=3)
    args = options.parse_args()
    if args.case:
        print(json.dumps(measure(args)))
        return
    cases = args.cases + ["ours_channels_last"] * args.channels_last_loader
    unknown = {case.partition(":")[0] for case in cases} - {"synthetic", *loaders.OPEN}
    if unknown:
        options.error(f"unknown cases {sorted(unknown)}; there are synthetic, {', '.join(loaders.OPEN)}")
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")

    with common.folder(args.data, args.replicate) as root:
        result = {
            "benchmark": "training",
            "facts": common.facts(),
            "images": common.describe(root, args.data),
            "settings": {key: str(value) for key, value in vars(args).items()},
            "plans": {},
            "rounds": [],
        }
        print(result["facts"], result["images"], sep="\n", flush=True)
        turns = list(common.in_turn(cases, args.rounds))
        for model, (number, case) in itertools.product(args.models, turns):
            row = {"round": number, "model": model, "case": case, **in_own_process(args, model, case, root, device)}
            plan = row.pop("plan")
            if plan:
                result["plans"][case] = plan
            result["rounds"].append(row)
            print(common.line(row), flush=True)
            common.write_json(args.json, result)
        report(result, args.models, cases)
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
