"""Question: is an epoch over a small number of small images ever slower than with torch's loader?

Method. One process. Twelve cases: JPEGs with a side of 32, 128 or 320 pixels, batches of 4 or 16, and an ImageFolder or
a custom Dataset that opens files with Pillow; both loaders get the same data set. The transform is RandomResizedCrop to
the side, a flip, ToTensor and Normalize. A turn creates the data set and the loader, and iterates over one whole epoch;
its seconds include the loader's start. The two loaders take turns over --rounds rounds, after one round that is not
counted. The table shows medians, and the ratio of the medians (torch / ours: above 1, ours is faster) with the ratios
within a round in brackets.

Confounders.
- The round that is not counted imports DALI, and starts CUDA on a GPU. A new process pays for both once.
- Nothing consumes the batches, and the files are in the page cache.
- Caches of a data set's headers do not help, because each turn creates a new data set.

Command.
    python benchmarks/small_work.py --data PHOTOS --json OUT.json
"""

import itertools
import pathlib
import statistics
import tempfile
import time

import common
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

SIDES, BATCHES, KINDS = (32, 128, 320), (4, 16), ("folder", "custom")


class Custom(Dataset):
    def __init__(self, root, transform):
        self.paths, self.transform = sorted(root.glob("*/*")), transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index % 10


def small_folder(photos, root, side, files):
    """Create a folder of ``files`` square JPEGs in ten classes."""
    for number in range(files):
        path = root / str(side) / f"class_{number % 10}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.open(photos[number % len(photos)]).convert("RGB").resize((side, side)).save(path, quality=90)
    return root / str(side)


def seconds(loader, kind, root, side, batch_size, args):
    from dali_compat import DataLoader

    transform = T.Compose(
        [T.RandomResizedCrop(side), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
    )
    begin = time.perf_counter()
    dataset = (ImageFolder if kind == "folder" else Custom)(root, transform)
    options = {"batch_size": batch_size, "shuffle": True, "num_workers": args.workers}
    made = DataLoader(dataset, device=args.device, **options) if loader == "ours" else TorchLoader(dataset, **options)
    samples = 0
    for images, _ in made:
        samples += len(images.to(args.device))
    if args.device == "cuda":
        torch.cuda.synchronize()
    assert samples == len(dataset)
    return time.perf_counter() - begin


def show(rounds):
    """Print the table."""
    print(f"{'data set':9}{'side':>5}{'batch':>6}{'torch, ms':>11}{'ours, ms':>10}{'ratio':>7}")
    for kind, side, batch_size in itertools.product(KINDS, SIDES, BATCHES):
        times = {
            name: [row["seconds"] for row in rounds if row["case"] == name and row["of"] == [kind, side, batch_size]]
            for name in ("torch", "ours")
        }
        torchs, ours = (statistics.median(times[name]) for name in ("torch", "ours"))
        ratios = [a / b for a, b in zip(times["torch"], times["ours"], strict=True)]
        print(f"{kind:9}{side:5}{batch_size:6}{1e3 * torchs:11.0f}{1e3 * ours:10.0f}{torchs / ours:7.2f}"
              f" ({min(ratios):.2f} - {max(ratios):.2f})")  # fmt: skip


def main():
    options = common.parser(__doc__)
    options.add_argument("--files", type=int, default=100)
    options.set_defaults(workers=2)
    args = options.parse_args()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    photos = sorted(path for path in pathlib.Path(args.data).glob("*/*") if path.is_file())
    result = common.begun("small_work", args)
    with tempfile.TemporaryDirectory(prefix="dali-compat-small-") as made:
        folders = {side: small_folder(photos, pathlib.Path(made), side, args.files) for side in SIDES}
        for of in itertools.product(KINDS, SIDES, BATCHES):
            kind, side, batch_size = of
            for number, name in common.in_turn(["torch", "ours"], args.rounds + 1):
                took = seconds(name, kind, folders[side], side, batch_size, args)
                if number:
                    result["rounds"].append({"round": number - 1, "case": name, "of": list(of), "seconds": took})
    show(result["rounds"])
    common.write_json(args.json, result)


if __name__ == "__main__":
    main()
