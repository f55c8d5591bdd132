"""On which cores DALI's threads run."""

import contextlib

import nvidia.dali as dali
import pytest
import torch

from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.plan import Plan
from dali_compat.runtime import cores

TWO = [{0, 1, 4, 5}, {2, 3, 6, 7}]


@pytest.mark.parametrize(
    "allowed, nodes, near",
    [
        (set(range(8)), TWO, True),
        (set(range(64)), TWO, True),
        ({0, 1, 4, 5}, TWO, False),
        (set(range(7)), TWO, False),
        (set(range(8)), [set(range(8))], False),
        (set(range(8)), [], False),
    ],
)
def test_where_nobody_has_chosen_and_there_is_a_choice(allowed, nodes, near):
    assert cores.near_gpu(allowed, nodes) is near


def test_lists_of_cores():
    assert cores.cores("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cores.cores("\n") == set()
    with pytest.raises(ValueError, match="invalid"):
        cores.cores("all")


def _nodes(root, **lists):
    for name, text in lists.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(text)
    return cores.numa_nodes(root)


def test_nodes_are_those_with_cores(tmp_path):
    assert _nodes(tmp_path, node0="0-1,4-5\n", node1="2-3,6-7\n", node2="\n", power="9\n") == TWO


@pytest.mark.parametrize("text", [None, "all\n"])
def test_a_machine_that_does_not_say(tmp_path, text):
    if text is not None:
        _nodes(tmp_path, node0=text)
    assert cores.numa_nodes(tmp_path) == []


def test_of_this_machine():
    nodes = cores.numa_nodes()
    assert not nodes or set.union(*nodes) >= cores.allowed()


class _Asked(Exception):
    """What DALI's pipeline was asked for."""


@pytest.mark.parametrize(
    "device, nodes, near", [("cuda:1", TWO, True), ("cuda:1", TWO[:1], False), ("cpu", TWO, False)]
)
def test_a_pipeline_asks_for_it(monkeypatch, device, nodes, near):
    def pipeline(*args, **options):
        raise _Asked(args[2], options["set_affinity"])

    monkeypatch.setattr(dali, "Pipeline", pipeline)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cores, "allowed", lambda: set(range(8)))
    monkeypatch.setattr(cores, "numa_nodes", lambda: nodes)
    plan = Plan((), (), (), exact=False, channels_last=False)
    made = DecodePipeline(plan, torch.device(device), threads=1, depth=1, batch_size=1)
    with pytest.raises(_Asked) as asked:
        made.submit(["a.jpg"], [])
    assert asked.value.args == (1 if device == "cuda:1" else None, near)
