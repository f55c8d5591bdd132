"""A helper: which transform of torchvision's does what a user's class does with Pillow.

Its method is read, not run. Only what is understood to the last name has an answer: one operation of Pillow's, with
numbers that stand in the code or in the object, on every image or by one draw. A wrong line is worse than none.
"""

from __future__ import annotations

import ast
import inspect
import math
import random
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from PIL import ImageFilter, ImageOps

from .wrappers.objects import OF_MODULES, attributes

# Pillow's operations, the name of their further argument and its default, and what does the same
_OPERATIONS: dict[Callable[..., Any], tuple[str, Any, str]] = {
    ImageOps.autocontrast: ("", None, "RandomAutocontrast(p={p})"),
    ImageOps.equalize: ("", None, "RandomEqualize(p={p})"),
    ImageOps.flip: ("", None, "RandomVerticalFlip(p={p})"),
    ImageOps.invert: ("", None, "RandomInvert(p={p})"),
    ImageOps.mirror: ("", None, "RandomHorizontalFlip(p={p})"),
    ImageOps.posterize: ("bits", None, "RandomPosterize(bits={value}, p={p})"),
    ImageOps.solarize: ("threshold", 128, "RandomSolarize(threshold={value}, p={p})"),
}
_FROM_ZERO_TO_ONE = random.random, np.random.rand, np.random.random, np.random.random_sample
_BETWEEN = random.uniform, np.random.uniform
_SIGMAS = 3  # beyond so many a kernel has nothing


class _Strange(Exception):
    """The code does something else."""


class _Image:
    """The image that the method is given, as it is."""


@dataclass
class _Drawn:
    """A number between two; who takes it twice does something else."""

    low: float
    high: float
    taken: bool = False

    def take(self) -> tuple[float, float]:
        if self.taken:
            raise _Strange
        self.taken = True
        return self.low, self.high


@dataclass(frozen=True)
class _Chance:
    """Whether something happens."""

    p: float


@dataclass(frozen=True)
class _Blur:
    """ImageFilter.GaussianBlur of a radius."""

    radius: Any


@dataclass(frozen=True)
class _Made:
    """The image after an operation: a line, but for its probability."""

    line: str


@dataclass(frozen=True)
class _Branch:
    """One of two, by chance."""

    p: float
    then: Any
    otherwise: Any


def instead(transform: Any) -> str:
    """What to write for it; "" where nobody knows. Nothing of it is run."""
    try:
        method = _method(transform)
        tree = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
        return _line(_Reader(transform, method, tree).result())
    except (_Strange, OSError, TypeError, SyntaxError, ValueError, IndexError, OverflowError, RecursionError):
        return ""


def _method(transform: Any) -> FunctionType:
    """What is called with an image."""
    found = _of_class(transform, "__call__")
    if found is vars(torch.nn.Module)["__call__"]:
        if any(value for name, value in attributes(transform).items() if name in OF_MODULES and name.endswith("hooks")):
            raise _Strange
        found = _of_class(transform, "forward")
    if type(found) is not FunctionType:
        raise _Strange
    return found


def _of_class(transform: Any, name: str) -> Any:
    return next((vars(base)[name] for base in type(transform).__mro__ if name in vars(base)), None)


def _line(result: Any) -> str:
    """Of what the method gives."""
    if isinstance(result, _Branch):
        sides = [result.then, result.otherwise]
        made = next((side for side in sides if isinstance(side, _Made)), None)
        if made is None or not any(isinstance(side, _Image) for side in sides):
            raise _Strange
        p = result.p if made is result.then else 1 - result.p
    else:
        made, p = result, 1.0
    if not isinstance(made, _Made) or not 0 <= p <= 1:
        raise _Strange
    p = 1 if p == 1 else round(p, 12)  # 1 - 0.9 is not 0.1
    if "{p}" in made.line:
        return "T." + made.line.format(p=p)
    return f"T.{made.line}" if p == 1 else f"T.RandomApply([T.{made.line}], p={p})"


