"""Question: how long does an epoch of CIFAR-10 take from a copy on the device, compared with torchvision and DALI?

Method. One process; every case opens its loader once and runs one epoch that is not counted. Then the cases take turns
(A B C, B C A, ...) for --rounds rounds of --epochs epochs each (torchvision: one). An epoch is timed twice: until its
last batch is returned, and until the device has finished all of them. Nothing consumes the batches. All cases shuffle,
crop 32 with a padding of 4, flip, convert and normalise, and end with float32 batches and int64 labels on the device.
The first batch of ours is timed from the call of the constructor, including the copy to the device.

Cases: torchvision:K (K persistent workers, pinned memory, non-blocking copies), ours (dali_compat on
torchvision.datasets.CIFAR10, num_workers=0), dali (a pipeline whose fn.external_source supplies rows of an array on
the device: fn.slice, fn.crop_mirror_normalize), and eager (one epoch at once in plain torch, all of it in memory, as
a training script written only for this data set would do).

Confounders.
- torchvision's persistent workers do not prepare the next epoch's batches while others are measured; they wait for the
  epoch to begin. Pinning uses a separate thread.
- ours and eager compute batches in chunks; an epoch begins with none prepared.
- dali keeps two batches prepared from the previous epoch; its random numbers are DALI's. It takes rows in torch's
  order.
- All cases run with CUDA_DEVICE_MAX_CONNECTIONS=32, which dali_compat sets on import.
- On a shared CPU torch's threads wait for one another. --threads 1 gives ours and eager one thread, compared with
  torchvision's K processes of one thread each. Without it a busy machine of 2 cores took 5 times as long.
- The pixels are those of a copy (cifar10_data.py), or noise (--data random); the speed does not depend on them.

Table. Printed at the end in Markdown; --json has every round.

Command.
    python benchmarks/cifar10.py --data CIFAR --rounds 5 --json OUT.json
"""

import argparse
import pathlib
import statistics
import time

import cifar10_data
import common
import torch
import torchvision.transforms as T
from cifar10_data import MEAN, STD
from torch.utils.data import DataLoader

