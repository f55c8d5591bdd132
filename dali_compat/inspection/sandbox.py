"""Choice of the stand-in for each object that the user's code refers to.

    a number, text, dtype, or enum of these     itself
    a known transform, ImageOps.exif_transpose  Recorder: records its applications
    a class of known transforms                 Constructor: constructs one, and returns its Recorder
    a list, tuple, set or dict                  a copy; the attempt fails if the copy has changed at the end
    a function                                  Function: runs its code with stand-ins for all names
    a method, functools.partial, namedtuple     the same, of stand-ins
    a module                                    Module: returns stand-ins of its attributes
    a class of the user                         a copy, whose methods are Functions
    an object of such a class                   an object of the copy, which returns stand-ins of its attributes
    a safe builtin, such as len                 itself
    any other object                            Untouchable: any use ends the attempt

So generators, clocks, files, tensors, functions of other packages and most builtins are Untouchable.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from PIL import ImageOps
from torch import nn

from ..runtime.messages import repr_of
from . import objects, standins
from .objects import names, reason_not_to_run
from .standins import Placeholder, Refused, Untouchable, kept

_SLOT = types.MemberDescriptorType  # attribute of a class with __slots__
_MOST = 1000  # elements of a container, and applications of an attempt
_SAFE = """
abs all any bool dict divmod enumerate filter float frozenset getattr hasattr int isinstance issubclass len list map
max min pow range reversed round set slice sorted str sum super tuple zip AssertionError AttributeError
Exception IndexError KeyError NotImplementedError RuntimeError TypeError ValueError
"""
_BUILTINS = {name: getattr(builtins, name) for name in _SAFE.split()}
# attributes that a copy of a class defines anew or does not need
_NOT_COPIED = {"__dict__", "__weakref__", "__slots__", "__init__", "__new__", "__del__", "__init_subclass__"}
_NOT_COPIED |= {"__class_getitem__", "__setattr__", "__delattr__", "__set_name__", "__module__", "__classcell__"}
_NOT_COPIED |= {"__static_attributes__", "__firstlineno__", "__qualname__", "__abstractmethods__", "_abc_impl"}


class Sandbox:
    """The stand-ins and records of one attempt.

    Args:
        known: returns True for the class of a known transform.
    """

    def __init__(self, known: Callable[[type], bool]):
        self._known = known
        # (transform, path of the placeholder before it), in order; a path is a tuple of their numbers
        self.applications: list[tuple[Any, tuple[int, ...]]] = []
        self._made: dict[int, tuple[Any, Any]] = {}  # by id(): (the object, kept alive, and its stand-in)
        self._classes: dict[type, type] = {nn.Module: standins.NeuralModule}  # copies
        self._watched: list[tuple[str, Any, Any]] = []  # name, container, contents

    # ---- records

    def applied(self, transform, image: Placeholder) -> Placeholder:
        """Record that a known transform is applied. Return the placeholder of its result."""
        if len(self.applications) == _MOST:
            raise Refused(f"it applies more than {_MOST} transforms")
        path = kept(image, "_path")
        self.applications.append((transform, path))
        return Placeholder(self, (*path, len(self.applications) - 1))

    @property
    def changed(self) -> str | None:
        """The name of a container that the attempt has changed, or None."""
        return next((name for name, copy, before in self._watched if not _same(_contents(copy), before)), None)

    def _watch(self, name: str, copy) -> Any:
        self._watched.append((name, copy, _contents(copy)))
        return copy

    def end(self) -> None:
        """Release the user's objects, since stand-ins form reference cycles."""
        self._made, self._watched, self.applications = {}, [], []

    # ---- objects

    def stand_in(self, value, name: str) -> Any:
        """Return the stand-in of an object, the same one each time. ``name`` is its name in reasons."""
        if objects.is_plain(value):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = value, Untouchable(name)  # for now, since the object may refer to itself
            self._made[id(value)] = value, self._new(value, name)
        return self._made[id(value)][1]

    def _new(self, value, name: str) -> Any:
        kind = type(value)
        if self._known(kind):
            return standins.Recorder(kind.__name__, value, self)
        if value is ImageOps.exif_transpose:
            return standins.Recorder("exif_transpose", standins.EXIF_TRANSPOSE, self)
        if kind in (list, tuple, set, frozenset, nn.ModuleList):
            return self._collection(value, name)
        if kind is dict:
            return self._dict(value, name)
        if kind is types.FunctionType:
            return Untouchable(name) if objects.is_of_library(value) else standins.Function(name, value, self)
        if kind is types.MethodType:
            return types.MethodType(self.stand_in(value.__func__, name), self.stand_in(value.__self__, name))
        if kind is functools.partial:
            function, *args = (self.stand_in(one, name) for one in (value.func, *value.args))
            return functools.partial(function, *args, **{k: self.stand_in(one, k) for k, one in value.keywords.items()})
        if kind is types.BuiltinFunctionType:
            return value if _is_safe(value) else Untouchable(name)
        if kind is types.ModuleType:
            return standins.Module(name, value, self)
        if issubclass(kind, type):
            return self._class(value, name)
        if objects.is_namedtuple(kind):
            return kind(*(self.stand_in(one, name) for one in value))
        return self._instance(value, name)

    def _collection(self, value, name: str) -> Any:
        values, kind = list(value), type(value)
        is_set = kind in (set, frozenset)
        if len(values) > _MOST or (is_set and not all(map(objects.is_plain, values))):
            return Untouchable(name)
        make: Any = list if kind is nn.ModuleList else kind
        made = make([self.stand_in(one, name) for one in values])
        if is_set and list(made) != values:  # the order of a copy may differ
            return Untouchable(name)
        return self._watch(name, made)

    def _dict(self, value, name: str) -> Any:
        values = dict(value)
        if len(values) > _MOST or not all(map(objects.is_plain, values)):
            return Untouchable(name)
        return self._watch(name, {key: self.stand_in(one, f"{name}[{key!r}]") for key, one in values.items()})

    def _instance(self, value, name: str) -> Any:
        kind = type(value)
        if not objects.is_copyable(kind):
            return Untouchable(name)
        own = dict(objects.attributes(value))
        for slot in (slot for base in kind.__mro__ for slot, it in vars(base).items() if type(it) is _SLOT):
            with contextlib.suppress(AttributeError):  # no value is set
                own[slot] = object.__getattribute__(value, slot)
        if issubclass(kind, nn.Module):
            if any(own[hooks] for hooks in own if hooks in objects.MODULE_ATTRIBUTES and "hooks" in hooks):
                return Untouchable(name)
            inner = own["_modules"], own["_parameters"], own["_buffers"]
            own = {key: one for key, one in own.items() if key not in objects.MODULE_ATTRIBUTES}
            own.update((key, one) for named in inner for key, one in named.items())
        instance: Any = object.__new__(self._copy(kind))
        object.__setattr__(instance, "__waiting__", (own, self))
        return instance

    # ---- functions

    def runnable(self, function: types.FunctionType) -> types.FunctionType:
        """Return a function with the same code, and stand-ins for its globals, builtins, closure and defaults.

        Raises:
            Refused: the code must not run.
        """
        code, name, real_globals = function.__code__, function.__name__, function.__globals__
        reason = reason_not_to_run(code)
        if reason:
            raise Refused(reason)
        looked_up = names(code)
        globals_ = {one: self.stand_in(real_globals[one], one) for one in looked_up & real_globals.keys()}
        own = looked_up & vars(builtins).keys()
        globals_["__builtins__"] = {one: _BUILTINS[one] if one in _BUILTINS else Untouchable(one) for one in own}
        cells = tuple(map(self._cell, function.__closure__ or (), code.co_freevars))
        defaults = function.__defaults__ and tuple(self.stand_in(one, name) for one in function.__defaults__)
        made = types.FunctionType(code, self._watch("a global variable", globals_), name, defaults, cells)
        named = function.__kwdefaults__
        made.__kwdefaults__ = named and {key: self.stand_in(value, key) for key, value in named.items()}
        return made

    def _cell(self, cell: types.CellType, name: str) -> types.CellType:
        """Return a cell with the stand-in of a closure variable."""
        try:
            value = cell.cell_contents
        except ValueError:  # still empty
            return types.CellType()
        return self._watch(name, types.CellType(self.stand_in(value, name)))

    # ---- classes

    def _class(self, kind: type, name: str) -> Any:
        if self._known(kind):
            is_from_torch = objects.top_package(kind) in ("torch", "torchvision")
            return standins.Constructor(name, kind, self) if is_from_torch else Untouchable(name)
        if _is_safe(kind) or objects.is_namedtuple(kind) or objects.is_plain_enum(kind):
            return kind
        return self._copy(kind) if objects.is_copyable(kind) else Untouchable(name)

    def _copy(self, kind: type) -> type:
        if kind not in self._classes:
            bases = dict.fromkeys(self._copy(base) for base in kind.__bases__ if base not in objects.WITHOUT_CODE)
            own = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            made = standins.CopiedClass(kind.__name__, tuple(bases) or (standins.Instance,), own)
            self._classes[kind] = made  # stored before its attributes, which may refer to it
            for name, value in vars(kind).items():
                if name not in _NOT_COPIED and type(value) is not _SLOT:
                    type.__setattr__(made, name, self._class_attribute(value, f"{kind.__name__}.{name}"))
        return self._classes[kind]

    def _class_attribute(self, value, name: str) -> Any:
        if type(value) is types.FunctionType:  # including methods of torchvision's classes
            return standins.Function(name, value, self)
        if type(value) is property and type(value.fget) is types.FunctionType:
            return property(standins.Function(name, value.fget, self))
        if type(value) in (staticmethod, classmethod) and type(value.__func__) is types.FunctionType:
            return standins.Function(name, value.__func__, self, binds=type(value))
        return self.stand_in(value, name)