class _Reader:
    """Follows a method's code, with values for what it names."""

    def __init__(self, transform: Any, method: FunctionType, tree: ast.stmt):
        self._transform, self._globals = transform, method.__globals__
        if not isinstance(tree, ast.FunctionDef) or tree.decorator_list or method.__closure__:
            raise _Strange
        given = tree.args
        if len(given.args) != 2 or given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg:
            raise _Strange
        self._self, image = (one.arg for one in given.args)
        self._begin: dict[str, Any] = {image: _Image()}
        self._body = tree.body

    def result(self) -> Any:
        """What the method gives."""
        return self._run(self._body, self._begin)

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        for number, one in enumerate(body):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):  # a docstring
                continue
            if isinstance(one, ast.Return) and one.value is not None:
                return self._value(one.value, names)
            if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
                names = names | {one.targets[0].id: self._value(one.value, names)}
            elif isinstance(one, ast.If):
                rest = body[number + 1 :]
                return self._either(one.test, names, [*one.body, *rest], [*one.orelse, *rest])
            else:
                raise _Strange
        raise _Strange

    def _either(self, test: ast.expr, names: dict[str, Any], then: list[ast.stmt], otherwise: list[ast.stmt]) -> Any:
        chance = self._value(test, names)
        if not isinstance(chance, _Chance):
            raise _Strange
        return _Branch(chance.p, self._run(then, names), self._run(otherwise, names))

    def _value(self, code: ast.expr, names: Mapping[str, Any]) -> Any:
        if isinstance(code, ast.Name) and code.id in names:
            return names[code.id]
        if isinstance(code, ast.Constant):
            return code.value
        if isinstance(code, ast.Attribute) and isinstance(code.value, ast.Name) and code.value.id == self._self:
            return self._attribute(code.attr)
        if isinstance(code, ast.Subscript):
            return self._value(code.value, names)[self._value(code.slice, names)]
        if isinstance(code, ast.UnaryOp) and isinstance(code.op, ast.Not):
            chance = self._value(code.operand, names)
            if isinstance(chance, _Chance):
                return _Chance(1 - chance.p)
        if isinstance(code, ast.Compare) and len(code.ops) == 1:
            return self._compared(code.ops[0], self._value(code.left, names), self._value(code.comparators[0], names))
        if isinstance(code, ast.IfExp):
            return self._either(code.test, dict(names), [ast.Return(code.body)], [ast.Return(code.orelse)])
        if isinstance(code, ast.Call):
            return self._called(code, names)
        raise _Strange

    def _attribute(self, name: str) -> Any:
        """A number, or several, of the object or its class."""
        held = attributes(self._transform)
        value = held[name] if name in held else _of_class(self._transform, name)
        many = list(value) if type(value) in (list, tuple) else [value]
        if not many or any(type(one) not in (int, float) for one in many):
            raise _Strange
        return value

    def _compared(self, how: ast.cmpop, left: Any, right: Any) -> _Chance:
        """Of a number from 0 to 1 that is drawn and one that is given."""
        below = isinstance(how, (ast.Lt, ast.LtE))
        if not (below or isinstance(how, (ast.Gt, ast.GtE))):
            raise _Strange
        if isinstance(right, _Drawn):
            left, right, below = right, left, not below
        if not isinstance(left, _Drawn) or left.take() != (0, 1):
            raise _Strange
        return _Chance(_number(right) if below else 1 - _number(right))

    def _called(self, code: ast.Call, names: Mapping[str, Any]) -> Any:
        given: list[Any] = []
        for one in code.args:
            given += self._value(one.value, names) if isinstance(one, ast.Starred) else [self._value(one, names)]
        named = {str(one.arg): self._value(one.value, names) for one in code.keywords}
        if isinstance(code.func, ast.Attribute) and code.func.attr in ("filter", "item"):
            return self._method_of(self._value(code.func.value, names), code.func.attr, given, named)
        function = self._function(code.func, names)
        if any(function is one for one in _FROM_ZERO_TO_ONE) or (function is torch.rand and given == [1]):
            if named or (given and function is not torch.rand):
                raise _Strange
            return _Drawn(0, 1)
        if any(function is one for one in _BETWEEN) and not named:
            low, high = map(_number, given)
            return _Drawn(low, high)
        if function is ImageFilter.GaussianBlur:
            return _Blur(_only("radius", 2, given, named))
        return self._operation(function, given, named)

    def _method_of(self, value: Any, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        if name == "item" and isinstance(value, _Drawn) and not given and not named:
            return value
        if name == "filter" and isinstance(value, _Image) and not named and isinstance(given[0], _Blur):
            return _blurred(given[0].radius)
        raise _Strange

    def _operation(self, function: Any, given: list[Any], named: dict[str, Any]) -> _Made:
        known = next((row for one, row in _OPERATIONS.items() if one is function), None)
        if known is None or not given or not isinstance(given[0], _Image):
            raise _Strange
        name, default, line = known
        if not name:
            if given[1:] or named:
                raise _Strange
            return _Made(line)
        value = _only(name, default, given[1:], named)
        if name == "bits" and type(value) is not int:
            raise _Strange
        return _Made(line.replace("{value}", str(_number(value))))

    def _function(self, code: ast.expr, names: Mapping[str, Any]) -> Any:
        """Of a module, by the name that the code has for it."""
        if isinstance(code, ast.Name) and code.id not in names:
            found = self._globals.get(code.id)
        elif isinstance(code, ast.Attribute):
            module = self._function(code.value, names)
            found = vars(module).get(code.attr) if isinstance(module, ModuleType) else None
        else:
            raise _Strange
        return found if isinstance(found, ModuleType) or callable(found) else None


def _blurred(radius: Any) -> _Made:
    low, high = radius.take() if isinstance(radius, _Drawn) else (_number(radius), _number(radius))
    if not 0 < low <= high:  # as torchvision asks
        raise _Strange
    sigma = f"({low}, {high})" if low < high else str(low)
    return _Made(f"GaussianBlur({2 * math.ceil(_SIGMAS * high) + 1}, sigma={sigma})")


def _only(name: str, default: Any, given: list[Any], named: dict[str, Any]) -> Any:
    """The one argument, however it is given."""
    if len(given) + len(named) > 1 or (named and name not in named):
        raise _Strange
    return given[0] if given else named.get(name, default)


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _Strange
    return value
