"""Calls of all public functions of Pillow, torchvision, torch.Tensor, operator and builtins, with arguments that work.

The functions are found by introspection. Arguments are drawn by the parameter's name if there is a signature, and at
random otherwise. Calls that work for several images or tensors of different sizes are kept, and a few that raise.
"""

from __future__ import annotations

import builtins
import inspect
import multiprocessing as mp
import operator
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from black_box import difference, seed_all
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as F2

HEADER = """\
import builtins
import copy
import functools
import io
import itertools
import operator
import pickle
import random
import threading

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.functional import hflip, to_tensor
from torchvision.transforms.v2 import functional as F2
"""
NAMES: dict[str, Any] = {}  # names that phrases refer to
exec(HEADER, NAMES)
KINDS = ("RGB", "L", "float", "byte", "tv")  # kinds of the argument of a phrase
TRIES = 24  # calls of one function
KEPT = 5  # kept calls of one function
SECONDS = 0.02  # slower calls are omitted

# Functions that end the process, show windows, or return uninitialized memory.
_EXCLUDED = """
apply_ as_strided_ backward close cpu cuda data_ptr empty_like frombuffer grad_fn hpu im ipu is_set_to map_ map2_
module_load mtia new new_empty new_empty_strided pin_memory print quit exit input open breakpoint compile eval exec
id hash help globals locals vars dir record_stream register_hook register_post_accumulate_grad_hook reinforce rename
rename_ resize_ resize_as_ resize_as_sparse_ retain_grad save set_ share_memory share_memory_ show storage
storage_type toqimage toqpixmap to_dense to_mkldnn typed_storage untyped_storage xpu effect_spread memoryview
effect_mandelbrot effect_noise attrgetter methodcaller itemgetter object super classmethod staticmethod property
setattr delattr copyright credits license fp tile pyaccess map filter fromarrow load_end load_prepare sparse_resize_
sparse_resize_and_clear_ coalesce values indices crow_indices col_indices ccol_indices row_indices draft verify
requires_grad_ getim unsafe_ptrs __import__ names names_ multinomial align_to align_as refine_names
draw_bounding_boxes wait sleep
"""
EXCLUDED = set(_EXCLUDED.split())

_GENERIC = """
0 | 1 | 2 | 3 | -1 | 5 | 8 | 17 | 90 | 128 | 255 | .5 | 1.5 | .1 | -.3 | 2.0 | None | True | False | (20,16) |
[16,20] | (2,3,20,25) | (0,0,10,10) | (255,0,9) | (128,) | [.5,.5,.5] | [0,1] | "RGB" | "L" | "reflect" |
"edge" | torch.float32 | torch.uint8 | torch.float64 | torch.int64 | 0 | 1 | 2 | i%3 | i |
Image.Resampling.BICUBIC | slice(2,9) | ... | torch.ones(3,1,1) | torch.tensor(.5) | torch.Tensor |
Image.Image | int | {x} | {y} | {y} | self.count | random.randint(1,5) | int(torch.randint(4,())) |
np.float32(.5) | {x}.size | "size" | "shape" | "mode"
"""
_HINTS = """
size output_size := (20,16) | [16,20] | (24,)*2 | [30,30] | (17+i%3,20) | [20+i%4,18]
box := (2,3,20,25) | (0,0,10,10) | (1,1,30,22) | (-3,2,25,20) | (1.5,2.5,20.5,19.5) | (i%4,2,20+i%4,22) | None
resample := Image.Resampling.NEAREST | Image.BILINEAR | Image.BICUBIC | 0 | 2 | 3
method := Image.Transpose.FLIP_LEFT_RIGHT | Image.FLIP_TOP_BOTTOM | 2 | 3 | 5 | i%7 | Image.BICUBIC | Image.AFFINE
interpolation := F.InterpolationMode.NEAREST | F.InterpolationMode.BILINEAR | F.InterpolationMode.BICUBIC
mode := "RGB" | "L" | "RGBA" | "P" | "CMYK" | "HSV" | "1" | "YCbCr" | "F" | "I"
fill fillcolor color := 0 | 255 | (255,0,9) | (7,)*3 | [9,8,7] | 128
value := 0 | 255 | .5 | (9,9,9) | 128
padding := 3 | [1,2] | [1,2,3,4] | (2,5)
padding_mode := "constant" | "reflect" | "edge" | "symmetric"
angle := 90 | 20 | -33.5 | 180 | 0 | i*7 | random.uniform(-40,40)
translate := [3,4] | (-2,5)
scale := 1.2 | .7 | True | False
shear := [5.] | [3.,4.] | 7
mean := [.5,.5,.5] | (.4,.3,.2) | [.5]
std := [.5,.5,.5] | (.2,.3,.4) | [.25]
dtype := torch.float32 | torch.uint8 | torch.float64 | torch.float16 | torch.int32
kernel_size := 3 | [3,5] | 5
sigma := 1.0 | [.5,1.5]
top := 2 | 0 | i%5
left := 3 | 0 | i%4
height := 20 | 16
width := 18 | 24
h := 9 | 5
w := 7 | 4
i := 2 | 4
j := 3 | 1
v := 0 | .5 | torch.zeros(3,1,1)
inplace := True | False | False
xy := (3,4) | (2,2,20,15) | [(1,1),(20,18)] | [(1,2),(9,20),(25,7)]
func := lambda v: 255 - v | lambda v: v // 2 + 9
lut := [255 - v for v in range(256)] * len({x}.getbands()) | lambda v: 255 - v
data := (1, .1, 0, 0, 1, 0) | (2, 3, 25, 20)
im := (9, 99, 199) | {y} | {x}.crop((0, 0, 9, 9)) | 77
image1 im2 := {y}
image2 := {y} | {x}.copy()
mask := None | {x}.convert('L')
channel := 0 | 1 | 2
colors := 9 | 64
bits := 2 | 4 | 6
threshold := 128 | 60 | .5
pic := {x}
matrix := (.4, .3, .2, 0) | (.5, .2, .1, 0, .3, .4, .1, 9, .1, .2, .6, 3)
dim := 0 | 1 | 2 | -1 | (1,2) | [0,1]
dims := 0 | -1 | [1] | (1,2) | (2,0,1)
startpoints := [[0, 0], [20, 0], [20, 20], [0, 20]]
endpoints := [[1, 2], [19, 1], [20, 18], [2, 20]]
factor := .5 | 1.5 | .1 | 2.0 | 1.0 | random.random() | .8+i%3/5
radius := 1 | 2 | 3.5
quality := 50 | 90
border := 2 | (1,2) | (1,2,3,4)
alpha := .3 | .7
"""


