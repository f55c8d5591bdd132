"""Which stand-in for which object of the user's.

    a number, text, dtype, or enum of these     itself
    a known transform, ImageOps.exif_transpose  Recorder: notes that it is applied
    a class of known transforms                 Maker: makes one, and its Recorder
    a list, tuple, set or dict                  a copy; the attempt is void if the copy has changed at the end
    a function                                  Function: runs its code, with stand-ins for all that it looks up
    a method, functools.partial, namedtuple     the same, of stand-ins
    a module                                    Module: its attributes are stood in for
    a class of the user's                       a copy, whose methods are Functions
    an object of one                            an object of the copy, whose attributes are stood in for
    a safe builtin, such as len                 itself
    whatever else                               Untouchable: to use it ends the attempt

So generators, clocks, files, tensors, other packages' functions and most builtins are Untouchable.
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

_SLOT = types.MemberDescriptorType  # of a class with __slots__
_MOST = 1000  # elements of a container, and applications of an attempt
_SAFE = """
abs all any bool dict divmod enumerate filter float frozenset getattr hasattr int isinstance issubclass len list map
max min pow range reversed round set slice sorted str sum super tuple zip AssertionError AttributeError
Exception IndexError KeyError NotImplementedError RuntimeError TypeError ValueError
"""
_BUILTINS = {name: getattr(builtins, name) for name in _SAFE.split()}
# what a copy of a class has of its own, or does not need
_NOT_COPIED = {"__dict__", "__weakref__", "__slots__", "__init__", "__new__", "__del__", "__init_subclass__"}
_NOT_COPIED |= {"__class_getitem__", "__setattr__", "__delattr__", "__set_name__", "__module__", "__classcell__"}
_NOT_COPIED |= {"__static_attributes__", "__firstlineno__", "__qualname__", "__abstractmethods__", "_abc_impl"}


class Sandbox:
    """The stand-ins of one attempt, and what was noted.

    Args:
        known: whether a class is one of known transforms.

    Attributes:
        applications: (transform, path of the placeholder before it), in their order. A path has their numbers.
    """

    def __init__(self, known: Callable[[type], bool]):
        self._known = known
        self.applications: list[tuple[Any, tuple[int, ...]]] = []
        self._made: dict[int, tuple[Any, Any]] = {}  # by id(): (the object, kept alive, and its stand-in)
        self._classes: dict[type, type] = {nn.Module: standins.NeuralModule}  # copies
        self._watched: list[tuple[str, Any, Any]] = []  # name, container, and what is in it

    # ---- what is noted

    def applied(self, transform, image: Placeholder) -> Placeholder:
        """Notes that a known transform is applied; gives the image after it."""
        if len(self.applications) == _MOST:
            raise Refused(f"it applies more than {_MOST} transforms")
        path = kept(image, "_path")
        self.applications.append((transform, path))
        return Placeholder(self, (*path, len(self.applications) - 1))

    @property
    def changed(self) -> str | None:
        """The name of a container that the attempt has changed; None where there is none."""
        return next((name for name, copy, before in self._watched if not _same(_contents(copy), before)), None)

    def _watch(self, name: str, copy) -> Any:
        self._watched.append((name, copy, _contents(copy)))
        return copy

    def end(self) -> None:
        """Lets go of what is the user's; stand-ins refer to each other in circles."""
        self._made, self._watched, self.applications = {}, [], []

    # ---- objects

    def stand_in(self, value, name: str) -> Any:
        """Returns the stand-in of an object: one for each, however often it comes. ``name`` is for a reason."""
        if objects.is_plain(value):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = value, Untouchable(name)  # meanwhile: it may refer to itself
            self._made[id(value)] = value, self._new(value, name)
        return self._made[id(value)][1]

    def _new(self, value, name: str) -> Any:
        kind = type(value)
        if self._known(kind):
            return standins.Recorder(kind.__name__, value, self)
        if value is ImageOps.exif_transpose:
            return standins.Recorder("exif_transpose", standins.TURN, self)
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
        if is_set and list(made) != values:  # a copy's order may be another
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
            with contextlib.suppress(AttributeError):  # it has no value
                own[slot] = object.__getattribute__(value, slot)
        if issubclass(kind, nn.Module):
            if any(own[hooks] for hooks in own if hooks in objects.OF_MODULES and "hooks" in hooks):
                return Untouchable(name)
            inner = own["_modules"], own["_parameters"], own["_buffers"]
            own = {key: one for key, one in own.items() if key not in objects.OF_MODULES}
            own.update((key, one) for named in inner for key, one in named.items())
        instance: Any = object.__new__(self._copy(kind))
        object.__setattr__(instance, "__waiting__", (own, self))
        return instance

    # ---- functions

    def runnable(self, function: types.FunctionType) -> types.FunctionType:
        """A function of the same code, with stand-ins for the globals, builtins, closures and defaults that it has.

        Raises:
            Refused: its code is not to be run.
        """
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
        """Returns a cell with the stand-in of a variable of the enclosing function."""
        try:
            value = cell.cell_contents
        except ValueError:  # nothing is there yet
            return types.CellType()
        return self._watch(name, types.CellType(self.stand_in(value, name)))

    # ---- classes

    def _class(self, kind: type, name: str) -> Any:
        if self._known(kind):
            is_theirs = objects.root(kind) in ("torch", "torchvision")
            return standins.Maker(name, kind, self) if is_theirs else Untouchable(name)
        if _is_safe(kind) or objects.is_namedtuple(kind) or objects.is_plain_enum(kind):
            return kind
        return self._copy(kind) if objects.is_copyable(kind) else Untouchable(name)

    def _copy(self, kind: type) -> type:
        if kind not in self._classes:
            bases = dict.fromkeys(self._copy(base) for base in kind.__bases__ if base not in objects.WITHOUT_CODE)
            own = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            made = standins.CopiedClass(kind.__name__, tuple(bases) or (standins.Instance,), own)
            self._classes[kind] = made  # before its attributes: they may refer to it
            for name, value in vars(kind).items():
                if name not in _NOT_COPIED and type(value) is not _SLOT:
                    type.__setattr__(made, name, self._class_attribute(value, f"{kind.__name__}.{name}"))
        return self._classes[kind]

    def _class_attribute(self, value, name: str) -> Any:
        if type(value) is types.FunctionType:  # those of torchvision's classes, too
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


