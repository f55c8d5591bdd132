"""Question: how fast do several views of each image load, compared with torchvision, and what does a wrapper cost?

Method. One process; the cases of a recipe take turns (A B, B A, ...) for --rounds rounds. Each turn opens a fresh
loader, takes --warmup batches, then counts samples (images read, for any number of views) until --seconds have passed;
the device is synchronised at both ends. Every view ends as a float32 tensor on the device.

Recipes (--recipes), written as in the projects' code, so that the loader has to recognise their classes:
    simclr   two views: RandomResizedCrop(224), flip, ColorJitter(.8, .8, .8, .2) with p=.8, grayscale, blur with p=.5
    dino     two views of 224 and six of 96: crops, flip, jitter, grayscale, blur, solarize
    preset   one view: an object that calls ImageNet's Compose, as in torchvision's references

Cases: torchvision (--workers processes, pinned memory); ours; own, a custom data set with the same transform, whose
code runs in --workers processes; and for preset, plain, which is the Compose itself.

Confounders.
- Nothing consumes the batches.
- torchvision's workers each create whole batches, so its speed hardly depends on the batch size; its batches have
  --torchvision-batch-size samples, because its warm-up is a batch per worker and its count a multiple of workers.
- --replicate, the order of cases, and files in memory: as in imagefolder.py.

Command.
    python benchmarks/views.py --data PHOTOS --replicate 300 --rounds 3 --json OUT.json
"""

import time

import common
import loaders
import torch
import torchvision.transforms as T
from torchvision.datasets import ImageFolder

import dali_compat

LAST = [T.ToTensor(), T.Normalize(loaders.MEAN, loaders.STD)]


def jitter(brightness, saturation):
    return T.RandomApply([T.ColorJitter(brightness, brightness, saturation, saturation / 4)], p=0.8)


class TwoViews:
    """SimCLR's two views (Chen et al., 2020), as a class that calls one Compose twice."""

    views = [(2, loaders.CROP)]

    def __init__(self):
        crop = [T.RandomResizedCrop(loaders.CROP), T.RandomHorizontalFlip()]
        blur = T.RandomApply([T.GaussianBlur(23, sigma=(0.1, 2.0))], p=0.5)
        self.transform = T.Compose([*crop, jitter(0.8, 0.8), T.RandomGrayscale(0.2), blur, *LAST])

    def __call__(self, image):
        return [self.transform(image), self.transform(image)]


class MultiCrop:
    """DINO's crops (Caron et al., 2021), with torchvision's GaussianBlur and RandomSolarize in place of its classes."""

    views = [(2, loaders.CROP), (6, 96)]

    def __init__(self):
        colours = [T.RandomHorizontalFlip(), jitter(0.4, 0.4), T.RandomGrayscale(0.2)]
        blur = T.GaussianBlur(23, sigma=(0.1, 2.0))
        large = T.RandomResizedCrop(loaders.CROP, scale=(0.4, 1.0), interpolation=T.InterpolationMode.BICUBIC)
        small = T.RandomResizedCrop(96, scale=(0.05, 0.4), interpolation=T.InterpolationMode.BICUBIC)
        self.first = T.Compose([large, *colours, blur, *LAST])
        self.second = T.Compose([large, *colours, T.RandomApply([blur], 0.1), T.RandomSolarize(128, 0.2), *LAST])
        self.local = T.Compose([small, *colours, T.RandomApply([blur], 0.5), *LAST])

    def __call__(self, image):
        return [self.first(image), self.second(image), *(self.local(image) for _ in range(6))]


class Preset:
    """The preset of torchvision's references/classification/presets.py."""

    views = [(1, loaders.CROP)]

    def __init__(self):
        self.transforms = loaders.transform()

    def __call__(self, image):
        return self.transforms(image)


RECIPES = {"simclr": TwoViews, "dino": MultiCrop, "preset": Preset}


