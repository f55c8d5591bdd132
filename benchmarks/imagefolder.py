"""Question: how fast does dali_compat load an ImageFolder, compared with torchvision and a hand-written DALI pipeline?

Method. One process; the cases take turns (A B C, B C A, ...) for --rounds rounds. Each turn opens a fresh loader,
takes --warmup batches, then counts images until --batches batches or --seconds seconds have passed; the device is
synchronised at both ends. The loader is closed and its memory freed before the next turn. Ratios are ratios of
medians over rounds, with the range of the ratios within one round in brackets. All cases do RandomResizedCrop(224),
RandomHorizontalFlip, ToTensor, Normalize (--recipe eval: Resize(256), CenterCrop(224), ToTensor, Normalize) and end
with float32 batches on the device; loaders.py has the code of each. Start-up is timed separately, in epochs of
2 x workers batches (4 at least): from the call of the loader's constructor to its first batch, and, after that epoch
has ended, from iter() to the second epoch's first batch.

Cases: torchvision (--workers processes), handwritten (NVIDIA's ResNet-50 example, --workers threads), ours, and, if
requested, ours_exact (exact=True), ours_channels_last and, if it is installed, turboloader (from a tar).
NAME:K runs a case with K workers, NAME:K:D with D batches in flight; cases.py describes further parts of a
name. With @DALI_COMPAT_JPEG_ENGINE=0 a case of ours runs as on a GPU without a JPEG engine.

With --seen, all turns of ours are in later epochs than the first. Before the rounds, whole epochs run until all files
were read, and compared if the engine decodes. To measure few cores, run the whole command on them:
    taskset -c 0-3 python benchmarks/imagefolder.py --data PHOTOS --replicate 300 --seen --json OUT.json \\
        --cases torchvision ours ours_exact@DALI_COMPAT_JPEG_ENGINE=0 ours_exact

Confounders.
- Nothing consumes the batches. During training other things matter: see training.py.
- Photos of --megapixels are enlarged, with added noise: they have as many bytes as a camera's, but not the detail.
- With --replicate the files come from memory and few bytes are different: no disk, warm caches, for every case.
- torchvision's workers finish in bursts, so its warm-up is at least two batches per worker, and its count a multiple
  of workers.
- A loader that ends its epoch starts the next inside the measured time, which costs torchvision most. Choose
  --replicate so that an epoch is longer. The script warns if it is shorter, and "epochs_ended" counts these ends.
- handwritten reads in DALI's order (a shuffling window of 1024 files), the others in torch's; every class of the
  replicated folder contains every image, so the window does not make the work uneven.
- handwritten's pixels are DALI's default ones, as ours are without exact=True. Its crop windows follow DALI's
  distribution.
- Start-up excludes listing the folder, which torchvision's ImageFolder does for both (listing_s in the JSON); rounds
  share the data set. The first DALI case in the process also loads DALI's libraries ("first in process").
- All run with CUDA_DEVICE_MAX_CONNECTIONS=32 unless it is set, since dali_compat would set it.

Table. Printed at the end in Markdown; --json has every round. results/README.md lists the committed ones.

Command.
    python benchmarks/imagefolder.py --data PHOTOS --replicate 2000 --rounds 5 --json OUT.json
"""

import time

import cases
import common
import loaders
import torch
from torch.utils.data import RandomSampler

BASES = "handwritten", "torchvision"  # the denominators of ratios
WITH_STARTUP = "torchvision", "ours", "ours_exact", "ours_channels_last"


def steady(opened, settings, warmup, batches, seconds, multiple):
    """Return images per second, after `warmup` batches."""
    stream = loaders.endless(opened)
    for number in range(warmup):
        batch = next(stream)
        if number == 0:
            loaders.check(batch, settings)
    loaders.synchronise(settings.device)
    begin = time.perf_counter()
    images = count = 0
    while count % multiple or (count < batches and time.perf_counter() - begin < seconds):
        images += len(next(stream)[1])
        count += 1
    loaders.synchronise(settings.device)
    elapsed = time.perf_counter() - begin
    return {"images_per_s": images / elapsed, "images": images, "seconds": elapsed, "warmup_batches": warmup}


def first_batch(epoch, settings):
    """Take one batch, complete on the device; return the rest of the epoch."""
    stream = iter(epoch())
    next(stream)
    loaders.synchronise(settings.device)
    return stream


def startup(open_loader, settings):
    """Return seconds to the first batch of a fresh loader, and to the first batch of its second epoch."""
    begin = time.perf_counter()
    opened = open_loader()
    rest = first_batch(opened.epoch, settings)
    first = time.perf_counter() - begin
    for _ in rest:
        pass
    loaders.synchronise(settings.device)
    begin = time.perf_counter()
    rest = first_batch(opened.epoch, settings)
    second = time.perf_counter() - begin
    del rest
    opened.close()
    return {"first_batch_s": first, "second_epoch_s": second}


def opened_of(case, settings, data, sampler=None):
    return loaders.OPEN[case.name](settings, data, sampler, **case.arguments)


