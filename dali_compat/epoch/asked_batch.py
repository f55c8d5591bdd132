"""One batch of a data set of the user's, whose own code says what its samples are made of (lazy/).

The data set is asked in worker processes, or, without any, in the thread that iterates. DALI makes the images of
samples that are left to it; others are as the data set has made them. A sample whose image cannot be made is asked for
once more, and its own code makes it, or raises torch's error.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..data.lookup import Found, Listed
from ..data.sources import is_record
from ..engine.device import mapped, moved
from ..errors import ImageReadError, OutOfStep
from ..lazy.samples import Sample, at, put
from ..lazy.workers import Request, Ticket
from .batch import collated
from .dali_batch import DaliBatch
from .on_error import NOTHING, UNREADABLE, reason_of
from .part import in_order
from .stock import path_of


class Told(Listed):
    """What a data set has told of its samples.

    Attributes:
        targets: a Sample each.
    """

    @property
    def leaves(self) -> list[Any]:
        """The chains, each once."""
        return [chain for chain in super().leaves if chain is not None]

    def found(self) -> list[Found]:
        """Rows by their chains, without those that are real."""
        rows_of: dict[int, list[int]] = {}
        for row, (chain, _) in enumerate(self.places):
            if chain is not None:
                rows_of.setdefault(id(chain), []).append(row)
        found = []
        for rows in rows_of.values():
            index = np.array([self.places[row][1] for row in rows], np.int64)
            keys = np.fromiter((hash(self.sources[row]) for row in rows), np.int64, len(rows))
            found.append(Found(self.places[rows[0]][0], np.array(rows), index, keys))
        return found

    def put(self, row: int, sample: Sample) -> None:
        """A real sample takes a row's place."""
        self.places[row] = (None, 0)  # type: ignore[assignment]  # nobody asks for it any more
        self.targets[row] = sample


