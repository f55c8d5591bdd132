"""Reads what only Lightning knows of an epoch from its Trainer, a variable of a call under way."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

_MODULES = "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"


class TrainerPlace(NamedTuple):
    """A Trainer's position in the loader that it iterates over.

    Attributes:
        over: whether the epoch's last batch was had. Lightning never asks for one behind that, and may stop before the
            loader does (limit_train_batches).
        ahead: batches that it has fetched, and not used yet: one, where the loader has no length.
        every: reload_dataloaders_every_n_epochs; 0 where loaders stay. Where Lightning goes on it counts from there. It
            calls iter() of a new loader twice, but for one that it goes on with.
        age: epochs since this one was made, where they do not stay.
    """

    over: bool = False
    ahead: int = 0
    every: int = 0
    age: int = 0

    @property
    def is_replaced(self) -> bool:
        """True if the next epoch has a new loader."""
        return self.every > 0 and self.age + 1 >= self.every


def trainer_place(loader) -> TrainerPlace:
    """By the Trainer that is at work; nothing where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") not in _MODULES:
        frame = frame.f_back
    fit = None if frame is None else getattr(frame.f_locals.get("self"), "fit_loop", None)
    loaders = getattr(getattr(fit, "_combined_loader", None), "flattened", ())
    if fit is None or not any(one is loader for one in loaders):
        return TrainerPlace()
    every = fit.trainer.reload_dataloaders_every_n_epochs or 0
    age = int(fit.trainer.current_epoch - fit._last_train_dl_reload_epoch) if every else 0
    return TrainerPlace(
        fit.epoch_loop.batch_progress.is_last_batch, len(getattr(fit._data_fetcher, "batches", ())), every, age
    )
