"""On which cores DALI's threads run."""

import contextlib
import os

import nvidia.dali as dali
import pytest
import torch

from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.plan import Plan
from dali_compat.runtime import cores

TWO = {"node0": "0-1,4-5\n", "node1": "2-3,6-7\n"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 8 cores: its nodes, and the cores that the process may run on."""

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
        (TWO, 8, True),
        (TWO, 7, False),
        (TWO, 4, False),
        ({"node0": "0-7\n"}, 8, False),
        ({"node0": "0-7\n", "node1": "\n", "power": "9\n"}, 8, False),
        ({}, 8, False),
    ],
)
def test_where_nobody_has_chosen_and_there_is_a_choice(machine, nodes, allowed, near):
    machine(nodes, allowed)
    assert cores.near_gpu() is near


class _Asked(Exception):
    """What DALI's pipeline was asked for."""


@pytest.mark.parametrize("device, nodes, near", [("cuda:1", TWO, True), ("cuda:1", {}, False), ("cpu", TWO, False)])
def test_a_pipeline_asks_for_it(monkeypatch, machine, device, nodes, near):
    def pipeline(*args, **options):
        raise _Asked(args[2], options["set_affinity"])

    monkeypatch.setattr(dali, "Pipeline", pipeline)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    machine(nodes)
    plan = Plan((), (), (), exact=False, channels_last=False)
    made = DecodePipeline(plan, torch.device(device), threads=1, depth=1, batch_size=1)
    with pytest.raises(_Asked) as asked:
        made.submit(["a.jpg"], [])
    assert asked.value.args == (1 if device == "cuda:1" else None, near)
