"""A JPEG engine that compares its pixels with Pillow's for each file.

The header does not show whether the pixels are equal. Pillow also accepts damaged data, and each decoder turns it into
different noise. When a file is first read, the batch gets the pixels of DALI's CPU decoder, which equal Pillow's. In a
background thread, the engine decodes the same bytes, and a kernel compares the whole images. data/verdicts.py stores
the result.

The engine decodes the files twice, in two orders, because its result for damaged data might depend on the previous
content of its memory.

For undamaged files, the result depends only on the kind of chroma. If _ENOUGH files of a kind all had equal pixels, the
engine also decodes intact files of that kind without a comparison. A random sample of these, one file in _EVERY ** 2,
is still compared. If one differs, all uncompared files of that kind are compared when they are next read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import nullcontext, suppress

import numpy as np
import torch

from ...data.header import GRAY_JPEG
from ...data.headers import Headers, JpegCounts
from ...data.verdicts import BY_ENGINE, BY_PILLOW, LIKELY, decoders
from ...runtime.device import to_device, working_on
from .engine import EngineTimeout, JpegEngine, first_line
from .files import Files
from .geometry import PlaneLocations, whole_rows_of
from .nvjpeg import EngineError

MOST_PIXELS = 2**26  # per image: 64 MB of luma, and at most twice that of chroma
_WAITING = 2**30  # maximum bytes of pixels waiting for comparison
_PER_BATCH = 2**29  # maximum bytes that a batch may add
_KINDS = {GRAY_JPEG: "gray", 0x11: "4:4:4", 0x21: "4:2:2", 0x22: "4:2:0", 0x12: "4:4:0"}  # by Header's chroma
_FREE = 8  # a batch may add at most 1 / _FREE of the GPU's free memory
_ENOUGH = 1024  # equal files per kind; with 95 % certainty, fewer than .3 % of its undamaged files differ
_EVERY = 6  # one in _EVERY batches, at random, compares 1 / _EVERY of its new files


class VerifiedEngine(JpegEngine):
    """A JpegEngine that compares its pixels with Pillow's when a file is first read."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._compare_on(device)

    def _compare_on(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        how = (torch.cuda.set_device, (device,)) if on_gpu else ()
        self._comparing = ThreadPoolExecutor(1, "dali_compat JPEG comparison", *how)
        self._compares = torch.cuda.Stream(device) if on_gpu else None
        self._pending: dict[Future, int] = {}  # bytes of pixels of each comparison
        self._chance = random.Random(0).random  # a fixed period might always miss the same batches
        self._equal_counts = np.zeros(256, np.int64)  # equal files of each chroma since the last different one

    @property
    def kinds(self) -> str:
        """Names of the kinds of JPEGs that the engine may decode, such as "gray, 4:4:4"."""
        return ", ".join(name for chroma, name in _KINDS.items() if self.exact[chroma])

    def takes(self, chroma: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return (N,) bool, whether the chroma and size of each file allow the engine to decode it."""
        return self.exact[chroma] & (sizes.prod(1) <= MOST_PIXELS)

    def assigned(self, rows: np.ndarray, chroma: np.ndarray, verdicts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Divide ``rows`` among the decoders. Return the rows for only the engine, and those for both the engine and
        DALI. Only DALI decodes the other rows."""
        decided, likely = decoders(verdicts), self._equal_counts[chroma] >= _ENOUGH
        compared = ~likely & ((decided == 0) | (decided == LIKELY))
        if self._chance() < 1 / _EVERY:  # comparing few takes nearly as long as comparing many
            new = np.flatnonzero(likely & (decided == 0))
            compared[new[: -(-len(new) // _EVERY)]] = True
        own = ((decided == BY_ENGINE) | (likely & (decided != BY_PILLOW))) & ~compared
        return rows[own], rows[compared]

    def compare_again(self, chroma: np.ndarray) -> None:
        """Reset the count of equal files for each kind in ``chroma``.

        Until the count is _ENOUGH again, files of that kind are compared when they are read, unless they were compared
        before.
        """
        self._equal_counts[chroma] = 0

    def describe_counts(self, known: Iterable[tuple[Headers, int]]) -> str:
        """Describe how many files the engine decodes, and why it does not decode the others.

        ``known`` has the headers and the number of samples of each data set.
        """
        counts = JpegCounts(0, 0, 0, 0, 0, 0)
        for headers, count in known:
            found = headers.jpegs(self.name, self.exact, MOST_PIXELS, count)
            counts = JpegCounts(*map(sum, zip(counts, found, strict=True)))
        text = f"the JPEG engine decodes {counts.engines:,} files, whose pixels were compared with Pillow's"
        if counts.likely:
            text += f", and {counts.likely:,} others of the same kinds"
        reasons = {"whose pixels differ": counts.others, f"of more than {MOST_PIXELS:,} pixels": counts.large}
        if not_these := " and ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count):
            text += f"; it does not decode {not_these}"
        if left := counts.waiting + counts.unseen:
            text += f"; {left:,} files have not been compared yet"
        return text

    @property
    def room(self) -> int:
        """Maximum number of bytes of pixels that a batch may pass to compare()."""
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else _FREE * _PER_BATCH
        return min(_PER_BATCH, _WAITING - self._waiting(), free // _FREE)

    @property
    def is_behind(self) -> bool:
        """True if too many pixels are waiting to be compared."""
        return self._waiting() > _WAITING

    def _waiting(self) -> int:
        pending = list(self._pending.items())  # a copy, since other threads add to it
        return sum(bytes_ for future, bytes_ in pending if not future.done())

    def compare(
        self,
        files: Files,
        locations: PlaneLocations,
        chroma: np.ndarray,
        pixels: list[torch.Tensor],
        report: Callable[[np.ndarray], None],
    ) -> None:
        """Start comparing the engine's pixels of N intact files with Pillow's.

        Args:
            chroma: (N,), as in FACTS.
            pixels: Pillow's pixels, (height, width, 3) uint8 each, on the device.
            report: called in another thread with BY_ENGINE or BY_PILLOW for each file, (N,) uint8. Not called if the
                engine fails.
        """
        try:
            wanted = torch.cat([image.reshape(-1) for image in pixels])  # copied, since DALI owns their memory
        except torch.OutOfMemoryError as error:
            self._fail(error)
            return
        if self._compares is not None:
            self._compares.wait_stream(torch.cuda.current_stream(self.device))
            wanted.record_stream(self._compares)
        with suppress(RuntimeError):  # executors are shut down with the main thread
            future = self._comparing.submit(self._compare, files, locations, chroma, wanted, report)
            self._pending[future] = len(wanted)
            future.add_done_callback(self._pending.pop)

    def wait_for_comparisons(self, seconds: float) -> None:
        futures_wait(list(self._pending), seconds)

    def _compare(
        self,
        files: Files,
        locations: PlaneLocations,
        chroma: np.ndarray,
        wanted: torch.Tensor,
        report: Callable[[np.ndarray], None],
    ) -> None:
        try:
            with nullcontext() if self._compares is None else working_on(self._compares):
                alike = self._alike(files, locations, wanted)
            self._equal_counts += np.bincount(chroma[alike], minlength=256)
            self.compare_again(chroma[~alike])
            report(np.where(alike, BY_ENGINE, BY_PILLOW).astype(np.uint8))
        except EngineTimeout:
            self.disable()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.disable(f"comparing its pixels failed ({first_line(error)})")

    def _alike(self, files: Files, locations: PlaneLocations, wanted: torch.Tensor) -> np.ndarray:
        """Return (N,) bool, whether the engine's pixels are equal to ``wanted``. A file that the engine rejects counts
        as different."""
        count = len(files)
        back, images = np.arange(count)[::-1], wanted.split((3 * locations.sizes.prod(1)).tolist())
        try:
            others = self._differs(files, locations, wanted)
            return ~(others | self._differs(files.only(back), locations.only(back), torch.cat(images[::-1]))[back])
        except EngineError:
            if count == 1:
                return np.zeros(1, bool)
        parts = []
        for at in np.array_split(np.arange(count), 2):
            pixels = torch.cat([images[i] for i in at.tolist()])
            parts.append(self._alike(files.only(at), locations.only(at), pixels))
        return np.concatenate(parts)

    def _differs(self, files: Files, locations: PlaneLocations, wanted: torch.Tensor) -> np.ndarray:
        return self.differs(self.submit(files, locations).result(), locations, wanted)

    def differs(self, planes: torch.Tensor, locations: PlaneLocations, wanted: torch.Tensor) -> np.ndarray:
        """Return (N,) bool, True if an image's planes do not yield the pixels in ``wanted``.

        ``wanted`` is (bytes,) uint8, the RGB pixels of all images. Synchronizes the device.
        """
        from . import kernels  # imports Triton

        rows, layout = whole_rows_of(locations)
        return kernels.differs(planes, to_device(rows, planes.device), layout, wanted).cpu().numpy() != 0
