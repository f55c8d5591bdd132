"""Diagnosis of DALI, the driver and CUDA's queues, on simulated machines."""

import ctypes
import importlib.metadata
import subprocess
import sys
import types

import pytest
import torch

from dali_compat.runtime import installation

MISSING = ModuleNotFoundError("No module named 'nvidia.dali'", name="nvidia.dali")


@pytest.fixture
def machine(monkeypatch):
    """``machine(name=value, ...)`` makes functions of the installation module return ``value``."""

    def pretend(**facts):
        for name, value in facts.items():
            monkeypatch.setattr(installation, name, lambda *args, value=value: value)

    pretend(dali_distributions={"nvidia-dali-cuda130": True})
    return pretend


def working(cuda=13492):
    module = types.ModuleType("nvidia.dali")
    module.Pipeline, module.__version__, module.__cuda_version__ = object, "2.4.0", cuda
    return module, None


def write_package(site, name, version, files):
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:  # Python 3.13 lists only files that exist
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()


# --- is DALI installed ---------------------------------------------------------------------------------------------


def test_real_installation_has_no_problem():
    packages = [
        d for d in importlib.metadata.distributions() if (d.metadata["Name"] or "").startswith("nvidia-dali-cuda")
    ]
    if len(packages) != 1:
        pytest.skip("needs one installed DALI package")
    assert installation.dali_problem() is None
    assert installation.dali_version() == packages[0].version
    assert installation.dali_variant() == packages[0].metadata["Name"]
    assert f"cuda{installation.dali_cuda_major()}0" in installation.dali_variant()


@pytest.mark.parametrize(
    "cuda, command",
    [
        ("11.8", "pip install --upgrade --extra-index-url https://pypi.nvidia.com nvidia-dali-cuda110"),
        ("12.6", "pip install --upgrade nvidia-dali-cuda120"),
        ("13.2", "pip install --upgrade nvidia-dali-cuda130"),
        (None, "pip install --upgrade nvidia-dali-cuda130"),
    ],
)
def test_missing_dali_names_the_package_for_this_torch(machine, monkeypatch, cuda, command):
    machine(_import_dali=(None, MISSING), dali_distributions={})
    monkeypatch.setattr(torch.version, "cuda", cuda)
    variant = command.rsplit("-", 1)[1]
    assert installation.dali_problem() == f"DALI is not installed; the extra [{variant}] contains it: {command}"


WITHOUT_DALI = """
import importlib.metadata, importlib.util, sys
find, listed = importlib.util.find_spec, importlib.metadata.distributions
importlib.util.find_spec = lambda name, package=None: None if name == "nvidia" else find(name, package)
importlib.metadata.distributions = lambda: [x for x in listed() if "dali" not in x.metadata["Name"]]
sys.modules["nvidia.dali"] = None
import dali_compat
"""


def test_importing_without_dali_warns_once_in_the_main_process():
    """The warning points at the importing line and has the category of other fallback warnings."""
    spawned = "\nimport multiprocessing as m\nm.process._parent_process = object()\n"
    for code in (WITHOUT_DALI, WITHOUT_DALI.replace("import dali_compat", spawned + "import dali_compat")):
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        if spawned in code:
            assert done.stderr == ""
        else:
            assert done.stderr.startswith("<string>:7: FallbackWarning: dali_compat: DALI is not installed; the")
            assert "pip install" in done.stderr and done.stderr.count("\n") == 1


def test_folders_left_over_by_pip_uninstall_count_as_not_installed(machine):
    machine(_import_dali=(types.ModuleType("nvidia.dali"), None), dali_distributions={})
    assert installation.dali_problem().startswith("DALI is not installed; the extra [cuda")
    assert installation.dali_version() is None and installation.dali_cuda_major() is None


def test_placeholder_is_named_with_the_command_that_removes_it(machine):
    machine(_import_dali=(None, MISSING), dali_distributions={"nvidia-dali-cuda120": False})
    assert "nvidia-dali-cuda120 is installed, but it is a placeholder" in installation.dali_problem()
    assert "pip uninstall -y nvidia-dali-cuda120 && pip install" in installation.dali_problem()


def test_dali_under_OO_is_diagnosed(machine):
    """DALI appends to its docstrings at import."""
    error = TypeError("unsupported operand type(s) for +=: 'NoneType' and 'str'")
    machine(_import_dali=(None, error), _leaves_out_docstrings=True)
    assert installation.dali_problem().endswith("run without -OO and PYTHONOPTIMIZE=2")


def test_dali_that_fails_to_load_is_reported_in_one_line(machine):
    machine(_import_dali=(None, OSError("libdali.so: cannot open\nshared object file")))
    problem = installation.dali_problem()
    assert "does not load (OSError: libdali.so: cannot open shared object file)" in problem
    assert "pip uninstall -y nvidia-dali-cuda130 && pip install" in problem
    assert "\n" not in problem


def test_import_error_in_a_dependency_is_not_taken_for_missing_dali(machine):
    machine(_import_dali=(None, ModuleNotFoundError("No module named 'numpy'", name="numpy")), dali_distributions={})
    assert "No module named 'numpy'" in installation.dali_problem()


def test_unsupported_systems_are_told_that_there_is_no_build(machine, monkeypatch):
    machine(_import_dali=(None, MISSING), dali_distributions={})
    monkeypatch.setattr(installation.platform, "system", lambda: "Darwin")
    assert "no build for Darwin" in installation.dali_problem() and "pip install" not in installation.dali_problem()


