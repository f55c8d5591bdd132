"""Evaluate the source code of a callable without running it.

An Evaluator interprets the syntax tree. Names refer to the real objects, and an Image takes the place of the image. An
Evaluator supports code without side effects, such as conditions, for loops, and calls of the user's functions and of
transforms with a translation. Other code, such as random.random() or image.size, raises NotUnderstood with the code in
the message.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

from PIL import ImageOps
from torch import nn

from . import objects
from .method_calls import EXIF_TRANSPOSE, METHODS
from .scope import ABSENT, Scope
from .source import definition_of

_MOST = 10_000  # maximum number of evaluated expressions
_BUILTINS = enumerate, len, list, range, reversed, tuple, zip
_CONTAINERS = dict, list, range, tuple
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Mult: operator.mul,
    ast.NotEq: operator.ne,
    ast.Sub: operator.sub,
    ast.USub: operator.neg,
}
_NO_PLAIN_FUNCTION = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]


class NotUnderstood(Exception):
    """Raised if a callable contains unsupported code. The message is the reason, or "" if the callable itself cannot be
    evaluated or applies no transforms."""


class Image:
    """A placeholder for an image. ``path`` lists the transforms applied to it, as indices of Evaluator.applied."""

    def __init__(self, path: tuple[int, ...] = ()):
        self.path = path


class _Return(Exception):
    """Raised to end the evaluation of a function. The argument is the function's result."""


