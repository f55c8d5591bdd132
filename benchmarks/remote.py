"""Question: how does the speed of a data set in object storage compare with the network's, and with a local folder's?

Method. tests/remote/server.py, an S3 server on this machine, answers each request after --latency seconds. --objects
JPEGs of 500 x 375 (links to 50 drawn ones) in ten classes; batches of --batch-size, ImageNet's training transform on
the CPU, --ahead batches requested ahead. The cases take turns over --rounds rounds:
- obstore: all objects, fetched by obstore without a loader, 128 requests at a time. Nothing is decoded.
- fetched: the same objects, which the package's Fetcher requests --ahead batches ahead and returns batch by batch.
- bucket: an epoch of DataLoader over DALIImageFolder("s3://...").
- disk_cache: the same, from a disk_cache that contains all of them.
- file: the same over DALIImageFolder("file://...").
- folder: the same over the local folder.

Confounders.
- The server runs on the same cores, and uses processor time that a remote bucket would not.
- The local files are links to 50 images, so there are few encoded bytes, which stay in the system's cache.

Command.
    python benchmarks/remote.py --objects 2000 --batch-size 32 --rounds 5 --json OUT.json
"""

import asyncio
import contextlib
import os
import pathlib
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "remote"))

import common
import numpy as np
import obstore
from PIL import Image
from server import BUCKET, Running
from torchvision import transforms as T

import dali_compat
from dali_compat.cli.demo import make_photo
from dali_compat.data.sources import Record
from dali_compat.remote.event_loop import wait_for
from dali_compat.remote.fetcher import REQUESTS, Fetcher
from dali_compat.remote.objects import Objects

CLASSES, DIFFERENT = 10, 50
TRANSFORM = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()])


@contextlib.contextmanager
def photos(count):
    """Yield a temporary folder with ``count`` JPEGs, named train/0/000000.jpg and so on."""
    with tempfile.TemporaryDirectory(prefix="dali-compat-bench-", dir="/dev/shm") as made:
        root, rng = pathlib.Path(made), np.random.default_rng(0)
        (root / "originals").mkdir()
        for number in range(min(count, DIFFERENT)):
            path = root / "originals" / f"{number}.jpg"
            Image.fromarray(make_photo(rng, 375, 500)).save(path, quality=95)
        for number in range(count):
            folder = root / "train" / str(number % CLASSES)
            folder.mkdir(parents=True, exist_ok=True)
            os.link(root / "originals" / f"{number % DIFFERENT}.jpg", folder / f"{number:06d}.jpg")
        yield root


async def by_obstore(objects, keys):
    store, turn = objects.client.store(f"s3://{BUCKET}").store, asyncio.Semaphore(REQUESTS)

    async def one(key):
        async with turn:
            return len(await (await obstore.get_async(store, key)).bytes_async())

    return sum(await asyncio.gather(*map(one, keys)))


def by_fetcher(objects, urls, args):
    fetcher = Fetcher()
    batches = [
        [Record(objects, url) for url in urls[begin : begin + args.batch_size]]
        for begin in range(0, len(urls), args.batch_size)
    ]
    for number in range(-args.ahead, len(batches)):
        if number + args.ahead < len(batches):
            fetcher.request(batches[number + args.ahead])
        if number >= 0:
            assert not fetcher.take(batches[number])
            batches[number] = []
    fetcher.close()


def epoch(dataset, args):
    loader = dali_compat.DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        num_workers=2,
        prefetch_factor=max(1, args.ahead // 2),
        device="cpu",
        fallback="error",
    )
    next(iter(loader))  # start DALI
    begin = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begin


def timed(function, *args):
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def main():
    options = common.basic_parser(__doc__)
    options.add_argument("--objects", type=int, default=2000)
    options.add_argument("--latency", type=float, default=0.03)
    options.add_argument("--ahead", type=int, default=16, help="number of batches requested ahead")
    options.set_defaults(batch_size=32)
    args = options.parse_args()
    with photos(args.objects) as root, Running(root, args.latency) as server:
        result = common.begun("remote", args, images=common.describe(root / "train", root))
        there = f"{server.url}/train"
        bucket = dali_compat.DALIImageFolder(there, TRANSFORM, storage_options=server.options)
        kept = dali_compat.DALIImageFolder(
            there, TRANSFORM, storage_options=server.options, disk_cache=(root / "kept", 10**10)
        )
        file = dali_compat.DALIImageFolder((root / "train").as_uri(), TRANSFORM)
        folder = dali_compat.DALIImageFolder(root / "train", TRANSFORM)
        urls = [url for url, _ in bucket.samples]
        keys = [url.removeprefix(f"{server.url}/") for url in urls]
        objects = Objects(server.options)
        wait_for(by_obstore(objects, keys[:200]))
        by_fetcher(kept._objects, urls, args)  # fills the disk cache
        cases = {
            "obstore": lambda: timed(wait_for, by_obstore(objects, keys)),
            "fetched": lambda: timed(by_fetcher, objects, urls, args),
            "bucket": lambda: epoch(bucket, args),
            "disk_cache": lambda: epoch(kept, args),
            "file": lambda: epoch(file, args),
            "folder": lambda: epoch(folder, args),
        }
        for number, case in common.in_turn(list(cases), args.rounds):
            row = {"round": number, "case": case, "images_per_s": args.objects / cases[case]()}
            result["rounds"].append(row)
            print(common.line(row), flush=True)
            common.write_json(args.json, result)
    rows = [
        [
            case,
            *common.spread(entry, ",.0f"),
            *(common.ratio(result["rounds"], "images_per_s", case, base) for base in ("obstore", "folder")),
        ]
        for case, entry in common.medians(result["rounds"], "images_per_s").items()
    ]
    print("\n" + common.markdown(["case", "images_per_s", "range", "to obstore", "to folder"], rows))


if __name__ == "__main__":
    main()
