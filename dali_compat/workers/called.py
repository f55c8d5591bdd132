"""Collects what functions have given for one batch."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from ..plan import ImageSpec
from .images import Packed, as_tensor, copy, infos_of, kind_of, pack, split
from .samples import Parcel
from .shared_memory import Place, Slot


class Called:
    """A batch in Python's hands: the answers of its parts, in order, and the memory that they share, if there is any;
    or, without processes, what its one part has given.

    Attributes:
        infos: of each of its images() the ``info``, once these were asked for; empty where they have none.
    """

    def __init__(self, answers: list, counts: list[int], pool: Any = None, slot: Slot | None = None):
        self._answers, self._counts, self._pool, self._slot = answers, counts, pool, slot
        self._made: list[Packed | Parcel | list] = []  # of the first answers
        self._over = False
        self.infos: list[Any] = []

    @property
    def done(self) -> bool:
        """True if no process will touch its shared memory again."""
        return self._over and all(answer.there for answer in self._answers)

    @property
    def workers_lost(self) -> bool:
        """True if processes have died, or do not answer: that is no fault of a sample."""
        return self._pool is not None and not self._pool.usable

    def cancel(self) -> None:
        self._over, self._made = True, []

    def images(self, device: torch.device) -> tuple[ImageSpec, torch.Tensor | list[torch.Tensor]] | None:
        """Returns what the functions have given, and its ImageSpec: (N, C, H, W) on the device, or a list of (C, H, W)
        where sizes differ; None where they have given something else, or not all the same.

        Raises:
            Exception: what a function has raised, with the worker's traceback in its text, as torch's loader raises it.
            RuntimeError: a worker has died.
        """
        parts, specs = [], set()
        for answer in self._parts():
            part = _packed(answer)
            if part is None or part.spec is None:
                return None
            parts.append(part)
            specs.add(part.spec.but(size=None))
        if len(specs) != 1:
            return None
        if any(part.infos for part in parts):
            self.infos = list(chain.from_iterable(part.infos or [{}] * len(part.shapes) for part in parts))
        made = self._on(device, parts)
        spec = specs.pop()
        if spec.kind == "pil":
            made = made.movedim(-1, -3) if isinstance(made, torch.Tensor) else [one.movedim(-1, -3) for one in made]
        return spec.but(size=tuple(made.shape[-2:])) if isinstance(made, torch.Tensor) else spec, made

    def tensor(self, device: torch.device) -> torch.Tensor | None:
        """Returns what torch's default_collate would make of tensors that are no images (ten crops, stacked), on the
        device; None where it has to see for itself. Raises what images() does."""
        parts = [part for part in self._parts() if isinstance(part, Packed) and not part.kind]
        if len(parts) < len(self._made):
            return None
        made = self._on(device, parts) if len({part.dtype for part in parts}) == 1 else None
        return made if isinstance(made, torch.Tensor) else None

    def samples(self) -> list:
        """The same as the functions have given it. Raises what images() does."""
        results: list = []
        shared = None if self._slot is None else self._slot.bytes
        for part in self._parts():
            results += part if isinstance(part, list) else part.unpack(shared)
        self.cancel()
        return results

    def _parts(self) -> list[Packed | Parcel | list]:
        for answer, count in list(zip(self._answers, self._counts, strict=True))[len(self._made) :]:
            made = answer if self._pool is None else self._pool.receive(answer, count)
            if isinstance(made, ExceptionWrapper):
                made.reraise()
            elif isinstance(made, Exception):
                raise made
            else:
                self._made.append(made)
        return self._made

    def _on(self, device: torch.device, parts: list[Packed]) -> torch.Tensor | list[torch.Tensor]:
        """All of them, one tensor where their shape is one."""
        with nullcontext() if self._slot is None else self._slot.read():
            shapes = {shape for part in parts for shape in part.shapes}
            made = self._uniform(parts, shapes.pop(), device) if len(shapes) == 1 else self._ragged(parts, device)
        self.cancel()
        return made

    def _uniform(self, parts: list[Packed], shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        made = torch.empty((sum(len(part.shapes) for part in parts), *shape), dtype=parts[0].dtype, device=device)
        for part, to in zip(parts, made.split([len(part.shapes) for part in parts]), strict=True):
            copy(to, self._values(part).view(to.shape))
        return made

    def _ragged(self, parts: list[Packed], device: torch.device) -> list[torch.Tensor]:
        images: list = []
        for part in parts:
            values = self._values(part)
            made = torch.empty_like(values, device=device)
            copy(made, values)
            images += split(made, part.shapes)
        return images

    def _values(self, part: Packed) -> torch.Tensor:
        if not isinstance(part.values, Place):
            return part.values
        assert self._slot is not None  # whose place it is
        return self._slot.bytes(part.values).view(part.dtype)


def _packed(part) -> Packed | None:
    """Results of the caller's thread, too, where they are images and alike."""
    if isinstance(part, list):
        kind = kind_of(part)
        return pack([as_tensor(one) for one in part], kind, infos_of(part)) if kind else None
    return part if isinstance(part, Packed) else None
