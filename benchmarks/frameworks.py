"""Question: how fast do the examples of five frameworks train with dali_compat's loader, and what share of that time
does next() take?

Method. Each example runs as users start it, in a separate process, one after another; --rounds repeats all. The script
reads images/s of training and the share for each epoch from the lines of loader.stats() in its output. For Hugging
Face, it reads the line of install(verbose=True), which is for all epochs together, and for Ray, the line of the first
worker's last epoch. The training photos are those of --data in a folder in memory, --replicate times; the validation
photos are --data, once.

With --processes 2 torchrun starts Accelerate's example, and Ray has two workers; the others use one GPU. The processes
of an example together have as many threads as the host has cores. A rate is that of one process.

Confounders. In the first epoch pipelines start and cuDNN chooses its kernels, so look at the later ones.

Commands.
    python benchmarks/frameworks.py --data PHOTOS --replicate 100 --json OUT.json
    python benchmarks/frameworks.py --data PHOTOS --replicate 100 --processes 2 --only accelerate_loop ray_train
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import common

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
STATS = re.compile(r"\(([\d,]+) images/s\); next\(\) took [\d.]+ s \(([\d.]+)%\)")
PRINTED = {  # for an epoch: images/s, and the percentage of next(); for Ray its share
    "ignite_trainer": STATS,
    "lightning_classifier": STATS,
    "accelerate_loop": STATS,
    "huggingface_trainer": re.compile(r"images \(([\d,]+) images/s\), ([\d.]+)% of the time waited for data"),
    "ray_train": re.compile(r"last epoch: .*'images_per_second': ([\d.]+), 'waited': ([\d.]+)"),
}


def command(name: str, photos: pathlib.Path, processes: int, rest: list[str]) -> list[str]:
    script, workers = [str(EXAMPLES / f"{name}.py"), str(photos), *rest], len(os.sched_getaffinity(0))
    if name == "ray_train":  # Ray divides the host's threads itself
        return [sys.executable, *script, "--workers", str(processes)]
    if name != "accelerate_loop":
        return [sys.executable, *script, "--workers", str(workers)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(torchrun if processes > 1 else []), *script, "--workers", str(workers // processes)]


def run(name: str, photos: pathlib.Path, processes: int, rest: list[str]) -> dict:
    """Run an example. Return {"images_per_s": rates, "in_next": shares}, one per epoch, from its output."""
    started, both = command(name, photos, processes, rest), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with tempfile.TemporaryDirectory() as place:  # for checkpoints
        done = subprocess.run(started, cwd=place, text=True, **both)
    epochs = PRINTED[name].findall(done.stdout)
    if done.returncode or not epochs:
        raise SystemExit(
            f"{done.stdout}\n{name}.py ended with {done.returncode}; its output has figures of {len(epochs)} epochs"
        )
    whole = 1 if name == "ray_train" else 100
    return {
        "images_per_s": [float(rate.replace(",", "")) for rate, _ in epochs],
        "in_next": [float(share) / whole for _, share in epochs],
    }


def report(result, names):
    table = []
    for name in names:
        rows = [row for row in result["rounds"] if row["case"] == name]
        rates, shares = ([row[key][-1] for row in rows] for key in ("images_per_s", "in_next"))
        table.append([name, f"{statistics.median(rates):,.0f}", f"{statistics.median(shares):.1%}"])
    print("\n" + common.markdown(["example", "images/s of the last epoch", "next()"], table))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, type=pathlib.Path, help="folder of images in ImageFolder layout")
    options.add_argument("--replicate", type=int, default=0, metavar="N", help="use every image N times, in memory")
    options.add_argument("--only", nargs="+", choices=PRINTED, default=list(PRINTED))
    options.add_argument(
        "--processes", type=int, default=1, help="number of processes for Accelerate and Ray (default %(default)s)"
    )
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    args, rest = options.parse_known_args()
    with common.folder(args.data, args.replicate) as root, tempfile.TemporaryDirectory() as made:
        result = common.begun("frameworks", args, options=rest, images=common.describe(root, args.data))
        photos = pathlib.Path(made)
        for split, folder in (("train", root), ("val", args.data)):
            (photos / split).symlink_to(pathlib.Path(folder).resolve(), target_is_directory=True)
        for number, name in common.in_turn(args.only, args.rounds):
            row = {"round": number, "case": name, **run(name, photos, args.processes, rest)}
            result["rounds"].append(row)
            print(row, flush=True)
            common.write_json(args.json, result)
    report(result, args.only)


if __name__ == "__main__":
    main()