PADDING, SIZE = 4, 32
TRAIN = T.Compose([T.RandomCrop(SIZE, padding=PADDING), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def torchvision_loader(dataset, args, workers):
    loader = DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=args.device.type == "cuda",
    )

    def epoch():
        for images, labels in loader:
            yield images.to(args.device, non_blocking=True), labels.to(args.device, non_blocking=True)

    return epoch, None


def ours_loader(dataset, args, workers):
    import dali_compat

    loader = dali_compat.DataLoader(dataset, args.batch_size, shuffle=True, device=args.device, fallback="error")
    return lambda: iter(loader), loader.explain


def dali_loader(dataset, args, workers):
    """Return a loader whose DALI pipeline receives rows of an array on the device."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    place = "gpu" if args.device.type == "cuda" else "cpu"
    images = torch.from_numpy(dataset.data).contiguous().to(args.device)
    labels = torch.tensor(dataset.targets)[:, None].to(args.device)

    class Rows:
        def __iter__(self):
            self.batches = iter(torch.randperm(len(labels)).to(args.device).split(args.batch_size))
            return self

        def __next__(self):
            rows = next(self.batches)
            batch = images[rows], labels[rows]
            return batch if place == "gpu" else tuple(part.numpy() for part in batch)

    @pipeline_def(exec_dynamic=True)
    def pipeline():
        pixels, targets = fn.external_source(
            Rows(), num_outputs=2, batch=True, layout=["HWC", None], cycle="raise", device=place
        )
        start = fn.random.uniform(values=[float(i) for i in range(-PADDING, PADDING + 1)], shape=[2], dtype=types.INT32)
        pixels = fn.slice(pixels, start=start, shape=[SIZE, SIZE], axes=[0, 1], out_of_bounds_policy="pad")
        pixels = fn.crop_mirror_normalize(
            pixels,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
            mirror=fn.random.coin_flip(probability=0.5),
        )
        return pixels, targets

    built = pipeline(
        batch_size=args.batch_size,
        num_threads=4,
        seed=12,
        device_id=torch.cuda.current_device() if place == "gpu" else None,
    )
    built.build()
    loader = DALIGenericIterator(
        built, ["images", "labels"], auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
    )

    def epoch():
        for batch in loader:
            yield batch[0]["images"], batch[0]["labels"].squeeze(1)

    return epoch, None


def eager_loader(dataset, args, workers):
    device = args.device
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).to(device)
    images = torch.nn.functional.pad(images, (PADDING,) * 4)
    labels = torch.tensor(dataset.targets).to(device)
    count, side = len(labels), SIZE + 2 * PADDING
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (MEAN, STD))

    def epoch():
        order, line = torch.randperm(count, device=device), torch.arange(SIZE, device=device)
        top, left = torch.randint(2 * PADDING + 1, (2, count, 1), device=device)
        flipped = torch.rand(count, 1, device=device) < 0.5
        x = left + torch.where(flipped, line.flip(0), line)
        index = ((top + line) * side)[:, :, None] + x[:, None, :]
        index = index.view(count, 1, -1).expand(count, 3, -1)
        pixels = images.index_select(0, order).view(count, 3, -1).gather(2, index).view(count, 3, SIZE, SIZE)
        pixels = pixels.to(torch.float32).div_(255).sub_(mean).div_(std)
        yield from zip(pixels.split(args.batch_size), labels[order].split(args.batch_size), strict=True)

    return epoch, None


OPEN = {"torchvision": torchvision_loader, "ours": ours_loader, "dali": dali_loader, "eager": eager_loader}


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def one_epoch(epoch, device):
    """Return milliseconds until all batches are returned, milliseconds until they are computed, and the sample
    count."""
    synchronise(device)
    begin, count = time.perf_counter(), 0
    for _, labels in epoch():
        count += len(labels)
    handed = time.perf_counter()
    synchronise(device)
    return 1e3 * (handed - begin), 1e3 * (time.perf_counter() - begin), count


def check(epoch, args, samples):
    """Exit if a case's batches differ in format from those of the others."""
    seen = torch.zeros(10, dtype=torch.int64)
    for number, (images, labels) in enumerate(epoch()):
        if number == 0:
            wanted = (min(args.batch_size, samples), 3, SIZE, SIZE)
            if tuple(images.shape) != wanted or images.dtype != torch.float32 or images.device.type != args.device.type:
                raise SystemExit(
                    f"images: {tuple(images.shape)} {images.dtype} {images.device}, expected {wanted} float32"
                )
            if labels.dtype != torch.int64 or labels.device.type != args.device.type:
                raise SystemExit(f"labels: {tuple(labels.shape)} {labels.dtype} {labels.device}")
            if not 0.5 < images.std() < 2:
                raise SystemExit(f"images do not look normalised: std {images.std():.3f}")
        seen += torch.bincount(labels.cpu(), minlength=10)
    return seen.tolist()


def first_batch(open_loader, args):
    """Return milliseconds from the constructor to the first batch, and to a second epoch's first batch."""
    times = []
    synchronise(args.device)
    begin = time.perf_counter()
    epoch, _ = open_loader()
    for _ in range(2):
        next(iter(epoch()))
        synchronise(args.device)
        times.append(1e3 * (time.perf_counter() - begin))
        begin = time.perf_counter()
    return times


def report(result, cases):
    rows = []
    done, handed = (common.medians(result["rounds"], key) for key in ("epoch_ms", "handed_out_ms"))
    for case in cases:
        ratio = common.ratio(result["rounds"], "epoch_ms", cases[0], case) if case != cases[0] else "1"
        rows.append([case, *common.spread(done[case], ",.1f"), *common.spread(handed[case], ",.1f"), ratio])
    print(
        "\n"
        + common.markdown(
            ["case", "epoch, ms", "min - max", "handed out, ms", "min - max", f"times as fast as {cases[0]}"], rows
        )
    )
    result["summary"] = {"epoch_ms": done, "handed_out_ms": handed}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--data", required=True, help="CIFAR10's root, a copy of image files (a folder or tar), or 'random'"
    )
    options.add_argument(
        "--cases", nargs="+", default=["torchvision:2", "torchvision:16", "ours", "dali", "eager"], metavar="NAME[:K]"
    )
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--epochs", type=int, default=5, help="epochs per turn; torchvision runs one")
    options.add_argument("--samples", type=int, help="samples per epoch, to try the script")
    options.add_argument("--threads", type=int, help="threads of torch's operations on the CPU (default: torch's)")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    args = options.parse_args()
    unknown = {case.partition(":")[0] for case in args.cases} - set(OPEN)
    if unknown:
        options.error(f"unknown cases {sorted(unknown)}; there are {', '.join(OPEN)}")
    torch.set_num_threads(args.threads or torch.get_num_threads())
    torch.zeros(1, device=args.device)  # start CUDA outside the measurements

    dataset, _ = cifar10_data.datasets(args.data, TRAIN, TRAIN, args.samples)
    result = common.begun("cifar10", args, samples=len(dataset), plans={})

    epochs, labels = {}, {}
    for case in args.cases:
        name, workers, _ = common.split_case(case, 0)
        if name == "ours":
            times = first_batch(lambda: OPEN[name](dataset, args, workers), args)
            result["first_batch_ms"], result["second_epoch_ms"] = times
            print("ours, first batch and second epoch's first batch, ms:", *(f"{t:.1f}" for t in times))
        epochs[case], explain = OPEN[name](dataset, args, workers)
        labels[case] = check(epochs[case], args, len(dataset))
        if explain:
            result["plans"][case] = explain()
            print(f"\n{explain()}\n", flush=True)
    if len(set(map(tuple, labels.values()))) != 1:
        raise SystemExit(f"the cases had different samples: {labels}")

    for number, case in common.in_turn(args.cases, args.rounds):
        many = 1 if case.startswith("torchvision") else args.epochs
        times = [one_epoch(epochs[case], args.device) for _ in range(many)]
        handed, done, counts = (statistics.median(values) for values in zip(*times, strict=True))
        assert counts == len(dataset), f"{case}: {counts} samples"
        row = {
            "round": number,
            "case": case,
            "epoch_ms": done,
            "handed_out_ms": handed,
            "epochs": many,
            "images_per_s": 1e3 * len(dataset) / done,
        }
        result["rounds"].append(row)
        print(common.line(row), flush=True)
        common.write_json(args.json, result)
    report(result, args.cases)
    common.write_json(args.json, result)


if __name__ == "__main__":
    main()
