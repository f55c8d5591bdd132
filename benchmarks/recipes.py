"""Question: which accuracy, seconds per epoch, and share of next() do the recipes of examples/ have with dali_compat's
loader, and with torchvision's?

Method. Every run is the example itself, in a separate process, as users start it. Loaders take turns within each of
--seeds seeds, which set weights, order and augmentation. The values are read from the example's output: the seconds
and images/s of each epoch, the last accuracy, and the loader.stats() of dali_compat's loader. All other options are
the example's.

Confounders. In a loader's first epoch worker processes or pipelines start, and cuDNN chooses its kernels; look at the
later ones, too. GPU training is not deterministic to the last bit.

Commands.
    python benchmarks/recipes.py cifar10 --data cifar --seeds 3 --json OUT.json
    python benchmarks/recipes.py dogs_cats PetImages/cleaned --from-scratch --seeds 3 --json OUT.json

--any-md5 lets cifar10 read CIFAR-10 from files with another order, as cifar10_data.py writes them.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys

import common

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
EPOCH = re.compile(r"^epoch \d+: (?:loss [\d.]+, )?([\d.]+) s, ([\d,]+) images/s", re.MULTILINE)
ACCURACY = re.compile(r"accuracy ([\d.]+)")
SHARE = re.compile(r"next\(\) took [\d.]+ s \((\d+)%\)")

ANY_MD5 = """
import runpy, sys
import torchvision.datasets
from cifar10_data import CIFAR10
torchvision.datasets.CIFAR10 = CIFAR10
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(recipe: str, loader: str, seed: int, rest: list[str], any_md5: bool = False) -> dict:
    """Run an example. Return "seconds" and "images_per_s" of each epoch, the last "accuracy", and "in_next" or None."""
    script = [*(["-c", ANY_MD5] if any_md5 else []), str(EXAMPLES / f"{recipe}.py")]
    command = [sys.executable, *script, *rest, "--loader", loader, "--seed", str(seed)]
    path = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"{recipe}.py {' '.join(rest)} ended with {done.returncode}")
    print(done.stdout, flush=True)
    epochs = EPOCH.findall(done.stdout)
    share = SHARE.search(done.stdout)
    return {
        "seconds": [float(seconds) for seconds, _ in epochs],
        "images_per_s": [float(rate.replace(",", "")) for _, rate in epochs],
        "accuracy": float(ACCURACY.findall(done.stdout)[-1]),
        "in_next": int(share[1]) / 100 if share else None,
    }


def report(result, cases):
    rows = []
    for case in cases:
        of_case = [row for row in result["rounds"] if row["case"] == case]
        first = [row["seconds"][0] for row in of_case]
        later = [seconds for row in of_case for seconds in row["seconds"][1:]] or first
        accuracies = [f"{row['accuracy']:.4f}" for row in of_case]
        rows.append([case, f"{statistics.median(first):.2f}", f"{statistics.median(later):.2f}", ", ".join(accuracies)])
    print("\n" + common.markdown(["loader", "first epoch, s", "later epochs, s", "accuracy of each seed"], rows))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recipe", choices=["cifar10", "dogs_cats"])
    options.add_argument("--cases", nargs="+", default=["torchvision", "dali_compat"])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    options.add_argument("--any-md5", action="store_true", help="do not compare CIFAR-10's checksums")
    args, rest = options.parse_known_args()
    result = {
        "benchmark": "recipes",
        "facts": common.facts(),
        "settings": {"recipe": args.recipe, "options": rest},
        "rounds": [],
    }
    print(result["facts"], flush=True)
    for seed, case in common.in_turn(args.cases, args.seeds):
        result["rounds"].append({"round": seed, "case": case, **run(args.recipe, case, seed, rest, args.any_md5)})
        common.write_json(args.json, result)
    report(result, args.cases)


if __name__ == "__main__":
    main()
