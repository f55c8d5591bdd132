"""Question: which library do the data sets of public training repositories use to open images?

Method. FOLDER has bare clones, OWNER+NAME/repo. In each repository, the modules that define a __getitem__ count. If
these open nothing, the modules of the repository that they import, in whole or in part, count instead. A repository
opens images by the library of OPENERS that most of these modules call. Comments are ignored. "none" stands for
torchvision's data sets and other files.

Confounders.
- The text is searched and nothing runs. A module may have several data sets, although training uses only one.
- The repositories were chosen by name: they have many stars, cover several tasks, and many are old.

Command.
    python benchmarks/openers.py FOLDER NAME ... --json OUT.json
"""

import argparse
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

OPENERS = {
    "cv2": r"\bcv2\.im(read|decode)\(|\bimfrombytes\(",
    "scikit-image, imageio, SciPy": r"\b(io|imageio|misc|plt)\.imread\(|(?<![\w.])imread\(",
    "torchvision.io": r"\bdecode_(image|jpeg)\(|torchvision\.io\b",
    "Pillow": r"\bImage\.open\(|\b(default|pil)_loader\b|CocoDetection\b",
}


def look(repository: Path) -> dict:
    """Return the library that opens images in a repository, and how many modules call each library."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout

    names = [name for name in git("ls-tree", "-r", "--name-only", "HEAD").splitlines() if name.endswith(".py")]
    texts = {name: re.sub(r"(?m)^\s*#.*$", "", git("show", f"HEAD:{name}")) for name in names}
    own = [text for text in texts.values() if "def __getitem__(" in text]
    lines = [line for text in own for line in re.findall(r"(?m)^\s*(?:from|import) .*$", text)]
    used = {word for line in lines for word in re.findall(r"\w+", line)}
    imported = [
        text
        for name, text in texts.items()
        if text not in own and used & {Path(name).stem, *re.findall(r"(?m)^def (\w+)\(", text)}
    ]
    found = {opener: sum(bool(re.search(pattern, text)) for text in own) for opener, pattern in OPENERS.items()}
    others = {opener: sum(bool(re.search(pattern, text)) for text in imported) for opener, pattern in OPENERS.items()}
    best = next((max(one, key=lambda opener: one[opener]) for one in (found, others) if any(one.values())), "none")
    return {
        "repository": repository.parent.name.replace("+", "/", 1),
        "commit": git("rev-parse", "--short=7", "HEAD").strip(),
        "opener": best if own else "none",
        "modules": found,
        "imported": others,
        "albumentations": any(re.search(r"(?m)^\s*(import|from) albumentations", text) for text in texts.values()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME", help="OWNER/NAME")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [look(args.folder / name.replace("/", "+") / "repo") for name in args.names]
    print(Counter(row["opener"] for row in rows), sum(row["albumentations"] for row in rows))
    if args.json:
        args.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
