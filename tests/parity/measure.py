"""Measure how far each transform, or a given one, is from torchvision; write the table of docs/transforms.md.

    python tests/parity/measure.py [--only GaussianBlur] [--transform SPEC] [--data photos] [--device cuda]

The images go through a DataLoader of this package, with the default and with exact=True, and through torchvision's
transform objects with the same random numbers. Errors are mean and maximum over all values, in levels of 0..255.

- catalogue: the transforms and recipes to measure.
- reference: torchvision's transform objects with the random numbers of a plan (dictation).
- difference: comparison of the pixels. results: JSON files. table: the table of docs/transforms.md.
"""

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

import numpy as np
import PIL.features
import torch
from torch.utils._pytree import tree_leaves
from torchvision.transforms import v2
from tqdm import tqdm

from dali_compat import DataLoader
from dali_compat.cli import doctor
from dali_compat.cli.arguments import UsageError, transform_of
from dali_compat.cli.demo import save_rows, write_folder
from dali_compat.inspection.untranslatable import describe
from dali_compat.routes import resolve_device
from dali_compat.runtime import installation
from dali_compat.runtime.messages import in_columns
from parity import results
from parity.difference import Mismatch, Pictures, along, as_tensor, levels, measure
from parity.table import numbers, rewrite

DRAWN_PICTURES = 64
PICTURE_COLUMNS, PICTURE_SIDE = 8, 384
AMPLIFICATION = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or the lines of one transform. Return 0, or 1 if something could not be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder of images, in class folders or not (default: drawn ones)")
    parser.add_argument("--most", type=int, help="how many images of it, evenly chosen (default all)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the GPU if there is one)")
    parser.add_argument("--json", type=Path, help="write the results here; with --only: into those there")
    parser.add_argument(
        "--only", metavar="NAME", help="measure one transform's rows (by its class's name), or a recipe"
    )
    parser.add_argument(
        "--transform",
        metavar="SPEC",
        help="measure only this transform: module:name, file.py:name, or an expression of T (torchvision.transforms) "
        'and v2, such as "T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])"',
    )
    parser.add_argument("--steps", action="store_true", help="with --transform: also each beginning of its Compose")
    parser.add_argument("--picture", metavar="OUT.png", help="with --transform: save images of both side by side")
    parser.add_argument("--readme", type=Path, help="measure nothing: write the table of --results into this file")
    parser.add_argument(
        "--results", type=Path, nargs="+", metavar="JSON", help="with --readme: what --json has written"
    )
    args = parser.parse_args(argv)
    if args.readme or args.results:
        if not (args.readme and args.results):
            raise SystemExit("parity: --readme and --results go together")
        rewrite(args.readme, args.results)
        return 0
    if args.only and args.transform:
        raise SystemExit("parity: --only and --transform do not go together")
    if (args.picture or args.steps) and not args.transform:
        raise SystemExit("parity: --picture and --steps need --transform")
    if args.most is not None and args.most < 1:
        raise SystemExit("parity: --most starts at 1")
    problem = installation.dali_problem(gpu=torch.cuda.is_available() and args.device != "cpu")
    if problem:
        raise SystemExit(f"parity: {problem}")
    try:
        transform = args.transform and transform_of(args.transform)
    except UsageError as error:
        raise SystemExit(f"parity: {error}") from None
    results.rows(args.only)  # exits if there is no such row
    with tempfile.TemporaryDirectory(prefix="dali_compat_parity_") as drawn:
        if args.data is None:
            write_folder(drawn, min(args.most or DRAWN_PICTURES, DRAWN_PICTURES))
        pictures = Pictures(args.data or Path(drawn), args.most)
        return one(pictures, transform, args) if args.transform else everything(pictures, args)


# ---- all transforms


