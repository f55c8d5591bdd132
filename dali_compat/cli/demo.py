"""Load generated images with DALI and with torchvision, and compare speed and pixels.

This needs neither data nor a GPU.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image, ImageDraw
from torch.utils.data import RandomSampler, Subset
from torchvision.datasets import ImageFolder
from tqdm import tqdm

import dali_compat
from dali_compat.cli.arguments import UsageError, add_device, device_of, imagenet, try_to_write

from ..runtime import installation
from ..runtime.cores import usable_cores
from ..runtime.messages import in_columns

PICTURE_COLUMNS = 8
AMPLIFICATION = 64
GPU_DRAWS_PER_IMAGE = 8
"""Number of times that a pass on a GPU loads each image. A GPU loads a few hundred images too quickly to be timed."""


def add_arguments(parser) -> None:
    cores, out = min(usable_cores(), 16), "dali_compat_demo.png"
    parser.add_argument("--images", type=int, default=512, help="number of JPEGs to generate (default %(default)s)")
    parser.add_argument("--workers", type=int, default=cores, help="num_workers of both loaders (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="number of timed passes per loader (default %(default)s)")
    parser.add_argument("--out", default=out, help="where to save the picture (default ./%(default)s)")
    add_device(parser)


def run(args) -> int:
    device = device_of(args)
    if min(args.images, args.batch_size, args.epochs) < 1 or args.workers < 0:
        raise UsageError("--images, --batch-size and --epochs must be at least 1, --workers at least 0")
    try_to_write(args.out)
    problem = installation.dali_problem(gpu=device.type == "cuda")
    if problem:
        print(f"{problem}\nUntil this is fixed, torchvision does the work of both loaders.\n")
    with tempfile.TemporaryDirectory(prefix="dali_compat_demo_") as root:
        with tqdm(total=args.images, desc="making images", unit="img", disable=None) as bar:
            write_folder(root, args.images, classes=min(8, args.images), done=bar.update)
        compare_speed(root, device, args)
        mean, largest = compare_pixels(root, device, args.out)
    print(
        "\nDifference from torchvision after Resize(256), CenterCrop(224), ToTensor:\n"
        f"  {mean:.3f} on average and {largest} at most, of 255 levels"
    )
    print(f"picture: {os.path.abspath(args.out)} (torchvision, dali_compat, {AMPLIFICATION} x the difference)")
    return 0


def compare_speed(root: str, device: torch.device, args) -> None:
    """Measure both loaders in turn with ImageNet's training transform, and print their median speeds. Each makes
    ``args.epochs`` passes."""
    draws, transform = args.images * (GPU_DRAWS_PER_IMAGE if device.type == "cuda" else 1), imagenet("train")

    def options(dataset) -> dict[str, Any]:
        return {
            "batch_size": args.batch_size,
            "sampler": RandomSampler(dataset, num_samples=draws),
            "num_workers": args.workers,
        }

    theirs, ours = ImageFolder(root, transform), dali_compat.DALIImageFolder(root, transform)
    worker_options = {"persistent_workers": args.workers > 0, "pin_memory": device.type == "cuda"}
    works = installation.dali_problem(gpu=device.type == "cuda") is None  # if so, num_workers is a number of threads
    loader = dali_compat.DataLoader(ours, device=device, **options(ours), **({} if works else worker_options))
    loaders: dict[str, Any] = {
        "torchvision": torch.utils.data.DataLoader(theirs, **options(theirs), **worker_options),
        "dali_compat": loader,
    }
    print(f"\n{loader.explain()}\n")
    # torchvision goes first, so that its worker processes are forked before DALI starts threads
    first = {name: one_pass(loader, device, f"{name}, warming up")[0] for name, loader in loaders.items()}
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for epoch in range(args.epochs):
        for name, loader in loaders.items():
            rates[name].append(one_pass(loader, device, f"{name}, pass {epoch + 1}")[1])
    medians = {name: statistics.median(rates[name]) for name in loaders}
    rows = [(name, f"{medians[name]:,.0f}", f"{first[name]:.2f} s") for name in loaders]
    rows.append(("ratio", f"{medians['dali_compat'] / medians['torchvision']:.2f}", ""))
    print(f"\nbatch {args.batch_size}, num_workers {args.workers}, median of {args.epochs} passes in turn:\n")
    print(in_columns([("", "images/s", "first batch"), *rows], left=1))


def one_pass(loader, device: torch.device, title: str) -> tuple[float, float]:
    """Iterate once, and move the batches to the device. Return (seconds to the first batch, images/s)."""
    count, first = 0, 0.0
    with tqdm(total=len(loader.sampler), desc=title, unit="img", mininterval=0.5, disable=None) as bar:
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


def compare_pixels(root: str, device: torch.device, out: str) -> tuple[float, int]:
    """Load the same images with torchvision and this package. Save both results and their difference as the PNG
    ``out``.

    Return the mean and the largest difference in uint8 levels (0 to 255).
    """
    transform = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])
    theirs, ours = ImageFolder(root, transform), dali_compat.DALIImageFolder(root, transform)
    count = min(PICTURE_COLUMNS, len(theirs))
    chosen = np.linspace(0, len(theirs) - 1, count).astype(int).tolist()
    expected, _ = next(iter(torch.utils.data.DataLoader(Subset(theirs, chosen), batch_size=count)))
    images, _ = next(iter(dali_compat.DataLoader(Subset(ours, chosen), batch_size=count, device=device)))
    expected, images = levels(expected), levels(images)
    difference = np.abs(expected.astype(int) - images)
    amplified = np.clip(difference * AMPLIFICATION, 0, 255).astype(np.uint8)
    rows = {"torchvision": expected, "dali_compat": images, f"{AMPLIFICATION} x difference": amplified}
    save_rows(out, rows)
    return float(difference.mean()), int(difference.max())


def levels(images: torch.Tensor) -> np.ndarray:
    return (images.detach().cpu() * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def make_photo(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return a random photo-like picture, uint8 RGB (height, width, 3)."""
    light = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    draw = ImageDraw.Draw(light)
    for shape in (draw.ellipse, draw.rectangle, draw.ellipse, draw.rectangle):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        w, h = int(rng.integers(1, width // 3 + 2)), int(rng.integers(1, height // 3 + 2))
        shape((x, y, x + w, y + h), fill=tuple(rng.integers(0, 256, 3).tolist()))
    coarse = rng.integers(0, 48, (height // 4 + 1, width // 4 + 1), dtype=np.uint8)
    grain = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))
    fine = rng.integers(0, 16, (height, width), dtype=np.uint8)
    texture = grain.astype(np.int16) + fine - 32
    return np.clip(np.asarray(light) + texture[..., None], 0, 255).astype(np.uint8)


def write_folder(
    root: str | Path, count: int, classes: int = 8, seed: int = 0, done: Callable[[], object] = int
) -> None:
    """Write ``count`` JPEGs of about 500 x 400 pixels as root/class_0/0000.jpg, root/class_1/0001.jpg and so on.

    The files depend only on ``seed``. ``done`` is called after each file.
    """
    root = Path(root)
    for label in range(classes):
        (root / f"class_{label}").mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        rng = np.random.default_rng((seed, index))
        height, width = int(rng.integers(300, 500)), int(rng.integers(400, 600))
        picture = Image.fromarray(make_photo(rng, height, width))
        picture.save(root / f"class_{index % classes}" / f"{index:04d}.jpg", quality=90)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(write, range(count)):
            done()


def save_rows(out: str, rows: dict[str, np.ndarray]) -> None:
    """Save a PNG with rows of images. ``rows`` is {title: uint8 images (N, H, W, 3)}, all of the same shape."""
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
