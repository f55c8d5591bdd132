"""Random custom data sets through torch's loader and the tested one, in processes that may crash or hang:

    python tests/faults/data_sets.py --seconds 3600 [--seed 1] [--processes 1] [--workers 0 2] [--save FOLDER]
    python tests/faults/data_sets.py --program saved.py ...

Everything must be equal: values, exact types, dtypes, shapes, strides, exceptions, the data set's attributes and all
generators' states. Each data set that differs is saved as a program. The first of each kind of difference is printed,
without what the difference does not need. The exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import ast
import collections
import faulthandler
import itertools
import multiprocessing as mp
import os
import random
import re
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils import data

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from black_box import ADDITION_ORDER, EQUAL, SETTLED, run, seed_all, under_test, unlike
from helpers import make_image

from faults.phrases import HEADER, KINDS, Phrase, learn_phrases

CHUNK = 40  # programs of a process
SECONDS = 60  # a program that takes longer hangs
DIFFERS, CRASHED, HUNG, VARIES = "differs", "crashed", "hung", "varies"

# not exact according to docs/transforms.md, within ADDITION_ORDER
ADDS = re.compile(r"F2?\.gaussian_blur|[TV2]\.GaussianBlur|lastic|adjust_gamma|aussian_?[Nn]oise|value='random'")

# Deferred by the loader, so that most data sets stay on DALI.
DEFERRED = re.compile(
    r"""\{x\}\.(resize|crop|transpose|copy|clone|detach|float)\(|\{x\}\.convert\((mode=)?"(RGB|L)"|ImageOps\.(mirror|flip)"""
    r"""|F2?\.(hflip|vflip|crop|resize|center_crop|pad|resized_crop|horizontal_flip|vertical_flip|to_tensor|pil_to_tensor"""
    r"""|to_image|normalize|convert_image_dtype|to_dtype)\(|\{x\}\.(add|sub|mul|div)_?\([-\d.]+\)"""
    r"""|operator\.i?(add|sub|mul|truediv)\(\{x\}, [-\d.]+\)"""
)


class Job(NamedTuple):
    """A program and its number."""

    number: int
    source: str


class Outcome(NamedTuple):
    """The result of a program.

    ``kind`` is "" if both loaders gave the same, and ``text`` describes the difference otherwise. ``raises`` is the
    error of torch's loader.
    """

    job: Job
    kind: str
    text: str = ""
    on_dali: bool = False
    raises: str = ""


# ---- files


def make_files(root: Path) -> None:
    """Write tiny images: mostly RGB JPEGs, and one of each other kind."""
    rng = np.random.default_rng(5)
    exif = Image.Exif()
    exif[274] = 6
    kinds = {  # by number: mode, ending, options
        3: ("L", ".jpg", {}),
        5: ("RGB", ".jpg", {"progressive": True}),
        8: ("RGB", ".jpg", {"exif": exif}),
        10: ("CMYK", ".jpg", {}),
        12: ("P", ".png", {}),
        13: ("RGBA", ".png", {}),
        14: ("L", ".png", {}),
        15: ("I;16", ".png", {}),
        16: ("RGB", ".webp", {}),
        17: ("RGB", ".gif", {}),
        18: ("RGB", ".bmp", {}),
        19: ("RGB", ".png", {}),
        20: ("1", ".png", {}),
    }
    for number in range(21):
        height, width = (int(side) for side in rng.integers(40, 121, 2))
        picture = Image.fromarray(make_image(rng, height, width))
        mode, ending, options = kinds.get(number, ("RGB", ".jpg", {"quality": 90, "dpi": (72, 72)}))
        picture = picture.convert("L").convert(mode) if mode == "I;16" else picture.convert(mode)
        picture.save(root / f"{number:02d}{ending}", **options)
        os.utime(root / f"{number:02d}{ending}", (1e9, 1e9))
    data = (root / "00.jpg").read_bytes()
    (root / "cut.jpg").write_bytes(data[: len(data) // 2])
    (root / "text.jpg").write_bytes(b"this is no image")


def files_of(root: Path) -> list[str]:
    """Return the paths of all images. The first twelve are JPEGs, the last two are damaged."""
    return sorted(map(str, root.iterdir()))


# ---- programs

STATES = [  # (statement of the constructor, expression)
    ("self.turns = itertools.count()", "next(self.turns)"),
    ("self.seen = []", "self.seen.append(i) or len(self.seen)"),
    ("self.numbers = np.random.default_rng(3)", "int(self.numbers.integers(99))"),
    ("self.numbers = random.Random(3)", "self.numbers.random()"),
    ("self.numbers = torch.Generator().manual_seed(4)", "int(torch.randint(99, (), generator=self.numbers))"),
    ("self.buffer = torch.zeros(2)", "float(self.buffer.add_(1)[0])"),
    ("self.array = np.zeros(2)", "float(np.add(self.array, i, out=self.array)[0])"),
    ("self.left = list(range(500))", "self.left.pop()"),
    ("self.counts = {}", "self.counts.setdefault(i % 3, []).append(i) or len(self.counts)"),
    ("Own.turns = []", "Own.turns.append(1) or len(Own.turns)"),
    ("", "random.random()"),
    ("", "float(np.random.rand())"),
    ("", "torch.rand(2)"),
    ("", "torch.randperm(5).tolist()"),
]
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, files):
        self.own, self.room = Own(files), {room}
    def __iter__(self):
        info, held = torch.utils.data.get_worker_info(), []
        for i in range(info.id if info else 0, len(self.own), info.num_workers if info else 1):
            held.append(self.own[i])
            if len(held) > self.room:
                yield held.pop(i % len(held))
        yield from held
"""  # replaces the data set and yields its samples in another order
_OBJECTS = """
V.Resize(({24:60}, {24:60})) | V.Resize({24:40}) | V.CenterCrop({24:44}) | V.Pad({1:6}, padding_mode="reflect") |
V.Pad([2, 3], fill=99) | V.RandomHorizontalFlip() | V.RandomVerticalFlip(.7) |
V.RandomCrop({24:36}, pad_if_needed=True) | V.RandomResizedCrop({24:40}) |
V.RandomResizedCrop(({24:40}, 30), interpolation=V.InterpolationMode.BICUBIC) | V.Grayscale(3) |
V.RandomGrayscale(.5) | V.ColorJitter(.4, .4, .4, .1) | V.RandomInvert() | V.RandomPosterize(4) |
V.RandomSolarize(128) | V.RandomAutocontrast() | V.RandomEqualize() | V.RandomAdjustSharpness(2) |
V.RandomRotation(30) | V.RandomAffine(20, (.1, .1), (.8, 1.2)) | V.RandomPerspective(p=1) | V.GaussianBlur(3) |
V.AutoAugment() | V.RandAugment() | V.TrivialAugmentWide() | v2.RandomZoomOut(side_range=(1, 2)) |
v2.RandomShortestSize([30, 40]) | v2.RandomResize(30, 50) | v2.RandomPhotometricDistort() |
v2.RandomChannelPermutation() | v2.ScaleJitter((40, 40)) | V.RandomApply([V.ColorJitter(.5)], .5) |
V.RandomChoice([V.RandomHorizontalFlip(1), V.CenterCrop(30)]) |
V.RandomOrder([V.RandomHorizontalFlip(), V.Pad(3)]) | v2.ElasticTransform(20.) | V.Lambda(lambda m: m) |
V.Compose([V.RandomCrop(32, pad_if_needed=True), V.RandomHorizontalFlip()])
"""
OBJECTS = [one.strip() for one in _OBJECTS.split("|")]
_JOINT = """
v2.RandomIoUCrop() | v2.RandomIoUCrop() | V.Pad({1:9}, fill={tv_tensors.Image: 9, tv_tensors.Mask: 255, "others": 3}) |
v2.RandomZoomOut(fill=7, side_range=(1., 2.)) | v2.ScaleJitter((40, 40), (.5, 1.5)) | V.RandomRotation(20) |
v2.RandomShortestSize([20, 24, 30], max_size=60) | v2.RandomResize(20, 50) | V.RandomRotation((90, 90)) |
V.RandomAffine(15, (.1, .2), (.7, 1.3), (-5, 5)) | V.RandomPerspective(.3, .7) | V.RandomHorizontalFlip() |
V.RandomVerticalFlip() | V.CenterCrop(({24:50}, 40)) | V.Resize(({16:60}, {16:60})) | V.Resize({16:30}, max_size=60) |
V.RandomCrop({24:40}, padding={1:9}, pad_if_needed=True, fill=9) | V.RandomResizedCrop({24:40}) |
V.Pad(4, padding_mode="edge") |
v2.RandomPhotometricDistort() | V.ColorJitter(.4, .4, .4, .1) | V.RandomGrayscale(.3) | v2.SanitizeBoundingBoxes()
"""
JOINT = [one.strip() for one in _JOINT.split("|")]
OPENINGS = [
    'Image.open(PATH).convert("RGB")',
    'Image.open(PATH).convert("RGB")',
    'Image.open(PATH).convert("RGB")',
    'Image.open(io.BytesIO(open(PATH, "rb").read())).convert("RGB")',
    'ImageOps.exif_transpose(Image.open(PATH)).convert("RGB")',
    "self.read(PATH)",
    'Image.open(PATH).convert("RGB").resize((48, 40))',
    'Image.open(PATH).convert("L")',
    'Image.open(PATH).convert("L").convert("RGB")',
    'Image.open(open(PATH, "rb")).convert("RGB")',
]
TENSORS = {
    "RGB": ["F.to_tensor", "F.to_tensor", "T.ToTensor()", "F.pil_to_tensor", "F2.to_image", "to_tensor"],
    "L": ["F.to_tensor", "T.ToTensor()", "F.pil_to_tensor"],
}
GATES = ["if i == 4:", "if i in (3, 7):", "if i % 5 == 3:", "if i > 9:", "if self.count == 6:"]
COLLATES = {
    "list": "OPTIONS['collate_fn'] = list",
    "default": "",
    "types": "OPTIONS['collate_fn'] = lambda samples: ([[type(one).__name__ for one in s] for s in samples], samples)",
    "columns": "OPTIONS['collate_fn'] = lambda samples: [list(column) for column in zip(*samples)]",
    "half": "OPTIONS['collate_fn'] = lambda samples: [s[0] * .5 if torch.is_tensor(s[0]) else s for s in samples]",
}


class Writer:
    """Writer of one program."""

    def __init__(self, seed: object, phrases: dict[str, list[Phrase]], workers: int):
        self.rng = random.Random(f"data set {seed}")
        self.phrases, self.workers = phrases, workers
        self.init: list[str] = []
        self.lines: list[str] = []
        self.kinds: dict[str, str] = {}  # kind of each image and tensor variable
        self.hard = 0.1 if self.chance(0.8) else 0.6  # share of steps that may read pixels in all samples

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def filled(self, text: str) -> str:
        text = re.sub(r"\{(\d+):(\d+)\}", lambda found: str(self.rng.randint(int(found[1]), int(found[2]))), text)
        return re.sub(r"\bV\.", self.rng.choice(["T.", "v2."]), text)

    def phrase(self, kind: str, deferred: bool) -> Phrase | None:
        known = [
            one for one in self.phrases[kind] if bool(DEFERRED.match(one.text) and "{y}" not in one.text) is deferred
        ]
        return self.rng.choice(known) if known else None

    def nested(self, name: str, depth: int, deferred: bool) -> tuple[str, str]:
        """Return an expression of a variable, and its kind."""
        text, kind = name, self.kinds[name]
        for _ in range(depth):
            if kind not in KINDS or not (one := self.phrase(kind, deferred)) or (deferred and one.raises):
                break
            others = [other for other, of in self.kinds.items() if of == kind and other != name]
            other = self.rng.choice(others) if others and self.chance(0.3) else name
            text, kind = one.text.replace("{x}", text).replace("{y}", other), one.gives
        return text, kind

    def step(self, name: str) -> None:
        """Change a variable in all samples, or inspect it in a few."""
        if self.chance(0.65):
            text, kind = self.nested(name, self.rng.randint(1, 2), True)
            if kind in KINDS and (kind == self.kinds[name] or self.chance(0.3)):
                self.lines.append(f"{name} = {text}")
                self.kinds[name] = kind
            return
        text, kind = self.nested(name, self.rng.randint(1, 3), False)
        assigned = kind == self.kinds[name] and self.chance(0.6)
        lines = [f"{name} = {text}" if assigned else f"seen.append({text})"]
        if self.chance(0.35):
            lines = [
                "try:",
                f"    {lines[0]}",
                "except Exception as error:",
                "    seen.append(f'{type(error).__name__}: {error}')",
            ]
        if not self.chance(self.hard):
            lines = [self.rng.choice(GATES), *("    " + line for line in lines)]
        self.lines += lines

    def transform(self, name: str) -> None:
        text = self.filled(self.rng.choice(OBJECTS))
        if self.chance(0.7):
            at = len(self.init)
            self.init.append(f"self.t{at} = {text}")
            text = f"self.t{at}"
        self.lines.append(f"{name} = {text}({name})")

    def image(self, name: str) -> None:
        """Open an image, change it, and possibly convert it to a tensor."""
        path = self.rng.choice(["self.files[i]", "self.files[i]", "self.files[(i * 5 + 1) % 12]", "self.files[i // 2]"])
        if self.chance(0.06):
            path = "self.files[(i + 12) % len(self.files)]" if self.chance(0.5) else "self.files[12 + i % 9]"
        opening = self.rng.choice(OPENINGS)
        self.lines.append(f"{name} = {opening.replace('PATH', path)}")
        self.kinds[name] = "L" if opening.endswith('("L")') else "RGB"
        if self.chance(0.1):
            self.init.append("self.cache = {}")
            self.lines += [f"{name} = self.cache.setdefault(i % 4, {name})"]
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            self.step(name)
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            self.transform(name) if self.kinds[name] == "RGB" else self.step(name)
        if self.kinds[name] in TENSORS and self.chance(0.85):
            made = self.rng.choice(TENSORS[self.kinds[name]])
            target = name if self.chance(0.8) else f"{name}t"
            self.lines.append(f"{target} = {made}({name})")
            self.kinds[target] = "byte" if "pil" in made else "tv" if "image" in made else "float"
            for _ in range(self.rng.choice([0, 0, 1, 2])):
                self.step(target)
        if self.chance(0.1):
            self.lines.append(f"{name}_same = {name}")
            self.kinds[f"{name}_same"] = self.kinds[name]
            self.step(name)

    def joint(self) -> None:
        """Apply v2 transforms to an image with boxes and a mask."""
        chain = [self.filled(self.rng.choice(JOINT).replace("V.", "v2.")) for _ in range(self.rng.randint(1, 3))]
        at = self.rng.randint(0, len(chain))
        chain[at:at] = ["v2.ToImage()"]
        if self.chance(0.7):
            chain.append("v2.ToDtype(torch.float32, scale=True)")
        self.init.append(f"self.joint = v2.Compose([{', '.join(chain)}])")
        self.lines += [
            "j = Image.open(self.files[i]).convert('RGB')",
            "boxes = torch.tensor([[2, 3, 20, 30], [9, 9, 36, 28]])",
            "boxes = tv_tensors.BoundingBoxes(boxes, format='XYXY', canvas_size=(j.height, j.width))",
            "mask = tv_tensors.Mask(torch.arange(j.width * j.height).reshape(1, j.height, j.width) % 7)",
            "j, target = self.joint(j, {'boxes': boxes, 'masks': mask, 'labels': torch.tensor([1, 2])})",
            "seen.append(target)",
        ]
        self.kinds["j"] = "tv"

    def several(self) -> None:
        """Append a list whose length depends on the sample."""
        before, self.lines = self.lines, []
        self.image("one")
        inner, self.lines = self.lines, before
        count = self.rng.choice(["1 + i % 3", "2", "i % 4", "9 if i == 2 else 1"])
        self.lines += [
            "some = []",
            f"for k in range({count}):",
            *("    " + line for line in inner),
            "    some.append(one)",
        ]
        for name in [name for name in self.kinds if name.startswith("one")]:
            del self.kinds[name]

    def program(self) -> str:
        collate = self.rng.choices([*COLLATES], [5, 3, 1, 1, 1])[0]
        for number in range(
            self.rng.choice([1, 1, 1, 2, 2, 3, 5, 9]) if collate != "default" else self.rng.choice([1, 1, 2])
        ):
            self.image("abcdefghj"[number] if number < 8 else "z")
        if self.chance(0.12):
            self.joint()
        has_several = self.chance(0.2) and collate != "default"
        if has_several:
            self.several()
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            init, text = self.rng.choice(STATES)
            self.init += [init] if init else []
            self.lines.insert(self.rng.choice([0, len(self.lines)]), f"seen.append({text})")
        names = list(self.kinds)
        if collate == "default":
            for name in names:
                fit = f"F.resize({name}, [24, 24])"
                self.lines.append(
                    f"{name} = {fit}" if self.kinds[name] not in ("RGB", "L") else f"{name} = F.to_tensor({fit})"
                )
        parts = [*names, "i", *(["some"] if has_several else []), *(["seen"] if collate != "default" else [])]
        self.rng.shuffle(parts)
        form = self.rng.choice(["tuple", "list", "dict", "nested"])
        if collate in ("columns", "half", "types"):
            form = "list"
        last = {
            "tuple": f"return ({', '.join(parts)},)",
            "list": f"return [{', '.join(parts)}]",
            "dict": "return {" + ", ".join(f"{part!r}: {part}" for part in parts) + "}",
            "nested": "return {'first': " + parts[0] + ", 'others': (" + ", ".join(parts[1:]) + ",)}",
        }[form]
        options = {"batch_size": self.rng.choice([1, 3, 4, 12]), "num_workers": self.workers}
        stream = self.chance(0.2)
        if self.chance(0.3) and not stream:
            options["shuffle"] = True
        if self.workers and self.chance(0.3):
            options["persistent_workers"] = True
        seeds = ["torch.manual_seed(i)", "random.seed(i)", "np.random.seed(i)"] if self.workers else []
        body = [*seeds, "self.count += 1", "seen = []", *self.lines, last]
        lines = [HEADER]
        lines += [
            f"OPTIONS = {options}",
            COLLATES[collate],
            "",
            "class Own(Dataset):",
            "    def __init__(self, files):",
        ]
        lines += [
            "        self.files, self.count = files, 0",
            *("        " + line for line in dict.fromkeys(self.init)),
        ]
        lines += ["    def __len__(self):", "        return 12"]
        lines += [
            "    def read(self, path):",
            "        with Image.open(path) as image:",
            "            return image.convert('RGB')",
        ]
        lines += ["    def __getitem__(self, i):", *("        " + line for line in body)]
        if stream:
            lines.append(STREAM.replace("{room}", self.rng.choice("035")))
        return "\n".join(lines) + "\n"


def jobs_of(seed: int, phrases: list[Phrase], workers: tuple[int, ...] = (0, 0, 0, 2)) -> Iterator[Job]:
    """Yield programs endlessly, with a share of phrases for each kind."""
    by_kind = {kind: [one for one in phrases if one.takes == kind] for kind in KINDS}
    for number in itertools.count():
        source = Writer(f"{seed} {number}", by_kind, workers[number % len(workers)]).program()
        yield Job(seed * 1_000_000 + number, source)


# ---- running


def _module(source: str) -> types.ModuleType:
    """Import the program as a new module."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    return module


def without_failing_statements(job: Job, files: list[str]) -> Job:
    """Remove the statements that raise an error. One of eight programs keeps them."""
    if job.number % 8 == 0:
        return job
    for _ in range(8):
        seed_all(5)
        try:
            dataset = _module(job.source).Own(list(files))
            for i in range(len(dataset)):
                dataset[i]
            break
        except Exception as error:
            at = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == "program.py"]
            lines = job.source.splitlines()
            indent, _, statement = lines[at[-1] - 1].rpartition("  ")
            if "return" in statement or "open(" in statement or not indent:
                break
            lines[at[-1] - 1] = f"{indent}  pass"
            job = job._replace(source="\n".join(lines) + "\n")
    return job


def compare_program(job: Job, files: list[str]) -> Outcome:
    """Run a program with both loaders, in a new module for each."""

    workers = int(re.search(r"'num_workers': (\d)", job.source)[1])

    def ran(loader):
        module = _module(job.source)
        epochs = 1 if workers and "persistent_workers" not in module.OPTIONS else 2
        kind = getattr(module, "Stream", module.Own)
        return run(loader, lambda: kind(list(files)), module.OPTIONS, epochs)

    limit = ADDITION_ORDER if ADDS.search(job.source) else EQUAL
    theirs = ran(data.DataLoader)
    ours = ran(under_test)
    raises = "" if theirs.error is None else f"{type(theirs.error).__name__}: {str(theirs.error)[-120:]}"
    outcome = Outcome(job, "", "", ours.on_dali, raises)
    if text := unlike(theirs, ours, workers, limit):
        varies = unlike(theirs, ran(data.DataLoader), workers, limit)
        return outcome._replace(kind=VARIES if varies else DIFFERS, text=varies or text)
    return outcome


def _child(jobs: list[Job], root: str, connection, log: str) -> None:
    """Send the outcome of each program."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from torch.utils.data import _utils

    _utils.MP_STATUS_CHECK_INTERVAL = 0.5  # torch waits this long for each worker that does not end
    files = files_of(Path(root))
    for job in jobs:
        try:
            outcome = compare_program(without_failing_statements(job, files), files)
        except BaseException as error:
            outcome = Outcome(job, DIFFERS, f"the comparison failed: {type(error).__name__}: {error}")
        connection.send(outcome)
    connection.send(None)
    os._exit(0)


def attempt(jobs: list[Job], root: str, seconds: float = SECONDS) -> list[Outcome]:
    """Return the outcomes of some programs, up to the first crash or hang."""
    context = mp.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    descriptor, log = tempfile.mkstemp(prefix="dali_compat_data_sets_")
    os.close(descriptor)
    process = context.Process(target=_child, args=(jobs, root, sender, log))
    process.start()
    sender.close()
    done: list[Outcome] = []
    kind = HUNG
    try:
        while receiver.poll(seconds):
            outcome = receiver.recv()
            if outcome is None:
                return done
            done.append(outcome)
    except EOFError:
        process.join(10)
        kind = CRASHED
    finally:
        process.kill()
        process.join()
        receiver.close()
        text = Path(log).read_text(errors="replace")
        os.unlink(log)
    about = f"exit code {process.exitcode}: {_stack(text)}" if kind == CRASHED else f"no answer within {seconds:.0f} s"
    return [*done, Outcome(jobs[len(done)], kind, about)]


def _stack(log: str) -> str:
    """Return the end of a crashed process's output, which is Python's stack as printed by faulthandler."""
    lines = [line.strip() for line in log.strip().splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines) - 3)
    return " / ".join(lines[max(0, at) : at + 6])[:600]


def results(jobs: list[Job], root: str) -> list[Outcome]:
    """Return the outcomes of all programs. A program that crashes or hangs is tried again in a separate process."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        outcomes += attempt(jobs[len(outcomes) :], root)
    return [_confirmed(one, root) if one.kind in (CRASHED, HUNG) else one for one in outcomes]


def _confirmed(outcome: Outcome, root: str) -> Outcome:
    again = attempt([outcome.job], root)[0]
    return again if again.kind else outcome._replace(text=f"{outcome.text} (not in a separate process)")


def hunt(jobs: Iterator[Job], root: str, seconds: float, processes: int = 1) -> Iterator[Outcome]:
    """Yield outcomes until the time or the programs end."""
    end = time.monotonic() + seconds

    def chunks() -> Iterator[list[Job]]:
        while time.monotonic() < end and (some := list(itertools.islice(jobs, CHUNK))):
            yield some

    source = chunks()
    with ThreadPoolExecutor(processes) as pool:
        waiting = collections.deque(pool.submit(results, some, root) for some in itertools.islice(source, processes))
        while waiting:
            outcomes = waiting.popleft().result()
            waiting += [pool.submit(results, some, root) for some in itertools.islice(source, 1)]
            yield from outcomes


# ---- the shortest program


def minimized(outcome: Outcome, root: str, seconds: float = 120) -> Outcome:
    """Return the outcome of a shorter program that is wrong in the same way."""
    end, best, at = time.monotonic() + seconds, outcome, 0
    while time.monotonic() < end and (candidates := list(itertools.islice(_shorter(best.job.source), at, at + 8))):
        found = None
        jobs = [best.job._replace(source=source) for source in candidates]
        while jobs and found is None:  # eight in one process, which a crash ends
            tried = attempt(jobs, root, SECONDS if outcome.kind == HUNG else 20)
            found = next((one for one in tried if one.kind == outcome.kind and _alike(one.text, outcome.text)), None)
            jobs = jobs[len(tried) :]
        best, at = (found, max(0, at - 4)) if found else (best, at + 8)
    return best


def _pattern(text: str) -> str:
    """Return the kind of difference, without the place, numbers and texts."""
    about, _, rest = re.sub(r"\[[^\]]*\]", "", text).partition(": expected")
    return re.sub(r"[\d(].*", "", f"{about}{': expected' if rest else ''}{rest}")[:60]


def _alike(text: str, other: str) -> bool:
    return _pattern(text) == _pattern(other)


def _shorter(source: str) -> Iterator[str]:
    """Yield the program without some statements of __getitem__, then without one of its parts, the last first."""

    def body_of(tree: ast.AST) -> list[ast.stmt]:
        return next(one.body for one in ast.walk(tree) if getattr(one, "name", "") == "__getitem__")

    body = body_of(ast.parse(source))
    begin, count = sum(map(_seeds, body)), len(body) - 1  # all except the seeds and the return
    for length in ((count - begin) // 2, (count - begin) // 4):
        for at in range(begin, count - length + 1, length) if length > 1 else ():
            tree = ast.parse(source)
            del body_of(tree)[at : at + length]
            yield ast.unparse(tree)
    for at in range(len(list(_parts(ast.parse(source)))) - 1, -1, -1):
        tree = ast.parse(source)
        body, number, instead = list(_parts(tree))[at]
        body[number : number + 1] = instead
        if not body:
            body.append(ast.Pass())
        yield ast.unparse(ast.fix_missing_locations(tree))


def _seeds(statement: ast.stmt) -> bool:
    """Return True if a statement seeds a generator. Without it, workers draw other numbers than torch's."""
    return "seed(i)" in ast.unparse(statement)


def _parts(tree: ast.AST) -> Iterator[tuple[list, int, list]]:
    """Yield removable parts as list, index and replacement: statements, blocks, elements, calls around a value."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            for number, one in enumerate(body if isinstance(body, list) else []):
                if isinstance(one, (ast.If, ast.For, ast.With, ast.Try)):
                    yield body, number, one.body
                kept = isinstance(one, (ast.Return, ast.ClassDef, ast.Pass)) or _seeds(one)
                kept = kept or "OPTIONS = " in ast.unparse(one)
                if not kept and getattr(one, "name", "") not in ("__init__", "__len__", "__getitem__"):
                    yield body, number, []
        if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
            for number in range(len(node.elts)):
                yield node.elts, number, []
        if isinstance(node, ast.Call):  # f(g(x)) -> f(x), f(x.g()) -> f(x)
            for number, one in enumerate(node.args):
                if isinstance(one, ast.Call):
                    inner = [*one.args[:1], *([one.func.value] if isinstance(one.func, ast.Attribute) else [])]
                    for value in inner:
                        yield node.args, number, [value]


# ---- the command


_END = """
if __name__ == "__main__":  # with the repository and its tests on PYTHONPATH
    from faults import data_sets

    data_sets.show(__file__)
"""


def as_program(outcome: Outcome) -> str:
    """Return a program that reproduces an outcome."""
    lines = [f"# number {outcome.job.number} {outcome.kind}", *(f"# {line}" for line in outcome.text.splitlines())]
    return "\n".join([*lines, outcome.job.source.partition(_END)[0] + _END])


def show(file: str) -> None:
    """Print what differs in a saved program."""
    with tempfile.TemporaryDirectory() as root:
        make_files(Path(root))
        time.sleep(SETTLED)
        print(compare_program(Job(0, Path(file).read_text()), files_of(Path(root)))._replace(job=None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 0, 0, 2])
    parser.add_argument("--learn", type=float, default=120, help="seconds in which arguments of functions are tried")
    parser.add_argument("--program", type=Path, nargs="*", default=[], help="saved programs, instead of random ones")
    parser.add_argument("--whole", action="store_true", help="programs are not made shorter")
    parser.add_argument("--save", type=Path, default=Path(tempfile.gettempdir()) / "dali_compat_data_sets")
    options = parser.parse_args()
    begin, counts, kinds = time.monotonic(), collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory(prefix="dali_compat_data_sets_") as root:
        make_files(Path(root))
        if options.program:
            time.sleep(SETTLED)
            jobs = iter([Job(at, file.read_text().partition(_END)[0]) for at, file in enumerate(options.program)])
        else:
            phrases = learn_phrases(options.seed, options.learn)
            print(f"{len(phrases)} phrases in {time.monotonic() - begin:.0f} s", flush=True)
            jobs = jobs_of(options.seed, phrases, tuple(options.workers))
        for outcome in hunt(jobs, root, options.seconds, options.processes):
            wrong = outcome.kind not in ("", VARIES)
            counts.update(programs=1, wrong=int(wrong), dali=int(outcome.on_dali), raise_both=int(bool(outcome.raises)))
            counts.update({VARIES: int(outcome.kind == VARIES)})
            if wrong:
                like = _pattern(outcome.text)
                kinds[like] += 1
                shortest = outcome if options.whole or kinds[like] > 1 else minimized(outcome, root)
                if kinds[like] == 1:
                    print(as_program(shortest), flush=True)
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"{outcome.job.number}.py").write_text(as_program(outcome))
    for like, count in kinds.most_common():
        print(f"{count} like: {like}")
    took = time.monotonic() - begin
    print(
        f"seed {options.seed}: {dict(counts)}; {counts['dali'] / max(1, counts['programs']):.0%} on DALI; {took:.0f} s"
    )
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
