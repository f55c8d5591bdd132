"""Question: is any transform slower through dali_compat than through torchvision's loader with all cores as workers?

Method. One process. Every transform X runs through torchvision's ImageFolder and DataLoader with --workers processes,
then every X through dali_compat's, on the same folder, with RandomResizedCrop(224), RandomHorizontalFlip, X, ToTensor,
Normalize (the usual position in recipes; an X for tensors comes after ToTensor, geometry that changes sizes before
RandomResizedCrop). Each turn opens a fresh loader, takes --warmup batches (torchvision: one per worker), then counts
images for --seconds, --rounds times. The ratio is of medians. An interrupted run continues from --json.
"simclr", "ra", "ta_wide", "augmix" and "imagenet" are whole recipes: SimCLR's (Chen et al., 2020), and torchvision's
reference training preset with that policy and RandomErasing(0.1). "callable" is an untranslated function of the user,
in torch's workers and in ours.

Confounders. torchvision's turns all come first, so a drift of the machine's speed does not cancel out. As in
imagefolder.py: files in memory, few different images, nothing consumes the batches. Transforms that affect few samples
(p=.5) are measured with their default probability, as users run them.

Command.
    python benchmarks/transforms.py --data PHOTOS --replicate 400 --rounds 1 --seconds 2 --json OUT.json
"""

import itertools
import json
import time

import common
import loaders
import torch
import torchvision.transforms as T
from torchvision.transforms import InterpolationMode, v2

