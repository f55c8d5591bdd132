"""Create photos to try the other examples on.

    python examples/make_photos.py photos --train 64 --val 32

writes photos/train/class_0/0000.jpg and so on, and photos/val. They are made from random numbers. Each class tends to a
colour, so that a network learns to distinguish them within seconds. Their accuracy only shows that a script works.

    python examples/make_photos.py shapes --voc

writes photos with ellipses into shapes/VOCdevkit/VOC2012, with masks and boxes, in the layout of Pascal VOC.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from dali_compat.cli.demo import make_photo


def write(index: int, folder: Path, classes: int, size: int) -> None:
    """Write one photo. Its class is the index modulo ``classes``, and the same index gives the same pixels."""
    label = index % classes
    pixels = make_photo(np.random.default_rng((len(folder.name), index)), size, size)
    weights = np.where(np.arange(3) == label % 3, 1.0, 0.3 + 0.3 * (label // 3 % 2))
    Image.fromarray((pixels * weights).astype(np.uint8)).save(folder / f"class_{label}" / f"{index:04d}.jpg")


def write_voc(root: Path, name: str, size: int) -> None:
    """Write a photo with one to three ellipses, bright cats and dark dogs, their mask, and their boxes."""
    rng = np.random.default_rng(int(name))
    photo = Image.fromarray(make_photo(rng, size, size * 3 // 4))
    mask = Image.new("L", photo.size)
    objects = ""
    for _ in range(rng.integers(1, 4)):
        animal, label, colour = ("cat", 8, "gold") if rng.random() < 0.5 else ("dog", 12, "navy")
        (left, right), (top, bottom) = (sorted(rng.choice(range(0, side, side // 8), 2, False)) for side in photo.size)
        box = dict(zip(("xmin", "ymin", "xmax", "ymax"), map(int, (left, top, right, bottom)), strict=True))
        ImageDraw.Draw(photo).ellipse([*box.values()], colour)
        ImageDraw.Draw(mask).ellipse([*box.values()], label)
        corners = "".join(f"<{corner}>{at}</{corner}>" for corner, at in box.items())
        objects += f"<object><name>{animal}</name><bndbox>{corners}</bndbox></object>"
    mask.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    photo.save(root / "JPEGImages" / f"{name}.jpg")
    mask.save(root / "SegmentationClass" / f"{name}.png")
    width, height = photo.size
    sides = f"<size><width>{width}</width><height>{height}</height></size>"
    (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{sides}{objects}</annotation>")


def as_voc(args) -> None:
    root = args.folder / "VOCdevkit" / "VOC2012"
    for folder in "JPEGImages", "SegmentationClass", "Annotations", "ImageSets/Main", "ImageSets/Segmentation":
        (root / folder).mkdir(parents=True, exist_ok=True)
    names = [f"{number:06d}" for number in range(args.train + args.val)]
    for name in tqdm(names, desc=str(root), unit="img"):
        write_voc(root, name, args.size)
    for part, some in ("train", names[: args.train]), ("val", names[args.train :]):
        for lists in "Main", "Segmentation":
            (root / "ImageSets" / lists / f"{part}.txt").write_text("\n".join(some) + "\n")


def as_folders(args) -> None:
    for part, count in ("train", args.train), ("val", args.val):
        folder = args.folder / part
        for label in range(args.classes):
            (folder / f"class_{label}").mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor() as pool:
            make = partial(write, folder=folder, classes=args.classes, size=args.size)
            list(tqdm(pool.map(make, range(count), chunksize=16), total=count, desc=str(folder), unit="img"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=64, help="photos to train on (default %(default)s)")
    parser.add_argument("--val", type=int, default=32, help="photos to validate on (default %(default)s)")
    parser.add_argument("--voc", action="store_true", help="in the layout of Pascal VOC, with masks and boxes")
    parser.add_argument("--classes", type=int, default=2, choices=range(2, 7))
    parser.add_argument("--size", type=int, default=180, help="length of both sides (default %(default)s)")
    args = parser.parse_args()
    (as_voc if args.voc else as_folders)(args)
