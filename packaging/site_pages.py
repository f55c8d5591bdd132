"""MkDocs hook of mkdocs.yml: adds the page of all public names, and files outside of docs/ that pages link to.

Such files, an example or CONTRIBUTING.md, are added to the site under repository/, so that all links work, even if the
site is opened from a folder. The first page is the repository's README.md, in place of docs/README.md, which only lists
the pages that the site's navigation has.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(\))")
PLACE, HOME = "repository/", "README.md"


def place_of(path: str) -> str:
    """Return the path of a repository file in the site."""
    if path == HOME:
        return HOME
    return path.removeprefix("docs/") if path.startswith("docs/") else PLACE + path


def path_of(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    if uri == HOME:
        return HOME
    return uri.removeprefix(PLACE) if uri.startswith(PLACE) else f"docs/{uri}"


def targets(path: str, text: str) -> set[str]:
    """Return the files of the repository that a page links to."""
    found = {posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2])) for link in LINK.finditer(text)}
    return {one for one in found if (ROOT / one).is_file()}


def names() -> list[str]:
    """Return the package's public names from its ``__init__``, without importing it."""
    text = (ROOT / "dali_compat" / "__init__.py").read_text()
    return sorted(re.findall(r"^    from \S+ import \w+ as (\w+)$", text, re.MULTILINE), key=str.lower)


def on_files(files, config):
    text = "# All names\n\n```python\nimport dali_compat\n```\n\n" + "".join(
        f"::: dali_compat.{name}\n\n" for name in names()
    )
    files.append(File.generated(config, "reference.md", content=text))
    files.remove(files.get_file_from_path(HOME))
    files.append(File.generated(config, HOME, abs_src_path=str(ROOT / HOME)))
    pages = [file.src_uri for file in files.documentation_pages() if file.src_uri != "reference.md"]
    seen, left = {HOME}, {path_of(uri) for uri in pages}
    while left:
        page = left.pop()
        for target in targets(page, (ROOT / page).read_text()) - seen:
            seen.add(target)
            if not target.startswith("docs/"):
                files.append(File.generated(config, place_of(target), abs_src_path=str(ROOT / target)))
                left |= {target} if target.endswith(".md") else set()
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite links from and to files outside of docs/."""
    uri = page.file.src_uri
    path = path_of(uri)

    def moved(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if not (ROOT / target).is_file():
            return link[0]
        there = posixpath.relpath(place_of(target), posixpath.dirname(uri) or ".")
        return f"{link[1]}{there}{link[3] or ''}{link[4]}"

    return LINK.sub(moved, markdown)
