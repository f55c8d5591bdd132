"""State shared by the batches of one epoch: its seed, processes that call functions, and what on_error has done."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from PIL import Image
from torch.utils.data import default_collate
from torch.utils.data._utils import collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..randoms import Randoms, own_generators
from ..translate.lower import plans_ahead
from ..workers.calls import Calls
from .progress import Progress
from .samplers import indices_among
from .stats import Meter

TARGETS, COLLATE = 2**32 - 1, 2**32 - 2  # random streams of the user's functions that are no transforms
_SAMPLED = (tuple, list, dict, torch.Tensor, Image.Image, int, float, str)  # what samples consist of


def _is_torchs() -> bool:
    """Returns whether default_collate does with these what it does in torch: its table may be extended, and changed."""
    torchs = vars(collate)
    others = [kind for kind, made in default_collate_fn_map.items() if getattr(made, "__globals__", None) is not torchs]
    return not any(issubclass(one, kind) for kind in others for one in _SAMPLED)


R = TypeVar("R", bound=Any)  # a DaliRoute or a ResidentRoute


class Epoch(Generic[R]):
    """State shared by the batches of one epoch. It refers to no batch, so that the last reference to an iterator ends
    it.

    Attributes:
        dataset, collate_fn: the loader's.
        user_collate: calls that function, where it is a user's.
        batched: whether torch's automatic batching is on.
        default_collate: whether torch's default_collate, as torch has it, makes the batches.
        route: of the loader at iter().
        seed, rank_order: of this epoch; a sample's random numbers follow from the seed and its place in that order.
        in_workers: whether there are workers, as torch counts them.
        calls: runs the functions without a translation.
        calls_processes: whether batches go from DALI to processes.
        calls_here: whether functions without a translation are called in the caller's thread.
        errors: what on_error does, and has done.
        among: indices of the samples that may stand in for others.
        over: whether it has ended.
        meter: counts what it gives.
    """

    def __init__(self, loader, route: R, progress: Progress):
        self.dataset, self.collate_fn, self.batched = loader.dataset, loader.collate_fn, loader._auto_collation
        self.user_collate = loader._user_collate
        self.default_collate = self.batched and self.collate_fn is default_collate and _is_torchs()
        self.in_workers = loader.num_workers > 0
        self.route, self.seed, self.rank_order, self.over = route, progress.seed, progress.rank_order, False
        self.meter: Meter = loader._stats.begin(loader.collate_fn)
        self.errors, self.among = loader._errors, indices_among(loader)
        self.errors.begin()
        views = max((len(plan.chains) for plan in route.all_plans), default=1)
        self.calls = Calls(self.seed, loader, route.device, views * route.depth)
        calls = [ahead.call for plan in route.all_plans for ahead in plans_ahead(plan) if ahead.call]
        for call in calls:
            self.calls.prepare(call)
        self.calls_processes = bool(calls) and self.in_workers
        self.calls_here = bool(calls) and not self.in_workers

    def randoms(self, position: int, count: int) -> Randoms:
        """The random numbers of ``count`` consecutive samples of this rank, of which the first has a place in the order
        over all ranks."""
        return Randoms(self.seed, position, count, self.rank_order.world)

    def as_in_a_worker(self, begin: int, stream: int = TARGETS) -> AbstractContextManager[None]:
        """Within it the user's own functions draw where torch's workers would: not from this process's generators.
        ``begin``: how many samples of the epoch come before theirs."""
        if not self.in_workers:
            return nullcontext()
        return own_generators(self.seed, stream, 0, self.rank_order.place_of(begin))

    def as_in_its_copy(self, targets: list[Any], transformed: bool) -> list[Any]:
        """Targets, before target_transform where it has one, as a worker's copy of the data set has them: the user's
        functions may change them in place."""
        if self.in_workers and (transformed or not self.default_collate):
            with suppress(Exception):  # of objects that nobody can copy
                return deepcopy(targets)
        return targets

    @property
    def fast_collate(self) -> bool:
        """True if collate_fn is timm's: as the default one, of uint8 images, in a tuple."""
        timm = sys.modules.get("timm.data.loader")
        return timm is not None and self.collate_fn is timm.fast_collate and self.batched

    def end(self) -> None:
        """Nobody will ask for another batch."""
        self.over = True
        self.calls.close()
