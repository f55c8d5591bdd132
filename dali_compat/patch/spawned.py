"""Processes that multiprocessing spawns install what their parent has installed, before they import its program."""

from __future__ import annotations

import os
from multiprocessing import spawn
from typing import Any

from ..runtime import patched

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE = """
import sys
sys.path.append(root)  # the parent's sys.path comes later
from dali_compat.patch.install import install
install(report=report, verbose=verbose, **options)
"""


class _Install:
    """Its pickle calls install() where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        now = patched.now
        assert now is not None
        options = now.options | {"device": None if now.options["device"] is None else str(now.options["device"])}
        return exec, (_CODE, {"root": _ROOT, "options": options, "report": now.report, "verbose": now.verbose})


def follow() -> None:
    """Processes that are spawned from now on install."""
    original = spawn.get_preparation_data
    if hasattr(original, "_dali_compat_original"):
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        prepared: dict[str, Any] = original(name)
        if patched.now is not None:
            prepared["dali_compat"] = _Install()
        return prepared

    get_preparation_data._dali_compat_original = original  # type: ignore[attr-defined]  # for unfollow()
    spawn.get_preparation_data = get_preparation_data


def unfollow() -> None:
    """Processes that are spawned from now on do not."""
    original = getattr(spawn.get_preparation_data, "_dali_compat_original", None)
    if original is not None:
        spawn.get_preparation_data = original
