"""A loader of torch's class, or of a subclass, that becomes ours while it is made."""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch.utils.data as data

from ..data.base_datasets import leaves_of
from ..data.timm import OfTimms
from ..loader import DataLoader
from ..runtime import Patched
from .frameworks import check_nothing_is_skipped_twice, is_made_by_accelerate, options_of, reason_to_stay_torchs

_KINDS = TypeError, RuntimeError, ValueError
_OTHERS = "cpu", "numpy", "torch.floattensor"  # what is on the other side, in torch's words

made: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
"""Loaders that install() has replaced."""


class InstalledLoader(DataLoader):
    """The class that torch's loader becomes; for a subclass, the base between it and ours. Where a framework makes it
    again, by its class and the script's arguments, it has the options of install() again."""

    def __init__(self, *args: Any, **kwargs: Any):
        options = {} if Patched.now is None else Patched.now.options
        super().__init__(*args, **options | kwargs)


def become(loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any], now: Patched) -> str | None:
    """Make ``loader`` ours and call our constructor with the arguments of torch's. Why it stays torch's, where a
    framework does with it what ours cannot."""
    reason = reason_to_stay_torchs()
    if reason is not None:
        return reason
    check_nothing_is_skipped_twice()
    accelerated = is_made_by_accelerate()
    kind = type(loader)
    dataset = args[0] if args else kwargs["dataset"]
    loader.__class__ = InstalledLoader if kind is data.DataLoader else _class_of(kind)
    options = now.options | options_of(dataset) | kwargs
    if any(isinstance(leaf, OfTimms) for leaf in leaves_of(dataset)):
        options = {"on_error": "replace"} | options  # timm goes on with the next image where one cannot be read
    DataLoader.__init__(loader, *args, **options)
    made.add(loader)
    loader._history.keeps_globals = not accelerated
    return None


_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _class_of(kind: type) -> Any:
    """A subclass of torch's loader, with ours between the two."""
    if kind not in _classes:
        names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        names |= {"__doc__": kind.__doc__}
        if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
            names["__reduce_ex__"] = _reduce
        _classes[kind] = types.new_class(kind.__name__, (kind, InstalledLoader), {}, lambda body: body.update(names))
    return _classes[kind]


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    return _again, (type(self).__mro__[1],), self.__getstate__()


def _again(kind: type) -> Any:
    made = _class_of(kind)
    return made.__new__(made)


def remedy(error: BaseException) -> str:
    """Returns what to do about an error that ended the program; "" if it has nothing to do with the batches' device."""
    text = str(error).lower()
    if not isinstance(error, _KINDS) or "cuda" not in text or not any(other in text for other in _OTHERS):
        return ""
    places = sorted({str(one._route.device) for one in made if one._route is not None} - {"cpu"})
    if not places:
        return ""
    where = " and ".join(places)
    return (
        f"dali_compat: its loaders give batches on {where} already, where torch's give them on the CPU. If the program "
        "does not expect that, run it with --device cpu"
    )
