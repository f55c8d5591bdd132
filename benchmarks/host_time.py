"""Question: how much processor time does next() take from the training thread?

Method. One process, the CPU backend, tiny JPEGs (16 x 16) in memory, batch 256, RandomResizedCrop, flip, ToTensor and
Normalize to 8 x 8. Headers have been read and checked before. Each case loads --batches batches that are not counted;
then the cases take turns over --rounds rounds of --batches batches each. The script measures time.thread_time() around
next(), the processor time of the calling thread, which excludes DALI's threads and waiting. It also excludes the thread
that starts DALI on later batches; the cases "in one thread" do without it, and so include all of our work.

Cases: ours on a folder of 100 files and on one of --files files (hard links), each sample drawn with replacement, by
default and in one thread; and "by hand", DALI pipelines fed by a callback with one input (paths) and with five (paths,
windows, sizes, flips).

Confounders.
- DALI's share is in every case: schedule_run(), share_outputs(), and DLPack.
- On a GPU the thread also pays for launches.

Commands.
    python benchmarks/host_time.py --files 100000 --rounds 5 --json OUT.json
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
import time

import common
import numpy as np
import torch
from PIL import Image
from torch.utils.data import RandomSampler
from torchvision import transforms as T

SIDE, CROP = 16, 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@contextlib.contextmanager
def folder(files):
    """Create a folder in memory with this many files in ten classes, as hard links to ten images."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root, rng = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-host-", dir=memory)), np.random.default_rng(0)
    try:
        for number in range(10):
            (root / "images" / f"class_{number}").mkdir(parents=True)
            Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(root / f"{number}.jpg")
        for number in range(files):
            os.link(root / f"{number % 10}.jpg", root / "images" / f"class_{number % 10}" / f"{number:07d}.jpg")
        yield root / "images"
    finally:
        shutil.rmtree(root)


def ours(root, args, in_one_thread=False):
    """Return an iterator over the batches of all rounds, on the CPU."""
    from dali_compat import DALIImageFolder, DataLoader

    transform = T.Compose(
        [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)],
    )
    dataset = DALIImageFolder(root, transform)
    samples = (args.rounds + 2) * args.batches * args.batch_size
    sampler = RandomSampler(dataset, replacement=True, num_samples=samples)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, device="cpu", num_workers=2, fallback="error")
    warm_headers(loader, dataset)
    batches = iter(loader)
    if in_one_thread:
        batches._epoch.prefetches = False
    return batches


def warm_headers(loader, dataset):
    """Read and check every header, as in a first epoch."""
    from dali_compat.data.headers import headers_of

    paths = [path for path, _ in dataset.samples]
    headers = headers_of(dataset)
    headers.facts(np.arange(len(paths)), np.fromiter(map(hash, paths), np.int64), paths.__getitem__)
    headers.set_intact(list(range(len(paths))))


def by_hand(root, args, inputs):
    """Return an endless iterator over the batches of a DALI pipeline that a callback feeds."""
    import nvidia.dali as dali
    from nvidia.dali import fn, types

    paths = [os.fsencode(path) for path in sorted(map(str, root.glob("*/*")))]
    table = np.array(paths).view(np.uint8).reshape(len(paths), -1)
    rng, count = np.random.default_rng(0), args.batch_size

    def feed():
        rows = table[rng.integers(0, len(table), count)]
        if inputs == 1:
            return rows
        start, shape = rng.integers(0, 4, (count, 2)).astype(np.int32), np.full((count, 2), CROP, np.int32)
        return rows, start, shape, np.full((count, 2), CROP, np.float32), rng.integers(0, 2, count).astype(np.int32)

    pipe = dali.Pipeline(count, 2, None, prefetch_queue_depth=2, exec_dynamic=True)
    with pipe:
        ndim = 1 if inputs == 1 else [1, 1, 1, 1, 0]
        dtypes = types.UINT8 if inputs == 1 else [types.UINT8, types.INT32, types.INT32, types.FLOAT, types.INT32]
        outputs = None if inputs == 1 else 5
        given = fn.external_source(feed, num_outputs=outputs, batch=True, dtype=dtypes, ndim=ndim, no_copy=True)
        encoded = fn.io.file.read(given if inputs == 1 else given[0], dont_use_mmap=True)
        if inputs == 1:
            images = fn.resize(fn.decoders.image(encoded), size=[CROP, CROP], antialias=True)
            mirror = 0
        else:
            _, start, shape, size, mirror = given
            images = fn.decoders.image_slice(encoded, start=start, shape=shape, axes=[0, 1])
            images = fn.resize(images, size=size, antialias=True)
        mean, std = ([255 * value for value in values] for values in (MEAN, STD))
        pipe.set_outputs(fn.crop_mirror_normalize(images, mirror=mirror, mean=mean, std=std))
    pipe.build()

    def batches():
        pipe.schedule_run()
        while True:
            pipe.schedule_run()
            (images,) = pipe.share_outputs()
            tensor = torch.from_dlpack(images.as_tensor())
            pipe.release_outputs()
            yield tensor

    return batches()


def milliseconds(batches, count):
    """Return this thread's processor time per batch in milliseconds, averaged over ``count`` batches."""
    spent = 0.0
    for _ in range(count):
        begin = time.thread_time()
        next(batches)
        spent += time.thread_time() - begin
    return 1000 * spent / count


def measure(args, result):
    with folder(100) as few, folder(args.files) as many:
        cases = {
            "ours, 100 files": ours(few, args),
            f"ours, {args.files:,} files": ours(many, args),
            "ours, 100 files, in one thread": ours(few, args, in_one_thread=True),
            f"ours, {args.files:,} files, in one thread": ours(many, args, in_one_thread=True),
            "by hand, 1 input": by_hand(few, args, 1),
            "by hand, 5 inputs": by_hand(few, args, 5),
        }
        for batches in cases.values():
            milliseconds(batches, args.batches)
        for number, case in common.in_turn(list(cases), args.rounds):
            result["rounds"].append({"round": number, "case": case, "ms": milliseconds(cases[case], args.batches)})
            common.write_json(args.json, result)
        rows = [[case, *common.spread(entry, ".2f")] for case, entry in common.medians(result["rounds"], "ms").items()]
        print("\n" + common.markdown(["case", "ms of the calling thread a batch", "min - max"], rows))


def main():
    options = common.basic_parser(__doc__)
    options.add_argument("--files", type=int, default=100_000)
    options.add_argument("--batches", type=int, default=40)
    args = options.parse_args()
    result = {"benchmark": "host_time", "facts": common.facts(), "rounds": []}
    print(result["facts"], flush=True)
    measure(args, result)


if __name__ == "__main__":
    main()
