"""Question: how fast does a loader read archives, compared with the same images in a folder? How fast are archives
packed, indexed and read with each method, and how much time does a cached list save?

Method. The images of --data are copied --replicate times to files in memory, and packed into each format in --work. The
selected --parts of the following are then measured, in turns over --rounds rounds:
- load: our DataLoader on the folder and on each archive, with ImageNet's training transform, counting images as
  imagefolder.py does: --warmup batches, then --batches or --seconds. Indices are random with replacement, so no epoch
  ends during a turn. cpu_ms is the processor time of all threads per image, including warm-up; other programs on the
  machine disturb it less.
- index: a new data set without and with a cached index; for tar, also Python's tarfile. The archive is in the page
  cache.
- read: 256 random images with each method below, from the page cache (hot) and after the archive was dropped from it
  (cold). views: Archive.read(), touching each page as a decoder does; views_no_advice: the same without posix_fadvise;
  pread: one image after another; pread_pool: 8 threads that share the batch; pread_pool_tasks: one task per image in a
  pool; files: open, read and close the images' files (in memory, so hot only).
- list: --files empty files in 1,000 folders in memory, listed by torchvision's ImageFolder, and by
  DALIImageFolder(index_cache=True) the first time and again. The attributes of both are compared once.
--limit ends the script in time: no turn of load begins after this many seconds.

Confounders.
- load: the page cache holds everything, so no disk is measured. Files of the folder are not links, because a few photos
  would stay in the processor's caches there, but not in an archive.
- read does not decode: on two cores decoding takes 100 times as long. On a GPU reading competes with DALI's threads.
- Dropping a file from the page cache does not clear the caches of the disk and of the virtual machine's host.
- The first list of 1.28 million files on a disk or a network takes far longer than in memory. The second list does not,
  because it only reads one file and requests the times of 1,001 folders.

Command.
    python benchmarks/archives.py --data PHOTOS --replicate 20 --work DIR --json OUT.json
    python benchmarks/archives.py --data PHOTOS --replicate 60 --work /dev/shm --parts load --rounds 3 --limit 75 \\
        --json OUT.json
"""

import mmap
import os
import pathlib
import shutil
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import common
import imagefolder
import loaders
import numpy as np
from torch.utils.data import RandomSampler
from torchvision.datasets import ImageFolder

import dali_compat
from dali_compat.archives.pack import pack

KINDS = {"rec": "DALIRecordIO", "tfrecord": "DALITFRecord", "lmdb": "DALILMDB", "tar": "DALIWebDataset"}
PARTS = "load", "index", "read", "list"
BATCH, THREADS = 256, 8


