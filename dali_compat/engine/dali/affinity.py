"""On which cores DALI's threads run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def near_gpu(allowed: set[int], nodes: Sequence[set[int]]) -> bool:
    """Returns whether DALI keeps its threads on the GPU's socket: where there are several NUMA nodes (their cores are
    ``nodes``), and the process may run on all of them. One that may not was put where it is by somebody: torchrun's
    --numa-binding, numactl, taskset, a container."""
    return len(nodes) > 1 and allowed.issuperset(set().union(*nodes))


def allowed() -> set[int]:
    """The cores that this thread may run on."""
    return os.sched_getaffinity(0)


def numa_nodes(root: Path = NODES) -> list[set[int]]:
    """The cores of each NUMA node that has any; a GPU's memory may be one without."""
    try:
        found = [cores((node / "cpulist").read_text()) for node in sorted(root.glob("node[0-9]*"))]
    except (OSError, ValueError):  # a sandbox without them
        return []
    return [node for node in found if node]


def cores(text: str) -> set[int]:
    """The cores of a list as Linux writes it, such as "0-3,8".

    Raises:
        ValueError: it is none.
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
