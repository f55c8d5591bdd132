"""Question: how much processor time do custom data sets of twelve kinds take, relative to torch's loader?

Method. One process without workers. For each kind, torch's loader and ours load the same class: first an epoch that is
not counted, then --rounds rounds in turn. The script measures time.process_time() of each epoch, which includes all
threads. Ratios are within a round.

Confounders.
- torch computes with one thread (OMP_NUM_THREADS=1), because threads that wait for each other count as work.
- Files come from memory.

Command.
    OMP_NUM_THREADS=1 python benchmarks/own_kinds.py --data PHOTOS --rounds 5 --json OUT.json
"""

import pathlib
import tempfile
import time
import warnings

import common
import torch
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import dali_compat

VALUES = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
END = T.ToTensor(), T.Normalize(*VALUES)
TRAIN = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *END])
FLOAT = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
SEGMENTATION = v2.Compose(
    [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToImage(), FLOAT, v2.Normalize(*VALUES)]
)
DETECTION = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.RandomIoUCrop(), v2.Resize((300, 300)), v2.ToImage(), FLOAT, v2.Normalize(*VALUES)]
)
V2 = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), FLOAT, v2.Normalize(*VALUES)])
EVAL = T.Compose([T.Resize(256), T.CenterCrop(224), *END])
SMALL = T.Compose([T.RandomResizedCrop(128), T.RandomHorizontalFlip(), *END])
JITTER = T.Compose([T.RandomResizedCrop(224), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.2), *END])
POLICY = T.Compose([T.RandomResizedCrop(224), T.RandAugment(), *END])


class Photos(Dataset):
    """A data set whose samples are ``sample(data, index)``."""

    def __init__(self, files, masks, sample):
        self.files, self.masks, self.sample = files, masks, sample

    def __len__(self):
        return len(self.files)

    def image(self, index):
        return Image.open(self.files[index]).convert("RGB")

    def __getitem__(self, index):
        return self.sample(self, index)


def labelled(transform):
    return lambda data, index: (transform(data.image(index)), index)


def views(data, index):
    image = data.image(index)
    return [TRAIN(image), TRAIN(image)], index


def with_mask(data, index):
    return SEGMENTATION(data.image(index), tv_tensors.Mask(Image.open(data.masks[index])))


def with_boxes(data, index):
    image = data.image(index)
    boxes = tv_tensors.BoundingBoxes([[10, 10, 60, 60]], format="XYXY", canvas_size=(image.height, image.width))
    return DETECTION(image, {"boxes": boxes, "labels": torch.tensor([1])})


# longest side of the files in pixels, or None for unchanged photos; the sample function; options of the loader
KINDS = {
    "ImageNet's training": (None, labelled(TRAIN), {}),
    "evaluation": (None, labelled(EVAL), {}),
    "150 pixels": (150, labelled(SMALL), {}),
    "320 pixels": (320, labelled(TRAIN), {}),
    "1,500 pixels": (1500, labelled(TRAIN), {}),
    "ColorJitter": (None, labelled(JITTER), {}),
    "RandAugment": (None, labelled(POLICY), {}),
    "v2, ToImage first": (None, labelled(V2), {}),
    "two views": (None, views, {}),
    "masks": (None, with_mask, {}),
    "boxes": (None, with_boxes, {"collate_fn": lambda samples: tuple(zip(*samples, strict=True))}),
    "batches of 4": (None, labelled(TRAIN), {"batch_size": 4}),
}


def resized(files, folder, side):
    """Return resized copies of the files, or the files themselves."""
    if side is None:
        return files
    made = []
    for number, file in enumerate(files):
        image = Image.open(file).convert("RGB")
        scale = side / max(image.size)
        path = f"{folder}/{side}_{number}.jpg"
        image.resize([max(8, round(edge * scale)) for edge in image.size]).save(path, quality=90)
        made.append(path)
    return made


def seconds(loader):
    """Return the processor time of an epoch."""
    begin = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - begin


def main():
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=96)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    files = [str(path) for path in sorted(pathlib.Path(args.data).rglob("*")) if path.is_file()][: args.images]
    result = {"benchmark": "own_kinds", "facts": common.facts(), "images": len(files), "rounds": []}
    print(result["facts"], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        masks = []
        for number, file in enumerate(files):
            masks.append(f"{folder}/mask_{number}.png")
            Image.open(file).convert("L").point(lambda value: value // 16).save(masks[-1])
        sets = {side: resized(files, folder, side) for side in {side for side, *_ in KINDS.values()}}
        for kind, (side, sample, given) in KINDS.items():
            given = {"batch_size": 32, **given}
            data = Photos(sets[side], masks, sample)
            loaders = DataLoader(data, **given), dali_compat.DataLoader(data, device="cpu", fallback="error", **given)
            for loader in loaders:
                seconds(loader)
            for number in range(args.rounds):
                torchs, ours = map(seconds, loaders)
                result["rounds"].append({"round": number, "case": kind, "torch": torchs, "ours": ours})
            common.write_json(args.json, result)
            found = [row["ours"] / row["torch"] for row in result["rounds"] if row["case"] == kind]
            print(f"{kind}: {sorted(found)[len(found) // 2]:.2f} ({min(found):.2f} - {max(found):.2f})", flush=True)


if __name__ == "__main__":
    main()
