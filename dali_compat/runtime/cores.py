"""Number of CPU cores that the process may use, and placement of DALI's threads."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_PROCESS, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores(processes: int = 1) -> int:
    """Return the number of cores, at least 1, for each of ``processes`` processes of one launcher, such as torchrun.

    The processes share the launcher's cores and a container's CPU quota. A process that is bound to fewer cores, for
    example by ``torchrun --numa-binding``, uses only those.
    """
    allowed = shared = len(os.sched_getaffinity(0))
    if processes > 1:
        with suppress(OSError):
            shared = max(shared, len(os.sched_getaffinity(os.getppid())))
    share = min(shared, cpu_quota()) / processes
    return max(1, min(allowed, math.ceil(share) if processes == 1 else int(share)))


def cpu_quota() -> float:
    """Return the CPU time that the process's control groups allow, in CPUs; infinity if there is no limit.

    Sources: Linux's Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):
        for line in _PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = _MOUNTED / ("cpu" if controllers else "")
                # without a cgroup namespace, a container's path is the host's, but its group is mounted as the root
                within = Path(path.lstrip("/"))
                quotas += [_quota(root / part) for part in (within, *within.parents)]
    return min(quotas)


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return int(limit) / int(period)  # ValueError if the limit is "max"
    with suppress(OSError, ValueError):
        limit, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(limit) / int(period) if int(limit) > 0 else math.inf
    return math.inf


NODES = Path("/sys/devices/system/node")


def near_gpu() -> bool:
    """Return True if DALI should keep its threads on the GPU's NUMA node.

    Return False if the process is restricted to some of the cores, because the user may have chosen them.
    """
    with suppress(OSError):  # a GPU's memory may be a node without cores; a sandbox may hide the nodes
        nodes = sum(bool(path.read_text().strip()) for path in NODES.glob("node[0-9]*/cpulist"))
        return nodes > 1 and len(os.sched_getaffinity(0)) == os.cpu_count()
    return False
