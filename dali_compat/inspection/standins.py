"""Stand-ins, and what each allows the user's code to do; the rest is refused.

Those that are Untouchable allow one use: a Placeholder to be given on and converted, a Recorder, Maker and Function to
be called, a Module to have its attributes looked up. An Instance runs the user's own methods.
"""

from __future__ import annotations

import types
from typing import Any

from torch import nn

from .objects import OF_MODULES, is_plain
from .untouchable import Refused, Untouchable, keep, kept, reason

_OF_ALL = {"__dict__", *vars(object)} - {"__class__", "__doc__"}


class Convert:
    """A transform: what PIL's ``image.convert(mode)`` does."""

    def __init__(self, mode: str):
        self.mode = mode

    def __call__(self, image):
        return image.convert(self.mode)

    def __repr__(self):
        return f"convert({self.mode!r})"


class Cast:
    """A transform: what a tensor's method of this name does, which takes nothing."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, image):
        return getattr(image, self.name)()

    def __repr__(self):
        return f"{self.name}()"


CASTS = {name: Cast(name) for name in ("half", "bfloat16", "float", "double")}
CONVERTS = {mode: Convert(mode) for mode in ("RGB", "L")}  # one each: plans are compared by what they call


class Placeholder(Untouchable):
    """Stands for an image. ``path``: the numbers of the applications that it has gone through. It may be converted, as
    PIL's images are, and cast, as tensors are: ``sandbox`` notes that as an application."""

    __slots__ = ("_path", "_sandbox")

    def __init__(self, sandbox: Any, path: tuple[int, ...] = ()):
        keep(self, _label="the image", _sandbox=sandbox, _path=path)

    def __getattribute__(self, name: str):
        if name == "convert":
            return Converter(self)
        if name in CASTS:
            return Caster(self, name)
        raise Refused(reason(self, name))


class Converter(Untouchable):
    """Stands for the ``convert`` of an image."""

    __slots__ = ("_image",)

    def __init__(self, image: Placeholder):
        keep(self, _label="the image's convert", _image=image)

    def __call__(self, *args, **kwargs):
        given = (*args, *(kwargs[name] for name in kwargs if name == "mode"))
        if len(given) != 1 or len(args) + len(kwargs) != 1 or type(given[0]) is not str or given[0] not in CONVERTS:
            raise Refused(f"it uses the image's convert, for other modes than {' and '.join(CONVERTS)}")
        image = kept(self, "_image")
        return kept(image, "_sandbox").applied(CONVERTS[given[0]], image)


class Caster(Untouchable):
    """Stands for the ``half`` of an image, and the like."""

    __slots__ = ("_image", "_name")

    def __init__(self, image: Placeholder, name: str):
        keep(self, _label=f"the image's {name}", _image=image, _name=name)

    def __call__(self, *args, **kwargs):
        if args or kwargs:
            raise Refused(f"it gives {kept(self, '_label')} arguments")
        image = kept(self, "_image")
        return kept(image, "_sandbox").applied(CASTS[kept(self, "_name")], image)


class StandIn(Untouchable):
    """Stands for something real. ``sandbox`` (sandbox.py) makes stand-ins of what belongs to it."""

    __slots__ = ("_real", "_sandbox")

    def __init__(self, label: str, real: Any, sandbox: Any):
        keep(self, _label=label, _real=real, _sandbox=sandbox)


class Recorder(StandIn):
    """Stands for a known transform: to apply it is to note it."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        if len(args) != 1 or kwargs or type(args[0]) is not Placeholder:
            raise Refused(f"it gives {kept(self, '_label')} something else than one image")
        return kept(self, "_sandbox").applied(kept(self, "_real"), args[0])

    def __getattribute__(self, name: str):
        own = vars(kept(self, "_real"))
        if name not in own or name in OF_MODULES:
            raise Refused(reason(self, name))
        return kept(self, "_sandbox").stand_in(own[name], f"{kept(self, '_label')}.{name}")


class Maker(StandIn):
    """Stands for a class of known transforms: makes a transform, and gives its Recorder."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        real = kept(self, "_real")
        made = real(*map(_argument, args), **{name: _argument(value) for name, value in kwargs.items()})
        return kept(self, "_sandbox").stand_in(made, real.__name__)


