"""Read every image of a folder, a table or an archive, and list what is broken and what Pillow has to read.

An image is broken if torchvision's loader could not give it. Nothing of the data is changed. The exit code is 1 when
something is broken or there is no image at all, 130 after Ctrl-C, which reports what was found so far, and 0 otherwise.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from typing import Any

from tqdm import tqdm

from dali_compat.cli.arguments import TABLE, UsageError, add_options, dataset_class, open_dataset
from dali_compat.remote.urls import is_url

from ..data.base_datasets import sample
from ..runtime.cores import usable_cores


def add_arguments(parser) -> None:
    parser.add_argument(
        "path",
        nargs="+",
        metavar="FOLDER",
        help="of class folders of images, or any tree of files; or a CSV table; or an archive (.rec, TFRecord, LMDB, "
        "tar): a path, a pattern, braces or several paths",
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    lines, cores = "lines of each list, 0: all (default %(default)s)", "processes (default %(default)s, the cores)"
    parser.add_argument("--limit", type=int, default=20, metavar="N", help=lines)
    parser.add_argument("--workers", type=int, default=usable_cores(), metavar="N", help=cores)
    add_options(parser)


def run(args) -> int:
    """Checks, prints the report, and returns the exit code."""
    if args.limit < 0 or args.workers < 1:
        raise UsageError("--limit starts at 0, --workers at 1")
    from .check_report import Findings, text

    source = _source(args)
    findings = Findings(source, None if args.json or not args.limit else args.limit)
    complete = not source.total or _check(source, findings, args.workers)
    unread = any(folder["problem"] == "unreadable" for folder in source.folders)
    code = int(bool(findings.counts["broken"] or unread or not findings.counts["images"])) if complete else 130
    report = findings.report(code)
    words = json.dumps(report, indent=2) if args.json else text(report, source.total, args.limit)
    encoding = sys.stdout.encoding or "utf-8"
    print(words.encode(encoding, "backslashreplace").decode(encoding))
    return code


def _source(args):
    """Returns what is to be read.

    Raises:
        UsageError: there is no such thing.
    """
    import dali_compat

    from ..archives import expand
    from .check_files import FileSource, bucket_source, folder_source

    name = " ".join(args.path)
    try:
        data = open_dataset(args.path, args.option, _folder, {"check_files": False})
        if type(data).__name__ == TABLE and len(data) and not any(map(os.path.exists, data.paths)):
            open_dataset(args.path, args.option, lambda path: path, {})  # which raises, and says where they may be
    except dali_compat.ImageReadError as error:
        return FileSource(name, dataset_class(expand(args.path)[0]) or "", error=str(error))
    except (OSError, ImportError, TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from None
    objects = getattr(data, "_objects", None)
    if objects is not None:
        sources: list[Any] = [sample(data, index)[0] for index in range(len(data))]
        urls = [source.index for source in sources]
        return bucket_source(name, type(data).__name__, objects, urls)
    if isinstance(data, str):
        return folder_source(data.rstrip(os.sep) or os.sep)
    kind, total = type(data).__name__, len(data)
    if kind == TABLE:
        return FileSource(name, kind, lambda: data.paths, total)
    return FileSource(name, kind, lambda: range(total), total, data)


def _folder(path: str):
    """Returns the path of a folder, or the data set of one in object storage."""
    from dali_compat import DALIImageFolder

    return DALIImageFolder(path, allow_empty=True) if is_url(path) else path


def _check(source, findings, workers: int) -> bool:
    """Inspects everything. Returns True if Ctrl-C has not ended it."""
    from .check_files import process_map

    with (
        closing(process_map(source.inspect, source.items(), min(workers, source.total))) as results,
        tqdm(total=source.total, desc="checking", unit="file", miniters=1) as bar,
    ):
        try:
            for item, seen in results:
                findings.add(item, seen)
                if findings.counts["broken"]:
                    bar.set_postfix_str(f"{findings.counts['broken']:,} broken", refresh=False)
                bar.update()
        except KeyboardInterrupt:
            return False
        return True
