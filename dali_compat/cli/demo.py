"""Load images made on the spot through DALI and through torchvision: the plan, the speed and a picture of both.

Needs neither data nor a GPU.
"""

import os
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tqdm import tqdm

from dali_compat import installation
from dali_compat.cli.pictures import write_folder
from dali_compat.cores import usable_cores

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURE_COLUMNS = 8
AMPLIFICATION = 100
GPU_DRAWS_PER_IMAGE = 8
"""A GPU is through a few hundred images before a clock can tell: there a pass draws every image this many times."""


def add_arguments(parser) -> None:
    parser.add_argument("--images", type=int, default=512, help="how many JPEGs to make (default %(default)s)")
    parser.add_argument("--batch-size", type=int, help="images in a batch (default 256 on a GPU, 64 on the CPU)")
    parser.add_argument(
        "--workers", type=int, default=min(usable_cores(), 16), help="num_workers of both loaders (default %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=3, help="timed passes of each loader, in turn (default %(default)s)"
    )
    parser.add_argument(
        "--out", default="dali_compat_demo.png", help="where to save the picture (default ./%(default)s)"
    )
    parser.add_argument(
        "--device", default=None, help="where batches go: cpu, cuda, cuda:1 (default: the GPU if there is one)"
    )


def run(args) -> int:
    """Make images, print the plan and both loaders' images/s, save the picture. Returns 0."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.batch_size is None:
        args.batch_size = 256 if device.type == "cuda" else 64
    if min(args.images, args.batch_size, args.epochs) < 1 or args.workers < 0:
        raise SystemExit("demo: --images, --batch-size and --epochs start at 1, --workers at 0")
    problem = installation.dali_problem(gpu=device.type == "cuda")
    if problem:
        print(f"{problem}\nUntil then torchvision does the work of both loaders.\n")
    with tempfile.TemporaryDirectory(prefix="dali_compat_demo_") as root:
        with tqdm(total=args.images, desc="making images", unit="img") as bar:
            write_folder(root, args.images, classes=min(8, args.images), done=bar.update)
        speeds = compare_speed(root, device, args)
        print_speeds(speeds, args)
        mean, largest = compare_pixels(root, device, args.out)
    print(
        f"\nResize(256), CenterCrop(224), ToTensor: the difference to torchvision is {mean:.3f} on average and "
        f"{largest} at most, of 255 levels"
    )
    print(f"picture: {os.path.abspath(args.out)} (torchvision, dali_compat, {AMPLIFICATION} x the difference)")
    return 0


def compare_speed(root: str, device: torch.device, args) -> dict[str, dict[str, float]]:
    """Time both loaders on the ImageNet training transform. Returns {loader: {"first": seconds, "rate": images/s}}.

    first: from iter() to the first batch of an untimed pass. rate: the median of args.epochs whole passes, in turn.
    """
    import torchvision.transforms as T
    from torchvision.datasets import ImageFolder

    from dali_compat import DALIImageFolder, DataLoader

    transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])

    def options(dataset) -> dict[str, Any]:
        draws = args.images * (GPU_DRAWS_PER_IMAGE if device.type == "cuda" else 1)
        return {
            "batch_size": args.batch_size,
            "sampler": torch.utils.data.RandomSampler(dataset, num_samples=draws),
            "num_workers": args.workers,
            "persistent_workers": args.workers > 0,
            "pin_memory": device.type == "cuda",
        }

    theirs, ours = ImageFolder(root, transform), DALIImageFolder(root, transform)
    loader = DataLoader(ours, device=device, **options(ours))
    loaders: dict[str, Any] = {
        "torchvision": torch.utils.data.DataLoader(theirs, **options(theirs)),
        "dali_compat": loader,
    }
    print(f"\n{loader.explain()}\n")
    # torchvision goes first: its worker processes should be forked before DALI starts its threads
    first = {name: one_pass(loader, device, f"{name}, warming up")[0] for name, loader in loaders.items()}
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for epoch in range(args.epochs):
        for name, loader in loaders.items():
            rates[name].append(one_pass(loader, device, f"{name}, pass {epoch + 1}")[1])
    return {name: {"first": first[name], "rate": statistics.median(rates[name])} for name in loaders}


def one_pass(loader, device: torch.device, title: str) -> tuple[float, float]:
    """Iterate once, batches moved to the device as a training script would.
    Returns (seconds to the first batch, images/s)."""
    count, first = 0, 0.0
    with tqdm(total=len(loader.sampler), desc=title, unit="img", mininterval=0.5) as bar:
        start = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            first = first or time.perf_counter() - start
            count += len(images)
            bar.update(len(images))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
    return first, count / seconds


def print_speeds(speeds: dict[str, dict[str, float]], args) -> None:
    """Print both loaders' images/s and seconds to the first batch."""
    print(
        f"\n{'':14}{'images/s':>10}{'first batch':>14}   (batch {args.batch_size}, num_workers {args.workers}, "
        f"median of {args.epochs} passes in turn)"
    )
    for name, speed in speeds.items():
        print(f"{name:14}{speed['rate']:>10,.0f}{speed['first']:>12.2f} s")
    print(f"{'ratio':14}{speeds['dali_compat']['rate'] / speeds['torchvision']['rate']:>10.2f}")


def compare_pixels(root: str, device: torch.device, out: str) -> tuple[float, int]:
    """Load the same images through both, without randomness, and save them above each other in a PNG.

    Returns the mean and the largest difference in uint8 levels, 0 to 255.
    """
    import torchvision.transforms as T
    from torchvision.datasets import ImageFolder

    from dali_compat import DALIImageFolder, DataLoader

    transform = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])
    theirs, ours = ImageFolder(root, transform), DALIImageFolder(root, transform)
    count = min(PICTURE_COLUMNS, len(theirs))
    chosen = np.linspace(0, len(theirs) - 1, count).astype(int).tolist()
    expected, _ = next(iter(torch.utils.data.DataLoader(torch.utils.data.Subset(theirs, chosen), batch_size=count)))
    images, _ = next(iter(DataLoader(torch.utils.data.Subset(ours, chosen), batch_size=count, device=device)))
    expected, images = levels(expected), levels(images)
    difference = np.abs(expected.astype(int) - images)
    save_rows(
        out,
        {
            "torchvision": expected,
            "dali_compat": images,
            f"{AMPLIFICATION} x difference": np.clip(difference * AMPLIFICATION, 0, 255).astype(np.uint8),
        },
    )
    return float(difference.mean()), int(difference.max())


def levels(images: torch.Tensor) -> np.ndarray:
    """Float images (N, 3, H, W) of 0 to 1 as uint8 levels (N, H, W, 3) in main memory."""
    return (images.detach().cpu() * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def save_rows(out: str, rows: dict[str, np.ndarray]) -> None:
    """Save a PNG with one titled row for each {title: uint8 images (N, H, W, 3)}. Rows have one shape."""
    title, gap = 16, 4
    count, height, width, _ = next(iter(rows.values())).shape
    sheet = Image.new("RGB", (count * (width + gap) - gap, len(rows) * (height + title)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (text, images) in enumerate(rows.items()):
        top = row * (height + title)
        draw.text((2, top + 2), text, fill="black")
        for column, image in enumerate(images):
            sheet.paste(Image.fromarray(image), (column * (width + gap), top + title))
    sheet.save(out, format="PNG")
