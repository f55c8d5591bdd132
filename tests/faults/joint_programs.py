"""Random transforms of images with masks, boxes and points, with torch's loader and ours:

    python tests/faults/joint_programs.py --seconds 600 [--seed 1]

Without workers and with exact=True all of it is to be equal, bit for bit; but of floats kernels add in another order,
and warps of images below 64 pixels a side may round one tie in 10,000 otherwise. Prints the transforms of each program
that is wrong. The exit status is 1 where any was.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import v2

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from contract import joint_datasets as joint
from contract.test_joint import unlike
from helpers import make_image

from dali_compat import DataLoader

MODES = v2.InterpolationMode
NEAR = 1e-3  # of 255, or of 1 of floats
KINDS = ["Joint", "WithMask", "AsDict", "Alone", "Opened", "Several"]


class Alone(joint.Joint):
    """An image, and what was done to it before, in PIL."""

    def __getitem__(self, i):
        before = self.image(i)
        after = self.transforms(before)
        return after, i, before if i % 3 == 0 else before.size


class Opened(joint.Joint):
    """As it was opened: gray, or with a palette."""

    def __getitem__(self, i):
        return self.transforms(Image.open(self.masks[i] if i % 2 else self.paths[i])), i


class Several(joint.Joint):
    """Two views of one image, and one of another."""

    def __getitem__(self, i):
        image = self.image(i)
        return [self.transforms(image), self.transforms(image)], self.transforms(self.image(i - 1))


def transforms(rng: random.Random, kind: str) -> list[Any]:
    """Some, as people write them."""
    boxes = kind in ("Joint", "AsDict")
    made = [_geometry(rng, boxes) for _ in range(rng.randint(1, 4))]
    made[rng.randint(0, len(made)) : 0] = [_color(rng) for _ in range(rng.randint(0, 3))]
    at = rng.randint(0, len(made))
    if rng.random() < 0.8:
        made.insert(at, v2.ToImage())
        if rng.random() < 0.7:
            made.insert(rng.randint(at + 1, len(made)), v2.ToDtype(torch.float32, scale=rng.random() < 0.8))
            if rng.random() < 0.4:
                made.append(v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
            if rng.random() < 0.3:
                made.append(v2.RandomErasing(value=rng.choice([0, [0.1, 0.2, 0.3]])))
        if rng.random() < 0.2:
            made.append(v2.ToPureTensor())
    elif rng.random() < 0.5:
        made.append(T.ToTensor() if kind in ("Alone", "Opened", "Several") else v2.PILToTensor())
    return made


def _size(rng: random.Random) -> tuple[int, int]:
    return rng.randint(16, 60), rng.randint(16, 60)


def _fill(rng: random.Random) -> Any:
    return rng.choice([0, 7, None, {tv_tensors.Image: 9, tv_tensors.Mask: 255, "others": 3}])


def _geometry(rng: random.Random, boxes: bool) -> Any:
    mode = rng.choice([MODES.BILINEAR, MODES.BILINEAR, MODES.NEAREST, MODES.BICUBIC])
    warp, fill = rng.choice([MODES.BILINEAR, MODES.NEAREST]), _fill(rng)
    made = [
        lambda: v2.Resize(rng.choice([_size(rng), rng.randint(16, 60), [24]]), mode),
        lambda: v2.Resize(rng.randint(16, 30), max_size=rng.randint(31, 60)),
        lambda: v2.CenterCrop(_size(rng)),
        lambda: v2.RandomCrop(_size(rng), pad_if_needed=True, fill=fill),
        lambda: v2.RandomCrop(_size(rng), padding=rng.randint(0, 9), pad_if_needed=True, fill=fill),
        lambda: v2.RandomResizedCrop(_size(rng), interpolation=mode),
        lambda: v2.RandomHorizontalFlip(),
        lambda: v2.RandomVerticalFlip(),
        lambda: v2.Pad([rng.randint(0, 9) for _ in range(4)], fill=fill),
        lambda: v2.Pad(rng.randint(0, 5), padding_mode=rng.choice(["edge", "reflect", "symmetric"])),
        lambda: v2.RandomZoomOut(fill=fill, side_range=(1.0, 2.0)),
        lambda: v2.ScaleJitter((40, 40), (0.5, 1.5)),
        lambda: v2.RandomShortestSize([20, 24, 30], max_size=60),
        lambda: v2.RandomResize(20, 50),
        lambda: v2.RandomRotation(rng.choice([20, (90, 90), (180, 180)]), warp, fill=fill),
        lambda: v2.RandomAffine(15, (0.1, 0.2), (0.7, 1.3), (-5, 5), warp, fill=fill),
        lambda: v2.RandomPerspective(0.3, 0.7, warp, fill=fill),
        lambda: v2.RandomApply([v2.ElasticTransform(20.0)], 0.2),
        lambda: v2.RandomApply([v2.RandomRotation(180, warp), v2.CenterCrop(30)]),
        lambda: v2.RandomChoice([v2.Resize(_size(rng)), v2.CenterCrop(25), v2.RandomHorizontalFlip()]),
    ]
    return rng.choice([*made, v2.RandomIoUCrop, v2.RandomIoUCrop] if boxes else made)()


def _color(rng: random.Random) -> Any:
    return rng.choice(
        [
            lambda: v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            lambda: v2.RandomPhotometricDistort(),
            lambda: v2.RandomGrayscale(0.3),
            lambda: v2.Grayscale(3),
            lambda: v2.RandomInvert(),
            lambda: v2.RandomPosterize(5),
            lambda: v2.RandomSolarize(0.5),
            lambda: v2.RandomAutocontrast(),
            lambda: v2.RandomEqualize(),
            lambda: v2.RandomAdjustSharpness(2.0),
            lambda: v2.GaussianBlur(rng.choice([3, 5]), (0.5, 1.5)),
            lambda: v2.RandomChannelPermutation(),
            lambda: v2.RandomApply([v2.JPEG((40, 90))]),
        ]
    )()


# ---- running


def make_files(root: Path, count: int = 8) -> Any:
    """What stands for an ImageFolder of photos, each with a mask beside it."""
    rng, samples = np.random.default_rng(3), []
    for number in range(count):
        image = Image.fromarray(make_image(rng, *map(int, rng.integers(40, 90, 2))))
        path = root / f"{number}.jpg"
        image.save(path, quality=92)
        mask = image.convert("L").point(lambda value: value // 32)
        (mask.convert("P") if number % 2 else mask).save(root / f"{number}_mask.png")
        samples.append((str(path), number % 3))
    return SimpleNamespace(samples=samples)


def compared(seed: int, folder: Any, workers: int = 0) -> tuple[str, str]:
    """What is wrong with a program, and the route that it took."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    chain = transforms(rng, kind)
    made: Any = v2.Compose(chain) if kind != "Several" else T.Compose(chain)
    dataset = {"Alone": Alone, "Opened": Opened, "Several": Several}.get(kind) or getattr(joint, kind)
    batch = rng.choice([1, 3, 8])
    outcomes: list[Any] = []
    route = ""
    for ours in (False, True):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        options: dict[str, Any] = dict(collate_fn=list, shuffle=True)
        try:
            if ours:
                loader: Any = DataLoader(
                    dataset(folder, made), batch, exact=True, device="cpu", fallback="silent", **options
                )
                route = loader.explain().partition(" ")[0]
            else:
                loader = data.DataLoader(dataset(folder, made), batch, **options)
            outcomes.append([_real(sample) for _ in range(2) for samples in loader for sample in samples])
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    theirs, mine = outcomes
    if isinstance(theirs, str) or isinstance(mine, str):
        same = isinstance(theirs, str) and isinstance(mine, str)
        return ("" if same else f"{_short(theirs)}, but {_short(mine)}\n{kind} {made}"), "error"
    wrong = [text for text in unlike(mine, theirs) if not _is_near(text)]
    return (f"{wrong[:5]}\n{kind} {made}" if wrong else ""), route


