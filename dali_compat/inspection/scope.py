"""Look up the variables of a function without running it."""

from __future__ import annotations

from typing import Any, NamedTuple

ABSENT = object()  # the value of a variable or attribute that does not exist


class Scope(NamedTuple):
    """The variables of one call of a function."""

    function: Any  # a FunctionType; mypy would take it for a method
    variables: dict[str, Any]

    def value(self, name: str) -> Any:
        code = self.function.__code__
        if self.variables.get(name, ABSENT) is not ABSENT:
            return self.variables[name]
        if name in code.co_freevars:
            return self.function.__closure__[code.co_freevars.index(name)].cell_contents
        if name in self.variables or name in code.co_varnames or name in code.co_cellvars:
            raise UnboundLocalError
        return (self.function.__globals__ if name in self.function.__globals__ else self.function.__builtins__)[name]