def everything(pictures, args) -> int:
    """Measure every translated transform and the recipes, or the rows that --only names."""
    device = resolve_device(args.device, start=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    result = {"facts": facts(), "images": pictures.facts(), "device": name, "transforms": [], "recipes": []}
    before = results.read(args.json, result["device"]) if args.json and args.only else None
    for kind, name, entry in tqdm(results.rows(args.only), desc="parity", unit="transform"):
        versions = entry.versions() if kind == "transforms" else ["v1"]
        row = {"name": name, "of": entry.expression, "takes": entry.takes, "versions": versions}
        try:
            row |= measured(pictures, entry, versions, args.device)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        result[kind].append(row)
        if args.json:
            results.write(args.json, results.merged(before, result) if before else result)
    print(f"\n{len(pictures)} {f'images of {args.data}' if args.data else 'drawn pictures'}, on {result['device']}\n")
    print(in_columns([("", "runs in", "default", "exact=True", "torchvision on tensors"), *text_rows(result)]))
    print("\nmean / maximum of the difference to torchvision on PIL images, in levels of 0..255")
    return int(any("error" in row for row in result["transforms"] + result["recipes"]))


def measured(pictures, entry, versions: list[str], device: str | None) -> dict[str, Any]:
    """Return the errors of an entry in these versions, the device it runs on, and torchvision's errors on tensors."""
    on_tensors = "v2" in versions and entry.takes in ("photo", "crop")
    tensors = entry.made("v2", (v2.ToImage(),)) if on_tensors else None
    found, plans = measure(pictures, [entry.made(version) for version in versions], device, tensors)
    return found | {"where": where(plans[0].lines[len(entry.before(versions[0])) :])}


def where(lines) -> str:
    places = (place for line in lines for place in line.where.split(" + "))
    return " + ".join(dict.fromkeys(place for place in places if place not in ("-", "the host"))) or "nothing to do"


def text_rows(result) -> list[tuple[str, ...]]:
    named = [(row["of"], row) for row in result["transforms"]] + [(row["name"], row) for row in result["recipes"]]
    return [
        (name, row.get("error") or row["where"], *(numbers(row.get(key)) for key in ("default", "exact", "tensors")))
        for name, row in named
    ]


# ---- one transform


def one(pictures, transform, args) -> int:
    """Measure one transform, and with --steps each prefix of it."""
    print(DataLoader(pictures.dataset(transform), 16, device=args.device, fallback="silent").explain() + "\n")
    ways = {"the whole": transform}
    if args.steps and hasattr(transform, "transforms"):
        parts = list(transform.transforms)
        ways = {f"{'+ ' * (i > 0)}{describe(parts[i])}": type(transform)(parts[: i + 1]) for i in range(len(parts))}
    kept: list = []
    rows = []

    def keep(mine, theirs, exact):
        if not exact and len(kept) < PICTURE_COLUMNS:
            kept.append((mine, theirs))

    for name, way in ways.items():
        kept.clear()
        try:
            found, (plan,) = measure(pictures, [way], args.device, keep=keep)
        except (Mismatch, NotImplementedError, ValueError, OSError) as error:
            raise SystemExit(f"parity: {name}: {error}") from None
        rows.append((name, numbers(found["default"]), numbers(found["exact"])))
    print(in_columns([("", "default", "exact=True"), *rows]))
    print(f"\nmean / maximum of the difference to torchvision in levels of 0..255, over {len(pictures)} images")
    if args.picture:
        save_picture(args.picture, kept, *levels(plan))
        print(f"picture: {os.path.abspath(args.picture)} (torchvision, dali_compat, {AMPLIFICATION} x the difference)")
    return 0


def save_picture(out: str, pairs: list, unit, offset) -> None:
    """Save a picture with torchvision's images, ours, and the amplified difference; large images are cropped."""

    def shown(image) -> np.ndarray:
        image = as_tensor(tree_leaves(image)[0])
        if image.ndim != 3 or image.shape[0] not in (1, 3):
            raise SystemExit(f"parity: no picture of {tuple(image.shape)}")
        values = image.double().numpy() * along(unit, image) + along(offset, image)
        return np.broadcast_to(values, (3, *values.shape[1:])).transpose(1, 2, 0)[:PICTURE_SIDE, :PICTURE_SIDE]

    theirs, ours = ([shown(pair[i]) for pair in pairs] for i in (1, 0))
    height, width = (max(image.shape[axis] for image in theirs) for axis in (0, 1))
    rows = {
        "torchvision": theirs,
        "dali_compat": ours,
        f"{AMPLIFICATION} x difference": [abs(a - b) * AMPLIFICATION for a, b in zip(theirs, ours, strict=True)],
    }
    sheets = {}
    for title, images in rows.items():
        sheets[title] = np.zeros((len(images), height, width, 3), np.uint8)
        for sheet, image in zip(sheets[title], images, strict=True):
            sheet[: image.shape[0], : image.shape[1]] = image.round().clip(0, 255)
    save_rows(out, sheets)


# ---- origin of results


def facts() -> dict[str, Any]:
    """Return hardware and versions."""
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python tests/parity/measure.py", *sys.argv[1:]]),
        "commit": commit.stdout.strip() or None,
        "processor": _processor(),
        **{check.name: check.value for check in doctor.checks()},
        "libjpeg_turbo": PIL.features.version_feature("libjpeg_turbo"),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
