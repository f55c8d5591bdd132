"""Read every image of a folder, a table or an archive, and list broken images and images that need Pillow.

An image is broken if torchvision's loader raises an error for it. The data is not modified. The exit code is 1 if an
image is broken, a folder cannot be read, or there are no images. Ctrl-C prints the findings so far and exits with 130.
"""

from __future__ import annotations

import json
import os
import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

import dali_compat
from dali_compat.cli.arguments import TABLE, UsageError, add_options, dataset_class, open_dataset
from dali_compat.remote.urls import is_url, redacted

from ..archives import expand
from ..data.base_datasets import objects_of, sample
from ..runtime.cores import usable_cores
from ..runtime.messages import in_columns
from .check_files import Crash, FileSource, Inspection, bucket_source, folder_source, process_map


def add_arguments(parser) -> None:
    parser.add_argument(
        "path",
        nargs="+",
        metavar="FOLDER",
        help="folder of images, in class folders or any others; or a CSV table; or archives (.rec, TFRecord, LMDB, "
        "tar), as paths, patterns or braces",
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON, and nothing else")
    lines, cores = "lines of each list, 0 for all (default %(default)s)", "processes (default %(default)s, all cores)"
    parser.add_argument("--limit", type=int, default=20, metavar="N", help=lines)
    parser.add_argument("--workers", type=int, default=usable_cores(), metavar="N", help=cores)
    add_options(parser)


def run(args) -> int:
    if args.limit < 0 or args.workers < 1:
        raise UsageError("--limit must be at least 0, --workers at least 1")
    source = _source(args)
    findings = Findings(source, None if args.json or not args.limit else args.limit)
    complete = not source.total or _check(source, findings, args.workers)
    unread = any(folder["problem"] == "unreadable" for folder in source.folders)
    code = int(bool(findings.counts["broken"] or unread or not findings.counts["images"])) if complete else 130
    report = findings.report(code)
    output = json.dumps(report, indent=2) if args.json else text(report, source.total, args.limit)
    encoding = sys.stdout.encoding or "utf-8"
    print(output.encode(encoding, "backslashreplace").decode(encoding))
    return code


def _source(args):
    """Return the FileSource to check. Raise UsageError if the path is invalid."""
    name = " ".join(map(redacted, args.path))
    try:
        # open_dataset() returns the path of a local folder, but a data set for a folder in object storage
        folder = partial(dali_compat.DALIImageFolder, allow_empty=True) if is_url(args.path[0]) else str
        data = open_dataset(args.path, args.option, folder, {"check_files": False})
        if type(data).__name__ == TABLE and len(data) and not any(map(os.path.exists, data.paths)):
            open_dataset(args.path, args.option, str, {})  # raises FileNotFoundError with the remedy
    except dali_compat.ImageReadError as error:
        return FileSource(name, dataset_class(expand(args.path)[0]) or "", error=str(error))
    except (OSError, ImportError, TypeError, ValueError) as error:
        raise UsageError(f"{error}" if name in str(error) else f"{name}: {error}") from None
    objects = objects_of(data)
    if objects is not None:
        sources: list[Any] = [sample(data, index)[0] for index in range(len(data))]
        return bucket_source(name, type(data).__name__, objects, [source.index for source in sources])
    if isinstance(data, str):
        return folder_source(data.rstrip(os.sep) or os.sep)
    kind, total = type(data).__name__, len(data)
    if kind == TABLE:
        return FileSource(name, kind, lambda: data.paths, total)
    return FileSource(name, kind, lambda: range(total), total, data)


def _check(source, findings, workers: int) -> bool:
    """Inspect all items. Return False after Ctrl-C."""
    with (
        closing(process_map(source.inspect, source.items(), min(workers, source.total))) as results,
        tqdm(total=source.total, desc="checking", unit="file", miniters=1, disable=None) as bar,
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


# ---- the report

_LISTS = ("broken", "pillow", "bombs", "not_images", "unlisted")
_SIDES = ("height", "width", "bytes")
_ADVICE = """\
Delete or repair them. To train without them: DataLoader(..., on_error="replace") loads another image in place of each,
on_error="skip" leaves them out of their batches."""


class Findings:
    """Statistics of all inspected files, and lists of problems with at most ``keep`` entries each (None for all)."""

    def __init__(self, source: FileSource, keep: int | None = None):
        self._source, self._keep = source, keep
        self._lists: dict[str, list[dict]] = {name: [] for name in _LISTS}
        self.counts: Counter[str] = Counter()
        self._formats: dict[tuple[str, str], Counter] = {}
        self._warnings: Counter[str] = Counter()
        self._sizes = {name: array("q") for name in _SIDES}  # 24 MB for a million images

    def add(self, item: Any, seen: Inspection | Crash) -> None:
        if isinstance(seen, Crash):
            seen = Inspection(error=seen.how, reason="crashes the decoder")
        listed = self._source.lists(item)
        self.counts["files"] += 1
        if seen.other:
            self._list("not_images" if listed else "unlisted", item, listed=listed, what=seen.other)
        if not listed:
            return
        self.counts.update(images=1, bytes=seen.bytes)
        self._warnings.update(re.sub(r"\d+", "N", text) for text in seen.warnings)
        by = "broken" if seen.error else "dali" if seen.dali else "pillow"
        self._formats.setdefault((seen.format, seen.mode), Counter()).update(["images", by])
        if seen.bomb:
            self._list("bombs", item, reason=seen.bomb, refused=bool(seen.error))
        if by == "broken":
            self._list("broken", item, error=seen.error, reason=seen.reason)
            return
        for name in _SIDES:
            self._sizes[name].append(getattr(seen, name))
        if by == "pillow":
            self._list("pillow", item, format=seen.format, mode=seen.mode)
        else:
            self.counts["dali"] += 1

    def _list(self, section: str, item: Any, **facts) -> None:
        self.counts[section] += 1
        if self._keep is None or len(self._lists[section]) < self._keep:
            self._lists[section].append({**self._source.where(item), **facts})

    def report(self, exit_code: int) -> dict:
        """Return the report that ``--json`` prints. Keys are stable; new ones may be added.

        Returns:
            path: the path of the data.
            kind: "folder", or the name of the data set's class.
            error: the reason why the archive cannot be opened, or null.
            complete: whether all files were read, false after Ctrl-C.
            exit_code: 1 if an image is broken, a folder is unreadable or there is no image; 130 after Ctrl-C; else 0.
            counts: {files, images, bytes, broken, dali, pillow, not_images, bombs, outside}. ``images`` are those that
                ImageFolder lists, and ``bytes`` is their size. ``dali`` and ``pillow`` are the numbers of images that
                each decodes. ``bombs`` are decompression bombs. ``outside`` are images outside of class folders.
            dali_share: dali / images; null without images.
            broken: {path, error, reason} of images that torchvision's loader cannot read.
            pillow: {path, format, mode} of images that Pillow has to read.
            not_images: {path, listed, what} of files that are not images or that ImageFolder does not list. Listed ones
                are also in ``broken``.
            bombs: {path, reason, refused} of decompression bombs. Refused ones are also in ``broken``.
            folders: {path, problem, reason} of folders with the problem "empty", "unreadable" or "loop".
            sizes: {min, median, max} of height, width and bytes of the images that are not broken; or null.
            formats: {format, mode, images, dali, pillow, broken}; format is null if Pillow finds no image.
            warnings: {text, images} of Pillow's warnings, with numbers replaced by "N".

        Entries for images of an archive also have ``byte`` and ``index``. os.fsencode(path) restores names that are not
        UTF-8.
        """
        counts, lists, source = self.counts, self._lists, self._source
        names = ("files", "images", "bytes", "broken", "dali", "pillow", "bombs")
        others = {"not_images": counts["not_images"] + counts["unlisted"], "outside": source.outside}
        formats = sorted(self._formats.items(), key=lambda one: (-one[1]["images"], one[0]))
        return {
            "path": source.name,
            "kind": source.kind,
            "error": source.error,
            "complete": exit_code != 130,
            "exit_code": exit_code,
            "counts": {name: counts[name] for name in names} | others,
            "dali_share": counts["dali"] / counts["images"] if counts["images"] else None,
            **{name: lists[name] for name in ("broken", "pillow", "bombs")},
            "not_images": lists["not_images"] + lists["unlisted"],
            "folders": source.folders,
            "sizes": {name: _range(values) for name, values in self._sizes.items()},
            "formats": [
                {"format": format or None, "mode": mode or None}
                | {name: row[name] for name in ("images", "dali", "pillow", "broken")}
                for (format, mode), row in formats
            ],
            "warnings": [{"text": text, "images": count} for text, count in self._warnings.most_common()],
        }


def _range(values: array) -> dict | None:
    found = np.frombuffer(values, np.int64) if values else np.zeros(0)
    return {"min": int(found.min()), "median": float(np.median(found)), "max": int(found.max())} if values else None


def text(report: dict, total: int, limit: int) -> str:
    """Format a report as text, with ``limit`` entries per list (0 for all). ``total`` counts the files to check."""
    counts, three = report["counts"], ("min", "median", "max")
    sizes = [(side, *(f"{row[name]:,.0f}" for name in three)) for side, row in report["sizes"].items() if row]
    formats = [
        (row["format"] or "none", row["mode"] or "", *(f"{row[n]:,}" for n in ("images", "dali", "pillow", "broken")))
        for row in report["formats"]
    ]
    blocks = [
        f"{_shown(report['path'])}: {_plural(counts['images'], 'image')}, {counts['bytes'] / 1e6:,.1f} MB",
        in_columns([("size", *three), *sizes], left=1) if sizes else "",
        in_columns([("format", "mode", "images", "DALI", "Pillow", "broken"), *formats], left=2) if formats else "",
        *(_section(limit, *section) for section in _sections(report)),
        "\n".join([*_summary(counts, report["dali_share"]), _verdict(report, total)]),
    ]
    return "\n\n".join(filter(None, blocks))


def _sections(report: dict) -> list[tuple[str, int, list[dict], Callable[[dict], str]]]:
    """Return (title, number of findings, listed findings, formatter of the second column) of each list."""
    counts, folders, warnings = report["counts"], report["folders"], report["warnings"]
    unlisted = [one for one in report["not_images"] if not one["listed"]]
    others = counts["files"] - counts["images"]
    return [
        ("Broken", counts["broken"], report["broken"], "{error}: {reason}".format_map),
        ("Decoded by Pillow, not by DALI", counts["pillow"], report["pillow"], "{format} {mode}".format_map),
        ("Not listed by ImageFolder, because of their extension", others, unlisted, "{what}".format_map),
        ("Decompression bombs", counts["bombs"], report["bombs"], "{reason}".format_map),
        ("Folders", len(folders), folders, "{reason}".format_map),
        ("Warnings from Pillow", len(warnings), warnings, "{text}".format_map),
    ]


def _section(limit: int, title: str, count: int, entries: list[dict], second: Callable[[dict], str]) -> str:
    if not count:
        return ""
    rows = [(f"  {_location(one)}", _line(second(one))) for one in (entries[:limit] if limit else entries)]
    more = [f"  and {count - len(rows):,} more: --limit 0 lists all"] if count > len(rows) else []
    return "\n".join([f"{title} ({count:,}):", *([in_columns(rows)] if rows else []), *more])


def _location(entry: dict) -> str:
    if "path" not in entry:
        return _plural(entry["images"], "image")
    more = f", byte {entry['byte']}, index {entry['index']}" if "index" in entry else ""
    return _shown(entry["path"]) + more


def _summary(counts: dict, share: float | None) -> list[str]:
    lines = []
    if counts["outside"]:
        lines.append(f"{_plural(counts['outside'], 'image')} outside class folders: ImageFolder does not list them.")
    if share is not None:
        percent = "100" if share == 1 else f"{min(100 * share, 99.9):.1f}"  # 100 only if all are
        lines.append(f"DALI decodes {counts['dali']:,} of {_plural(counts['images'], 'image')} ({percent}%).")
    return lines + ([_ADVICE] if counts["broken"] else [])


def _verdict(report: dict, total: int) -> str:
    counts, name, end = report["counts"], _shown(report["path"]), f"; exit code {report['exit_code']}"
    images, broken = _plural(counts["images"], "image"), f"{counts['broken']:,}"
    if not report["complete"]:
        return f"Interrupted after {counts['files']:,} of {_plural(total, 'file')}: {broken} broken so far{end}"
    if report["error"]:
        return f"{name} cannot be opened: {_line(report['error'])}{end}"
    unread = sum(one["problem"] == "unreadable" for one in report["folders"])
    end = (f", and {_plural(unread, 'folder')} cannot be read" if unread else "") + end
    if not counts["images"]:
        return f"There are no images in {name}{end}"
    if not counts["broken"]:
        return f"{'The image' if counts['images'] == 1 else f'All {images}'} can be decoded{end}"
    return f"{broken} of {images} {'is' if counts['broken'] == 1 else 'are'} broken{end}"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _shown(path: str) -> str:
    """Return a path with escaped control characters, because these would affect a terminal."""
    return path if path.isprintable() else repr(path)[1:-1]


def _line(message: str) -> str:
    return _shown(" ".join(message.split())[:200])
