"""Question: which values do the first screen of README.md and its figure have with the versions installed here?

Method. The measurements of docs/speed.svg and README.md's claims, one after another on this machine. On a GPU: loading
with its JPEG engines and without, and with 4 cores, ResNet-18 with several loaders and with a custom data set,
ResNet-50 with 2 cores, first epochs and a stream. Without a GPU: only loading. Each measurement writes a JSON file to
--out. A JSON file with another name is a further run of its configuration, and the figures are ranges over all of them.

Confounders. See the docstring of each script.

Command. On each machine; a CPU takes ten minutes, a GPU about fifteen:
    python benchmarks/readme.py --data PHOTOS --out benchmarks/results  # without a GPU: pip install turboloader
"""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).parent
OFF = "ours@DALI_COMPAT_JPEG_ENGINE=0"
OWN = "own_dataset.py --replicate 600 --train resnet18 --seconds 3 --rounds 3 --cases synthetic own:16 torch:16"
TURNS = "handwritten:4:5@hw_decoder_load=1.0"
# {name of the result: (cores, words of the command)}
ON_A_GPU = {
    "imagefolder_no_engine_{gpu}": (
        None,
        "imagefolder.py --seen --no-startup --replicate 500 --rounds 4 --seconds 3 --warmup 10 "
        f"--cases torchvision handwritten ours handwritten:16@hw_decoder_load=0.0 {OFF}",
    ),
    "training_{gpu}": (
        None,
        "training.py --seen --replicate 500 --rounds 4 --models resnet18 "
        f"--cases synthetic torchvision {TURNS} ours handwritten:16@hw_decoder_load=0.0 {OFF}",
    ),
    "toolkit_cores_{gpu}": (None, "toolkit.py --replicate 600 --configs resnet18 resnet50 --cores 16 2 --rounds 2"),
    "on_error_{gpu}": (None, "on_error.py --replicate 300 --rounds 3"),
    "own_train_{gpu}": (None, OWN),
    "own_train_later_{gpu}": (None, f"{OWN} --seen"),
    "streams_{gpu}": (
        None,
        "own_dataset.py --replicate 300 --persistent --epochs 1 --rounds 3 --cases torchstream:16 stream:16",
    ),
    "imagefolder_no_engine_4_{gpu}": (
        4,
        "imagefolder.py --seen --no-startup --replicate 300 --rounds 3 --seconds 3 --warmup 6 --workers 4 "
        f"--cases torchvision handwritten:4@hw_decoder_load=0.0 {OFF}",
    ),
}
ON_A_CPU = {
    "imagefolder_cpu": (
        2,
        "imagefolder.py --replicate 100 --workers 2 --rounds 5 --seconds 4 --warmup 2 --device cpu "
        "--cases torchvision ours handwritten turboloader",
    )
}


def commands(gpu: str | None) -> dict[str, list[str]]:
    """Return {name of a result: words of its command}; ``gpu`` is the short name of the GPU."""
    found = {}
    for name, (cores, words) in (ON_A_CPU if gpu is None else ON_A_GPU).items():
        script, *options = shlex.split(words)
        pinned = ["taskset", "-c", f"0-{cores - 1}"] if cores and cores < (os.cpu_count() or 1) else []
        found[name.format(gpu=gpu)] = [*pinned, sys.executable, str(HERE / script), *options]
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder of photos in ImageFolder's layout")
    options.add_argument("--out", type=pathlib.Path, default=HERE / "results", help="folder for the JSON files")
    options.add_argument("--only", nargs="+", help="names of results")
    args = options.parse_args()
    gpu = torch.cuda.get_device_name().split()[1].lower() if torch.cuda.is_available() else None
    failed = []
    for name, command in commands(gpu).items():
        if args.only and name not in args.only:
            continue
        command += ["--data", args.data, "--json", str(args.out / f"{name}.json")]
        print(shlex.join(command), flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all measured")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
