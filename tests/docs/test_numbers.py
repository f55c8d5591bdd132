"""No measured number stands in a page that a committed result does not give."""

import json
import re
import runpy
import shutil

import measured
import plot
import pytest
import torchvision

from docs.claims import CLAIMS, FIRST_SCREEN, NOT_MEASURED, PIXELS, on_a_gpu, torchvision_of
from docs.pages import PAGES, ROOT, prose, text

NUMBER = re.compile(r"(?<![\w.\-/])\.?\d(?:[\d,]*\d)?(?:\.\d+)?(?!\w)%?")
MOST_WORDS = 1100
ON_GPUS = 0, 26  # torchvision of the machines with a GPU: where they have a newer one, measure again
WRITTEN = re.findall(r'"(examples/\w+\.py)": ', (ROOT / "benchmarks" / "told.py").read_text())


def said(claim) -> str:
    """What the page has to say; empty if it does."""
    sentence = " ".join(claim.written.split())
    return "" if sentence in prose(claim.page) else f"{claim.page} has to say: {sentence}"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words[:40]}")
def test_a_page_says_what_is_measured(claim):
    assert not said(claim), said(claim)


def test_a_new_result_that_disagrees_changes_the_sentence(tmp_path, monkeypatch):
    """A run with 2 cores on which dali_compat is four times as fast as PyTorch's loader."""
    shutil.copytree(measured.RESULTS, tmp_path, dirs_exist_ok=True)
    result = measured.read("toolkit_2_h200")
    speeds = {"synthetic": 5000.0, "dali": 4000.0, "torchvision": 1000.0}
    result["rounds"] = [row | {"images_per_s": speeds[row["case"]]} for row in result["rounds"]]
    (tmp_path / "new.json").write_text(json.dumps(result))
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    claims = runpy.run_path(str(ROOT / "tests" / "docs" / "claims.py"))["CLAIMS"]
    sentences = [said(claim) for claim in claims if said(claim)]
    assert any("ResNet-50 4 to 13 times as fast" in sentence for sentence in sentences)
    assert all(re.match(r"(README|docs/[\w-]+)\.md has to say: ", sentence) for sentence in sentences)
    assert len(sentences) < 5


def unclaimed(text: str, claims: list[str], patterns) -> list[str]:
    """Numbers of a text, with what is around them, that no claim and no pattern covers."""
    covered = [(found.start(), found.end()) for words in claims for found in re.finditer(re.escape(words), text)]
    covered += [(found.start(), found.end()) for pattern in patterns for found in re.finditer(pattern, text)]
    return [
        text[max(found.start() - 40, 0) : found.end() + 20]
        for found in NUMBER.finditer(text)
        if not any(begin <= found.start() and found.end() <= end for begin, end in covered)
    ]


PATTERNS = [pattern for patterns in NOT_MEASURED.values() for pattern in patterns]


def left(page: str, patterns: list[str]) -> list[str]:
    """Numbers of a page that neither its claims nor the patterns cover."""
    claims = [" ".join(claim.written.split()) for claim in CLAIMS if claim.page == page]
    return unclaimed(prose(page), claims, patterns)


@pytest.mark.parametrize("page", PAGES)
def test_no_number_stands_alone(page):
    assert left(page, PATTERNS) == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_no_number_stands_alone_in_what_an_example_measured(path):
    """In its first lines; tables.py writes those of two."""
    page = f"examples/{path.name}"
    if page in WRITTEN:
        return
    said = " ".join(re.findall(r"^Measured: .*?(?=\n\n|\n\"\"\")", text(page), re.DOTALL | re.MULTILINE)).split()
    claims = [" ".join(claim.written.split()) for claim in CLAIMS if claim.page == page]
    assert bool(said) is (path.name != "make_photos.py")
    assert unclaimed(" ".join(said), claims, PATTERNS) == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_is_needed(pattern):
    others = [other for other in PATTERNS if other != pattern]
    assert any(left(page, others) for page in PAGES)


def test_a_made_up_number_is_found():
    text = "It is 7.3 times as fast, .94 of it on an H100, with 1,234 images/s and 12%."
    assert [re.search(r"\d[\d,.]*", found[-25:]) is not None for found in unclaimed(text, [], [])] == [True] * 4
    assert len(unclaimed(text, ["is 7.3 times"], [r"1,234 images"])) == 2


def test_the_readme_is_short():
    assert len(text("README.md").split()) <= MOST_WORDS


def files_of_the_figure() -> set[str]:
    """The results from which docs/speed.svg is drawn."""
    return {name for column in (plot.loading(), plot.training()) for group in column.groups for name in group.files}


@pytest.mark.parametrize("name", sorted(files_of_the_figure() | {*FIRST_SCREEN, *PIXELS}))
def test_the_readme_is_of_current_versions(name):
    """A file that is older than the torchvision that is installed, or than that of the GPUs, is measured again."""
    newest = tuple(map(int, torchvision.__version__.split(".")[:2]))
    assert torchvision_of(name) >= (min(ON_GPUS, newest) if on_a_gpu(name) else newest)