def _is_safe(value) -> bool:
    return any(value is one for one in _BUILTINS.values())


def _contents(container) -> tuple:
    if isinstance(container, dict):
        return (*container.keys(), *container.values())
    if isinstance(container, types.CellType):
        try:
            return (container.cell_contents,)
        except ValueError:
            return ()
    return tuple(container)


def _same(one: tuple, other: tuple) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


# ---- a callable is called on a placeholder twice, and its results are compared

_FUNCTIONS = FunctionType, BuiltinFunctionType


class NotUnderstood(Exception):
    """A callable was not understood. The text is the reason, or empty if it applies no known transform."""


class AppliedTransforms(NamedTuple):
    """The transforms that a callable applies, and the structure that it returns."""

    structure: Any  # of the result: lists, tuples and dicts of indices into ``paths``; 0 for a single image
    paths: tuple[tuple[int, ...], ...]  # for each returned image, the numbers of the applications that produce it
    transforms: tuple[Any, ...]  # the applied transforms, in the order of the applications

    @property
    def chain(self) -> tuple[Any, ...] | None:
        """The transforms of a single returned image; None if several are returned."""
        return tuple(self.transforms[at] for at in self.paths[0]) if self.structure == 0 else None


def find_transforms(function, known: Callable[[type], bool]) -> AppliedTransforms:
    """Find the transforms that a callable applies.

    Args:
        function: the callable.
        known: returns True for the class of a known transform.

    Raises:
        NotUnderstood: the callable does something else too, or may do so.
    """
    seen, again = _attempt(function, known), _attempt(function, known)
    if not _alike(seen, again):
        raise NotUnderstood("it does not do the same in two calls")
    if not any(seen.paths):
        raise NotUnderstood("")
    return seen


