"""Question: how fast is a custom Dataset whose __getitem__ opens files with Pillow, and how much processor time does it
take from the training thread?

Method. One process. Torch's loader and ours load the same class, with ImageNet's training transform. Ours also loads
DALIImageList of the same files. The cases take turns over --rounds rounds. A turn opens a loader, runs an epoch that is
not counted, and counts --epochs epochs: images per second over all of them, and the calling thread's processor time per
batch (time.thread_time() around next()). Ratios are within a round.

Cases: torch:W, own:W and list:W with W workers; in own:0 the class runs in the calling thread. stream:W and
torchstream:W load an IterableDataset of the same files, in which each worker reads the bytes of its part. It has the
training transform of open_clip: RandomResizedCrop(224, scale=(0.9, 1), bicubic), no flip.

Confounders.
- Nothing consumes the batches.
- With --replicate the files come from memory: no disk, warm caches, for every case.
- Worker processes of torch:W and own:W are created for each epoch, and their start is counted.
- With --train all cases train the same model; "synthetic" repeats one batch on the device, and the ratios are relative
  to it. Workers are then persistent, and start before the counted epochs. A turn is within a first epoch if
  --replicate makes epochs longer than turns; --seen runs a whole epoch before it.

Command.
    python benchmarks/own_dataset.py --data PHOTOS --replicate 20 --rounds 5 --json OUT.json
    python benchmarks/own_dataset.py --data PHOTOS --replicate 200 --train resnet18 --seconds 4 --json OUT.json
"""

import dataclasses
import io
import itertools
import time
import warnings

import common
import loaders
import torch
import training_step
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchvision import transforms as T


class Own(Dataset):
    """A data set in the most common form."""

    def __init__(self, samples, transform):
        self.samples, self.transform = samples, transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, label


class Stream(IterableDataset):
    """An iterable data set of encoded images."""

    def __init__(self, samples):
        crop = T.RandomResizedCrop(224, scale=(0.9, 1.0), interpolation=T.InterpolationMode.BICUBIC)
        self.samples = samples
        self.transform = T.Compose([crop, T.ToTensor(), T.Normalize(loaders.MEAN, loaders.STD)])

    def __iter__(self):
        info = get_worker_info()
        for path, label in self.samples if info is None else self.samples[info.id :: info.num_workers]:
            with open(path, "rb") as file:
                encoded = io.BytesIO(file.read())
            yield self.transform(Image.open(encoded).convert("RGB")), label


def opened(case, settings):
    name, workers, _ = common.split_case(case, settings.workers)
    settings = dataclasses.replace(settings, workers=workers)
    samples = loaders.dataset("torchvision", settings.root).samples
    if name == "list":
        from dali_compat import DALIImageList

        data = DALIImageList(*map(list, zip(*samples, strict=True)), loaders.transform())
        return loaders.ours_loader(settings, data)
    data = Stream(samples) if name.endswith("stream") else Own(samples, loaders.transform())
    if name.startswith("torch"):
        return loaders.torchvision_loader(settings, data)
    return loaders.ours_loader(settings, data)


def turn(case, settings, epochs):
    loader = opened(case, settings)
    for batch in loader.epoch():
        loaders.check(batch, settings)
    loaders.synchronise(settings.device)
    images = batches = 0
    own, begin = 0.0, time.perf_counter()
    for _ in range(epochs):
        since = time.thread_time()
        for _, labels in loader.epoch():
            own += time.thread_time() - since
            images, batches = images + len(labels), batches + 1
            since = time.thread_time()
    loaders.synchronise(settings.device)
    row = {"speed": images / (time.perf_counter() - begin), "host_ms": 1e3 * own / batches}
    loader.close()
    del loader
    loaders.release(settings.device)
    return row


def training_turn(case, settings, args):
    """Return images per second of a model that trains."""
    name, *_ = common.split_case(case, settings.workers)
    step = training_step.make_step(
        args.train, args.program, settings.device, None if args.program == "eager" else "inductor"
    )
    loader = None
    if name == "synthetic":
        images = torch.randn(settings.batch_size, 3, 224, 224, device=settings.device)
        batches = itertools.repeat(
            (images, torch.zeros(settings.batch_size, dtype=torch.int64, device=settings.device))
        )
    else:
        loader = opened(case, settings)
        if args.seen:
            for _ in loader.epoch():
                pass
        batches = loaders.endless(loader)
    for _ in range(args.warmup):
        step(*_on(next(batches), settings.device))
    loaders.synchronise(settings.device)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        images, labels = _on(next(batches), settings.device)
        step(images, labels)
        count += len(labels)
    loaders.synchronise(settings.device)
    row = {"speed": count / (time.perf_counter() - begin), "host_ms": 0.0}
    batches = None
    if loader is not None:
        loader.close()
    loaders.release(settings.device)
    return row


def _on(batch, device):
    return [one.to(device, non_blocking=True) for one in batch]


def report(rounds, cases):
    speed, host = common.medians(rounds, "speed"), common.medians(rounds, "host_ms")
    rows = []
    for case in cases:
        ratio = common.ratio(rounds, "speed", case, cases[0])
        rows.append([case, *common.spread(speed[case], ",.0f"), ratio, *common.spread(host[case], ".1f")])
    head = ["case", "images/s", "min - max", f"to {cases[0]}", "ms of the thread's a batch", "min - max"]
    print("\n" + common.markdown(head, rows))


def main():
    options = common.parser(__doc__)
    options.add_argument("--epochs", type=int, default=2, help="counted epochs per turn")
    options.add_argument("--cases", nargs="+", default=None, help="(default: torch, own and list, and own:0)")
    options.add_argument("--persistent", action="store_true", help="keep workers between epochs")
    options.add_argument("--train", default=None, help="name of a model to train on the batches")
    options.add_argument("--program", default="eager", choices=("eager", "compiled"))
    options.add_argument("--seconds", type=float, default=4, help="length of a turn of --train")
    options.add_argument("--seen", action="store_true", help="turns of --train are in later epochs than the first")
    options.add_argument("--warmup", type=int, default=20, help="batches of a turn of --train that are not counted")
    args = options.parse_args()
    warnings.simplefilter("ignore")
    cases = args.cases or [f"{name}:{args.workers}" for name in ("torch", "own", "list")] + ["own:0"]
    if args.train and args.cases is None:
        cases = ["synthetic", *cases[:3]]
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with common.folder(args.data, args.replicate) as root:
        time.sleep(1)  # recently written files are not decoded by DALI
        result = common.begun("own_dataset", args, images=common.describe(root, args.data))
        settings = loaders.Settings(
            str(root), device, args.batch_size, args.workers, persistent=args.persistent or bool(args.train)
        )
        for number, case in common.in_turn(cases, args.rounds):
            row = training_turn(case, settings, args) if args.train else turn(case, settings, args.epochs)
            result["rounds"].append({"round": number, "case": case, **row})
            print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)
        report(result["rounds"], cases)


if __name__ == "__main__":
    main()
