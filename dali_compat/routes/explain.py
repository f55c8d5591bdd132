"""Implementation of DataLoader.explain()."""

from __future__ import annotations

import html
import re

import torch
from torch.utils.data import IterableDataset

from ..data.base_datasets import leaves_of, objects_of
from ..inspection.untranslatable import describe
from ..plan import Plan
from ..runtime.installation import dali_version, hidden_jpeg_engines, max_connections, max_connections_note
from ..runtime.messages import in_columns, terminal_columns, wrapped
from . import FallbackRoute, Route, in_processes
from .dali import _GPU_JPEG_THREADS, DaliRoute
from .resident import ResidentRoute

_COLUMN = 44  # characters of a transform's repr, unless explain(wide=True)


class Explanation(str):
    """The text of explain(). A notebook displays it as a table."""

    def _repr_html_(self) -> str:
        rows, left = [], 'style="text-align:left"'  # notebooks align right by default
        for line in self.splitlines():
            cells = [html.escape(cell) for cell in re.split(r"\s{2,}", line.strip())]
            if len(cells) == 4:
                rows.append(f"<tr>{''.join(f'<td {left}>{cell}</td>' for cell in cells)}</tr>")
            else:
                rows.append(f'<tr><td colspan="4" {left}>{" ".join(cells)}</td></tr>')
        return f"<table>{''.join(rows)}</table>"


def explain(loader, route: Route, wide: bool = False, dependent: str = "") -> Explanation:
    """Return the text of loader.explain(wide). Transforms take two lines each in a narrow terminal. ``dependent`` is
    the name of user code that may depend on the training loop, or ""."""
    tolerant = not isinstance(loader.dataset, IterableDataset)  # on_error does not apply to iterable data sets
    if isinstance(route, FallbackRoute):
        lines, ignored = _fallback_lines(loader, route, tolerant)
    elif isinstance(route, ResidentRoute):
        lines, ignored = _resident_lines(loader, route, wide)
    else:
        lines, ignored = _dali_lines(loader, route, wide, dependent)
    if loader.on_error != "raise" and tolerant:
        what = "raises an error" if loader.on_error_in_python else "cannot be read"
        lines.append(f"  a sample that {what} is {'skipped' if loader.on_error == 'skip' else 'replaced by another'}")
    if ignored:
        lines.append(f"  without effect: {', '.join(ignored)}")
    if route.device.type == "cuda":
        lines.append(f"  {max_connections_note() or f'CUDA has {max_connections()} hardware queues'}")
    columns = 0 if wide else terminal_columns()
    return Explanation(wrapped("\n".join(lines), columns) if columns else "\n".join(lines))


def _fallback_lines(loader, route: FallbackRoute, tolerant: bool) -> tuple[list[str], list[str]]:
    lines = [f"torchvision route, then a copy to {route.device}", f"  because {route.reason}"]
    if loader.num_workers or not tolerant:
        lines.append("  load_state_dict() loads the epoch's earlier batches again, without returning them")
    defaults = {"exact": False, "memory_format": torch.contiguous_format}
    if not tolerant:
        defaults["on_error"] = "raise"
    given = {name: getattr(loader, name) for name in defaults}
    return lines, [f"{name}={value}" for name, value in given.items() if value != defaults[name]]


def _resident_lines(loader, route: ResidentRoute, wide: bool) -> tuple[list[str], list[str]]:
    return [route.describe(), *_plan_lines(route, wide)], _without_effect(loader, route)


def _dali_lines(loader, route: DaliRoute, wide: bool, dependent: str) -> tuple[list[str], list[str]]:
    batches = f"{route.depth} {'batch' if route.depth == 1 else 'batches'} in flight"
    depth = f"{_threads(route)}, {batches}, DALI {dali_version()}"
    kernels = "exact=True" if loader.exact else "exact=False, the fastest kernels"
    lines = [f"DALI route on {route.device}: {depth}; {kernels}"]
    lines += _plan_lines(route, wide, _decode_fidelity(route, loader.exact))
    if compared := route.compared_jpegs:
        lines.append(f"  {compared}")
    lines.append("  files that DALI decodes differently from PIL go through PIL, one by one, in the same batch")
    if dependent and not loader.num_workers and route.table is None:
        why = f"because {dependent} may depend on the training loop"
        lines.append(f"  batches are not loaded ahead, {why}; with num_workers=1, they are")
    if route.table is not None:
        where = f"{loader.num_workers} worker processes" if loader.num_workers else "your thread"
        several = f"; a sample has {len(route.images)} images" if len(route.images) > 1 else ""
        lines.append(f"  {type(loader.dataset).__name__} runs in {where}, and its images are deferred to DALI{several}")
        if route.why:
            lines.append(f"  because {route.why}")
        others = [number for number, plan in enumerate(route.images, 1) if plan is None]
        if others:
            lines.append(
                f"  torchvision, not DALI, computes image{'s' * (len(others) > 1)} {_listed(others)} of a sample"
            )
    stores = [objects for leaf in leaves_of(loader.dataset) if (objects := objects_of(leaf)) is not None]
    lines += [f"  {line}" for line in dict.fromkeys(map(str, stores))]
    return lines, _without_effect(loader, route)


