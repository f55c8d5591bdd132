"""CPU cores: how many the process may use, and on which of them DALI's threads run."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PROCESS, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Returns the number of cores that the process may run on; fewer where a container has a CPU quota, as by
    ``docker run --cpus=4`` or a CPU limit of Kubernetes, rounded up."""
    allowed, quota = len(os.sched_getaffinity(0)), cpu_quota()
    return allowed if quota >= allowed else max(1, math.ceil(quota))


def cpu_quota() -> float:
    """Returns how many CPUs' time the control groups of the process allow; infinity where they set no limit.

    Sources: Linux's Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):
        for line in _PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = _MOUNTED / ("cpu" if controllers else "")
                # a container without a namespace of groups has the path of its host, and its own group at the root
                within = Path(path.lstrip("/"))
                quotas += [_quota(root / part) for part in (within, *within.parents)]
    return min(quotas)


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return int(limit) / int(period)  # a ValueError where it is "max"
    with suppress(OSError, ValueError):
        limit, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(limit) / int(period) if int(limit) > 0 else math.inf
    return math.inf


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
