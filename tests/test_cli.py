"""python -m dali_compat: doctor on simulated machines, the command line, and demo and show."""

import contextlib
import fcntl
import importlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import types
from email.message import Message
from pathlib import Path

import numpy as np
import programs
import pytest
import torch
from helpers import make_folder
from PIL import Image

import dali_compat
from dali_compat import cli
from dali_compat.cli import demo, doctor
from dali_compat.engine.dali import warm
from dali_compat.engine.planes import engines
from dali_compat.runtime import installation


@pytest.fixture
def machine(monkeypatch):
    """Simulate a healthy machine with one H100. ``machine(name=value)`` replaces functions of the installation
    module."""

    def pretend(**facts):
        for name, value in facts.items():
            monkeypatch.setattr(installation, name, lambda *args, value=value: value)

    pretend(
        import_problem=None,
        driver_problem=None,
        dali_version="2.4.0",
        dali_cuda_major=13,
        dali_distributions={"nvidia-dali-cuda130": True},
        driver_cuda=(13, 0),
        gpu_names=["NVIDIA H100"],
        hidden_jpeg_engines=None,
        max_connections_note=None,
    )
    monkeypatch.setattr(warm, "jpeg_engines", lambda index: 7)
    monkeypatch.setattr(engines, "engine_of", lambda device: "no Triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    return pretend


def check(name):
    return next(found for found in doctor.checks() if found.name == name)


def problems():
    return [found.name for found in doctor.checks() if found.problem]


# --- doctor --------------------------------------------------------------------------------------------------------


def test_healthy_machine_has_no_problem(machine, capsys):
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for fact in (
        "2.4.0",
        "nvidia-dali-cuda130",
        "CUDA 13.0",
        "NVIDIA H100",
        "0: 7, but not with exact=True: no Triton",
        torch.__version__,
    ):
        assert fact in output
    assert problems() == []
    assert output.rstrip().endswith("DALI works here, on the GPU.")


def test_doctor_without_a_gpu_reports_cpu_mode_and_no_problem(machine, monkeypatch, capsys):
    machine(driver_cuda=None, gpu_names=[])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert problems() == []
    assert "none: CPU mode" in output and "on the CPU" in output
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert check("GPU").value == "none: CPU mode (CUDA_VISIBLE_DEVICES is '-1')"


def test_missing_dali_gives_exit_code_1_and_the_command(machine, capsys):
    machine(import_problem=installation.Problem("DALI is not installed", "pip install --upgrade nvidia-dali-cuda130"))
    assert cli.main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "WRONG  DALI: DALI is not installed" in output
    assert "fix: pip install --upgrade nvidia-dali-cuda130" in output
    assert "works here" not in output


def test_two_dali_packages_are_a_problem(machine):
    machine(dali_distributions={"nvidia-dali-cuda130": True, "nvidia-dali-cuda120": True})
    found = check("DALI package")
    assert found.stops_dali and found.value == "nvidia-dali-cuda120, nvidia-dali-cuda130"
    assert found.remedy.startswith("pip uninstall -y nvidia-dali-cuda120 nvidia-dali-cuda130 && pip install")


def test_a_placeholder_next_to_the_real_package_is_noted(machine):
    machine(dali_distributions={"nvidia-dali-cuda130": True, "nvidia-dali-cuda120": False})
    found = check("DALI package")
    assert "nvidia-dali-cuda120 is a placeholder" in found.problem and not found.stops_dali
    assert found.remedy == "pip uninstall -y nvidia-dali-cuda120"


def test_a_driver_too_old_for_dali_is_a_problem(machine):
    machine(driver_problem=installation.Problem("DALI is built for CUDA 13", "install a driver"), driver_cuda=(12, 4))
    found = check("NVIDIA driver")
    assert (found.value, found.problem, found.remedy) == ("CUDA 12.4", "DALI is built for CUDA 13", "install a driver")
    assert found.stops_dali


@pytest.mark.parametrize(
    "built_for, driver, problem",
    [
        (None, (13, 0), "CPU-only build"),
        ("13.2", (12, 4), "built for CUDA 13.2"),
        ("12.6", (13, 0), None),
        ("13.2", (13, 0), None),
        (None, None, None),
    ],
)
def test_torch_that_cannot_use_the_gpu_is_noted(machine, monkeypatch, built_for, driver, problem):
    machine(driver_cuda=driver)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = check("torch")
    assert not found.stops_dali
    assert found.problem is None if problem is None else problem in found.problem and found.remedy


def test_old_dali_is_noted_but_does_not_stop(machine, capsys):
    machine(dali_version="1.50.0", dali_cuda_major=11)
    assert cli.main(["doctor"]) == 0
    assert "nvidia-dali-cuda120" in check("DALI").remedy  # there is no later build for CUDA 11
    assert "NOTE  DALI: it is older than 1.53" in capsys.readouterr().out
    machine(dali_version="1.53.0", dali_cuda_major=13)
    assert check("DALI").problem is None


def test_too_few_hardware_queues_are_noted_with_the_remedy(machine):
    machine(max_connections_note="CUDA has 8 hardware queues: set CUDA_DEVICE_MAX_CONNECTIONS=32")
    found = check("CUDA_DEVICE_MAX_CONNECTIONS")
    assert (found.problem, found.remedy) == ("CUDA has 8 hardware queues", "set CUDA_DEVICE_MAX_CONNECTIONS=32")
    assert not found.stops_dali


def test_a_missing_or_old_torchvision_is_a_problem(machine, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    assert check("torchvision").stops_dali and check("torchvision").remedy == "pip install torchvision"
    monkeypatch.setattr(doctor, "_version", lambda package: "0.19.1")
    assert "older than 0.20" in check("torchvision").problem


def test_doctor_runs_without_torchvision():
    code = "import sys; sys.modules['torchvision'] = None; from dali_compat.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "" and "WRONG  torchvision: it cannot be imported" in done.stdout


def test_doctor_lists_the_jpeg_engines_of_each_gpu(machine, monkeypatch):
    machine(gpu_names=["A", "B", "C"])
    counts, found_there = (
        [7, 1, 0],
        [types.SimpleNamespace(kinds="gray, 4:4:4"), "its pixels differ from Pillow's for all kinds of JPEG"],
    )
    monkeypatch.setattr(warm, "jpeg_engines", lambda index: counts[index])
    monkeypatch.setattr(engines, "engine_of", lambda device: found_there[device.index])
    output = "0: 7, with exact=True for files (gray, 4:4:4) that were compared with Pillow's pixels"
    output += ", 1: 1, but not with exact=True: its pixels differ from Pillow's for all kinds of JPEG"
    found = check("JPEG engines")
    assert found.value == f"{output}, 2: none; CUDA and CPU threads decode JPEGs" and found.problem is None
    machine(gpu_names=["A", "B", "C"], hidden_jpeg_engines=installation.Problem("hidden", "add video"))
    found = check("JPEG engines")
    assert (found.problem, found.remedy, found.stops_dali) == ("hidden", "add video", False)
    monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", "0")
    assert check("JPEG engines").problem is None


def test_every_problem_comes_with_a_remedy_and_checks_are_frozen(machine):
    machine(
        import_problem=installation.Problem("a", "b"),
        driver_problem=installation.Problem("c", "d"),
        dali_distributions={"nvidia-dali-cuda130": True, "nvidia-dali-cuda120": True},
        max_connections_note="e: f",
    )
    wrong = [found for found in doctor.checks() if found.problem]
    assert len(wrong) == 4 and all(found.remedy for found in wrong)
    stopping = [found.name for found in doctor.checks() if found.stops_dali]
    assert stopping == ["DALI", "DALI package", "NVIDIA driver"] and set(stopping) < {found.name for found in wrong}
    with pytest.raises(AttributeError):
        wrong[0].value = "changed"


def test_doctor_json_has_the_same_checks(machine, capsys):
    machine(import_problem=installation.Problem("DALI is not installed", "pip install it"))
    assert cli.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["dali_compat"] == dali_compat.__version__ and found["exit_code"] == 1
    assert [doctor.Check(**one) for one in found["checks"]] == doctor.checks()
    dali = next(one for one in found["checks"] if one["name"] == "DALI")
    assert dali | {"problem": "DALI is not installed", "remedy": "pip install it", "stops_dali": True} == dali
    machine(import_problem=None)
    assert cli.main(["doctor", "--json"]) == 0 and json.loads(capsys.readouterr().out)["exit_code"] == 0


def test_doctor_runs_on_this_machine():
    done = programs.python("-m", "dali_compat", "doctor")
    assert done.returncode == int(installation.dali_problem() is not None), done.stdout + done.stderr
    assert done.stdout.startswith("Python ")


# --- the command line ----------------------------------------------------------------------------------------------


def help_text(capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_has_a_line_for_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py") if "\ndef run(" in path.read_text()}
    assert set(cli.COMMANDS) == modules
    output = help_text(capsys).splitlines()
    assert all(len(line) <= 80 for line in output)
    for name, summary in cli.COMMANDS.items():
        assert [line.split() for line in output].count([name, *summary.split()]) == 1, name


def test_help_repeats_the_description_of_the_readme(capsys):
    """The description and the line to change."""
    readme, output = (Path(__file__).parents[1] / "README.md").read_text(), help_text(capsys)
    first = re.search(r"^\*\*(.*?)\*\*$", readme, re.MULTILINE)[1]
    assert " ".join(first.split()) in " ".join(output.split())
    change = re.search(r"^```diff\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[1]
    assert all(f"\n  {line}\n" in output for line in change.splitlines())


@pytest.mark.parametrize(
    "urls, pages",
    [
        (None, "docs/README.md in the project's repository"),
        (["Source, https://example.org/a", "Documentation, https://example.org/a/docs"], "https://example.org/a/docs"),
    ],
)
def test_help_ends_with_the_address_of_the_documentation(urls, pages, capsys, monkeypatch):
    about = Message()
    for url in urls or []:
        about["Project-URL"] = url
    monkeypatch.setattr(cli.metadata, "metadata", lambda name: about)
    assert help_text(capsys).splitlines()[-1] == f"  {pages}"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_commands_have_help_without_docstrings(name, capsys, monkeypatch):
    """python -OO removes docstrings."""
    monkeypatch.setattr(importlib.import_module(f"dali_compat.cli.{name}"), "__doc__", None)
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0 and name in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--nonsense"], ["nonsense"], ["demo", "--images", "many"]])
def test_wrong_arguments_give_exit_code_2(argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "words, output",
    [
        ("demo --images 0", "at least 1"),
        ("demo --batch-size 0", "at least 1"),
        ("demo --epochs 0", "at least 1"),
        ("demo --workers -1", "--workers at least 0"),
        ("demo --out nowhere/a.png", "--out nowhere/a.png cannot be written: No such file or directory"),
        ("demo --out /", "--out / cannot be written: Is a directory"),
        ("demo --device cuda:99", "--device cuda:99: torch sees "),
        ("bench nowhere", "no such file or folder: nowhere"),
        ("check nowhere", "check: no such file or folder: nowhere\n"),
        ("pack nowhere out.tar", "nowhere is not a folder"),
        ("pack labels.csv out.tar", "labels.csv is not a folder"),
        (
            "check labels.csv --option imag=file",
            "--option imag: DALIImageTable has no argument imag; did you mean image?",
        ),
        (
            "bench labels.csv --option imag=file",
            "--option imag: DALIImageTable has no argument imag; did you mean image?",
        ),
        ("bench labels.csv --transform trian", "is not defined; --transform takes train, eval, module:name"),
        ("run --exat train.py", "unknown option --exat; did you mean --exact?"),
        ("run --devise=cpu train.py", "unknown option --devise; did you mean --device?"),
        ("run", "pass a script, or -m and a module"),
        ("doctor --jsn", "unknown option --jsn"),
    ],
)
def test_a_wrong_argument_prints_one_line_and_exits_with_2(words, output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,cat\n")
    with pytest.raises(SystemExit) as stop:
        cli.main(words.split())
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.startswith(f"{words.split()[0]}: ") and err.count("\n") == 1 and output in err
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize("option", ["--device gpu", "--device mps"])
@pytest.mark.parametrize("command", ["run", "bench"])
def test_invalid_device_exits_with_2(option, command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, *option.split(), "train.py"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and f"error: argument {option.split()[0]}: " in err
    assert "cuda:1" in err


def test_an_unknown_command_suggests_a_similar_one(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bnch", "photos"])
    output = capsys.readouterr().err
    assert stop.value.code == 2 and output == "dali_compat: unknown command bnch; did you mean bench?\n"


def test_without_a_command_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    output = capsys.readouterr().out
    assert stop.value.code == 0 and all(f"    {name} " in output for name in cli.COMMANDS)


def test_version_option_prints_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"dali_compat {dali_compat.__version__}\n"


def _interrupted(*_):
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("release unlocked lock")


@pytest.mark.parametrize("command", ["bench", "check", "demo", "doctor"])
@pytest.mark.parametrize("how", [signal.default_int_handler, _interrupted])
def test_ctrl_c_is_one_line_and_exit_code_130(command, how, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module(f"dali_compat.cli.{command}"), "run", lambda args: how(2, None))
    assert cli.main([command, *(["a"] if command in ("bench", "check") else [])]) == 130
    assert capsys.readouterr().err == f"\n{command}: interrupted\n"


def test_errors_other_than_interrupts_propagate(monkeypatch):
    def fails(args):
        raise RuntimeError("wrong")

    monkeypatch.setattr(doctor, "run", fails)
    with pytest.raises(RuntimeError, match="wrong"):
        cli.main(["doctor"])


def test_ctrl_c_in_demo_prints_one_line_and_exits_with_130(tmp_path):
    """Signal the process group, as a terminal does."""
    command = [sys.executable, "-m", "dali_compat", "demo", "--images", "100000", "--device", "cpu"]
    terminal, its_end = pty.openpty()  # without a terminal there is no bar
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    demo = subprocess.Popen(command, cwd=tmp_path, stderr=its_end, start_new_session=True)
    os.close(its_end)
    output = b""
    try:
        while b"img/s" not in output:
            output += os.read(terminal, 1000)
        os.killpg(demo.pid, signal.SIGINT)
        with contextlib.suppress(OSError):  # the process has ended
            while part := os.read(terminal, 1000):
                output += part
        assert demo.wait(120) == 130 and b"Traceback" not in output and output.endswith(b"\ndemo: interrupted\r\n")
    finally:
        demo.kill()
        os.close(terminal)


@pytest.mark.parametrize("command", ["bench", "show"])
@pytest.mark.parametrize("transform, output", [("train", "cut.jpg"), ("T.ToTensor()", "same height x width")])
def test_a_command_ends_with_one_line_when_a_file_is_broken(command, transform, output, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = make_folder(tmp_path / "images", classes=1, per_class=3, special=False)
    words = [command, str(root), "--device", "cpu", "--transform", transform]
    words += ["--batch-size", "2"] if command == "bench" else []
    words += ["--batches", "2"] if command == "bench" else []
    if transform == "train":
        whole = next((root / "class_a").iterdir())
        (root / "class_a" / "cut.jpg").write_bytes(whole.read_bytes()[:400])
    assert cli.main(words) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"{command}: ") and err.count("\n") == 1 and output in err
    if transform == "train":
        assert "--on-error skip" in err and "dali_compat check" in err
        assert cli.main([*words, "--on-error", "skip"]) == 0


def test_show_suggests_the_split_for_a_folder_of_splits(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = make_folder(tmp_path / "imagenet", classes=2, per_class=2, special=False)
    for name, split in (("class_a", "train"), ("class_b", "val")):
        (root / name).rename(root / split)
    assert cli.main(["show", "imagenet", "--device", "cpu"]) == 0
    assert "the classes are called train, val; did you mean imagenet/train?" in capsys.readouterr().err


# --- demo ----------------------------------------------------------------------------------------------------------


def test_write_folder_is_reproducible_and_balances_the_classes(tmp_path):
    made = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        demo.write_folder(tmp_path / name, 6, classes=2, seed=seed)
        files = sorted((tmp_path / name).glob("*/*.jpg"))
        assert [path.parent.name for path in files] == ["class_0"] * 3 + ["class_1"] * 3
        made.append([path.read_bytes() for path in files])
    assert made[0] == made[1] != made[2]
    assert len({Image.open(path).size for path in files}) > 1


def test_levels_inverts_to_tensor():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    for error in (0, -2e-7, 2e-7):  # errors of DALI, much smaller than a level
        assert np.array_equal(demo.levels(images + error), pixels)


def test_save_rows_stacks_rows_vertically(tmp_path):
    rows = {str(value): np.full((2, 10, 20, 3), value, np.uint8) for value in (50, 100, 150)}
    demo.save_rows(tmp_path / "sheet.png", rows)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (3 * 26, 44, 3)
    assert [int(sheet[16 + row * 26 + 5, 30, 0]) for row in range(3)] == [50, 100, 150]


def test_compare_pixels_detects_a_wrong_image(tmp_path, monkeypatch):
    class Brighter(torch.utils.data.DataLoader):
        def __init__(self, dataset, device=None, **options):
            super().__init__(dataset, **options)

        def __iter__(self):
            return ((images * 0.5 + 0.25, labels) for images, labels in super().__iter__())

    demo.write_folder(tmp_path / "images", 4, classes=2)
    monkeypatch.setattr(dali_compat, "DataLoader", Brighter)
    mean, largest = demo.compare_pixels(str(tmp_path / "images"), torch.device("cpu"), str(tmp_path / "out.png"))
    assert 10 < mean < 64 and 40 < largest <= 64


def test_one_pass_returns_images_per_second(monkeypatch):
    """Three batches of 4, 4 and 2 images. The clock is read at the start, at the first batch and at the end."""
    clock = iter(range(10, 1000))
    monkeypatch.setattr(demo.time, "perf_counter", lambda: next(clock))

    class Loader(list):
        sampler = range(10)

    loader = Loader([(torch.zeros(n, 3, 2, 2), torch.zeros(n)) for n in (4, 4, 2)])
    assert demo.one_pass(loader, torch.device("cpu"), "") == (1, 10 / 2)


def run_demo(out, *before):
    words = "demo --images 24 --batch-size 8 --epochs 2 --workers 1 --device cpu --out"
    code = "\n".join(["import sys", *before, "from dali_compat.cli import main", "sys.exit(main(sys.argv[1:]))"])
    return programs.run(code, *words.split(), str(out))


def read_picture(out):
    """Return the rows of the demo's picture as int arrays of shape (224, width, 3)."""
    sheet = np.asarray(Image.open(out)).astype(int)
    assert sheet.shape == (3 * 240, 8 * 228 - 4, 3)
    return [sheet[row * 240 + 16 : (row + 1) * 240] for row in range(3)]


def test_demo_prints_rates_and_draws_the_difference(tmp_path):
    if installation.dali_problem():
        pytest.skip(installation.dali_problem())
    done = run_demo(tmp_path / "demo.png")
    assert done.returncode == 0, done.stdout + done.stderr
    rates = dict(re.findall(r"^(torchvision|dali_compat) +([\d,]+) ", done.stdout, re.MULTILINE))
    assert set(rates) == {"torchvision", "dali_compat"} and all(
        int(rate.replace(",", "")) > 0 for rate in rates.values()
    )
    assert "RandomResizedCrop" in done.stdout  # the plan
    assert "without effect" not in done.stdout
    assert "img/s]" not in done.stderr and "\r" not in done.stderr  # no progress bars without a terminal
    mean, largest = re.search(r"([\d.]+) on average and (\d+) at most", done.stdout).groups()
    assert 0 < float(mean) < 0.3 and int(largest) < 40  # .16 on photos; 0 would mean that torchvision loaded them
    theirs, ours, difference = read_picture(tmp_path / "demo.png")
    assert theirs.std() > 20
    assert np.abs(theirs - ours).mean() < 0.3
    assert np.array_equal(np.clip(np.abs(theirs - ours) * demo.AMPLIFICATION, 0, 255)[:, :224], difference[:, :224])


def test_demo_without_dali_says_what_to_install_and_still_runs(tmp_path):
    without = "sys.modules.update(dict.fromkeys([name for name in sys.modules if name.startswith('nvidia.dali')]))"
    done = run_demo(tmp_path / "demo.png", without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("DALI is ") and "pip install" in done.stdout
    assert "0.000 on average and 0 at most" in done.stdout
    assert (tmp_path / "demo.png").exists()


def test_show_draws_the_same_picture_each_time(image_root, tmp_path, capsys):
    out = tmp_path / "shown.png"
    words = ["--transform", "T.Compose([T.RandomResizedCrop(24), T.ToTensor()])", "--images", "4", "--device", "cpu"]
    assert cli.main(["show", str(image_root), *words, "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert "DALI route on cpu" in output and str(out) in output
    drawn = out.read_bytes()
    assert Image.open(out).width > 2 * 224
    assert cli.main(["show", str(image_root), *words, "--out", str(out)]) == 0 and out.read_bytes() == drawn
    for wrong in (["--images", "0"], ["--out", str(tmp_path / "nowhere" / "x.png")]):
        with pytest.raises(SystemExit):
            cli.main(["show", str(image_root), *words, *wrong])
