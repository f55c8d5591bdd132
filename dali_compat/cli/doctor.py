"""Print versions, drivers, GPUs and problems, each problem with a fix."""

import importlib
import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass

import torch

from dali_compat.engine.dali import warm

from .. import __version__
from ..runtime import installation
from ..runtime.cores import cpu_quota, usable_cores
from ..runtime.messages import in_columns

OLDEST_TESTED_DALI = (1, 53)
OLDEST_TORCHVISION = (0, 20)
_BOTH = "pip install --upgrade torch torchvision"
_TORCH = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Check:
    """A fact about this machine, such as a version, and the problem with it, if any."""

    name: str
    value: str
    problem: str | None = None
    remedy: str | None = None  # how to fix the problem
    stops_dali: bool = False  # whether the problem prevents the use of DALI


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything as JSON, for a bug report")


def run(args) -> int:
    """Print every check, then the problems. Return 1 if a problem stops DALI, otherwise 0."""
    results = checks()
    code = int(any(check.stops_dali for check in results))
    found = {"dali_compat": __version__, "exit_code": code, "checks": [asdict(check) for check in results]}
    print(json.dumps(found, indent=2) if args.json else report(results))
    return code


def checks() -> list[Check]:
    """Run all checks of this machine. This initializes CUDA if there is a GPU."""
    return [
        Check("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        _torch(),
        _torchvision(),
        Check("Pillow", _version("pillow") or "not installed"),
        _dali(),
        _package(),
        _driver(),
        _gpus(),
        _jpeg_engines(),
        _connections(),
        _cores(),
    ]


def report(results: list[Check]) -> str:
    """Format the checks, one line each, followed by problems and fixes."""
    lines = [in_columns([(check.name, check.value) for check in results]), ""]
    wrong = [check for check in results if check.problem]
    for check in wrong:
        mark = "WRONG" if check.stops_dali else "NOTE"
        lines += [f"{mark}  {check.name}: {check.problem}", f"       fix: {check.remedy}"]
    if any(check.stops_dali for check in wrong):
        end = "Fix all problems marked WRONG. Until then, DALI may fail, and torchvision does its work."
    elif any(check.name == "GPU" and not check.value.startswith("none") for check in results):
        end = "DALI works here, on the GPU."
    else:
        end = "DALI works here, on the CPU: there is no GPU to use."
    return "\n".join([*lines, end])


def _torch() -> Check:
    built_for, driver = torch.version.cuda, installation.driver_cuda()
    value = f"{torch.__version__} ({f'CUDA {built_for}' if built_for else 'CPU only'})"
    if driver is None or torch.cuda.is_available():
        return Check("torch", value)
    offered = f"CUDA {driver[0]}.{driver[1]}"
    if built_for is None:
        problem = f"it is the CPU-only build, but there is an NVIDIA driver ({offered})"
        return Check("torch", value, problem, f"install a CUDA build of torch: {_TORCH}")
    if int(built_for.split(".")[0]) > driver[0]:
        problem = f"it is built for CUDA {built_for}, but the NVIDIA driver supports only {offered}"
        return Check("torch", value, problem, f"install a newer NVIDIA driver, or torch for an older CUDA: {_TORCH}")
    return Check("torch", value)


def _torchvision() -> Check:
    version = _version("torchvision")
    if version is None:
        return Check("torchvision", "not installed", "dali_compat needs it", "pip install torchvision", stops_dali=True)
    if _numbers(version) < OLDEST_TORCHVISION:
        return Check("torchvision", version, "it is older than 0.20", _BOTH)
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # RuntimeError if it was built for another torch
        return Check("torchvision", version, f"it cannot be imported: {error}", _BOTH, stops_dali=True)
    return Check("torchvision", version)


def _dali() -> Check:
    problem = installation.import_problem()
    if problem is not None:
        return Check("DALI", "does not work", problem.reason, problem.remedy, stops_dali=True)
    version = installation.dali_version() or "unknown"
    if _numbers(version) >= OLDEST_TESTED_DALI:
        return Check("DALI", version)
    oldest = ".".join(map(str, OLDEST_TESTED_DALI))
    # 1.50 was the last version for CUDA 11
    newer = "cuda120" if installation.dali_cuda_major() == 11 else installation.wanted_variant()
    problem_text = f"it is older than {oldest}, the oldest version that was tested"
    return Check("DALI", version, problem_text, installation.install_command(newer))


def _package() -> Check:
    found = installation.dali_distributions()
    value = installation.dali_variant() or "none found by pip"
    real = [name for name, is_real in found.items() if is_real]
    if len(real) > 1:
        command = installation.install_command(installation.wanted_variant())
        remedy = f"pip uninstall -y {' '.join(sorted(found))} && {command}"
        problem = "several are installed; they overwrite each other"
        return Check("DALI package", value, problem, remedy, stops_dali=True)
    if real and len(found) > 1:
        names = " ".join(sorted(set(found) - set(real)))
        return Check("DALI package", value, f"{names} is a placeholder without DALI in it", f"pip uninstall -y {names}")
    return Check("DALI package", value)


def _driver() -> Check:
    driver, problem = installation.driver_cuda(), installation.driver_problem()
    value = "none" if driver is None else f"CUDA {driver[0]}.{driver[1]}"
    if problem is None:
        return Check("NVIDIA driver", value)
    return Check("NVIDIA driver", value, problem.reason, problem.remedy, stops_dali=True)


def _gpus() -> Check:
    names, hidden = installation.gpu_names(), os.environ.get("CUDA_VISIBLE_DEVICES")
    found = ", ".join(f"{index}: {name}" for index, name in enumerate(names))
    none = "none: CPU mode" + (f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else "")
    return Check("GPU", found or none)


def _jpeg_engines() -> Check:
    answers, hidden = [], None
    for index in range(len(installation.gpu_names())):
        count = warm.jpeg_engines(index)
        said = f"{count}, {_exact_engine(index)}" if count else "none; CUDA and CPU threads decode JPEGs"
        answers.append(f"{index}: {said}")
        if not count and installation.most_jpeg_engines():
            hidden = hidden or installation.hidden_jpeg_engines(index)
    problem, remedy = (hidden.reason, hidden.remedy) if hidden else (None, None)
    return Check("JPEG engines", ", ".join(answers) or "none: CPU mode", problem, remedy)


def _exact_engine(index: int) -> str:
    try:
        from ..engine.planes import engines
    except ImportError as error:  # torchvision cannot be imported, which _torchvision() reports
        return f"but not with exact=True: {error}"
    engine = engines.engine_of(torch.device("cuda", index))
    if isinstance(engine, str):
        return f"but not with exact=True: {engine}"
    return f"with exact=True for files ({engine.kinds}) that were compared with Pillow's pixels"


def _connections() -> Check:
    name, default = "CUDA_DEVICE_MAX_CONNECTIONS", installation.CUDA_DEFAULT_CONNECTIONS
    note = installation.max_connections_note()
    problem, remedy = note.split(": ", 1) if note else (None, None)
    return Check(name, os.environ.get(name, f"not set (CUDA's default is {default})"), problem, remedy)


def _cores() -> Check:
    total, usable = os.cpu_count(), usable_cores()
    quota = f" (a CPU quota of {cpu_quota():.3g})" if cpu_quota() < (total or 1) else ""
    return Check("CPU cores", (str(usable) if usable == total else f"{usable} of {total}") + quota)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, such as (1, 53) for '1.53.0'."""
    parts = version.split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
