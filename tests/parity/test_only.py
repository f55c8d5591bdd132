"""`measure.py --only` measures one row, and puts it into results that are there."""

import json

import pytest

from parity import measure, results
from parity.catalogue import TRANSFORMS

ROWS = {entry.name: entry.expression for entry in TRANSFORMS}


def only(name, *words):
    return measure.main(["--device", "cpu", "--most", "2", "--only", name, *map(str, words)])


@pytest.fixture
def file(tmp_path):
    """Results of all rows, as if measured long ago; but another blur's."""
    rows = [{"name": name, "of": of, "default": {"mean": 9, "max": 9}} for name, of in ROWS.items()]
    blur = next(row for row in rows if row["name"] == "GaussianBlur")
    blur["of"] = "GaussianBlur(99)"
    path = tmp_path / "parity.json"
    path.write_text(json.dumps({"facts": {"date": "1999"}, "device": "CPU", "transforms": rows, "recipes": []}))
    return path


def test_a_row_takes_the_place_of_the_old_one(file, capsys):
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


def test_without_results_there_are_some_afterwards(tmp_path):
    path = tmp_path / "new" / "parity.json"
    for name in ("RandomInvert", "GaussianBlur"):
        assert only(name, "--json", path) == 0
    assert [row["name"] for row in json.loads(path.read_text())["transforms"]] == ["RandomInvert", "GaussianBlur"]


def test_a_recipe_has_a_name_too():
    assert [kind for kind, *_ in results.rows("SimCLR")] == ["recipes"]
    assert len(results.rows()) > len(ROWS)


def test_another_devices_results_are_left_alone(file):
    text = file.read_text().replace('"CPU"', '"NVIDIA H100"')
    file.write_text(text)
    with pytest.raises(SystemExit, match="NVIDIA H100"):
        only("GaussianBlur", "--json", file)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [("Blink", [], "catalogue.py has no row"), ("MixUp", [], "takes batches"),
     ("GaussianBlur", ["--transform", "T.ToTensor()"], "do not go together")],
)  # fmt: skip
def test_what_cannot_be_measured_is_said(name, words, said):
    with pytest.raises(SystemExit, match=said):
        only(name, *words)
