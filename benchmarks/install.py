"""Question: how much does install() cost a program whose loaders do not load images?

Method. Each measurement is a separate process; the cases take turns over --rounds rounds. "torch": without install().
"install": with it. "install, torchvision": with it, and torchvision.datasets imported, as in programs with image
models, so that every loader's data set is inspected. A script imports torch, creates --loaders loaders over a data set
of strings, and iterates over one epoch of --samples strings with num_workers=0. The processor time of a loader (in
microseconds), of the epoch, and of the whole script are measured, and the threads at its end are counted. python starts
the script without install(), and run with it.

Confounders.
- Starting and importing torch take seconds, and vary with the page cache, so the first start of each case is not
  counted.

Command.
    python benchmarks/install.py --rounds 5 --json OUT.json
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import common

CASES = ["torch", "install", "install, torchvision"]
SCRIPT = """
import json, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
if sys.argv[3] == "install, torchvision":
    import torchvision.datasets

class Texts(Dataset):
    def __len__(self):
        return int(sys.argv[2])
    def __getitem__(self, index):
        return f"text {index}"

texts, count = Texts(), int(sys.argv[1])
DataLoader(texts)
begin = time.process_time()
for _ in range(count):
    DataLoader(texts, 32)
made = (time.process_time() - begin) / count
loader = DataLoader(texts, 32, shuffle=True)
begin = time.process_time()
for _ in loader:
    pass
taken = time.process_time() - begin
print(json.dumps({"us_a_loader": 1e6 * made, "epoch_s": taken, "threads": threading.active_count()}))
"""


def measure(case, args):
    with tempfile.TemporaryDirectory() as place:
        script = pathlib.Path(place) / "texts.py"
        script.write_text(SCRIPT)
        run = [] if case == "torch" else ["-m", "dali_compat", "run", "--fallback", "error"]
        command = [sys.executable, *run, str(script), str(args.loaders), str(args.samples), case]
        root = pathlib.Path(__file__).resolve().parents[1]
        begin = _of_children()
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)}
        )
        assert not done.stderr, done.stderr
        return {**json.loads(done.stdout), "program_s": _of_children() - begin}


def _of_children():
    """Return the processor time of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--loaders", type=int, default=1000)
    options.add_argument("--samples", type=int, default=50_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    args = options.parse_args()
    for case in CASES:
        measure(case, args)
    rounds = []
    for number, case in common.in_turn(CASES, args.rounds):
        rounds.append({"round": number, "case": case, **measure(case, args)})
        print(rounds[-1], flush=True)
    for key in ("us_a_loader", "epoch_s", "program_s"):
        print(key, common.medians(rounds, key))
    if args.json:
        common.write_json(args.json, {**common.facts(), "rounds": rounds})


if __name__ == "__main__":
    main()
