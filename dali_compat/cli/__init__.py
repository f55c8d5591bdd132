"""The commands of `python -m dali_compat`: one module each, with add_arguments(parser) and run(args) -> exit code."""

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = ("bench", "check", "demo", "doctor", "pack", "parity", "run")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argv: the arguments after the program's name; default sys.argv's."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m dali_compat", description="PyTorch image loading on NVIDIA DALI")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in argv[:1] if set(argv[:1]) <= set(COMMANDS) and argv else COMMANDS:  # the others import much
        module = importlib.import_module(f"dali_compat.cli.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return args.run(args)
