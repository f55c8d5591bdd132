"""Read every image of a folder, a table or an archive, and list what is broken and what Pillow has to read.

An image is broken where torchvision's loader could not give it. Nothing of the data is changed. The exit code is 1 when
something is broken or there is no image at all, 130 after Ctrl-C, which reports what was found so far, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tqdm import tqdm

from dali_compat.cores import usable_cores

TABLE = "DALIImageTable"
_ENDINGS = {
    ".csv": TABLE,
    ".rec": "DALIRecordIO",
    **dict.fromkeys((".tar", ".tgz", ".gz"), "DALIWebDataset"),
    **dict.fromkeys((".tfrecord", ".tfrecords"), "DALITFRecord"),
    **dict.fromkeys((".lmdb", ".mdb"), "DALILMDB"),
}
_LMDB_MAGIC = (0xBEEFC0DE).to_bytes(4, "little")  # at byte 16 of the first page
_LISTED = 20  # lines of each list


def add_arguments(parser) -> None:
    parser.add_argument(
        "path",
        nargs="+",
        metavar="FOLDER",
        help="of class folders of images, or any tree of files; or a CSV table; or an archive (.rec, TFRecord, LMDB, "
        "tar): a path, a pattern, braces or several paths",
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    parser.add_argument(
        "--limit",
        type=_at_least(0),
        default=_LISTED,
        metavar="N",
        help="lines of each list, 0: all (default %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=_at_least(1),
        default=usable_cores(),
        metavar="N",
        help="processes (default %(default)s, the cores)",
    )
    add_options(parser)
    parser.set_defaults(usage_error=parser.error)


def add_options(parser) -> None:
    """--option, for bench, too."""
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the class that reads it, as image=path and root=photos of a table, json_field=cls of a "
        "tar file, or image_key=jpg of a TFRecord",
    )


def run(args) -> int:
    """Check, print the report, and return the exit code."""
    try:
        return _run(args)
    except KeyboardInterrupt:  # before the first image, or a second one
        print("\ncheck: interrupted", file=sys.stderr)
        return 130


def _run(args) -> int:
    from ..check.findings import Findings
    from ..check.wording import text

    place = _place(args)
    findings = Findings(None if args.json or not args.limit else args.limit)
    complete = _check(place, findings, args.workers)
    unread = any(folder["problem"] == "unreadable" for folder in place.folders)
    code = int(bool(findings.broken or unread or not findings.images)) if complete else 130
    report = findings.report(place, code)
    _print(json.dumps(report, indent=2) if args.json else text(report, place.total, args.limit))
    return code


def _check(place, findings, workers: int) -> bool:
    """Look at everything. Returns whether it came to the end."""
    from ..check.process_map import process_map

    if not place.total:
        return True
    with (
        _interrupts() as interrupted,
        closing(process_map(place.look, place, min(workers, place.total), interrupted)) as results,
        tqdm(total=place.total, desc="checking", unit="file", miniters=1) as bar,
    ):
        for item, seen in results:
            findings.add(place, item, seen)
            if findings.broken:
                bar.set_postfix_str(f"{findings.broken:,} broken", refresh=False)
            bar.update()
        return not interrupted()


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether Ctrl-C was pressed; an exception might tear counts. A second one raises."""
    pressed = []

    def press(*_) -> None:
        pressed.append(True)
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # it goes to the main thread
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _place(args):
    """What is to be read (places.py). Ends the program where that is a mistake of the user's."""
    import dali_compat

    from ..archives.paths import expand
    from ..check.places import Damaged, Folder, Images, Paths

    kind = ""
    try:
        files = expand(args.path)
        kinds = {archive_class(file) for file in files}
        if kinds == {None} and len(files) == 1 and os.path.isdir(files[0]) and not args.option:
            return Folder(files[0].rstrip(os.sep) or os.sep)
        if len(kinds) > 1 or kinds == {None}:
            what = "neither one folder, nor a CSV table, nor archives of one kind (.rec, TFRecord, LMDB, tar)"
            args.usage_error(f"{' '.join(args.path)}: {what}")
        kind, options = kinds.pop() or "", dict(args.option)
        if kind == TABLE:
            return Paths(" ".join(args.path), open_table(files, options, check_files=False))
        if kind == "DALILMDB":
            options.setdefault("labels", 0)  # without them LMDB of plain images does not open
        return Images(" ".join(args.path), getattr(dali_compat, kind)(args.path, **options))
    except dali_compat.ImageReadError as error:
        return Damaged(" ".join(args.path), kind, str(error))
    except (OSError, ImportError, TypeError, ValueError) as error:
        args.usage_error(str(error))


def open_table(files: list[str], options: dict[str, str], **more):
    """DALIImageTable of one CSV file, without targets unless ``options`` name their column.

    Raises:
        ValueError, TypeError, FileNotFoundError: as the class, or there are several files.
    """
    import dali_compat

    if len(files) > 1:
        raise ValueError(f"{len(files)} tables: give one")
    try:
        return dali_compat.DALIImageTable(files[0], **{"target": None, **options, **more})
    except ValueError as error:
        hint = "" if "image" in options else "; --option image=NAME says which column has the files"
        raise ValueError(f"{error}{hint}") from None


def archive_class(path: str) -> str | None:
    """The name of the class of an archive or a table, by its name's ending or its first bytes; None for others.
    Raises ValueError for a pipe or a device."""
    if os.path.isdir(path):
        return "DALILMDB" if os.path.isfile(os.path.join(path, "data.mdb")) else None
    if not os.path.isfile(path):
        raise ValueError(f"{path} is neither a file nor a folder")  # to open a pipe waits for ever
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


def _print(words: str) -> None:
    """Whatever the terminal's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding))


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
        return int(text)

    return number


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
