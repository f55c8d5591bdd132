"""Arguments shared by commands (data set, transform, device, memory), and the errors that commands report."""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dali_compat.errors import ImageReadError
from dali_compat.remote.urls import is_url, redacted

TABLE = "DALIImageTable"
_ENDINGS = {
    ".csv": TABLE,
    ".rec": "DALIRecordIO",
    **dict.fromkeys((".tar", ".tgz", ".gz"), "DALIWebDataset"),
    **dict.fromkeys((".tfrecord", ".tfrecords"), "DALITFRecord"),
    **dict.fromkeys((".lmdb", ".mdb"), "DALILMDB"),
}
_LMDB_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")  # at byte 16 of the first page


SIZES_DIFFER = "the images of a batch must have the same height x width"  # as in epoch/collate.py, which imports torch
_REMEDY = (
    "--on-error replace loads another image instead, --on-error skip leaves it out of its batch (on_error= of "
    "dali_compat.DataLoader); `python -m dali_compat check` lists all files that cannot be read"
)
_SPLITS = {"train", "training", "val", "valid", "validation", "eval", "test", "testing"}


class UsageError(Exception):
    """A usage error, reported as one line on stderr with exit code 2."""


def is_interrupt(error: BaseException) -> bool:
    """Return True for a KeyboardInterrupt, and for an error raised while it was handled, as in ``threading`` (CPython
    3.11)."""
    return any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the most similar of the ``known`` names, or "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def is_data_error(error: BaseException) -> bool:
    """Return True if the error is about an unreadable file, or about images of a batch that differ in size."""
    return isinstance(error, ImageReadError) or SIZES_DIFFER in str(error)


def remedy_of(error: BaseException) -> str:
    return _REMEDY if isinstance(error, ImageReadError) else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the data set's class, such as image=path or root=photos for a table, json_field=cls for a "
        "tar file, or image_key=jpg for a TFRecord",
    )


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def open_dataset(
    paths: list[str], options: list[tuple[str, str]], folder: Callable[[str], Any], table: dict[str, Any], **more: Any
) -> Any:
    """Return ``folder(path)`` for a single folder, otherwise the data set of a table or of archives.

    Args:
        paths: may contain patterns and braces.
        options: (name, value) of each --option.
        folder: called with the path of a single folder.
        table: further arguments of DALIImageTable.
        more: further arguments of the data set's class, whichever it is.

    Raises:
        ImageReadError: an archive is damaged.
        UsageError: an option is not an argument of the class.
        OSError, ImportError, TypeError, ValueError: a file does not exist, or its format is not supported.
    """
    import dali_compat

    from ..archives import expand

    files, named = expand(paths), dict(options)
    kinds = {dataset_class(file) for file in files}
    if kinds == {None} and len(files) == 1 and (os.path.isdir(files[0]) or is_url(files[0])) and not options:
        return folder(files[0])
    kind = kinds.pop()
    if kinds or kind is None:
        raise ValueError("expected one folder, a CSV table, or archives of one kind (.rec, TFRecord, LMDB, tar)")
    known = list(inspect.signature(getattr(dali_compat, kind)).parameters)[1:]
    for name in named:
        if name not in known:
            raise UsageError(f"--option {name}: {kind} has no argument {name}{did_you_mean(name, known)}")
    if kind != TABLE:
        labels = {"labels": 0} if kind == "DALILMDB" else {}  # without them, an LMDB of plain images cannot be opened
        return getattr(dali_compat, kind)(paths, **{**labels, **named, **more})
    if len(files) > 1:
        raise ValueError(f"{len(files)} tables given, expected one")
    try:
        return dali_compat.DALIImageTable(files[0], **{"target": None, **named, **table, **more})
    except (ValueError, FileNotFoundError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        name, what = (
            ("root", "FOLDER gives their location") if is_missing else ("image", "NAME names the column of files")
        )
        raise ValueError(f"{error}" if name in named else f"{error}; --option {name}={what}") from None


def dataset_class(path: str) -> str | None:
    """Return the name of the data set class for the archive or table at a path.

    Return None for other files and folders. Raise ValueError if the path is missing, or is a pipe or a device.
    """
    if is_url(path):
        return _ENDINGS.get(os.path.splitext(path)[1].lower())
    if os.path.isdir(path):
        return "DALILMDB" if os.path.isfile(os.path.join(path, "data.mdb")) else None
    if not os.path.isfile(path):
        raise ValueError(f"{path} is neither a file nor a folder")  # opening a pipe would block
    return _ENDINGS.get(os.path.splitext(path)[1].lower()) or _by_content(path)


def _by_content(path: str) -> str | None:
    from ..archives.recordio import MAGIC
    from ..archives.tfrecord import masked_crc32c

    with open(path, "rb") as file:
        head = file.read(512)
    if head[:4] == MAGIC.to_bytes(4, "little"):
        return "DALIRecordIO"
    if head[257:262] == b"ustar":
        return "DALIWebDataset"
    if head[16:20] == _LMDB_MAGIC:
        return "DALILMDB"
    return "DALITFRecord" if head[8:12] == masked_crc32c(head[:8]).to_bytes(4, "little") else None


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of dataset_of(): the path, --option, --transform and --on-error."""
    parser.add_argument(
        "path", nargs="+", metavar="FOLDER", help="folder of class folders, a table or an archive, as for check"
    )
    add_options(parser)
    parser.add_argument(
        "--transform",
        default="train",
        metavar="SPEC",
        help="train (the default) or eval for ImageNet's transforms, or module:name, file.py:name, or an "
        "expression with T (torchvision.transforms) and v2",
    )
    add_on_error(parser)


def add_on_error(parser: argparse.ArgumentParser) -> None:
    bad = "what happens to a sample that cannot be read (default %(default)s)"
    parser.add_argument("--on-error", choices=("raise", "skip", "replace"), default="raise", help=bad)


def dataset_of(args: argparse.Namespace) -> Any:
    """Return the data set of the command line. Raise UsageError if it does not exist or has no images."""
    from dali_compat import DALIImageFolder

    spec, name = args.transform, " ".join(map(redacted, args.path))
    transform = imagenet(spec) if spec in ("train", "eval") else transform_of(spec)
    try:
        dataset = open_dataset(
            args.path, args.option, lambda path: DALIImageFolder(path, transform), {}, transform=transform
        )
    except (OSError, ImportError, TypeError, ValueError) as error:
        raise UsageError(f"{error}" if name in str(error) else f"{name}: {error}") from None
    if not len(dataset):
        raise UsageError(f"{name}: the data set has no images")
    classes = getattr(dataset, "classes", None) or ()
    if classes and _SPLITS.issuperset(map(str.lower, map(str, classes))):
        hint = f"the classes are called {', '.join(classes)}; did you mean {os.path.join(name, classes[0])}?"
        print(f"{name}: {hint}", file=sys.stderr)
    return dataset


def try_to_write(out: str) -> None:
    """Raise UsageError if the file ``out`` cannot be written. The file is neither created nor changed."""
    is_new = not os.path.lexists(out)
    try:
        open(out, "ab").close()
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    if is_new:
        os.remove(out)


def add_device(parser: argparse.ArgumentParser, has_batch_size: bool = True) -> None:
    """Add --device and, if ``has_batch_size`` is True, --batch-size. device_of() sets their defaults."""
    if has_batch_size:
        parser.add_argument("--batch-size", type=int, help="images in a batch (default 256 on a GPU, 64 on the CPU)")
    where = "where batches go: cpu, cuda, cuda:1 (default: the GPU if there is one)"
    parser.add_argument("--device", type=device_name, help=where)


def device_name(text: str) -> str:
    """Return the value of --device if it names a CPU or GPU. Raise ArgumentTypeError otherwise."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device such as cpu, cuda or cuda:1")
    return text


