"""Reading of user-defined wrappers, and refusal of wrappers that do more than apply transforms.

A misread wrapper would silently train on other images. Each wrapper that is read is also called, and its pixels are
compared with those of the chain that was found.
"""

import abc
import copy
import enum
import functools
import gc
import importlib
import logging
import os
import pickle
import random
import sys
import threading
import time
import types
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms import v2

import dali_compat
from dali_compat import register
from dali_compat.inspection.evaluator import NotUnderstood
from dali_compat.inspection.objects import attributes
from dali_compat.inspection.source import definition_of
from dali_compat.inspection.untranslatable import describe
from dali_compat.inspection.wrappers import find_transforms
from dali_compat.ops.translators import _TRANSLATORS
from dali_compat.runtime.device import filled
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

known = _TRANSLATORS.__contains__
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))

CROP, SMALL, GRAY = T.CenterCrop(20), T.Resize((12, 14)), T.Grayscale(3)
WEAK, STRONG = T.Compose([CROP, T.ToTensor()]), T.Compose([SMALL, T.RandomInvert(p=1), T.ToTensor()])
NORMALIZE = T.Normalize((0.5,) * 3, (0.5,) * 3)
STAGES = [CROP, GRAY]
TOO_EARLY = CROP
COUNT = 2
TO_TENSOR = T.ToTensor()
Pair = namedtuple("Pair", "weak strong")
V = TypeVar("V")


class Typed(NamedTuple):
    query: object
    key: object


class Mode(enum.Enum):
    WEAK, STRONG = 1, 2


class Odd(enum.Enum):
    ONE = 1

    def pick(self):
        return random.choice([WEAK, STRONG])


# ---- wrappers that only apply transforms, with the structure of public code


class Preset:
    """As in torchvision's references."""

    def __init__(self, size=20):
        self.transforms = T.Compose([T.Resize(size), T.CenterCrop(size), T.PILToTensor()])

    def __call__(self, img):
        return self.transforms(img)


class TwoCrops:
    """As in SimSiam and MoCo."""

    def __init__(self, base_transform):
        self.base_transform = base_transform

    def __call__(self, x):
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class TransformTwice(TwoCrops):
    def __call__(self, inp):
        return tuple(super().__call__(inp))


class MultiCrop:
    """As in DINO."""

    def __init__(self, local_crops_number=3):
        self.global_transfo1, self.global_transfo2, self.local_transfo = WEAK, STRONG, SMALL
        self.local_crops_number = local_crops_number

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))  # noqa: PERF401
        return crops