class AskedBatch(DaliBatch):
    """A batch of a data set that is asked."""

    _samples_of: Told
    targets: list[Sample]
    _settled = False  # whether the data set itself was asked for those that are bad
    _asked_of: Ticket | None = None  # what workers are to answer

    def give_up(self, row: int, error: Exception) -> None:
        """A row's image cannot be made by DALI or PIL: the data set itself may."""
        if self._stands_in:
            super().give_up(row, error)
        self.bad[row] = error

    def request(self) -> None:
        """Workers are asked for its samples, if there are any, and were not yet. Errors wait."""
        workers = self.epoch.asked_workers
        if workers is not None and self._asked_of is None and not self._located:
            try:
                self._asked_of = workers.ask(self._request(self.indices))
            except TimeoutError:  # a signal's handler has raised it
                raise
            except (OutOfStep, RuntimeError, OSError):  # which _look_up() meets again
                pass

    def _request(self, indices: list[Any], really: bool = False) -> Request:
        errors = self.epoch.errors
        covers = (Exception,) if errors.in_python else UNREADABLE
        seed = self.epoch.seed, self.position(0)
        return Request(indices, seed, () if really or errors.policy == "raise" else covers, really)

    def _look_up(self) -> Told:
        samples = self._samples_here() if self.epoch.asked_workers is None else self._samples_there()
        places: list[Any] = [
            (one.chain, 0 if one.chain is None else _number(one, index))
            for one, index in zip(samples, self.indices, strict=True)
        ]
        dataset = self.epoch.dataset
        files = [
            one.source or (path_of(dataset, self.indices[row]) if row in self.bad else type(dataset).__name__)
            for row, one in enumerate(samples)
        ]
        return Told(places, files, samples)

    def _samples_here(self) -> list[Sample]:
        asker, tolerant = self.epoch.asker, self.epoch.errors.policy != "raise"
        assert asker is not None  # whose batch this is
        with self._as_in_a_worker():
            return asker.ask(self.indices, self._failed_here if tolerant else None)

    def _samples_there(self) -> list[Sample]:
        workers = self.epoch.asked_workers
        assert workers is not None
        if self._asked_of is None:
            self._asked_of = workers.ask(self._request(self.indices))
        return workers.samples(self._asked_of, self._failed)

    def _failed_here(self, row: int, error: Exception) -> None:
        if not isinstance(error, Exception if self.epoch.errors.in_python else UNREADABLE):
            raise error
        self._failed(row, reason_of(error))

    def _failed(self, row: int, reason: str) -> None:
        """The data set has raised that."""
        if self._stands_in:
            raise ImageReadError(f"cannot make index {self.indices[row]}: {reason}")
        self.bad[row] = reason

    def _really(self, row: int) -> Sample:
        """A sample that the data set makes itself."""
        asker, workers = self.epoch.asker, self.epoch.asked_workers
        assert asker is not None
        if workers is not None:
            return workers.samples(workers.ask(self._request([self.indices[row]], really=True)))[0]
        with self._as_in_a_worker():
            return asker.really(self.indices[row])

    def _images(self) -> Any:
        """As a batch of files has them; None for rows that are real."""
        real = [row for row, (chain, _) in enumerate(self.places) if chain is None and row not in self.bad]
        if not real:
            return super()._images()
        images = list(super()._images()) if len(real) + len(self.bad) < len(self) else []
        good = [row for row in range(len(self)) if row not in self.bad and row not in set(real)]  # some are bad by now
        return in_order([(good, images), (real, [None] * len(real))])

    def _collate(self, images: Any) -> Any:
        if self.bad:
            images, self._settled = self._mended(images), True
        if self.bad:
            images = self._without_bad(images)
            if not len(self):
                return NOTHING
        epoch, samples = self.epoch, self.targets
        if epoch.default_collate:
            paths = {one.path for one in samples}
            if isinstance(images, torch.Tensor) and len(paths) == 1:
                return _collated(samples, images, paths.pop(), epoch.route.device)
            made = moved(collated(_filled(samples, images, epoch.route.device)), epoch.route.device)
            path = next((one.path for one in samples if one.path is not None), None)
            whole = None if path is None else at(made, path)
            if path is None or not isinstance(whole, torch.Tensor):
                return made
            return put(made, path, self._in_format(whole))
        return self._collated_by_the_user(images)

    def _samples(self, images: Any) -> list[Any]:
        return _filled(self.targets, images, self.epoch.route.device)

    def _substitute(self) -> None:
        if self._settled:
            super()._substitute()

    def _mended(self, images: Any) -> Any:
        """The images, with rows that the data set itself can make; ``bad`` are the others.

        Raises:
            Exception: what the data set raises, unless on_error is for it.
        """
        errors, made = self.epoch.errors, list(images)
        for row in sorted(row for row in self.bad if self.places[row][0] is not None):
            error = self.bad[row]
            try:
                sample = self._really(row)
            except Exception as own:
                unreadable = isinstance(error, (ImageReadError, str)) or errors.in_python
                if self._stands_in or errors.policy == "raise" or not unreadable:
                    raise
                self.bad[row] = reason_of(own)
                continue
            del self.bad[row]
            self._samples_of.put(row, sample)
            made.insert(sum(other not in self.bad for other in range(row)), None)
        return images if len(made) == len(images) else made


def _number(sample: Sample, index: Any) -> int:
    """A sample's place among the headers of its chain. What is in memory is another image each time."""
    assert sample.chain is not None
    if is_record(sample.source):  # type: ignore[arg-type]  # it has one
        return sample.source.index % len(sample.chain)
    try:
        place = operator.index(index)
    except TypeError:  # a sampler of the user's may give anything
        place = hash(sample.source)
    return place % len(sample.chain)


def _filled(samples: Sequence[Sample], images: Any, device: torch.device) -> list[Any]:
    """The samples as the data set would give them, images on the device where those are."""
    place = next((image.device for image in images if isinstance(image, torch.Tensor)), device)
    return [
        one.filled(image)
        if one.path is not None or place.type == "cpu"
        else mapped(one.value, lambda made: _on(place, made))
        for one, image in zip(samples, images, strict=True)
    ]


def _on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """An image; targets stay where they are."""
    return tensor.to(device) if tensor.ndim >= 3 else tensor


def _collated(samples: Sequence[Sample], images: torch.Tensor, path: Any, device: torch.device) -> Any:
    """What default_collate makes of them."""
    if not path:
        return images
    numbered = collated([one.filled(number) for number, one in enumerate(samples)])
    return put(moved(numbered, device), path, images)
