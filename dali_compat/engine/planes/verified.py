"""A JPEG engine that has to show of each file that its pixels are Pillow's.

No header tells that they are: of damaged coded data, which Pillow accepts, every decoder makes noise of its own. So at
the first sight of a file both decode it. The batch has what DALI's CPU decoder gives with exact=True, to the last bit
what Pillow gives. A thread here has the engine decode the same bytes, and a kernel compares all pixels of each image,
not only the window that the batch takes of it; so these images are decoded whole. What comes of it is kept by
data/verdicts.py. Nobody waits for it: until it is there, a file counts as not compared.

The engine is asked twice, in two orders: what it makes of damaged data might hang on what lay in its memory before.

A sound file's pixels are decided by its kind of chroma: an engine's inverse DCT is libjpeg's or it is not. So once
_ENOUGH files of a kind were alike, and none was not, the engine decodes the others of it from their first sight on, if
their structure is intact. Of these one of _EVERY ** 2 is compared at its first sight, by chance. Where its pixels are
others, all of its kind are compared again.
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
from ...data.verdicts import ENGINES, LIKELY, PILLOWS, decoders
from ...runtime.device import to_device, working_on
from .engine import EngineSilent, JpegEngine, first_line
from .files import Files
from .geometry import Planes, whole_rows_of
from .nvjpeg import EngineError

MOST_PIXELS = 2**26  # of an image: 64 MB of luma, and as much of chroma again at most twice
_WAITING = 2**30  # bytes of pixels that wait to be compared, at most
_PER_BATCH = 2**29  # those of them that one batch may bring
_KINDS = {GRAY_JPEG: "gray", 0x11: "4:4:4", 0x21: "4:2:2", 0x22: "4:2:0", 0x12: "4:4:0"}  # by Header's chroma
_FREE = 8  # times as much is free on the GPU, at least
_ENOUGH = 1024  # files of a kind that are alike: of its sound ones fewer than .3 % are others then, with 95 % certainty
_EVERY = 6  # batches: one of so many, by chance, compares such a part of its new files


class VerifiedEngine(JpegEngine):
    """A JpegEngine that compares its pixels with DALI's at first sight."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self._compare_on(device)

    def _compare_on(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        how = (torch.cuda.set_device, (device,)) if on_gpu else ()
        self._comparing = ThreadPoolExecutor(1, "dali_compat JPEG comparison", *how)
        self._compares = torch.cuda.Stream(device) if on_gpu else None
        self._pending: dict[Future, int] = {}  # with bytes of pixels
        self._chance = random.Random(0).random  # a period of its own might always leave out the same batches
        self._alike_of = np.zeros(256, np.int64)  # files of each chroma since the last that was not

    @property
    def kinds(self) -> str:
        """The JPEGs whose pixels may be Pillow's: "gray, 4:4:4"."""
        return ", ".join(name for chroma, name in _KINDS.items() if self.exact[chroma])

    def takes(self, chroma: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """(N,) bool: which files may be for it, by what FACTS says of them."""
        return self.exact[chroma] & (sizes.prod(1) <= MOST_PIXELS)

    def shared_out(self, rows: np.ndarray, chroma: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows it decodes, and which others are to be compared; ``chroma`` and ``words`` of each."""
        decided, likely = decoders(words), self._alike_of[chroma] >= _ENOUGH
        compared = ~likely & ((decided == 0) | (decided == LIKELY))
        if self._chance() < 1 / _EVERY:  # for few at a time would take nearly as long as for many
            new = np.flatnonzero(likely & (decided == 0))
            compared[new[: -(-len(new) // _EVERY)]] = True
        own = ((decided == ENGINES) | (likely & (decided != PILLOWS))) & ~compared
        return rows[own], rows[compared]

    def doubt(self, chroma: np.ndarray) -> None:
        """Compares all files of these kinds again, until enough of them are alike."""
        self._alike_of[chroma] = 0

    def account(self, known: Iterable[tuple[Headers, int]]) -> str:
        """Says how many files it decodes, and why not more; ``known`` of each part of a data set, and its length."""
        counts = JpegCounts(0, 0, 0, 0, 0, 0)
        for headers, count in known:
            found = headers.jpegs(self.name, self.exact, MOST_PIXELS, count)
            counts = JpegCounts(*map(sum, zip(counts, found, strict=True)))
        text = f"the JPEG engine decodes {counts.engines:,} files, whose pixels were compared with Pillow's"
        if counts.likely:
            text += f", and {counts.likely:,} that are like these"
        reasons = {"because its pixels are others": counts.others, f"of more than {MOST_PIXELS:,} pixels": counts.large}
        if not_these := " and ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count):
            text += f", but not {not_these}"
        if left := counts.waiting + counts.unseen:
            text += f"; {left:,} files are not compared yet"
        return text

    @property
    def room(self) -> int:
        """Bytes of pixels that a batch may have compared: some of what is free, for a model needs the rest."""
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else _FREE * _PER_BATCH
        return min(_PER_BATCH, _WAITING - self._waiting(), free // _FREE)

    @property
    def is_behind(self) -> bool:
        """True if more waits to be compared than should."""
        return self._waiting() > _WAITING

    def _waiting(self) -> int:
        pending = list(self._pending.items())  # at once: other threads add to it
        return sum(bytes_ for future, bytes_ in pending if not future.done())

    def compare(
        self,
        files: Files,
        places: Planes,
        chroma: np.ndarray,
        pixels: list[torch.Tensor],
        tell: Callable[[np.ndarray], None],
    ) -> None:
        """Begins with N intact files.

        Args:
            places: where their planes are to be, by their sizes.
            chroma: of each, as FACTS has it.
            pixels: what Pillow makes of them, (height, width, 3) uint8 each, on the device.
            tell: is called with who decodes each from now on, (N,) uint8 (data/verdicts.py), in another thread; never
                where the engine fails.
        """
        try:
            wanted = torch.cat([image.reshape(-1) for image in pixels])  # a copy: theirs is DALI's memory
        except torch.OutOfMemoryError as error:
            self._fail(error)
            return
        if self._compares is not None:
            self._compares.wait_stream(torch.cuda.current_stream(self.device))
            wanted.record_stream(self._compares)
        with suppress(RuntimeError):  # the main thread has ended, and with it every executor
            future = self._comparing.submit(self._compare, files, places, chroma, wanted, tell)
            self._pending[future] = len(wanted)
            future.add_done_callback(self._pending.pop)

    def settle(self, seconds: float) -> None:
        """Wait until everything so far is compared, so long at most."""
        futures_wait(list(self._pending), seconds)

    def _compare(
        self, files: Files, places: Planes, chroma: np.ndarray, wanted: torch.Tensor, tell: Callable[[np.ndarray], None]
    ) -> None:
        try:
            with nullcontext() if self._compares is None else working_on(self._compares):
                alike = self._alike(files, places, wanted)
            self._alike_of += np.bincount(chroma[alike], minlength=256)
            self.doubt(chroma[~alike])
            tell(np.where(alike, ENGINES, PILLOWS).astype(np.uint8))
        except EngineSilent:
            self.give_up()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """No memory, for example: it is not tried for ever."""
        self.give_up(f"comparing its pixels failed, {first_line(error)}")

    def _alike(self, files: Files, places: Planes, wanted: torch.Tensor) -> np.ndarray:
        """(N,) bool. Where the engine refuses one of them, halves are tried, down to the one."""
        count = len(files)
        back, images = np.arange(count)[::-1], wanted.split((3 * places.sizes.prod(1)).tolist())
        try:
            others = self._differs(files, places, wanted)
            return ~(others | self._differs(files.only(back), places.only(back), torch.cat(images[::-1]))[back])
        except EngineError:
            if count == 1:
                return np.zeros(1, bool)
        halves = np.array_split(np.arange(count), 2)
        return np.concatenate(
            [self._alike(files.only(at), places.only(at), torch.cat([images[i] for i in at.tolist()])) for at in halves]
        )

    def _differs(self, files: Files, places: Planes, wanted: torch.Tensor) -> np.ndarray:
        return self.differs(self.submit(files, places).result(), places, wanted)

    def differs(self, planes: torch.Tensor, places: Planes, wanted: torch.Tensor) -> np.ndarray:
        """(N,) bool: of whose images not all pixels are the wanted ones, (bytes,) uint8 of one image after another.
        It waits for the device."""
        from . import kernels  # Triton starts with them

        rows, layout = whole_rows_of(places)
        return kernels.differs(planes, to_device(rows, planes.device), layout, wanted).cpu().numpy() != 0
