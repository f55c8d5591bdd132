"""Which way a loader goes: DALI, or torchvision and why."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torchvision.datasets import DatasetFolder

from .dataset import Unsupported, folders
from .engine.install import dali_problem, dali_version
from .lower import lower
from .plan import Plan, Step
from .translate import Untranslatable, translate

if TYPE_CHECKING:
    from .engine.pipeline import DecodePipeline

_DEPTH = 2  # batches in flight; deeper queues measured no faster (FIELD.md)
_MOST_THREADS = 16


@dataclass
class StockRoute:
    """torch's own loader and torchvision's transforms, then a copy to the device."""

    device: torch.device
    reason: str


@dataclass
class DaliRoute:
    """DALI reads, decodes and transforms.

    Attributes:
        device: where batches come out.
        plans: one a distinct transform, in the order of the data set's parts.
        threads: CPU threads of each pipeline.
        depth: batches in flight.
    """

    device: torch.device
    threads: int
    depth: int
    batch_size: int
    plans: list[Plan]
    _plan_of: dict[int, Plan] = field(repr=False)
    _free: list[DecodePipeline] = field(default_factory=list, repr=False)

    def plan_of(self, folder: DatasetFolder) -> Plan:
        return self._plan_of[id(folder)]

    def take_pipeline(self, plan: Plan, batch_size: int) -> DecodePipeline:
        """An idle pipeline for the plan, or a new one."""
        from .engine.pipeline import DecodePipeline

        batch_size = max(batch_size, self.batch_size)
        for pipeline in self._free:
            if pipeline.plan is plan and pipeline.batch_size >= batch_size and pipeline.usable:
                self._free.remove(pipeline)
                return pipeline
        return DecodePipeline(plan, self.device, self.threads, self.depth, batch_size)

    def return_pipeline(self, pipeline: DecodePipeline) -> None:
        """Keeps one pipeline a plan for the next epoch and frees the rest."""
        kept = next((p for p in self._free if p.plan is pipeline.plan), None)
        if kept is None:
            self._free.append(pipeline)
        else:
            pipeline.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()

    def same_as(self, other) -> bool:
        """Whether the pipelines of this route serve the other one."""
        mine = (self.device, self.threads, self.depth, [_key(plan) for plan in self.plans])
        return isinstance(other, DaliRoute) and mine == (
            other.device,
            other.threads,
            other.depth,
            [_key(plan) for plan in other.plans],
        )


def choose(loader) -> DaliRoute | StockRoute:
    """The route for a loader as it is now: its data set's transform, samples and loader may have changed."""
    device = resolve_device(loader.device)
    problem = dali_problem()
    if problem:
        return StockRoute(device, problem)
    try:
        parts = folders(loader.dataset)
        plans, plan_of = _plans(parts, loader.exact, loader.memory_format == torch.channels_last)
    except (Unsupported, Untranslatable) as error:
        return StockRoute(device, str(error))
    return DaliRoute(device, _threads(loader), loader.prefetch_factor or _DEPTH, loader.batch_size or 1, plans, plan_of)


def resolve_device(device) -> torch.device:
    """None is the current CUDA device, or the CPU where there is none; "cuda" is the current one, too."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _plans(parts: list[DatasetFolder], exact: bool, channels_last: bool) -> tuple[list[Plan], dict[int, Plan]]:
    from .engine.graph import unsupported

    interned: dict[tuple, Plan] = {}
    plan_of: dict[int, Plan] = {}
    for folder in parts:
        if id(folder) in plan_of:
            continue
        translated = translate(folder.transform)
        plan = lower(translated, exact, channels_last)
        if not plan.steps or plan.gives.kind == "pil":
            raise Untranslatable(folder.transform, "samples are PIL images", "end it with ToTensor()")
        for entry in translated:
            reasons = filter(None, map(unsupported, entry.steps))
            for reason in reasons:
                raise Unsupported(f"{entry.transform}: {reason}")
        plan_of[id(folder)] = interned.setdefault(_key(plan), plan)
    return list(interned.values()), plan_of


def _key(plan: Plan) -> tuple[tuple[Step, ...], bool, bool]:
    return plan.steps, plan.exact, plan.channels_last


def _threads(loader) -> int:
    if loader.num_workers:
        return loader.num_workers
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(len(os.sched_getaffinity(0)) // processes, _MOST_THREADS))


def explain(loader, route: DaliRoute | StockRoute) -> str:
    """One line a step: what it became, where it runs, how faithful it is."""
    from .engine.install import max_connections_note

    if isinstance(route, StockRoute):
        lines = [f"torchvision route, then a copy to {route.device}", f"  because {route.reason}"]
        ignored = [f"exact={loader.exact}"] if loader.exact else []
    else:
        depth = f"{route.threads} CPU threads, {route.depth} batches in flight, DALI {dali_version()}"
        kernels = "exact=True" if loader.exact else "exact=False, the fastest kernels"
        lines = [f"DALI route on {route.device}: {depth}; {kernels}"]
        decode = _decode_fidelity(route.device, loader.exact)
        for plan in route.plans:
            if len(route.plans) > 1:
                lines.append(f"part {route.plans.index(plan) + 1} of the data set:")
            lines += ["  " + line for line in plan.account(route.device, decode).splitlines()]
        lines.append("  files that DALI decodes differently from PIL go through PIL, one by one, in the same batch")
        ignored = _without_effect(loader)
    if ignored:
        lines.append(f"  without effect: {', '.join(ignored)}")
    note = max_connections_note() if route.device.type == "cuda" else None
    return "\n".join(lines + ([f"  {note}"] if note else []))


def _decode_fidelity(device: torch.device, exact: bool) -> str:
    if device.type == "cpu":
        return "exact"
    return "mean error .01 of 255" if exact else "mean error .2 of 255 (exact=True: .01)"


def _without_effect(loader) -> list[str]:
    """Arguments that torch takes and that have nothing to do here."""
    names = {
        "pin_memory": False,
        "pin_memory_device": "",
        "timeout": 0,
        "worker_init_fn": None,
        "multiprocessing_context": None,
        "persistent_workers": False,
        "in_order": True,
    }
    given = {name: getattr(loader, name, default) for name, default in names.items()}
    shown = {name: getattr(value, "__name__", value) for name, value in given.items() if value != names[name]}
    return [f"{name}={value}" for name, value in shown.items()]
