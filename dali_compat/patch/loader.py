"""Turn a loader of torch's class, or of a subclass, into a dali_compat.DataLoader during its construction.

Accelerate and Ray Train construct another loader from the script's loader. The new loader's constructor finds the
script's loader in the call stack (runtime.internals.framework_calls).
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch.utils.data as data

from ..data.base_datasets import leaves_of
from ..data.timm import is_timm_folder
from ..loader import DataLoader
from ..runtime import Patched
from ..runtime.internals import ACCELERATE, framework_calls

_ERRORS = TypeError, RuntimeError, ValueError
_CPU_NAMES = "cpu", "numpy", "torch.floattensor"  # names of the CPU in torch's errors of mixed devices

made: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
"""The loaders that convert() has turned into dali_compat.DataLoaders."""


class InstalledLoader(DataLoader):
    """DataLoader with the options of install() as defaults. They also apply if a framework constructs another loader
    from this one's class and arguments."""

    def __init__(self, *args: Any, **kwargs: Any):
        options = {} if Patched.now is None else Patched.now.options
        super().__init__(*args, **options | kwargs)


def convert(loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any], now: Patched) -> str | None:
    """Turn ``loader`` into a dali_compat.DataLoader, and return None. ``args`` and ``kwargs`` are its constructor's
    arguments. If a framework needs a feature that dali_compat lacks, leave the loader unchanged and return the reason.
    """
    if any(type(frame.f_locals.get("self")).__name__ == "DataLoaderDispatcher" for frame in framework_calls()):
        return "Accelerate's dispatch_batches=True sends batches from one process to the others"
    check_nothing_is_skipped_twice()
    accelerated = any(map(_is_from_accelerate, framework_calls()))
    kind = type(loader)
    dataset = args[0] if args else kwargs["dataset"]
    loader.__class__ = InstalledLoader if kind is data.DataLoader else _class_of(kind)
    options = now.options | options_of(dataset) | kwargs
    if any(map(is_timm_folder, leaves_of(dataset))):
        options = {"on_error": "replace"} | options  # timm skips to the next image if one cannot be read
    vars(loader)["_announced"] = next((one._announced for one in _script_loaders(dataset)), None)
    DataLoader.__init__(loader, *args, **options)
    made.add(loader)
    loader._history.keeps_globals = not accelerated
    return None


_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _class_of(kind: type) -> Any:
    """Return a class with the bases ``kind`` and InstalledLoader."""
    if kind not in _classes:
        names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        names |= {"__doc__": kind.__doc__}
        if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
            names["__reduce_ex__"] = _reduce
        _classes[kind] = types.new_class(kind.__name__, (kind, InstalledLoader), {}, lambda body: body.update(names))
    return _classes[kind]


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    return _reconstruct, (type(self).__mro__[1],), self.__getstate__()


def _reconstruct(kind: type) -> Any:
    made = _class_of(kind)
    return made.__new__(made)


def remedy(error: BaseException) -> str:
    """Return a remedy for the error that ended the program, or "" if the error does not concern the batches' device."""
    text = str(error).lower()
    if not isinstance(error, _ERRORS) or "cuda" not in text or not any(other in text for other in _CPU_NAMES):
        return ""
    places = sorted({str(one._route.device) for one in made if one._route is not None} - {"cpu"})
    if not places:
        return ""
    where = " and ".join(places)
    return (
        f"dali_compat: the loaders' batches are on {where}, while torch's are on the CPU. If the program does not "
        "expect that, run it with --device cpu"
    )


def check_nothing_is_skipped_twice() -> None:
    """Raise RuntimeError if Accelerate's skip_first_batches() constructs this loader, and the script's loader skips
    the same batches because it resumes from a state."""
    for frame in framework_calls():
        if not _is_from_accelerate(frame) or frame.f_code.co_name != "skip_first_batches":
            continue
        given = frame.f_locals.get("dataloader")
        loader = getattr(given, "base_dataloader", given)
        if isinstance(loader, DataLoader) and loader._history.resumes_mid_epoch:
            raise RuntimeError(
                "the loader resumes from its state, so skip_first_batches() would skip the same batches again; "
                "leave it out (Hugging Face's Trainer: ignore_data_skip=True)"
            )


def options_of(dataset: Any) -> dict[str, Any]:
    """Return the options of the script's loader over ``dataset`` if a framework is constructing another loader from it,
    else {}. With Accelerate, the default device is the one that it has assigned to this process."""
    options: dict[str, Any] = {}
    for one in _script_loaders(dataset):
        options |= {name: getattr(one, name) for name in inspect.getfullargspec(DataLoader._store_arguments).kwonlyargs}
    if options.get("device") is None and any(map(_is_from_accelerate, framework_calls())):
        state = sys.modules["accelerate.state"]
        options |= {"device": state.PartialState().device} if state.is_initialized() else {}
    return options


def _script_loaders(dataset: Any) -> Iterator[DataLoader]:
    for frame in framework_calls():
        for value in frame.f_locals.values():
            if isinstance(value, DataLoader) and getattr(value, "dataset", None) is dataset:
                yield value


def _is_from_accelerate(frame: FrameType) -> bool:
    return frame.f_globals["__name__"] == ACCELERATE
