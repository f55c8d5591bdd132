"""Functions shared by the benchmarks: facts about the machine, a large folder made of few photos, tables of medians,
and JSON."""

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# dali_compat sets this on import. Every case runs with the same value, so that only the loader differs.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

MOST_CLASSES = 1000  # as in ImageNet: labels must be smaller than a ResNet's number of outputs


def basic_parser(doc):
    """Return the options of a benchmark that creates its images."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", type=pathlib.Path, help="write every round's numbers here")
    return options


def parser(doc):
    """Return the options of a benchmark that is given images."""
    options = basic_parser(doc)
    options.add_argument("--data", required=True, help="folder of images in ImageFolder layout")
    options.add_argument(
        "--replicate",
        type=int,
        default=0,
        metavar="N",
        help="use a folder in memory that contains every image N times, as hard links",
    )
    options.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="num_workers and num_threads (default: every core)",
    )
    options.add_argument("--device", default=None, help="cuda or cpu (default: cuda if available)")
    return options


def split_case(case, workers):
    """Return (name, workers, depth) of 'ours', 'ours:4' or 'ours:4:3'; depth None is the loader's default."""
    name, *numbers = case.split(":")
    own, depth = ([int(n) for n in numbers] + [None, None])[:2]
    return name, workers if own is None else own, depth


def in_turn(cases, rounds):
    """Yield (round, case) for every round. The order rotates by one case per round, so that none is always first."""
    for number in range(rounds):
        start = number % len(cases)
        for case in cases[start:] + cases[:start]:
            yield number, case


@contextlib.contextmanager
def folder(root, copies, again=os.link, megapixels=None):
    """Yield root, or a temporary folder in memory with every image `copies` times, enlarged to `megapixels`.

    Files are hard links to one copy of each image; with again=shutil.copyfile each is a separate file. Every class
    contains all images, so that a reader which shuffles only within a window, as DALI's does, sees every image equally
    often at every point of the epoch.
    """
    root = pathlib.Path(root)
    if not copies:
        yield root
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = pathlib.Path(tempfile.mkdtemp(prefix="dali-compat-bench-", dir=memory))
    try:
        (made / "originals").mkdir()
        originals = []
        for number, path in enumerate(sorted(p for p in root.glob("*/*") if p.is_file())):
            originals.append(made / "originals" / f"{number:05d}{path.suffix}")
            shutil.copyfile(path, originals[-1])
        if megapixels:
            with concurrent.futures.ProcessPoolExecutor() as pool:
                list(pool.map(_enlarge, originals, [megapixels] * len(originals)))
        for copy in range(copies):
            label = made / "images" / f"class_{copy % MOST_CLASSES:04d}"
            label.mkdir(parents=True, exist_ok=True)
            for path in originals:
                again(path, label / f"{copy:06d}_{path.name}")
        yield made / "images"
    finally:
        shutil.rmtree(made)


def _enlarge(path, megapixels):
    """Enlarge a JPEG like a camera's: 4:2:0, with sensor noise. Without noise it would have a fifth of the bytes."""
    import numpy as np
    from PIL import Image

    image = Image.open(path).convert("RGB")
    scale = (megapixels * 1e6 / (image.width * image.height)) ** 0.5
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(0).normal(0, 3, (image.height, image.width, 1))
    Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).save(path, "JPEG", quality=90)


def describe(root, given):
    """Describe the images: number of files, and mean bytes of an original."""
    enlarged = pathlib.Path(root).parent / "originals"  # as created by folder()
    originals = enlarged.glob("*") if enlarged.is_dir() else pathlib.Path(given).glob("*/*")
    sizes = [p.stat().st_size for p in originals if p.is_file()]
    return {
        "given": str(given),
        "files": sum(len(files) for _, _, files in os.walk(root)),
        "different_images": len(sizes),
        "mean_bytes": round(statistics.mean(sizes)),
        "smallest_bytes": min(sizes),
        "largest_bytes": max(sizes),
    }


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name():
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(package):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _dali():
    try:
        import nvidia.dali as dali
    except ImportError:
        return None
    return dali.__version__


def commit_of(folder):
    """Return the short hash of the folder's commit, if git knows it."""
    return _output("git", "-C", str(folder), "rev-parse", "--short", "HEAD")


def facts():
    """Return hardware and versions, without starting CUDA."""
    import PIL.features

    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "commit": commit_of(pathlib.Path(__file__).parent),
        "gpu": _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchvision": _version("torchvision"),
        "dali": _dali(),
        "pillow": _version("pillow") or _version("pillow-simd"),
        "libjpeg_turbo": PIL.features.version_feature("libjpeg_turbo"),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ["CUDA_DEVICE_MAX_CONNECTIONS"],
    }


def begun(benchmark, args, **more):
    """Return a new result with the machine, the options, ``more``, and no rounds; print the machine and images."""
    settings = {key: str(value) for key, value in vars(args).items()}
    result = {"benchmark": benchmark, "facts": facts(), "settings": settings, **more, "rounds": []}
    print(result["facts"], *([more["images"]] if "images" in more else []), sep="\n", flush=True)
    return result


def medians(rounds, key):
    """Return {case: {median, min, max, values}} of the rounds' numbers under key."""
    values = {}
    for row in rounds:
        if row.get(key) is not None:
            values.setdefault(row["case"], []).append(row[key])
    return {
        case: {"median": statistics.median(v), "min": min(v), "max": max(v), "first": v[0], "n": len(v)}
        for case, v in values.items()
    }


def _by_round(rounds, key, case):
    return {row["round"]: row[key] for row in rounds if row["case"] == case and row.get(key)}


def paired(rounds, key, case, base):
    """Return the ratio of two cases in each round that has both."""
    ours, theirs = _by_round(rounds, key, case), _by_round(rounds, key, base)
    return [value / theirs[number] for number, value in ours.items() if number in theirs]


def ratio(rounds, key, case, base):
    """Format '0.985 (0.96 - 1.01)': the ratio of medians, and the range of the ratios within one round."""
    ours, theirs, within = _by_round(rounds, key, case), _by_round(rounds, key, base), paired(rounds, key, case, base)
    if not ours or not theirs:
        return None
    middle = statistics.median(ours.values()) / statistics.median(theirs.values())
    return f"{middle:.3f}" if case == base or not within else f"{middle:.3f} ({min(within):.2f} - {max(within):.2f})"


def markdown(header, rows):
    """Format a Markdown table with right-aligned numbers."""
    rows = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def spread(entry, form):
    """Return 'median', 'min - max' of one entry of medians()."""
    if entry is None:
        return None, None
    return format(entry["median"], form), f"{entry['min']:{form}} - {entry['max']:{form}}"


def line(row):
    """Format a round as one line of progress output."""
    return " ".join(f"{key}={value:{'.4g' if isinstance(value, float) else ''}}" for key, value in row.items())


def write_json(path, result):
    """Write the result so far, so that an interrupted run keeps its finished rounds."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
