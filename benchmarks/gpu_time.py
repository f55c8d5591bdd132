"""Measure the kernels and copies that a loader adds to a training step, with torch's profiler."""

import collections

import torch
from torch.profiler import ProfilerActivity, profile

SHOWN = 12


def spent(run, steps):
    """Return the GPU's (milliseconds, launches) per step for each kernel or copy during run(steps)."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(steps)
    found = collections.defaultdict(lambda: [0.0, 0.0])
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name][0] += event.device_time / 1e3 / steps
            found[event.name][1] += 1 / steps
    return dict(found)


def added(mine, synthetic):
    """Return the time that a case adds to synthetic, in total and for each kernel that synthetic lacks, largest
    first."""
    names = sorted(mine.keys() - synthetic.keys(), key=lambda name: -mine[name][0])
    more = {name: mine[name][0] - synthetic[name][0] for name in mine.keys() & synthetic.keys()}
    return {
        "added_ms": sum(mine[name][0] for name in names),
        "launches": sum(mine[name][1] for name in names),
        "longer_ms": sum(more.values()),  # the model's kernels, which share the GPU's memory and cores
        "kernels": [{"name": name[:120], "ms": mine[name][0], "launches": mine[name][1]} for name in names[:SHOWN]],
    }
