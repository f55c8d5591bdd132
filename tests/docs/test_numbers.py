"""No measured number stands in a page that a committed result does not give."""

import re

import pytest

from docs.claims import CLAIMS, NOT_MEASURED
from docs.pages import PAGES, ROOT, prose, text

NUMBER = re.compile(r"(?<![\w.\-/])\.?\d(?:[\d,]*\d)?(?:\.\d+)?(?!\w)%?")
MOST_WORDS = 1500
WRITTEN = re.findall(r'"(examples/\w+\.py)": ', (ROOT / "benchmarks" / "told.py").read_text())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.words[:40]}")
def test_a_number_is_what_was_measured(claim):
    assert " ".join(claim.written.split()) in prose(claim.page)


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
