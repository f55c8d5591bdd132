"""The pictures of README are those that the scripts draw, and can be read on white and on black."""

import re
import runpy
import sys

import numpy as np
import pytest
from PIL import Image

from docs.made_up import measured
from docs.pages import ROOT
from docs.test_numbers import files_of_the_figure

TEXT, SHAPES = 4.5, 3  # the least contrast of text, and of graphics, by WCAG
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
    """Every round is a dot, every case a bar, with its number behind it."""
    bars = [bar for group in plot["loading"]() + plot["training"]() for bar in group.bars]
    assert len(bars) >= 20 and {bar.name for bar in bars} == set(plot["NAMES"].values())
    made = plot["speed"]()
    assert made.count("<circle") == sum(len(bar.values) for bar in bars)
    assert made.count('rx="2"') == len(bars) and "not measured" not in made


def test_the_plot_of_the_toolkit_draws_what_is_measured(plot):
    """A bar a loader: its median to that of synthetic data, which the number behind it says; a dot a round."""
    made = plot["toolkit"](*(plot["joined"]([result]) for result in measured()))
    assert made.count("<circle") == 5 + 4 and made.count('rx="2"') == 4 + 2
    bars = re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="\d+" rx="2" fill="(#\w+)"/>', made)[-2:]
    (theirs, gray), (ours, green) = bars
    assert float(ours) / float(theirs) == pytest.approx(1500 / 300, rel=0.02)
    assert (gray, green) == (plot["COLOURS"]["torchvision"], plot["COLOURS"]["ours"])
    assert "NVIDIA H200" in made and ">Training with 16 cores,<" in made and ">75%<" in made and ">15%<" in made
    assert ">ResNet-18, 2 cores<" in made and "not measured" not in made and "MobileNet" not in made


def test_the_plot_of_two_gpus_draws_what_is_measured(plot):
    """A column a result, of the source that has most configs; a bar a loader."""
    result = plot["joined"]([measured()[1] | {"ranks": 2}])
    other = {**result, "facts": {"gpu": "NVIDIA H100 80GB HBM3, 580"}}
    other["rounds"] = [row | {"source": "rec"} for row in result["rounds"]]
    made = plot["two_gpus"]([result, other])
    assert made.count('rx="2"') == 2 * 2
    assert ">2 H200, from a folder,<" in made and ">2 H100, from a .rec,<" in made
    assert made.count(">75%<") == made.count(">15%<") == 2


def test_the_plot_of_the_toolkit_has_all_its_configs(plot):
    assert set(plot["CONFIGS"]) == {path.stem for path in (ROOT / "examples" / "imagenet" / "configs").glob("*.yaml")}


def brightness(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("look", ["light", "dark"])
def test_the_plot_is_readable(look, plot):
    behind, text, rule = plot["CARDS"][look]
    assert contrast(text, behind) >= TEXT and contrast(rule, behind) >= SHAPES
    assert all(contrast(colour, behind) >= SHAPES for colour in plot["COLOURS"].values())
    assert f"fill:{behind}" in plot["speed"]() and f"fill:{text}" in plot["speed"]()


@pytest.mark.parametrize("name", ["speed", "toolkit", "two-gpus"])
def test_the_plot_is_readable_on_a_phone(name):
    """Where a picture is 348 pixels wide: no letters of less than 7.5 pixels, and none runs out of it."""
    made = (ROOT / "docs" / f"{name}.svg").read_text()
    width = int(re.search(r'viewBox="0 0 (\d+)', made)[1])
    for x, anchor, size, words in re.findall(
        r'<text x="(\d+)".*?anchor="(\w+)" font-size="(\d+)".*?>(.*?)</text>', made
    ):
        assert int(size) * 348 / width >= 7.5, words
        assert anchor == "end" or int(x) + 0.62 * int(size) * len(words) < width, words


def test_pictures_are_small():
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".jpg", ".png")]
    assert len(files) >= 4 and all(path.stat().st_size < BYTES for path in files)


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
    photo, _, behind = strip["COLUMNS"][1]
    theirs, ours, exact = strip["three"](photo, behind)
    committed = np.asarray(Image.open(ROOT / "docs" / "strip.jpg")).astype(int)
    side, left = strip["SIDE"], strip["SIDE"] + strip["GAP"]
    for row, image in enumerate((theirs, ours)):
        top = strip["TITLE"] + row * (side + strip["GAP"])
        assert np.abs(committed[top : top + side, left : left + side] - image).mean() < 5  # of JPEG
    assert np.array_equal(theirs, exact)
    assert np.abs(theirs.astype(int) - ours).max() < 5


def test_one_script_measures_what_the_figure_shows(monkeypatch):
    """On a GPU and on a CPU, into files of these names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["readme.py"])
    commands = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["commands"]
    made = {**commands("h100"), **commands("h200"), **commands(None)}
    assert files_of_the_figure() <= set(made)
    assert all(any(word.endswith(".py") and (ROOT / word).is_file() for word in words) for words in made.values())
