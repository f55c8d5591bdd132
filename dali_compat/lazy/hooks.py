"""What the user's code meets while it is asked: an Image.open that does not read, and transforms that do not compute.

They are in their places for as long as somebody asks. In threads that do not ask they are PIL's and torchvision's.
"""

from __future__ import annotations

import functools
import io
import os
import random
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1

from ..data.sources import BYTES, PATHS, Record, Source, Upright, opened
from ..locks import new_lock
from ..translate.registry import behaves_as, known_types
from ..translate.replaced import STANDS_FOR
from ..translate.wrappers.objects import root
from .chains import Chain
from .images import LazyImage, is_certainly_rgb, later_of
from .later import Later, Notes
from .samples import STAND_INS, TENSORS, exchanged, stand_ins
from .tensors import LazyTensor, LazyTVImage, lazy_tensor

_TICK = 10_000_000  # ns by which the clock of files may lag behind
WRITTEN = "opens files that were written just now"
_FEATURES = "datasets.features.image"  # where Hugging Face's datasets decode

# what they do to an image is the same for each object of a subclass
_WITHOUT_SETTINGS: dict[type, Any] = {v1.ToTensor: v1.ToTensor(), v1.PILToTensor: v1.PILToTensor()}

_OF_TORCH = ("manual_seed", "seed", "get_rng_state", "set_rng_state")
_SEEDS: tuple[tuple[Any, tuple[str, ...], str], ...] = (  # a state that is taken will be set
    (torch, _OF_TORCH, "torch's generator"),
    (torch.random, _OF_TORCH, "torch's generator"),
    (random, ("seed", "getstate", "setstate"), "Python's generator"),
    (np.random, ("seed", "get_state", "set_state"), "NumPy's generator"),
)

_here = threading.local()
_lock = new_lock()
numbers = count()  # of Records, which are all different


class Encoded:
    """A store (data/sources.py) of one image's bytes. ``upright``: it is turned as its EXIF says."""

    def __init__(self, data: bytes, upright: bool):
        self._data, self.upright = data, upright

    def read(self, indices: Any) -> list[np.ndarray]:
        """The bytes."""
        return [np.frombuffer(self._data, np.uint8)] * len(indices)

    def changed(self, indices: Any) -> np.ndarray:
        """None of them can."""
        return np.zeros(len(indices), bool)

    def copied(self, index: int) -> bytes:
        """The bytes."""
        return self._data

    def place(self, index: int) -> str:
        """Nobody knows."""
        return "an image in memory"


class Question:
    """What images and transforms answer with, while a data set is asked.

    Args:
        roots: the chains without transforms, by what images are given as.
        since: time.time_ns() of a time from which on files are not to have changed: they may change again before they
            are read.
    """

    def __init__(self, roots: dict[str, Chain], since: int):
        self.notes = Notes()
        self._roots, self._since = roots, since - _TICK
        self._seed, self._dtype = torch.initial_seed(), torch.get_default_dtype()
        self._random: list[weakref.ref[Later]] = []  # which draw when they become real
        self._seeds = ""  # what the user's code has set

    def opened(self, file: Any, really: Callable[..., Any]) -> Any:
        """The image of a file, not read yet; None where ``really`` opening it is what can be done."""
        source = self._source(file)
        if source is None:
            return None
        is_path = isinstance(file, (str, bytes, os.PathLike))  # which the image knows, then

        def make(before: None) -> Any:
            if is_path and _path(file) == source:
                return really(file)
            with opened(source) as whole:
                return really(io.BytesIO(whole.read()))

        chain = self._roots[PATHS if isinstance(source, str) else BYTES]
        return self.notes.made(LazyImage(Later(source, chain, self.notes, make)))

    def decoded(self, feature: Any, value: Any, really: Callable[..., Any]) -> Any:
        """The image of a row of Hugging Face's; None as opened()."""
        if type(value) is not dict or getattr(feature, "mode", None) not in (None, "RGB"):
            return None
        data, path = value.get("bytes"), value.get("path")
        source: Source | None = None
        if type(data) is bytes:
            source = Record(Encoded(data, upright=True), next(numbers))
        elif type(path) is str and data is None:
            found = self._file(path)
            source = None if found is None else Upright(found)
        if source is None:
            return None
        chain = self._roots[PATHS if isinstance(source, str) else BYTES]
        later = Later(source, chain, self.notes, lambda before: really(feature, value))
        later.is_rgb = feature.mode == "RGB"
        return self.notes.made(LazyImage(later))

    def applied(self, transform: Any, image: LazyImage | LazyTensor) -> Any:
        """What a transform gives of a stand-in, not computed yet; None where it has to be."""
        later = later_of(image)
        if later.is_real or not is_certainly_rgb(later) or torch.get_default_dtype() != self._dtype:
            return None
        chain = later.chain.after(transform)
        if chain is None:
            return None
        if chain.is_random and torch.initial_seed() != self._seed:
            self.seeds("torch's generator")
        if chain.is_random and self._seeds:  # the user's code gives each image its numbers
            self.notes.became_real(f"seeds {self._seeds}")
            return None
        made = later.then(chain, _original_call(transform))
        if chain.is_random:
            self._random.append(weakref.ref(made))
        if chain.gives.kind == "pil":
            return self.notes.made(LazyImage(made))
        return self.notes.made(lazy_tensor(LazyTVImage if chain.gives.kind == "Image" else LazyTensor, made))

    def seeds(self, what: str) -> None:
        """The user's code sets a generator: who was to draw from it does now, and who comes next at once."""
        self._seeds = self._seeds or what
        pending, self._random = self._random, []
        for ref in pending:
            if (later := ref()) is not None:
                later.value(f"seeds {what}")

    def _source(self, file: Any) -> Source | None:
        if type(file) is io.BytesIO:
            return None if file.tell() else Record(Encoded(file.getvalue(), upright=False), next(numbers))
        if type(file) is io.BufferedReader:
            if file.closed or type(file.name) is not str or file.tell():
                return None
            return self._file(_path(file.name), file.fileno())
        return self._file(_path(file)) if isinstance(file, (str, bytes, os.PathLike)) else None

    def _file(self, path: str, descriptor: int | None = None) -> str | None:
        """The path, where there is such a file, that has not changed lately."""
        try:
            found, link = os.stat(path), os.lstat(path)
            same = descriptor is None or os.path.samestat(found, os.fstat(descriptor))
        except OSError:  # PIL says it
            return None
        if max(found.st_ctime_ns, link.st_ctime_ns) >= self._since:  # a link may soon lead to another file
            self.notes.became_real(WRITTEN)
            return None
        return path if same and stat.S_ISREG(found.st_mode) else None