def seen(case, settings, data):
    """Run whole epochs of a case of ours, before any turn."""
    if case.name.startswith("ours"):
        with cases.constants(case.constants):
            opened = opened_of(case, settings, data)
            loaders.see(opened, settings.device)
            opened.close()
        del opened
        loaders.release(settings.device)


def turn(text, case, settings, args, data):
    """Run one turn of one case: start-up, then throughput, each with a fresh loader."""
    name, workers = case.name, settings.workers
    row = {"case": text, "workers": workers}
    if args.startup and name in WITH_STARTUP:
        batches = max(4, 2 * workers)
        sampler = RandomSampler(data, num_samples=min(batches * settings.batch_size, len(data)))
        row |= startup(lambda: opened_of(case, settings, data, sampler), settings)
        loaders.release(settings.device)
    opened = opened_of(case, settings, data)
    bursts = name == "torchvision"
    warmup = max(args.warmup, 2 * workers) if bursts else args.warmup
    row |= steady(opened, settings, warmup, args.batches, args.seconds, workers if bursts and workers else 1)
    opened.close()
    plan = opened.explain()
    del opened
    loaders.release(settings.device)
    return row, plan


def report(result, names):
    speed = common.medians(result["rounds"], "images_per_s")
    first = common.medians(result["rounds"], "first_batch_s")
    second = common.medians(result["rounds"], "second_epoch_s")
    rows = []
    for case in names:
        ratios = [common.ratio(result["rounds"], "images_per_s", case, base) for base in BASES]
        rows.append([case, *common.spread(speed.get(case), ",.0f"), *ratios])
    print("\n" + common.markdown(["case", "images/s", "min - max", *(f"to {base}" for base in BASES)], rows))
    rows = [
        [case, *common.spread(first[case], ".3f"), f"{first[case]['first']:.3f}", *common.spread(second[case], ".3f")]
        for case in names
        if case in first
    ]
    if rows:
        print(
            "\n"
            + common.markdown(
                ["case", "first batch, s", "min - max", "first in process", "second epoch, s", "min - max"], rows
            )
        )
    result["summary"] = {"images_per_s": speed, "first_batch_s": first, "second_epoch_s": second}


def main():
    options = common.parser(__doc__)
    options.add_argument(
        "--cases", nargs="+", default=["torchvision", "ours", "handwritten"], metavar="NAME[:K[:D]][@...]"
    )
    options.add_argument(
        "--recipe",
        choices=["train", "eval"],
        default="train",
        help="eval: Resize(256), CenterCrop(224) instead of RandomResizedCrop(224), flip",
    )
    options.add_argument("--warmup", type=int, default=20, help="batches before counting starts")
    options.add_argument("--batches", type=int, default=400, help="batches to count in a turn, at most")
    options.add_argument("--seconds", type=float, default=6, help="time to count for in a turn, at most")
    options.add_argument("--megapixels", type=float, help="enlarge the images of --replicate, like a camera's photos")
    options.add_argument("--seen", action="store_true", help="all turns are in later epochs than a data set's first")
    options.add_argument("--no-startup", dest="startup", action="store_false", help="time no start-up")
    args = options.parse_args()
    try:
        parsed = {text: cases.parse(text, args.workers) for text in args.cases}
    except ValueError as error:
        options.error(str(error))
    if any(case.name == "synthetic" for case in parsed.values()):
        options.error("synthetic loads nothing")
    device = loaders.device_of(args)
    torch.zeros(1, device=device)  # start CUDA outside the measured start-up time

    with common.folder(args.data, args.replicate, megapixels=args.megapixels) as root:
        images = common.describe(root, args.data)
        result = common.begun("imagefolder", args, images=images, listing_s={}, plans={})
        epoch = images["files"] // args.batch_size
        if epoch < args.warmup + args.batches:
            print(f"note: an epoch has {epoch} batches, fewer than --warmup + --batches: restarts may be counted")
        data = {}
        for case in args.cases:
            begin = time.perf_counter()
            data[case] = loaders.dataset(parsed[case].name, root, args.recipe)
            result["listing_s"][case] = time.perf_counter() - begin
        settings = {
            text: loaders.Settings(str(root), device, args.batch_size, case.workers, case.depth, args.recipe)
            for text, case in parsed.items()
        }
        for case in args.cases if args.seen else ():
            seen(parsed[case], settings[case], data[case])
        for number, case in common.in_turn(args.cases, args.rounds):
            with cases.constants(parsed[case].constants):
                row, plan = turn(case, parsed[case], settings[case], args, data[case])
            ended = (row["warmup_batches"] + row["images"] // args.batch_size - 1) // epoch if epoch else 0
            result["rounds"].append({"round": number, **row, "epochs_ended": ended})
            if plan and case not in result["plans"]:
                result["plans"][case] = plan
                print(f"\n{case}:\n{plan}\n", flush=True)
            print(common.line(row), flush=True)
            common.write_json(args.json, result)
        report(result, args.cases)
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