def _argument(value: Any) -> Any:
    """An argument of a known transform's constructor, in which Recorders stand for transforms."""
    if type(value) is Recorder:
        return kept(value, "_real")
    if type(value) in (list, tuple):
        return type(value)(map(_argument, value))
    if is_plain(value):
        return value
    raise Refused("it makes a transform of what is not understood")


class Module(StandIn):
    """Stands for a module of Python's."""

    __slots__ = ()

    def __getattribute__(self, name: str):
        real = kept(self, "_real")
        if name not in vars(real):
            raise Refused(reason(self, name))
        return kept(self, "_sandbox").stand_in(vars(real)[name], f"{real.__name__}.{name}")


class Function(StandIn):
    """Stands for a function: runs its code, in which every name is stood in for. ``binds``: staticmethod or classmethod
    where it is one, else None."""

    __slots__ = ("_binds", "_runnable")

    def __init__(self, label: str, real: types.FunctionType, sandbox: Any, binds: type | None = None):
        keep(self, _label=label, _real=real, _sandbox=sandbox, _runnable=None, _binds=binds)

    def __call__(self, *args, **kwargs):
        if kept(self, "_runnable") is None:
            keep(self, _runnable=kept(self, "_sandbox").runnable(kept(self, "_real")))
        return kept(self, "_runnable")(*args, **kwargs)

    def __get__(self, instance, owner=None):
        binds = kept(self, "_binds")
        to = owner if binds is classmethod and owner is not None else instance
        return self if to is None or binds is staticmethod else types.MethodType(self, to)

    def __getattribute__(self, name: str):
        real = kept(self, "_real")
        if name in vars(real):
            return kept(self, "_sandbox").stand_in(vars(real)[name], f"{real.__name__}.{name}")
        if name in ("__name__", "__qualname__", "__doc__"):
            return getattr(real, name)
        raise Refused(reason(self, name))


class CopiedClass(type):
    """The class of copies of the user's classes: they make no new objects, and do not change."""

    def __call__(cls, *args, **kwargs):
        raise Refused(f"it makes a {cls.__name__} itself")

    def __setattr__(cls, name: str, value: Any):
        raise Refused(f"it changes {cls.__name__}.{name}")

    __delattr__ = __setattr__  # type: ignore[assignment]  # it refuses, too


class Instance(metaclass=CopiedClass):
    """The base of these copies. Its object has the user's attributes, each stood in for when it is first asked for.

    ``__waiting__`` is (attributes that nobody has asked for yet, the sandbox).
    """

    __slots__ = ("__dict__", "__waiting__")

    def __getattribute__(self, name: str):
        waiting, sandbox = object.__getattribute__(self, "__waiting__")
        own = object.__getattribute__(self, "__dict__")
        if name in waiting:
            own[name] = sandbox.stand_in(waiting.pop(name), f"self.{name}")
        found = object.__getattribute__(self, name)
        if name not in own and name in _OF_ALL:
            raise Refused(f"it uses {name} of {type(self).__name__}")
        return found

    def __repr__(self):
        raise Refused(f"it uses the text of {type(self).__name__}")

    def __setattr__(self, name: str, value: Any = None):
        raise Refused(f"it changes self.{name}")

    __delattr__ = __setattr__


class NeuralModule(Instance):
    """The copy of nn.Module: to call it is to call its forward()."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str):
        if hasattr(nn.Module, name) or name in OF_MODULES:
            raise Refused(f"it uses nn.Module.{name} itself")
        raise AttributeError(name)
