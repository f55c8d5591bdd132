"""The plan: plain frozen data between torchvision's transforms and the engines.

A :class:`Step` is one operation on one image: which kernel (``op``, a function name shared by engine/graph.py,
engine/batch.py and engine/replay.py), its constant arguments, and how its per-sample arguments come about (``draw``,
a function of params.py). A :class:`Plan` is the chain as torchvision would run it, and the same chain lowered onto
DALI and onto batched torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

Arguments = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ImageSpec:
    """What torchvision would hold between two transforms.

    Attributes:
        kind: ``"pil"``, ``"tensor"`` (a plain CHW tensor) or ``"Image"`` (``tv_tensors.Image``, CHW).
        dtype: of the pixels. uint8 is 0..255, floating point 0..1 (0..255 after ToDtype(scale=False)).
        normalized: whether Normalize has run.
        channels: 1 or 3.
        size: (height, width) in pixels where every image of a batch has it, else None (ragged).
    """

    kind: str = "pil"
    dtype: torch.dtype = torch.uint8
    normalized: bool = False
    channels: int = 3
    size: tuple[int, int] | None = None

    def but(self, **changes) -> ImageSpec:
        return replace(self, **changes)


@dataclass(frozen=True)
class Draw:
    """Per-sample arguments of a step: the function of params.py and its constant arguments."""

    name: str
    args: Arguments = ()


def draw(name: str, **args) -> Draw:
    return Draw(name, tuple(args.items()))


@dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        op: kernel name, the same in every engine.
        gives: the image after it.
        args: constant keyword arguments of the kernel.
        draw: where its per-sample arguments come from, or None.
        stream: number of its random stream within the plan; it survives lowering.
    """

    op: str
    gives: ImageSpec
    args: Arguments = ()
    draw: Draw | None = None
    stream: int = 0

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.args)

    def but(self, **changes) -> Step:
        return replace(self, **changes)


def step(op: str, gives: ImageSpec, draw: Draw | None = None, **args) -> Step:
    return Step(op, gives, tuple(args.items()), draw)


@dataclass(frozen=True)
class Line:
    """One line of :meth:`Plan.lines`: what became of one transform."""

    transform: str
    becomes: str
    where: str
    fidelity: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A translated transform. Equal plans are one object within a loader, and compare by identity.

    Attributes:
        steps: as torchvision would run them, image by image (what replay follows).
        dali: the part that runs in the DALI graph, lowered.
        batch: the part that runs as torch operations on the whole batch, after it.
        exact: which of the two fidelities it was lowered for.
        channels_last: whether batches come in ``torch.channels_last``.
        lines: the account of it, one line a transform.
    """

    steps: tuple[Step, ...]
    dali: tuple[Step, ...]
    batch: tuple[Step, ...]
    exact: bool
    channels_last: bool
    lines: tuple[Line, ...] = ()

    @property
    def gives(self) -> ImageSpec:
        return self.steps[-1].gives

    def account(self, device: torch.device, decode: str) -> str:
        """The lines as a table; ``decode`` says how faithful decoding is on this device."""
        dali = f"DALI on {'GPU' if device.type == 'cuda' else 'CPU'}"
        rows = [("(decode)", "decode", dali, decode)]
        rows += [(x.transform, x.becomes, x.where.replace("DALI", dali), x.fidelity) for x in self.lines]
        return table(rows)

    def __str__(self) -> str:
        return self.account(torch.device("cpu"), "exact")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
