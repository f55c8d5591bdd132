"""Question: how much does it cost if many ranks start at once over one folder, or one archive?

Method. --ranks processes on one machine, each a separate interpreter as under torchrun, in one Gloo group; no GPU. They
create tiny JPEGs, and pack these as RecordIO. In each case all ranks open the data set at the same moment, create a
loader with a DistributedSampler, and iterate over --epochs epochs. The script measures:
- how many ranks listed the folder or scanned the archive themselves, and how long the slowest took to open it:
  without an index ("first"), with one ("again"), and right after the folder was written ("fresh", when a list made
  within a tick of the file system's clock may be out of date). Ranks that wait for another rank's work list nothing;
- whether each rank's samples are those of torch's DistributedSampler, in its order, and all ranks' samples together
  cover the data set once, except for samples that the sampler repeats at the end;
- memory of a rank: RSS, as process monitors show it, and PSS, in which a page that n processes share counts 1/n. At
  the start it is that of an interpreter with torch.

Confounders.
- There are more ranks than cores, so the seconds do not apply to a node with a core or more per rank.
- Images and batches are tiny: memory is that of the program, its threads and its lists, not of large batches.

Command.
    python benchmarks/scale.py --ranks 16 --json OUT.json
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import common

CASES = {"folder": ("first", "again", "fresh"), "rec": ("first", "again")}


def memory():
    """Return (RSS, PSS) of this process in MB."""
    found = {}
    for line in open("/proc/self/smaps_rollup"):
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(rest.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def counted(owner, name):
    """Count the calls of a function from now on, as {"calls": number}."""
    count = {"calls": 0}
    function = getattr(owner, name)

    def wrapper(*args, **kwargs):
        count["calls"] += 1
        return function(*args, **kwargs)

    setattr(owner, name, wrapper)
    return count


def rank_main(work, images, archive, args):
    """Run a rank. The first one prints a JSON row for each case."""
    import torch
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), args.ranks
    dist.init_process_group("gloo", init_method=f"file://{work}/store", rank=rank, world_size=world)

    def gather(value):
        values = [None] * world
        dist.all_gather_object(values, value)
        return values

    before = gather(memory())
    from dali_compat import DALIImageFolder, DALIRecordIO, DataLoader
    from dali_compat.archives import folder_index, index

    made = {"folder": counted(folder_index, "_list"), "rec": counted(index.Entry, "build")}
    transform = v2.Compose(
        [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    opens = {
        "folder": lambda: DALIImageFolder(images, transform, return_index=True, index_cache=True),
        "rec": lambda: DALIRecordIO(archive, transform, return_index=True),
    }
    for storage, starts in CASES.items():
        for start in starts:
            if start == "fresh" and rank == 0:
                (images / "class_000" / "again.jpg").write_bytes(next((images / "class_000").iterdir()).read_bytes())
            dist.barrier()
            calls, begin = made[storage]["calls"], time.perf_counter()
            dataset = opens[storage]()
            seconds, calls = time.perf_counter() - begin, made[storage]["calls"] - calls
            row = {"round": 0, "case": f"{storage}, {start}", "samples": len(dataset), "storage": storage}
            row |= {"opened_s": [round(value, 4) for value in gather(seconds)], "made_index": sum(gather(calls))}
            assert len(set(gather(len(dataset)))) == 1
            if start == "first":
                row |= iterate(dataset, DataLoader, DistributedSampler, gather, rank, world, args)
                row["memory_at_start_mb"], row["memory_mb"] = before, gather(memory())
            if rank == 0:
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def iterate(dataset, loader_class, sampler_class, gather, rank, world, args):
    """Run all epochs. Return whether order and shards are right, the number of repeated samples, and seconds per
    epoch."""
    sampler = sampler_class(dataset, world, rank, seed=1)
    loader = loader_class(dataset, args.batch_size, sampler=sampler, num_workers=1, device="cpu", fallback="error")
    found = {"in_order": True, "shards_exact": True, "repeated": 0, "seconds": []}
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        begin, had = time.perf_counter(), []
        for _, _, indices in loader:
            had += indices.tolist()
        found["seconds"].append(round(time.perf_counter() - begin, 2))
        shards = gather((had, had == list(sampler)))
        every = sorted(index for shard, _ in shards for index in shard)
        found["in_order"] &= all(ordered for _, ordered in shards)
        found["shards_exact"] &= set(every) == set(range(len(dataset))) and len(every) == sampler.total_size
        found["repeated"] = len(every) - len(set(every))
    loader.close()
    return found


def launch(work, images, archive, args):
    """Run all ranks and return their rows."""
    environment = {**os.environ, "XDG_CACHE_HOME": f"{work}/cache", "LOCAL_WORLD_SIZE": str(args.ranks)}
    command = [sys.executable, __file__, *sys.argv[1:], "--of", str(work)]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(args.ranks)
    ]
    rows = []
    for line in ranks[0].stdout:
        rows.append(json.loads(line))
        print(common.line({key: value for key, value in rows[-1].items() if not isinstance(value, list)}), flush=True)
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank has failed")
    return rows


def write_images(root, count, classes):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class_{number % classes:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(36, 60, 2)
        pixels = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((int(width), int(height))).save(folder / f"{number:06d}.jpg")


def main():
    options = common.basic_parser(__doc__)
    options.set_defaults(batch_size=8, rounds=1)
    options.add_argument("--ranks", type=int, default=16)
    options.add_argument("--images", type=int, default=3000)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--of", type=pathlib.Path, help="internal: the folder of a rank that this program starts")
    args = options.parse_args()
    if args.of:
        rank_main(args.of, args.of / "images", args.of / "train.rec", args)
        return
    from dali_compat.archives.pack import pack

    settings = {name: vars(args)[name] for name in ("ranks", "images", "epochs", "batch_size")}
    result = {"benchmark": "scale", "facts": common.facts(), "settings": settings, "rounds": []}
    print(result["facts"], flush=True)
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="dali-compat-scale-") as work:
            work = pathlib.Path(work)
            write_images(work / "images", args.images, classes=100)
            pack(work / "images", work / "train.rec")
            result["rounds"] += [
                row | {"round": number} for row in launch(work, work / "images", work / "train.rec", args)
            ]
        common.write_json(args.json, result)
    print(table(result["rounds"]))


def table(rows):
    """Format a table of all cases and rounds."""
    lines = []
    for row in rows:
        at_start, mb = (row.get(name, ()) for name in ("memory_at_start_mb", "memory_mb"))
        exact = "-" if "in_order" not in row else "yes" if row["in_order"] and row["shards_exact"] else "NO"
        cells = [f"{max(values):.0f}" for pairs in (at_start, mb) for values in zip(*pairs, strict=True)] or ["-"] * 4
        lines.append([row["case"], row["made_index"], f"{max(row['opened_s']):.2f}", exact, *cells])
    names = [
        "ranks that made the index",
        "slowest, s",
        "shards exact",
        "RSS at start, MB",
        "PSS at start",
        "RSS",
        "PSS",
    ]
    return common.markdown(["", *names], lines)


if __name__ == "__main__":
    main()
