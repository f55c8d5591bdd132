"""Stand-ins for objects that the user's code refers to. Each allows some uses and refuses all others.

An Untouchable refuses everything. Its subclasses allow one use. A Placeholder may be passed on and converted. A
Recorder, Constructor and Function may be called. The attributes of a Module may be looked up. An Instance runs the
user's methods.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from PIL import ImageOps
from torch import nn

from .objects import MODULE_ATTRIBUTES, is_plain

_OBJECT_ATTRIBUTES = {"__dict__", *vars(object)} - {"__class__", "__doc__"}
# all special methods, since Python looks them up in the class without __getattribute__
_OPERATIONS = """
abs add aenter aexit aiter and anext await bool bytes call ceil complex contains copy deepcopy delattr delete delitem
dir divmod enter eq exit float floor floordiv format fspath ge getitem gt hash iadd iand ifloordiv ilshift imatmul
imod imul index instancecheck int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt matmul
missing mod mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod
rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem str sub subclasscheck truediv trunc xor
"""


class Refused(BaseException):
    """The end of an attempt. The text is the reason, such as "it uses time.time() itself".

    It is not an Exception, since the user's code may catch these.
    """


class Untouchable:
    """An object that ends the attempt on any use. ``label`` is its name in the reason."""

    __slots__ = ("_label",)

    def __init__(self, label: str):
        keep(self, _label=label)

    def __getattribute__(self, name: str):
        raise Refused(reason(self, name))


def keep(stand_in: Untouchable, **attributes) -> None:
    """Set attributes of an Untouchable, bypassing its refusal."""
    for name, value in attributes.items():
        object.__setattr__(stand_in, name, value)


def kept(stand_in: Untouchable, name: str) -> Any:
    """Return an attribute of an Untouchable, bypassing its refusal."""
    return object.__getattribute__(stand_in, name)


def reason(touched: Untouchable, name: str = "") -> str:
    """Return why using an Untouchable, or its attribute ``name``, is refused."""
    label = kept(touched, "_label")
    if name == "__class__":
        return f"it reads {label}'s class"
    if name:
        return f"it uses {label}'s {name}" if label == "the image" else f"it uses {label}.{name} itself"
    return f"it uses {label} itself"


def _refusing(operation: str) -> Callable:
    def refuse(self, *args, **kwargs):
        if operation in ("instancecheck", "subclasscheck"):
            raise Refused(f"it uses isinstance() or issubclass() with {kept(self, '_label')}")
        raise Refused(reason(self).replace(" itself", "() itself") if operation == "call" else reason(self))

    return refuse


for _operation in _OPERATIONS.split():
    setattr(Untouchable, f"__{_operation}__", _refusing(_operation))


class Convert:
    """A transform that calls ``image.convert(mode)``."""

    def __init__(self, mode: str):
        self.mode = mode

    def __call__(self, image):
        return image.convert(self.mode)

    def __repr__(self):
        return f"convert({self.mode!r})"


class Cast:
    """A transform that calls a tensor's method of this name without arguments."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, image):
        return getattr(image, self.name)()

    def __repr__(self):
        return f"{self.name}()"


class ExifTranspose:
    """A transform that calls PIL.ImageOps.exif_transpose()."""

    def __call__(self, image):
        return ImageOps.exif_transpose(image)

    def __repr__(self):
        return "exif_transpose()"


EXIF_TRANSPOSE = ExifTranspose()

# by an image's method and its arguments; singletons, since plans compare transforms by identity
METHODS: dict[tuple[str, ...], Any] = {("convert", mode): Convert(mode) for mode in ("RGB", "L")}
METHODS |= {(name,): Cast(name) for name in ("half", "bfloat16", "float", "double")}


class Placeholder(Untouchable):
    """Stand-in for an image. It may be converted like a PIL image and cast like a tensor.

    Args:
        sandbox: records each conversion and cast as an application.
        path: numbers of the applications that gave this image.
    """

    __slots__ = ("_path", "_sandbox")

    def __init__(self, sandbox, path: tuple[int, ...] = ()):
        keep(self, _label="the image", _sandbox=sandbox, _path=path)

    def __getattribute__(self, name: str):
        if any(name == own for own, *_ in METHODS):
            return Method(self, name)
        raise Refused(reason(self, name))