# ---- a callable is called on a placeholder, twice, and what comes back says what it does

_FUNCTIONS = FunctionType, BuiltinFunctionType


class Unseen(Exception):
    """It is not certain what a callable does. The text says why; it is empty where no known transform is applied."""


class Seen(NamedTuple):
    """The transforms that a callable applies, and the structure that it returns.

    Attributes:
        structure: of its result: lists, tuples and dicts of numbers of paths; 0 where it gives one image.
        paths: of each image that it gives the applications that make it, by their numbers.
        transforms: that are applied, in the order of the applications.
    """

    structure: Any
    paths: tuple[tuple[int, ...], ...]
    transforms: tuple[Any, ...]

    @property
    def chain(self) -> tuple[Any, ...] | None:
        """The transforms of the one image that it gives; None where it gives several."""
        return tuple(self.transforms[at] for at in self.paths[0]) if self.structure == 0 else None


def look_through(function, known: Callable[[type], bool]) -> Seen:
    """Finds what a callable does. ``known``: whether a class is one of known transforms.

    Raises:
        Unseen: it does something else, too, or may.
    """
    seen, again = _attempt(function, known), _attempt(function, known)
    if not _alike(seen, again):
        raise Unseen("it does not do the same twice")
    if not any(seen.paths):
        raise Unseen("")
    return seen


def _attempt(function, known: Callable[[type], bool]) -> Seen:
    sandbox = Sandbox(known)
    paths: list[tuple[int, ...]] = []
    try:
        name = function.__name__ if type(function) in _FUNCTIONS else type(function).__name__
        asked = sandbox.stand_in(function, name)
        if type(asked) is Untouchable:  # it has no code that can be run
            raise Refused("")
        structure = _structure(asked(Placeholder(sandbox)), paths)
        changed = sandbox.changed
    except Refused as refused:
        raise Unseen(str(refused)) from None
    except Exception as error:
        raise Unseen(f"it raises {type(error).__name__} where it is asked what it does") from None
    else:
        if changed:
            raise Unseen(f"it changes {changed}")
        return Seen(structure, tuple(paths), tuple(transform for transform, _ in sandbox.applications))
    finally:
        sandbox.end()


def _structure(result, paths: list[tuple[int, ...]]) -> Any:
    """The result with numbers of paths in it."""
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
    raise Refused(f"it gives something that is no image: {kind.__name__.lower()}")


def _alike(one: Seen, other: Seen) -> bool:
    same = one.structure == other.structure and one.paths == other.paths
    pairs = zip(one.transforms, other.transforms, strict=False)
    return same and all(a is b or (type(a) is type(b) and repr_of(a) == repr_of(b)) for a, b in pairs)
