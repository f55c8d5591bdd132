"""Names of archives as users write them: a path, a pattern, a brace expression, or a list of these."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

PathLike = str | Path
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand(path: PathLike | Sequence[PathLike]) -> list[str]:
    """The files that are meant, in order: a list's as given, a pattern's (``*``, ``?``, ``[``) sorted, and those of
    braces (``{000..127}``, ``{train,val}``) as a shell has them. A name that exists is taken literally.

    Raises:
        FileNotFoundError: nothing has that name.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise FileNotFoundError("the list of files is empty")
        return [file for part in path for file in expand(part)]
    name = os.path.expanduser(os.fspath(path))  # type: ignore[arg-type]  # of other sequences: TypeError
    if os.path.exists(name):
        return [name]
    files = []
    for pattern in braces(name):
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise FileNotFoundError(f"there is no file {pattern}")
        files += found
    return files


def braces(name: str) -> list[str]:
    """A shell's brace expansion: ``a{1,2}{08..10}`` gives a108, a109, a110, a208 and so on."""
    begin, end = _outermost(name)
    if end < 0:
        return [name]
    tails = braces(name[end + 1 :])
    inside = name[begin + 1 : end]
    values = _range(inside) or [value for part in _parts(inside) for value in braces(part)]
    if len(_parts(inside)) == 1 and not _range(inside):  # not an expression; a shell leaves the braces
        values = ["{" + value + "}" for value in values]
    return [name[:begin] + value + tail for value in values for tail in tails]


def _outermost(name: str) -> tuple[int, int]:
    """Positions of the first brace and of the one that closes it; -1 where there is none."""
    begin, depth = name.find("{"), 0
    for at in range(max(begin, 0), len(name)):
        depth += (name[at] == "{") - (name[at] == "}")
        if begin >= 0 and depth == 0:
            return begin, at
    return begin, -1


def _parts(inside: str) -> list[str]:
    """What commas part that are in no inner braces."""
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _range(inside: str) -> list[str]:
    """The numbers of ``first..last``, as wide as the wider one where one begins with a zero."""
    bounds = _RANGE.fullmatch(inside)
    if not bounds:
        return []
    first, last = int(bounds[1]), int(bounds[2])
    padded = any(text.startswith("0") and len(text) > 1 for text in bounds.groups())
    width = max(map(len, bounds.groups())) if padded else 0
    step = 1 if first <= last else -1
    return [f"{i:0{width}d}" for i in range(first, last + step, step)]
