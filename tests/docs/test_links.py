"""Links, headings, files and modules named in the pages exist."""

import re
from pathlib import Path

import pytest

import dali_compat
from docs.pages import PAGES, ROOT, anchors, fences, inline, links, text

PATH = re.compile(r"(docs|benchmarks|examples|tests|dali_compat)/[\w./<>-]*")
PACKAGE = Path(dali_compat.__file__).parent


@pytest.mark.parametrize("page", PAGES)
def test_links_point_to_existing_files_and_headings(page):
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (ROOT / page).parent / file if file else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(str(there.resolve().relative_to(ROOT))), target


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_a_page_exist(page):
    for word in " ".join(inline(page)).split():
        if PATH.fullmatch(word):
            assert (ROOT / word).exists(), word


def test_index_links_to_every_page():
    index = {target.partition("#")[0] for target in links("docs/README.md")}
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"README.md"} <= index


def tour() -> dict[str, str]:
    """Return the modules and subpackages of the tour in CONTRIBUTING.md, with their descriptions."""
    (block,) = fences("CONTRIBUTING.md", "")
    found, name = {}, ""
    for line in block.splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            found[name] = ""
        found[name] += " " + line.removeprefix(name).strip()
    return found


def test_tour_names_every_subpackage():
    """The tour also names nothing that does not exist."""
    there = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    there |= {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    assert there == set(tour())


def test_tour_names_existing_modules():
    """Checks words with an underscore, since these are not English."""
    modules = {path.stem for path in PACKAGE.rglob("*.py")}
    named = {word for what in tour().values() for word in re.findall(r"\b[a-z]+_[a-z_]+\b", what)}
    assert named and named <= modules


def test_how_it_works_names_existing_modules():
    page = "docs/how-it-works.md"
    named = {*inline(page), *re.findall(r"\[\"([\w/]+)", text(page))}
    named = {words for words in named if re.fullmatch(r"(?!tests|benchmarks|docs)[a-z_]+/[a-z_]*", words)}
    assert len(named) > 10
    for words in named:
        assert (PACKAGE / words).is_dir() or (PACKAGE / f"{words}.py").is_file(), words


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_project_has_licence_changelog_and_contributing(name):
    assert (ROOT / name).is_file()


def test_licence_is_complete():
    licence = text("LICENSE")
    assert "Apache License" in licence and "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence and len(licence.split()) > 1500


def test_pages_do_not_name_unpublished_documents():
    """They are documents of other projects, which readers cannot open."""
    for page in PAGES:
        assert not re.search(r"\b(FIELD|DESIGN|PARITY)(\.md|:)", text(page)), page
