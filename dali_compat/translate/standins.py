"""A helper: what stands for the user's objects while a callable is asked what it does (sandbox.py)."""

from __future__ import annotations

import types
from typing import Any, Protocol

from torch import nn

from .understood import OF_MODULES, is_plain
from .untouchable import Refused, Untouchable, about, give, of

_OF_ALL = {"__dict__", *vars(object)} - {"__class__", "__doc__"}


class World(Protocol):
    """Where they are: makes them, and notes what is applied."""

    def stand_in(self, value: Any, name: str) -> Any:
        """What stands for a value; ``name`` is for a reason."""
        ...

    def built(self, function: types.FunctionType) -> types.FunctionType:
        """The function with its names stood in for."""
        ...

    def applied(self, transform: Any, placeholder: Placeholder) -> Placeholder:
        """The image after a known transform."""
        ...


class Convert:
    """What stands for ``image.convert(mode)`` of PIL: a transform."""

    def __init__(self, mode: str):
        self.mode = mode

    def __call__(self, image):
        return image.convert(self.mode)

    def __repr__(self):
        return f"convert({self.mode!r})"


_CONVERTS = {mode: Convert(mode) for mode in ("RGB", "L")}  # one each: plans are compared by what they call


class Placeholder(Untouchable):
    """Stands for an image. Keeps the numbers of the applications that it has gone through. It may be converted, as
    PIL's images are; nothing else of it is understood."""

    __slots__ = ("_made", "_sandbox")

    def __init__(self, sandbox: World, made: tuple[int, ...] = ()):
        give(self, _said="the image", _sandbox=sandbox, _made=made)

    def __getattribute__(self, name: str):
        if name != "convert":
            raise Refused(about(self, name))
        return Converter(self)


class Converter(Untouchable):
    """Stands for the ``convert`` of an image."""

    __slots__ = ("_image",)

    def __init__(self, image: Placeholder):
        give(self, _said="the image's convert", _image=image)

    def __call__(self, *args, **kwargs):
        given = (*args, *(kwargs[name] for name in kwargs if name == "mode"))
        if len(given) != 1 or len(args) + len(kwargs) != 1 or type(given[0]) is not str or given[0] not in _CONVERTS:
            raise Refused(f"it uses the image's convert, for other modes than {' and '.join(_CONVERTS)}")
        image = of(self, "_image")
        return of(image, "_sandbox").applied(_CONVERTS[given[0]], image)


class Standing(Untouchable):
    """Stands for something real, for one attempt."""

    __slots__ = ("_real", "_sandbox")

    def __init__(self, said: str, real: Any, sandbox: World):
        give(self, _said=said, _real=real, _sandbox=sandbox)


class Recorder(Standing):
    """Stands for a known transform: to apply it is to note it."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        if len(args) != 1 or kwargs or type(args[0]) is not Placeholder:
            raise Refused(f"it gives {of(self, '_said')} something else than one image")
        return of(self, "_sandbox").applied(of(self, "_real"), args[0])

    def __getattribute__(self, name: str):
        own = vars(of(self, "_real"))
        if name not in own or name in OF_MODULES:
            raise Refused(about(self, name))
        return of(self, "_sandbox").stand_in(own[name], f"{of(self, '_said')}.{name}")


class Maker(Standing):
    """Stands for a class of known transforms: makes one, and what stands for it."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        real = of(self, "_real")
        made = real(*map(_argument, args), **{name: _argument(value) for name, value in kwargs.items()})
        return of(self, "_sandbox").stand_in(made, real.__name__)


def _argument(value: Any) -> Any:
    """Of a known transform's constructor."""
    if type(value) is Recorder:
        return of(value, "_real")
    if type(value) in (list, tuple):
        return type(value)(map(_argument, value))
    if is_plain(value):
        return value
    raise Refused("it makes a transform of what is not understood")


class Module(Standing):
    """Stands for a module: its attributes are stood in for."""

    __slots__ = ()

    def __getattribute__(self, name: str):
        real = of(self, "_real")
        if name not in vars(real):
            raise Refused(about(self, name))
        return of(self, "_sandbox").stand_in(vars(real)[name], f"{real.__name__}.{name}")


class Function(Standing):
    """Stands for a function: runs its code where all names are stood in for. ``binds``: the kind of method that it is
    in a class (classmethod, staticmethod), or None."""

    __slots__ = ("_binds", "_built")

    def __init__(self, said: str, real: types.FunctionType, sandbox: World, binds: type | None = None):
        give(self, _said=said, _real=real, _sandbox=sandbox, _built=None, _binds=binds)

    def __call__(self, *args, **kwargs):
        if of(self, "_built") is None:
            give(self, _built=of(self, "_sandbox").built(of(self, "_real")))
        return of(self, "_built")(*args, **kwargs)

    def __get__(self, instance, owner=None):
        to = (instance if owner is None else owner) if of(self, "_binds") is classmethod else instance
        return self if to is None or of(self, "_binds") is staticmethod else types.MethodType(self, to)

    def __getattribute__(self, name: str):
        real = of(self, "_real")
        if name in vars(real):
            return of(self, "_sandbox").stand_in(vars(real)[name], f"{real.__name__}.{name}")
        if name in ("__name__", "__qualname__", "__doc__"):
            return getattr(real, name)
        raise Refused(about(self, name))


class Class(type):
    """The class of classes that stand for a user's."""

    def __call__(cls, *args, **kwargs):
        raise Refused(f"it makes a {cls.__name__} itself")

    def __setattr__(cls, name: str, value: Any):
        raise Refused(f"it changes {cls.__name__}.{name}")

    __delattr__ = __setattr__  # type: ignore[assignment]  # it refuses, too


class Instance(metaclass=Class):
    """The base of these classes. An attribute is stood in for when it is asked for."""

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
    """Stands for nn.Module."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str):
        if hasattr(nn.Module, name) or name in OF_MODULES:
            raise Refused(f"it uses nn.Module.{name} itself")
        raise AttributeError(name)
