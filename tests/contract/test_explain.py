"""explain() on terminals of several widths."""

import re
import sys

import pytest
from torchvision import transforms as T

from contract.both import ours
from dali_compat import DALIImageFolder

TRANSFORM = T.Compose([T.RandomResizedCrop(64), T.RandAugment(), T.ToTensor()])


@pytest.fixture
def loader(image_root):
    return ours(
        DALIImageFolder(image_root, TRANSFORM),
        5,
        device="cpu",
        fallback="silent",
        num_workers=2,
        pin_memory=True,
    )


@pytest.fixture
def stock_loader(image_root):
    return ours(DALIImageFolder(image_root, loader=repr), 5, device="cpu", fallback="silent", exact=True)


@pytest.fixture
def terminal(monkeypatch):
    """Function that makes stdout a terminal of that many columns, or a file for None."""

    def pretend(columns: int | None) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns or 40))

    return pretend


def words(text: str) -> list[str]:
    return re.sub(r";(?=\s|$)", "", text).split()


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("kind", ["loader", "stock_loader"])
def test_lines_on_a_narrow_terminal_fit_and_keep_all_words(kind, columns, request, terminal):
    loader = request.getfixturevalue(kind)
    terminal(None)
    in_a_file = loader.explain()
    assert max(map(len, in_a_file.splitlines())) > columns
    terminal(columns)
    assert max(map(len, loader.explain().splitlines())) <= columns
    assert words(loader.explain()) == words(in_a_file)


def test_a_transform_takes_two_lines_on_a_narrow_terminal(loader, terminal):
    terminal(80)
    lines = loader.explain().splitlines()
    at = lines.index("  RandAugment(num_ops=2, magnitude=9, ...)")
    assert lines[at + 1].startswith("      augment (rand_augment); torch, ") and lines[at + 2] == "  ToTensor()"
    assert lines[-1] == "  without effect: pin_memory=True"


def test_wide_or_a_wide_terminal_leaves_lines_unchanged(loader, terminal):
    terminal(None)
    in_a_file, wide = loader.explain(), loader.explain(wide=True)
    terminal(80)
    assert loader.explain(wide=True) == wide
    terminal(max(map(len, in_a_file.splitlines())))
    assert loader.explain() == in_a_file


def test_a_notebook_shows_a_table(loader, stock_loader):
    """The table has a row per line and escapes HTML."""
    explained = loader.explain()
    html = explained._repr_html_()
    assert html.count("<tr") == len(explained.splitlines()) and ">ToTensor()</td>" in html
    assert html.count('<td style="text-align:left">') + html.count('colspan="4" style="text') == html.count("<td")
    loader.dataset.transform = T.Compose([T.Lambda(lambda x: x.sort()), TRANSFORM])
    html = loader.explain()._repr_html_()
    assert "<lambda>" not in html and "&lt;lambda&gt;" in html
    assert stock_loader.explain()._repr_html_().count("<tr") == len(stock_loader.explain().splitlines())
