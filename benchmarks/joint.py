"""Question: how much processor time does a sample of a custom Dataset take, with boxes or a mask in addition to its
image, and how fast are they loaded?

Method. One process. Four kinds of samples, each by the same class in torch's loader and in ours:
    classification  a photo: RandomResizedCrop(224) and a flip, by torchvision.transforms
    segmentation    a photo and its mask, a PNG with a palette: RandomResize(260, 1040), flip, RandomCrop(480)
    detection       a photo and boxes: photometric distortion, zoom out, IoU crop, flip, Resize((300, 300))
    short_edge      a photo and boxes: flip, and RandomShortestSize of ten sizes, so that images differ in size
The cases of a kind take turns over --rounds rounds. A turn opens a loader, runs an epoch that is not counted, and
counts --epochs epochs: images per second, and the user and system processor time of this process and its children.
Worker processes are persistent. Ratios are within a round.

Cases: torch:W, own:W and exact:W (own with exact=True), with W workers; in own:0 the class runs in the calling thread.

With --train MODEL each batch is trained on: unet (a small one) or deeplabv3_resnet50 for segmentation,
ssdlite320_mobilenet_v3_large for detection. The processor time then includes training; synthetic:0 has only that of
training, on one repeated batch.

Confounders.
- Without --train nothing consumes the batches.
- With --replicate the files come from memory: no disk, warm caches, for every case.
- torch has one thread per process in all cases, as in its workers: OpenMP's threads use processor time while they wait.
- Masks consist of six rectangles, and are quicker to read than drawn ones.

Command.
    python benchmarks/joint.py --data PHOTOS --replicate 5 --rounds 5 --json OUT.json
    python benchmarks/joint.py --data PHOTOS --replicate 20 --kinds segmentation --train unet --json OUT.json
"""

import itertools
import os
import pathlib
import random
import shutil
import tempfile
import time
import warnings

import common
import loaders
import torch
import torchvision
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

CLASSES = 21
SHORT_EDGES = range(224, 384 + 1, 16)
LAST = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(loaders.MEAN, loaders.STD)]


class Photos(Dataset):
    """Photos with a label."""

    def __init__(self, files):
        self.files, self.transforms = files, loaders.transform()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        photo = self.files[index][0]
        return self.transforms(Image.open(photo).convert("RGB")), index % CLASSES


class WithMask(Photos):
    """Photos with a mask, as in torchvision's segmentation reference."""

    def __init__(self, files):
        super().__init__(files)
        self.transforms = v2.Compose(
            [
                v2.RandomResize(260, 1040),
                v2.RandomHorizontalFlip(),
                v2.RandomCrop((480, 480), pad_if_needed=True, fill={Image.Image: 0, tv_tensors.Mask: 255, "others": 0}),
                v2.ToImage(),
                v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
                v2.Normalize(loaders.MEAN, loaders.STD),
            ]
        )

    def __getitem__(self, index):
        photo, mask = self.files[index]
        image, mask = self.transforms(Image.open(photo).convert("RGB"), tv_tensors.Mask(Image.open(mask)))
        return image, mask.squeeze(0)


class WithBoxes(Photos):
    """Photos with boxes, as in torchvision's detection reference."""

    def __init__(self, files):
        super().__init__(files)
        self.transforms = v2.Compose(
            [
                v2.RandomPhotometricDistort(),
                v2.RandomZoomOut(fill=[123, 117, 104]),
                v2.RandomIoUCrop(),
                v2.RandomHorizontalFlip(),
                v2.Resize((300, 300)),
                *LAST,
                v2.SanitizeBoundingBoxes(),
            ]
        )

    def __getitem__(self, index):
        image = Image.open(self.files[index][0]).convert("RGB")
        return self.transforms(image, target_of(index, *image.size))


class ShortEdge(WithBoxes):
    """Photos with boxes, transformed to many sizes."""

    def __init__(self, files):
        super().__init__(files)
        self.transforms = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomShortestSize(SHORT_EDGES, 640), *LAST])


def target_of(index, width, height):
    """Return boxes and labels of one to four objects."""
    drawn = random.Random(index)
    boxes = []
    for _ in range(1 + index % 4):
        left, top = drawn.uniform(0, 0.6 * width), drawn.uniform(0, 0.6 * height)
        boxes.append([left, top, left + drawn.uniform(0.2, 0.4) * width, top + drawn.uniform(0.2, 0.4) * height])
    boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width))
    return {"boxes": boxes, "labels": torch.arange(1, len(boxes) + 1)}


