"""The pictures of the pages are drawn by the scripts and readable on light and dark backgrounds."""

import json
import re
import runpy
import sys
from pathlib import Path

import measured
import numpy as np
import plot
import pytest
from PIL import Image

from docs.made_up import by_cores, of_a_config, whole
from docs.pages import ROOT
from docs.test_numbers import files_of_the_figure

TEXT, SHAPES = 4.5, 3  # minimum contrast of text and of graphics, from WCAG
BYTES = 150_000


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a function that writes a made-up result; there are no other results."""
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    return lambda name, result: (tmp_path / f"{name}.json").write_text(json.dumps(result))


def test_plots_match_the_committed_results():
    assert set(plot.PICTURES) == {path.name for path in (ROOT / "docs").glob("*.svg")}
    for name, draw in plot.PICTURES.items():
        assert (ROOT / "docs" / name).read_text() == draw(), f"python benchmarks/plot.py draws {name} anew"


def test_plot_has_a_dot_per_round_and_a_bar_per_case():
    """There is a dot for each round, and a bar with its value for each case."""
    bars = [bar for column in (plot.loading(), plot.training()) for group in column.groups for bar in group.bars]
    assert len(bars) >= 20 and {bar.name for bar in bars} == set(plot.NAMES.values())
    made = plot.speed()
    assert made.count("<circle") == sum(len(bar.values) for bar in bars)
    assert made.count('rx="2"') == len(bars)


BAR = r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="\d+" rx="2" fill="(#\w+)"/>'


def test_bars_of_a_column_share_one_scale():
    """Bars of a column have lengths proportional to their values in all groups, and so have the ticks of the axis."""
    column = plot.loading()
    lines, _ = plot.of_column(column, 0)
    values = [np.median(bar.values) for group in column.groups for bar in group.bars]
    longs = [float(long) for long, _ in re.findall(BAR, "".join(lines))]
    scale = max(longs) / max(values)
    assert np.allclose(longs, np.array(values) * scale, atol=0.1)
    (zero, tick) = (
        float(re.search(rf'x="(\d+)" y="\d+"[^>]*middle[^>]*>{words}<', "".join(lines))[1]) for words in ("0", "20,000")
    )
    assert tick - zero == pytest.approx(20_000 * scale, abs=1)


def test_toolkit_plot_shows_shares_of_synthetic_data(results):
    """There is a bar for each loader, labelled with its share of synthetic data in the same round, and a dot for
    each round."""
    results("cores", by_cores())
    results("config", of_a_config())
    made = plot.toolkit()
    assert made.count("<circle") == 5 + 2 + 4 and made.count('rx="2"') == 4 + 2 + 2
    (theirs, gray), (ours, green) = re.findall(BAR, made)[-2:]
    assert float(ours) / float(theirs) == pytest.approx(0.75 / 0.15, rel=0.02)
    assert (gray, green) == (plot.COLOURS["torchvision"], plot.COLOURS["ours"])
    assert ">Training with 16 cores,<" in made and ">75%<" in made and ">15%<" in made
    assert ">ResNet-18, 2 cores<" in made and "MobileNet" not in made


def test_group_has_the_rounds_of_all_files(results):
    """Values are relative to the synthetic data of the same file."""
    results("one", of_a_config())
    results("other", of_a_config(speed=1000.0))
    (group,) = plot.by_configs("", gpus=1, cores=16).groups
    assert group.files == ["one", "other"]
    assert group.bars[1].values == pytest.approx([0.75, 0.8, 0.7] * 2)


def test_two_gpus_plot_has_a_column_per_kind_of_gpu(results):
    """There is a column for each kind of GPU, of the source with the most configs, and a bar for each loader."""
    results("one", of_a_config() | {"ranks": 2})
    results("other", whole(of_a_config("rec")["rounds"], 2, "NVIDIA H100 80GB HBM3, 580"))
    made = plot.two_gpus()
    assert made.count('rx="2"') == 2 * 2
    assert ">2 H200, from a folder,<" in made and ">2 H100, from a .rec,<" in made
    assert made.count(">75%<") == made.count(">15%<") == 2


def test_toolkit_plot_has_all_configs():
    assert set(plot.CONFIGS) == {path.stem for path in (ROOT / "examples" / "imagenet" / "configs").glob("*.yaml")}


def brightness(colour: str) -> float:
    """Return WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("look", ["light", "dark"])
