"""state_dict() and load_state_dict() of a loader, over all of its epochs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.utils.data as data

from ..routes import FallbackRoute, Route
from ..routes.dali import DaliRoute
from ..runtime.internals import trainer_is_at_last_batch
from .progress import Progress, load_object_states, object_states, stateful_objects
from .samplers import GLOBAL, checkpoint_generators, distributed, runs_users_functions
from .traits import Traits, check_state, differences, is_own, traits

VERSION = 1

State = dict[str, Any]


class History:
    """The number of epochs that a loader has begun, and the loaded state from which its next iter() resumes.

    ``keeps_globals`` is whether states include the global generators. It is False with Accelerate, because Accelerate
    saves them itself.
    """

    keeps_globals = True

    def __init__(self) -> None:
        self._traits: tuple[Any, Traits] | None = None
        self._clear()

    def _clear(self) -> None:
        self.begun = 0
        self._current: Progress | None = None
        self._pending: State | None = None  # loaded state that the next iter() resumes from
        # (state that the last iter() has resumed from, generator states before that iter(), number of batches that were
        # returned before the state was taken)
        self._applied: tuple[State, State, int] | None = None
        self._laps: list[int] | None = None  # base seed and next lap of a persistent iterator

    # ---- iterators

    def begin(self, loader, torch_workers: bool = False, before: Progress | None = None) -> Progress:
        """Return the progress of an epoch that iter() begins or resumes. A persistent iterator passes the previous
        epoch's progress as ``before``."""
        self._traits = None  # the user may have changed the samples
        pending, self._pending = self._pending, None
        if pending is None:
            pending = self._unused_state(loader)  # Lightning calls iter() twice
        entry = checkpoint_generators(loader, True).states() if pending is not None else {}
        then = {} if pending is None else {"dataset": pending.get("dataset")}
        load_object_states(loader, then)
        if pending is not None and pending["epoch"] is not None:
            progress = Progress.from_state(loader, pending["epoch"], torch_workers)
            progress.restore_generators = partial(checkpoint_generators(loader, True).set, entry | pending["now"])
        else:
            progress = Progress(loader, self.begun, torch_workers)
            progress.users = object_states(loader)
            self.begun += 1
            if before is not None:
                progress.base_seed, progress.lap = before.base_seed, before.lap + 1
            elif self._laps is not None:  # torch's iterator draws an unneeded seed
                progress.base_seed, progress.lap = self._laps
                progress.restore_generators = partial(
                    checkpoint_generators(loader, True).set, checkpoint_generators(loader, False).states()
                )
        progress.dataset_state = then.get("dataset")
        self._laps = None
        self._applied = None if pending is None else (pending, entry, progress.given)
        self._current = progress
        progress.restore_at_iter()
        return progress

    def _unused_state(self, loader) -> State | None:
        """Return None if the previous iter() did not resume, or if next() has returned a batch or failed since then.
        Otherwise undo that iter(): restore the generators, and return the state from which it resumed."""
        applied, current = self._applied, self._current
        if applied is None or current is None or current.over or current.given != applied[2]:
            return None
        if issubclass(current.ended_by or KeyboardInterrupt, Exception):
            return None
        pending, entry, _ = applied
        checkpoint_generators(loader, True).set(entry)
        self.begun, self._laps = pending["begun"], pending["laps"]
        return pending

    @property
    def resumes_mid_epoch(self) -> bool:
        return self._pending is not None and self._pending["epoch"] is not None

    # ---- states

    def state(self, loader, route: Route) -> State:
        if self._pending is not None:
            return dict(self._pending)
        current, is_fallback = self._current, isinstance(route, FallbackRoute)
        traced = isinstance(route, DaliRoute) and route.table is not None
        under_way = current is not None and not current.over
        if current is not None and current.given and trainer_is_at_last_batch(loader):
            under_way = False
        failed = current is not None and current.ended_by and isinstance(loader.dataset, data.IterableDataset)
        laps, users = None, object_states(loader)
        if current is not None:
            _warn_if_inexact(loader, current, is_fallback)
            if _is_persistent(loader):
                laps = [current.base_seed, current.lap + 1]
        now = checkpoint_generators(loader, runs_users_functions(loader, is_fallback or traced)).states()
        return {
            "version": VERSION,
            "of": self.traits(loader, route),
            "ranks": list(_ranks(loader)),
            "begun": self.begun,
            "under_way": under_way,
            "epoch": current.state() if current is not None and under_way else None,
            "laps": laps,
            "sampler": None if under_way else users.get("sampler"),
            # the data set's state is past the failed batch; without the state, all batches are loaded again
            "dataset": None if under_way and failed else users.get("dataset"),
            "now": now if self.keeps_globals else {name: one for name, one in now.items() if name not in GLOBAL},
            "errors": loader._errors.state(),
        }

    def traits(self, loader, route: Route) -> Traits:
        """Return the properties of the loader that a state must match, cached for the epoch."""
        key = route.reason if isinstance(route, FallbackRoute) else tuple(route.plans)
        if self._traits is None or self._traits[0] != key:
            self._traits = key, traits(loader, route)
        return self._traits[1]

    def load(self, loader, route: Route, state: State, strict: bool) -> None:
        """Make the next iter() resume from a state. The state is not modified.

        Raises:
            ValueError: the state is invalid, or ``strict`` is True and a different loader saved it. The message lists
                the differences.
        """
        if not isinstance(state, dict) or (state and "version" not in state):
            raise ValueError(f"invalid loader state: expected the result of state_dict(), got {state!r:.80}")
        if not state:
            self._clear()
            return
        if not isinstance(version := state["version"], int) or version != VERSION:
            what = f"field 'version' must be {VERSION}, got {version!r:.80}"
            raise ValueError(f"invalid loader state: {what}; load it with the version of dali_compat that saved it")
        rank, world = _ranks(loader)
        if "merged" in state:
            merged = state["merged"]
            if not isinstance(merged, list) or not merged:
                raise ValueError(f"invalid loader state: field 'merged' must be a list of states, got {merged!r:.80}")
            state = merged[rank % len(merged)]
        check_state(state, loader)
        self._traits = None
        wrong, drawn = differences(loader, state["of"], self.traits(loader, route))
        if state["ranks"][1] != world and distributed(loader) is None:
            wrong.append(f"number of ranks: was {state['ranks'][1]}, is {world}")
        if wrong and strict:
            text = "\n  ".join(wrong)
            raise ValueError(f"the state was saved by a different loader; pass strict=False to resume anyway\n  {text}")
        if drawn and state["begun"]:
            warnings.warn(f"the samples match the state, but random numbers will differ: {drawn[0]}", stacklevel=3)
        if state["begun"] and (state["laps"] is None) == _is_persistent(loader):
            text = "resuming is exact only until the end of the state's epoch, because persistent_workers has changed"
            warnings.warn(text, stacklevel=3)
        if state["epoch"] is None:
            load_object_states(loader, {"sampler": state["sampler"]})
            checkpoint_generators(loader, True).set(state["now"])
        self.begun, self._laps = state["begun"], state["laps"]
        self._current = self._applied = None
        self._pending = state
        if state["epoch"] is not None and state["of"]["batch_size"] != loader.batch_size:
            self._pending = state | {"epoch": state["epoch"] | {"last": [0, 0]}}
        loader._errors.load(state["errors"], state["epoch"] is not None)


