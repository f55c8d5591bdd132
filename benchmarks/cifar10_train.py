"""Question: does a network that learns from torchvision's CIFAR10 reach the same accuracy through dali_compat as
through PyTorch's loader, how long does it take, and how much of that time does it wait for data?

Method. A ResNet-9 (resnet9.py), bf16, batch --batch-size, --epochs epochs; loaders take turns within each of --seeds
seeds, which set weights, order and augmentation. Both are opened as in cifar10.py (crop with a padding of 4, flip,
normalise, and then an 8x8 hole as in Cutout, DeVries and Taylor 2017; torchvision with --workers persistent workers and
pinned memory). Every network is evaluated on the same test images, prepared by torchvision. One epoch of another
network runs first, to load libraries and choose kernels.

waited: the seconds that the loop spent requesting batches, including the start of workers. The loop does not wait for
the GPU, so this also contains work that the GPU had left to do. A share of 0 means that data were never late, but a
share of a half does not mean that an ideal loader would halve the time. Compare the seconds.

Confounders. GPU training is not deterministic to the last bit, so one seed's accuracy differs between runs of the same
loader. Batch order is the same for a seed; random parameters have the same distributions but different values. A JPEG
copy of CIFAR-10 gives less accuracy than the original's pixels (cifar10_data.py).

Command.
    python benchmarks/cifar10_train.py --data CIFAR --workers 16 --seeds 3 --epochs 40 --json OUT.json
"""

import argparse
import os
import pathlib
import statistics

import cifar10
import cifar10_data
import common
import resnet9
import torch
import torchvision.transforms as T
from cifar10_data import MEAN, STD

HOLE = T.RandomErasing(1.0, scale=(1 / 16, 1 / 16), ratio=(1, 1))
TRAIN = T.Compose([*cifar10.TRAIN.transforms, HOLE])
TEST = T.Compose([T.ToTensor(), T.Normalize(MEAN, STD)])


def report(result, cases):
    rows = []
    for case in cases:
        of_case = [row for row in result["rounds"] if row["case"] == case]
        accuracies = [row["accuracy"] for row in of_case]
        seconds, waited = ([row[key] for row in of_case] for key in ("seconds", "waited_share"))
        rows.append(
            [
                case,
                f"{statistics.mean(accuracies):.4f}",
                ", ".join(f"{a:.4f}" for a in accuracies),
                f"{statistics.median(seconds):.1f}",
                f"{min(seconds):.1f} - {max(seconds):.1f}",
                f"{statistics.median(waited):.3f}",
            ]
        )
    print(
        "\n"
        + common.markdown(["loader", "accuracy, mean", "of each seed", "seconds", "min - max", "share waited"], rows)
    )


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--data", required=True, help="CIFAR10's root, a copy of image files (a folder or tar), or 'random'"
    )
    options.add_argument(
        "--cases",
        nargs="+",
        default=["torchvision", "ours"],
        choices=sorted(cifar10.OPEN),
        help="eager: plain torch on the device, as a lower bound",
    )
    options.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="workers of torchvision's loader"
    )
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--batch-size", type=int, default=512)
    options.add_argument("--samples", type=int, help="samples per epoch, to try the script")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    args = options.parse_args()
    torch.backends.cudnn.benchmark = True
    data, test = cifar10_data.datasets(args.data, TRAIN, TEST, args.samples)
    judged = [
        (images.to(args.device), labels.to(args.device)) for images, labels in torch.utils.data.DataLoader(test, 1000)
    ]
    result = common.begun("cifar10_train", args, samples=len(data))

    steps = -(-len(data) // args.batch_size)
    warm_up, explain = cifar10.OPEN["ours"](data, args, 0)
    result["plan"] = explain()
    print(f"\n{result['plan']}\n", flush=True)
    resnet9.train(0, warm_up, 1, steps, args.device)
    for seed, case in common.in_turn(args.cases, args.seeds):
        epoch, _ = cifar10.OPEN[case](data, args, args.workers)
        net, seconds, waited = resnet9.train(seed, epoch, args.epochs, steps, args.device)
        given, labels = resnet9.answers(net, judged)
        result["rounds"].append(
            {
                "round": seed,
                "case": case,
                "accuracy": (given == labels).float().mean().item(),
                "seconds": seconds,
                "waited_s": waited,
                "waited_share": waited / seconds,
            }
        )
        print(common.line(result["rounds"][-1]), flush=True)
        common.write_json(args.json, result)
        del epoch  # end its workers
    report(result, args.cases)
    common.write_json(args.json, result)


if __name__ == "__main__":
    main()