def _separated(text: str) -> list[str]:
    return [one.strip() for one in text.split(" | ")]


GENERIC = _separated(_GENERIC.replace("|\n", "| "))  # arguments of functions without a signature
HINTS = {  # arguments by the parameter's name
    name: _separated(line.partition(" := ")[2])
    for line in _HINTS.strip().splitlines()
    for name in line.partition(" := ")[0].split()
}


class Phrase(NamedTuple):
    """An expression of ``{x}``, an object of kind ``takes``. ``gives`` is the kind of its value, or "" if not in
    KINDS."""

    text: str
    takes: str
    gives: str
    raises: bool = False


class Function(NamedTuple):
    """A call without its arguments, and its parameters."""

    text: str  # contains ARGS as a placeholder
    takes: str
    parameters: tuple[tuple[str, bool], ...] | None  # name, whether required; None: unknown


# ---- available functions


def functions() -> Iterator[Function]:
    """Yield all public callables and attributes, with each kind that they may take."""
    for kind in KINDS:
        if kind in ("RGB", "L"):
            yield from _of_images(kind)
        else:
            yield from _of_members(torch.Tensor, kind)
        for module, name in ((F, "F"), (F2, "F2")):
            yield from _of_module(module, name, kind)
        for module, name in ((operator, "operator"), (builtins, "builtins")):
            yield from _of_module(module, name, kind)
        for name in ("asarray", "array", "mean", "sum", "shape", "flip", "stack", "ascontiguousarray"):
            yield Function(f"np.{name}({{x}}ARGS)", kind, None)
        for text in ("copy.copy({x})", "copy.deepcopy({x})", "pickle.loads(pickle.dumps({x}))", "type({x}).__name__"):
            yield Function(text, kind, ())
        for text in ("isinstance({x}, Image.Image)", "type({x}) is Image.Image", "type({x}) is torch.Tensor"):
            yield Function(text, kind, ())


def _of_members(owner: type, kind: str) -> Iterator[Function]:
    for name in dir(owner):
        if name in EXCLUDED or name.startswith(("_", "sparse", "is_sparse", "q_", "fbgemm")):
            continue
        member = inspect.getattr_static(owner, name)
        if callable(getattr(owner, name, None)) and not isinstance(member, property):
            yield Function(f"{{x}}.{name}(ARGS)", kind, _parameters(getattr(owner, name), 1))
        else:
            yield Function(f"{{x}}.{name}", kind, ())


