"""A helper: the user's objects, stood in for, so that a callable can be asked what it does.

A callable is run on stand-ins of all that it refers to: itself, its attributes, closures, defaults and globals, and the
functions and classes among these. They run the user's own code on copies. Known transforms are replaced by Recorder,
which notes that it is applied. Whatever else there is (generators, clocks, files, tensors, other packages' functions,
most builtins) is Untouchable: it ends the attempt before it has done anything. So nothing of the user's changes, no
number is drawn, nothing is patched, and no other thread sees anything of it. Code that may not come to an end, that
catches exceptions, or that compares by ``is`` (which nobody notices) is not run.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from .standins import Class, Function, Instance, Maker, Module, NeuralModule, Placeholder, Recorder
from .understood import (
    OF_MODULES,
    WITHOUT_CODE,
    attributes,
    has_code,
    is_namedtuple,
    is_others,
    is_plain,
    is_plain_enum,
    is_slot,
    names,
    reason_not_to_run,
    root,
)
from .untouchable import Refused, Untouchable, of

_MOST = 1000  # elements of a container, and applications of an attempt
_SAFE = """
abs all any bool dict divmod enumerate filter float frozenset getattr hasattr int isinstance issubclass len list map
max min pow range reversed round set slice sorted str sum super tuple zip AssertionError AttributeError
Exception IndexError KeyError NotImplementedError RuntimeError TypeError ValueError
"""
_BUILTINS = {name: getattr(builtins, name) for name in _SAFE.split()}
_NOT_KEPT = {"__dict__", "__weakref__", "__slots__", "__init__", "__new__", "__del__", "__init_subclass__"}
_NOT_KEPT |= {"__class_getitem__", "__setattr__", "__delattr__", "__set_name__", "__module__", "__classcell__"}
_NOT_KEPT |= {"__static_attributes__", "__firstlineno__", "__qualname__", "__abstractmethods__", "_abc_impl"}


class Sandbox:
    """What stands for the user's objects in one attempt.

    Args:
        known: whether a class is one of known transforms.

    Attributes:
        applications: (transform, the placeholder's applications before it) in their order.
    """

    def __init__(self, known: Callable[[type], bool]):
        self._known = known
        self.applications: list[tuple[Any, tuple[int, ...]]] = []
        self._standing: dict[int, tuple[Any, Any]] = {}  # by id() of what it stands for, which it keeps alive
        self._classes: dict[type, type] = {nn.Module: NeuralModule}
        self._watched: list[tuple[str, Any, Any]] = []

    def applied(self, transform: Any, placeholder: Placeholder) -> Placeholder:
        if len(self.applications) == _MOST:
            raise Refused(f"it applies more than {_MOST} transforms")
        before = of(placeholder, "_made")
        self.applications.append((transform, before))
        return Placeholder(self, (*before, len(self.applications) - 1))

    @property
    def changed(self) -> str | None:
        """What the attempt has changed."""
        return next((name for name, copy, before in self._watched if not _same(_contents(copy), before)), None)

    def end(self) -> None:
        """Lets go of what is the user's; stand-ins refer to each other in circles."""
        self._standing, self._watched, self.applications = {}, [], []

    def _watch(self, name: str, copy: Any) -> Any:
        self._watched.append((name, copy, _contents(copy)))
        return copy

    def stand_in(self, value: Any, name: str) -> Any:
        """``name`` is for a reason."""
        if is_plain(value):
            return value
        if id(value) not in self._standing:
            self._standing[id(value)] = value, Untouchable(name)  # where it refers to itself
            self._standing[id(value)] = value, self._made(value, name)
        return self._standing[id(value)][1]

    def _made(self, value: Any, name: str) -> Any:
        kind = type(value)
        if self._known(kind):
            return Recorder(kind.__name__, value, self)
        if kind in (list, tuple, set, frozenset, nn.ModuleList):
            values = list(value)
            if len(values) > _MOST or (kind in (set, frozenset) and not all(map(is_plain, values))):
                return Untouchable(name)
            container: Any = list if kind is nn.ModuleList else kind
            made = container([self.stand_in(one, name) for one in values])
            same = kind not in (set, frozenset) or list(made) == values  # a copy's order may be another
            return self._watch(name, made) if same else Untouchable(name)
        if kind is dict:
            named = dict(value)
            if len(named) > _MOST or not all(map(is_plain, named)):
                return Untouchable(name)
            return self._watch(name, {key: self.stand_in(one, f"{name}[{key!r}]") for key, one in named.items()})
        if kind is types.MethodType:
            return types.MethodType(self.stand_in(value.__func__, name), self.stand_in(value.__self__, name))
        if kind is functools.partial:
            function, *args = (self.stand_in(one, name) for one in (value.func, *value.args))
            return functools.partial(function, *args, **{k: self.stand_in(one, k) for k, one in value.keywords.items()})
        if kind is types.FunctionType:
            return Untouchable(name) if is_others(value) else Function(name, value, self)
        if kind is types.ModuleType:
            return Module(name, value, self)
        if issubclass(kind, type):
            return self._class(value, name)
        if kind is types.BuiltinFunctionType:
            return value if any(value is one for one in _BUILTINS.values()) else Untouchable(name)
        if is_namedtuple(kind):
            return kind(*(self.stand_in(one, name) for one in value))
        return self._instance(value, name)

    def built(self, function: types.FunctionType) -> types.FunctionType:
        """The function, in the sandbox."""
        code, name, world = function.__code__, function.__name__, function.__globals__
        reason = reason_not_to_run(code)
        if reason:
            raise Refused(reason)
        looked_up = names(code)
        globals_ = {one: self.stand_in(world[one], one) for one in looked_up & world.keys()}
        own = looked_up & vars(builtins).keys()
        globals_["__builtins__"] = {one: _BUILTINS[one] if one in _BUILTINS else Untouchable(one) for one in own}
        cells = tuple(map(self._cell, function.__closure__ or (), code.co_freevars))
        defaults = function.__defaults__ and tuple(self.stand_in(one, name) for one in function.__defaults__)
        made = types.FunctionType(code, self._watch("a global variable", globals_), name, defaults, cells)
        named = function.__kwdefaults__
        made.__kwdefaults__ = named and {key: self.stand_in(value, key) for key, value in named.items()}
        return made

    def _cell(self, cell: types.CellType, name: str) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # nothing is there yet
            return types.CellType()
        return self._watch(name, types.CellType(self.stand_in(value, name)))

    def _instance(self, value: Any, name: str) -> Any:
        kind = type(value)
        if not has_code(kind):
            return Untouchable(name)
        own = dict(attributes(value))
        for slot in (slot for base in kind.__mro__ for slot, it in vars(base).items() if is_slot(it)):
            with contextlib.suppress(AttributeError):  # it has no value
                own[slot] = object.__getattribute__(value, slot)
        if issubclass(kind, nn.Module):
            if any(own[hooks] for hooks in own if hooks in OF_MODULES and "hooks" in hooks):
                return Untouchable(name)
            inner = own["_modules"], own["_parameters"], own["_buffers"]
            own = {key: one for key, one in own.items() if key not in OF_MODULES}
            own.update((key, one) for named in inner for key, one in named.items())
        instance: Any = object.__new__(self._base(kind))
        object.__setattr__(instance, "__waiting__", (own, self))
        return instance

    def _class(self, kind: type, name: str) -> Any:
        if self._known(kind):
            return Maker(name, kind, self) if root(kind) in ("torch", "torchvision") else Untouchable(name)
        if any(kind is one for one in _BUILTINS.values()) or is_namedtuple(kind) or is_plain_enum(kind):
            return kind
        return self._base(kind) if has_code(kind) else Untouchable(name)

    def _base(self, kind: type) -> type:
        """A class that stands for one that has code."""
        if kind not in self._classes:
            bases = dict.fromkeys(map(self._base, (base for base in kind.__bases__ if base not in WITHOUT_CODE)))
            own = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            made = Class(kind.__name__, tuple(bases) or (Instance,), own)
            self._classes[kind] = made
            for name, value in vars(kind).items():
                if name not in _NOT_KEPT and not is_slot(value):
                    type.__setattr__(made, name, self._of_class(value, f"{kind.__name__}.{name}"))
        return self._classes[kind]

    def _of_class(self, value: Any, name: str) -> Any:
        """An attribute of a class."""
        if type(value) is types.FunctionType:  # those of torchvision's classes, too
            return Function(name, value, self)
        if type(value) is property and type(value.fget) is types.FunctionType:
            return property(Function(name, value.fget, self))
        if type(value) in (staticmethod, classmethod) and type(value.__func__) is types.FunctionType:
            return Function(name, value.__func__, self, binds=type(value))
        return self.stand_in(value, name)


def _contents(copy: Any) -> tuple:
    if isinstance(copy, dict):
        return (*copy.keys(), *copy.values())
    if isinstance(copy, types.CellType):
        try:
            return (copy.cell_contents,)
        except ValueError:
            return ()
    return tuple(copy)


def _same(one: tuple, other: tuple) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
