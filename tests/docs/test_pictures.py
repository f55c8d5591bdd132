"""The pictures of README are those that the scripts draw, and can be read on white and on black."""

import re
import runpy
import sys

import numpy as np
import pytest
from PIL import Image

from docs.made_up import measured
from docs.pages import ROOT

BACKGROUNDS = {"white": "#ffffff", "black": "#0d1117"}  # GitHub's
CONTRAST = 3  # WCAG's least for graphics and large text
BYTES = 150_000


@pytest.fixture(scope="module")
def plot():
    return runpy.run_path(str(ROOT / "benchmarks" / "plot.py"))


def test_the_plots_are_of_the_committed_results(plot):
    drawn = plot["pictures"]()
    assert set(drawn) == {path.name for path in (ROOT / "docs").glob("*.svg")}
    for name, picture in drawn.items():
        assert (ROOT / "docs" / name).read_text() == picture, name


def test_the_plot_draws_what_is_measured(plot):
    """Every round is a dot, every case that was measured a bar."""
    panels = plot["panels"]()
    values = [values for *_, cases, _, _ in panels for case, values in cases.items() if case in plot["NAMES"]]
    assert len(values) >= 10
    assert plot["speed"]().count("<circle") == sum(map(len, values))
    assert plot["speed"]().count("<rect") == len(values)
    assert plot["speed"]().count("not measured") == len(panels) * len(plot["NAMES"]) - len(values)


def test_the_plot_of_the_toolkit_draws_what_is_measured(plot):
    """A line a loader and one of synthetic data, a dot a round, a bar of a loader's median to synthetic's."""
    drawn = plot["toolkit"](*(plot["joined"]([result]) for result in measured()))
    assert drawn.count("<polyline") == 3 and drawn.count("stroke-dasharray") == 1 + 1  # and the ceiling of a panel
    assert drawn.count("<circle") == 5
    bars = re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="10" rx="2" fill="(#\w+)"/>', drawn)[:2]
    (theirs, gray), (ours, green) = bars
    assert float(ours) / float(theirs) == pytest.approx(1500 / 300, rel=0.01)
    assert (gray, green) == (plot["COLOURS"]["torchvision"], plot["COLOURS"]["ours"])
    assert drawn.count("not measured") == 2 * len(plot["CONFIGS"]) - 2 and ".rec" not in drawn
    assert "NVIDIA H200, 16 cores" in drawn and ">1,500<" in drawn and ">300<" in drawn
    assert ">dali_compat 900<" in drawn and ">torchvision 500<" in drawn


def test_the_plot_of_two_gpus_draws_what_is_measured(plot):
    """A panel a result, of the source that has most configs; a bar a loader."""
    result = plot["joined"]([measured()[1] | {"ranks": 2}])
    other = {**result, "facts": {"gpu": "NVIDIA H100 80GB HBM3, 580"}}
    other["rounds"] = [row | {"source": "rec"} for row in result["rounds"]]
    drawn = plot["two_gpus"]([result, other])
    assert drawn.count(' height="10" rx="2"') == 2 * 2 + 2  # with the legend
    assert "speed, folder, 2 H200<" in drawn and "speed, .rec, 2 H100<" in drawn
    assert drawn.count(">1,500<") == drawn.count(">300<") == 2


def test_the_plot_of_the_toolkit_has_all_its_configs(plot):
    assert set(plot["CONFIGS"]) == {path.stem for path in (ROOT / "examples" / "imagenet" / "configs").glob("*.yaml")}


def brightness(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_plot_is_readable(background, plot):
    behind = brightness(BACKGROUNDS[background])
    for colour in (*plot["COLOURS"].values(), plot["TEXT"], plot["RULE"]):
        light, dark = sorted((brightness(colour), behind), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= CONTRAST, colour


def test_pictures_are_small():
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".jpg", ".png")]
    assert len(files) >= 6 and all(path.stat().st_size < BYTES for path in files)


def test_every_photo_has_a_licence():
    said = (ROOT / "docs" / "photos" / "README.md").read_text()
    photos = ROOT / "docs" / "photos"
    names = [path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg")]
    assert names and all(re.search(rf"^\| {name} \|.*\| (CC0|public domain) \|$", said, re.MULTILINE) for name in names)


def test_the_strip_is_what_both_loaders_give(monkeypatch):
    """One column of it, drawn again: up to JPEG, it stands in the committed picture."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["strip.py"])
    strip = runpy.run_path(str(ROOT / "benchmarks" / "strip.py"))
    photo, _, behind = strip["COLUMNS"][0]
    theirs, ours, exact = strip["three"](photo, behind)
    committed = np.asarray(Image.open(ROOT / "docs" / "strip.jpg")).astype(int)
    side, left = strip["SIDE"], strip["LABELS"]
    for row, image in enumerate((theirs, ours)):
        top = strip["TITLE"] + row * (side + strip["GAP"])
        assert np.abs(committed[top : top + side, left : left + side] - image).mean() < 5  # of JPEG
    assert np.array_equal(theirs, exact)
    assert np.abs(theirs.astype(int) - ours).max() < 5
