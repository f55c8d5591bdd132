"""What the pages point to exists: links, headings, files and rooms of the code."""

import re
from pathlib import Path

import pytest

import dali_compat
from docs.pages import PAGES, ROOT, anchors, fences, inline, links, text

PATH = re.compile(r"(docs|benchmarks|examples|tests|dali_compat)/[\w./<>-]*")
PACKAGE = Path(dali_compat.__file__).parent


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (ROOT / page).parent / file if file else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(str(there.resolve().relative_to(ROOT))), target


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    for word in " ".join(inline(page)).split():
        if PATH.fullmatch(word):
            assert (ROOT / word).exists(), word


def test_every_page_is_in_the_index():
    index = {target.partition("#")[0] for target in links("docs/README.md")}
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"README.md"} <= index


def rooms() -> dict[str, str]:
    """{module or room/: what CONTRIBUTING says of it} of the tour."""
    (tour,) = fences("CONTRIBUTING.md", "")
    found, name = {}, ""
    for line in tour.splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            found[name] = ""
        found[name] += " " + line.removeprefix(name).strip()
    return found


def test_the_tour_names_every_room():
    """And nothing that is not there."""
    there = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    there |= {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    assert there == set(rooms())


def test_the_tour_names_modules_that_exist():
    """Words with an underscore, which are no words of English."""
    modules = {path.stem for path in PACKAGE.rglob("*.py")}
    named = {word for what in rooms().values() for word in re.findall(r"\b[a-z]+_[a-z_]+\b", what)}
    assert named and named <= modules


def test_how_it_works_names_modules_that_exist():
    page = "docs/how-it-works.md"
    named = {*inline(page), *re.findall(r"\[\"([\w/]+)", text(page))}
    named = {words for words in named if re.fullmatch(r"(?!tests|benchmarks|docs)[a-z_]+/[a-z_]*", words)}
    assert len(named) > 10
    for words in named:
        assert (PACKAGE / words).is_dir() or (PACKAGE / f"{words}.py").is_file(), words


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_project_files(name):
    assert (ROOT / name).is_file()


def test_the_licence_is_the_whole_one():
    licence = text("LICENSE")
    assert "Apache License" in licence and "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence and len(licence.split()) > 1500


def test_nothing_names_what_is_not_here():
    """Pages of other places, which only their authors can read."""
    for page in PAGES:
        assert not re.search(r"\b(FIELD|DESIGN|PARITY)(\.md|:)", text(page)), page
