"""Services for the process: CPU cores, devices, forks, and the installed DALI.

- cores, device: the available hardware; batches with several images per sample.
- forks, decorators: handling of forks, program exit and torch.compile; processes that are not forks; names of stages
  for profilers.
- messages: warnings at the user's line; columns, sizes in bytes, and a repr that does not raise.
- internals: what this package uses of other packages that is not their public API.
- installation: DALI, the driver, the GPUs. dataset_base: base class of this package's data sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Patched:
    """The arguments of install()."""

    now: ClassVar[Patched | None] = None  # the current arguments; None while torch's DataLoader is not replaced
    options: dict[str, Any] = field(default_factory=dict)  # defaults for this package's own loader arguments
    verbose: bool = False  # whether each loader prints its route when it is made
