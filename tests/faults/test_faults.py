"""torchvision and our loader agree on a few thousand damaged files, pixel by pixel.

There is one intended exception. If only coded data of a JPEG are flipped or missing, and its structure and end are
intact, both accept it, because libjpeg only warns. On the CPU the pixels are equal. A GPU's decoder may produce
different garbage, so the pixels are compared only with exact=True.
"""

import os

import pytest
import torch
from helpers import ALL

from dali_compat.engine.planes import engines
from faults import run
from faults.compare import AGREED, CRASHED, PIXELS, FileResult, compare, write
from faults.originals import originals, saved

FILES = 1000 if ALL else 500


def _disagreements(outcomes: list) -> list[str]:
    wrong = [outcome for outcome in outcomes if outcome.found.outcome != AGREED]
    return [f"{one.job.seed}-{one.number} {one.found.outcome}: {one.name} {one.found.text}" for one in wrong]


@pytest.mark.alike
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loaders_agree_on_damaged_files(seed):
    outcomes = list(run.hunt(FILES, seed))
    assert len(outcomes) > 0.9 * FILES  # windows exclude the smallest files
    assert not _disagreements(outcomes), run.table(outcomes)


def test_loaders_agree_on_damaged_photos(photos):
    outcomes = list(run.hunt(FILES // 2, 3, photos=str(photos)))
    assert any("photo" in outcome.name for outcome in outcomes)
    assert not _disagreements(outcomes), run.table(outcomes)


@pytest.mark.gpu
def test_loaders_agree_on_damaged_files_on_gpu():
    outcomes = list(run.hunt(2 * FILES, 4, "cuda", processes=4))
    assert not _disagreements(outcomes), run.table(outcomes)


@pytest.mark.gpu
def test_loaders_agree_on_damaged_files_with_jpeg_engine(photos):
    """The JPEG engine decodes some files to different garbage. These must not reach the user."""
    engine = engines.engine_of(torch.device("cuda", torch.cuda.current_device()))
    if isinstance(engine, str):
        pytest.skip(f"this GPU's engine is not used: {engine}")
    for seed, of_photos in ((4, None), (5, str(photos))):
        outcomes = list(run.hunt(2 * FILES, seed, "cuda", processes=4, photos=of_photos, engine=True))
        assert not _disagreements(outcomes), run.table(outcomes)


@pytest.mark.parametrize("window", [False, True], ids=["whole", "window"])
def test_loaders_agree_on_intact_files(window, tmp_path):
    files = originals()
    for number, name in enumerate(files):
        write(tmp_path / f"class_{number % 3}" / name, files[name])
    found = list(compare(tmp_path, window=window))
    assert len(found) == len(files) and not [one for one in found if one.outcome != AGREED]


# ---- the harness detects disagreement


def test_different_pixels_are_detected(tmp_path, monkeypatch):
    write(tmp_path / "class_a" / "a.jpg", saved("JPEG"))
    monkeypatch.setattr("faults.compare.expected", lambda root: [torch.zeros(3, 53, 71, dtype=torch.uint8)])
    for window in (False, True):
        (found,) = compare(tmp_path, window=window)
        assert found.outcome == PIXELS and found.mean > 10 and found.max > 100


def test_file_that_only_one_loader_accepts_is_detected(tmp_path, monkeypatch):
    write(tmp_path / "class_a" / "a.jpg", saved("JPEG"))
    write(tmp_path / "class_a" / "b.jpg", b"no image")
    theirs = [None, torch.zeros(3, 53, 71, dtype=torch.uint8)]
    monkeypatch.setattr("faults.compare.expected", lambda root: theirs)
    assert {found.file: found.outcome for found in compare(tmp_path)} == {"a.jpg": "accepted", "b.jpg": "rejected"}


def _crashes_on_seven(job, connection):
    for number in job.numbers:
        if number == 7:
            os.abort()
        connection.send(run.Outcome(job, number, "a.jpg", FileResult(f"{number}.img", AGREED)))
    connection.send(None)


def test_crash_is_reported_for_one_file(monkeypatch):
    monkeypatch.setattr(run, "_child", _crashes_on_seven)
    outcomes = run.results(run.Job(tuple(range(12)), 0, "cpu", False))
    assert sorted(outcome.number for outcome in outcomes) == list(range(12))
    assert [outcome.number for outcome in outcomes if outcome.found.outcome == CRASHED] == [7]
