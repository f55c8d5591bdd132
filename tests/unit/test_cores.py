"""Usable cores: the CPU affinity of the process and a container's CPU quota."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_compat.runtime import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that sets /proc/self/cgroup and the files of the cgroup mount."""

    def make(groups: str, files: dict[str, str], allowed: int = 64) -> None:
        (tmp_path / "process").write_text(groups)
        for name, text in files.items():
            path = tmp_path / "mounted" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(cores, "_PROCESS", tmp_path / "process")
        monkeypatch.setattr(cores, "_MOUNTED", tmp_path / "mounted")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))

    return make


POD = "kubepods/burstable/pod1"


@pytest.mark.parametrize("groups, files, quota, usable", [
    ("0::/\n", {"cpu.max": "400000 100000\n"}, 4, 4),
    ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf, 64),
    ("0::/\n", {"cpu.max": "350000 100000\n"}, 3.5, 4),
    ("0::/\n", {"cpu.max": "10000 100000\n"}, 0.1, 1),
    ("0::/\n", {}, math.inf, 64),
    (f"0::/{POD}\n", {f"{POD}/cpu.max": "max 100000", "kubepods/cpu.max": "800000 100000"}, 8, 8),
    (f"0::/{POD}\n", {f"{POD}/cpu.max": "200000 100000", "kubepods/cpu.max": "800000 100000"}, 2, 2),
    ("0::/docker/1\n", {"cpu.max": "200000 100000"}, 2, 2),  # inside the container; the path is that of the host
    (f"5:cpuset:/\n4:cpu,cpuacct:/{POD}\n", {f"cpu/{POD}/cpu.cfs_quota_us": "300000\n",
                                             f"cpu/{POD}/cpu.cfs_period_us": "100000\n"}, 3, 3),
    ("4:cpuacct,cpu:/docker/1\n0::/\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "25000"}, 2, 2),
    ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf, 64),
    ("4:cpuset:/\n", {"cpu.max": "100000 100000"}, math.inf, 64),
    ("", {"cpu.max": "100000 100000"}, math.inf, 64),
    ("0::/\n", {"cpu.max": "damaged"}, math.inf, 64),
])  # fmt: skip
def test_cpu_quota_limits_usable_cores(machine, groups, files, quota, usable):
    machine(groups, files)
    assert (cores.cpu_quota(), cores.usable_cores()) == (quota, usable)


def test_usable_cores_when_quota_exceeds_affinity_is_the_affinity(machine):
    machine("0::/\n", {"cpu.max": "400000 100000\n"}, allowed=2)
    assert cores.usable_cores() == 2


def test_usable_cores_without_cgroups_is_the_affinity(machine, tmp_path, monkeypatch):
    machine("", {})
    monkeypatch.setattr(cores, "_PROCESS", tmp_path / "nothing")
    assert cores.usable_cores() == 64


@pytest.mark.parametrize("bound, processes, usable", [
    (64, 1, 64), (64, 8, 8), (32, 8, 8), (8, 8, 8), (4, 8, 4), (64, 100, 1), (32, 1, 32),
])  # fmt: skip
def test_usable_cores_of_a_rank_are_its_share_of_the_launchers_cores(machine, monkeypatch, bound, processes, usable):
    machine("", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64 if pid == os.getppid() else bound)))
    assert cores.usable_cores(processes) == usable


def test_usable_cores_of_ranks_share_the_cores_of_a_bound_launcher_and_the_quota(machine):
    machine("0::/\n", {"cpu.max": "1200000 100000\n"}, allowed=16)
    assert [cores.usable_cores(processes) for processes in (1, 2, 4, 5)] == [12, 6, 3, 2]


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", os.W_OK), reason="no group can be made here")
def test_cpu_quota_in_a_real_cgroup_is_read():
    group = Path("/sys/fs/cgroup/cpu/dali_compat_test")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(str(error))
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        (group / "cpu.cfs_period_us").write_text("100000")
        code = f"""
import os, pathlib
pathlib.Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
from dali_compat.runtime.cores import cpu_quota, usable_cores
print(cpu_quota(), usable_cores())
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.split() == ["1.0", "1"], done.stderr
    finally:
        group.rmdir()