def _of_images(kind: str) -> Iterator[Function]:
    yield from _of_members(Image.Image, kind)
    for module, name in ((ImageOps, "ImageOps"), (ImageChops, "ImageChops")):
        yield from _of_module(module, name, kind)
    for name in ("blend", "composite", "merge", "eval", "fromarray", "alpha_composite"):
        yield Function(f"Image.{name}({{x}}ARGS)", kind, _parameters(getattr(Image, name), 1))
    for name, made in inspect.getmembers(ImageEnhance, inspect.isclass):
        if hasattr(made, "enhance") and not name.startswith("_"):
            yield Function(f"ImageEnhance.{name}({{x}}).enhance(ARGS)", kind, (("factor", True),))
            yield Function(f"ImageEnhance.{name}({{x}}).degenerate", kind, ())
    for name, made in inspect.getmembers(ImageFilter, inspect.isclass):
        if issubclass(made, ImageFilter.Filter):
            yield Function(f"{{x}}.filter(ImageFilter.{name}(ARGS))", kind, _parameters(made, 0))
    for name, made in inspect.getmembers(ImageDraw.ImageDraw, inspect.isfunction):
        if not name.startswith("_"):
            parameters = _parameters(made, 1)
            yield Function(f"(lambda m: (ImageDraw.Draw(m).{name}(ARGS), m)[1])({{x}})", kind, parameters)
    for name in dir(ImageStat.Stat):
        if not name.startswith("_"):
            yield Function(f"ImageStat.Stat({{x}}).{name.removeprefix('_get')}", kind, ())
    for name in ("mean", "sum", "sum2", "median", "rms", "var", "stddev", "extrema", "count"):
        yield Function(f"ImageStat.Stat({{x}}).{name}", kind, ())


def _of_module(module: Any, text: str, kind: str) -> Iterator[Function]:
    for name in dir(module):
        made = getattr(module, name)
        if name.startswith("_") or name in EXCLUDED or not callable(made):
            continue
        if inspect.isclass(made) and (module is not builtins or issubclass(made, BaseException)):
            continue
        if module not in (builtins, operator) and not getattr(made, "__module__", "").startswith(
            module.__name__.partition(".")[0]
        ):
            continue
        yield Function(f"{text}.{name}({{x}}ARGS)", kind, _parameters(made, 1))


def _parameters(made: Callable[..., Any], skipped: int) -> tuple[tuple[str, bool], ...] | None:
    try:
        known = list(inspect.signature(made).parameters.values())[skipped:]
    except (TypeError, ValueError):
        return None
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in known):
        return None
    return tuple((one.name, one.default is one.empty) for one in known)


# ---- working calls


def _drawn(rng: random.Random, function: Function, liked: list[str]) -> str:
    """Return a call with random arguments."""
    if "ARGS" not in function.text:
        return function.text
    arguments: list[str] = []
    if function.parameters is None:
        count = rng.choice([0, 0, 1, 1, 2, 3])
        arguments += [rng.choice(liked if liked and rng.random() < 0.4 else GENERIC) for _ in range(count)]
    else:
        for name, required in function.parameters:
            if required or rng.random() < 0.3:
                known = next((HINTS[key] for key in (name, name.rpartition("_")[2]) if key in HINTS), GENERIC)
                value = rng.choice(known if rng.random() < 0.9 else GENERIC)
                arguments.append(value if required else f"{name}={value}")
    joined = ", ".join(arguments)
    before = ", " if joined and "{x}ARGS" in function.text else ""
    return function.text.replace("ARGS", before + joined)


def samples() -> dict[str, list[tuple[Any, Any]]]:
    """Return pairs of the same size for each kind, in three sizes."""
    rng = np.random.default_rng(3)
    images = [
        [Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)) for _ in range(2)]
        for height, width in ((44, 60), (75, 50), (110, 90))
    ]
    made: dict[str, Any] = {
        "RGB": images,
        "L": [[image.convert("L") for image in pair] for pair in images],
        "float": [[F.to_tensor(image) for image in pair] for pair in images],
        "byte": [[F.pil_to_tensor(image) for image in pair] for pair in images],
        "tv": [[F2.to_image(image) for image in pair] for pair in images],
    }
    return {kind: [tuple(pair) for pair in pairs] for kind, pairs in made.items()}