class MultiView:
    """As in lightly."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


class NCrops:
    """As in solo-learn."""

    def __init__(self, transform, num_crops):
        self.transform, self.num_crops = transform, num_crops

    def __call__(self, x):
        return [self.transform(x) for _ in range(self.num_crops)]

    def __repr__(self):
        return f"{self.num_crops} x [{self.transform}]"


class FullPipeline:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        out = []
        for transform in self.transforms:
            out.extend(transform(x))
        return out


class FixMatch:
    def __init__(self):
        self.weak, self.strong = CROP, T.Compose([CROP, T.RandomSolarize(100, p=1)])
        self.normalize = T.Compose([T.ToTensor(), NORMALIZE])

    def __call__(self, x):
        weak, strong = self.weak(x), self.strong(x)
        return self.normalize(weak), self.normalize(strong)


class Neural(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.then = T.CenterCrop(20), nn.ModuleList([T.Grayscale(3), T.RandomInvert(p=1)])
        self.register_buffer("unused", torch.zeros(3))

    def forward(self, image):
        image = self.first(image)
        for transform in self.then:
            image = transform(image)
        return image


class Sequence(T.Compose):
    """A subclass of a known class with the same behavior."""

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class Abstract(abc.ABC):
    @abc.abstractmethod
    def chain(self): ...

    def __call__(self, image):
        for transform in self.chain():
            image = transform(image)
        return image


class Concrete(Abstract):
    def chain(self):
        return (CROP, GRAY)


@dataclass
class Data:
    transforms: list = field(default_factory=lambda: [CROP, TO_TENSOR])
    seed: int = 3

    def __call__(self, image):
        return image if self.seed < 0 else _run(self.transforms, image)


class Scheduled:
    """The script changes ``epoch`` between epochs."""

    epoch = 0

    def __call__(self, image):
        return WEAK(image) if self.epoch < 5 else STRONG(image)


class ByMode:
    def __init__(self, mode):
        self.mode = mode
        self.rng, self.lock, self.logger = random.Random(0), threading.Lock(), logging.getLogger("x")  # unused

    def __call__(self, image):
        return {"weak": WEAK, "strong": STRONG}[self.mode](image) if self.rng is not None else image

    def strong(self, image):
        return STRONG(image)


class Lazy:
    def __getattr__(self, name):
        if name == "transform":
            return CROP
        raise AttributeError(name)

    def __call__(self, image):
        return self.transform(image)


def _run(transforms, image, at=0):
    return image if at == len(transforms) else _run(transforms, transforms[at](image), at + 1)


def with_default(image, transform=STRONG, *, then=None):
    made = transform(image)
    return made if then is None else then(made)


def closure(*transforms):
    chosen, count = transforms[0], len(transforms)

    def both(image):
        return [chosen(image), transforms[count - 1](image)]

    return both


def with_any_arguments(*args, **kwargs):
    return WEAK(*args, **kwargs)


def in_steps(image):
    for stage in STAGES:
        image = stage(image)
    return {name: transform(image) for name, transform in {"a": SMALL, "b": TO_TENSOR}.items()}


TRACED = {
    "references' preset": (Preset(), 1),
    "a preset in a Compose": (Sequence([Preset(), T.ConvertImageDtype(torch.float)]), 1),
    "SimSiam": (TwoCrops(WEAK), 2),
    "DINO": (MultiCrop(), 5),
    "DINO without local crops": (MultiCrop(0), 2),
    "lightly": (MultiView([WEAK, STRONG, SMALL]), 3),
    "a subclass of lightly's": (type("DINOTransform", (MultiView,), {})([WEAK, WEAK]), 2),
    "solo-learn": (FullPipeline([NCrops(WEAK, 2), NCrops(STRONG, 1)]), 3),
    "FixMatch": (FixMatch(), 2),
    "a module": (Neural(), 1),
    "a subclass of Compose": (Sequence([CROP, TO_TENSOR]), 1),
    "an abstract base": (Concrete(), 1),
    "a dataclass, and recursion": (Data(), 1),
    "a schedule": (Scheduled(), 1),
    "a bound method": (ByMode("weak").strong, 1),
    "a lambda": (lambda im: WEAK(im), 1),
    "a lambda of two": (lambda im: [WEAK(im), STRONG(im)], 2),
    "a dict": (lambda im: {"weak": WEAK(im), "strong": STRONG(im)}, 2),
    "nested": (lambda im: {"global": [WEAK(im), WEAK(im)], "local": (SMALL(im), (STRONG(im),))}, 4),
    "the image itself and a view": (lambda im: (im, WEAK(im)), 2),
    "one view twice": (lambda im: [WEAK(im)] * 2, 2),
    "two views of one crop": (lambda im: [TO_TENSOR(one) for one in [CROP(im)] * 2], 2),
    "default arguments": (with_default, 1),
    "a partial": (functools.partial(with_default, transform=CROP, then=TO_TENSOR), 1),
    "a closure": (closure(WEAK, SMALL, STRONG), 2),
    "stages of a global list": (in_steps, 2),
    "a transform created in the call": (lambda im: T.ToTensor()(v2.Resize((COUNT * 5, 9), antialias=True)(im)), 1),
    "a Compose created in the call": (lambda im: T.Compose([CROP, *STAGES])(im), 1),
    "torchvision's Lambda": (T.Lambda(lambda im: WEAK(im)), 1),
    "v2": (TwoCrops(v2.Compose([v2.CenterCrop(9), v2.ToImage()])), 2),
    "views()": (dali_compat.views(WEAK, SMALL), 2),
    "a Compose's transforms": (lambda im: WEAK.transforms[0](im) if COUNT == 2 and len(WEAK.transforms) > 1 else im, 1),
    "unused attributes": (ByMode("strong"), 1),
    "Pillow's convert": (lambda im: WEAK(im.convert("RGB")), 1),
    "convert to gray": (lambda im: TO_TENSOR(CROP(im).convert(mode="L")), 1),
    "only convert": (lambda im: im.convert("RGB").convert("L"), 1),
    "a tensor's half": (lambda im: TO_TENSOR(CROP(im)).half(), 1),
    "a tensor's bfloat16 of one view": (lambda im: (TO_TENSOR(CROP(im)).bfloat16(), WEAK(im)), 2),
    "float of a float tensor": (lambda im: TO_TENSOR(CROP(im)).float(), 1),
    "a tensor's double": (lambda im: TO_TENSOR(CROP(im)).double(), 1),
    "convert and a view": (lambda im: (im.convert("L"), WEAK(im)), 2),
}
if sys.version_info >= (3, 11):  # before, code has no columns, so that it is unclear which lambda it is
    TRACED["lambdas on one line"] = ([lambda im: CROP(im), lambda im: SMALL(im)][1], 1)


def _as_arrays(sample) -> list:
    if isinstance(sample, dict):
        return [*sample, *(one for value in sample.values() for one in _as_arrays(value))]
    if isinstance(sample, (list, tuple)):
        return [type(sample), *(one for value in sample for one in _as_arrays(value))]
    if isinstance(sample, torch.Tensor) and sample.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return ["bfloat16", sample.float().numpy()]
    return [np.asarray(sample)]


def run_chain(seen, path):
    image = IMAGE
    for at in path:
        image = seen.transforms[at](image)
    return image


@pytest.mark.parametrize("case", TRACED)
def test_traced_wrapper_equals_the_called_one(case):
    function, count = TRACED[case]
    seen = find_transforms(function, known)
    assert len(seen.paths) == count and any(seen.paths)
    mine, theirs = filled(seen.structure, [run_chain(seen, path) for path in seen.paths]), function(IMAGE)
    for one, other in zip(_as_arrays(mine), _as_arrays(theirs), strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    assert seen.chain is None or len(seen.chain) == len(seen.paths[0])


# ---- wrappers that do something else, or may


class Coin:
    def __init__(self):
        self.rng, self.numpys, self.torchs = random.Random(0), np.random.default_rng(0), torch.Generator()
        self.p = torch.tensor(0.5)

    def own(self, image):
        return WEAK(image) if self.rng.random() < 0.5 else STRONG(image)

    def own_numpy(self, image):
        return WEAK(image) if self.numpys.random() < 0.5 else STRONG(image)

    def own_torch(self, image):
        return WEAK(image) if torch.rand(1, generator=self.torchs) < 0.5 else STRONG(image)

    def tensor(self, image):
        return WEAK(image) if self.p < 0.5 else STRONG(image)

    def shuffled(self, image):
        self.rng.shuffle(STAGES)
        return _run(STAGES, image)


class Counter:
    calls = 0

    def __init__(self):
        self.n, self.seen, self.by_name = 0, [], {}

    def attribute(self, image):
        self.n += 1
        return WEAK(image) if self.n % 2 else STRONG(image)

    def listed(self, image):
        self.seen.append(1)
        return WEAK(image)

    def filled(self, image):
        self.by_name["last"] = WEAK(image)
        return self.by_name["last"]

    def of_class(self, image):
        Counter.calls += 1
        return WEAK(image)

    def by_dict(self, image):
        self.__dict__["n"] = 5
        return WEAK(image)

    def by_object(self, image):
        object.__setattr__(self, "n", 5)
        return WEAK(image)

    def kept(self, image):
        self.last = WEAK(image)
        return self.last


class Modal(nn.Module):
    def __init__(self):
        super().__init__()
        self.crop = T.CenterCrop(20)

    def forward(self, image):
        return self.crop(image)


HOOKED = Modal()
HOOKED.register_forward_hook(lambda module, args, output: output.rotate(90))


class Magic:
    def __getattribute__(self, name):
        return random.choice([WEAK, STRONG])

    def __call__(self, image):
        return self.transform(image)


class Descriptor:
    def __get__(self, instance, owner):
        return WEAK if time.time() % 2 < 1 else STRONG

    def __set__(self, instance, value):
        raise AttributeError


class Described:
    transform = Descriptor()

    def __call__(self, image):
        return self.transform(image)


TALLY = {"n": 0}
CALLS = 0


def global_counter(image):
    global CALLS
    CALLS += 1
    return WEAK(image)


def tally(image):
    TALLY["n"] += 1
    return WEAK(image)


def remembers(image, cache=[]):  # noqa: B006
    cache.append(1)
    return WEAK(image)


def on_itself(image):
    on_itself.calls = 1
    return WEAK(image)


def nonlocal_counter():
    n = 0

    def count(image):
        nonlocal n
        n += 1
        return WEAK(image)

    return count


def tries(image):
    try:
        return WEAK(image)
    except Exception:
        return STRONG(image)


def swallows(image):
    try:
        image.size  # noqa: B018
    except:  # noqa: E722
        return STRONG(image)
    return WEAK(image)


def retries(image):
    while True:
        if random.random() < 0.5:
            return WEAK(image)


def grows(image):
    views = [WEAK(image)]
    for view in views:
        views.append(SMALL(view))  # noqa: PERF401
    return views


def too_early(image):
    made = TOO_EARLY(image)  # noqa: F823
    TOO_EARLY = CROP  # noqa: F841
    return made


def with_inner_function(image):
    return (lambda one: WEAK(one))(image)


WITHOUT_SOURCE = eval("lambda image: WEAK(image)")


def endless(image):
    return endless(image)


def raises(image):
    raise ValueError("not here")


def imports(image):
    import secrets

    return WEAK(image) if secrets.randbelow(2) else STRONG(image)


def yields(image):
    yield WEAK(image)


def in_context(image):
    with torch.no_grad():
        return WEAK(image)


def same_object(image):
    cropped = T.RandomHorizontalFlip()(image)
    return WEAK(image) if cropped is image else STRONG(image)


def changes_transform(image):
    SMALL.size = (3, 3)
    return SMALL(image)


def way_out(image):
    kinds = [kind for kind in ().__class__.__base__.__subclasses__() if kind.__name__ == "Random"]
    return WEAK(image) if kinds[0]().random() < 0.5 else STRONG(image)


def matched(image):
    match image:
        case Image.Image():
            return WEAK(image)
        case _:
            return STRONG(image)


REFUSED = {
    "random": (lambda im: WEAK(im) if random.random() < 0.5 else STRONG(im), r"uses random.random\(\)$"),
    "randint": (lambda im: WEAK(im) if random.randint(0, 1) else STRONG(im), r"uses random.randint\(\)$"),
    "numpy": (lambda im: WEAK(im) if np.random.rand() < 0.5 else STRONG(im), r"uses np.random.rand\(\)$"),
    "torch": (lambda im: WEAK(im) if torch.rand(1) < 0.5 else STRONG(im), r"uses torch.rand\(\)$"),
    "a generator as attribute": (Coin().own, "uses self.rng.random$"),
    "a numpy generator as attribute": (Coin().own_numpy, "uses self.numpys.random$"),
    "a torch generator as attribute": (Coin().own_torch, r"uses torch.rand\(\)$"),
    "a tensor": (Coin().tensor, "uses self.p < 0.5$"),
    "shuffled": (Coin().shuffled, r"uses self.rng.shuffle\(\)$"),
    "an enum": (lambda im: Odd.ONE.pick()(im), "uses Odd.ONE$"),
    "time": (lambda im: WEAK(im) if time.time() % 2 < 1 else STRONG(im), r"uses time.time\(\) % 2$"),
    "the environment": (lambda im: WEAK(im) if "WEAK" in os.environ else STRONG(im), "uses 'WEAK' in os.environ$"),
    "a file": (lambda im: WEAK(im) if open(os.devnull).read() else STRONG(im), r"uses open\(\)$"),
    "prints": (lambda im: print("here") or WEAK(im), r"uses print\(\)$"),
    "an attribute that counts": (Counter().attribute, r"uses self.n \+= 1$"),
    "a list that grows": (Counter().listed, "changes self.seen$"),
    "a dict that changes": (Counter().filled, r"changes self.by_name\['last'\]$"),
    "a class that counts": (Counter().of_class, r"uses Counter.calls \+= 1$"),
    "through __dict__": (Counter().by_dict, r"changes self.__dict__\['n'\]$"),
    "through object": (Counter().by_object, "uses object.__setattr__$"),
    "an image that is kept": (Counter().kept, "changes self.last$"),
    "a global that counts": (global_counter, "uses global CALLS$"),
    "a global dict": (tally, r"uses TALLY\['n'\] \+= 1$"),
    "a default that grows": (remembers, "changes cache$"),
    "a function that counts": (on_itself, "changes on_itself.calls$"),
    "a closure that counts": (nonlocal_counter(), "uses nonlocal n$"),
    "the image's size": (lambda im: WEAK(im) if im.size[0] > 30 else STRONG(im), "uses the image's size$"),
    "another mode": (
        lambda im: WEAK(im.convert("HSV").convert("RGB")),
        r"the image's convert\(\) with unsupported arguments",
    ),
    "convert without a mode": (lambda im: WEAK(im.convert()), "with unsupported arguments"),
    "convert with more arguments": (lambda im: WEAK(im.convert("L", dither=None)), "with unsupported arguments"),
    "half with more arguments": (
        lambda im: TO_TENSOR(im).half(memory_format=torch.channels_last),
        r"the image's half\(\) with unsupported arguments",
    ),
    "half itself": (lambda im: [WEAK(im), im.half], "uses the image's half$"),
    "getattr": (lambda im: WEAK(im) if getattr(im, "mode", "L") == "L" else STRONG(im), r"uses getattr\(\)$"),
    "isinstance()": (lambda im: WEAK(im) if isinstance(im, Image.Image) else STRONG(im), r"uses isinstance\(\)$"),
    "type()": (lambda im: WEAK(im) if type(im) == Image.Image else STRONG(im), r"uses type\(\)$"),  # noqa: E721
    "match": (matched, "uses match image$"),
    "is": (same_object, "uses image$"),
    "id()": (lambda im: WEAK(im) if id(im) % 2 else STRONG(im), r"uses id\(im\) % 2$"),
    "truth": (lambda im: WEAK(im) if im else STRONG(im), "uses the truth value of im$"),
    "equality": (lambda im: WEAK(im) if WEAK(im) == 3 else STRONG(im), r"uses WEAK\(im\) == 3$"),
    "arithmetic": (lambda im: WEAK(im) * 2, r"uses WEAK\(im\) \* 2$"),
    "its length": (lambda im: WEAK(im) if len(im) > 3 else STRONG(im), "iterates over the image$"),
    "indexing": (lambda im: WEAK(im)[0], r"uses WEAK\(im\)\[0\]$"),
    "unpacking": (lambda im: [*WEAK(im)], "iterates over the image$"),
    "text": (lambda im: WEAK(im) if "RGB" in f"{im}" else STRONG(im), "uses 'RGB' in f'{im}'$"),
    "a key": (lambda im: {im: WEAK(im)}, "uses im$"),
    "numpy's array": (lambda im: WEAK(np.array(im)), r"uses np.array\(\)$"),
    "a tensor of it": (lambda im: torch.as_tensor(WEAK(im)), r"uses torch.as_tensor\(\)$"),
    "torchvision's function": (lambda im: F.hflip(WEAK(im)), r"uses F.hflip\(\)$"),
    "Pillow's function": (lambda im: WEAK(ImageOps.mirror(im)), r"uses ImageOps.mirror\(\)$"),
    "two images for one": (
        lambda im: T.ToTensor()([im, im]),
        "calls ToTensor with something other than a single image",
    ),
    "two arguments": (lambda im: v2.Resize(3)(im, 5), "calls Resize with something other than a single image"),
    "forward": (lambda im: SMALL.forward(im), r"uses F.resize\(\)$"),
    "a constant": (lambda im: 3, "not an image: int"),
    "nothing": (lambda im: None, "not an image: nonetype"),
    "an image and a constant": (lambda im: (WEAK(im), 0), "not an image: int"),
    "an OrderedDict": (lambda im: OrderedDict(a=WEAK(im)), r"uses OrderedDict\(\)$"),
    "a namedtuple": (lambda im: Pair(weak=WEAK(im), strong=STRONG(im)), r"uses Pair\(\)$"),
    "another image": (lambda im: (WEAK(im), IMAGE), "not an image"),
    "a wrapper created in the call": (lambda im: TwoCrops(WEAK)(im), r"uses TwoCrops\(\)$"),
    "a deep copy": (lambda im: copy.deepcopy(WEAK)(im), r"uses copy.deepcopy\(\)$"),
    "only the image": (lambda im: im, "^$"),
    "exceptions": (tries, "uses try$"),
    "swallows all": (swallows, "uses try$"),
    "a loop without an end": (retries, "uses while True$"),
    "a list that grows forever": (grows, "more than 10,000 expressions$"),
    "recursion": (endless, "RecursionError"),
    "an exception": (raises, "uses raise ValueError"),
    "imports": (imports, "uses import secrets$"),
    "a generator": (yields, "^$"),
    "a context": (in_context, r"uses with torch.no_grad\(\)$"),
    "a hook": (HOOKED, "^$"),
    "super()": (TransformTwice(STRONG), r"uses super\(\)$"),
    "keyword arguments of a dict": (with_any_arguments, r"uses WEAK\(\*args, \*\*kwargs\)$"),
    "an inner function": (with_inner_function, "defines functions"),
    "code without a source file": (WITHOUT_SOURCE, "no source file"),
    "__getattr__": (Lazy(), "uses self.transform$"),
    "__getattribute__": (Magic(), "uses self.transform$"),
    "a descriptor": (Described(), "uses self.transform$"),
    "a transform changed": (changes_transform, "changes SMALL.size$"),
    "subclasses of object": (way_out, r"uses \(\).__class__"),
    "the class of a class": (lambda im: WEAK(im) if getattr(1, "__class__").__class__(im) else im, r"uses getattr\(\)"),  # noqa: B009
    "a variable before its assignment": (too_early, "UnboundLocalError"),
    "a built-in": (abs, "^$"),
    "torch's function": (torch.neg, "^$"),
}


def generator_states():
    return pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))


def state_of(function) -> bytes:
    """Return the state that the refused wrappers would change."""
    own = attributes(function.__self__) if type(function) is types.MethodType else {}
    own = {name: one.get_state().tolist() if isinstance(one, torch.Generator) else one for name, one in own.items()}
    cells, defaults = [], ""
    if type(function) is types.FunctionType:
        cells, defaults = [cell.cell_contents for cell in function.__closure__ or ()], repr(function.__defaults__)
    shared = CALLS, TALLY, Counter.calls, vars(on_itself), SMALL.size, len(STAGES)
    return pickle.dumps((own, cells, defaults, shared))


@pytest.mark.parametrize("case", REFUSED)
def test_refused_wrapper_raises_and_changes_no_state(case, capsys):
    function, reason = REFUSED[case]
    before = generator_states(), state_of(function)
    with pytest.raises(NotUnderstood, match=reason):
        find_transforms(function, known)
    assert (generator_states(), state_of(function)) == before and capsys.readouterr() == ("", "")


def test_cases_include_at_least_forty_of_each_kind():
    assert len(TRACED) >= 40 and len(REFUSED) >= 40


def test_wrapper_is_refused_after_its_source_file_has_changed(tmp_path, monkeypatch):
    """The file that is read would not be the code that runs."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing_wrapper.py"
    file.write_text("def both(image):\n    return [WEAK(image), STRONG(image)]\n")
    module = importlib.import_module("changing_wrapper")
    module.WEAK, module.STRONG = WEAK, STRONG
    assert len(find_transforms(module.both, known).paths) == 2
    file.write_text(file.read_text().replace("[WEAK(image), ", "[WEAK(image), WEAK(image), "))
    definition_of.cache_clear()  # as in a process that reads the wrapper for the first time
    with pytest.raises(NotUnderstood, match="has changed since its import"):
        find_transforms(module.both, known)


