"""Ray Train: two workers, each with a loader, a share of the photos and, if there are any, a GPU.

    python examples/ray_train.py imagenet --workers 8
    python examples/make_photos.py photos && python examples/ray_train.py photos --size 64 --batch-size 16

Reproduces: the PyTorch example of Ray Train's documentation. A DistributedSampler distributes the photos, as with
torchrun, so the loader need not pass through prepare_data_loader(). Loaders that do, such as a framework's, are
dali_compat's after ``dali_compat.install()`` in the worker's function.

Measured: on two NVIDIA H200 with 32 cores a ResNet-18 trains at 3,010 images/s in each of two workers, in the second
epoch, and next() takes 2.3% of the time. Ray's output has a line of each worker's loader after each epoch, and the
metrics include its images per second and the share of time spent waiting for it.
"""

import argparse
import logging
import os
import tempfile
from pathlib import Path

import ray.train
import ray.train.torch
import torch
import torchvision.transforms as T
from torch.nn import functional as F
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.models import get_model

from dali_compat import DataLoader

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def train_worker(config: dict) -> None:
    """The function of each worker, called after Ray has set up torch.distributed."""
    torch.manual_seed(config["seed"])
    rank, device = ray.train.get_context().get_world_rank(), ray.train.torch.get_device()
    augment = T.Compose(
        [T.RandomResizedCrop(config["size"]), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    )
    dataset = ImageFolder(config["folder"], augment)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, config["batch_size"], sampler=sampler, num_workers=config["threads"], device=device)
    classes = len(dataset.class_to_idx)  # a global named "classes" would make Ray pickle torch.classes, which fails
    model = ray.train.torch.prepare_model(get_model(config["model"], num_classes=classes))
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=0.9, weight_decay=1e-4)
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        given = loader.stats(reset=True)
        metrics = {
            "loss": total.item() / len(loader),
            "images_per_second": given.images / given.seconds,
            "waited": given.waited / given.seconds,
        }
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(folder) / "checkpoint.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def main(args):
    if args.workers == 0:
        logging.basicConfig(level=logging.INFO)  # as Ray does in its workers
    trainer = ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={
            "folder": str((args.folder / "train").resolve()),  # workers have different working directories
            "threads": (os.cpu_count() or args.workers) // max(1, args.workers),
            **{name: getattr(args, name) for name in ("model", "size", "epochs", "batch_size", "lr", "seed")},
        },
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available()),
        run_config=ray.train.RunConfig(storage_path=str(args.results.resolve())),
    )
    result = trainer.fit()
    print(f"the first worker's last epoch: {result.metrics}\n{result.checkpoint}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="contains train/CLASS/PHOTO")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="processes, each with a GPU (default %(default)s); 0 trains in this process, or in each of torchrun's",
    )
    parser.add_argument("--model", default="resnet18", help="name of a torchvision model (default %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="batch size per worker (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("ray_results"), help="default ./%(default)s")
    main(parser.parse_args())
