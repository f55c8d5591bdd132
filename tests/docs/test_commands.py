"""Run every command of the pages, or list why it does not run here."""

import re
import runpy
import shlex
import sys

import pytest
from parity import measure

from dali_compat import cli
from docs.pages import PAGES, ROOT, commands

# Patterns of whole commands that do not run here, with the reason.
NOT_RUN = {
    r"pip install .*": "needs the network; .ci/run installs as CONTRIBUTING.md says",
    r"DALI_COMPAT_URL=\S+ python -m build": "needs the network; tests/test_package.py builds without it",
    r"twine check .*": "looks at what the command before it has built",
    r"python -m dali_compat --help": "it ends the process: tests/test_cli.py does it",
    r"git clone .*": "needs the network",
    r"(python|accelerate launch .*) examples/\w+\.py .*": "tests/examples runs each (Accelerate's on two ranks)",
    r"python benchmarks/recipes.py .*": "needs CIFAR-10 or photos; tests/examples runs it on noise",
    r"python benchmarks/peers.py .*": "needs other loaders and minutes: tests/docs/test_tables.py checks its table",
    r"python benchmarks/toolkit.py .*": "takes half a minute: tests/docs/test_toolkit.py runs it",
    r"(REPETITIONS=all )?pytest -n 3": "this is it",
    r"pytest tests/docs": "this is part of it",
    r'pytest -n 2 -m "not slow"': "this is part of it",
    r"python train.py": "a script of the page: tests/docs/test_snippets.py runs it",
    r"pytest -m gpu": "needs a GPU",
    r"tests/run_gpu.sh": "needs a GPU",
    r"DATA=/path/to/photos pytest tests/parity": "needs the reader's photos",
    r"ruff .*|codespell": "it looks at all files: .ci/run does it",
    r"mypy": "it takes half a minute: tests/test_types.py runs it",
    r"python tests/parity/measure.py --only GaussianBlur .*": "would write into the committed results",
    r"(python|torchrun .*) -m dali_compat run .*": "it would be pytest's __main__: tests/contract/test_run.py does it",
    r"(python|torchrun --nproc-per-node 8) examples/imagenet/train.py .*": "tests/examples/test_imagenet.py does it",
    r"python examples/imagenet/data.py DATA": "the job script's step: tests/examples/test_imagenet.py runs that",
    r"python -m dali_compat( (bench|check|pack))?": "the name of a command, in a sentence",
    r"python tests/faults/crash.py --kills 100": "takes an hour; tests/faults/test_crash.py does it with fewer kills",
    r"python tests/parity/chains.py --seconds 600": "takes ten minutes; tests/parity/test_chains.py tries fewer",
    r"python tests/faults/data_sets.py --seconds 3600": "takes an hour; tests/faults/test_data_sets.py tries fewer",
    r"python tests/faults/run.py --files 100000": "takes hours; tests/faults/test_faults.py does it with fewer files",
}
# Options added to commands so that they take seconds.
SHORTER = {
    "python -m dali_compat demo": "--images 8 --epochs 1 --workers 1 --batch-size 4 --device cpu",
    "python -m dali_compat bench imagenet/train": "--batches 2 --batch-size 2 --workers 1 --device cpu",
    "python -m dali_compat check imagenet/train": "--workers 1",
    "python tests/parity/measure.py --data photos": "--most 2 --device cpu",
    "python tests/parity/measure.py --only": "--most 2 --device cpu",
    "python benchmarks/imagefolder.py": "--replicate 2 --rounds 1 --warmup 1 --batches 2 --batch-size 2 --workers 1 "
    "--cases ours --device cpu",
    "python benchmarks/plot.py": "--out .",
    "python benchmarks/strip.py": "--out strip.jpg",
}
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(page)))
RUN = [command for command in COMMANDS if not any(re.fullmatch(pattern, command) for pattern in NOT_RUN)]


def short(command: str) -> list[str]:
    """Return the command's words, with the options that shorten it."""
    words = shlex.split(command)
    for beginning, more in SHORTER.items():
        if command.startswith(beginning):
            words += shlex.split(more)
    return words


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", RUN)
def test_command_of_a_page_runs(command, here, monkeypatch):
    # sets a variable for pytest, whose tests do not run here
    program, *words = short(re.sub(r"^TRITON_INTERPRET=1 ", "", command))
    if program == "pytest":
        check_selection(words)
        return
    for file in here.glob("train.*"):
        file.unlink()  # the command creates it
    if words[:2] == ["-m", "dali_compat"]:
        assert cli.main(words[2:]) == 0
        return
    if words[0] == "tests/parity/measure.py":
        assert measure.main(words[1:]) == 0
        return
    assert words[0].startswith("benchmarks/")
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(here / "benchmarks")
    runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def check_selection(words: list[str]) -> None:
    """Check that pytest's arguments name a file and, with -k, a word in a test's name."""
    file, *rest = words
    tests = re.findall(r"def (test_\w+)", (ROOT / file).read_text())
    assert tests and rest[:1] in ([], ["-k"]) and (not rest or any(rest[1] in name for name in tests))


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_every_excluded_command_occurs_in_a_page(pattern):
    assert any(re.fullmatch(pattern, command) for command in COMMANDS)


@pytest.mark.parametrize("beginning", SHORTER)
def test_every_shortened_command_runs(beginning):
    assert any(command.startswith(beginning) for command in RUN)


def test_every_command_of_the_package_is_documented():
    documented = {name for command in COMMANDS for name in re.findall(r"^python -m dali_compat (\w+)", command)}
    assert documented == set(cli.COMMANDS)


def test_commands_of_ci_occur_in_the_pages():
    """CI installs and tests as in CONTRIBUTING.md, and runs the README's demo."""
    script = (ROOT / ".ci" / "run").read_text()
    install, tests = 'pip install -e ".[cuda130,test]"', "pytest -n 3"
    assert install in commands("CONTRIBUTING.md") and tests in commands("CONTRIBUTING.md")
    assert '-e ".[cuda130,test]"' in script and script.rstrip().splitlines()[-1] == tests
    assert "python -m dali_compat demo" in script and "python -m dali_compat demo" in commands("README.md")
