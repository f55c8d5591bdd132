"""Question: is one checkout of dali_compat slower than another?

Method. One process for each checkout, both running all the time, opens every case once and loads --warmup seconds of
batches. Then the checkouts take turns, case by case, for --rounds rounds of --seconds seconds. The order within a pair
alternates, and one process waits while the other loads. The unit is images per second, and ratios are within a pair.

Cases: folder (ImageNet's training transform), exact (the same, exact=True), own (a Dataset that opens and transforms,
in the calling thread), arrays (50,000 images of 32 x 32 on the device: crop, flip), first (new data sets of a folder,
each to the end of its first epoch), eager and compiled (a ResNet-18 that trains from folder, in bfloat16).

Confounders.
- The waiting process keeps its memory and idle threads.
- A turn of `first` has as many starts of pipelines as epochs; the epochs of the other cases end within turns, as in
  normal use.
- The scripts of this folder drive both checkouts, through public names only.

Command.
    git worktree add /tmp/before COMMIT
    python benchmarks/checkouts.py /tmp/before . --data PHOTOS --replicate 600 --rounds 5 --json OUT.json
Without the JPEG engine and on few cores: DALI_COMPAT_JPEG_ENGINE=0 taskset -c 0-3 python ...
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import common

CASES = "folder", "exact", "own", "arrays", "first", "eager", "compiled"
FIRST_FILES = 8000  # files of a data set in case `first`


def opened(case, root, args):
    """Return a function that loads batches for some seconds and returns the number of images."""
    import loaders
    import numpy as np
    import own_dataset
    import torch
    import torchvision.transforms as T
    import training_step

    import dali_compat

    device = loaders.device_of(args)
    settings = loaders.Settings(str(root), device, args.batch_size, args.workers)

    def data():
        return loaders.dataset("ours", root)

    if case == "exact":
        loader = loaders.ours_exact(settings, data())
    elif case == "own":
        samples = loaders.dataset("torchvision", root).samples
        settings = loaders.Settings(str(root), device, args.batch_size, 0)
        loader = loaders.ours_loader(settings, own_dataset.Own(samples, loaders.transform()))
    elif case == "arrays":
        pixels = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), np.uint8)
        small = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
        arrays = dali_compat.DALIArrayDataset(pixels, np.arange(50_000) % 10, transform=T.Compose(small))
        loader = loaders.ours_loader(settings, arrays)
    elif case == "first":
        some = np.random.default_rng(0).permutation(len(data()))[:FIRST_FILES].tolist()
        loader = None
    else:
        loader = loaders.ours_loader(settings, data())

    def first():
        while True:
            fresh = loaders.ours_loader(settings, torch.utils.data.Subset(data(), some))
            yield from fresh.epoch()
            fresh.close()

    stream = first() if loader is None else loaders.endless(loader)
    step = training_step.make_step("resnet18", case, device, "inductor") if case in CASES[5:] else lambda *_: None

    def turn(seconds):
        images, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            batch = next(stream)
            step(*batch)
            images += len(batch[1])
        loaders.synchronise(device)
        return images / (time.perf_counter() - begin)

    return turn


def serve(root, args):
    """Read lines of "case seconds" from stdin, and answer each with images per second."""
    answers, sys.stdout = sys.stdout, sys.stderr  # keep what libraries print out of the answers
    turns = {}
    for line in sys.stdin:
        case, seconds = line.split()
        if case not in turns:
            turns[case] = opened(case, root, args)
        print(json.dumps(turns[case](float(seconds))), file=answers, flush=True)


class Checkout:
    """A process that runs the package of one checkout."""

    def __init__(self, path, root):
        self.name = path
        command = [sys.executable, __file__, *sys.argv[1:], "--serve", str(root)]
        paths = [str(pathlib.Path(path).resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, case, seconds):
        self.process.stdin.write(f"{case} {seconds}\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name} has ended")
        return json.loads(line)


def report(result, args):
    rows = []
    for case in args.cases:
        mine = [{**row, "case": row["checkout"]} for row in result["rounds"] if row["of"] == case]
        speed, (before, since) = common.medians(mine, "images_per_s"), args.checkouts
        if len(speed) == 2:
            ratios = common.paired(mine, "images_per_s", since, before)
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.2f} - {max(ratios):.2f})"
            rows.append([case, *(common.spread(speed[name], ",.0f")[0] for name in (before, since)), spread])
    print("\n" + common.markdown(["case", *args.checkouts, "ratio within a round"], rows))


def compare(args):
    with common.folder(args.data, args.replicate) as root:
        checkouts = [Checkout(path, root) for path in args.checkouts]
        commits = {path: common.commit_of(path) for path in args.checkouts}
        result = common.begun("checkouts", args, images=common.describe(root, args.data), commits=commits)
        for case in args.cases:
            for checkout in checkouts:
                checkout.ask(case, args.warmup)
            print("warm", case, [checkout.answer() for checkout in checkouts], flush=True)
        for number in range(args.rounds):
            for case in args.cases:
                for checkout in checkouts[:: -1 if number % 2 else 1]:
                    checkout.ask(case, args.seconds)
                    row = {"round": number, "of": case, "checkout": checkout.name, "images_per_s": checkout.answer()}
                    result["rounds"].append(row)
                    print(common.line(row), flush=True)
            common.write_json(args.json, result)
        for checkout in checkouts:
            checkout.process.stdin.close()
        report(result, args)


def main():
    options = common.parser(__doc__)
    options.add_argument("checkouts", nargs=2, help="folders that contain dali_compat: before, after")
    options.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    options.add_argument("--seconds", type=float, default=3, help="length of a turn")
    options.add_argument("--warmup", type=float, default=6, help="seconds of batches before the first turn")
    options.add_argument("--serve", help="internal: the folder of images")
    args = options.parse_args()
    if args.serve:
        serve(pathlib.Path(args.serve), args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
