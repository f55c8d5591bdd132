"""Run a program, and make torch's DataLoader use DALI for images.

The program is a script, or a module after -m, with its own arguments. It does not have to be changed.
"""

import argparse
import builtins
import importlib.machinery
import io
import itertools
import os
import pkgutil
import sys
from types import ModuleType, TracebackType
from typing import Any

import dali_compat
from dali_compat.cli.arguments import UsageError, add_on_error, device_name, is_data_error, remedy_of

from ..runtime.internals import module_runner


def add_arguments(parser) -> None:
    parser.add_argument("--exact", action="store_true", help="torchvision's pixels, instead of the fastest kernels")
    where = "where batches go: cpu, cuda, cuda:1 (default: the GPU if there is one)"
    parser.add_argument("--device", type=device_name, help=where)
    parser.add_argument(
        "--fallback", choices=("warn", "silent", "error"), default="warn", help="what to do if a loader cannot use DALI"
    )
    add_on_error(parser)
    parser.add_argument("--quiet", action="store_true", help="do not print what each loader runs on")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="script or module, and its arguments")
    parser.usage = f"{parser.prog} [options] (script | -m module) [arguments]"


def run(args) -> int:
    """Run the program as python does. Return 0, or 2 if the script cannot be opened. The program's exceptions
    propagate."""
    if not args.program:
        raise UsageError("pass a script, or -m and a module, as in: run train.py --epochs 90")
    name = args.program[0]
    dali_compat.install(
        exact=args.exact,
        device=args.device,
        fallback=args.fallback,
        on_error=args.on_error,
        verbose=not args.quiet and os.environ.get("RANK", "0") == "0",  # other ranks would print the same
    )
    sys.argv = ["-m", *args.program[1:]] if args.is_module else args.program
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    try:
        if args.is_module:
            _begin_path_with(os.getcwd())
            module_runner()(name)
        elif type(pkgutil.get_importer(name)) is not type(None):  # a folder or an archive with a __main__.py
            _begin_path_with(os.path.abspath(name))
            module_runner()("__main__", alter_argv=False)
        else:
            return _run_script(main, name)
    except BaseException:
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise
    return 0


def _run_script(main: ModuleType, name: str) -> int:
    path = os.path.abspath(name)
    try:
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        return 2
    _begin_path_with(os.path.dirname(os.path.realpath(path)))
    vars(main).update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    exec(compile(text, path, "exec", dont_inherit=True), vars(main))
    return 0


def _begin_path_with(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _without_our_frames(hook: Any) -> Any:
    """Return an excepthook that calls ``hook`` without this module's frames in the traceback, and prints a remedy.

    If ``hook`` is Python's default, the traceback of an error in the data also omits the loader's frames.
    """

    def excepthook(kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        following, ours = trace, None
        while following is not None:
            if following.tb_frame.f_code.co_filename == __file__:
                ours = following
            following = following.tb_next
        trace = trace if ours is None else ours.tb_next
        if is_data_error(error) and hook is sys.__excepthook__:
            trace, error.__cause__, error.__suppress_context__ = _until_loader(trace), None, True
        hook(kind, error.with_traceback(trace), trace)
        if remedy := _remedy(error):
            print(remedy, file=sys.stderr)

    return excepthook


def _until_loader(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback before the first frame inside of a loader."""
    calls = []
    while trace is not None:
        calls.append(trace)
        trace = trace.tb_next
    theirs = itertools.takewhile(lambda call: not _is_in_loader(call.tb_frame.f_globals.get("__name__")), calls)
    for call in reversed(list(theirs)):
        trace = TracebackType(trace, call.tb_frame, call.tb_lasti, call.tb_lineno)
    return trace


def _is_in_loader(module: Any) -> bool:
    return str(module).startswith(("torch.utils.data.", "dali_compat."))


def _remedy(error: BaseException) -> str:
    """Return the remedy for an error. This does not import torch."""
    if file_remedy := remedy_of(error):
        return f"dali_compat: {file_remedy}"
    if "dali_compat.patch.loader" not in sys.modules:
        return ""
    from ..patch.loader import remedy

    return remedy(error)