def test_installation_imports_neither_dali_nor_torchvision():
    code = (
        "import sys; from dali_compat.runtime import installation\n"
        "print([m for m in ('nvidia.dali', 'torchvision') if m in sys.modules])\n"
        "sys.modules['nvidia.dali'] = None; print(installation.dali_problem())"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported, problem = output.splitlines()
    assert imported == "[]" and problem.startswith("DALI is ") and "pip install" in problem


# --- which packages ------------------------------------------------------------------------------------------------


def test_packages_are_found_by_name_and_placeholders_by_their_files(tmp_path, monkeypatch):
    real = ["nvidia/dali/__init__.py", "nvidia/dali/libdali.so"]
    write_package(tmp_path, "nvidia-dali-cuda130", "2.4.0", real)
    write_package(tmp_path, "nvidia_dali_cuda120", "0.0.0", ["nvidia_dali_cuda120-0.0.0.dist-info/METADATA"])
    write_package(tmp_path, "nvidia-dali-nightly-cuda130", "2.5.0", real)
    write_package(tmp_path, "nvidia-dali-tf-plugin-cuda120", "1.50.0", real)
    write_package(tmp_path, "nvidia-nvjpeg", "13.3", ["nvidia/cu13/lib/libnvjpeg.so.13"])
    everything = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: everything(path=[str(tmp_path)]))
    assert installation.dali_distributions() == {
        "nvidia-dali-cuda130": True,
        "nvidia-dali-cuda120": False,
        "nvidia-dali-nightly-cuda130": True,
    }
    assert installation.dali_variant() == "nvidia-dali-cuda120, nvidia-dali-cuda130, nvidia-dali-nightly-cuda130"


@pytest.mark.parametrize("first", ["real", "placeholder"])
def test_a_package_found_twice_is_real_if_one_copy_is(tmp_path, monkeypatch, first):
    """The two are in different folders of sys.path."""
    files = {"real": ["nvidia/dali/__init__.py"], "placeholder": ["nvidia_dali_cuda130-0.0.0.dist-info/METADATA"]}
    places = [tmp_path / name for name in sorted(files, key=lambda name: name != first)]
    for place in places:
        write_package(place, "nvidia-dali-cuda130", "2.4.0", files[place.name])
    everything = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: everything(path=list(map(str, places))))
    assert installation.dali_distributions() == {"nvidia-dali-cuda130": True}


def test_no_dali_package_gives_no_variant(tmp_path, monkeypatch):
    everything = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: everything(path=[str(tmp_path)]))
    assert installation.dali_distributions() == {} and installation.dali_variant() is None


# --- driver --------------------------------------------------------------------------------------------------------


def test_driver_older_than_dali_names_a_compatible_variant(machine):
    machine(_import_dali=working(13492), driver_cuda=(12, 4))
    assert installation.dali_problem() is None  # the CPU backend still works
    problem = installation.dali_problem(gpu=True)
    assert "DALI is built for CUDA 13, but the NVIDIA driver supports only CUDA 12.4" in problem
    assert "pip uninstall -y nvidia-dali-cuda130 && pip install --upgrade nvidia-dali-cuda120" in problem
    assert "driver 580 or newer" in problem and "\n" not in problem


def test_driver_too_old_for_every_dali_must_be_updated(machine):
    machine(_import_dali=working(12890), driver_cuda=(10, 2))
    assert installation.driver_problem().remedy == "install NVIDIA driver 525.60 or newer"


@pytest.mark.parametrize("driver, built_for", [((13, 0), 13492), ((13, 1), 12890), (None, 13492)])
def test_driver_that_is_new_enough_or_absent_is_no_problem(machine, driver, built_for):
    machine(_import_dali=working(built_for), driver_cuda=driver)
    assert installation.dali_problem(gpu=True) is None


@pytest.mark.parametrize("number, expected", [(13020, (13, 2)), (12040, (12, 4)), (0, None)])
def test_driver_version_is_decoded(monkeypatch, number, expected):
    def get_version(pointer):
        pointer._obj.value = number
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(cuDriverGetVersion=get_version))
    assert installation.driver_cuda() == expected


# --- JPEG engines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, capability, is_there, is_hidden",
    [
        ("NVIDIA H100", (9, 0), False, True),
        ("NVIDIA H100", (9, 0), True, False),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), False, False),
        ("Tesla T4", (7, 5), False, False),
        ("NVIDIA GeForce RTX 3090", (8, 6), False, False),
    ],
)
def test_jpeg_engines_hidden_by_a_container_are_detected(monkeypatch, name, capability, is_there, is_hidden):
    def load(library):
        if not is_there:
            raise OSError(library)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
    hidden = installation.hidden_jpeg_engines(0)
    assert (hidden is not None) == is_hidden
    if hidden is not None:
        assert name in hidden.reason and "compute,utility)" in hidden.reason and "video" in hidden.remedy


# --- CUDA's queues -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, count, cause",
    [
        (None, 8, "CUDA had started before dali_compat was imported"),
        ("8", 8, "CUDA_DEVICE_MAX_CONNECTIONS is '8'"),
        ("many", 8, "CUDA_DEVICE_MAX_CONNECTIONS is 'many'"),
        ("31", 31, "CUDA_DEVICE_MAX_CONNECTIONS is '31'"),
        ("32", 32, None),
    ],
)
def test_too_few_queues_are_explained(monkeypatch, value, count, cause):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", value)
    assert installation.max_connections() == count
    note = installation.max_connections_note()
    if cause is None:
        assert note is None
    else:
        assert note.startswith(f"{cause}, so CUDA has {count} hardware queues")
        assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in note and "\n" not in note


def test_queues_are_not_checked_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert installation.max_connections_note() is None
