"""Reports what became of every loader, at the end of the program."""

from __future__ import annotations

import os
import sys
from multiprocessing import util
from typing import Any, NamedTuple

from ..runtime.warn_location import users_line


class _Noted(NamedTuple):
    """A loader, as the report tells of it.

    Attributes:
        line: of the user's, that made it.
        dataset: name of its data set's class.
        stats: of ours; None of torch's own.
        reason: why a loader over images is torch's own.
    """

    line: str
    dataset: str
    stats: Any
    reason: str = ""


_NOTHING = "no batch was taken from it"
_noted: list[_Noted] = []
_process: int | None = None


def note(loader: Any, dataset: Any, reason: str = "") -> None:
    """A loader is made; ``reason`` as _Noted has it."""
    global _process
    if _process != os.getpid():  # of a parent's loaders the parent tells
        _process = os.getpid()
        _noted.clear()
        util.Finalize(None, tell, exitpriority=-100)  # atexit, which spawned processes have not
    stats = loader._stats if is_ours(loader) else None
    one = _Noted(users_line(), type(dataset).__name__, stats, reason)
    if one.stats is not None or one not in _noted:
        _noted.append(one)


def is_ours(loader: Any) -> bool:
    """Without an import where there is none."""
    return any(kind.__module__ == "dali_compat.loader" for kind in type(loader).__mro__)


def tell() -> None:
    """Print it, and forget it."""
    if not _noted or _process != os.getpid():
        return
    rows: dict[tuple[str, ...], list[Any]] = {}
    for one in _noted:
        rows.setdefault((one.line, one.dataset, _became(one)), []).append(one.stats)
    for line, dataset, became in list(rows):
        others = any(row[:2] == (line, dataset) and row[2] != became for row in rows)
        if became == _NOTHING and others:  # a framework made another loader of it
            del rows[line, dataset, became]
    rank = os.environ.get("RANK")
    print("dali_compat" + (f", rank {rank}:" if rank else ":"), file=sys.stderr)
    for names, stats in rows.items():
        print("  " + ": ".join(names) + _figures(stats), file=sys.stderr)
    _noted.clear()


def _became(one: _Noted) -> str:
    if one.stats is None:
        return "torch's own loader" + (one.reason and f", because {one.reason}")
    return one.stats.became or _NOTHING


def _figures(stats: list[Any]) -> str:
    """Images, their rate, and the share of time that next() took, of loaders of one line."""
    read = [one.read(None, False) for one in stats if one is not None and one.became]
    if not read:
        return ""
    images, seconds = sum(one.images for one in read), sum(one.seconds for one in read) or 1.0
    waited = sum(one.waited + one.host for one in read) / seconds
    return f"; {images:,} images ({images / seconds:,.0f} images/s), {waited:.1%} of the time waited for data"
