"""The stand-in that refuses everything, and the base of those that allow one use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# All special methods: Python looks them up in the class, past __getattribute__
_OPERATIONS = """
abs add aenter aexit aiter and anext await bool bytes call ceil complex contains copy deepcopy delattr delete delitem
dir divmod enter eq exit float floor floordiv format fspath ge getitem gt hash iadd iand ifloordiv ilshift imatmul
imod imul index instancecheck int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt matmul
missing mod mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod
rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem str sub subclasscheck truediv trunc xor
"""


class Refused(BaseException):
    """The attempt is over; the text says why: "it uses time.time() itself". No Exception, for the user's code may catch
    these."""


class Untouchable:
    """Ends the attempt, whatever is done with it. ``label`` names it in the reason."""

    __slots__ = ("_label",)

    def __init__(self, label: str):
        keep(self, _label=label)

    def __getattribute__(self, name: str):
        raise Refused(reason(self, name))


def keep(stand_in: Untouchable, **attributes: Any) -> None:
    """Sets attributes of an Untouchable, which refuses that."""
    for name, value in attributes.items():
        object.__setattr__(stand_in, name, value)


def kept(stand_in: Untouchable, name: str) -> Any:
    """Gets an attribute of an Untouchable, which refuses that."""
    return object.__getattribute__(stand_in, name)


def reason(touched: Untouchable, name: str = "") -> str:
    """Why it is refused to use an Untouchable, or its attribute ``name``."""
    label = kept(touched, "_label")
    if name == "__class__":
        return f"it asks what {label} is"
    if name:
        return f"it uses {label}'s {name}" if label == "the image" else f"it uses {label}.{name} itself"
    return f"it uses {label} itself"


def _refusing(operation: str) -> Callable:
    def refuse(self, *args, **kwargs):
        if operation in ("instancecheck", "subclasscheck"):
            raise Refused(f"it asks whether something is a {kept(self, '_label')}")
        raise Refused(reason(self).replace(" itself", "() itself") if operation == "call" else reason(self))

    return refuse


for _operation in _OPERATIONS.split():
    setattr(Untouchable, f"__{_operation}__", _refusing(_operation))
