"""The installed DALI, the driver and the GPUs."""

import ctypes
import ctypes.util
import functools
import glob
import importlib
import importlib.metadata
import math
import os
import platform
import re
import sys
from contextlib import suppress
from dataclasses import dataclass

import torch

WANTED_CONNECTIONS = 32
CUDA_DEFAULT_CONNECTIONS = 8
OLDEST_DRIVER = {11: "450.80", 12: "525.60", 13: "580"}
"""Oldest NVIDIA driver for each CUDA major version, from DALI's installation guide."""

JPEG_ENGINE = "DALI_COMPAT_JPEG_ENGINE"
_WITH_JPEG_ENGINES = (8, 0), (9, 0), (10, 0), (10, 3)
"""Compute capabilities of A100 and A30, H100 and H200, B200, B300."""
_VIDEO_LIBRARY = "libnvcuvid.so.1"
"""Library of the NVIDIA driver. NVIDIA's container runtime provides it only with the capability `video`."""


@dataclass(frozen=True)
class Problem:
    """A problem, and the command or action that solves it, one line each."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


def dali_problem(gpu: bool = False) -> str | None:
    """Return one line on why DALI cannot be used and what to install, or None if it can. If ``gpu`` is True, also check
    the NVIDIA driver."""
    problem = import_problem() or (driver_problem() if gpu else None)
    return None if problem is None else str(problem)


def import_problem() -> Problem | None:
    """Return why DALI cannot be imported, or None if it can."""
    module, error = _import_dali()
    if error is None and hasattr(module, "Pipeline"):
        return None
    install = install_command(wanted_variant())
    if platform.system() != "Linux":
        return Problem(f"DALI has no build for {platform.system()}", "run on Linux (on Windows: WSL 2)")
    found = dali_distributions()
    placeholders = sorted(name for name, is_real in found.items() if not is_real)
    if placeholders and len(placeholders) == len(found):
        names = " ".join(placeholders)
        return Problem(
            f"{names} is installed, but it is a placeholder without DALI in it",
            f"pip uninstall -y {names} && {install}",
        )
    if not found:
        is_absent = error is None or (
            isinstance(error, ModuleNotFoundError) and error.name in ("nvidia", "nvidia.dali")
        )
        absent = f"DALI is not installed; the extra [{wanted_variant()}] contains it"
        return Problem(absent if is_absent else f"DALI does not load ({_one_line(error)})", install)
    if _leaves_out_docstrings():
        return Problem("DALI does not load if Python removes docstrings", "run without -OO and PYTHONOPTIMIZE=2")
    detail = "its files are incomplete" if error is None else _one_line(error)
    return Problem(
        f"DALI is installed ({dali_variant()}) but does not load ({detail})",
        f"pip uninstall -y {' '.join(sorted(found))} && {install}",
    )


def _leaves_out_docstrings() -> bool:
    return sys.flags.optimize > 1


def driver_problem() -> Problem | None:
    """Return why the NVIDIA driver cannot run the installed DALI. Return None if it can, or if either is missing."""
    driver, needed = driver_cuda(), dali_cuda_major()
    if driver is None or needed is None or driver[0] >= needed:
        return None
    oldest = OLDEST_DRIVER.get(needed)
    newer_driver = f"install NVIDIA driver {oldest} or newer" if oldest else "install a newer NVIDIA driver"
    reason = f"DALI is built for CUDA {needed}, but the NVIDIA driver supports only CUDA {driver[0]}.{driver[1]}"
    if driver[0] not in OLDEST_DRIVER:
        return Problem(reason, newer_driver)
    remove = f"pip uninstall -y {' '.join(sorted(dali_distributions()))} && " if dali_distributions() else ""
    return Problem(reason, f"{remove}{install_command(f'cuda{driver[0]}0')} (or {newer_driver})")


def wanted_variant() -> str:
    """Return the extra of dali_compat, such as 'cuda130', for the CUDA version of torch, or else of the driver."""
    major = torch.version.cuda.split(".")[0] if torch.version.cuda else str((driver_cuda() or (13, 0))[0])
    return {"11": "cuda110", "12": "cuda120"}.get(major, "cuda130")


def install_command(variant: str) -> str:
    """Return the pip command that installs DALI for 'cuda110', 'cuda120' or 'cuda130'."""
    # The cuda110 package on PyPI is a stub that fetches its wheel from NVIDIA's own index.
    index = "--extra-index-url https://pypi.nvidia.com " if variant == "cuda110" else ""
    return f"pip install --upgrade {index}nvidia-dali-{variant}"


def dali_version() -> str | None:
    """Return DALI's version, such as '2.4.0', or None if it cannot be imported."""
    module, _ = _import_dali()
    return getattr(module, "__version__", None)