def _path(file: Any) -> str:
    """A path that leads to a file from any working directory."""
    path = os.fsdecode(file)
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


@contextmanager
def hooked(question: Question) -> Iterator[None]:
    """Within it this thread is answered by a question."""
    before = getattr(_here, "question", None)
    try:
        _put_in()
        _here.question = question
        yield
    finally:
        _here.question = before
        _take_out()


@contextmanager
def unasked() -> Iterator[None]:
    """Within it nobody answers this thread."""
    before = _asked()
    _here.question = None
    try:
        yield
    finally:
        _here.question = before


def _asked() -> Question | None:
    return getattr(_here, "question", None)


# ---- what is in their places

_users = 0
_undo: list[Callable[[], None]] = []
_known: dict[Any, tuple[Any, Any]] = {}  # by class or module and name: (the original, the hook)


def _put_in() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _replace(Image, "open", _open_hook)
            for kind in known_types():
                if root(kind) not in ("torch", __name__.partition(".")[0]):
                    _replace(kind, "__call__", functools.partial(_call_hook, kind))
            for owner, names, what in _SEEDS:
                for name in names:
                    _replace(owner, name, functools.partial(_seed_hook, what))
            feature = getattr(sys.modules.get(_FEATURES), "Image", None)
            if hasattr(feature, "decode_example"):
                _replace(feature, "decode_example", _decode_hook)


def _take_out() -> None:
    global _users
    with _lock:
        _users = max(0, _users - 1)
        while not _users and _undo:
            _undo.pop()()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Another function takes the place of an attribute. What somebody puts there meanwhile stays."""
    own, there = vars(owner).get(name), getattr(owner, name)
    original, hook = _known.get((owner, name), (None, None))
    if original is not there:
        hook = make(there)
        setattr(hook, STANDS_FOR, there)
        _known[owner, name] = there, hook
    setattr(owner, name, hook)

    def undo() -> None:
        if vars(owner).get(name) is not hook:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    _undo.append(undo)


def _open_hook(really: Any) -> Any:
    @functools.wraps(really)
    def open(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
        question = _asked()
        made = None if question is None or mode != "r" or formats is not None else question.opened(fp, really)
        return really(fp, mode, formats) if made is None else made

    return open


def _seed_hook(what: str, really: Any) -> Any:
    @functools.wraps(really)
    def set_generator(*args: Any, **kwargs: Any) -> Any:
        question = _asked()
        if question is not None:
            question.seeds(what)
        return really(*args, **kwargs)

    return set_generator


def _decode_hook(really: Any) -> Any:
    @functools.wraps(really)
    def decode_example(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        question = _asked()
        made = None if question is None else question.decoded(self, value, really)
        return really(self, value, *args, **kwargs) if made is None else made

    return decode_example


def _call_hook(kind: type, really: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = (
            self if behaves_as(type(self)) is kind else _WITHOUT_SETTINGS.get(kind)
        )  # a subclass calls super().__call__()
        if len(args) == 1 and not kwargs and plain is not None and type(args[0]) in STAND_INS:
            question = _asked()
            made = None if question is None else question.applied(plain, args[0])
            if made is not None:
                return made
        if any(type(one) in TENSORS for one in stand_ins(args)):  # functions of v2 ask of what class a tensor is
            args = exchanged(args, TENSORS, lambda one: later_of(one).value(f"gives the tensor to {kind.__name__}"))
        return really(self, *args, **kwargs)

    return __call__


def _original_call(transform: Any) -> Callable[[Any], Any]:
    """What a transform does by itself."""
    known = _known.get((type(transform), "__call__"))
    really = type(transform).__call__ if known is None else known[0]
    return lambda image: really(transform, image)