class Method(Untouchable):
    """Stand-in for a method of an image."""

    __slots__ = ("_image", "_name")

    def __init__(self, image: Placeholder, name: str):
        keep(self, _label=f"the image's {name}", _image=image, _name=name)

    def __call__(self, *args, **kwargs):
        name, image = kept(self, "_name"), kept(self, "_image")
        given = (name, *args, *(kwargs[key] for key in kwargs if key == "mode"))
        if len(given) != 1 + len(args) + len(kwargs) or not all(map(is_plain, given)) or given not in METHODS:
            raise Refused(f"it uses {kept(self, '_label')} with unsupported arguments")
        return kept(image, "_sandbox").applied(METHODS[given], image)


class StandIn(Untouchable):
    """Stand-in for a real object. ``sandbox`` (sandbox.py) makes stand-ins of its attributes."""

    __slots__ = ("_real", "_sandbox")

    def __init__(self, label: str, real, sandbox):
        keep(self, _label=label, _real=real, _sandbox=sandbox)


class Recorder(StandIn):
    """Stand-in for a known transform, which records its applications."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        if len(args) != 1 or kwargs or type(args[0]) is not Placeholder:
            raise Refused(f"it passes {kept(self, '_label')} something other than one image")
        return kept(self, "_sandbox").applied(kept(self, "_real"), args[0])

    def __getattribute__(self, name: str):
        own = vars(kept(self, "_real"))
        if name not in own or name in MODULE_ATTRIBUTES:
            raise Refused(reason(self, name))
        return kept(self, "_sandbox").stand_in(own[name], f"{kept(self, '_label')}.{name}")


class Constructor(StandIn):
    """Stand-in for a class of known transforms. A call constructs a transform and returns its Recorder."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        real = kept(self, "_real")
        made = real(*map(_argument, args), **{name: _argument(value) for name, value in kwargs.items()})
        return kept(self, "_sandbox").stand_in(made, real.__name__)


def _argument(value) -> Any:
    """Return an argument of a known transform's constructor, with transforms in place of Recorders."""
    if type(value) is Recorder:
        return kept(value, "_real")
    if type(value) in (list, tuple):
        return type(value)(map(_argument, value))
    if is_plain(value):
        return value
    raise Refused("it constructs a transform with an unknown argument")


class Module(StandIn):
    """Stand-in for a Python module."""

    __slots__ = ()

    def __getattribute__(self, name: str):
        real = kept(self, "_real")
        if name not in vars(real):
            raise Refused(reason(self, name))
        return kept(self, "_sandbox").stand_in(vars(real)[name], f"{real.__name__}.{name}")


class Function(StandIn):
    """Stand-in for a function. A call runs its code with stand-ins for all names.

    Args:
        label: name for messages.
        real: the function.
        sandbox: makes the stand-ins.
        binds: staticmethod or classmethod if it is one, else None.
    """

    __slots__ = ("_binds", "_runnable")

    def __init__(self, label: str, real: types.FunctionType, sandbox, binds: type | None = None):
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
    """Metaclass of copies of the user's classes, which construct no objects and cannot be changed."""

    def __call__(cls, *args, **kwargs):
        raise Refused(f"it constructs a {cls.__name__} object")

    def __setattr__(cls, name: str, value):
        raise Refused(f"it changes {cls.__name__}.{name}")

    __delattr__ = __setattr__  # type: ignore[assignment]  # it refuses as well


class Instance(metaclass=CopiedClass):
    """Base of these copies. Its object makes stand-ins of the user's attributes when they are first read.

    ``__waiting__`` is (attributes that were not read yet, the sandbox).
    """

    __slots__ = ("__dict__", "__waiting__")

    def __getattribute__(self, name: str):
        waiting, sandbox = object.__getattribute__(self, "__waiting__")
        own = object.__getattribute__(self, "__dict__")
        if name in waiting:
            own[name] = sandbox.stand_in(waiting.pop(name), f"self.{name}")
        found = object.__getattribute__(self, name)
        if name not in own and name in _OBJECT_ATTRIBUTES:
            raise Refused(f"it uses {name} of {type(self).__name__}")
        return found

    def __repr__(self):
        raise Refused(f"it uses the repr of {type(self).__name__}")

    def __setattr__(self, name: str, value=None):
        raise Refused(f"it changes self.{name}")

    __delattr__ = __setattr__


class NeuralModule(Instance):
    """The copy of nn.Module, which calls forward()."""

    __slots__ = ()

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str):
        if hasattr(nn.Module, name) or name in MODULE_ATTRIBUTES:
            raise Refused(f"it uses nn.Module.{name} itself")
        raise AttributeError(name)
