"""Pictures to try a loader on, with smooth light, shapes and fine texture as photos have, and sheets of pictures."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def make_photo(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Returns a photo-like picture: uint8, (height, width, 3), RGB. The same rng state gives the same picture."""
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
    """Writes `count` JPEGs of about 500 x 400 pixels (quality 90) as root/class_0/0000.jpg and so on, class by turn.
    One seed always gives the same files. ``done`` is called after each picture.
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
    """Saves a PNG with one titled row for each {title: uint8 images (N, H, W, 3)}. Rows have one shape."""
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