def _attempt(function, known: Callable[[type], bool]) -> AppliedTransforms:
    sandbox = Sandbox(known)
    paths: list[tuple[int, ...]] = []
    try:
        name = function.__name__ if type(function) in _FUNCTIONS else type(function).__name__
        asked = sandbox.stand_in(function, name)
        if type(asked) is Untouchable:  # no code that could run
            raise Refused("")
        structure = _structure(asked(Placeholder(sandbox)), paths)
        changed = sandbox.changed
    except Refused as refused:
        raise NotUnderstood(str(refused)) from None
    except Exception as error:
        raise NotUnderstood(f"it raises {type(error).__name__} for a placeholder image") from None
    else:
        if changed:
            raise NotUnderstood(f"it changes {changed}")
        return AppliedTransforms(structure, tuple(paths), tuple(transform for transform, _ in sandbox.applications))
    finally:
        sandbox.end()


def _structure(result, paths: list[tuple[int, ...]]) -> Any:
    """Return the result with images replaced by indices into ``paths``."""
    kind = type(result)
    if kind is Placeholder:
        paths.append(kept(result, "_path"))
        return len(paths) - 1
    if kind in (list, tuple):
        return kind([_structure(one, paths) for one in result])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(_structure(one, paths) for one in result))
    if kind is dict and all(type(key) in (str, int) for key in result):
        return {key: _structure(one, paths) for key, one in result.items()}
    raise Refused(f"it returns an object that is not an image: {kind.__name__.lower()}")


def _alike(one: AppliedTransforms, other: AppliedTransforms) -> bool:
    same = one.structure == other.structure and one.paths == other.paths
    pairs = zip(one.transforms, other.transforms, strict=False)
    return same and all(a is b or (type(a) is type(b) and repr_of(a) == repr_of(b)) for a, b in pairs)
