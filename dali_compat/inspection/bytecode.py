"""Finds what a function's code may do, without running it."""

from __future__ import annotations

import dis
import functools
import types
from itertools import pairwise

# instructions of try and with, under their names in Python 3.10 to 3.14
_HANDLERS = {"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "PUSH_EXC_INFO", "BEFORE_WITH", "LOAD_SPECIAL"}
# attributes that lead from a stand-in to what is real
_WAYS_OUT = {"__subclasses__", "__base__", "__bases__", "__mro__", "__class__", "__self__", "__globals__"}
_WAYS_OUT |= {"__builtins__", "__code__", "__closure__", "__reduce__", "__reduce_ex__"}
_WAYS_OUT |= {"gi_frame", "tb_frame", "f_locals", "f_globals"}


def names(code: types.CodeType) -> set[str]:
    """Every name that a function may look up, and those that functions within it may."""
    return set(code.co_names).union(*map(names, _within(code)))


@functools.lru_cache(1024)
def reason_not_to_run(code: types.CodeType) -> str | None:
    """Why a function is not run even on stand-ins; None where it may be.

    It may not come to an end (a while loop), it could catch Refused (try, with), or it could tell a stand-in from what
    is real without using it (``is``).
    """
    instructions = list(dis.get_instructions(code))
    for_loops = {one.offset for one in instructions if one.opname == "FOR_ITER"}
    for before, one in pairwise([instructions[0], *instructions]):
        if one.opname in _HANDLERS:
            return "it handles exceptions, or has a with statement"
        if one.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"it changes the attribute {one.argval}"
        if one.opname in ("GET_AWAITABLE", "GET_YIELD_FROM_ITER"):
            return "it waits for another function"
        if one.opname == "IS_OP" and not ("CONST" in before.opname and before.argval in (None, True, False)):
            return "it compares with 'is'"
        jumps_back = "JUMP" in one.opname and one.argval <= one.offset
        if jumps_back and one.argval not in for_loops:
            return "it has a while loop"
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    if (names(code) | texts) & _WAYS_OUT:
        return "it looks into classes"
    return next(filter(None, map(reason_not_to_run, _within(code))), None)


def _within(code: types.CodeType) -> list[types.CodeType]:
    """The functions, lambdas and comprehensions that are written within a function."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
