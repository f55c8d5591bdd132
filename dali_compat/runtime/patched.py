"""The options of install() while torch's DataLoader is ours. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Patched:
    """The arguments of install().

    Attributes:
        options: arguments of our own that loaders get, unless they are given others.
        report: whether to say at the end what became of every loader.
        verbose: whether to say what becomes of each when it is made.
    """

    options: dict[str, Any] = field(default_factory=dict)
    report: bool = False
    verbose: bool = False


now: Patched | None = None
