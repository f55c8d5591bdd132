"""Functions that make torch's DataLoader use DALI for images, and undo that. Importing this module does not import
torch.

- loader: replaces a loader during its construction, and keeps options that Accelerate and Ray Train would lose.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import spawn
from types import ModuleType
from typing import Any, Literal

from ..runtime import Patched
from ..runtime.messages import announce, report_fallback

_LOADER_MODULE = "torch.utils.data.dataloader"
# Data sets of images come from these packages or from packages that import them, or open images with them.
_IMAGE_MODULES = "torchvision.datasets", "dali_compat.data", "dali_compat.archives", "timm.data", "PIL.Image", "cv2"
_log = logging.getLogger("dali_compat")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE = """
import sys
sys.path.append(root)  # the parent's sys.path is set later
from dali_compat.patch import install
install(verbose=verbose, **options)
"""


def install(
    *,
    exact: bool = False,
    device: Any = None,
    fallback: Literal["warn", "silent", "error"] = "warn",
    verbose: bool = False,
    **options: Any,
) -> ExitStack:
    """Make torch.utils.data.DataLoader use DALI for images, in this process and its spawned children.

    torch's class itself is patched, so it does not matter where or when it was imported. Subclasses are included if
    they call its constructor (torchdata's StatefulDataLoader does not). A new loader becomes a dali_compat.DataLoader
    if its data set is an image folder, an archive or images in memory, from this package, torchvision or timm. The same
    applies to custom data sets of images that DALI can decode. Any other loader remains torch's. If it loads images,
    ``fallback`` selects how the reason is reported. Existing loaders do not change. A second call replaces the options
    of the first.

    Args:
        exact, device, fallback: as in DataLoader. The same options of a loader's constructor take precedence.
        verbose: print a line to stderr for each new loader, with its route or the reason for not using DALI. The line
            replaces the warning.
        **options: memory_format, on_error and on_error_in_python, as in DataLoader.

    Returns:
        A context manager. On exit, it restores the state from before the call.

    Raises:
        ValueError: fallback is none of "warn", "silent" and "error".
        TypeError: an option is unknown.

    Examples:
        >>> with install(device="cpu"):
        ...     loader = torch.utils.data.DataLoader(DALIImageFolder("train", transform), batch_size=4)
        >>> isinstance(loader, DataLoader)
        True
    """
    if fallback not in ("warn", "silent", "error"):
        raise ValueError(f"fallback must be 'warn', 'silent' or 'error', got {fallback!r}")
    unknown = options.keys() - {"memory_format", "on_error", "on_error_in_python"}
    if unknown:
        raise TypeError(f"install() got an unexpected option {sorted(unknown)[0]!r}")
    given = {"exact": exact, "device": device, "fallback": fallback, **options}
    before = Patched.now
    Patched.now = Patched(given, verbose)
    if _LOADER_MODULE in sys.modules:
        _wrap(sys.modules[_LOADER_MODULE].DataLoader, "__init__", _constructor)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())
    _wrap(spawn, "get_preparation_data", _preparation)
    _log.info("torch.utils.data.DataLoader uses DALI for images, also in spawned processes")
    undo = ExitStack()
    undo.callback(_restore, before)
    return undo


def uninstall() -> None:
    """Restore torch.utils.data.DataLoader. Existing loaders do not change.

    Examples:
        >>> _ = install(device="cpu")
        >>> uninstall()
        >>> isinstance(torch.utils.data.DataLoader(DALIImageFolder("train", transform)), DataLoader)
        False
    """
    _restore(None)


def _restore(before: Patched | None) -> None:
    Patched.now = before
    if before is None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
        _unwrap(spawn, "get_preparation_data")
        if _LOADER_MODULE in sys.modules:
            _unwrap(sys.modules[_LOADER_MODULE].DataLoader, "__init__")


class _WhenImported(importlib.abc.MetaPathFinder):
    """Import hook that patches torch's DataLoader when the program imports it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _LOADER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if Patched.now is not None:
                    _wrap(module.DataLoader, "__init__", _constructor)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this module's loader only
        return spec


def _wrap(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Replace the function ``owner.name`` with ``made(function)``, unless this was done before."""
    original = getattr(owner, name)
    if not hasattr(original, "_dali_compat_original"):
        ours: Any = functools.wraps(original)(made(original))
        ours._dali_compat_original = original
        setattr(owner, name, ours)


def _unwrap(owner: Any, name: str) -> None:
    """Restore the original function. If other code has wrapped the replacement, the replacement stays and calls the
    original."""
    ours = getattr(owner, name)
    original = getattr(ours, "_dali_compat_original", None)
    if original is not None and ours.__wrapped__ is original:
        setattr(owner, name, original)


def _constructor(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        now = Patched.now
        dataset = args[0] if args else kwargs.get("dataset")
        if now is None or _is_dali_loader(self):  # this package's constructor calls torch's, which is this function
            original(self, *args, **kwargs)
            return
        reason = _fallback_reason(dataset)
        if reason is None:
            from .loader import convert

            reason = convert(self, args, kwargs, now)
            if reason is None:
                return
        if reason and (now.options["fallback"] == "error" or not now.verbose):
            report_fallback(f"torchvision does the work: {reason}", now.options["fallback"], set())
        original(self, *args, **kwargs)
        if now.verbose:
            why = reason or f"no images were found in {type(dataset).__name__}"
            announce(f"torch's own loader, because {why}", dataset)

    return __init__


def _is_dali_loader(loader: Any) -> bool:
    # without importing the class
    return any(kind.__module__ == "dali_compat.loader" for kind in type(loader).__mro__)


def _fallback_reason(dataset: Any) -> str | None:
    """Return the reason why a loader over a data set remains torch's. This is "" if the data set has no images, and
    None if the loader is replaced."""
    if not any(name in sys.modules for name in _IMAGE_MODULES):
        return ""
    from ..data.base_datasets import has_images
    from ..errors import Unsupported, UnsupportedImages
    from ..routes import refuse_unknown
    from ..tracing.static_checks import reads_images, with_inner

    if has_images(dataset):
        return None
    try:
        refuse_unknown(dataset)
    except Unsupported as error:
        seen = isinstance(error, UnsupportedImages)
        return str(error) if seen or any(has_images(one) or reads_images(one) for one in with_inner(dataset)) else ""
    return None


# ---- processes that multiprocessing spawns install the patch before they import the program


class _Install:
    """An object that calls install() when it is unpickled in a spawned process."""

    def __reduce__(self) -> tuple[Any, ...]:
        now = Patched.now
        assert now is not None
        options = now.options | {"device": None if now.options["device"] is None else str(now.options["device"])}
        return exec, (_CODE, {"root": _ROOT, "options": options, "verbose": now.verbose})


def _preparation(original: Any) -> Any:
    def get_preparation_data(name: str) -> dict[str, Any]:
        prepared: dict[str, Any] = original(name)
        if Patched.now is not None:
            prepared["dali_compat"] = _Install()
        return prepared

    return get_preparation_data
