"""Services for the process.

- cores: CPU cores. device: free memory, and copies between devices. open_files: the limit on open files.
- forks, children: forks, other new processes, and program exit. decorators: torch.compile, threads, profilers.
- messages: warnings at the user's line, and formatting. saved: cache files.
- internals: private names of other packages that this package uses.
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
    verbose: bool = False  # whether each loader prints its route when it is created
