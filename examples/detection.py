"""Detection: an SSDlite learns to find objects, on Pascal VOC; prints the average precision and images per second.

    python examples/detection.py voc --download
    python examples/make_photos.py shapes --voc && python examples/detection.py shapes --batch-size 4 --epochs 2

Reproduces: the augmentation of "SSD: Single Shot MultiBox Detector" (Liu et al., 2016) with torchvision's v2
transforms: distorted colours, zooming out, crops that keep an object, flips. They change photo, boxes and labels
together. The data set's code runs as in PyTorch's loader, and DALI computes the pixels of whole batches. --loader
torchvision is the same training with PyTorch's loader.

Measured: nothing yet. The photos of make_photos.py only show that the script works.
"""

import argparse
import os
import time

import torch
from torchvision.datasets import VOCDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.ops import box_iou
from torchvision.transforms import v2 as T
from tqdm import tqdm

import dali_compat

CLASSES, SIZE = 21, 320  # the first class is the background


def transforms(train: bool) -> T.Compose:
    """Return transforms of photo, boxes and labels. Boxes without area are removed, with their labels."""
    augment = [
        T.RandomPhotometricDistort(),
        T.RandomZoomOut(fill=(123, 117, 104)),
        T.RandomIoUCrop(),
        T.RandomHorizontalFlip(),
    ]
    convert = [T.ToImage(), T.ToDtype(torch.float32, scale=True), T.SanitizeBoundingBoxes(), T.ToPureTensor()]
    return T.Compose([*(augment if train else []), T.Resize((SIZE, SIZE)), *convert])


def dataset(args, part: str):
    made = VOCDetection(args.folder, image_set=part, download=args.download, transforms=transforms(part == "train"))
    return wrap_dataset_for_transforms_v2(made, target_keys=("boxes", "labels"))


def collate(samples):
    """Return the photos as a batch, and the targets as a list, since photos have different numbers of boxes."""
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), list(targets)


def train(model, loader, optimizer, schedule, device) -> torch.Tensor:
    """Train one epoch and return the mean loss."""
    model.train()
    total = torch.zeros((), device=device)
    for images, targets in tqdm(loader, unit="batch", mininterval=0.5):
        targets = [{"boxes": t["boxes"].float().to(device), "labels": t["labels"].to(device)} for t in targets]
        loss = sum(model(list(images.to(device, non_blocking=True)), targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total / len(loader)


@torch.no_grad()
def mean_ap(model, loader, device, overlap: float = 0.5) -> float:
    """Return the mean over classes of the area under the precision-recall curve.

    Each box counts once, for the most confident detection that overlaps it by half.
    """
    model.eval()
    scores = [[] for _ in range(CLASSES)]  # for each class: (score, whether the detection is correct) of all detections
    there = [0] * CLASSES
    for images, targets in loader:
        for found, target in zip(model(list(images.to(device))), targets, strict=True):
            found = {name: value.cpu() for name, value in found.items()}
            for label in {*found["labels"].tolist(), *target["labels"].tolist()}:
                boxes = target["boxes"][target["labels"] == label].float().cpu()
                there[label] += len(boxes)
                mine = found["labels"] == label
                free = torch.ones(len(boxes), dtype=torch.bool)
                for score, box in zip(found["scores"][mine].tolist(), found["boxes"][mine], strict=True):
                    overlaps = box_iou(box[None], boxes)[0] * free
                    right = len(boxes) > 0 and overlaps.max().item() >= overlap
                    if right:
                        free[overlaps.argmax()] = False
                    scores[label].append((score, float(right)))
    return sum(area(scores[label], there[label]) for label in range(CLASSES)) / max(1, sum(map(bool, there)))


def area(found: list[tuple[float, float]], there: int) -> float:
    """Return the area of one class: the sum over found boxes of the best precision at this recall or higher."""
    if not found or not there:
        return 0.0
    right = torch.tensor([right for _, right in sorted(found, reverse=True)])
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)
    return (best * right).sum().item() / there


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    DataLoader = dali_compat.DataLoader if args.loader == "dali_compat" else torch.utils.data.DataLoader
    options = dict(num_workers=args.workers, persistent_workers=args.workers > 0, collate_fn=collate)
    train_loader = DataLoader(dataset(args, "train"), args.batch_size, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(dataset(args, "val"), args.batch_size, **options)
    if isinstance(train_loader, dali_compat.DataLoader):
        print(train_loader.explain())

    model = ssdlite320_mobilenet_v3_large(num_classes=CLASSES, weights=None, weights_backbone=args.weights).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=4e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train_loader))
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        loss = train(model, train_loader, optimizer, schedule, device).item()
        rate = len(train_loader) * args.batch_size / (time.perf_counter() - begin)
        score = mean_ap(model, val_loader, device)
        print(f"epoch {epoch}: loss {loss:.3f}, AP50 {score:.4f}, {rate:,.0f} images/s", flush=True)
    if isinstance(train_loader, dali_compat.DataLoader):
        print(train_loader.stats())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="contains VOCdevkit/VOC2012, of Pascal VOC or of make_photos.py")
    parser.add_argument("--download", action="store_true", help="download Pascal VOC 2012 into the folder, 2 GB")
    parser.add_argument("--loader", choices=["dali_compat", "torchvision"], default="dali_compat")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="num_workers of the loader")
    parser.add_argument("--weights", help='weights of the backbone, such as "DEFAULT" (default: from scratch)')
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
