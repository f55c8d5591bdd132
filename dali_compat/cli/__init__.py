"""The commands of `python -m dali_compat`, one module each with add_arguments(parser) and run(args)."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from importlib import metadata

import dali_compat
from dali_compat.cli.arguments import UsageError, did_you_mean, is_data_error, is_interrupt, remedy_of

COMMANDS = {
    "demo": "load generated images with torchvision and DALI, and compare",
    "doctor": "find problems with the installation, and how to fix them",
    "run": "run an unchanged script with dali_compat's loader for images",
    "show": "save a picture of transformed images with their labels",
    "bench": "measure how fast your data loads, and what limits it",
    "check": "find damaged images in a folder or an archive before training",
    "pack": "pack a folder into a RecordIO, TFRecord, LMDB or tar file",
}
_ABOUT = """\
A faster DataLoader for training on images with PyTorch. Change one import, or
none. A drop-in replacement for PyTorch's image loading that decodes and
transforms whole batches with NVIDIA DALI, on the GPU or on the CPU.

One line of a script changes:

  -from torch.utils.data import DataLoader
  +from dali_compat import DataLoader

or none: python -m dali_compat run train.py
"""
_MORE = """\
on a fresh machine:
  python -m dali_compat demo         needs neither data nor a GPU
in a script:
  print(loader.explain())            where each transform runs
documentation:
  python -m pydoc dali_compat.DataLoader
  {pages}
"""
_RAW = argparse.RawDescriptionHelpFormatter


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` are the arguments after the program's name.

    A usage error prints a message and exits with code 2. Ctrl-C prints one line and returns 130, except under `run`,
    where the program handles Ctrl-C.
    """
    argv = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    name = next((word for word in argv if word in COMMANDS), "dali_compat")
    try:
        if name != argv[0] and not argv[0].startswith("-"):
            raise UsageError(f"unknown command {argv[0]}{did_you_mean(argv[0], COMMANDS)}")
        return _main(argv)
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, Exception) as error:
        if name != "run" and is_interrupt(error):
            print(f"\n{name}: interrupted", file=sys.stderr)
            return 130
        if name == "run" or not is_data_error(error):
            raise
        print(f"{name}: " + "; ".join(filter(None, (str(error), remedy_of(error)))), file=sys.stderr)
        return 1


def _main(argv: Sequence[str]) -> int:
    more = _MORE.format(pages=_pages())
    parser = argparse.ArgumentParser("python -m dali_compat", description=_ABOUT, epilog=more, formatter_class=_RAW)
    parser.add_argument("--version", action="version", version=f"dali_compat {dali_compat.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        if name not in argv:  # its module may have expensive imports
            commands.add_parser(name, help=summary)
            continue
        module = importlib.import_module(f"dali_compat.cli.{name}")
        first_line = (module.__doc__ or "").partition("\n")[0]  # there are no docstrings with -OO
        command = commands.add_parser(name, help=summary, description=first_line)
        module.add_arguments(command)
        command.set_defaults(run=module.run, options=re.findall("--[a-z-]+", command.format_help()))
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        given = unknown[0].partition("=")[0]
        raise UsageError(f"unknown option {given}{did_you_mean(given, args.options)}")
    return args.run(args)


def _pages() -> str:
    """Return the documentation's address. Without one, return its location in the repository."""
    try:
        found = metadata.metadata("dali_compat").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        found = []
    addresses = dict(line.split(", ", 1) for line in found)
    return addresses.get("Documentation", "docs/README.md in the project's repository")
