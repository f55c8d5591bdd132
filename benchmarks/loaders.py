"""The loaders under test, each opened as its documentation describes; all do ImageNet's transforms.

Every loader gives float32 (N, 3, 224, 224) and int64 (N,) on the device, drops the last short batch, and draws
RandomResizedCrop from torchvision's ranges: scale (.08, 1), ratio (3/4, 4/3).
"""

import gc
import itertools
import pathlib
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torchvision.transforms as T

CROP, RESIZE = 224, 256
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
HINT_WIDTH, HINT_HEIGHT = 5980, 6430  # the largest image of ImageNet, as in NVIDIA's example


@dataclass
class Opened:
    """An open loader: epoch() starts an epoch, close() releases resources, explain() describes ours."""

    epoch: Callable[[], Iterator[Any]]
    close: Callable[[], None]
    explain: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Settings:
    """Options for opening a loader.

    depth is the number of batches in flight (per worker); None is the loader's default. channels_last: ours and the
    hand-written loader return such batches. shard and shards select files of the hand-written loader; the others take
    a sampler.
    """

    root: str
    device: torch.device
    batch_size: int
    workers: int
    depth: int | None = None
    recipe: str = "train"
    channels_last: bool = False
    shard: int = 0
    shards: int = 1
    persistent: bool = False  # keep workers between epochs, in torch's loader and in ours if workers read the data set


def transform(recipe="train"):
    """Return ImageNet's transforms: "train" or "eval"; "resize" is "eval" without a crop."""
    geometry = {
        "train": [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip()],
        "eval": [T.Resize(RESIZE), T.CenterCrop(CROP)],
        "resize": [T.Resize((CROP, CROP))],
    }
    return T.Compose([*geometry[recipe], T.ToTensor(), T.Normalize(MEAN, STD)])


def torch_arguments(settings, sampler, stream=False):
    """Return the arguments of torch's DataLoader and ours: a sampler, or shuffle=True unless the data are a stream."""
    order = {"sampler": sampler} if sampler is not None else {} if stream else {"shuffle": True}
    return {
        "batch_size": settings.batch_size,
        "num_workers": settings.workers,
        "prefetch_factor": settings.depth,
        "pin_memory": settings.device.type == "cuda",
        "drop_last": True,
        "persistent_workers": settings.persistent and settings.workers > 0,
        **order,
    }


def _is_stream(data):
    return isinstance(data, torch.utils.data.IterableDataset)


def dataset(name, root, recipe="train"):
    """Return the data set for a case's loader, or None if the loader lists the folder itself."""
    if name == "torchvision":
        from torchvision.datasets import ImageFolder

        return ImageFolder(str(root), transform(recipe))
    if name.startswith("ours"):
        from dali_compat import DALIImageFolder

        return DALIImageFolder(str(root), transform(recipe))
    return None


def torchvision_loader(settings, data, sampler=None):
    """Open a DataLoader with pinned memory and non-blocking copies, as in pytorch/examples."""
    loader = torch.utils.data.DataLoader(data, **torch_arguments(settings, sampler, _is_stream(data)))

    def epoch():
        for images, labels in loader:
            yield (images.to(settings.device, non_blocking=True), labels.to(settings.device, non_blocking=True))

    return Opened(epoch, lambda: None)


def ours_loader(settings, data, sampler=None, **options):
    """Open dali_compat's loader; options are arguments of its DataLoader.

    fallback="error" ensures that torchvision is not measured instead.
    """
    import dali_compat

    given = {**torch_arguments(settings, sampler, _is_stream(data)), "device": settings.device, "fallback": "error"}
    if settings.channels_last:
        given["memory_format"] = torch.channels_last
    loader = dali_compat.DataLoader(data, **{**given, **options})
    return Opened(lambda: iter(loader), loader.close, loader.explain)


def ours_exact(settings, data, sampler=None, **options):
    return ours_loader(settings, data, sampler, exact=True, **options)


def ours_channels_last(settings, data, sampler=None, **options):
    return ours_loader(settings, data, sampler, memory_format=torch.channels_last, **options)


