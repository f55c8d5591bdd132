"""One epoch on the DALI route."""

from __future__ import annotations

from ..routes.dali import DaliRoute
from .dali_batch import DaliBatch
from .dali_epoch import DaliEpoch
from .iterator import OrderedIterator


class DALIIterator(OrderedIterator[DaliRoute, DaliBatch]):
    """As OrderedIterator."""

    def _epoch_of(self, loader, route: DaliRoute, seed: int) -> DaliEpoch:
        return DaliEpoch(loader, route, seed)

    def _batch(self, *args) -> DaliBatch:
        return DaliBatch(*args)