def test_plot_has_enough_contrast(look):
    background, text, rule = plot.CARDS[look]
    assert contrast(text, background) >= TEXT and contrast(rule, background) >= SHAPES
    assert all(contrast(colour, background) >= SHAPES for colour in plot.COLOURS.values())
    assert f"fill:{background}" in plot.speed() and f"fill:{text}" in plot.speed()


@pytest.mark.parametrize("name", ["speed", "toolkit", "two-gpus"])
def test_plot_is_readable_on_a_phone(name):
    """At a width of 348 pixels, no letters are smaller than 7.5 pixels, and no text extends past the edge."""
    made = (ROOT / "docs" / f"{name}.svg").read_text()
    width = int(re.search(r'viewBox="0 0 (\d+)', made)[1])
    for x, anchor, size, words in re.findall(
        r'<text x="(\d+)".*?anchor="(\w+)" font-size="(\d+)".*?>(.*?)</text>', made
    ):
        assert int(size) * 348 / width >= 7.5, words
        assert anchor == "end" or int(x) + 0.62 * int(size) * len(words) < width, words


def test_picture_files_are_small():
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".jpg", ".png")]
    assert len(files) >= 4 and all(path.stat().st_size < BYTES for path in files)


def test_every_photo_has_a_licence():
    licences = (ROOT / "docs" / "photos" / "README.md").read_text()
    photos = ROOT / "docs" / "photos"
    names = [path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg")]
    assert names and all(
        re.search(rf"^\| {name} \|.*\| (CC0|public domain) \|$", licences, re.MULTILINE) for name in names
    )


def test_strip_shows_the_images_of_both_loaders(monkeypatch):
    """Draw one column again and compare it with the committed picture, up to JPEG artifacts."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["strip.py"])
    strip = runpy.run_path(str(ROOT / "benchmarks" / "strip.py"))
    photo, _, transforms = strip["COLUMNS"][1]
    theirs, ours, exact = strip["three"](photo, transforms)
    committed = np.asarray(Image.open(ROOT / "docs" / "strip.jpg")).astype(int)
    side, left = strip["SIDE"], strip["SIDE"] + strip["GAP"]
    for row, image in enumerate((theirs, ours)):
        top = strip["TITLE"] + row * (side + strip["GAP"])
        assert np.abs(committed[top : top + side, left : left + side] - image).mean() < 5  # JPEG artifacts
    assert np.array_equal(theirs, exact)
    assert np.abs(theirs.astype(int) - ours).max() < 5


def test_batch_of_readme_is_drawn_by_its_script(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["batch.py"])
    runpy.run_path(str(ROOT / "benchmarks" / "batch.py"))["main"](tmp_path / "batch.jpg")
    drawn, committed = (
        np.asarray(Image.open(folder / "batch.jpg")).astype(int) for folder in (tmp_path, ROOT / "docs")
    )
    assert np.abs(drawn - committed).mean() < 1  # levels of 255; versions of torchvision and DALI round differently


def test_readme_script_measures_the_figure(monkeypatch):
    """On a GPU and on a CPU."""
    monkeypatch.setattr(sys, "argv", ["readme.py"])
    commands = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["commands"]
    made = [*commands("h100").values(), *commands("h200").values(), *commands(None).values()]
    scripts = [next(word for word in words if word.endswith(".py")) for words in made]
    assert all((ROOT / script).is_file() for script in scripts)
    assert {measured.read(name)["benchmark"] for name in files_of_the_figure()} <= {Path(s).stem for s in scripts}
