"""Objects that end an attempt when anything is done with them, but for what they are made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERATIONS = """
abs add aenter aexit aiter and anext await bool bytes call ceil complex contains copy deepcopy delattr delete delitem
dir divmod enter eq exit float floor floordiv format fspath ge getitem gt hash iadd iand ifloordiv ilshift imatmul
imod imul index instancecheck int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt matmul
missing mod mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod
rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem str sub subclasscheck truediv trunc xor
"""


class Refused(BaseException):
    """An attempt is over; says why: "it uses time.time() itself". No Exception, for the user's code may catch these."""


class Untouchable:
    """Whatever is done with it, is refused. ``said`` names it."""

    __slots__ = ("_said",)

    def __init__(self, said: str):
        give(self, _said=said)

    def __getattribute__(self, name: str):
        raise Refused(about(self, name))


def of(one: Untouchable, name: str) -> Any:
    """What an Untouchable keeps."""
    return object.__getattribute__(one, name)


def give(one: Untouchable, **kept: Any) -> None:
    for name, value in kept.items():
        object.__setattr__(one, name, value)


def about(touched: Untouchable, name: str = "") -> str:
    """Why it is refused to touch it, or its attribute of a name."""
    said = of(touched, "_said")
    if name == "__class__":
        return f"it asks what {said} is"
    if name:
        return f"it uses {said}'s {name}" if said == "the image" else f"it uses {said}.{name} itself"
    return f"it uses {said} itself"


def _refusing(operation: str) -> Callable:
    def refuse(self, *args, **kwargs):
        if operation in ("instancecheck", "subclasscheck"):
            raise Refused(f"it asks whether something is a {of(self, '_said')}")
        raise Refused(about(self).replace(" itself", "() itself") if operation == "call" else about(self))

    return refuse


for _operation in _OPERATIONS.split():
    setattr(Untouchable, f"__{_operation}__", _refusing(_operation))