PIL_STEPS = {
    "(none)": list,
    "ColorJitter": lambda: [T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "RandomGrayscale": lambda: [T.RandomGrayscale(0.2)],
    "GaussianBlur": lambda: [T.GaussianBlur(23)],
    "RandomRotation": lambda: [T.RandomRotation(30, InterpolationMode.BILINEAR)],
    "RandomAffine": lambda: [T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10)],
    "RandomPerspective": lambda: [T.RandomPerspective()],
    "ElasticTransform": lambda: [T.ElasticTransform()],
    "RandomInvert": lambda: [T.RandomInvert()],
    "RandomPosterize": lambda: [T.RandomPosterize(4)],
    "RandomSolarize": lambda: [T.RandomSolarize(128)],
    "RandomAdjustSharpness": lambda: [T.RandomAdjustSharpness(2)],
    "RandomAutocontrast": lambda: [T.RandomAutocontrast()],
    "RandomEqualize": lambda: [T.RandomEqualize()],
    "RandomApply": lambda: [T.RandomApply([T.ColorJitter(0.4), T.GaussianBlur(9)])],
    "RandomChoice": lambda: [T.RandomChoice([T.ColorJitter(0.4), T.GaussianBlur(9), T.RandomRotation(9)])],
    "RandomOrder": lambda: [T.RandomOrder([T.ColorJitter(0.4), T.GaussianBlur(9), T.RandomRotation(9)])],
    "AutoAugment": lambda: [T.AutoAugment()],
    "RandAugment": lambda: [T.RandAugment()],
    "TrivialAugmentWide": lambda: [T.TrivialAugmentWide()],
    "AugMix": lambda: [T.AugMix()],
    "RandomPhotometricDistort": lambda: [v2.RandomPhotometricDistort()],
    "RandomChannelPermutation": lambda: [v2.RandomChannelPermutation()],
    "JPEG": lambda: [v2.JPEG((30, 90))],
    "callable": lambda: [T.Lambda(_turned)],
}
BEFORE = {  # transforms of images that still differ in size
    "Resize": lambda: [T.Resize(256)],
    "Pad": lambda: [T.Pad(20, padding_mode="reflect")],
    "RandomCrop": lambda: [T.RandomCrop(300, pad_if_needed=True)],
    "RandomRotation, ragged": lambda: [T.RandomRotation(30, InterpolationMode.BILINEAR)],
    "RandomRotation expand": lambda: [T.RandomRotation(30, expand=True)],
    "RandomPerspective, ragged": lambda: [T.RandomPerspective()],
    "ColorJitter, ragged": lambda: [T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "RandomZoomOut": lambda: [v2.RandomZoomOut(side_range=(1, 2))],
    "ScaleJitter": lambda: [v2.ScaleJitter((256, 256), (0.9, 1.2))],
    "RandomShortestSize": lambda: [v2.RandomShortestSize([256, 288])],
    "RandomResize": lambda: [v2.RandomResize(256, 320)],
}
TENSOR_STEPS = {
    "RandomErasing": lambda: [T.RandomErasing()],
    "RandomErasing random": lambda: [T.RandomErasing(value="random")],
    "GaussianNoise": lambda: [v2.GaussianNoise()],
}
HEAD = [T.RandomResizedCrop(loaders.CROP), T.RandomHorizontalFlip()]
TAIL = [T.ToTensor(), T.Normalize(loaders.MEAN, loaders.STD)]
SIMCLR = [
    T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
    T.RandomGrayscale(0.2),
    T.RandomApply([T.GaussianBlur(23)], 0.5),
]
POLICIES = {"ra": T.RandAugment, "ta_wide": T.TrivialAugmentWide, "augmix": T.AugMix, "imagenet": T.AutoAugment}


def _turned(image):
    return image.rotate(10)


def _crops(crops):
    return torch.stack([T.functional.to_tensor(crop) for crop in crops])[0]


def transforms():
    """Return {name: transform} of all measured transforms."""
    made = {name: [*HEAD, *steps(), *TAIL] for name, steps in PIL_STEPS.items()}
    made |= {name: [*steps(), *HEAD, *TAIL] for name, steps in BEFORE.items()}
    made |= {name: [*HEAD, *TAIL, *steps()] for name, steps in TENSOR_STEPS.items()}
    made["FiveCrop"] = [T.Resize((256, 256)), T.FiveCrop(loaders.CROP), T.Lambda(_crops)]
    made["TenCrop"] = [T.Resize((256, 256)), T.TenCrop(loaders.CROP), T.Lambda(_crops)]
    made["v2 on tensors"] = [
        v2.ToImage(),
        v2.RandomResizedCrop(loaders.CROP, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(loaders.MEAN, loaders.STD),
    ]
    made["simclr"] = [*HEAD, *SIMCLR, *TAIL]
    for name, policy in POLICIES.items():
        made[name] = [*HEAD, policy(), *TAIL, T.RandomErasing(0.1)]
    return {name: T.Compose(steps) for name, steps in made.items()}


def turn(which, root, transform, settings, args):
    """Return images/s of one loader on one transform, and its plan."""
    if which == "torchvision":
        from torchvision.datasets import ImageFolder

        opened = loaders.torchvision_loader(settings, ImageFolder(root, transform))
        warmup = settings.workers  # one per worker: half a minute for the slowest transforms
    else:
        import dali_compat

        loader = dali_compat.DataLoader(
            dali_compat.DALIImageFolder(root, transform),
            device=settings.device,
            fallback="silent",
            **loaders.torch_arguments(settings, None),
        )
        opened, warmup = loaders.Opened(lambda: iter(loader), loader.close, loader.explain), args.warmup
    batches = loaders.endless(opened)
    for _ in range(warmup):
        images, _ = next(batches)
    loaders.synchronise(settings.device)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < args.seconds or (which == "torchvision" and count % settings.workers):
        images, _ = next(batches)
        count += 1
    loaders.synchronise(settings.device)
    speed = count * len(images) / (time.perf_counter() - begin)
    del batches, images
    opened.close()
    plan = opened.explain()
    del opened
    loaders.release(settings.device)
    return {"images_per_s": speed, "batches": count}, plan


def main():
    options = common.parser(__doc__)
    options.add_argument("--only", nargs="+", help="names of transforms (default: all)")
    options.add_argument("--warmup", type=int, default=6)
    options.add_argument("--seconds", type=float, default=2)
    args = options.parse_args()
    device = loaders.device_of(args)
    torch.zeros(1, device=device)
    chosen = {name: t for name, t in transforms().items() if not args.only or name in args.only}
    with common.folder(args.data, args.replicate) as root:
        so_far = json.loads(args.json.read_text()) if args.json and args.json.exists() else None
        result = so_far or common.begun("transforms", args, images=common.describe(root, args.data), plans={})
        settings = loaders.Settings(str(root), device, args.batch_size, args.workers)
        done = {(row["case"], row["transform"], row["round"]) for row in result["rounds"]}
        for which, name, number in itertools.product(["torchvision", "ours"], chosen, range(args.rounds)):
            if (which, name, number) in done:
                continue
            transform = chosen[name]
            row, plan = turn(which, str(root), transform, settings, args)
            result["rounds"].append({"round": number, "transform": name, "case": which, **row})
            if plan:
                result["plans"][name] = plan
            print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)
        rows = []
        for name in chosen:
            mine = [row for row in result["rounds"] if row["transform"] == name]
            speed = common.medians(mine, "images_per_s")
            rows.append(
                [
                    name,
                    *(f"{speed[case]['median']:,.0f}" for case in ("torchvision", "ours")),
                    common.ratio(mine, "images_per_s", "ours", "torchvision"),
                ]
            )
        print("\n" + common.markdown(["transform", "torchvision", "ours", "ours to torchvision"], rows))
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