def make_mask(photo, path):
    """Write a photo's mask: rectangles, in a PNG with a palette."""
    drawn = random.Random(photo.name)
    with Image.open(photo) as image:
        mask = Image.new("P", image.size)
    mask.putpalette([drawn.randrange(256) for _ in range(768)])
    draw, (width, height) = ImageDraw.Draw(mask), mask.size
    for _ in range(6):
        left, top = drawn.randrange(width), drawn.randrange(height)
        draw.rectangle((left, top, left + width // 3, top + height // 3), fill=drawn.randrange(CLASSES))
    mask.save(path)


KINDS = {"classification": Photos, "segmentation": WithMask, "detection": WithBoxes, "short_edge": ShortEdge}
TRAINED = {"unet": "segmentation", "deeplabv3_resnet50": "segmentation", "ssdlite320_mobilenet_v3_large": "detection"}


def as_lists(samples):
    """Collate as torchvision's detection references do."""
    return tuple(zip(*samples, strict=True))


def opened(case, kind, files, args, device):
    import dali_compat

    name, workers, _ = common.split_case(case, args.workers)
    options = {
        "shuffle": True,
        "drop_last": True,
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "pin_memory": device.type == "cuda",
        "collate_fn": as_lists if kind in ("detection", "short_edge") else None,
    }
    data = KINDS[kind](files)
    if name == "torch":
        return torch.utils.data.DataLoader(data, args.batch_size, **options)
    options.update(device=device, fallback="error", exact=name == "exact")
    return dali_compat.DataLoader(data, args.batch_size, **options)


def processor_time():
    """Return the user and system seconds of this process and all its descendants."""
    parents, own = {}, {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            parents[int(entry.name)], own[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(own[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def moved(value, device):
    """Move a batch of torch's loader to the device, as a script would."""
    if isinstance(value, dict):
        return {key: moved(one, device) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one, device) for one in value)
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def turn(case, kind, files, args, device):
    is_fixed = case.startswith("synthetic")
    loader = opened("torch:0" if is_fixed else case, kind, files, args, device)
    step = stepper(args.train, device) if args.train else lambda batch: None
    fixed = [moved(next(iter(loader)), device)] * len(loader) if is_fixed else None
    for batch in fixed or loader:
        step(moved(batch, device))
    loaders.synchronise(device)
    samples, cpu, begin = 0, processor_time(), time.perf_counter()
    for _ in range(args.epochs):
        for batch in fixed or loader:
            step(moved(batch, device))
            samples += args.batch_size
    loaders.synchronise(device)
    seconds = time.perf_counter() - begin
    row = {"speed": samples / seconds, "cpu_ms": 1e3 * (processor_time() - cpu) / samples}
    if hasattr(loader, "close"):
        loader.close()
    del loader
    loaders.release(device)
    return row


# ---- training


class UNet(nn.Module):
    """A U-Net of four levels, with 32 to 256 channels."""

    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 128, 256]
        self.down = nn.ModuleList(_block(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths[1:]))
        self.merge = nn.ModuleList(_block(2 * a, a) for a in widths[1:-1])
        self.last = nn.Conv2d(widths[1], CLASSES, 1)

    def forward(self, x):
        seen = []
        for level, down in enumerate(self.down):
            x = down(nn.functional.max_pool2d(x, 2) if level else x)
            seen.append(x)
        for level in reversed(range(len(self.up))):
            x = self.merge[level](torch.cat([self.up[level](x), seen[level]], 1))
        return self.last(x)


def _block(a, b):
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))


def stepper(name, device):
    """Return a function that trains a model on one batch."""
    torch.manual_seed(0)
    if name == "unet":
        model = UNet()
    elif TRAINED[name] == "segmentation":
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    else:
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(batch):
        images, targets = batch
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            if TRAINED[name] == "detection":
                loss = sum(model(list(images), list(targets)).values())
            else:
                made = model(images)
                made = made["out"] if isinstance(made, dict) else made
                loss = nn.functional.cross_entropy(made, targets, ignore_index=255)
        loss.backward()
        optimizer.step()

    return step


def report(rounds, cases):
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in rounds):
        own = [row for row in rounds if row["kind"] == kind]
        cpu, speed = common.medians(own, "cpu_ms"), common.medians(own, "speed")
        for case in cases:
            row = [f"{kind}, {case}", *common.spread(cpu[case], ".2f"), common.ratio(own, "cpu_ms", case, cases[0])]
            rows.append([*row, *common.spread(speed[case], ",.0f"), common.ratio(own, "speed", case, cases[0])])
    to = f"to {cases[0]}"
    head = ["case", "ms of all processors a sample", "min - max", to, "images/s", "min - max", to]
    print("\n" + common.markdown(head, rows))


def main():
    options = common.parser(__doc__)
    options.set_defaults(batch_size=32)
    options.add_argument("--epochs", type=int, default=1, help="counted epochs per turn")
    options.add_argument("--kinds", nargs="+", choices=list(KINDS), default=None, help="(default: all)")
    options.add_argument(
        "--cases", nargs="+", default=None, help="(default: torch, own and exact, with and without workers)"
    )
    options.add_argument("--train", choices=list(TRAINED), default=None)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = ("torch", "own", "exact")
    cases = args.cases or [f"{name}:{workers}" for workers in dict.fromkeys((args.workers, 0)) for name in names]
    kinds = args.kinds or ([TRAINED[args.train]] if args.train else list(KINDS))
    device = loaders.device_of(args)
    masks = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-bench-"))
    try:
        with common.folder(args.data, args.replicate) as root:
            files = pairs(root, masks)
            time.sleep(1)  # recently written files are not decoded by DALI
            result = common.begun("joint", args, images=common.describe(root, args.data))
            for kind in kinds:
                for number, case in common.in_turn(cases, args.rounds):
                    row = {"round": number, "kind": kind, "case": case, **turn(case, kind, files, args, device)}
                    result["rounds"].append(row)
                    print(common.line(row), flush=True)
                    common.write_json(args.json, result)
            report(result["rounds"], cases)
    finally:
        shutil.rmtree(masks)


def pairs(root, masks):
    """Return (photo, mask) of all files; photos that are links to the same file share a mask."""
    found, made = [], {}
    for photo in sorted(root.glob("*/*")):
        key = photo.stat().st_ino
        if key not in made:
            made[key] = masks / f"{len(made):05d}.png"
            make_mask(photo, made[key])
        found.append((str(photo), str(made[key])))
    return found


if __name__ == "__main__":
    main()
