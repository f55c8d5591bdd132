"""What check has found, counted while it comes: as a report for JSON (Findings.report) and as text (text)."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from typing import Any

import numpy as np

from .looking import FileSeen
from .process_map import Crash

_LISTS = ("broken", "pillow", "not_images", "unlisted", "bombs")
_SIDES = ("height", "width", "bytes")


class Findings:
    """Counts, sizes, and what is listed.

    Args:
        keep: how many entries of each list are kept (all are counted); None keeps all.
    """

    def __init__(self, keep: int | None = None):
        self._keep = keep
        self._lists: dict[str, list[dict]] = {name: [] for name in _LISTS}
        self._counts: Counter[str] = Counter()
        self._formats: dict[tuple[str, str], Counter] = {}
        self._warnings: Counter[str] = Counter()
        self._sizes = {name: array("q") for name in _SIDES}  # of a million images: 24 MB

    @property
    def images(self) -> int:
        return self._counts["images"]

    @property
    def broken(self) -> int:
        return self._counts["broken"]

    def add(self, place: Any, item: Any, seen: FileSeen | Crash) -> None:
        """One file. ``place`` (places.py) says whether ImageFolder lists the item, and where it is."""
        if isinstance(seen, Crash):
            seen = FileSeen(error=seen.how, reason="crashes the decoder")
        listed = place.listed(item)
        self._counts["files"] += 1
        if listed:
            self._counts["images"] += 1
            self._add_image(place, item, seen)
        if seen.other:
            self._list("not_images" if listed else "unlisted", place, item, listed=listed, what=seen.other)

    def _add_image(self, place: Any, item: Any, seen: FileSeen) -> None:
        row = self._formats.setdefault((seen.format, seen.mode), Counter())
        self._warnings.update(re.sub(r"\d+", "N", text) for text in seen.warnings)
        self._counts["bytes"] += seen.bytes
        row["images"] += 1
        if seen.bomb:
            self._list("bombs", place, item, reason=seen.bomb, refused=bool(seen.error))
        if seen.error:
            row["broken"] += 1
            self._list("broken", place, item, error=seen.error, reason=seen.reason)
            return
        row["dali" if seen.dali else "pillow"] += 1
        for name in _SIDES:
            self._sizes[name].append(getattr(seen, name))
        if seen.dali:
            self._counts["dali"] += 1
        else:
            self._list("pillow", place, item, format=seen.format, mode=seen.mode)

    def _list(self, section: str, place: Any, item: Any, **facts) -> None:
        self._counts[section] += 1
        if self._keep is None or len(self._lists[section]) < self._keep:
            self._lists[section].append({**place.where(item), **facts})

    def report(self, place: Any, exit_code: int) -> dict:
        """What ``--json`` prints. The keys stay as they are; new ones may come.

        Returns:
            path, kind: what was read; kind is "folder" or the class of the archive.
            error: why the archive cannot be opened, or null.
            complete: false where Ctrl-C ended it.
            exit_code: 1 where something is broken, 130 after Ctrl-C, else 0.
            counts: of files; of those that ImageFolder lists (images) and their bytes; of images that are broken, that
                DALI decodes (dali) and that Pillow decodes; of files that are not_images; of bombs; and of images
                outside of class folders.
            dali_share: dali / images; null without images.
            broken: {path, error, reason} of each image that torchvision's loader cannot give.
            pillow: {path, format, mode} of each image that Pillow has to read.
            not_images: {path, listed, what}; those that are listed are broken, too.
            bombs: {path, reason, refused}; those that are refused are broken, too.
            folders: {path, problem, reason}, where the problem is "empty", "unreadable" or "loop".
            sizes: {min, median, max} of height, width and bytes, over the images that can be decoded; null without any.
            formats: {format, mode, images, dali, pillow, broken}, by number of images; null where Pillow sees no image.
            warnings: {text, images}: Pillow's warnings, with numbers as "N".

        An image of an archive has ``byte`` and ``index`` beside its path. Bytes of a name that are not UTF-8 come as
        Python has them: os.fsencode(path) gives them back.
        """
        names = ("files", "images", "bytes", "broken", "dali", "pillow", "bombs")
        others = self._counts["not_images"] + self._counts["unlisted"]
        share = self._counts["dali"] / self.images if self.images else None
        return {
            "path": place.name,
            "kind": place.kind,
            "error": place.error,
            "complete": exit_code != 130,
            "exit_code": exit_code,
            "counts": {name: self._counts[name] for name in names} | {"not_images": others, "outside": place.outside},
            "dali_share": share,
            **{name: self._lists[name] for name in ("broken", "pillow", "bombs")},
            "not_images": self._lists["not_images"] + self._lists["unlisted"],
            "folders": place.folders,
            "sizes": {name: _range(values) for name, values in self._sizes.items()},
            "formats": [
                {"format": format or None, "mode": mode or None}
                | {name: row[name] for name in ("images", "dali", "pillow", "broken")}
                for (format, mode), row in sorted(self._formats.items(), key=lambda one: (-one[1]["images"], one[0]))
            ],
            "warnings": [{"text": text, "images": count} for text, count in self._warnings.most_common()],
        }


def _range(values: array) -> dict | None:
    if not values:
        return None
    found = np.frombuffer(values, np.int64)
    return {"min": int(found.min()), "median": float(np.median(found)), "max": int(found.max())}
