"""check's report for a person at a terminal."""

from __future__ import annotations

_ADVICE = """\
Delete or mend them. To train without: DataLoader(..., on_error="replace") takes another image in the place of each,
on_error="skip" leaves them out of their batches."""


def text(report: dict, total: int, limit: int) -> str:
    """The report as lines.

    Args:
        report: of Findings.report().
        total: files that there are; not all are counted after Ctrl-C.
        limit: lines of each list; 0 for all.
    """
    counts = report["counts"]
    blocks = [[f"{_shown(report['path'])}: {_many(counts['images'], 'image')}, {counts['bytes'] / 1e6:,.1f} MB"]]
    blocks += [_sizes(report["sizes"]), _formats(report["formats"])]
    for title, count, entries, columns in _sections(report):
        blocks.append(_section(title, count, entries, limit, columns))
    blocks.append(_end(report, total))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _sections(report: dict) -> list[tuple]:
    """(title, number of entries, those that are kept, function of an entry that gives its two columns)."""
    counts, folders, complaints = report["counts"], report["folders"], report["warnings"]
    unlisted = [one for one in report["not_images"] if not one["listed"]]
    return [
        ("Broken", counts["broken"], report["broken"], lambda one: (_where(one), f"{one['error']}: {one['reason']}")),
        (
            "Read by Pillow, for DALI reads them differently",
            *(counts["pillow"], report["pillow"]),
            lambda one: (_where(one), f"{one['format']} {one['mode']}"),
        ),
        (
            "Not listed by ImageFolder, for their extension",
            *(counts["files"] - counts["images"], unlisted),
            lambda one: (_where(one), one["what"]),
        ),
        ("Decompression bombs", counts["bombs"], report["bombs"], lambda one: (_where(one), one["reason"])),
        ("Folders", len(folders), folders, lambda one: (_where(one), one["reason"])),
        ("Warnings of Pillow", len(complaints), complaints, lambda one: (_many(one["images"], "image"), one["text"])),
    ]


def _end(report: dict, total: int) -> list[str]:
    counts, lines = report["counts"], []
    if counts["outside"]:
        lines.append(f"{_many(counts['outside'], 'image')} beside the class folders: ImageFolder does not list them.")
    if counts["images"]:
        share = 100 * report["dali_share"]
        lines.append(f"DALI decodes {counts['dali']:,} of {_many(counts['images'], 'image')} ({_percent(share)}%).")
    if counts["broken"]:
        lines += _ADVICE.split("\n")
    return [*lines, _verdict(report, total)]


def _verdict(report: dict, total: int) -> str:
    counts, end = report["counts"], f"; exit code {report['exit_code']}"
    unread = sum(one["problem"] == "unreadable" for one in report["folders"])
    if not report["complete"]:
        done = f"{counts['files']:,} of {_many(total, 'file')}"
        return f"Interrupted after {done}: {counts['broken']:,} broken so far{end}"
    also = f", and {_many(unread, 'folder')} cannot be read" if unread else ""
    if report["error"]:
        return f"{_shown(report['path'])} cannot be opened: {_line(report['error'])}{end}"
    if not counts["images"]:
        return f"There is no image in {_shown(report['path'])}{also}{end}"
    if not counts["broken"]:
        every = "The image" if counts["images"] == 1 else f"All {counts['images']:,} images"
        return f"{every} can be decoded{also}{end}"
    verb = "is" if counts["broken"] == 1 else "are"
    return f"{counts['broken']:,} of {_many(counts['images'], 'image')} {verb} broken{also}{end}"


def _section(title: str, count: int, entries: list[dict], limit: int, columns) -> list[str]:
    if not count:
        return []
    shown = [columns(one) for one in (entries[:limit] if limit else entries)]
    width = max((len(left) for left, _ in shown), default=0)
    lines = [f"{title} ({count:,}):", *(f"  {left:<{width}}  {_line(right)}" for left, right in shown)]
    return lines + ([f"  and {count - len(shown):,} more: --limit 0 lists all"] if count > len(shown) else [])


def _where(entry: dict) -> str:
    path = _shown(entry["path"])
    return f"{path}, byte {entry['byte']}, index {entry['index']}" if "index" in entry else path


def _sizes(sizes: dict) -> list[str]:
    names = ("min", "median", "max")
    rows = [(side, *(f"{found[name]:,.0f}" for name in names)) for side, found in sizes.items() if found]
    return _table([("size", *names), *rows], left=1) if rows else []


def _formats(formats: list[dict]) -> list[str]:
    names = ("images", "dali", "pillow", "broken")
    rows = [(one["format"] or "none", one["mode"] or "", *(f"{one[name]:,}" for name in names)) for one in formats]
    return _table([("format", "mode", "images", "DALI", "Pillow", "broken"), *rows], left=2) if rows else []


def _table(rows: list[tuple[str, ...]], left: int) -> list[str]:
    """Aligned columns, the first ``left`` of them to the left."""
    aligned = []
    for number, column in enumerate(zip(*rows, strict=True)):
        align, width = "<" if number < left else ">", max(map(len, column))
        aligned.append([f"{cell:{align}{width}}" for cell in column])
    return ["  ".join(row) for row in zip(*aligned, strict=True)]


def _percent(share: float) -> str:
    """100 only where it is all."""
    return "100" if share == 100 else f"{min(share, 99.9):.1f}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _shown(path: str) -> str:
    """A name that does no harm to a terminal."""
    return path if path.isprintable() else repr(path)[1:-1]


def _line(words: str) -> str:
    return _shown(" ".join(words.split())[:200])
