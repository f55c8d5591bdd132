"""The table of docs/transforms.md matches the registry and the measurements, and covers all of torchvision's
transforms."""

import enum
import inspect
import json
import re
import warnings
from pathlib import Path

import pytest
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.ops.translators import _TRANSLATORS
from parity import catalogue
from parity import table as readme

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "transforms.md"


def registered() -> set[str]:
    return {kind.__name__ for kind in _TRANSLATORS if kind.__module__.startswith("torch")}


def block() -> str:
    text = PAGE.read_text()
    return text[text.index(readme.BEGIN) : text.index(readme.END) + len(readme.END)]


def command() -> str:
    """Return the command that writes the table, from the comment above it."""
    return block().splitlines()[0].removeprefix("<!-- ").removesuffix(" -->")


def results() -> list[Path]:
    names = block().splitlines()[0].removeprefix(readme.BEGIN).removesuffix(" -->").split()
    return [(PAGE.parent / name).resolve() for name in names]


@pytest.mark.parametrize("entry", catalogue.TRANSFORMS, ids=lambda entry: entry.name)
def test_catalogue_entries_make_the_registered_classes(entry):
    """In every version with a translation."""
    kinds = {kind for kind in _TRANSLATORS if kind.__name__ == entry.name and kind.__module__.startswith("torch")}
    made = {type(entry.made(version).transforms[-1]) for version in entry.versions()}
    assert made == kinds - {nn.Identity}


def test_table_matches_the_results():
    """GPU results may lack a row; the warning gives the command that measures it."""
    if missing := readme.missing(results()):
        warnings.warn("not measured yet: " + "; ".join(missing), stacklevel=1)
    assert block() == readme.written(PAGE, results()), command()


def test_table_has_a_row_for_every_registered_transform():
    rows = re.findall(r"^\| `(\w+)\(", block(), re.MULTILINE)
    assert sorted(rows) == sorted(registered()), f"{set(rows) ^ registered()} differ; {command()}"


@pytest.mark.filterwarnings("error")
def test_deprecated_transforms_are_created_without_warnings():
    with pytest.warns(UserWarning, match="deprecated"):
        v2.ToTensor()
    for entry in (*catalogue.TRANSFORMS, *catalogue.RECIPES.values()):
        for version in entry.versions() or ["v1"]:
            entry.made(version)


def test_results_have_their_command_versions_and_photos():
    assert results()
    for path in results():
        result = json.loads(path.read_text())
        facts = result["facts"]
        assert all(facts[name] for name in ("date", "command", "DALI", "torch", "torchvision", "Pillow", "processor"))
        assert "parity" in facts["command"] and result["images"]["images"] >= 54
        rows = result["transforms"] + result["recipes"]
        assert not [row for row in rows if "error" in row]
        alone = [row for row in rows if "measured" in row]  # measured by --only
        assert all(row["measured"]["images"]["images"] >= 54 for row in alone), "measure on more photos"


def test_every_torchvision_transform_is_registered_or_listed_as_unsupported():
    """A transform that a new torchvision adds must be translated or listed in OTHERS."""
    known = registered() | set(catalogue.OTHERS)
    assert not registered() & set(catalogue.OTHERS)
    for version in (v1, v2):
        public = {
            name: kind for name, kind in vars(version).items() if not name.startswith("_") and inspect.isclass(kind)
        }
        transforms = {name for name, kind in public.items() if not issubclass(kind, enum.Enum) and callable(kind)}
        unknown = f"write translators and rows of catalogue.py, or say why not (OTHERS there): {transforms - known}"
        assert len(transforms) > 30 and transforms <= known, unknown


# ---- changed registry or results


def _changed(tmp_path, change):
    result = json.loads(results()[0].read_text())
    change(result)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result["transforms"].pop(3),
        lambda result: result["transforms"].append(dict(result["transforms"][0], name="Blink", of="Blink(3)")),
        lambda result: result["transforms"][5].update(error="ValueError: no"),
        lambda result: result["recipes"].pop(),
    ],
    ids=["missing", "unknown", "failed", "a recipe is missing"],
)
def test_results_of_another_version_are_refused(change, tmp_path):
    with pytest.raises(ValueError, match="measure again"):
        readme.written(PAGE, [_changed(tmp_path, change)])


def test_rows_missing_on_a_gpu_are_marked_as_not_measured(tmp_path):
    """The table marks the row as missing, and missing() returns the command. CPU results must be complete."""

    def without_a_row(result):
        result["device"] = "NVIDIA H200"
        result["transforms"] = [row for row in result["transforms"] if row["name"] != "GaussianBlur"]

    cpu, gpu = results()[0], _changed(tmp_path, without_a_row)
    assert f"| {readme.NOT_YET} | {readme.NOT_YET} |" in readme.written(PAGE, [cpu, gpu])
    assert readme.missing([cpu]) == [] and "--only 'GaussianBlur'" in readme.missing([cpu, gpu])[0]
    with pytest.raises(ValueError, match=r"not measured: python tests/parity/measure\.py --only 'GaussianBlur'"):
        readme.written(PAGE, [gpu])


def test_changed_results_change_the_table(tmp_path):
    path = _changed(tmp_path, lambda result: result["transforms"][9]["exact"].update(mean=0.0321, max=12))
    assert ".032 / 12" in readme.written(PAGE, [path])
    assert readme.written(PAGE, [path]) != readme.written(PAGE, results()[:1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-6, "<.0001"),
        (0.000213, ".00021"),
        (0.0049, ".0049"),
        (0.1618, ".16"),
        (1.00002, "1"),
        (12.4, "12"),
        (204, "204"),
    ],
)
def test_numbers_are_rounded_to_two_digits(value, text):
    assert readme.numbers({"mean": value, "max": value}) == f"{text} / {text}"


def test_equal_pixels_are_shown_as_a_single_zero():
    assert readme.numbers({"mean": 0, "max": 0}) == "0"
    assert readme.numbers(None) == "-"
