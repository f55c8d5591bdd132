"""Free memory of the CPU."""

from pathlib import Path

import pytest
import torch

from dali_compat.runtime import device
from dali_compat.runtime.device import free_memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(limit, used, cached): a machine with 10,000 KB available and optionally a control group."""
    monkeypatch.setattr(device, "Path", lambda path: Path(f"{tmp_path}{path}"))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 20000 kB\nMemFree: 5 kB\nMemAvailable: 10000 kB\n")

    def pretend(limit: str, used: int, cached: int = 0) -> None:
        group = tmp_path / "sys" / "fs" / "cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\n")

    return pretend


def test_free_memory_without_a_control_group_is_the_machines(machine):
    assert free_memory(torch.device("cpu")) == 10_240_000


@pytest.mark.parametrize("limit, used, cached, free", [
    ("max", 5_000_000, 0, 10_240_000),
    ("6000000", 5_000_000, 0, 1_000_000),
    ("6000000", 5_000_000, 3_000_000, 4_000_000),
    ("6000000", 6_500_000, 0, 0),
    ("60000000", 5_000_000, 0, 10_240_000),
])  # fmt: skip
def test_free_memory_in_a_control_group_is_bounded_by_its_limit(machine, limit, used, cached, free):
    machine(limit, used, cached)
    assert free_memory(torch.device("cpu")) == free
