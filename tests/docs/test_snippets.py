"""Run every Python snippet of the pages; the snippets of a page run in order."""

import re

import pytest
import torch
from measured import read

from dali_compat import DataLoader
from dali_compat.ops.translators import _TRANSLATORS
from dali_compat.runtime.installation import dali_version
from docs.pages import PAGES, fences

LANGUAGES = {"", "bash", "diff", "mermaid", "python"}


@pytest.fixture
def registry():
    before = dict(_TRANSLATORS)
    yield
    _TRANSLATORS.clear()
    _TRANSLATORS.update(before)


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")])
def test_snippets_of_a_page_run(page, names, registry):
    for number, code in enumerate(fences(page, "python"), 1):
        exec(compile(code, f"{page}, snippet {number}", "exec"), names)
    loader = names["loader"]
    assert isinstance(loader, DataLoader)
    images, labels, *_ = next(iter(loader))
    for view in images if isinstance(images, list) else [images]:
        assert isinstance(view, torch.Tensor) and len(view) == len(labels) > 0


def test_readme_diff_replaces_pytorchs_loader_by_a_subclass(names):
    """The removed line imports PyTorch's name, and the added line ours."""
    (change,) = fences("README.md", "diff")
    removed, added = ([line[1:] for line in change.splitlines() if line[0] == sign] for sign in "-+")
    theirs, ours = {}, {}
    exec("\n".join(removed), theirs)
    exec("\n".join(added), ours)
    assert len(removed) == len(added) == 1
    assert issubclass(ours["DataLoader"], theirs["DataLoader"]) and ours["DataLoader"] is not theirs["DataLoader"]


def test_code_blocks_have_known_languages():
    known = {kind: sum(len(fences(page, kind)) for page in PAGES) for kind in LANGUAGES}
    assert all(known.values())
    from docs.pages import text

    assert sum(text(page).count("\n```") for page in PAGES) == 2 * sum(known.values())


def lines(printed: str) -> list[str]:
    """Return the lines without column padding and the version of DALI."""
    return [re.sub(r"DALI \d\S*;", "DALI;", " ".join(line.split())) for line in printed.splitlines()]


@pytest.mark.parametrize("page", ["docs/explain.md", "llms.txt"])
def test_explain_prints_what_the_page_shows(page, names, capsys):
    assert dali_version()
    (shown,) = fences(page, "")
    for code in fences(page, "python"):
        exec(code, names)
    assert lines(capsys.readouterr().out) == lines(shown)


def test_plan_of_arrays_is_from_a_committed_run():
    (shown,) = fences("docs/arrays.md", "")
    measured = lines(read("cifar10_h100")["plans"]["ours"])
    assert lines(shown) == measured[: len(lines(shown))]
