"""Support for tests of Triton kernels, which run in Triton's interpreter if there is no GPU.

They run in a separate process because Triton reads TRITON_INTERPRET when it is imported.
"""

import importlib.metadata
import os

import pytest
import torch

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETS
runs = pytest.mark.gpu if ON_GPU else pytest.mark.skipif(not INTERPRETS, reason="test_interpreted runs it")
_OLDEST = 3, 6  # the interpreter of Triton 3.1 fails with NumPy 2


def _is_old() -> bool:
    try:
        return tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < _OLDEST
    except importlib.metadata.PackageNotFoundError:
        return True


elsewhere = pytest.mark.skipif(
    ON_GPU or INTERPRETS or _is_old(), reason="they run here, or Triton's interpreter is too old"
)


def _patched_once() -> None:
    """Patch triton.language once for each module.

    The interpreter would patch it again at each call of a kernel or device function, although the patch stays in place.
    Patching once takes a quarter of the time.
    """
    from triton.runtime import interpreter

    patch, scopes = interpreter._patch_lang, {}

    def once(function):
        key = id(function.__globals__)
        if key not in scopes:
            patch(function)
            scopes[key] = interpreter._LangPatchScope()  # restores nothing
        return scopes[key]

    interpreter._patch_lang = once


if INTERPRETS and not _is_old():
    _patched_once()