def handwritten_loader(settings, data=None, sampler=None, pipelines=1, hw_decoder_load=None):
    """Open the pipeline of DALI's PyTorch ResNet-50 example, with torchvision's ranges for the crop.

    pipelines: The number of pipelines that return batches in turn, each with separate threads and a shard of the files.
    hw_decoder_load: The share of JPEGs for the hardware decoder; None is DALI's default.
    """
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import pipeline_def
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

    if sampler is not None:
        raise ValueError("DALI's reader takes no sampler")
    cuda, train = settings.device.type == "cuda", settings.recipe == "train"
    hints = {"preallocate_width_hint": HINT_WIDTH, "preallocate_height_hint": HINT_HEIGHT} if cuda else {}
    load = {"hw_decoder_load": hw_decoder_load} if cuda and hw_decoder_load is not None else {}

    @pipeline_def(exec_dynamic=True)
    def pipeline(number):
        files, labels = fn.readers.file(
            file_root=str(settings.root),
            shard_id=settings.shard * pipelines + number,
            num_shards=settings.shards * pipelines,
            random_shuffle=train,
            pad_last_batch=True,
            name="Reader",
        )
        device = "mixed" if cuda else "cpu"
        if train:
            images = fn.decoders.image_random_crop(
                files,
                device=device,
                output_type=types.RGB,
                num_attempts=100,
                random_aspect_ratio=[3 / 4, 4 / 3],
                random_area=[0.08, 1.0],
                **hints,
                **load,
            )
            images = fn.resize(images, resize_x=CROP, resize_y=CROP, interp_type=types.INTERP_TRIANGULAR)
            mirror = fn.random.coin_flip(probability=0.5)
        else:
            images = fn.decoders.image(files, device=device, output_type=types.RGB, **load)
            images = fn.resize(images, size=RESIZE, mode="not_smaller", interp_type=types.INTERP_TRIANGULAR)
            mirror = False
        images = fn.crop_mirror_normalize(
            images.gpu() if cuda else images,
            dtype=types.FLOAT,
            output_layout="HWC" if settings.channels_last else "CHW",
            crop=(CROP, CROP),
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
            mirror=mirror,
        )
        return images, labels.gpu() if cuda else labels

    queue = {"prefetch_queue_depth": settings.depth} if settings.depth else {}
    iterators = []
    for number in range(pipelines):
        built = pipeline(
            number,
            batch_size=settings.batch_size,
            num_threads=settings.workers,
            seed=12 + number,
            device_id=torch.cuda.current_device() if cuda else None,
            **queue,
        )
        built.build()
        iterators.append(
            DALIClassificationIterator(
                built, reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
            )
        )

    def epoch():
        for loader in itertools.cycle([iter(loader) for loader in iterators]):
            batch = next(loader, None)
            if batch is None:
                return
            images, labels = batch[0]["data"], batch[0]["label"].squeeze(-1).long()
            yield images.permute(0, 3, 1, 2) if settings.channels_last else images, labels

    return Opened(epoch, lambda: None)


def write_tar(root, archive):
    """Write the folder's files into a tar in the order of ImageFolder."""
    with tarfile.open(archive, "w", dereference=True) as tar:  # dereference hard links as well
        for number, path in enumerate(sorted(pathlib.Path(root).glob("*/*"))):
            tar.add(path.resolve(), f"{number:07d}{path.suffix}")


def turboloader_loader(settings, data=None, sampler=None, archive=None):
    """Open TurboLoader, if it is installed, with the antialiasing of torchvision's resize.

    It reads a tar of the folder's files, by default a temporary one. Labels are those of the returned indices.
    """
    import turboloader

    if settings.recipe == "eval" or sampler is not None:
        raise ValueError("TurboLoader's cases are RandomResizedCrop and Resize, of all files")
    place = tempfile.TemporaryDirectory(dir=pathlib.Path(settings.root).parent)
    if archive is None:
        archive = pathlib.Path(place.name) / "images.tar"
        write_tar(settings.root, archive)
    names = [path.parent.name for path in sorted(pathlib.Path(settings.root).glob("*/*"))]
    classes = {name: number for number, name in enumerate(sorted(set(names)))}
    labels = torch.tensor([classes[name] for name in names])
    loader = turboloader.DataLoader(
        str(archive),
        settings.batch_size,
        settings.workers,
        shuffle=settings.recipe == "train",
        drop_last=True,
        train_aug=settings.recipe == "train",
        antialias=True,
        image_size=CROP,
        transform=turboloader.ImageNetNormalize(),
        output_format="pytorch",
    )
    epochs = itertools.count()

    def epoch():
        loader.set_epoch(next(epochs))
        for images, found in loader:
            images = torch.as_tensor(images).to(settings.device)
            yield images, labels[found["indices"]].to(settings.device)

    return Opened(epoch, place.cleanup)


OPEN = {
    "torchvision": torchvision_loader,
    "handwritten": handwritten_loader,
    "turboloader": turboloader_loader,
    "ours": ours_loader,
    "ours_exact": ours_exact,
    "ours_channels_last": ours_channels_last,
}


def endless(opened):
    """Yield batches of one epoch after another."""
    while True:
        batch = None
        for batch in opened.epoch():
            yield batch
        if batch is None:
            raise SystemExit("an epoch has no full batch: pass more images, --replicate, or a smaller --batch-size")


def device_of(args):
    """Return the requested device; by default the GPU if there is one."""
    return torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def see(opened, device):
    """Run whole epochs of ours until every file was read, and compared if a GPU's JPEG engine decodes."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
    from parity.difference import see as see_all

    see_all(opened.epoch, opened.explain, device)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device):
    """Free the memory that garbage collectors and memory pools keep after the last reference to a loader is gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        from nvidia.dali.backend import ReleaseUnusedMemory

        ReleaseUnusedMemory()


def check(batch, settings):
    """Exit if a case's batches differ in format from those of the others."""
    images, labels = batch
    wanted = (settings.batch_size, 3, CROP, CROP)
    if tuple(images.shape) != wanted or images.dtype != torch.float32 or images.device.type != settings.device.type:
        raise SystemExit(f"images: {tuple(images.shape)} {images.dtype} {images.device}, expected {wanted} float32")
    if tuple(labels.shape) != wanted[:1] or labels.dtype != torch.int64 or labels.device.type != settings.device.type:
        raise SystemExit(f"labels: {tuple(labels.shape)} {labels.dtype} {labels.device}")
    if not torch.isfinite(images).all() or not 0.3 < images.std() < 3:
        raise SystemExit(f"images do not look like normalised photos: std {images.std():.3f}")
