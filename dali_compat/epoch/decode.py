"""Groups of rows that share a plan and are decoded by DALI or Pillow.

The constructor of a group submits its rows. result(failures) returns the rows that succeeded, and their transformed
images. It adds the errors of the other rows to ``failures``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.headers import header_hashes
from ..data.intact import is_intact
from ..data.sources import BYTES, PATHS, Form, Source, ctimes_of, overwritten
from ..engine import pil
from ..errors import remedy_of
from ..ops.draws import Arrays, ImageTooSmall
from ..ops.image_by_image import run_all
from ..plan import Plan
from ..runtime.device import ViewBatches, to_device
from .decodable import DecodableRows

if TYPE_CHECKING:
    from ..engine.dali.transfer import Received


RowImages = tuple[Sequence[int], Any]
"""Row numbers, and the rows' images: (N, C, H, W), ViewBatches, or a list of images or of tuples of views."""


def sorted_by_row(made: Sequence[RowImages]) -> list:
    """Concatenate the images of several (rows, images) pairs, sorted by row."""
    images = {row: image for rows, several in made for row, image in zip(rows, several, strict=True)}
    return [images[row] for row in sorted(images)]


def merged_results(results: Sequence[RowImages]) -> RowImages:
    """Merge the (rows, images) of several groups into one pair. The images become a list if several groups have
    rows."""
    made = [(rows, images) for rows, images in results if rows]
    return made[0] if len(made) == 1 else (sorted(chain.from_iterable(rows for rows, _ in made)), sorted_by_row(made))


class PilGroup:
    """Rows decoded by PIL and transformed by torchvision's functions, in threads. Random arguments depend on the
    decoded sizes, not on those in the headers."""

    def __init__(self, batch: DecodableRows, plan: Plan, rows: list[int]):
        self._batch, self._plan = batch, plan
        self._futures: dict[int, Future] = {}
        for row in rows:
            chains = [(one.steps, partial(batch.compute_one, one.steps, row)) for one in plan.chains]
            self._futures[row] = batch.epoch.in_thread(pil.load, batch.sources[row], chains)

    def result(self, failures: dict[int, Exception]) -> RowImages:
        wait(self._futures.values())
        made, device = {}, self._batch.epoch.route.device
        for row, future in self._futures.items():
            error = future.exception()
            if isinstance(error, Exception):
                too_small = isinstance(error, ImageTooSmall)
                failures[row] = error if too_small else self._batch.unreadable(row, error)
            else:
                views = tuple(to_device(view, device) for view in future.result())
                made[row] = views if self._plan.views else views[0]
        self._futures = {}
        return list(made), list(made.values())

    def discard(self) -> None:
        while self._futures:
            self._futures.popitem()[1].cancel()


