"""Every command of the pages runs, or stands in a list with the reason why it does not."""

import re
import runpy
import shlex
import sys

import pytest
from parity import measure

from dali_compat import cli
from docs.pages import PAGES, ROOT, commands

# a pattern of whole commands, and why they do not run here
NOT_RUN = {
    r"pip install .*": "needs the network; .ci/run installs as CONTRIBUTING.md says",
    r"DALI_COMPAT_URL=\S+ python -m build": "needs the network; tests/test_package.py builds without it",
    r"twine check .*": "looks at what the command before it has built",
    r"python -m dali_compat --help": "it ends the process: tests/test_cli.py does it",
    r"git clone .*": "needs the network",
    r"(python|accelerate launch .*) examples/\w+\.py .*": "tests/examples runs each (Accelerate's on two ranks)",
    r"python benchmarks/recipes.py .*": "needs CIFAR-10 or photos; tests/examples runs it on noise",
    r"python benchmarks/toolkit.py .*": "takes half a minute: tests/docs/test_toolkit.py runs it",
    r"(REPETITIONS=all )?pytest -n 3": "this is it",
    r"pytest tests/docs": "this is part of it",
    r'pytest -n 2 -m "not slow"': "this is part of it",
    r"python train.py": "a script of the page: tests/docs/test_snippets.py runs it",
    r"pytest -m gpu": "needs a GPU",
    r"tests/run_gpu.sh": "needs a GPU",
    r"DATA=/path/to/photos pytest tests/parity": "needs the reader's photos",
    r"ruff .*": "it looks at all files: .ci/run does it",
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
# what is added, so that a command takes seconds here
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
    """The command's words, with what makes it short."""
    words = shlex.split(command)
    for beginning, more in SHORTER.items():
        if command.startswith(beginning):
            words += shlex.split(more)
    return words


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", RUN)
def test_a_command_runs(command, here, monkeypatch):
    program, *words = short(re.sub(r"^TRITON_INTERPRET=1 ", "", command))  # of tests, which are not run here
    if program == "pytest":
        selects(words)
        return
    for file in here.glob("train.*"):
        file.unlink()  # which the command makes
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


def selects(words: list[str]) -> None:
    """pytest's arguments name a file, and with -k a word of a test in it."""
    file, *rest = words
    tests = re.findall(r"def (test_\w+)", (ROOT / file).read_text())
    assert tests and rest[:1] in ([], ["-k"]) and (not rest or any(rest[1] in name for name in tests))


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_every_reason_is_needed(pattern):
    assert any(re.fullmatch(pattern, command) for command in COMMANDS)


@pytest.mark.parametrize("beginning", SHORTER)
def test_every_shortening_is_needed(beginning):
    assert any(command.startswith(beginning) for command in RUN)


def test_every_command_of_the_package_is_told():
    told = {name for command in COMMANDS for name in re.findall(r"^python -m dali_compat (\w+)", command)}
    assert told == set(cli.COMMANDS)


def test_the_commands_of_ci_stand_in_the_pages():
    """It installs and tests as CONTRIBUTING.md says, and runs README's demo."""
    script = (ROOT / ".ci" / "run").read_text()
    install, tests = 'pip install -e ".[cuda130,test]"', "pytest -n 3"
    assert install in commands("CONTRIBUTING.md") and tests in commands("CONTRIBUTING.md")
    assert '-e ".[cuda130,test]"' in script and script.rstrip().splitlines()[-1] == tests
    assert "python -m dali_compat demo" in script and "python -m dali_compat demo" in commands("README.md")
