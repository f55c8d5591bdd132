"""Gives a data set's own code stand-ins from Image.open and from transforms while it is traced."""

from __future__ import annotations

import io
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from ..data.intact import is_intact
from ..data.sources import Record, Source, Upright, current_folder, opened, within
from .decoders import LazyBytes, lazy_bytes, recording_of
from .deferred import Deferred, Notes
from .images import LazyFile, header_of
from .tensors import lazy_tensor

_COARSE = 5  # Linux's CLOCK_REALTIME_COARSE, from which it takes the times of files
_MOST_WHOLE = 1 << 20  # files of which it is known
_TICK = 10_000_000  # ns between two times of other clocks, as that of a network's disk
HEARD = "has warnings raised or recorded while it opens images"
WRITTEN = "opens files that were written just now"

_whole: set[int] = set()  # files that are not damaged: of others each library makes something else
numbers = count()  # of Records, which are all different


def now() -> int:
    """ns, as a file would get them that changed now. That clock lags behind time.time_ns() by a few milliseconds, and
    by many on a host whose processors others take."""
    return time.clock_gettime_ns(_COARSE) if sys.platform == "linux" else time.time_ns()


class Encoded:
    """A store (data/sources.py) of one image's bytes. ``upright``: it is turned as its EXIF says."""

    def __init__(self, data: bytes, upright: bool):
        self._data, self.upright = data, upright

    def read(self, indices) -> list[np.ndarray]:
        return [np.frombuffer(self._data, np.uint8)] * len(indices)

    def changed(self, indices) -> np.ndarray:
        return np.zeros(len(indices), bool)

    def copied(self, index: int) -> bytes:
        return self._data

    def place(self, index: int) -> str:
        return "an image in memory"


class Tracer:
    """Makes the stand-ins of the samples that are asked for together. hooks.py calls its methods in the place of PIL's
    and torchvision's code; where one gives None, the original runs.

    Args:
        since: now() of a time from which on files are not to have changed: they may change again before they are read.
        meets_damage: the data set's code may catch the error of a damaged file, and so has to meet it at once.
    """

    def __init__(self, since: int, meets_damage: bool = False):
        self.notes = Notes()
        self._since, self._meets_damage = since - _TICK, meets_damage
        self._showing = getattr(warnings, "_showwarnmsg_impl", None)

    def opened(self, file, really: Callable[..., Any]) -> Any:
        """The image of a file, not read yet; None where ``really`` opening it is what can be done."""
        # catch_warnings() records them by another function; who hears them may leave the image out
        if _are_errors() or getattr(warnings, "_showwarnmsg_impl", None) is not self._showing:
            self.notes.became_real(HEARD)
            return None
        source = self._source(file)
        if source is None or (self._meets_damage and not _is_whole(source)):
            return None
        is_path = isinstance(file, (str, bytes, os.PathLike))  # which the image knows, then

        def make(before: None) -> Any:
            if is_path and _path(file) == source:
                return really(file)
            with opened(source) as whole:
                return really(io.BytesIO(whole.read()))

        return self.notes.made(LazyFile(Deferred(source, self.notes, make, header=header_of(source))))

    def decoded(self, feature, value, really: Callable[..., Any]) -> Any:
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
        later = Deferred(source, self.notes, lambda before: really(feature, value), header=header_of(source))
        made = self.notes.made(LazyFile(later))
        return made if feature.mode is None else made.convert(feature.mode)

    def read(self, path, really: Callable[..., Any]) -> Any:
        """A file's bytes as a tensor, not read yet; None as opened()."""
        source = self._file(_path(path))
        if source is None:
            return None
        return lazy_bytes(Deferred(source, self.notes, lambda before: really(path)), os.stat(source).st_size)

    def decoded_by(self, library: str, name: str, data, args, really: Callable[..., Any]) -> Any:
        """The tensor that a function of a library decodes of these bytes; None as opened()."""
        upright = library == "torchcodec" or any(args[1:])
        if type(data) is LazyBytes:
            source: Source = Upright(data._later.source) if upright else data._later.source
            encoded: Callable[[], Any] = partial(data._later.value, "")  # without the stand-in, which may go
        elif type(data) is torch.Tensor and data.dtype == torch.uint8 and data.ndim == 1:
            source, encoded = Record(Encoded(data.numpy().tobytes(), upright), next(numbers)), lambda: data
        else:
            return None
        try:
            found = recording_of(library, name, source, args) if _is_whole(source) else None
        except Exception:  # the decoder says it
            return None
        if found is None:
            return None
        later = Deferred(source, self.notes, lambda before: really(encoded(), *args), found)
        return self.notes.made(lazy_tensor(later))

    def _source(self, file) -> Source | None:
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


def _is_whole(source: Source) -> bool:
    if not isinstance(source, str):
        return is_intact(source.bytes())
    key = hash((source, os.stat(source).st_ctime_ns))
    if key not in _whole and is_intact(source):
        if len(_whole) >= _MOST_WHOLE:
            _whole.clear()
        _whole.add(key)
    return key in _whole


def _are_errors() -> bool:
    """Returns whether a warning of Pillow's may be raised as an error."""
    for action, text, category, module, _ in warnings.filters:
        if issubclass(UserWarning, category):
            if action == "error":
                return True
            if text is None and module is None:  # it is for all, and the first that fits decides
                return False
    return False


def _path(file) -> str:
    """A path that leads to a file from any working directory."""
    path = os.fsdecode(file)
    return path if path[:1] == "/" else within(current_folder(), path)