def dali_variant() -> str | None:
    """Return the names of the installed DALI packages, joined by ', ', or None if there are none."""
    return ", ".join(sorted(dali_distributions())) or None


def dali_distributions() -> dict[str, bool]:
    """Return the names of the installed DALI packages, such as 'nvidia-dali-cuda130'. The value is False for a
    placeholder without DALI's files."""
    found: dict[str, bool] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if not re.fullmatch(r"nvidia-dali(-(nightly|weekly))?(-cuda\d+)?", name):
            continue
        files = distribution.files  # None if the package has no list of files; assume it is real
        is_real = files is None or any(file.as_posix() == "nvidia/dali/__init__.py" for file in files)
        found[name] = found.get(name, False) or is_real
    return found


def dali_cuda_major() -> int | None:
    """Return the major version of CUDA for which DALI was built, or None if DALI cannot be imported."""
    module, _ = _import_dali()
    version = str(getattr(module, "__cuda_version__", ""))  # 13.4.92 is encoded as the number 13492
    return int(version[:2]) if version[:2].isdigit() else None


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version (major, minor) that the NVIDIA driver can run, or None without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def gpu_names() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def most_jpeg_engines() -> float:
    """Return the maximum number of JPEG engines per GPU: the environment variable DALI_COMPAT_JPEG_ENGINE, by default
    infinity."""
    value = os.environ.get(JPEG_ENGINE, "").strip()
    return int(value) if value.isdigit() else math.inf


def hidden_jpeg_engines(index: int) -> Problem | None:
    """Return a Problem if a container hides the JPEG engines of a GPU from nvJPEG, otherwise None."""
    if not torch.cuda.is_available():
        return None
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    if capability not in _WITH_JPEG_ENGINES or " MIG " in name:  # an instance of an A100 has none
        return None
    with suppress(OSError):
        ctypes.CDLL(_VIDEO_LIBRARY)
        return None
    given = os.environ.get("NVIDIA_DRIVER_CAPABILITIES", "not set")
    return Problem(
        f"the JPEG engines of {name} are hidden: the container lacks the driver's capability `video` "
        f"(NVIDIA_DRIVER_CAPABILITIES is {given})",
        "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video in its environment "
        "(docker run -e ..., or env: in a Kubernetes pod)",
    )


def max_connections() -> int:
    """Return the number of CUDA's hardware queues: CUDA_DEVICE_MAX_CONNECTIONS, or 8 by default."""
    value = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    return int(value) if value.isdigit() else CUDA_DEFAULT_CONNECTIONS


def max_connections_note() -> str | None:
    """Return one line with a remedy if there is a GPU and CUDA has fewer than 32 hardware queues, otherwise None."""
    if not torch.cuda.is_available() or max_connections() >= WANTED_CONNECTIONS:
        return None
    if "CUDA_DEVICE_MAX_CONNECTIONS" in os.environ:
        cause = f"CUDA_DEVICE_MAX_CONNECTIONS is {os.environ['CUDA_DEVICE_MAX_CONNECTIONS']!r}"
    else:
        cause = "CUDA had started before dali_compat was imported"
    return (
        f"{cause}, so CUDA has {max_connections()} hardware queues and loading may have to wait for training: "
        f"set CUDA_DEVICE_MAX_CONNECTIONS={WANTED_CONNECTIONS} before the program starts, or leave it unset and import "
        "dali_compat before CUDA starts"
    )


@functools.cache
def _import_dali():
    """Return (nvidia.dali, None), or (None, the exception). The result is cached, because a second import raises a
    different error."""
    try:
        return importlib.import_module("nvidia.dali"), None
    except Exception as error:
        return None, error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def nvjpeg_libraries():
    """Yield the nvJPEG libraries that can be loaded: those in wheels, newest first, and then the system's."""
    folders = (os.path.join(entry or ".", "nvidia", "*", "lib", "libnvjpeg.so.*") for entry in sys.path)
    paths = sorted({path for pattern in folders for path in glob.glob(pattern)}, key=os.path.basename, reverse=True)
    system = ctypes.util.find_library("nvjpeg")
    for path in paths + [system] * (system is not None):
        try:
            yield ctypes.CDLL(path)
        except OSError:
            continue
