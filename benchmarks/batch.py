"""Draw docs/batch.jpg, the picture of README.md: a batch of docs/photos with labels, boxes and masks.

The samples come from a custom Dataset whose v2 transforms change photo, boxes and masks together. DataLoader.preview()
draws the picture, as in a user's program. The outlines of the objects were drawn by hand.

Command.
    python benchmarks/batch.py
"""

import argparse
import pathlib

import torch
from PIL import Image, ImageDraw
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2 as T

from dali_compat import DataLoader

HERE = pathlib.Path(__file__).parent
PHOTOS, OUT = HERE.parent / "docs" / "photos", HERE.parent / "docs" / "batch.jpg"
FILL = {Image.Image: (123, 117, 104), "others": 0}
CLASSES = ["cat", "rocket", "person", "cup"]
# per photo, the objects: a class, and an outline as x1, y1, x2, y2, ... in pixels
OBJECTS = {
    "animal/chelsea.jpg": [
        ("cat", "32,296 36,225 28,150 40,75 34,0 330,0 352,70 366,72 367,137 344,225 290,270 215,290 140,296")
    ],
    "person/astronaut.jpg": [
        ("person", "140,55 160,22 205,12 245,28 258,60 250,130 300,210 315,300 400,305 447,380 447,449 30,449 28,300"
                   " 48,225 105,185 118,140 148,105"),
        ("rocket", "312,195 325,120 348,55 352,0 385,2 392,120 405,240 330,245"),
    ],
    "things/coffee.jpg": [
        ("cup", "129,60 150,30 215,14 280,25 305,50 298,110 270,180 225,205 185,232 150,225 155,180 135,130")
    ],
    "outside/rocket.jpg": [("rocket", "219,110 227,88 235,92 238,120 238,286 216,286 214,200")],
}  # fmt: skip


class Objects(Dataset):
    """Photos with the boxes, masks and labels of their objects. The first photos appear twice."""

    classes = CLASSES

    def __init__(self):
        self.transforms = T.Compose(
            [
                T.ColorJitter(0.3, 0.3, 0.3, 0.02),
                T.RandomZoomOut(fill=FILL, side_range=(1, 1.3)),
                T.RandomRotation(12, T.InterpolationMode.BILINEAR, fill=FILL),
                T.RandomHorizontalFlip(),
                T.Resize((224, 224)),
                T.ClampBoundingBoxes(),
                T.ToImage(),
                T.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self):
        return 6

    def __getitem__(self, index):
        name, objects = list(OBJECTS.items())[index % len(OBJECTS)]
        photo = Image.open(PHOTOS / name).convert("RGB")
        boxes, masks = [], []
        for _, outline in objects:
            corners = [tuple(map(int, corner.split(","))) for corner in outline.split()]
            mask = Image.new("1", photo.size)
            ImageDraw.Draw(mask).polygon(corners, fill=1)
            masks.append(T.functional.pil_to_tensor(mask)[0].bool())
            xs, ys = zip(*corners, strict=True)
            boxes.append([min(xs), min(ys), max(xs), max(ys)])
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=photo.size[::-1]),
            "masks": tv_tensors.Mask(torch.stack(masks)),
            "labels": torch.tensor([CLASSES.index(name) for name, _ in objects]),
        }
        return self.transforms(photo, target)


def main(out: pathlib.Path) -> None:
    torch.manual_seed(1)
    loader = DataLoader(Objects(), 6, collate_fn=lambda samples: samples, device="cpu", fallback="error")
    loader.preview(6).save(out, quality=88, optimize=True)
    print(f"{out}, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT)
    main(options.parse_args().out)