class DaliGroup:
    """Rows that DALI decodes and transforms. Either all images need a rotation by their EXIF orientation, or none do.

    Args:
        given: PATHS or BYTES.
        retry: whether this is the second attempt to decode the rows.

    Raises:
        ImageTooSmall: an image is too small for the plan.
    """

    keeps_decoded = False  # whether DALI also returns the uncropped decoded images, for use_decoded()

    def __init__(self, batch: DecodableRows, plan: Plan, rows: list[int], given: str, retry: bool = False):
        self._batch, self._plan, self._rows, self._given, self._is_retry = batch, plan, rows, given, retry
        at = np.array(rows)
        self._facts = batch.facts[at]
        self._chains = plan.chains
        arrays = [batch.compute((*one.dali, *one.batch), at) for one in self._chains]
        self._sizes = [of_one.sizes for of_one in arrays]
        dali = [of_one[: len(one.dali)] for one, of_one in zip(self._chains, arrays, strict=True)]
        self._batch_arrays = [of_one[len(one.dali) :] for one, of_one in zip(self._chains, arrays, strict=True)]
        if given == BYTES:
            self._images: Any = [source.bytes() for source in self._sources]  # type: ignore[union-attr]  # BYTES implies records
        else:
            self._images = batch.paths(at)
        orientations = self._facts["orientations"]
        turns = bool(orientations[0] > 1)
        form = Form(given, self.keeps_decoded, batch.epoch.route.fancy, turns=turns)
        self._pipeline = batch.epoch.pipeline(plan, len(rows), form)
        arguments = list(chain.from_iterable(dali))
        if turns:
            arguments = self._pipeline.rotation_arrays(arguments, orientations, self._facts["sizes"])
        offsets = np.ascontiguousarray(self._facts["size_field_at"])
        self._ticket = self._pipeline.submit(self._images, arguments, offsets)

    @cached_property
    def _sources(self) -> list[Source]:
        sources = self._batch.sources
        return [sources[row] for row in self._rows]

    def result(self, failures: dict[int, Exception]) -> RowImages:
        from ..engine.dali.pipeline import PipelineError

        try:
            received = self._pipeline.receive(self._ticket)
        except PipelineError as error:
            return self._retry(error, failures)
        encoded = self._images if received.encoded is None else received.encoded
        doubtful = set(self._needs_pil(received, encoded).tolist())
        if received.decoded is not None:
            self.use_decoded(received.decoded, encoded, [i for i in range(len(self._rows)) if i not in doubtful])
        made = received.images.batches if isinstance(received.images, ViewBatches) else [received.images]
        made = [_run_torch_steps(*of_chain) for of_chain in zip(self._chains, made, self._batch_arrays, strict=True)]
        for of_view, sizes in zip(made, self._sizes, strict=True):
            doubtful |= set(np.flatnonzero(wrong_sizes(of_view, sizes)).tolist())
        images = ViewBatches(made) if self._plan.views else made[0]
        if not doubtful:
            return self._rows, images
        by_pil = PilGroup(self._batch, self._plan, [self._rows[i] for i in sorted(doubtful)]).result(failures)
        sure = [i for i in range(len(self._rows)) if i not in doubtful]
        return merged_results([by_pil, ([self._rows[i] for i in sure], [images[i] for i in sure])])

    def use_decoded(self, decoded: Any, encoded: Any, sure: list[int]) -> None:
        """Receive DALI's uncropped images. Those at the positions ``sure`` are known to be correct."""

    def _needs_pil(self, received: Received, encoded: Any) -> np.ndarray:
        """Return the positions in ``encoded`` of the images that PIL has to read.

        Such an image has changed since its header was read, or DALI and PIL may decode it differently.
        """
        rows, batch, facts = self._rows, self._batch, self._facts
        if received.encoded is None:
            changed = overwritten(self._sources)
        else:
            assert received.lengths is not None and received.size_field is not None
            hashes = header_hashes(received.size_field)
            changed = (received.lengths != facts["lengths"]) | (hashes != facts["header_hashes"])
            upright = facts["orientations"] > 0  # an editor may change this tag, but neither length nor hash
            if batch.epoch.route.device.type == "cpu" or upright.any():  # stat() takes too long if a GPU decodes
                changed |= ctimes_of(self._sources) != facts["ctimes"]
        new = np.flatnonzero(~changed & ~facts["intact"])
        # is_intact() holds the GIL, so threads do not help
        unknown = np.array([not is_intact(encoded[i]) for i in new.tolist()], bool)
        for i in new[unknown].tolist():
            batch.use_pil(rows[i])
        if len(new):
            batch.set_intact([rows[i] for i in new[~unknown].tolist()])
        batch.forget([rows[i] for i in np.flatnonzero(changed).tolist()])
        return np.concatenate([np.flatnonzero(changed), new[unknown]])

    def discard(self) -> None:
        self._pipeline.discard(self._ticket)

    def _retry(self, error: Exception, failures: dict[int, Exception]) -> RowImages:
        """Return the result after DALI has failed with ``error``.

        PIL reads the files that DALI cannot decode, now and in later epochs, and raises torchvision's errors for
        damaged files. DALI decodes the other files again. If no single file fails, DALI decodes all files again,
        because a file may have been incomplete at first. Raise ``error`` instead if this was the second attempt, or if
        DALI did not read the files itself.
        """
        from ..engine.dali.pipeline import undecodable

        bad: list[int] = []
        if remedy_of(error):  # an error of the system
            if self._is_retry and (strerror := os.strerror(errno.EMFILE)) in str(error):
                raise OSError(errno.EMFILE, strerror) from error
        else:
            images = self._sources if self._given == PATHS else self._images
            bad = np.flatnonzero(overwritten(self._sources)).tolist()  # their bytes must not be read
            bad = bad or [i for i, image in enumerate(images) if not is_intact(image)]
            bad = bad or undecodable(images, self._pipeline.device, self._given)
            if not bad and self._given == PATHS:  # changed since their headers were read
                bad = np.flatnonzero(ctimes_of(self._sources) != self._facts["ctimes"]).tolist()
        if not bad and (self._is_retry or self._given != PATHS):
            raise error
        for i in bad:
            self._batch.use_pil(self._rows[i])
        made = [PilGroup(self._batch, self._plan, [self._rows[i] for i in bad]).result(failures)]
        good = [row for i, row in enumerate(self._rows) if i not in bad]
        if good:
            made.append(DaliGroup(self._batch, self._plan, good, self._given, retry=True).result(failures))
        return merged_results(made)


def _run_torch_steps(plan: Plan, images, arrays: list[Arrays]):
    if not (plan.dali and plan.dali[-1].kwargs.get("layout") == "CHW"):
        images = images.movedim(-1, 1) if isinstance(images, torch.Tensor) else [i.movedim(-1, 0) for i in images]
    return run_all(plan.batch, images, arrays)


def wrong_sizes(images: torch.Tensor | list[torch.Tensor], sizes: np.ndarray) -> np.ndarray:
    """Return a bool array, True for each image whose (height, width) differs from ``sizes``.

    ``sizes`` is (N, 2), or (1, 2) for one size. The array is (N,), or (1,) for a tensor and one size.
    """
    one_for_all = [images] if isinstance(images, torch.Tensor) else images
    given = [image.shape[-2:] for image in one_for_all]
    return (np.array(given, np.int64).reshape(-1, 2) != sizes).any(1)


def in_memory_format(images, plan: Plan):
    last = plan.channels_last and images.ndim == 4
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
