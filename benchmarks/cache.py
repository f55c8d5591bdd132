"""Question: how much faster does a small folder load with DataLoader(cache=...), and how much does filling the cache
cost?

Method. --images files of the size of Kaggle's dogs and cats (500 x 375, JPEG; --data's photos resized, then hard links
in memory), batches of 64, ImageNet's training transform. One process; the cases take turns over --rounds rounds:
- off: no cache. A fresh loader runs one epoch to warm up and one that is measured.
- fill: the first epoch of a fresh loader with a cache, from iter() on, including DALI's start;
- kept: its second and third epoch;
- fill, host and kept, host: on a GPU, the same with the cache in host memory.
- start: the first epoch of a fresh loader without a cache, for comparison with fill.
The device is synchronised at both ends of an epoch.

Confounders.
- Nothing consumes the batches. A training step that is slower than "off" gains only CPU and decoder time.
- Hard links: few encoded bytes, which stay in the processor's caches; the decoded images are all stored separately.
- Larger folders do not fit: 25,000 of these images take 14 GB.

Command.
    python benchmarks/cache.py --data PHOTOS --images 25000 --batch-size 64 --rounds 3 --json OUT.json
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
import time

import common
import loaders
from PIL import Image

import dali_compat

WIDTH, HEIGHT, QUALITY = 500, 375, 85
CLASSES = "cat", "dog"


@contextlib.contextmanager
def small_folder(source, count):
    """Yield a folder of two classes in memory, with ``count`` images."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-bench-", dir="/dev/shm"))
    try:
        (made / "originals").mkdir()
        for number, path in enumerate(sorted(p for p in pathlib.Path(source).glob("*/*") if p.is_file())):
            image = Image.open(path).convert("RGB")
            size = (WIDTH, HEIGHT) if image.width >= image.height else (HEIGHT, WIDTH)
            image.resize(size, Image.LANCZOS).save(made / "originals" / f"{number:03d}.jpg", quality=QUALITY)
        originals = sorted((made / "originals").iterdir())
        for name in CLASSES:
            (made / "images" / name).mkdir(parents=True)
        for number in range(count):
            original = originals[number % len(originals)]
            os.link(original, made / "images" / CLASSES[number % 2] / f"{number:06d}.jpg")
        yield made / "images"
    finally:
        shutil.rmtree(made)


def epoch(opened, settings):
    """Return images per second, and milliseconds of processor time per image."""
    loaders.synchronise(settings.device)
    begin, used, images = time.perf_counter(), time.process_time(), 0
    for batch in opened.epoch():
        images += len(batch[1])
    loaders.synchronise(settings.device)
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    return {"images_per_s": images / seconds, "cpu_ms": 1000 * used / images}


def turn(case, settings, data, budget):
    """Return {case: numbers} for a fresh loader."""
    options = {"off": {}, "cache": {"cache": budget}, "host": {"cache": budget, "cache_device": "cpu"}}
    names = {
        "off": ("start", "off"),
        "cache": ("fill", "kept", "kept again"),
        "host": ("fill, host", "kept, host", "kept again, host"),
    }[case]
    opened = loaders.ours_loader(settings, data, **options[case])
    made = {name: epoch(opened, settings) for name in names}
    plan = opened.explain()
    opened.close()
    return made, plan


def main():
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=25_000)
    options.add_argument("--budget", type=int, default=20_000_000_000, help="cache=, in bytes")
    options.set_defaults(batch_size=64, rounds=3)
    args = options.parse_args()
    device = loaders.device_of(args)
    with small_folder(args.data, args.images) as root:
        result = common.begun("cache", args, images=common.describe(root, root.parent))
        settings = loaders.Settings(str(root), device, args.batch_size, args.workers)
        data = dali_compat.DALIImageFolder(root, loaders.transform())
        for number, case in common.in_turn(["off", "cache"] + ["host"] * (device.type == "cuda"), args.rounds):
            made, result[f"plan {case}"] = turn(case, settings, data, args.budget)
            for name, numbers in made.items():
                result["rounds"].append({"round": number, "case": name, **numbers})
                print(common.line(result["rounds"][-1]), flush=True)
            loaders.release(device)
            common.write_json(args.json, result)
    for key, form in (("images_per_s", ",.0f"), ("cpu_ms", ".3f")):
        rows = [
            [case, *common.spread(entry, form), common.ratio(result["rounds"], key, case, "off")]
            for case, entry in common.medians(result["rounds"], key).items()
        ]
        print("\n" + common.markdown(["case", key, "range", "to off"], rows))


if __name__ == "__main__":
    main()
