"""Names of archives as users write them: a path, a pattern, a brace expression, or a list of these."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

PathLike = str | Path
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand(path: PathLike | list[PathLike] | tuple[PathLike, ...]) -> list[str]:
    """The files that are meant, in order: a list's as given, a pattern's (``*``, ``?``, ``[``) sorted, and those of braces
    (``{000..127}``, ``{train,val}``) as a shell has them. A name that exists is taken literally.

    Raises:
        FileNotFoundError: nothing has that name.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise FileNotFoundError("the list of files is empty")
        return [file for part in path for file in expand(part)]
    name = os.path.expanduser(os.fspath(path))
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
    found = _BRACES.search(name)
    if not found:
        return [name]
    bounds = _RANGE.fullmatch(found[1])
    if bounds:
        first, last = int(bounds[1]), int(bounds[2])
        padded = [text for text in bounds.groups() if text.startswith("0") and len(text) > 1]
        width = max(map(len, bounds.groups())) if padded else 0
        values = [f"{i:0{width}d}" for i in range(first, last + 1)] or [
            f"{i:0{width}d}" for i in range(first, last - 1, -1)
        ]
    else:
        values = found[1].split(",")
        if len(values) == 1:  # not an expression; a shell leaves it as it is
            return [name[: found.end()] + rest for rest in braces(name[found.end() :])]
    return [part for value in values for part in braces(name[: found.start()] + value + name[found.end() :])]
