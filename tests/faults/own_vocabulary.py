"""Random programs: data sets whose ``__getitem__`` processes images as users do.

Phrases are templates. ``m`` is the current image, ``i`` the index. Braces are random: {3:9} is an integer from that
range, {.5:2.} a float, {a|b} one of several. As a rule, programs run with torch's loader. If one raises, both loaders
must raise the same error.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

HEADER = """\
import collections
import copy
import functools
import io
import itertools
import pickle
import random
import types
from pathlib import Path

import numpy as np
import PIL.Image
import torch
import torchvision
from concurrent.futures import ThreadPoolExecutor
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.functional import hflip, resize, to_tensor
from torchvision.transforms.v2 import functional as F2
"""

# Functions that programs call, inserted at the top of a program that uses them.
HELPERS = {
    "nothing": """
def nothing(image):
    return image
""",
    "jitter": """
def jitter(image):
    return F.adjust_gamma(image, .5 + float(torch.rand(())))
""",
    "Alternate": """
class Alternate:
    def __init__(self):
        self.count = 0

    def __call__(self, image):
        self.count += 1
        return image.transpose(self.count % 2)
""",
    "AllAlternate": """
class AllAlternate:
    count = 0

    def __call__(self, image):
        AllAlternate.count += 1
        return F.hflip(image) if AllAlternate.count % 2 else image
""",
    "Turn": """
class Turn:
    count = 0

    def __call__(self):
        Turn.count += 1
        return Turn.count
""",
    "SlotTurn": """
class SlotTurn:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count
""",
    "turn": """
_turns = [0]


def turn():
    _turns[0] += 1
    return _turns[0]
""",
    "global_turn": """
_turn = 0


def global_turn():
    global _turn
    _turn += 1
    return _turn
""",
    "turn_of_default": """
def turn_of_default(kept=[]):
    kept.append(1)
    return len(kept)
""",
    "turn_of_attribute": """
def turn_of_attribute():
    turn_of_attribute.count = getattr(turn_of_attribute, "count", 0) + 1
    return turn_of_attribute.count
""",
    "counter": """
def counter():
    count = 0

    def turn():
        nonlocal count
        count += 1
        return count

    return turn
""",
    "grown": """
def grown(kept):
    kept.append(1)
    return len(kept)
""",
    "times": """
@functools.lru_cache(None)
def times(key):
    return [0]
""",
    "BufferTurn": """
class BufferTurn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self):
        self.count += 1
        return int(self.count)
""",
    "RNG": """
RNG = random.Random(5)
""",
    "own_numbers": """
def own_numbers(seed):
    rng = np.random.default_rng(seed)
    return lambda: int(rng.integers(9))