def kind_of(value: Any) -> str:
    """Return the kind of a value, or ""."""
    if isinstance(value, Image.Image):
        return value.mode if value.mode in ("RGB", "L") and min(value.size) >= 12 else ""
    if type(value) is torch.Tensor and value.ndim == 3 and len(value) == 3 and min(value.shape[1:]) >= 12:
        return {torch.float32: "float", torch.uint8: "byte"}.get(value.dtype, "")
    if (
        type(value) is tv_tensors.Image
        and value.dtype is torch.uint8
        and value.ndim == 3
        and min(value.shape[1:]) >= 12
    ):
        return "tv"
    return ""


def _text(value: Any) -> str:
    return "" if isinstance(value, (Image.Image, torch.Tensor, np.ndarray)) else repr(value)


class _Self:
    count = 3


def _outcome(text: str, x: Any, y: Any, number: int) -> tuple[Any, str, float]:
    """Return value, error and seconds of an expression on copies of the two."""
    seed_all(number)
    names = {**NAMES, "m": _copied(x), "n": _copied(y), "i": number, "self": _Self()}
    begin = time.perf_counter()
    try:
        value, error = eval(text.replace("{x}", "m").replace("{y}", "n"), names), ""
        if isinstance(value, torch.Tensor):
            value = value.clone() if value.layout is torch.strided else value
    except Exception as raised:
        value, error = None, f"{type(raised).__name__}: {raised}"
    return value, error, time.perf_counter() - begin


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, Image.Image) else value.clone()


def try_function(rng: random.Random, function: Function, inputs: list[tuple[Any, Any]]) -> list[Phrase]:
    """Return calls of a function that are reproducible and work with all inputs, and possibly a call that raises."""
    phrases: dict[str, Phrase] = {}
    liked: list[str] = []
    raising: Phrase | None = None
    for _ in range(TRIES if "ARGS" in function.text else 1):
        text = _drawn(rng, function, liked)
        if text in phrases:
            continue
        value, error, seconds = _outcome(text, *inputs[0], 0)
        if error and raising is not None:
            continue
        again, error_again, _ = _outcome(text, *inputs[0], 0)
        if seconds > SECONDS or error_again != error or difference(value, again) or " at 0x" in _text(value) + error:
            continue
        outcomes = [(value, error), *(_outcome(text, x, y, 1)[:2] for x, y in inputs[1:])]
        if any(error for _, error in outcomes):
            raising = Phrase(text, function.takes, "", True) if all(error for _, error in outcomes) else raising
            continue
        if not _is_plain(outcomes[0][0]):
            continue
        kinds = {kind_of(value) for value, _ in outcomes}
        phrases[text] = Phrase(text, function.takes, kinds.pop() if len(kinds) == 1 else "")
        liked += [one for one in GENERIC if one in text]
        if len(phrases) == KEPT:
            break
    return [*phrases.values(), *([raising] if raising and rng.random() < 0.2 else [])]


def _is_plain(value: Any) -> bool:
    """Return True if both loaders can return such a value, also with workers."""
    if isinstance(value, (list, tuple)):
        return len(value) < 5000 and all(map(_is_plain, value[:20]))
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.requires_grad
    known = (
        int,
        float,
        complex,
        str,
        bytes,
        bool,
        type(None),
        np.ndarray,
        np.generic,
        dict,
        Image.Image,
        torch.dtype,
        torch.Size,
    )
    return isinstance(value, known)


def learn_phrases(seed: int, seconds: float, count: int | None = None) -> list[Phrase]:
    """Return phrases of at most ``count`` functions.

    Another process tries them, so that a crash costs only one function.
    """
    known = list(functions())
    random.Random(f"phrases {seed}").shuffle(known)
    known = known[:count]
    phrases: list[Phrase] = []
    at, end = 0, time.monotonic() + seconds
    while at < len(known) and time.monotonic() < end:
        receiver, sender = mp.get_context("fork").Pipe(duplex=False)
        process = mp.get_context("fork").Process(target=_try_all, args=(known[at:], f"{seed} {at}", sender))
        process.start()
        sender.close()
        try:
            while at < len(known) and receiver.poll(10) and time.monotonic() < end:
                phrases += receiver.recv()
                at += 1
        except EOFError:
            pass
        at += 1  # skip the function that crashed or hung, or end
        process.kill()
        process.join()
    return phrases


def _try_all(known: list[Function], seed: str, sender: Any) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    inputs, rng = samples(), random.Random(seed)
    for function in known:
        sender.send(try_function(rng, function, inputs[function.takes]))
    os._exit(0)
