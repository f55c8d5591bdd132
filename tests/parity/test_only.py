"""`measure.py --only` measures one row and merges it into existing results."""

import json

import pytest

from parity import measure, results
from parity.catalogue import TRANSFORMS

ROWS = {entry.name: entry.expression for entry in TRANSFORMS}


def only(name, *words):
    return measure.main(["--device", "cpu", "--most", "2", "--only", name, *map(str, words)])


@pytest.fixture
def file(tmp_path):
    """Old results for all rows, with another blur."""
    rows = [{"name": name, "of": of, "default": {"mean": 9, "max": 9}} for name, of in ROWS.items()]
    blur = next(row for row in rows if row["name"] == "GaussianBlur")
    blur["of"] = "GaussianBlur(99)"
    path = tmp_path / "parity.json"
    path.write_text(json.dumps({"facts": {"date": "1999"}, "device": "CPU", "transforms": rows, "recipes": []}))
    return path


def test_measured_row_replaces_the_old_one(file, capsys):
    before = json.loads(file.read_text())
    assert only("GaussianBlur", "--json", file) == 0
    assert "GaussianBlur(23)" in capsys.readouterr().out
    after = json.loads(file.read_text())
    assert [row["of"] for row in after["transforms"]] == list(ROWS.values())
    new = next(row for row in after["transforms"] if row["name"] == "GaussianBlur")
    assert new["default"]["mean"] < 1 and new["measured"]["images"]["images"] == 2
    assert new["measured"]["facts"]["date"] > "1999" and "parity" in new["measured"]["facts"]["command"]
    for old, row in zip(before["transforms"], after["transforms"], strict=True):
        assert row is new or row["name"] == "GaussianBlur" or row == old
    assert after["facts"] == before["facts"]


def test_only_creates_missing_results_and_appends_to_them(tmp_path):
    path = tmp_path / "new" / "parity.json"
    for name in ("RandomInvert", "GaussianBlur"):
        assert only(name, "--json", path) == 0
    assert [row["name"] for row in json.loads(path.read_text())["transforms"]] == ["RandomInvert", "GaussianBlur"]


def test_rows_finds_recipes_by_name():
    assert [kind for kind, *_ in results.rows("SimCLR")] == ["recipes"]
    assert len(results.rows()) > len(ROWS)


def test_only_refuses_results_of_another_device(file):
    text = file.read_text().replace('"CPU"', '"NVIDIA H100"')
    file.write_text(text)
    with pytest.raises(SystemExit, match="NVIDIA H100"):
        only("GaussianBlur", "--json", file)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [("Blink", [], "catalogue.py has no row"), ("MixUp", [], "take batches"),
     ("GaussianBlur", ["--transform", "T.ToTensor()"], "do not go together")],
)  # fmt: skip
def test_only_refuses_names_that_cannot_be_measured(name, words, message):
    with pytest.raises(SystemExit, match=message):
        only(name, *words)