def _threads(route: DaliRoute) -> str:
    """Return text such as "8 CPU threads". If a GPU decodes JPEGs, the text also gives the number of JPEG engines."""
    threads = f"{route.threads} CPU threads"
    if not route.gpu_jpegs:
        return threads
    if route.jpeg_engines is None:
        return f"{threads}, or {_GPU_JPEG_THREADS} if the GPU has enough JPEG engines"
    if not route.jpeg_engines and (hidden := hidden_jpeg_engines(route.device.index)):
        return f"{threads} ({hidden})"
    found = f"the GPU has {route.jpeg_engines or 'no'} JPEG engine{'s' * (route.jpeg_engines != 1)}"
    if route.threads < route.available:
        return f"{threads} (of {route.available}: {found}, and more threads would slow a training step)"
    return f"{threads} ({found})"


def summary(route: Route) -> str:
    """Return a route's name, such as "DALI (cuda:0)", and the reason of a fallback, for install(verbose=True)."""
    if isinstance(route, FallbackRoute):
        return f"torchvision, because {route.reason}"
    name = "DALI" if isinstance(route, DaliRoute) else "torch on the data set in memory"
    return f"{name} ({route.device})" + (", and Python for the transform" if getattr(route, "why", "") else "")


def _plan_lines(route: DaliRoute | ResidentRoute, wide: bool, decode: str | None = None) -> list[str]:
    lines = []
    for number, plan in enumerate(route.plans, 1):
        if len(route.plans) > 1:
            lines.append(f"{_part_name(route, plan, number)}:")
        lines += ["  " + line for line in _transform_lines(plan, route.device, wide, decode).splitlines()]
    chains = [one for plan in route.plans for one in plan.chains]
    if any(one.gives.kind == "pil" for one in chains):
        lines.append("  samples are PIL images; pass a collate_fn that accepts these, or end with ToTensor()")
    return lines


def _part_name(route: DaliRoute | ResidentRoute, plan: Plan, number: int) -> str:
    """Return a heading for the lines of a plan, such as "part 2 of the data set" or "images 1, 3 of a sample"."""
    if isinstance(route, ResidentRoute) or plan not in route.images:
        return f"part {number} of the data set"
    images = [number for number, one in enumerate(route.images, 1) if one is plan]
    return f"{'images' if len(images) > 1 else 'image'} {_listed(images)} of a sample"


def _transform_lines(plan: Plan, device: torch.device, wide: bool, decode: str | None) -> str:
    """Return a table with one line per transform. If ``decode``, the decoder's fidelity, is given, a line for decoding
    comes first."""
    dali = f"DALI on {'GPU' if device.type == 'cuda' else 'CPU'}"
    rows = [("(decode)", "decode", dali, decode)] if decode else []
    if plan.views:
        rows += _rows(plan, dali, wide)
    views: dict[tuple, list[int]] = {}  # numbers of the views with these lines
    for number, view in enumerate(plan.chains, 1):
        lines = tuple(_rows(view, dali, wide))
        views.setdefault(lines, []).append(number)
    for lines, numbers in views.items():
        if plan.views:
            rows.append((f"{'views' if len(numbers) > 1 else 'view'} {_listed(numbers)}:", "", "", ""))
        rows += lines
    table, columns = in_columns(rows) if rows else "", 0 if wide else terminal_columns()
    if not columns or all(len(line) + 2 <= columns for line in table.splitlines()):
        return table
    two = [(first, "; ".join(filter(None, rest))) for first, *rest in rows]
    return "\n".join(f"{first}\n    {second}" if second else first for first, second in two)


def _rows(plan: Plan, dali: str, wide: bool) -> list[tuple[str, str, str, str]]:
    return [
        (x.transform if wide else _truncated(x.transform), x.becomes, x.where.replace("DALI", dali), x.fidelity)
        for x in plan.lines
    ]


def _listed(numbers: list[int]) -> str:
    """Format numbers as "1", "1, 2" or "3 to 8"."""
    in_a_row = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))


def _truncated(transform: str) -> str:
    """Return a transform's repr, truncated after an argument if too long, as in "RandomCrop(size=(224, 224), ...)"."""
    if len(transform) <= _COLUMN:
        return transform
    ends = [at for found in re.finditer(r", (?=\w+=)", transform) if (at := found.start()) <= _COLUMN - len(", ...)")]
    return f"{transform[: ends[-1]]}, ...)" if ends else f"{transform[: _COLUMN - 3]}..."


def _decode_fidelity(route: DaliRoute, exact: bool) -> str:
    if route.device.type == "cpu":
        return "exact"
    if exact:
        return route.jpegs if route.uses_jpeg_engine else "exact, on the CPU"
    if route.fancy:
        return "small images, chroma as libjpeg: mean error .01 of 255 (exact=True: 0)"
    return "mean error .2 of 255 (exact=True: 0)"


def _without_effect(loader, route: DaliRoute | ResidentRoute) -> list[str]:
    """Return the loader's arguments, as "name=value", that have no effect on this route."""
    names: dict[str, object] = {"pin_memory": False, "pin_memory_device": "", "in_order": True}
    if in_processes(route) and loader.num_workers:
        names = {"pin_memory_device": ""}
    else:
        names |= {"timeout": 0, "worker_init_fn": None, "multiprocessing_context": None}
    given = {name: getattr(loader, name, default) for name, default in names.items()}
    shown = {
        name: getattr(value, "__name__", None) or describe(value)
        for name, value in given.items()
        if value != names[name]
    }
    return [f"{name}={value}" for name, value in shown.items()]