def device_of(args: argparse.Namespace) -> Any:
    """Return the torch.device of --device, and set a missing --batch-size. Raise UsageError if the GPU is missing."""
    import torch

    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UsageError(f"--device {device}: torch sees {count or 'no'} GPU{'s' * (count != 1)} here")
    if getattr(args, "batch_size", 0) is None:
        args.batch_size = 256 if device.type == "cuda" else 64
    return device


def imagenet(which: str) -> Any:
    """Return ImageNet's usual transform, for training if ``which`` is "train", otherwise for evaluation."""
    import torchvision.transforms as T

    first = (
        [T.RandomResizedCrop(224), T.RandomHorizontalFlip()] if which == "train" else [T.Resize(256), T.CenterCrop(224)]
    )
    return T.Compose([*first, T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def transform_of(spec: str) -> Any:
    """Return the transform of --transform. Raise UsageError with the original message if it cannot be created."""
    try:
        match = re.fullmatch(r"([\w./~-]+):(\w+)", spec)
        if not match:
            import torch
            import torchvision.transforms as T

            return eval(spec, {"T": T, "v2": T.v2, "torch": torch, "nn": torch.nn})
        place, name = match.groups()
        made = getattr(_module(place), name)
        return made() if isinstance(made, type) else made
    except Exception as error:
        known = "--transform takes train, eval, module:name, file.py:name, or an expression such as 'T.Resize(256)'"
        raise UsageError(f"--transform {spec}: {type(error).__name__}: {error}; {known}") from None


def _module(place: str):
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    found = importlib.util.spec_from_file_location(Path(place).stem, Path(place).expanduser())
    if found is None or found.loader is None:
        raise ImportError(f"cannot import {place}")
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module  # worker processes look up its functions there
    found.loader.exec_module(module)
    return module