class Own(ImageFolder):
    """A custom data set, whose __getitem__ dali_compat calls for each sample."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target


def cases_of(recipe):
    cases = ["torchvision", "ours", "own"]
    return [*cases, "plain"] if recipe == "preset" else cases


def opened(case, root, transform, settings):
    """Return epoch(), close() and explain() of a case."""
    if case == "torchvision":
        loader = torch.utils.data.DataLoader(
            ImageFolder(str(root), transform), **loaders.torch_arguments(settings, None)
        )

        def epoch():
            for images, _ in loader:
                yield [view.to(settings.device, non_blocking=True) for view in views(images)]

        return loaders.Opened(epoch, lambda: None)
    if case == "plain":
        transform = transform.transforms
    kind = Own if case == "own" else dali_compat.DALIImageFolder
    made = loaders.ours_loader(settings, kind(str(root), transform))
    return loaders.Opened(lambda: (views(images) for images, _ in made.epoch()), made.close, made.explain)


def views(images):
    return images if isinstance(images, list) else [images]


def turn(case, root, transform, settings, args):
    """Return samples per second, and the output of explain()."""
    loader = opened(case, root, transform, settings)
    stream = loaders.endless(loader)
    wanted = [
        (settings.batch_size, 3, size, size, settings.device.type, torch.float32)
        for count, size in transform.views
        for _ in range(count)
    ]
    multiple = settings.workers if case == "torchvision" else 1
    for _ in range(max(args.warmup, multiple)):
        batch = next(stream)
    found = [(*view.shape, view.device.type, view.dtype) for view in batch]
    if found != wanted:
        raise SystemExit(f"{case}: {found}, expected {wanted}")
    loaders.synchronise(settings.device)
    begin, count = time.perf_counter(), 0
    while count % max(multiple, 1) or time.perf_counter() - begin < args.seconds:
        next(stream)
        count += 1
    loaders.synchronise(settings.device)
    seconds = time.perf_counter() - begin
    stream.close()
    loader.close()
    plan = loader.explain()
    del loader, stream, batch
    loaders.release(settings.device)
    return {"samples_per_s": count * settings.batch_size / seconds, "batches": count, "seconds": seconds}, plan


def main():
    options = common.parser(__doc__)
    options.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    options.add_argument("--torchvision-batch-size", type=int, default=64)
    options.add_argument("--warmup", type=int, default=12, help="batches before counting starts")
    options.add_argument("--seconds", type=float, default=3, help="counted seconds per turn")
    args = options.parse_args()
    device = loaders.device_of(args)
    torch.zeros(1, device=device)
    with common.folder(args.data, args.replicate) as root:
        result = common.begun("views", args, images=common.describe(root, args.data), plans={})
        rows = []
        for recipe in args.recipes:
            rounds = []
            for number, case in common.in_turn(cases_of(recipe), args.rounds):
                size = args.torchvision_batch_size if case == "torchvision" else args.batch_size
                settings = loaders.Settings(str(root), device, size, args.workers)
                row, plan = turn(case, root, RECIPES[recipe](), settings, args)
                rounds.append({"round": number, "recipe": recipe, "case": case, **row})
                if plan and f"{recipe}, {case}" not in result["plans"]:
                    result["plans"][f"{recipe}, {case}"] = plan
                print(common.line(rounds[-1]), flush=True)
                common.write_json(args.json, {**result, "rounds": result["rounds"] + rounds})
            result["rounds"] += rounds
            speed = common.medians(rounds, "samples_per_s")
            for case in cases_of(recipe):
                ratios = [common.ratio(rounds, "samples_per_s", case, base) for base in ("torchvision", "plain")]
                rows.append([f"{recipe}, {case}", *common.spread(speed[case], ",.0f"), *ratios])
        print(*(f"\n{name}:\n{plan}" for name, plan in result["plans"].items()), sep="\n")
        print("\n" + common.markdown(["case", "samples/s", "min - max", "to torchvision", "to plain"], rows))
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