def seconds(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def opened(path, transform=None):
    return getattr(dali_compat, KINDS[path.suffix[1:]])(path, transform)


def inside(path):
    return path / "data.mdb" if path.is_dir() else path


def forget_index(path):
    for index in inside(path).parent.glob(f".{inside(path).name}.*.npz"):
        index.unlink()


def index(path):
    """Return {case: seconds} for indexing an archive."""
    forget_index(path)
    made = {"first": seconds(lambda: opened(path)), "again": seconds(lambda: opened(path))}
    if path.suffix == ".tar":
        made["tarfile"] = seconds(lambda: tarfile.open(path).getmembers())
    return made


def touch(arrays):
    for array in arrays:
        array[:: mmap.PAGESIZE].max()


def ways(path, folder):
    """Return {name: function that reads the images at given indices}."""
    dataset, plain = opened(path), opened(path)
    pool = ThreadPoolExecutor(THREADS)

    def without_advice(indices):
        advise, os.posix_fadvise = os.posix_fadvise, lambda *_: None
        touch(plain.read(indices))
        os.posix_fadvise = advise

    def shared(indices):
        return list(
            pool.map(lambda part: list(map(dataset.copied, part)), [indices[i::THREADS] for i in range(THREADS)])
        )

    return {
        "views": lambda indices: touch(plain.read(indices)),
        "views_no_advice": without_advice,
        "pread": lambda indices: list(map(dataset.copied, indices)),
        "pread_pool": shared,
        "pread_pool_tasks": lambda indices: list(pool.map(dataset.copied, indices)),
        "files": lambda indices: [pathlib.Path(folder.samples[i][0]).read_bytes() for i in indices],
    }


def drop(path):
    with open(inside(path), "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path, folder, rng, rounds):
    rows = []
    names = list(ways(path, folder))
    for number, name in common.in_turn(names, rounds):
        for state in ("cold", "hot"):
            indices = rng.choice(len(folder), BATCH, replace=False).tolist()
            run = ways(path, folder)[name]
            if state == "hot":
                for _ in range(2):
                    run(indices)
            elif name == "files":
                continue
            else:
                drop(path)
            rows.append({"round": number, "case": f"{name} {state}", "ms": 1000 * seconds(lambda: run(indices))})
    return rows


def load(root, paths, args, finished, save):
    """Append rows of images per second to ``finished``; the folder is one of the cases."""
    begin = time.perf_counter()
    device = loaders.device_of(args)
    settings = loaders.Settings(str(root), device, args.batch_size, args.workers)
    data = {"folder": dali_compat.DALIImageFolder(root, loaders.transform())}
    data |= {path.suffix[1:]: opened(path, loaders.transform()) for path in paths}
    for number, case in common.in_turn(list(data), args.rounds):
        if args.limit and time.perf_counter() - begin > args.limit:
            print(f"stopped by --limit before round {number}, {case}")
            return
        sampler = RandomSampler(data[case], replacement=True, num_samples=1 << 40)
        loader = loaders.ours_loader(settings, data[case], sampler)
        used = time.process_time()
        row = imagefolder.steady(loader, settings, args.warmup, args.batches, args.seconds, 1)
        used = time.process_time() - used
        row["cpu_ms"] = 1000 * used / (row["images"] + args.warmup * args.batch_size)
        loader.close()
        del loader
        loaders.release(device)
        finished.append({"round": number, "case": f"load {case}", **row})
        print(common.line(finished[-1]), flush=True)
        save()


def cached(root):
    return dali_compat.DALIImageFolder(root, index_cache=True)


def lists(count, rounds):
    root = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-bench-", dir="/dev/shm"))
    try:
        for label in range(1000):
            (root / f"n{label:08d}").mkdir()
            for number in range(count // 1000):
                os.close(os.open(root / f"n{label:08d}" / f"n{label:08d}_{7 * number}.JPEG", os.O_CREAT))
        for path, _, _ in os.walk(root):
            os.utime(path, (1, 1))
        rows = []
        mine, theirs = cached(root), ImageFolder(root)
        for name in ("classes", "class_to_idx", "samples", "targets", "imgs", "root", "loader", "extensions"):
            if getattr(mine, name) != getattr(theirs, name):
                raise SystemExit(f"{name} differs from torchvision's list")
        del mine, theirs
        for number in range(rounds):
            shutil.rmtree(pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "dali_compat", ignore_errors=True)
            for name, run in (("torchvision", ImageFolder), ("first", cached), ("again", cached)):
                rows.append({"round": number, "case": f"list {name}", "s": seconds(lambda: run(root))})
                print(common.line(rows[-1]), flush=True)
        return rows
    finally:
        shutil.rmtree(root)


def main():
    options = common.parser(__doc__)
    options.add_argument("--work", type=pathlib.Path, required=True, help="folder on the disk to measure")
    options.add_argument("--files", type=int, default=1_280_000, help="number of files in the listed folder")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--warmup", type=int, default=10, help="load: batches before counting starts")
    options.add_argument("--batches", type=int, default=400, help="load: batches to count in a turn, at most")
    options.add_argument("--seconds", type=float, default=4, help="load: seconds to count for in a turn, at most")
    options.add_argument("--limit", type=float, help="load: seconds after which no turn begins")
    args = options.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-bench-", dir=args.work))
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    result = {
        "benchmark": "archives",
        "facts": common.facts(),
        "images": common.describe(args.data, args.data),
        "rounds": [],
    }
    rounds = result["rounds"]
    rng = np.random.default_rng(0)

    def save():
        common.write_json(args.json, result)

    try:
        if set(args.parts) - {"list"}:
            with common.folder(args.data, args.replicate, shutil.copyfile) as root:
                paths = [work / f"all.{kind}" for kind in KINDS]
                for path in paths:
                    rounds.append(
                        {"round": 0, "case": f"{path.suffix[1:]} pack", "s": seconds(lambda: pack(root, path))}
                    )
                result["archive"] = {"images": len(ImageFolder(root)), "bytes": inside(paths[-1]).stat().st_size}
                if "load" in args.parts:
                    load(root, paths, args, rounds, save)
                if "index" in args.parts:
                    for number in range(args.rounds):
                        for path in paths:
                            for name, took in index(path).items():
                                rounds.append({"round": number, "case": f"{path.suffix[1:]} index {name}", "s": took})
                if "read" in args.parts:
                    rounds += read(paths[0], ImageFolder(root), rng, args.rounds)
                save()
        if "list" in args.parts:
            rounds += lists(args.files, args.rounds)
            save()
    finally:
        shutil.rmtree(work)
    for key, form in (("images_per_s", ",.0f"), ("cpu_ms", ".3f"), ("s", ".3f"), ("ms", ".2f")):
        rows = [
            [case, *common.spread(entry, form), common.ratio(rounds, key, case, "load folder")]
            for case, entry in common.medians(rounds, key).items()
        ]
        if rows:
            print("\n" + common.markdown(["case", key, "range", "to the folder"], rows))


if __name__ == "__main__":
    main()