class Evaluator:
    """Evaluates code. ``applied`` lists the transforms that the code applies, in order.

    Args:
        known: returns True for the class of a transform with a translation.
    """

    def __init__(self, known: Callable[[type], bool]):
        self._known = known
        self._left = _MOST
        self._created: dict[
            int, Any
        ] = {}  # by id(): lists and iterators that the code has created and may therefore change
        self.applied: list[Any] = []

    # ---- calls

    def call(self, function, args, kwargs) -> Any:
        kind: Any = type(function)
        if function is ImageOps.exif_transpose:
            return self._apply(EXIF_TRANSPOSE, args, kwargs)
        if self._known(kind):
            return self._apply(function, args, kwargs)
        if kind is types.MethodType:
            return self.call(function.__func__, (function.__self__, *args), kwargs)
        if kind is functools.partial:
            return self.call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
        if kind is types.FunctionType:
            return self._run(function, args, kwargs)
        if any(function is one for one in _BUILTINS) and not kwargs:
            made = function(*(one if type(one) in (int, str) else self._elements(one) for one in args))
            return made if function in (len, range, tuple) else self._create(made)
        is_transform = issubclass(kind, type) and self._known(function)
        if is_transform and objects.top_package(function) == "torchvision" and self._are_arguments((args, kwargs)):
            return function(*args, **kwargs)
        called: Any = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
        if called is nn.Module.__call__:
            if not objects.modules_are_hooked() and not any(map(vars(function).get, _HOOKS)):
                return self.call(self._attribute(function, "forward"), args, kwargs)
        elif type(called) is types.FunctionType:
            return self._run(called, (function, *args), kwargs)
        raise NotUnderstood("")

    def _are_arguments(self, value) -> bool:
        """Return True if ``value`` is a constant, a transform with a translation, or a container of these."""
        if type(value) in (list, tuple, dict):
            return all(map(self._are_arguments, value.values() if type(value) is dict else value))
        return objects.is_plain(value) or self._known(type(value))

    def _apply(self, transform, args, kwargs) -> Image:
        if len(args) != 1 or kwargs or type(args[0]) is not Image:
            raise NotUnderstood(f"it calls {type(transform).__name__} with something other than a single image")
        self.applied.append(transform)
        return Image((*args[0].path, len(self.applied) - 1))

    def _run(self, function: types.FunctionType, args, kwargs) -> Any:
        """Return the result of a call, found by evaluating the source code of ``function``."""
        code = function.__code__
        # a torchvision method that the user's class inherits
        inherited = objects.top_package(function) == "torchvision" and code.co_name in ("__call__", "forward")
        if code.co_flags & _NO_PLAIN_FUNCTION or (objects.is_of_library(function) and not inherited):
            raise NotUnderstood("")
        node = definition_of(code)
        if node is None:
            raise NotUnderstood(
                f"{code.co_name} has no source file, has changed since its import, or defines functions"
            )
        plain = types.FunctionType(code, {}, "", function.__defaults__, function.__closure__)  # without __wrapped__
        plain.__kwdefaults__ = function.__kwdefaults__
        bound = inspect.signature(plain).bind(*args, **kwargs)
        bound.apply_defaults()
        scope = Scope(function, dict(bound.arguments))
        if isinstance(node, ast.Lambda):
            return self._value(node.body, scope)
        try:
            self._run_block(node.body, scope)
        except _Return as end:
            return end.args[0]
        return None

    def _create(self, value) -> Any:
        """Mark ``value`` as created by the evaluated code, and return it."""
        self._created[id(value)] = value
        return value

    def _is_created(self, value) -> bool:
        return id(value) in self._created

    # ---- statements

    def _run_block(self, statements, scope: Scope) -> None:
        for node in statements:
            kind = type(node)
            if kind is ast.Return:
                raise _Return(node.value and self._value(node.value, scope))
            if kind is ast.Expr:
                self._value(node.value, scope)
            elif kind is ast.Assign and len(node.targets) == 1:
                self._assign(node.targets[0], self._value(node.value, scope), scope)
            elif kind is ast.If:
                self._run_block(node.body if self._truth(node.test, scope) else node.orelse, scope)
            elif kind is ast.For and not node.orelse:
                for value in self._elements(self._value(node.iter, scope)):
                    self._assign(node.target, value, scope)
                    self._run_block(node.body, scope)
            else:
                raise _unknown(node)

    def _assign(self, target, value, scope: Scope) -> None:
        if type(target) is ast.Tuple:
            for one, part in zip(target.elts, self._elements(value), strict=True):
                self._assign(one, part, scope)
        elif type(target) is not ast.Name or target.id in scope.function.__code__.co_freevars:
            raise NotUnderstood(f"it changes {_text(target)}")
        else:
            scope.variables[target.id] = value

    # ---- expressions

    def _value(self, node, scope: Scope) -> Any:
        self._left -= 1
        if self._left < 0:
            raise NotUnderstood(f"it evaluates more than {_MOST:,} expressions")
        kind = type(node)
        if kind is ast.Constant:
            return node.value
        if kind is ast.Name:
            return scope.value(node.id)
        if kind is ast.Attribute:
            return self._attribute(self._value(node.value, scope), node.attr, node)
        if kind is ast.Call:
            return self._called(node, scope)
        if kind is ast.List:
            return self._create(self._values(node.elts, scope))
        if kind is ast.Tuple:
            return tuple(self._values(node.elts, scope))
        if kind is ast.Dict:
            pairs = zip(node.keys, node.values, strict=True)
            return {self._plain(key, scope): self._value(value, scope) for key, value in pairs}
        if kind is ast.DictComp:
            inners = self._scopes(node.generators, scope)
            return {self._plain(node.key, inner): self._value(node.value, inner) for inner in inners}
        if kind in (ast.ListComp, ast.GeneratorExp):
            inners = self._scopes(node.generators, scope)
            values = (self._value(node.elt, inner) for inner in inners)
            return self._create(values if kind is ast.GeneratorExp else list(values))
        if kind is ast.BoolOp:
            for one in node.values:
                value = self._plain(one, scope)
                if bool(value) is (type(node.op) is ast.Or):
                    break
            return value
        if kind is ast.IfExp:
            return self._value(node.body if self._truth(node.test, scope) else node.orelse, scope)
        if kind is ast.UnaryOp and type(node.op) is ast.Not:
            return not self._truth(node.operand, scope)
        if kind is ast.UnaryOp and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._plain(node.operand, scope))
        if kind is ast.BinOp and type(node.op) in _OPERATORS:
            left, right = self._value(node.left, scope), self._plain(node.right, scope)
            if type(left) is list and type(node.op) is ast.Mult:
                return self._create(left * len(self._elements(range(right))))
            if objects.is_plain(left):
                return _OPERATORS[type(node.op)](left, right)
        if kind is ast.Compare and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
            left, right = self._value(node.left, scope), self._plain(node.comparators[0], scope)
            is_identity = type(node.ops[0]) in (ast.Is, ast.IsNot)
            if (right is None) if is_identity else objects.is_plain(left):
                return _OPERATORS[type(node.ops[0])](left, right)
        if kind is ast.Subscript:
            container = self._value(node.value, scope)
            if type(container) in _CONTAINERS:
                return container[self._plain(node.slice, scope)]
        raise _unknown(node)

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        function: Any = node.func
        if any(one.arg is None for one in node.keywords):
            raise _unknown(node)
        is_method = type(function) is ast.Attribute
        owner = self._value(function.value if is_method else function, scope)
        if type(owner) is Image and is_method and all(function.attr != name for name, *_ in METHODS):
            raise NotUnderstood(f"it uses the image's {function.attr}")
        args = self._values(node.args, scope)
        kwargs = {str(one.arg): self._value(one.value, scope) for one in node.keywords}
        if not is_method:
            to_call = owner
        elif type(owner) is Image:
            key = (function.attr, *args, *kwargs.values())
            if not all(map(objects.is_plain, key)) or key not in METHODS or not kwargs.keys() <= {"mode"}:
                raise NotUnderstood(f"it calls the image's {function.attr}() with unsupported arguments")
            return self._apply(METHODS[key], (owner,), {})
        elif type(owner) is dict and function.attr in ("items", "keys", "values") and not args and not kwargs:
            return self._create(getattr(owner, function.attr)())
        elif type(owner) is list and function.attr in ("append", "extend") and len(args) == 1 and not kwargs:
            if not self._is_created(owner):
                raise NotUnderstood(f"it changes {_text(function.value)}")
            owner += args if function.attr == "append" else self._elements(args[0])
            return None
        else:
            to_call = self._attribute(owner, function.attr, function)
        try:
            return self.call(to_call, args, kwargs)
        except NotUnderstood as error:
            raise NotUnderstood(str(error) or f"it uses {_text(function)}()") from None

    def _values(self, nodes, scope: Scope) -> list[Any]:
        made: list[Any] = []
        for one in nodes:
            is_starred = type(one) is ast.Starred
            value = self._value(one.value if is_starred else one, scope)
            made += self._elements(value) if is_starred else [value]
        return made

    def _scopes(self, generators, scope: Scope) -> Iterator[Scope]:
        # as in Python, the first iterable is evaluated at once, and the others in each iteration
        return self._loop(generators, scope, self._elements(self._value(generators[0].iter, scope)))

    def _loop(self, generators, scope: Scope, elements) -> Iterator[Scope]:
        first, *others = generators
        assigned = [one.id for later in others for one in ast.walk(later.target) if type(one) is ast.Name]
        for value in elements:
            inner = Scope(scope.function, scope.variables | dict.fromkeys(assigned, ABSENT))
            self._assign(first.target, value, inner)
            if all(self._truth(test, inner) for test in first.ifs):
                yield from self._scopes(others, inner) if others else [inner]

    def _plain(self, node, scope: Scope) -> Any:
        value = self._value(node, scope)
        if not objects.is_plain(value):
            raise _unknown(node)
        return value

    def _truth(self, node, scope: Scope) -> bool:
        value = self._value(node, scope)
        if type(value) not in _CONTAINERS and not objects.is_plain(value):
            raise NotUnderstood(f"it uses the truth value of {_text(node)}")
        return bool(value)

    # ---- objects

    def _elements(self, value) -> Any:
        if type(value) is nn.ModuleList:
            return list(value._modules.values())
        if self._is_created(value):  # iterating over the user's own iterator would advance it
            return value
        if type(value) not in _CONTAINERS or len(value) > _MOST:
            raise NotUnderstood(f"it iterates over {'the image' if type(value) is Image else type(value).__name__}")
        return value

    def _attribute(self, value, name: str, node=None) -> Any:
        """Return an attribute without running the user's code."""
        kind: Any = type(value)
        if kind is Image:
            raise NotUnderstood(f"it uses the image's {name}")
        if kind is types.ModuleType and name in vars(value):
            return vars(value)[name]
        found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), ABSENT)
        is_usual = kind.__getattribute__ is object.__getattribute__ and not hasattr(type(found), "__set__")
        if is_usual and name[:2] != "__":
            own = objects.attributes(value)
            if name in own:
                return own[name]
            if type(found) is types.FunctionType:
                return types.MethodType(found, value)
            if found is not ABSENT and not hasattr(type(found), "__get__"):
                return found
            looks_in_modules = getattr(kind, "__getattr__", None) is nn.Module.__getattr__
            if found is ABSENT and looks_in_modules and name in own["_modules"]:
                return own["_modules"][name]
        raise NotUnderstood(f"it uses {_text(node)}" if node else "")


def _text(node) -> str:
    """Return the first line of a node's source code."""
    return ast.unparse(node).splitlines()[0].rstrip(":")


def _unknown(node) -> NotUnderstood:
    return NotUnderstood(f"it uses {_text(node)}")