def _is_near(text: str) -> bool:
    """Whether it tells of an image that differs by next to nothing on average; of a mask or a box nothing is that."""
    path, _, distance = text.rpartition(": ")
    is_image = not any(word in path for word in ("mask", "boxes", "points", "labels"))
    return is_image and distance.replace(".", "").replace("e-", "").isdigit() and float(distance) < NEAR


def _short(outcome: Any) -> str:
    return outcome[:300] if isinstance(outcome, str) else "no error"


def _real(value: Any) -> Any:
    """A sample, with PIL's images as arrays."""
    if isinstance(value, Image.Image):
        pixels = torch.from_numpy(np.array(value.convert("RGB") if value.mode == "P" else value))
        return value.mode, value.size, pixels
    if isinstance(value, dict):
        return {key: _real(one) for key, one in value.items()}
    return type(value)(map(_real, value)) if type(value) in (list, tuple) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    routes: collections.Counter[str] = collections.Counter()
    wrong = number = 0
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder))
        time.sleep(0.1)
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            text, route = compared(arguments.seed * 1_000_000 + number, files)
            routes[route] += 1
            number += 1
            if text:
                wrong += 1
                print(f"# number {arguments.seed * 1_000_000 + number - 1}: {text}", flush=True)
    print(f"{number} programs: {wrong} wrong; {dict(routes)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
