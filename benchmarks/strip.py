"""Draw docs/strip.jpg, the photos of docs/transforms.md: torchvision's, ours by default, and the amplified difference.

The photos of docs/photos go through torchvision's ImageFolder and transform, and through this package's DataLoader on
the CPU, as in a user's program. Each column is a transform without randomness, so that both give the same picture.
Below it are the mean and the maximum of the difference in levels of 0..255, and the maximum with exact=True.

Command.
    python benchmarks/strip.py
"""

import argparse
import pathlib

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image, ImageDraw, ImageFont
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder, DataLoader

HERE = pathlib.Path(__file__).parent
PHOTOS, OUT = HERE.parent / "docs" / "photos", HERE.parent / "docs" / "strip.jpg"
SIDE, GAP, TITLE, FOOT, FONT = 168, 4, 26, 46, 18  # pixels; a phone shows it at half this width
BEHIND = "#161b22"  # a dark background for photos, also on a light page
AMPLIFICATION = 64

# the photo, the title above it, and the transforms after Resize and CenterCrop
COLUMNS = [
    ("animal/chelsea.jpg", "Resize, crop", []),
    ("person/astronaut.jpg", "ColorJitter", [T.ColorJitter(saturation=(2, 2))]),
    ("things/coffee.jpg", "RandomRotation", [T.RandomRotation((25, 25), T.InterpolationMode.BILINEAR)]),
    ("outside/rocket.jpg", "GaussianBlur", [T.RandomHorizontalFlip(1), T.GaussianBlur(9, (2, 2))]),
]


def three(photo: str, behind: list) -> list[np.ndarray]:
    """Return torchvision's picture of a photo, ours, and ours with exact=True, as uint8 (H, W, 3)."""
    transform = T.Compose([T.Resize(SIDE), T.CenterCrop(SIDE), *behind, T.PILToTensor()])
    theirs, ours = ImageFolder(PHOTOS, transform), DALIImageFolder(PHOTOS, transform)
    index = [pathlib.Path(path).relative_to(PHOTOS).as_posix() for path, _ in theirs.samples].index(photo)
    loaders = [torch.utils.data.DataLoader(Subset(theirs, [index]))]
    loaders += [
        DataLoader(Subset(ours, [index]), device="cpu", fallback="error", exact=exact) for exact in (False, True)
    ]
    return [next(iter(loader))[0][0].permute(1, 2, 0).numpy() for loader in loaders]


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(int) - b)


def drawn() -> tuple[Image.Image, list[tuple[float, int, int]]]:
    """Return the strip, and for each column the mean and maximum difference and the maximum with exact=True, in
    levels."""
    width = len(COLUMNS) * (SIDE + GAP) - GAP
    sheet = Image.new("RGB", (width, TITLE + 3 * (SIDE + GAP) + FOOT), BEHIND)
    pen, font, found = ImageDraw.Draw(sheet), ImageFont.load_default(FONT), []
    for column, (photo, title, behind) in enumerate(COLUMNS):
        theirs, ours, exact = three(photo, behind)
        apart = difference(theirs, ours)
        mean, largest, of_exact = apart.mean(), int(apart.max()), int(difference(theirs, exact).max())
        found.append((mean, largest, of_exact))
        left = column * (SIDE + GAP)
        pen.text((left + 4, 2), title, fill="white", font=font)
        for row, image in enumerate((theirs, ours, np.clip(apart * AMPLIFICATION, 0, 255).astype(np.uint8))):
            sheet.paste(Image.fromarray(image), (left, TITLE + row * (SIDE + GAP)))
        said = f"mean {mean:.2f}, max {largest}\nexact=True: {of_exact}"
        pen.text((left + 4, sheet.height - FOOT), said, fill="white", font=font)
    for row, name in enumerate(("torchvision", "dali_compat", f"difference x {AMPLIFICATION}")):
        bottom = TITLE + row * (SIDE + GAP) + SIDE
        pen.rectangle((0, bottom - FONT - 8, pen.textlength(name, font) + 8, bottom - 1), fill=BEHIND)
        pen.text((4, bottom - FONT - 6), name, fill="white", font=font)
    return sheet, found


def main(out: pathlib.Path) -> None:
    sheet, found = drawn()
    sheet.save(out, quality=88, optimize=True)
    for (photo, title, _), (mean, largest, of_exact) in zip(COLUMNS, found, strict=True):
        print(f"{photo}, {title}: mean {mean:.3f}, at most {largest} of 255 levels; with exact=True {of_exact}")
    print(f"{out}, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT)
    main(options.parse_args().out)
