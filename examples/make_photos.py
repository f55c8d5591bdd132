"""Photos to try the other examples on, without data of your own.

    python examples/make_photos.py photos --train 64 --val 32

writes photos/train/class_0/0000.jpg and so on, and photos/val. They are made from random numbers. Each class leans to a
colour, so that a network learns within seconds which is which: their accuracy says that a script works, and no more.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from dali_compat.cli.pictures import make_photo


def write(index: int, folder: Path, classes: int, size: int) -> None:
    """One photo: the class is the index modulo ``classes``, and the same index gives the same pixels."""
    label = index % classes
    pixels = make_photo(np.random.default_rng((len(folder.name), index)), size, size)
    weights = np.where(np.arange(3) == label % 3, 1.0, 0.3 + 0.3 * (label // 3 % 2))
    Image.fromarray((pixels * weights).astype(np.uint8)).save(folder / f"class_{label}" / f"{index:04d}.jpg")


def main(args) -> None:
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
    parser.add_argument("--classes", type=int, default=2, choices=range(2, 7))
    parser.add_argument("--size", type=int, default=180, help="length of both sides (default %(default)s)")
    main(parser.parse_args())
