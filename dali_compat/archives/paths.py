"""Expands names of archives as users write them: a path, a pattern, a brace expression, or a list of these."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from ..remote.urls import is_url, without_scheme

PathLike = str | Path


def expand(path: PathLike | Sequence[PathLike]) -> list[str]:
    """Returns the files in order: a list's as given, a pattern's (``*``, ``?``, ``[``) sorted, and those of braces
    (``{000..127}``, ``{train,val}``) as a shell has them. A name that exists is taken literally. Of URLs braces alone
    are expanded.

    Raises:
        FileNotFoundError: nothing has that name.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise FileNotFoundError("the list of files is empty")
        return [file for part in path for file in expand(part)]
    name = os.path.expanduser(without_scheme(os.fspath(path)))  # type: ignore[arg-type]  # of other sequences: TypeError
    if is_url(name):
        return braces(name)
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
    """Expands braces as a shell does: ``a{1,2}{08..10}`` gives a108, a109, a110, a208 and so on. A brace that nothing
    closes is taken literally, as a shell has it."""
    if "{" not in name:
        return [name]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(name))
    except ValueError:  # UnbalancedBracesError
        return [name]
