"""Segmentation: a network learns the class of each pixel, on Pascal VOC; prints mIoU and images per second.

    python examples/segmentation.py voc --download
    python examples/make_photos.py shapes --voc && python examples/segmentation.py shapes --size 64 --epochs 2

Reproduces: the augmentation and the schedule of torchvision's recipe. v2 transforms change photo and mask together. The
data set's code runs as in PyTorch's loader, and DALI computes the photos' pixels for whole batches. --loader
torchvision is the same training with PyTorch's loader. --model accepts any model of torchvision.models.segmentation.

Measured: nothing yet. The photos of make_photos.py only show that the script works.
"""

import argparse
import os
import time

import torch
from torch.nn import functional as F
from torchvision import tv_tensors
from torchvision.datasets import VOCSegmentation, wrap_dataset_for_transforms_v2
from torchvision.models import get_model
from torchvision.transforms import v2 as T
from tqdm import tqdm

import dali_compat

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES, NO_CLASS = 21, 255  # the first class is the background


def transforms(size: int, train: bool) -> T.Compose:
    """Return transforms of photo and mask. Masks are never interpolated, and padding belongs to no class."""
    fill = {tv_tensors.Mask: NO_CLASS, "others": 0}
    augment = [
        T.RandomShortestSize(range(size // 2, size * 2)),
        T.RandomCrop(size, pad_if_needed=True, fill=fill),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.3, 0.3, 0.3),
    ]
    whole = [T.Resize((size, size))]
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    convert = [T.ToImage(), T.ToDtype(dtypes, scale=True), T.Normalize(MEAN, STD), T.ToPureTensor()]
    return T.Compose([*(augment if train else whole), *convert])


def dataset(args, part: str):
    made = VOCSegmentation(
        args.folder, image_set=part, download=args.download, transforms=transforms(args.size, part == "train")
    )
    return wrap_dataset_for_transforms_v2(made)


def train(model, loader, optimizer, schedule, device) -> torch.Tensor:
    """Train one epoch and return the mean loss."""
    model.train()
    total = torch.zeros((), device=device)
    for images, masks in tqdm(loader, unit="batch", mininterval=0.5):
        images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            out = model(images)["out"]
        loss = F.cross_entropy(out.float(), masks.squeeze(1), ignore_index=NO_CLASS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total / len(loader)


@torch.no_grad()
def mean_iou(model, loader, device) -> float:
    """Return the mean over classes of the intersection over union of prediction and mask."""
    model.eval()
    pairs = torch.zeros(CLASSES, CLASSES, dtype=torch.int64, device=device)
    for images, masks in loader:
        masks = masks.to(device).squeeze(1)
        found = model(images.to(device))["out"].argmax(1)
        known = masks != NO_CLASS
        pairs += torch.bincount(masks[known] * CLASSES + found[known], minlength=CLASSES**2).view(CLASSES, CLASSES)
    both, union = pairs.diag(), pairs.sum(0) + pairs.sum(1) - pairs.diag()
    return (both / union)[pairs.sum(1) > 0].mean().item()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    DataLoader = dali_compat.DataLoader if args.loader == "dali_compat" else torch.utils.data.DataLoader
    options = dict(num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=device.type == "cuda")
    train_loader = DataLoader(dataset(args, "train"), args.batch_size, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(dataset(args, "val"), args.batch_size, **options)
    if isinstance(train_loader, dali_compat.DataLoader):
        print(train_loader.explain())

    model = get_model(args.model, num_classes=CLASSES, weights=None, weights_backbone=args.weights).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, args.epochs * len(train_loader), power=0.9)
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        loss = train(model, train_loader, optimizer, schedule, device).item()
        rate = len(train_loader) * args.batch_size / (time.perf_counter() - begin)
        score = mean_iou(model, val_loader, device)
        print(f"epoch {epoch}: loss {loss:.3f}, mIoU {score:.4f}, {rate:,.0f} images/s", flush=True)
    if isinstance(train_loader, dali_compat.DataLoader):
        print(train_loader.stats())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="contains VOCdevkit/VOC2012, of Pascal VOC or of make_photos.py")
    parser.add_argument("--download", action="store_true", help="download Pascal VOC 2012 into the folder, 2 GB")
    parser.add_argument("--loader", choices=["dali_compat", "torchvision"], default="dali_compat")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="num_workers of the loader")
    parser.add_argument(
        "--model", default="lraspp_mobilenet_v3_large", help="name of a torchvision model (default %(default)s)"
    )
    parser.add_argument("--weights", help='weights of the backbone, such as "DEFAULT" (default: from scratch)')
    parser.add_argument("--size", type=int, default=480, help="side of the crops in pixels (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
