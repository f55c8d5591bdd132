"""Packaging of dali_compat. DALI is optional and comes with one of the extras cuda110, cuda120 and cuda130.

The sdist contains the whole project, so that it can be tested; the wheel contains only the package.
CONTRIBUTING.md describes how to make a release.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
INIT = (HERE / "dali_compat" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"', INIT, re.MULTILINE).group(1)
# URL of the published repository, such as https://github.com/<owner>/dali_compat
URL = os.environ.get("DALI_COMPAT_URL", "").rstrip("/")
PLACES = {
    "Source": "",
    "Documentation": f"/blob/v{VERSION}/docs/README.md",
    "Changelog": f"/blob/v{VERSION}/CHANGELOG.md",
    "Issues": "/issues",
}

EXAMPLES = ["lightning", "accelerate", "timm", "pytorch-ignite", "transformers", "ray[train]", "pyyaml", "tensorboard"]


def for_index(readme: str) -> str:
    """Return the README without relative links, which do not work on a package index.

    They become links into the repository at this version's tag or, without URL, plain text and a picture's description.
    """

    def absolute(match: re.Match) -> str:
        picture, text, target = match.groups()
        if not URL:
            return f"*{text}*" if picture else text
        return f"{picture}[{text}]({URL}/{'raw' if picture else 'blob'}/v{VERSION}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)", absolute, readme)


class WholeProject(sdist):
    """An sdist with all files that the tests need."""

    def make_distribution(self):
        for name in ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "llms.txt"):
            self.filelist.append(name)
        for folder in (".ci", ".devcontainer", ".github", "benchmarks", "docs", "examples", "packaging", "tests"):
            self.filelist.graft(folder)
        self.filelist.global_exclude("*.py[cod]")
        super().make_distribution()


setup(
    cmdclass={"sdist": WholeProject},
    # Install by path; otherwise a clone in the program's working directory would shadow the package.
    options={"editable_wheel": {"mode": "compat"}},
    name="dali_compat",
    version=VERSION,
    description="PyTorch's image loading, on NVIDIA DALI: change the import and train",
    long_description=for_index((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={name: f"{URL}{path}" for name, path in PLACES.items()} if URL else {},
    # No licence classifier, since the licence expression replaces it (PEP 639).
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
        "Typing :: Typed",
    ],
    keywords="pytorch dataloader dali image augmentation torchvision",
    packages=find_packages(include=["dali_compat", "dali_compat.*"]),
    package_data={"dali_compat": ["py.typed"]},
    python_requires=">=3.10",
    entry_points={"console_scripts": ["dali_compat = dali_compat.cli:main"]},
    install_requires=[
        *("torch>=2.5", "torchvision>=0.20", "numpy", "pillow"),
        *("tqdm", "filelock", "braceexpand", "google-crc32c"),
    ],
    extras_require={
        # 1.53 is the oldest tested DALI; the CUDA 11 builds ended at 1.50.
        "cuda110": ["nvidia-dali-cuda110"],
        "cuda120": ["nvidia-dali-cuda120>=1.53"],
        "cuda130": ["nvidia-dali-cuda130>=1.53"],
        "archives": ["lmdb"],  # for writing LMDB
        "remote": ["obstore>=0.8", "fsspec", "huggingface_hub"],  # object storage
        "examples": EXAMPLES,
        "test": [
            *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "nbclient", "ipykernel"),
            *("obstore", "moto[server]", "lmdb", "tfrecord", "webdataset", "datasets", "pandas", "torchdata"),
            "torchcodec",
            *EXAMPLES,
            *("mypy", "ruff", "codespell[toml]", "setuptools>=77", "readme_renderer[md]"),
        ],
    },
)
