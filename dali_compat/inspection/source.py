"""Find the syntax tree of a function, and check that the function was compiled from it."""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType

from .objects import inner_code

Definition = ast.FunctionDef | ast.Lambda
_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))  # separate code before Python 3.12


@functools.lru_cache(1024)
def definition_of(code: CodeType) -> Definition | None:
    """Return the syntax tree of a function, or None if it cannot be determined."""
    linecache.checkcache(code.co_filename)
    definitions, compiled = _parsed("".join(linecache.getlines(code.co_filename)))
    # the file is missing or has changed since the import, or the function defines inner functions
    if code not in compiled or not all(one.co_name in _COMPREHENSIONS for one in inner_code(code)):
        return None
    found = definitions.get((code.co_name, code.co_firstlineno), [])
    if code.co_name == "<lambda>" and hasattr(code, "co_positions"):  # since Python 3.11
        found = [node for node in found if _contains(node, code)][-1:]  # enclosing lambdas come first
    return found[0] if len(found) == 1 else None  # several lambdas could be this one


@functools.lru_cache(16)
def _parsed(text: str) -> tuple[dict[tuple[str, int], list[Definition]], set[CodeType]]:
    """Return the syntax trees of all functions in ``text``, keyed by (name, first line), and the bytecode of these
    functions."""
    definitions: dict[tuple[str, int], list[Definition]] = {}
    try:
        tree, compiled = ast.parse(text), {*inner_code(compile(text, "", "exec", dont_inherit=True))}
    except (SyntaxError, ValueError, RecursionError):
        return {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            definitions.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            definitions.setdefault(("<lambda>", node.lineno), []).append(node)
    return definitions, compiled


def _contains(node: Definition, code: CodeType) -> bool:
    """Return True if the source positions of all instructions in ``code`` lie within ``node``."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    positions = [one for one in code.co_positions() if None not in one and one[2:] != (0, 0)]
    return all(start <= (first, left) and (last, right) <= end for first, last, left, right in positions)
