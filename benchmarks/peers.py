"""Question: how fast do other loaders load the same files on a CPU, with ImageNet's training transform?

Method. Each loader runs in its own process, as its documentation recommends: RandomResizedCrop(224),
RandomHorizontalFlip, to float, Normalize; batches of (images, labels) tensors, the last short one dropped. Conversions
are timed. Before the rounds, two batches without shuffling and with CenterCrop are compared with torchvision's, both
labels and pixels (`difference`: mean absolute difference in levels of 0..255), and a first epoch is loaded. Then the
loaders take turns (A B C, B C A, ...). A turn takes WARMUP batches, which empty the queues that were filled during the
others' turns, and then times as many batches as an epoch has, so that it contains one start of an epoch.

Confounders.
- Nothing consumes the batches. Files come from memory, and few are different (--replicate, by default 19).
- With --replicate 0, LitData writes an index into the folder.
- Workers, or threads, are --workers for each; worker processes persist between epochs if the loader has such an option.
- Pixels differ: torchcodec, LitData's converted data and SPDL resize tensors or video frames, DALI has its own resize.
- WebDataset and TurboLoader shuffle a tar in windows, LitData in chunks, DALI's reader in a window of files.
- TurboLoader has no CenterCrop: its check is Resize((224, 224)). Its .tbl format keeps resized images, so that crops
  would have fewer pixels; it is not measured.
- SPDL needs FFmpeg's libraries (LD_LIBRARY_PATH).

Table. Printed at the end in Markdown, and in docs/comparison.md by tables.py from results/peers_cpu.json.

Command.
    python benchmarks/peers.py --data PHOTOS --json OUT.json
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import io
import itertools
import multiprocessing
import pathlib
import random
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import common
import loaders
import tables
import torch
from loaders import CROP, MEAN, RESIZE, STD, Opened
from PIL import Image
from torch.utils.data import DataLoader, SequentialSampler, StackDataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop, v2

WARMUP, CHECKED, PATIENCE = 8, 2, 120  # batches, batches, seconds


class Peer(NamedTuple):
    """A loader: ``open(settings, work)`` reads what ``convert(settings, work)`` wrote, if there is such a step."""

    module: str
    package: str  # on PyPI
    open: Callable[..., Opened]
    convert: Callable[..., None] | None = None
    check: str = "eval"  # recipe of the comparison with torchvision


def on_tensors(recipe):
    """Return ImageNet's transforms for uint8 tensors."""
    geometry = [v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()]
    if recipe == "eval":
        geometry = [v2.Resize(RESIZE, antialias=True), v2.CenterCrop(CROP)]
    return v2.Compose([*geometry, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def in_order(settings, data):
    """Return None in training, where samples are shuffled, and a sampler otherwise."""
    return None if data is None or settings.recipe == "train" else SequentialSampler(data)


def torch_loader(settings, data):
    return loaders.torchvision_loader(settings, data, in_order(settings, data))


def of_loaders(name, settings, work):
    """Open a case of loaders.py."""
    data = loaders.dataset(name, settings.root, settings.recipe)
    return loaders.OPEN[name](settings, data, in_order(settings, data))


def torchcodec(settings, work):
    from torchcodec.decoders import decode_image

    return torch_loader(settings, ImageFolder(settings.root, on_tensors(settings.recipe), loader=decode_image))


def spdl(settings, work):
    """Open SPDL as in its ImageNet example: a thread decodes a whole batch, and FFmpeg's filters crop and resize."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    train, samples = settings.recipe == "train", ImageFolder(settings.root).samples
    mean, std = (255 * torch.tensor(of).view(3, 1, 1) for of in (MEAN, STD))
    eval_ = {"scale_width": RESIZE, "scale_height": RESIZE, "scale_mode": "crop", "scale_algo": "bilinear"}
    eval_ |= {"crop_width": CROP, "crop_height": CROP}

    def crop(packets):
        image = torch.empty(3, packets.height, packets.width, device="meta")
        y, x, h, w = RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3))
        flip = ",hflip" if random.random() < 0.5 else ""
        words = f"crop=w={w}:h={h}:x={x}:y={y}:exact=1,scale=w={CROP}:h={CROP}:flags=bilinear{flip}"
        return spdl.io.get_video_filter_desc(filter_desc=words)

    def decode(batch):
        frames = []
        for path, _ in batch:
            packets = spdl.io.demux_image(path)
            words = crop(packets) if train else spdl.io.get_video_filter_desc(**eval_)
            frames.append(spdl.io.decode_packets(packets, filter_desc=words))
        images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        return (images - mean) / std, torch.tensor([label for _, label in batch])

    def epoch():
        source = random.sample(samples, len(samples)) if train else samples
        pipeline = PipelineBuilder().add_source(source).aggregate(settings.batch_size, drop_last=True)
        pipeline = pipeline.pipe(decode, concurrency=settings.workers, output_order="completion" if train else "input")
        pipeline = pipeline.add_sink().build(num_threads=settings.workers)
        with pipeline.auto_stop():
            yield from pipeline

    return Opened(epoch, lambda: None)


def from_bytes(transform, data):
    return transform(Image.open(io.BytesIO(data)).convert("RGB"))


def litdata_raw(settings, work):
    """Open LitData's loader of raw files, with labels from ImageFolder because LitData gives none."""
    from litdata import StreamingRawDataset

    transform = functools.partial(from_bytes, loaders.transform(settings.recipe))
    files = StreamingRawDataset(settings.root, cache_dir=str(work / settings.recipe), transform=transform)
    classes = ImageFolder(settings.root).class_to_idx
    paths = [pathlib.Path(item.path) for item in files.items]
    data = StackDataset(files, [classes[path.parent.name] for path in paths])
    return torch_loader(settings, Subset(data, sorted(range(len(paths)), key=paths.__getitem__)))


def litdata_sample(sample):
    from litdata import Image

    return {"image": Image(path=sample[0]), "label": sample[1]}


def litdata_convert(settings, work):
    from litdata import optimize

    samples = ImageFolder(settings.root).samples
    optimize(
        litdata_sample,
        samples,
        str(work / "chunks"),
        num_workers=settings.workers,
        chunk_bytes="64MB",
        keep_data_ordered=True,
    )


def of_sample(transform, sample):
    return transform(sample["image"]), sample["label"]


def litdata(settings, work):
    from litdata import StreamingDataLoader, StreamingDataset

    change, train = functools.partial(of_sample, on_tensors(settings.recipe)), settings.recipe == "train"
    data = StreamingDataset(str(work / "chunks"), shuffle=train, drop_last=True, transform=change)
    arguments = {"batch_size": settings.batch_size, "num_workers": settings.workers, "drop_last": True}
    loader = StreamingDataLoader(data, persistent_workers=settings.persistent, **arguments)
    return Opened(lambda: iter(loader), lambda: None)


def webdataset_convert(settings, work):
    import webdataset

    samples = ImageFolder(settings.root).samples
    with webdataset.ShardWriter(str(work / "%04d.tar"), maxcount=-(-len(samples) // 16), verbose=0) as out:
        for number, (path, label) in enumerate(samples):
            out.write({"__key__": f"{number:07d}", "jpg": pathlib.Path(path).read_bytes(), "cls": label})


def webdataset(settings, work):
    import webdataset as wds

    train, transform = settings.recipe == "train", loaders.transform(settings.recipe)
    data = wds.WebDataset(sorted(map(str, work.glob("*.tar"))), shardshuffle=100 if train else False)
    data = (data.shuffle(1000) if train else data).decode("pilrgb").to_tuple("jpg", "cls")
    data = data.map_tuple(transform, lambda label: label).batched(settings.batch_size, partial=not train)
    workers = {"num_workers": settings.workers, "persistent_workers": settings.persistent}
    loader = wds.WebLoader(data, batch_size=None, **workers)
    return Opened(lambda: iter(loader), lambda: None)


def timm(settings, work):
    """Open the loader of timm's train.py, without the augmentations that are not in the recipe."""
    from timm.data import ImageDataset, create_loader

    loader = create_loader(
        ImageDataset(settings.root),
        CROP,
        settings.batch_size,
        is_training=settings.recipe == "train",
        color_jitter=None,
        crop_pct=CROP / RESIZE,
        num_workers=settings.workers,
        device=settings.device,
    )
    return Opened(lambda: iter(loader), lambda: None)


def huggingface_convert(settings, work):
    from datasets import load_dataset

    load_dataset("imagefolder", data_dir=settings.root, split="train", cache_dir=str(work))


def huggingface(settings, work):
    from datasets import load_dataset

    transform = loaders.transform(settings.recipe)

    def change(batch):
        return {"image": [transform(image.convert("RGB")) for image in batch["image"]], "label": batch["label"]}

    data = load_dataset("imagefolder", data_dir=settings.root, split="train", cache_dir=str(work))
    data = data.with_transform(change)
    loader = DataLoader(data, **loaders.torch_arguments(settings, in_order(settings, data)))
    return Opened(lambda: ((batch["image"], batch["label"]) for batch in loader), lambda: None)


def turboloader_convert(settings, work):
    loaders.write_tar(settings.root, work / "images.tar")


def turboloader(settings, work):
    return loaders.turboloader_loader(settings, archive=work / "images.tar")


PEERS = {
    "torchvision": Peer("torchvision", "torchvision", functools.partial(of_loaders, "torchvision")),
    "ours": Peer("dali_compat", "dali_compat", functools.partial(of_loaders, "ours")),
    "ours_exact": Peer("dali_compat", "dali_compat", functools.partial(of_loaders, "ours_exact")),
    "handwritten": Peer("nvidia.dali", "nvidia-dali-cuda130", functools.partial(of_loaders, "handwritten")),
    "torchcodec": Peer("torchcodec", "torchcodec", torchcodec),
    "spdl": Peer("spdl.io", "spdl", spdl),
    "litdata_raw": Peer("litdata", "litdata", litdata_raw),
    "litdata": Peer("litdata", "litdata", litdata, litdata_convert),
    "webdataset": Peer("webdataset", "webdataset", webdataset, webdataset_convert),
    "timm": Peer("timm", "timm", timm),
    "turboloader": Peer("turboloader", "turboloader", turboloader, turboloader_convert, "resize"),
    "huggingface": Peer("datasets", "datasets", huggingface, huggingface_convert),
}
WITHOUT_CASE = {"ffcv": "ffcv 1.0.2 does not build without the headers of OpenCV and libturbojpeg"}


def difference(peer, settings, work):
    """Return the mean absolute difference from torchvision's pixels, in levels of 0..255. Raise an error if labels
    differ."""
    settings = dataclasses.replace(settings, recipe=peer.check, workers=1, persistent=False)
    data = ImageFolder(settings.root, loaders.transform(peer.check))
    opened, scale, found = peer.open(settings, work), 255 * torch.tensor(STD).view(3, 1, 1), []
    expected = DataLoader(data, settings.batch_size, drop_last=True)
    pairs = zip(opened.epoch(), expected, strict=False)
    for batch, (images, labels) in itertools.islice(pairs, CHECKED):
        loaders.check(batch, settings)
        if batch[1].tolist() != labels.tolist():
            raise ValueError("labels or their order differ from ImageFolder's")
        found.append(((batch[0] - images).abs() * scale).mean().item())
    opened.close()
    return sum(found) / len(found)


def size(folder):
    """Return the bytes of the folder's files."""
    return sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file())


OPEN = []  # the stream of this process


def prepare(name, work, settings, batches):
    """Convert the files, compare batches, and load a first epoch. Return the version and the measurements."""
    peer = PEERS[name]
    multiprocessing.set_start_method("fork", force=True)
    importlib.import_module(peer.module)
    about = {"version": importlib.metadata.version(peer.package)}
    if peer.convert:
        begin = time.perf_counter()
        peer.convert(settings, work)
        about |= {"convert_s": time.perf_counter() - begin, "converted_bytes": size(work)}
        multiprocessing.set_start_method("fork", force=True)  # LitData's conversion changes it
    about["difference"] = difference(peer, settings, work)
    gc.collect()
    OPEN.append(loaders.endless(peer.open(settings, work)))
    return about | {"first_epoch": turn(settings, batches)}


def turn(settings, batches):
    """Return images per second of ``batches``, and mean and deviation of the batch before them."""
    (stream,) = OPEN
    for _ in range(WARMUP):
        images, labels = next(stream)
    loaders.check((images, labels), settings)
    row = {"mean": images.mean().item(), "std": images.std().item()}
    begin = time.perf_counter()
    count = sum(len(next(stream)[1]) for _ in range(batches))
    return {"images_per_s": count / (time.perf_counter() - begin), "images": count, **row}


def finish(settings, batches):
    """End the loader's workers."""
    OPEN.clear()
    gc.collect()


def main():
    options = common.parser(__doc__)
    options.set_defaults(batch_size=64, device="cpu", replicate=19)
    options.add_argument("--peers", nargs="+", default=[*PEERS, *WITHOUT_CASE], choices=[*PEERS, *WITHOUT_CASE])
    args = options.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision"])
    with (
        common.folder(args.data, args.replicate) as root,
        tempfile.TemporaryDirectory(dir=root.parent if args.replicate else None) as work,
        contextlib.ExitStack() as stack,
    ):
        settings = loaders.Settings(str(root), torch.device("cpu"), args.batch_size, args.workers, persistent=True)
        images = common.describe(root, args.data) | {"bytes": size(root)}
        missing = {name: WITHOUT_CASE[name] for name in args.peers if name in WITHOUT_CASE}
        result = common.begun("peers", args, images=images, peers={}, not_measured=missing)
        processes, batches = {}, images["files"] // args.batch_size

        def call(name, function, *arguments):
            """Call ``function`` in a loader's process, and return its result. If it fails, record the reason and return
            None."""
            try:
                return processes[name].submit(function, *arguments, settings, batches).result(PATIENCE)
            except ModuleNotFoundError as error:
                reason = f"{error} (pip install {PEERS[name].package})"
            except (Exception, SystemExit) as error:
                reason = f"{type(error).__name__}: {error}"
            result["not_measured"][name] = " ".join(reason.split())
            return None

        @stack.callback
        def end():
            for process in multiprocessing.active_children():
                process.kill()

        for name in (name for name in args.peers if name in PEERS):
            place = pathlib.Path(work) / name
            place.mkdir()
            processes[name] = concurrent.futures.ProcessPoolExecutor(1, context)
            if found := call(name, prepare, name, place):
                result["peers"][name] = found
            print(name, found or result["not_measured"][name], flush=True)
        for number, name in common.in_turn(list(result["peers"]), args.rounds):
            if name not in result["not_measured"] and (found := call(name, turn)):
                result["rounds"].append({"round": number, "case": name, **found})
                print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)
        for name in processes:
            call(name, finish)
        print("\n" + tables.peers(result))


if __name__ == "__main__":
    main()
