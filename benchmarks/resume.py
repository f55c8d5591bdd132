"""Question: how much does it cost to save a loader's state, and to resume from it?

Method. One process and the CPU backend load tiny JPEGs, shuffled. Their list of samples is repeated until it has
--samples. In each round two loaders take turns: one begins an epoch, the other resumes at its batch --batch. The script
measures the time from iter() to the first batch. A loader with warm headers and pipelines does both. Between them
state_dict() is called 100 times.

Then epochs of images in memory, the cheapest batches, take turns: "off" records nothing for a state (two methods are
replaced), "on" is the unmodified loader, and "saved" calls state_dict() after every batch.

Confounders.
- The first batch has 256 images and its time depends on the cores; the cost of resuming does not depend on these.
- Both include drawing a permutation of all samples.
- On a busy machine the minimum of the rounds is more reliable than their median. The load is in the JSON.

Command.
    python benchmarks/resume.py --rounds 7 --json OUT.json
"""

import contextlib
import os
import time
from unittest import mock

import common
import torch
from host_time import folder
from torchvision import transforms as T


def first_batch(loader):
    """Return (iterator, seconds)."""
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    return batches, time.perf_counter() - begin


def milliseconds_of_a_state(loader, count=100):
    begin = time.perf_counter()
    for _ in range(count):
        loader.state_dict()
    return 1000 * (time.perf_counter() - begin) / count


def nothing_counted():
    """Replace the methods that record a loader's state."""
    from dali_compat.epoch.progress import Progress

    return mock.patch.multiple(
        Progress, draw=lambda self, indices: next(indices), record_returned=lambda self, given, samples, last: None
    )


def milliseconds_of_a_batch(loader, case):
    batches = 0
    with nothing_counted() if case == "off" else contextlib.nullcontext():
        begin = time.perf_counter()
        for _ in loader:
            batches += 1
            if case == "saved":
                loader.state_dict()
        return 1000 * (time.perf_counter() - begin) / batches


def iterate(args, result):
    from dali_compat import DALIArrayDataset, DataLoader

    pixels = torch.randint(0, 256, (args.images, 32, 32, 3), dtype=torch.uint8).numpy()
    dataset = DALIArrayDataset(pixels, [0] * len(pixels), T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    loader = DataLoader(dataset, args.batch_size, shuffle=True, device="cpu", num_workers=2, fallback="error")
    milliseconds_of_a_batch(loader, "on")
    for number, case in common.in_turn(["off", "on", "saved"], args.rounds):
        entry = {"round": number, "case": case, "batch_ms": milliseconds_of_a_batch(loader, case)}
        result["rounds"].append(entry)


def main():
    from dali_compat import DALIImageFolder, DataLoader

    options = common.basic_parser(__doc__)
    options.add_argument("--samples", type=int, default=1_280_000)
    options.add_argument("--batch", type=int, default=4000)
    options.add_argument("--images", type=int, default=20_000, help="number of images in memory")
    args = options.parse_args()
    result = {"benchmark": "resume", "facts": common.facts(), "arguments": vars(args) | {"json": None}, "rounds": []}
    result["load"] = [os.getloadavg()[0]]
    print(result["facts"], flush=True)
    with folder(1000) as root:
        dataset = DALIImageFolder(root, T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor()]))
        samples = dataset.samples * (args.samples // len(dataset.samples))
        dataset.samples = dataset.imgs = samples
        dataset.targets = [target for _, target in samples]
        torch.manual_seed(0)
        loader = DataLoader(dataset, args.batch_size, shuffle=True, device="cpu", num_workers=2, fallback="error")
        batches, _ = first_batch(loader)
        state, had = loader.state_dict(), args.batch
        # the state after this many batches, except for the checksum of the last one
        state["epoch"] |= {"given": had, "samples": had * args.batch_size, "drawn": had, "last": [0, 0]}
        del batches
        for number, case in common.in_turn(["fresh", "resumed"], args.rounds):
            if case == "resumed":
                loader.load_state_dict(state)
            batches, seconds = first_batch(loader)
            entry = {"round": number, "case": case, "seconds": seconds, "state_ms": milliseconds_of_a_state(loader)}
            result["rounds"].append(entry)
            common.write_json(args.json, result)
            del batches
    iterate(args, result)
    result["load"].append(os.getloadavg()[0])
    common.write_json(args.json, result)
    units = {"seconds": "s to the first batch", "state_ms": "ms of state_dict()", "batch_ms": "ms a batch in memory"}
    for key, unit in units.items():
        rows = [[case, *common.spread(entry, ".3f")] for case, entry in common.medians(result["rounds"], key).items()]
        print("\n" + common.markdown(["case", unit, "min - max"], rows))


if __name__ == "__main__":
    main()
