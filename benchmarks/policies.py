"""Question: how much do policies and ColorJitter cost for a batch on the GPU, with Triton kernels and with torch?

Method. A batch of photos, cropped to --size, goes through a single transform, as ops/kernels applies it for a loader,
with new random numbers in each call. "launches" is the loader's default, "torch" its path without Triton. Both take
turns within a round, on the same numbers, and must give the same pixels.

Columns. host_ms: from the call to its return, on an otherwise idle GPU. gpu_ms and launches: the GPU's time, and the
number of kernels and copies, by torch's profiler. first_s: the first call, which compiles the kernels unless Triton
has them on disk from an earlier program. Later transforms reuse them.

With --train MODEL, that model trains in eager mode with batches of 256, from a loader that applies RandAugment:
synthetic (one fixed batch), launches and torch take turns of --seconds, each after 24 steps that do not count.

Confounders. The launches of a model that trains at the same time, and the interpreter's lock, slow the host; launches
wait for one another. With --train a batch or two of a turn may come from the previous turn's queue; the 24 steps use
these up.

Commands.
    python benchmarks/policies.py --data PHOTOS --json OUT.json
    python benchmarks/policies.py --data PHOTOS --train resnet18 --rounds 3 --json OUT.json
"""

import argparse
import itertools
import pathlib
import time

import common
import gpu_time
import loaders
import numpy as np
import torch
from torchvision import transforms as T
from training_step import make_step

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.ops import kernels, operations
from dali_compat.ops.draws import compute
from dali_compat.plan import ImageSpec
from dali_compat.randoms import Randoms
from dali_compat.translate import translate

BILINEAR = T.InterpolationMode.BILINEAR
CASES = {"launches": operations._has_triton, "torch": lambda device: False}
DRAWN = 16  # number of batches to draw random numbers for


def transforms():
    """Return {name: transform}, including timm's if it is installed."""
    named = {
        "RandAugment": T.RandAugment(),
        "RandAugment, bilinear": T.RandAugment(interpolation=BILINEAR),
        "TrivialAugmentWide": T.TrivialAugmentWide(),
        "AutoAugment": T.AutoAugment(),
        "ColorJitter": T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    }
    try:
        from timm.data import create_transform
    except ImportError:
        return named
    config = "rand-m5-mstd0.5-inc1"
    return named | {f"timm's {config}": create_transform(224, is_training=True, auto_augment=config).transforms[2]}


class Case:
    """A transform's steps on a batch."""

    def __init__(self, transform, images):
        size = tuple(images.shape[-2:])
        self.images = images
        self.steps = [s for t in translate(transform, ImageSpec(size=size)).translated for s in t.steps]
        sizes = np.tile(size, (len(images), 1))
        self.drawn = [compute(self.steps, sizes, Randoms(seed, 0, len(images)), slice(None)) for seed in range(DRAWN)]

    def __call__(self, number):
        made = self.images
        for step, arrays in zip(self.steps, self.drawn[number % DRAWN], strict=True):
            made = kernels.run(step, made, arrays)
        return made

    def host(self, calls):
        """Return the milliseconds of each call."""
        spent = []
        for number in range(calls):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            self(number)
            spent.append((time.perf_counter() - begin) * 1e3)
        return spent

    def run(self, calls):
        for number in range(calls):
            self(number)
        torch.cuda.synchronize()


def ready(case):
    """Return the seconds of the first call, which compiles the kernels."""
    begin = time.perf_counter()
    case(0)
    torch.cuda.synchronize()
    if False in operations._agreement.values():
        raise SystemExit("Triton's kernels are refused: both cases would be torch")
    return time.perf_counter() - begin


def train(args, result):
    """Append rows of images per second to the result."""
    chain = loaders.transform().transforms
    policy = T.Compose([*chain[:2], T.RandAugment(), *chain[2:]])
    step, device = make_step(args.train, "eager", torch.device("cuda"), None), "cuda"
    images = torch.randn(256, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    fixed = images, torch.randint(1000, (256,), device=device)
    with common.folder(args.data, 400) as root:
        loader = DataLoader(DALIImageFolder(str(root), policy), 256, shuffle=True, drop_last=True, num_workers=16)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        streams = {"synthetic": itertools.repeat(fixed), "launches": batches, "torch": batches}
        for number, case in common.in_turn(list(streams), args.rounds):
            operations._has_triton = CASES.get(case, CASES["launches"])
            for batch in itertools.islice(streams[case], 24):
                step(*batch)
            torch.cuda.synchronize()
            begin, steps = time.perf_counter(), 0
            while time.perf_counter() - begin < args.seconds:
                for batch in itertools.islice(streams[case], 8):
                    step(*batch)
                torch.cuda.synchronize()
                steps += 8
            speed = 256 * steps / (time.perf_counter() - begin)
            result["rounds"].append({"round": number, "case": case, "model": args.train, "images_per_s": speed})
            print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of images in ImageFolder layout")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--train", metavar="MODEL", help="train this model of training.py, and measure its speed instead"
    )
    parser.add_argument("--seconds", type=float, default=3, help="length of a turn of --train")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    return parser.parse_args()


def main():
    args = parse()
    settings = {key: str(value) for key, value in vars(args).items()}
    result = {"benchmark": "policies", "facts": common.facts(), "settings": settings, "rounds": []}
    if args.train:
        train(args, result)
        return
    crop = T.Compose([T.RandomResizedCrop(args.size), T.PILToTensor()])
    dataset = DALIImageFolder(args.data, crop)
    drawn = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=args.batch_size)
    images = next(iter(DataLoader(dataset, args.batch_size, sampler=drawn)))[0]
    for name, transform in transforms().items():
        case = Case(transform, images)
        first = ready(case)
        for number in range(args.rounds):
            made = {}
            for kind in list(CASES)[:: -1 if number % 2 else 1]:
                operations._has_triton = CASES[kind]
                row = {"round": number, "case": kind, "transform": name, "host_ms": np.median(case.host(DRAWN))}
                spent = gpu_time.spent(case.run, DRAWN).values()
                row |= {"gpu_ms": sum(ms for ms, _ in spent), "launches": sum(count for _, count in spent)}
                made[kind] = torch.stack([case(which) for which in range(4)])
                result["rounds"].append(row | {"first_s": first})
                print(common.line(result["rounds"][-1]), flush=True)
            if not torch.equal(*made.values()):
                raise SystemExit(f"{name}: the pixels of both cases differ")
        operations._has_triton = CASES["launches"]
        if args.json:
            common.write_json(args.json, result)


if __name__ == "__main__":
    main()
