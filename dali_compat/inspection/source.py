"""Find the source code of a function, and check that it is what the function was compiled from."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType

Definition = ast.FunctionDef | ast.Lambda
_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))  # code of its own until Python 3.12


@functools.lru_cache(1024)
def definition_of(code: CodeType) -> Definition | None:
    """Return the syntax tree of a function without inner functions.

    None if the source file is missing or has changed since it was imported, or if it is unclear which lambda it is.
    """
    linecache.checkcache(code.co_filename)
    definitions, compiled = _parsed("".join(linecache.getlines(code.co_filename)))
    if code not in compiled or not all(one.co_name in _COMPREHENSIONS for one in _inner(code)):
        return None
    found = definitions.get((code.co_name, code.co_firstlineno), [])
    if code.co_name == "<lambda>" and hasattr(code, "co_positions"):  # Python 3.11
        found = [node for node in found if _contains(node, code)][-1:]  # enclosing lambdas come first
    return found[0] if len(found) == 1 else None


@functools.lru_cache(16)
def _parsed(text: str) -> tuple[dict[tuple[str, int], list[Definition]], set[CodeType]]:
    """Return the functions of a source text, by name and first line, and the code of all functions."""
    definitions: dict[tuple[str, int], list[Definition]] = {}
    try:
        tree, compiled = ast.parse(text), {*_inner(compile(text, "", "exec", dont_inherit=True))}
    except (SyntaxError, ValueError, RecursionError):
        return {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            definitions.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            definitions.setdefault(("<lambda>", node.lineno), []).append(node)
    return definitions, compiled


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions that are defined within this code."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inner(one)


def _contains(node: Definition, code: CodeType) -> bool:
    """Return True if all instructions of a function have positions within the syntax tree."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    positions = [one for one in code.co_positions() if None not in one and one[2:] != (0, 0)]
    return all(start <= (first, left) and (last, right) <= end for first, last, left, right in positions)