def merge_states(states: Sequence[State]) -> State:
    """Merge the states of all ranks into one. Any number of ranks can resume from it.

    Args:
        states: the result of ``loader.state_dict()`` on each rank after the same step, in any order.

    Returns:
        A dictionary to pass to ``loader.load_state_dict()`` on every rank.

    Raises:
        ValueError: an element is not the state of a rank, a rank is missing, or the ranks are not at the same batch.

    Examples:
        >>> loader = DataLoader(DALIImageFolder("train", transform), batch_size=4, device="cpu")
        >>> batch = next(iter(loader))
        >>> state = merge_states([loader.state_dict()])  # with several ranks: the gathered states of all
        >>> loader.load_state_dict(state)
        >>> len(list(loader))  # the second of two batches
        1
    """
    if not all(isinstance(state, dict) and "ranks" in state for state in states):
        raise ValueError("merge_states() takes the loader.state_dict() of each rank, not a merged state")
    for state in states:
        check_state(state)
    by_rank = sorted(states, key=lambda state: state["ranks"][0])
    ranks = [tuple(state["ranks"]) for state in by_rank]
    if not states or ranks != [(rank, len(states)) for rank in range(len(states))]:
        raise ValueError(
            f"merge_states() needs exactly one state from each rank, got states with (rank, number of ranks) {ranks}"
        )
    if len({(state["begun"], (state["epoch"] or {}).get("samples")) for state in by_rank}) > 1:
        at_place: dict[str, list[str]] = {}
        for rank, state in enumerate(by_rank):
            at_place.setdefault(_where(state), []).append(str(rank))
        at = "; ".join(f"{where}: rank {', '.join(of_them)}" for where, of_them in at_place.items())
        raise ValueError(
            f"the states of the ranks are from different batches ({at}); save all states after the same step, or load "
            "the state of one rank on all ranks, together with that rank's model"
        )
    return {"version": VERSION, "merged": by_rank}


def _where(state: State) -> str:
    epoch = state["epoch"]
    if epoch is None:
        return f"at the end of epoch {state['begun'] - 1}" if state["begun"] else "before the first epoch"
    at = f"after batch {epoch['given'] - 1}" if epoch["given"] else "before the first batch"
    return f"{at} of epoch {epoch['number']}"


def _ranks(loader) -> tuple[int, int]:
    sampler = distributed(loader)
    if sampler is not None:
        return sampler.rank, sampler.num_replicas
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _is_persistent(loader) -> bool:
    return bool(loader.persistent_workers and loader.num_workers)


def _warn_if_inexact(loader, current: Progress, is_fallback: bool) -> None:
    found = []
    if current.mixed and not current.over:
        names = " and ".join(sorted(current.mixed))
        what = "; the epoch will restart" if current.restarts else ""
        found.append(f"the sampler draws each batch from generators ({names}) that other code draws from, too{what}")
    if is_fallback and _is_persistent(loader) and (current.lap or current.over):
        found.append("torch's persistent workers continue their random generators from epoch to epoch")
    if not is_fallback and loader.num_workers and "dataset" in stateful_objects(loader) and is_own(loader.dataset):
        found.append("copies of the data set in worker processes have their own state")
    if is_fallback and loader.num_workers and not getattr(loader, "in_order", True):
        found.append("with in_order=False the order of batches depends on timing")
    for reason in found:
        warnings.warn(f"resuming from this state will not be exact: {reason}", stacklevel=4)