def put(views, view) -> int:
    views.append(view)
    return 1


class Shadowed(nn.Module):
    """A class attribute precedes a submodule of the same name, which nn.Module.__getattr__ would return."""

    first = STRONG

    def __init__(self):
        super().__init__()
        self.first, self.second = v2.CenterCrop(9), v2.CenterCrop(12)

    def forward(self, image):
        return self.second(image), self.first(image)


def consumed_twice(image):
    pairs = zip([WEAK, STRONG], [1, 2])  # noqa: B905
    once, again = [t(image) for t, _ in pairs], [t(image) for t, _ in pairs]
    lazy = (t(image) for t in [CROP, SMALL])
    return [once, again, list(lazy), list(lazy)]


@pytest.mark.parametrize("wrapper", [Shadowed(), consumed_twice])
def test_wrapper_is_evaluated_like_python(wrapper):
    seen = find_transforms(wrapper, known)
    mine = filled(seen.structure, [run_chain(seen, path) for path in seen.paths])
    for one, other in zip(_as_arrays(mine), _as_arrays(wrapper(IMAGE)), strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_iterator_of_the_user_is_not_consumed():
    transforms = iter([WEAK, STRONG])
    with pytest.raises(NotUnderstood, match="iterates over list_iterator"):
        find_transforms(functools.partial(lambda them, image: [t(image) for t in them], transforms), known)
    assert len(list(transforms)) == 2


def test_each_part_of_a_wrapper_is_evaluated_once():
    def counted(image):
        views = []
        number = put(views, WEAK(image)) + put(views, STRONG(image)) - 1
        return views * number if put(views, CROP(image)) == 1 else views

    assert find_transforms(counted, known).paths == ((0,), (1,), (2,))


def test_tracing_does_not_affect_transforms_called_in_other_threads():
    """Nothing is patched while a wrapper is traced."""
    classes = {kind: dict(vars(kind)) for kind in (T.Compose, T.CenterCrop, nn.Module, TwoCrops)}
    wrong, done = [], threading.Event()

    def work():
        expected = WEAK(IMAGE)
        while not done.is_set():
            if not torch.equal(WEAK(IMAGE), expected):
                wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(100):
        assert len(find_transforms(TwoCrops(WEAK), known).transforms) == 2
        assert all(dict(vars(kind)) == then for kind, then in classes.items())
    done.set()
    thread.join()
    assert wrong == []


@pytest.mark.parametrize("wrapper", [TwoCrops, Counter])
def test_traced_or_refused_wrapper_is_not_kept_alive(wrapper):
    """Checked without Python's cycle collector."""
    function = wrapper(WEAK) if wrapper is TwoCrops else wrapper()
    gone = weakref.ref(function)
    called = function if wrapper is TwoCrops else function.attribute
    gc.collect()
    gc.disable()
    try:
        assert bool(translate(called).refused)  # a chain for one image
        del function, called
        assert gone() is None
    finally:
        gc.enable()


def test_plan_of_a_wrapper_equals_that_of_the_plain_chain():
    plain, wrapped = (lower(translate(t)) for t in (Preset().transforms, Preset()))
    assert plain.steps == wrapped.steps and plain.key == wrapped.key and plain.lines == wrapped.lines


class Loop:
    def __call__(self, image):
        return self.base(image)


def test_wrapper_that_contains_itself_is_refused():
    loop = Loop()
    loop.base = T.Compose([loop])
    chain = translate(T.Compose([T.CenterCrop(8), loop, T.ToTensor()]))
    assert len(chain.translated) == 1 and "it contains itself" in str(chain.refused)
    container = T.Compose([])
    container.transforms.append(container)
    assert "it contains itself" in str(translate(container).refused)


def test_wrapper_between_other_transforms_is_translated():
    chain = translate(T.Compose([GRAY, Preset(), T.RandomErasing()]))
    assert not chain.refused and len(chain.translated) == 5
    gated = translate(T.RandomApply([Preset()], p=0.5))
    assert "differ in dtype, channels, class or normalization" in str(gated.refused)  # the same without the wrapper


def test_views_that_are_not_the_last_step_are_refused():
    chain = translate(T.Compose([CROP, TwoCrops(WEAK), T.Lambda(torch.stack)]), views=True)
    assert "it returns several images, but is not the last" in chain.refused.reason
    assert translate(TwoCrops(WEAK)).refused  # nor if one image is required


class CustomBlur:
    def __init__(self, sigma=(0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x):
        return x.filter(ImageFilter.GaussianBlur(radius=random.uniform(*self.sigma)))


class CustomSolarize:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


def test_refusal_of_a_nested_function_contains_its_name():
    chain = translate(T.Compose([CROP, CustomBlur(), CustomSolarize(0.2), GRAY]))
    assert chain.refused.name == "CustomBlur" and len(chain.translated) == 1
    within = translate(T.Compose([CROP, T.RandomApply([CustomBlur()], p=0.5), T.Lambda(lambda image: image.copy())]))
    assert within.refused.name == "CustomBlur" and str(within.refused).startswith("RandomApply(p=0.5): CustomBlur: ")


def test_registered_class_inside_a_wrapper_is_known(monkeypatch):
    class Mine:
        def __call__(self, image):
            raise AssertionError("must not be called")

    @register(Mine)
    def mine(transform, spec):
        return ()

    try:
        assert find_transforms(MultiView([Mine(), WEAK]), known).paths == ((0,), (1,))
    finally:
        del _TRANSLATORS[Mine]


def test_objects_without_repr_are_described_by_their_class():
    def function(image):
        return image

    inner = T.RandomApply([CustomBlur(), functools.partial(function, 3)], p=0.5)
    description = describe(T.Compose([inner, MultiView([CustomBlur()])]))
    assert (
        "CustomBlur" in description
        and "MultiView" in description
        and "0x" not in description
        and "<" not in description
    )
    assert describe(MultiView([CustomBlur()])) == "MultiView" and "0x" not in str(translate(inner).refused)
