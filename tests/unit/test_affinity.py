"""CPU affinity of DALI's threads."""

import contextlib
import os

import nvidia.dali as dali
import pytest
import torch

from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.plan import Plan
from dali_compat.runtime import cores

TWO_NODES = {"node0": "0-1,4-5\n", "node1": "2-3,6-7\n"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 cores, the given NUMA nodes and the cores that the process may use."""

    def made(nodes, allowed=8):
        for name, text in nodes.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "cpulist").write_text(text)
        monkeypatch.setattr(cores, "NODES", tmp_path)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)))

    return made


@pytest.mark.parametrize(
    "nodes, allowed, near",
    [
        (TWO_NODES, 8, True),
        (TWO_NODES, 7, False),
        (TWO_NODES, 4, False),
        ({"node0": "0-7\n"}, 8, False),
        ({"node0": "0-7\n", "node1": "\n", "power": "9\n"}, 8, False),
        ({}, 8, False),
    ],
)
def test_near_gpu_when_several_nodes_and_no_affinity_set_returns_true(machine, nodes, allowed, near):
    machine(nodes, allowed)
    assert cores.near_gpu() is near


class _PipelineRequested(Exception):
    """The arguments passed to DALI's Pipeline."""


@pytest.mark.parametrize(
    "device, nodes, near", [("cuda:1", TWO_NODES, True), ("cuda:1", {}, False), ("cpu", TWO_NODES, False)]
)
def test_pipeline_on_gpu_when_several_nodes_sets_affinity(monkeypatch, machine, device, nodes, near):
    def pipeline(*args, **options):
        raise _PipelineRequested(args[2], options["set_affinity"])

    monkeypatch.setattr(dali, "Pipeline", pipeline)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    machine(nodes)
    plan = Plan((), (), (), exact=False, channels_last=False)
    made = DecodePipeline(plan, torch.device(device), threads=1, depth=1, batch_size=1)
    with pytest.raises(_PipelineRequested) as requested:
        made.submit(["a.jpg"], [])
    assert requested.value.args == (1 if device == "cuda:1" else None, near)
