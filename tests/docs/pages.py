"""The pages to test, and functions that extract their prose, snippets, commands and links."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "llms.txt",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(r"<!-- written, .*?<!-- until here -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_PROGRAMS = ("codespell", "mypy", "python", "pytest", "pip", "ruff", "tests/run_gpu.sh")


def text(page: str) -> str:
    return (ROOT / page).read_text()


def fences(page: str, language: str) -> list[str]:
    """Return the code blocks of a language; "" selects blocks without a language."""
    return [code for kind, code in _FENCE.findall(text(page)) if kind == language]


def prose(page: str) -> str:
    """Return the text on one line, without code, link targets, comments and generated tables."""
    left = _COMMENT.sub(" ", _GENERATED.sub(" ", _FENCE.sub(" ", text(page))))
    return " ".join(_LINK.sub(r"\1", _INLINE.sub("``", left)).split())


def inline(page: str) -> list[str]:
    """Return the text between backticks."""
    return _INLINE.findall(_FENCE.sub(" ", text(page)))


def links(page: str) -> list[str]:
    return [target for _, target in _LINK.findall(_FENCE.sub(" ", text(page)))]


def anchors(page: str) -> set[str]:
    """Return the anchors of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub(" ", text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_command(line: str) -> bool:
    program, *words = re.sub(r"^(\w+=\S+ )+", "", line).split()
    return program in _PROGRAMS and (bool(words) or program in ("mypy", "pytest", "tests/run_gpu.sh"))


def commands(page: str) -> list[str]:
    """Return each command in bash blocks and between backticks, on one line and without its comment."""
    lines = []
    for code in fences(page, "bash"):
        lines += code.replace("\\\n", " ").splitlines()
    lines += [line for line in inline(page) if _is_command(line)]
    found = [part.split("  #")[0] for line in lines for part in line.split(" && ")]
    return list(dict.fromkeys(" ".join(part.split()) for part in found if part.strip()))
