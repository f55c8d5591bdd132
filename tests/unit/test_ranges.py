"""Names of the loader's stages in profilers."""

import types

import pytest
import torch
from helpers import make_folder
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.runtime import decorators


@decorators.named("half")
def half(value):
    return value / 2


def names(profile) -> set[str]:
    return {event.key for event in profile.key_averages() if event.key.startswith("dali_compat: ")}


def test_profiler_trace_contains_the_stages(tmp_path):
    folder = make_folder(tmp_path, classes=2, per_class=2, special=False)
    transform = T.Compose([T.RandomResizedCrop(32), T.ColorJitter(0.4), T.ToTensor()])
    loader = DataLoader(DALIImageFolder(folder, transform), 2, device="cpu", num_workers=1, collate_fn=list)
    with torch.profiler.profile() as profile:
        assert len(list(loader)) == 2
    found = {name.removeprefix("dali_compat: ") for name in names(profile)}
    assert found >= {"next", "find samples", "draw", "submit to DALI", "wait for DALI", "collate"}
    assert "transforms in torch" in found


def test_stage_without_profiler_records_nothing(monkeypatch):
    monkeypatch.setattr(decorators.profiler, "record_function", None)  # calling it would raise
    assert half(4) == 2
    with torch.profiler.profile(), pytest.raises(TypeError):
        half(4)


def test_nsight_ranges_are_balanced_after_an_error(monkeypatch):
    pushed = []
    domain = types.SimpleNamespace(push_range=pushed.append, pop_range=lambda: pushed.append("end"))
    monkeypatch.setattr(decorators, "_domain", domain)
    with pytest.raises(TypeError):
        half("text")
    assert len(pushed) == 2 and pushed[1] == "end"