""",
}

# Expressions that count or draw from one sample to the next: (statement of __init__, expression).
COUNTS = [
    ("", "self.calls"),
    ("self.turn = Turn()", "self.turn()"),
    ("self.turn = SlotTurn()", "self.turn.next()"),
    ("", "turn()"),
    ("", "global_turn()"),
    ("", "turn_of_default()"),
    ("", "turn_of_attribute()"),
    ("self.turn = counter()", "self.turn()"),
    ("self.turn = functools.partial(grown, [])", "self.turn()"),
    ("self.turn = BufferTurn()", "self.turn()"),
    ("", "times(0).__setitem__(0, times(0)[0] + 1) or times(0)[0]"),
    ("self.count = torch.zeros((), dtype=torch.int64)", "int(self.count.add_(1))"),
    ("self.count = np.zeros(1, int)", "int(np.add(self.count, 1, out=self.count)[0])"),
    ("self.seen = collections.deque(maxlen=5)", "self.seen.append(i) or len(self.seen)"),
    ("self.seen = dict(all=dict(of=[]))", "self.seen['all']['of'].append(i) or len(self.seen['all']['of'])"),
    ("self.counts = collections.Counter()", "self.counts.update('a') or self.counts['a']"),
    ("Own.turns = []", "Own.turns.append(1) or len(Own.turns)"),
    ("self.cycle = itertools.cycle(range(3))", "next(self.cycle)"),
    ("self.left = iter(range(9999))", "next(self.left)"),
    ("self.holder = types.SimpleNamespace(n=0)", "self.holder.__dict__.update(n=self.holder.n + 1) or self.holder.n"),
    ("self.bytes = bytearray(1)", "self.bytes.append(0) or len(self.bytes)"),
    ("", "self.rng.randrange(9)"),
    ("", "RNG.randrange(9)"),
    ("self.np = np.random.default_rng(3)", "int(self.np.integers(9))"),
    ("self.np = np.random.RandomState(3)", "self.np.randint(9)"),
    ("self.gen = torch.Generator().manual_seed(4)", "int(torch.randint(9, (), generator=self.gen))"),
    ("self.draw = own_numbers(3)", "self.draw()"),
    ("self.draw = functools.partial(random.Random(4).randrange, 9)", "self.draw()"),
    ("self.draw = random.Random(4).randrange", "self.draw(9)"),
    ("", "random.randrange(9)"),
    ("", "int(np.random.randint(9))"),
    ("", "int(torch.randint(9, ()))"),
]

OPENINGS = """
m = Image.open({P}).convert("RGB")
m = Image.open({P}).convert("RGB")
m = Image.open({P}).convert("RGB")
m = PIL.Image.open({P}).convert("RGB")
m = Image.open(Path({P})).convert(mode="RGB")
m = Image.open(io.BytesIO(Path({P}).read_bytes())).convert("RGB")
m = Image.open(open({P}, "rb")).convert("RGB")
m = default_loader({P})
m = pil_loader({P})
m = ImageOps.exif_transpose(Image.open({P})).convert("RGB")
m = read({P})
m = self.load({P})
m = Image.open({P}); m.load(); m = m.convert("RGB")
m = Image.open({P}); m.draft("RGB", (m.width // 2, m.height // 2)); m = m.convert("RGB")
m = Image.open({P}); m = m if m.mode == "RGB" else m.convert("RGB")
m = Image.open({P}).convert("L").convert("RGB")
m = Image.fromarray(np.array(Image.open({P}).convert("RGB")))
with Image.open({P}) as f: m = f.convert("RGB")
with open({P}, "rb") as f: m = Image.open(f).convert("RGB")
with Image.open({P}) as f: m = f.convert("RGB").copy()
m = Image.open({P}).convert("RGB").resize(({24:70}, {24:70}))
m = torchvision.io.decode_image({P}, torchvision.io.ImageReadMode.RGB); m = F.to_pil_image(m)
""".strip().splitlines()

# Sizes as (width, height), and the most that a side shrinks.
FIXED = ["({28:64}, {28:64})", "({28:64},) * 2", "[{28:64}, {28:64}]", "np.array([{28:64}, 40])"]
OF_IMAGE = """
(m.width // 2, m.height // 2)
(m.width * 3 // 4, m.height)
(m.width, m.height // 2)
(m.size[0] * 2 // 3, m.size[1] * 2 // 3)
tuple(side * 3 // 4 for side in m.size)
(int(m.width * {.55:1.4}), int(m.height * {.55:1.4}))
(m.width + {1:9}, m.height)
(m.height, m.width)
(min(m.size),) * 2
(max(m.size), min(m.size))
(round(m.width / 1.7), round(m.height / 1.7))
m.size
""".strip().splitlines()
OF_INDEX = ["(40 + i, 40)", "(32 + i % {2:4} * 4, 32)", "(30 + i % 12 * 2, {30:50})", "(self.side + i % 2, self.side)"]
DRAWN = [
    "(random.randint(30, 60), 40)",
    "(int(np.random.randint(30, 60)),) * 2",
    "(40 + int(torch.randint(9, ())), 40)",
    "(self.rng.randint(30, 60), self.rng.randint(30, 60))",
]

# Edits that keep an RGB image in RGB and shrink its sides by at most 10 pixels.
EDITS = """
m = m.transpose(Image.FLIP_LEFT_RIGHT)
m = m.transpose({Image.Transpose.FLIP_TOP_BOTTOM|Image.Transpose.ROTATE_90|Image.ROTATE_180|Image.ROTATE_270})
m = m.transpose({0:6})
m = m.rotate({-40:40})
m = m.rotate(i * 10)
m = m.rotate({90|180|270|0}{|, expand=True})
m = m.rotate({5:40}, Image.BILINEAR{|, True}{|, fillcolor=(9, 99, 199)})
m = m.copy()
m = {copy.copy|copy.deepcopy}(m)
m = pickle.loads(pickle.dumps(m))
m = m.convert("RGB")
m = m.convert("L").convert("RGB")
m = m.convert("{HSV|YCbCr|CMYK|RGBA|P|1|LAB}").convert("RGB")
m = m.point(lambda value: 255 - value)
m = m.point([value // 2 for value in range(256)] * 3)
m = m.filter({ImageFilter.BLUR|ImageFilter.GaussianBlur(1)|ImageFilter.MedianFilter(3)|ImageFilter.SHARPEN})
m.paste((255, 0, 0), (5, 5, 15, 20))
m.paste(m.crop((0, 0, 10, 10)), (3, 4))
m.paste(m.transpose(0))
m.paste({0:255}, (0, 0, i + 1, 9))
m.putpixel((3, 4), (1, 2, 3))
m.putalpha(128); m = m.convert("RGB")
m.load()[2, 2] = (9, 9, 9)
ImageDraw.Draw(m).rectangle((2, 2, 12, 9), fill=(0, 255, 0))
r, g, b = m.split(); m = Image.merge("RGB", (b, r, g))
m = Image.merge("RGB", [m.getchannel(0)] * 3)
m = Image.merge("RGB", m.split())
m = Image.blend(m, m.transpose(0), {.2:.8})
m = Image.composite(m, ImageOps.flip(m), m.convert("L"))
m = Image.fromarray(np.array(m)[:, ::-1])
m = Image.fromarray(255 - np.asarray(m))
m = Image.frombytes("RGB", m.size, m.tobytes())
m = ImageChops.{invert(m)|offset(m, 5)|add(m, m.transpose(0))|multiply(m, m)|difference(m, ImageOps.flip(m))}
m = ImageOps.{mirror|flip|invert|autocontrast|equalize|exif_transpose}(m)
m = ImageOps.grayscale(m).convert("RGB")
m = ImageOps.{posterize(m, {2:6})|solarize(m, {50:200})|autocontrast(m, 2)|colorize(m.convert("L"), "red", "blue")}
m = ImageOps.crop(m, {1:4})
m = ImageOps.expand(m, {1:6}, ({0:255}, 0, 9))
m = ImageEnhance.{Brightness|Contrast|Color|Sharpness}(m).enhance({.4:1.8})
m = m.crop(({0:4}, {0:4}, m.width - {1:4}, m.height - {0:4}))
m = m.crop(m.getbbox())
m = m.crop((1, 2, m.size[0], m.size[1]))
m = m.crop((0, 0, m.width, m.height))
m = m.crop()
m = m.crop((-{1:5}, 0, m.width + 3, m.height))
m = m.crop(({.2:2.}, {.5:3.}, m.width - {.5:3.}, m.height - 1))
m = m.crop((i % 4, i % 5, m.width - i % 3, m.height))
m = F.{hflip|vflip}(m)
m = F.crop(m, {0:3}, {0:3}, m.height - {3:6}, m.width - {3:6})
m = F.crop(m, -2, 0, m.height, m.width)
m = F.center_crop(m, [m.height - {1:5}, m.width - {0:5}])
m = F.pad(m, {1:5}{|, 0|, 99|, (9, 8, 7)})
m = F.pad(m, [{0:5}, {0:5}], 0, "{edge|reflect|symmetric}")
m = F.pad(m, [{0:5}, {0:5}, {0:5}, {0:5}], padding_mode="{constant|edge|reflect|symmetric}")
m = F.rotate(m, {-40:40}{|, F.InterpolationMode.BILINEAR}{|, expand=True})
m = F.affine(m, {-20:20}, [3, 4], {.8:1.2}, [{0:9}])
m = F.adjust_{brightness|contrast|saturation|gamma|sharpness}(m, {.5:1.8})
m = F.adjust_hue(m, {-.4:.4})
m = F.gaussian_blur(m, {3|5|7})
m = F.{invert|equalize|autocontrast}(m)
m = F.{posterize(m, {2:6})|solarize(m, {50:200})}
m = F.rgb_to_grayscale(m, 3)
m = F.to_pil_image(F.to_tensor(m))
m = F.to_pil_image(F.pil_to_tensor(m))
m = F2.{horizontal_flip|vertical_flip|invert|equalize}(m)
m = F2.pad(m, [{1:5}])
m = hflip(m)
m = m.effect_spread(0)
m.info.clear()
""".strip().splitlines()

# Edits that are mostly deferred, so that programs of these run far before pixels are read.
DEFERRED = """
m = m.transpose(Image.FLIP_LEFT_RIGHT)
m = m.transpose({Image.FLIP_TOP_BOTTOM|Image.Transpose.FLIP_LEFT_RIGHT|0|1})
m = m.copy()
m = m.convert("RGB")
m = m.convert("L").convert("RGB")
m = m.crop(({0:4}, {0:4}, m.width - {1:4}, m.height - {0:4}))
m = m.crop((1, 2, m.size[0], m.size[1]))
m = m.crop((0, 0, m.width, m.height))
m = m.crop((i % 4, i % 5, m.width - i % 3, m.height))
m = m.crop(({.2:2.}, {.5:3.}, m.width - {.5:3.}, m.height - 1))
m = F.{hflip|vflip}(m)
m = F.crop(m, {0:3}, {0:3}, m.height - {3:6}, m.width - {3:6})
m = F.center_crop(m, [m.height - {1:5}, m.width - {0:5}])
m = F.pad(m, {1:5}{|, 0|, 99|, (9, 8, 7)})
m = F.pad(m, [{0:5}, {0:5}], 0, "{edge|reflect|symmetric}")
m = F.pad(m, [{0:5}, {0:5}, {0:5}, {0:5}], padding_mode="{constant|edge|reflect|symmetric}")
m = F.rgb_to_grayscale(m, 3)
m = ImageOps.exif_transpose(m)
""".strip().splitlines()
DEFERRED_OPENINGS = OPENINGS[:11] + OPENINGS[14:20]
DEFERRED_RESIZES = """
m = m.resize(SIZE)
m = m.resize(SIZE)
m = m.resize(SIZE, {Image.BILINEAR|Image.NEAREST|Image.BICUBIC|Image.Resampling.LANCZOS|0|2})
m = F.resize(m, list(SIZE)[::-1])
m = F.resize(m, list(SIZE), F.InterpolationMode.{NEAREST|BICUBIC|BILINEAR})
m = T.Resize(tuple(SIZE))(m)
m = v2.Resize(list(SIZE))(m)
""".strip().splitlines()

# Operations that give another size; SIZE is one of the sizes above.
RESIZES = """
m = m.resize(SIZE)
m = m.resize(SIZE)
m = m.resize(SIZE, {Image.BILINEAR|Image.NEAREST|Image.BICUBIC|Image.Resampling.LANCZOS|Image.BOX|Image.HAMMING|0|2})
m = m.resize(SIZE, resample={Image.BILINEAR|Image.NEAREST})
m = m.resize(SIZE, reducing_gap=2.0)
m = m.resize(SIZE, Image.BILINEAR, (2, 3, m.width - 4, m.height - 1))
m = ImageOps.{fit|pad}(m, tuple(SIZE))
m = F.resize(m, list(SIZE)[::-1])
m = F.resize(m, list(SIZE), F.InterpolationMode.{NEAREST|BICUBIC|BILINEAR})
m = F2.resize(m, list(SIZE))
m = T.Resize(tuple(SIZE))(m)
m = v2.Resize(list(SIZE))(m)
m = F.resized_crop(m, 2, 3, 20, 19, list(SIZE))
m = m.transform(tuple(SIZE), Image.AFFINE, (1, .1, 0, 0, 1, 0))
m.thumbnail(tuple(SIZE))
""".strip().splitlines()

# Operations that shrink sides by at most half.
SHRINKS = """
m = m.reduce(2)
m.thumbnail((m.width * 2 // 3, m.height * 2 // 3))
m = ImageOps.scale(m, {.6:.9})
m = m.crop((m.width // 8, m.height // 10, m.width * 7 // 8, m.height * 9 // 10))
m = m.crop((m.width // 4, m.height // 4, m.width // 4 * 3, m.height // 4 * 3))
m = m.crop((int(.1 * m.width), 0, int(.8 * m.width), m.height))
x0 = random.randint(0, 8); m = m.crop((x0, 0, m.width - 9, m.height))
side = min(m.size) * 3 // 4; m = F.center_crop(m, side)
side = min(m.size); m = T.CenterCrop(side)(m)
side = max(m.size); m = T.Pad(((side - m.width) // 2, (side - m.height) // 2))(m)
m = F.five_crop(m, [m.height // 2, m.width // 2])[i % 5]
m = F.resize(m, {24:40})
m = F.resize(m, {24:40}, max_size={60:90})
m = T.Resize({24:60})(m)
m = m.crop(({0:6}, {0:6}, {26:32}, {26:32}))
m = F.crop(m, {0:6}, {0:6}, {22:26}, {22:26})
m = F.center_crop(m, {28:32})
m = resize(m, [{30:50}, {30:50}])
""".strip().splitlines()

# Transform objects. A is a number that may vary.
CONSTANT = """
T.Resize(({26:60}, {26:60}){|, T.InterpolationMode.NEAREST|, T.InterpolationMode.BICUBIC})
V.Resize({26:60})
V.CenterCrop({26:44})
V.CenterCrop(({26:44}, {26:44}))
V.Pad({1:6}{|, fill=99|, padding_mode="reflect"|, padding_mode="edge"})
V.Pad([A, 2])
V.Grayscale(3)
V.RandomHorizontalFlip(1.0)
V.RandomVerticalFlip(p=1)
V.RandomHorizontalFlip(0)
V.RandomRotation((A, A))
V.RandomRotation((A, A), V.InterpolationMode.BILINEAR)
V.RandomAffine((A, A))
V.RandomInvert(1.0)
V.RandomPosterize({3:6}, 1.0)
V.RandomSolarize({50:200}, 1.0)
V.RandomAutocontrast(1.0)
V.RandomEqualize(1.0)
V.RandomAdjustSharpness({.3:2.5}, 1.0)
V.GaussianBlur({3|5}, (1.0, 1.0))
V.ColorJitter(brightness=(1.2, 1.2))
V.RandomApply([V.RandomHorizontalFlip(1.0)], 1.0)
V.Compose([V.Resize({40:60}), V.CenterCrop({28:36})])
V.Lambda(lambda image: image.rotate(5))
nothing
{Alternate|AllAlternate}()
""".strip().splitlines()
RANDOM = """
V.RandomCrop({26:40}{|, padding={1:6}}, pad_if_needed=True)
V.RandomCrop(({26:40}, {26:40}), pad_if_needed=True, padding_mode="{constant|reflect}")
V.RandomResizedCrop({26:48}{|, scale=(.3, 1)})
V.RandomResizedCrop(({26:48}, {26:48}), interpolation=V.InterpolationMode.NEAREST)
V.RandomHorizontalFlip()
V.RandomVerticalFlip(.5)
V.RandomRotation({10:60})
V.RandomAffine({5:40}, (.1, .1), (.8, 1.2))
V.RandomPerspective(p=1.0)
V.ColorJitter(.4, .4, .4, .1)
V.RandomGrayscale(.5)
V.RandomApply([V.ColorJitter(.6, .6)], .5)
V.RandomChoice([V.RandomHorizontalFlip(1.0), V.RandomVerticalFlip(1.0)])
V.RandomOrder([V.RandomHorizontalFlip(), V.Pad(3)])
{V.AutoAugment|V.RandAugment|V.TrivialAugmentWide}()
v2.RandomZoomOut(p=1.0)
v2.RandomShortestSize([30, 40, 50])
v2.RandomResize(30, 50)
V.Compose([V.RandomCrop({26:36}, pad_if_needed=True), V.RandomHorizontalFlip()])
torch.nn.Sequential(V.RandomHorizontalFlip(), V.RandomCrop({26:36}, pad_if_needed=True))
jitter
""".strip().splitlines()
ANGLES = ["i", "i % 3", "i * 7 % 40", "{1:9}", "{1:9}", "{1:9}", "int(m.width) % 7", "self.side % 10"]

TENSORS = """
x = F.to_tensor(m)
x = T.ToTensor()(m)
x = T.ToTensor()(m)
x = T.PILToTensor()(m)
x = F.pil_to_tensor(m)
x = F.pil_to_tensor(m).float() / 255
x = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])(m)
x = v2.ToImage()(m)
x = F2.to_dtype(F2.to_image(m), torch.float32, scale=True)
x = torch.from_numpy(np.array(m)).permute(2, 0, 1)
x = torch.as_tensor(np.asarray(m, np.float32).transpose(2, 0, 1) / 255)
x = to_tensor(m)
x = torch.tensor(list(m.getdata()), dtype=torch.uint8).reshape(m.height, m.width, 3).permute(2, 0, 1)
""".strip().splitlines()
ON_TENSORS = """
x = x / 2
x = x * 2 - 1
x = x.float()
x = x.clone()
x = x.flip(-1)
x = x[:, 2:20, 3:19]
x = x[[2, 1, 0]]
x = x.mean(0, keepdim=True) if x.is_floating_point() else x[:1]
x = x.to(torch.float64)
x = x.contiguous()
x = x.clamp(0, .5)
x = torch.cat([x, x], 1)
x = x.add_(0)
x[0] = 0
x = F.hflip(x)
x = F.vflip(x)
x = F.pad(x, 2)
x = F.resize(x, [20, 24])
x = F.center_crop(x, 18)
x = T.Resize((20, 22))(x)
x = T.CenterCrop(20)(x)
x = T.RandomHorizontalFlip(1.0)(x)
x = F.normalize(x.float(), [.5, .4, .3], [.5, .5, .5])
x = T.Normalize((.5,), (.5,))(x.float())
x = x.float(); T.Normalize((.5,), (.5,), inplace=True)(x)
x = F.convert_image_dtype(x, torch.float32)
x = T.RandomErasing(1.0)(x)
x = torch.nn.functional.interpolate(x[None].float(), (20, 20))[0]
x = x.to("cpu")
x = x.detach().requires_grad_(False)
""".strip().splitlines()

LOOKS = """
m.size
m.mode
[m.width, m.height]
m.getextrema()
m.getpixel((2, 3))
int(np.asarray(m).sum())
m.histogram()[7]
len(m.getbands())
isinstance(m, Image.Image)
str(m.format)
m.getbbox()
np.array(m).shape
sorted(m.getexif())
list(m.getdata())[5]
F.get_image_size(m)
F.get_dimensions(m)
m.tobytes()[:9].hex()
m.entropy()
m == m.copy()
self.calls
random.Random(i).random()
np.random.default_rng(i).integers(9)
""".strip().splitlines()

# torch's generator, set back: statements for the top, before the first use, and before the second.
SET_BACK = [
    ("", "s = torch.get_rng_state()", "torch.set_rng_state(s)"),
    ("", "s = torch.random.get_rng_state()", "torch.random.set_rng_state(s)"),
    ("from torch import get_rng_state, set_rng_state", "s = get_rng_state()", "set_rng_state(s)"),
    ("from torch.random import get_rng_state, set_rng_state as back", "s = get_rng_state()", "back(s)"),
    ("", "s = torch.default_generator.get_state()", "torch.default_generator.set_state(s)"),
    ("from torch import default_generator as g", "s = g.get_state()", "g.set_state(s)"),
    ("", "s = torch.random.default_generator.get_state()", "torch.set_rng_state(s)"),
    ("", "s = torch.default_generator.get_state()", "torch.Generator.set_state(torch.default_generator, s)"),
    ("", "s = random.randrange(2 ** 31); torch.manual_seed(s)", "torch.manual_seed(s)"),
    ("", "s = np.random.randint(2 ** 31 - 1); torch.random.manual_seed(s)", "torch.random.manual_seed(s)"),
    ("from torch import manual_seed", "s = random.randrange(2 ** 31); manual_seed(s)", "manual_seed(s)"),
    ("from torch import manual_seed", "s = torch.initial_seed(); manual_seed(s)", "manual_seed(s)"),
    ("", "s = i; torch.manual_seed(s)", "torch.manual_seed(s)"),
    ("from torch import manual_seed as fix", "s = i + 5; fix(s)", "fix(s)"),
    ("", "s = i; torch.default_generator.manual_seed(s)", "torch.default_generator.manual_seed(s)"),
    ("", "s = torch.seed()", "torch.manual_seed(s)"),
    ("", "s = torch.default_generator.seed()", "torch.default_generator.manual_seed(s)"),
    ("", "s = torch.default_generator.clone_state()", "torch.default_generator.graphsafe_set_state(s)"),
    ("seed_all = torch.manual_seed", "s = random.randrange(99); seed_all(s)", "seed_all(s)"),
    ("", "s = int(torch.randint(2 ** 31, ())); torch.manual_seed(s)", "torch.manual_seed(s)"),
    ("", "s = i; self.seed(s)", "self.seed(s)"),
    ("", "s = copy.deepcopy(torch.get_rng_state())", "torch.set_rng_state(s.clone())"),
    ("", "s = random.getstate()", "random.setstate(s)"),
    ("", "s = np.random.get_state()", "np.random.set_state(s)"),
    ("from random import getstate, setstate", "s = getstate()", "setstate(s)"),
    ("", "s = 0; random.seed(i)", "random.seed(i)"),
    ("", "s = None", "pass"),
]

PARAMETERS = """
t, l, h, w = T.RandomCrop.get_params(m, (24, 26)); TWICE = F.crop(m, t, l, h, w)
t, l, h, w = T.RandomResizedCrop.get_params(m, (.3, 1), (.8, 1.2)); TWICE = F.resized_crop(m, t, l, h, w, [30, 30])
a = T.RandomRotation.get_params([-30, 30]); TWICE = F.rotate(m, a)
a = random.random() < .5; TWICE = F.hflip(m) if a else m
a = torch.rand(1).item(); TWICE = F.adjust_brightness(m, .5 + a)
x0 = random.randint(0, 9); TWICE = m.crop((x0, 2, x0 + 30, 32))
x0 = int(torch.randint(9, ())); TWICE = m.crop((x0, 2, x0 + 30, 32))
x0 = np.random.randint(9); TWICE = F.crop(m, x0, x0, 24, 25)
a = self.rng.choice([0, 1, 2, 3]); TWICE = m.transpose(a)
a = random.choice([.8, 1, 1.2]); TWICE = m.resize((int(m.width * a), int(m.height * a)))
a = T.RandomAffine.get_params((-9, 9), None, (.8, 1.2), None, list(m.size)); TWICE = F.affine(m, *a)
""".strip().splitlines()

READERS = {
    "plain": """
def read(path):
    return Image.open(path).convert("RGB")
""",
    "cached": """
@functools.lru_cache(None)
def read(path):
    return Image.open(path).convert("RGB")
""",
    "kept": """
_known = {}
def read(path):
    if path not in _known:
        _known[path] = Image.open(path).convert("RGB")
    return _known[path]
""",
    "bytes": """
_known = {}
def read(path):
    if path not in _known:
        _known[path] = open(path, "rb").read()
    return Image.open(io.BytesIO(_known[path])).convert("RGB")
""",
}


class Sides(NamedTuple):
    """Least and largest possible sides of an image."""

    low: int
    high: int


class Writer:
    """Writer of one program."""

    def __init__(self, seed: int):
        self.rng = random.Random(f"own programs {seed}")
        self.top: list[str] = []
        self.init: list[str] = []
        self.sides = Sides(50, 150)
        self.deferred = self.chance(0.6)
        self.draws = False
        self.made = 0

    # -- words

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def filled(self, template: str) -> str:
        """Replace the braces of a template by random values, innermost first."""
        while match := re.search(r"\{([^{}]*)\}", template):
            template = template[: match.start()] + self._drawn(match[1]) + template[match.end() :]
        return template

    def _drawn(self, text: str) -> str:
        if re.fullmatch(r"-?\d+:-?\d+", text):
            return str(self.rng.randint(*map(int, text.split(":"))))
        if re.fullmatch(r"-?\d*\.\d*:-?\d*\.\d*", text):
            return str(round(self.rng.uniform(*map(float, text.split(":"))), 2))
        return self.rng.choice(text.split("|"))

    def one(self, templates: list[str]) -> str:
        return self.filled(self.rng.choice(templates))

    def named(self, text: str, name: str) -> str:
        return re.sub(r"\bm\b", name, text)

    # -- images

    def opened(self, name: str, path: str) -> list[str]:
        self.sides = Sides(50, 150)
        openings = DEFERRED_OPENINGS if self.deferred else OPENINGS
        text = self.one([opening.replace("{P}", "PATH") for opening in openings]).replace("PATH", path)
        if ".resize" in text:
            self.sides = Sides(24, 70)
        if "draft" in text:
            self.sides = Sides(25, 150)
        return self.named(text, name).split("; ")

    def size(self) -> str:
        kinds = [(FIXED, 4, Sides(28, 64)), (OF_INDEX, 2, Sides(30, 64)), (DRAWN, 1, Sides(30, 64))]
        if self.sides.low >= 40 and self.sides.high < 260:
            kinds.append((OF_IMAGE, 6, Sides(self.sides.low // 2, self.sides.high * 3 // 2)))
        templates, _, self.sides = self.rng.choices(kinds, [weight for _, weight, _ in kinds])[0]
        return self.one(templates)

    def transform(self, draws: bool, name: str) -> str:
        """Return an expression that applies an object."""
        version = self.rng.choice(["T", "T", "v2"])
        text = re.sub(r"\bV\b", version, self.one(RANDOM if draws else CONSTANT))
        self.draws |= draws
        if re.search(r"\bA\b", text):
            text = re.sub(r"\bA\b", self.one(ANGLES), text)
        self.sides = Sides(
            min(self.sides.low, 26), min(self.sides.high * 4 if "Zoom" in text else self.sides.high + 80, 700)
        )
        return self.applied(text, name)

    def applied(self, text: str, name: str) -> str:
        """Return a call of an object that is created once, or for each sample."""
        self.made += 1
        varies = re.search(r"\b(i|m|self)\b", text.replace("lambda image", "")) is not None
        where = "here" if varies else self.rng.choice(["here", "init", "init", "init", "top"])
        if where == "init":
            self.init.append(f"self.t{self.made} = {text}")
            return f"self.t{self.made}(m)" if self.chance(0.9) else f"self.apply(self.t{self.made}, m)"
        if where == "top":
            self.top.append(f"T{self.made} = {text}")
            return f"T{self.made}(m)"
        return f"{text}(m)"

    def edit(self, name: str, draws: float) -> list[str]:
        """Return one random step for an image."""
        kind = self.rng.choices(["edit", "resize", "shrink", "object"], [6, 3, 2, 4])[0]
        if kind == "shrink" and self.sides.low < 44:
            kind = "resize"
        if kind == "edit" and (self.sides.low < 34 or self.sides.high > 400):
            kind = "resize"
        deferred = self.deferred and self.chance(0.93)
        if kind == "edit":
            text = self.one(DEFERRED if deferred else EDITS)
            self.sides = Sides(self.sides.low - 10, self.sides.high + 12)
            if "expand" in text:
                self.sides = Sides(self.sides.low, self.sides.high * 3 // 2)
        elif kind == "resize":
            text = self.rng.choice(DEFERRED_RESIZES if deferred else RESIZES).replace("SIZE", self.size())
            text = self.filled(text)
            if "thumbnail" in text or "v2.Resize" in text or "F2.resize" in text:
                self.sides = Sides(min(self.sides.low, 24), self.sides.high)
        elif kind == "shrink":
            text = self.one(SHRINKS)
            self.sides = Sides(min(self.sides.low // 2, 22), max(self.sides.high, 90))
        else:
            text = f"m = {self.transform(self.chance(draws), name)}"
        return self.named(text, name).split("; ")

    def steps(self, name: str, count: int, draws: float = 0.15) -> list[str]:
        """Return several steps, some of them only for some samples."""
        lines: list[str] = []
        for _ in range(count):
            before = self.sides
            more = self.edit(name, draws)
            if self.chance(0.12):
                header = self.named(self.one(CONDITIONS), name)
                more = [header, *("    " + line for line in more)]
                self.sides = Sides(min(before.low, self.sides.low), max(before.high, self.sides.high))
            lines += more
        return lines

    def tensor(self, name: str, image: str, count: int) -> list[str]:
        """Convert an image to a tensor."""
        lines = [self.one(TENSORS[:5] if self.deferred else TENSORS)]
        for _ in range(count):
            lines.append(self.one(ON_TENSORS[-3:] if self.deferred else ON_TENSORS))
            self.draws |= "Erasing" in lines[-1]
        joined = "; ".join(lines)
        joined = re.sub(r"\bx\b", name, self.named(joined, image))
        return joined.split("; ")

    # -- samples

    def single(self) -> list[str]:
        """One image, and sometimes its properties."""
        lines, looks = self.opened("image", "self.paths[i]"), []
        for number in range(self.rng.choice([0, 0, 1, 2])):
            lines += self.steps("image", self.rng.randint(0, 3))
            if not self.deferred or self.chance(0.3):
                lines.append(f"look{number} = {self.named(self.one(LOOKS), 'image')}")
                looks.append(f"look{number}")
        lines += self.steps("image", self.rng.randint(1, 4))
        lines += self.tensor("x", "image", self.rng.choice([0, 0, 0, 1, 2]))
        if self.chance(0.1):
            looks.append(self.named(self.one(LOOKS), "image"))
        return [*lines, f"return {self.sample('x', looks)}"]

    def sample(self, what: str, more: list[str]) -> str:
        """Return the expression of a sample."""
        form = self.rng.choice(["tuple", "dict", "list", "bare" if not more else "tuple"])
        if form == "bare":
            return what
        parts = [what, "i % 7", *more]
        if form == "dict":
            return "dict(" + ", ".join(f"v{number}={part}" for number, part in enumerate(parts)) + ")"
        return f"({', '.join(parts)})" if form == "tuple" else f"[{', '.join(parts)}]"

    def pair(self) -> list[str]:
        """Two images that must get the same draws."""
        top, before, again = self.rng.choice(SET_BACK)
        self.top += [top] if top else []
        other = self.rng.choice(["self.paths[i]", "self.masks[i]"])
        first = "self.masks[i]" if "masks" in other else "self.paths[i]"
        modes = self.rng.choice([("RGB", "RGB"), ("RGB", "RGB"), ("RGB", "L")]) if "masks" in other else ("RGB", "RGB")
        lines = [f'a = Image.open({first}).convert("{modes[0]}")', f'b = Image.open({other}).convert("{modes[1]}")']
        steps = self.steps("m", self.rng.choice([0, 0, 1, 2]), draws=0)
        for name in "ab":
            lines += [self.named(step, name) for step in steps] if modes[1] == "RGB" else []
        text = f"m = {self.transform(True, 'm')}"
        if modes[1] == "L" and any(word in text + str(self.init) for word in ("Color", "Aug", "jitter", "Gray")):
            lines[1] = lines[1].replace('"L"', '"RGB"')
        end = self.end()
        lines += [
            *before.split("; "),
            self.named(text, "a"),
            *self._between(),
            *again.split("; "),
            self.named(text, "b"),
        ]
        x, y = self.named(end, "a"), self.named(end, "b")
        return [*lines, f"return {self.sample(x, [y])}"]

    def _between(self) -> list[str]:
        return (
            ["a = " + self.rng.choice(["a.copy()", "F.hflip(F.hflip(a))", "F.pad(a, 0)"])] if self.chance(0.2) else []
        )

    def shared(self) -> list[str]:
        """Numbers drawn by the user's code for two images."""
        lines = ['a = Image.open(self.masks[i]).convert("RGB")', "b = read(self.masks[i])"]
        draw, _, twice = self.one(PARAMETERS).partition("; TWICE = ")
        if self.chance(0.3):
            lines += [f"{name} = {name}.resize((60, 52))" for name in "ab"]
        lines += [self.named(draw, "a"), self.named(f"m = {twice}", "a"), self.named(f"m = {twice}", "b")]
        self.draws = True
        return [*lines, f"return {self.sample('F.to_tensor(a)', ['T.ToTensor()(b)'])}"]

    def end(self) -> str:
        """Return the final expression of an image."""
        ends = ["T.ToTensor()(m)", "F.to_tensor(m)", "F.pil_to_tensor(m)"]
        return self.rng.choice(ends if self.deferred else [*ends, "np.array(m)", "m"])

    def views(self) -> list[str]:
        """Several views of one image."""
        lines = self.opened("image", "self.paths[i]") + self.steps("image", self.rng.randint(0, 3))
        kept, parts = self.sides, []
        for name in ("a", "b", "c")[: self.rng.randint(2, 3)]:
            self.sides = kept
            lines += [f"{name} = image"] if self.chance(0.7) else [f"{name} = image.copy()"]
            lines += self.steps(name, self.rng.randint(0, 2), draws=0.4)
            end = self.end()
            parts.append(self.named(end, name))
        if self.chance(0.2):
            parts.append("image")
        if self.chance(0.15):
            fixed = [f"F.resize({part}, [20, 20])" for part in parts if "tensor" in part.lower()]
            return [*lines, f"return torch.stack([{', '.join(fixed)}]) if {len(fixed)} else 0, i"]
        return [*lines, f"return {self.sample(parts[0], parts[1:])}"]

    def frames(self) -> list[str]:
        """A list of images, which are neighbors or windows of one."""
        if self.chance(0.5):
            lines = ["out = []", "for j in range(i, i + {2:3}):"]
            inner = self.opened("f", "self.paths[j % len(self.paths)]") + self.steps(
                "f", self.rng.randint(1, 3), draws=0.3
            )
            lines += ["    " + line for line in [*inner, "out.append(F.to_tensor(f))"]]
        else:
            lines = [*self.opened("image", "self.paths[i]"), "out = []", "for j in range(3):"]
            inner = self.steps("f", self.rng.randint(1, 3), draws=0.4)
            lines += ["    " + line for line in ["f = image", *inner, "out.append(T.ToTensor()(f))"]]
        lines = [self.filled(line) for line in lines]
        end = self.rng.choice(
            ["out", "out", "(out, i)", "tuple(out)", "torch.stack([F.resize(x, [20, 20]) for x in out])"]
        )
        return [*lines, f"return {end}"]

    def cached(self) -> list[str]:
        """Images or tensors that the data set caches."""
        self.init.append("self.cache = {}")
        inner = self.opened("image", "self.paths[i]") + self.steps("image", self.rng.randint(0, 2))
        lines = ["if i not in self.cache:", *("    " + line for line in [*inner, "self.cache[i] = image"])]
        lines.append("image = self.cache[i]" + self.rng.choice(["", "", ".copy()"]))
        lines += self.steps("image", self.rng.randint(0, 3), draws=0.3)
        return [*lines, *self.tensor("x", "image", self.rng.choice([0, 0, 1])), f"return {self.sample('x', [])}"]

    def retried(self) -> list[str]:
        """A file that cannot be read is replaced by another."""
        self.init += ['self.paths[{2:9}] = str(Path(self.paths[0]).with_name("broken.jpg"))', "self.bad = 0"]
        self.init[-2] = self.filled(self.init[-2])
        caught = self.rng.choice(["OSError", "Exception", "PIL.UnidentifiedImageError", "(OSError, ValueError)"])
        inner = self.opened("image", "self.paths[i]")
        steps = self.steps("image", self.rng.randint(0, 3))
        again = self.rng.choice(
            ["return self[(i + 1) % len(self)]", "return self[0]", "image = Image.new('RGB', (60, 50))"]
        )
        if self.chance(0.5):
            inner += steps
            steps = []
        lines = ["try:", *("    " + line for line in inner), f"except {caught}:", "    self.bad += 1", "    " + again]
        lines += steps
        return [*lines, *self.tensor("x", "image", 0), f"return {self.sample('x', ['self.bad'])}"]

    def joint(self) -> list[str]:
        """An image and a mask passed to one call of v2."""
        lines = ['a = Image.open(self.masks[i]).convert("RGB")', 'b = Image.open(self.masks[i]).convert("RGB")']
        text = self.filled(self.rng.choice(RANDOM)).replace("V.", "v2.").replace("T.", "v2.")
        self.init.append(f"self.t = {text}")
        self.draws = True
        if self.chance(0.4):
            lines += [
                "a, b = v2.ToImage()(a), v2.ToImage()(b)",
                "a, b = self.t(a, b)",
                f"return {self.sample('a', ['b'])}",
            ]
            return lines
        call = self.rng.choice(
            ["a, b = self.t(a, b)", "a, b = self.t([a, b])", "a, b = self.t(dict(a=a, b=b)).values()"]
        )
        return [*lines, call, f"return {self.sample('F.to_tensor(a)', ['F.to_tensor(b)'])}"]

    def around(self) -> list[str]:
        """A data set that wraps another."""
        self.init.append('self.base = ImageFolder(Path(paths[0]).with_name("folder"))')
        if self.chance(0.4):
            self.init.append(f"self.base.{self.rng.choice(['loader = pil_loader', 'loader = self.load'])}")
        elif self.chance(0.4):
            sure = [
                self.filled(self.rng.choice(CONSTANT[:12])).replace("V.", "T.") for _ in range(self.rng.randint(1, 2))
            ]
            self.init.append(f"self.base.transform = T.Compose([{', '.join(sure)}])".replace("A", "5"))
            self.sides = Sides(26, 150)
        if self.chance(0.4):
            self.init.append(
                self.rng.choice(
                    ["self.base = Subset(self.base, range(9, -1, -1))", "self.base = ConcatDataset([self.base] * 2)"]
                )
            )
        plain = "ConcatDataset" not in self.init[-1] and "Subset" not in self.init[-1]
        lines = ["image, label = self.base[i % len(self.base)]"]
        if plain and self.chance(0.4):
            lines = ["path, label = self.base.samples[i % len(self.base)]", "image = self.base.loader(path)"]
        lines += self.steps("image", self.rng.randint(0, 3))
        return [*lines, *self.tensor("x", "image", self.rng.choice([0, 0, 1])), f"return {self.sample('x', ['label'])}"]

    def mosaic(self) -> list[str]:
        """One image made from several."""
        inner = self.opened("f", "self.paths[(i + j) % len(self.paths)]") + self.steps("f", self.rng.randint(0, 1))
        lines = ["canvas = Image.new('RGB', (64, 64){|, 99})", "for j in range(4):"]
        lines += [
            "    " + line for line in [*inner, "f = {f.resize((32, 32))|T.Resize((32, 32))(f)|F.resize(f, [32, 32])}"]
        ]
        lines.append("    canvas.paste(f, ({32 * (j % 2), 32 * (j // 2)|j * 9, 5}))")
        return [*map(self.filled, lines), *self.tensor("x", "canvas", 0), f"return {self.sample('x', [])}"]

    def mixed(self) -> list[str]:
        """Two images combined in one tensor, or returned together."""
        lines = []
        for name, at in (("a", "i"), ("b", "(i * 5 + 1) % len(self.paths)")):
            lines += self.opened(name, f"self.paths[{at}]") + self.steps(name, self.rng.randint(0, 2))
            lines.append(f"{name} = {self.rng.choice(['T.ToTensor()', 'F.to_tensor'])}(F.resize({name}, [24, 24]))")
        end = self.filled(
            "{a * .3 + b * .7|torch.lerp(a, b, .25)|torch.cat([a, b])|torch.stack([a, b])|torch.where(a > b, a, b)"
            "|torch.cat([a[:, :12], b[:, 12:]], 1)|torch.max(a, b)|[a, b]|dict(one=a, other=dict(b=b))|(a, (b,))}"
        )
        return [*lines, f"return {self.sample(end, [])}"]

    def threaded(self) -> list[str]:
        """Images opened by threads of the program."""
        end = self.one(
            ["T.ToTensor()(F.resize(m, [24, 24]))", "m.resize((20, {20:30}))", "to_tensor(m.crop((0, 0, 30, 22)))"]
        )
        opens = 'Image.open(path).convert("RGB")'
        lines = ["def made(path):", f"    m = {opens}", f"    return {end}"]
        lines += [
            "with ThreadPoolExecutor({1:3}) as pool:",
            "    some = list(pool.map(made, [self.paths[i], self.masks[i]]))",
        ]
        return [*map(self.filled, lines), f"return {self.sample('some[0]', ['some[1]'])}"]

    def _counted(self, body: list[str]) -> list[str]:
        """A sample that depends on a counter or on random numbers of the program."""
        init, number = self.rng.choice(COUNTS)
        self.init += [init] if init else []
        *lines, last = [f"n = {number}", *body]
        opens = [at for at, line in enumerate(lines) if re.match(r"(\w+) = .*Image\.open.*\)$", line)]
        if opens and self.chance(0.7):
            name = lines[opens[0]].partition(" ")[0]
            change = self.rng.choice(["m.transpose(0)", "m.resize((30 + n % 3, 30))", "F.vflip(m)", "m.rotate(9)"])
            lines.insert(opens[0] + 1, f"{name} = {self.named(change, name)} if n % 2 else {name}")
        return [*lines, last.replace("return ", "return n, ", 1)]

    def program(self) -> str:
        """Return the source of a program."""
        kinds = [self.single, self.pair, self.shared, self.views, self.frames, self.cached, self.retried, self.joint]
        kinds += [self.around, self.mosaic, self.mixed, self.threaded]
        body = self.rng.choices(kinds, [8, 5, 3, 4, 2, 2, 2, 1, 4, 1, 2, 1])[0]()
        reader = READERS[self.rng.choices(list(READERS), [6, 1, 1, 1])[0]].strip()
        if self.chance(0.25):
            body = self._counted(body)
        used = set(re.findall(r"\w+", "\n".join([*self.top, *self.init, *body])))
        helpers = [source.strip() for name, source in HELPERS.items() if name in used]
        lines = [
            HEADER,
            *([reader] if "read" in used else []),
            *helpers,
            *self.top,
            "class Own(Dataset):",
            "    def __init__(self, paths, masks):",
        ]
        init = ["self.paths, self.masks = paths, masks", "self.side, self.calls, self.rng = 36, 0, random.Random(3)"]
        lines += ["        " + line for line in [*init, *dict.fromkeys(self.init)]]
        lines += ["    def __len__(self):", "        return len(self.paths)"]
        lines += ["    def load(self, path):", "        return Image.open(path).convert('RGB')"]
        lines += ["    def apply(self, transform, image):", "        return transform(image)"]
        lines += ["    def seed(self, number):", "        torch.manual_seed(number)"]
        if self.chance(0.1):
            lines += ["    def between(self):", "        self.side = 44"]
        lines += ["    def __getitem__(self, i):", *("        " + line for line in ["self.calls += 1", *body])]
        return "\n".join(lines) + "\n"


CONDITIONS = """
if i % 2:
if i % {2:5} == 0:
if image_is_wide(m):
if m.width > m.height:
if m.mode == "RGB":
if random.random() < .5:
if torch.rand(()) < .5:
if np.random.rand() < .3:
if self.rng.random() < .5:
for _ in range(i % 3):
for _ in range(2):
if self.calls % 2:
while m.width > {70:120}:
if True:
""".strip().splitlines()
CONDITIONS = [one for one in CONDITIONS if "image_is_wide" not in one and "while" not in one]


def program(seed: int) -> str:
    """Return the program of this number."""
    return Writer(seed).program()
