"""The process that loads: cores, devices, forks, and the installed DALI.

- cores, device: what there is to work with; batches of several images a sample.
- forks, decorators: what a fork, the program's end and torch.compile must not touch; processes that are no forks; names
  of stages in profilers.
- messages: warnings at the user's line; columns, numbers of bytes, and a repr that does not raise.
- installation: DALI, the driver, the GPUs. dataset_base: what our data sets share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Patched:
    """The arguments of install().

    Attributes:
        options: arguments of our own that loaders get, unless they are given others.
        verbose: whether to say what becomes of each when it is made.
        now: what it was asked for; None while torch's DataLoader is torch's.
    """

    now: ClassVar[Patched | None] = None
    options: dict[str, Any] = field(default_factory=dict)
    verbose: bool = False
