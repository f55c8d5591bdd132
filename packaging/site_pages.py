"""A hook of mkdocs.yml: adds the page of all public names, and what pages link to outside of docs/.

Such a file, an example or CONTRIBUTING.md, gets a place in the site, repository/, so that every link leads somewhere,
also where the site is opened from a folder.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(\))")
PLACE = "repository/"


def place_of(path: str) -> str:
    """Where a file of the repository stands in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else PLACE + path


def targets(path: str, text: str) -> set[str]:
    """Files of the repository to which a page links."""
    found = {posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2])) for link in LINK.finditer(text)}
    return {one for one in found if (ROOT / one).is_file()}


def names() -> list[str]:
    """The package's public names, as its ``__init__`` lists them; nothing is imported."""
    text = (ROOT / "dali_compat" / "__init__.py").read_text()
    return sorted(re.findall(r"^    from \S+ import \w+ as (\w+)$", text, re.MULTILINE), key=str.lower)


def on_files(files, config):
    text = "# All names\n\n```python\nimport dali_compat\n```\n\n" + "".join(
        f"::: dali_compat.{name}\n\n" for name in names()
    )
    files.append(File.generated(config, "reference.md", content=text))
    seen, left = set(), {f"docs/{file.src_uri}" for file in files.documentation_pages() if not file.generated_by}
    while left:
        page = left.pop()
        for target in targets(page, (ROOT / page).read_text()) - seen:
            seen.add(target)
            if not target.startswith("docs/"):
                files.append(File.generated(config, place_of(target), abs_src_path=str(ROOT / target)))
                left |= {target} if target.endswith(".md") else set()
    return files


def on_page_markdown(markdown, page, config, files):
    """Links from and to files outside of docs/ lead to their places."""
    uri = page.file.src_uri
    path = uri.removeprefix(PLACE) if uri.startswith(PLACE) else f"docs/{uri}"

    def moved(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if not (ROOT / target).is_file():
            return link[0]
        there = posixpath.relpath(place_of(target), posixpath.dirname(uri) or ".")
        return f"{link[1]}{there}{link[3] or ''}{link[4]}"

    return LINK.sub(moved, markdown)
