"""Threads and memory of a loader over samples whose numbers never repeat:

    python tests/faults/bounds.py --samples 100000
    python tests/faults/bounds.py --samples 100000 --workers 2

Sizes, windows, pads, angles and colors are drawn for each sample, and for some samples also constants of a step. The
images are tiny. After each tenth the program prints the resident memory (including workers), threads, open files,
plans, pipelines, and the share of batches without a deferred image. The exit status is 1 if, after the first half,
memory grows by more than a tenth or the number of threads grows, or if most batches have no deferred image.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from PIL import Image
from torch.utils import data
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from helpers import make_folder

from dali_compat import DataLoader

GROWTH, MORE_THREADS = 1.1, 4


class Changing(data.Dataset):
    """``count`` samples of a few photos, each with a mask."""

    def __init__(self, paths, count):
        self.paths, self.count = paths, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = Image.open(self.paths[i % len(self.paths)]).convert("RGB")
        mask = tv_tensors.Mask(Image.open(self.paths[i % len(self.paths)]).convert("L"))
        size = random.randint(20, 60), random.randint(20, 60)
        image, mask = F.resize(image, size), F.resize(mask, size)
        top, left = random.randint(0, 9), random.randint(0, 9)
        image, mask = (F.crop(one, top, left, size[0] - 10, size[1] - 10) for one in (image, mask))
        if random.random() < 0.5:
            image = F.rotate(image, random.uniform(-30, 30), v2.InterpolationMode.BILINEAR)
        if random.random() < 0.5:
            image = F.adjust_brightness(image, random.uniform(0.5, 1.5))
        if random.random() < 0.1:
            image = F.pad(image, [random.randint(0, 4)] * 4, fill=[9, 8, 7])
        if random.random() < 0.1:
            image = F.rotate(image, 9, fill=[random.randint(0, 255) for _ in range(3)])
        if random.random() < 0.1:
            image = F.pad(image, [3], fill=random.randint(0, 255))
        if random.random() < 0.1:
            image = F.gaussian_blur(image, 3, random.uniform(0.1, 2))
        image = F.to_dtype(F.to_image(F.hflip(image)), torch.float32, scale=True)
        image = F.normalize(image, [0.5] * 3, [0.2] * 3)
        return image, mask, i


def usage(loader) -> dict[str, float]:
    processes = ["self", *(child.pid for child in multiprocessing.active_children())]
    pages = sum(int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in processes)
    return {
        "MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "plans": len(loader._route._representatives),
        "pipelines": len(loader._route._pipelines),
        "not deferred": round(loader._route.realized / len(loader), 2),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--samples", type=int, default=100_000)
    options.add_argument("--workers", type=int, default=0)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = make_folder(Path(folder) / "images", classes=2, per_class=4, special=False)
        paths = [str(path) for path in sorted(root.glob("*/*.jpg"))]
        time.sleep(0.1)  # recently written files are not left to DALI
        dataset = Changing(paths, args.samples // 10)
        options = {"num_workers": args.workers, "persistent_workers": args.workers > 0, "fallback": "error"}
        loader = DataLoader(dataset, 64, collate_fn=list, device="cpu", **options)
        for tenth in range(10):
            for _ in loader:
                pass
            found.append(usage(loader))
            print((tenth + 1) * len(dataset), found[-1], flush=True)
    middle, last = found[4], found[-1]
    grows = last["MiB"] > GROWTH * middle["MiB"] or last["threads"] > middle["threads"] + MORE_THREADS
    return int(grows or last["not deferred"] > 0.5)


if __name__ == "__main__":
    sys.exit(main())
