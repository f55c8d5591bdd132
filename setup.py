"""Packaging of dali_compat. DALI comes by one of the extras cuda110, cuda120, cuda130; it is optional."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INIT = (HERE / "dali_compat" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"', INIT, re.MULTILINE).group(1)

setup(
    name="dali_compat",
    version=VERSION,
    description="PyTorch's image loading, on NVIDIA DALI: change the import and train",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    # Without a classifier of the license: its name replaces that (PEP 639).
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
    ],
    keywords="pytorch dataloader dali image augmentation torchvision",
    packages=find_packages(include=["dali_compat", "dali_compat.*"]),
    package_data={"dali_compat": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=["torch", "torchvision>=0.20", "numpy", "pillow", "tqdm", "filelock", "braceexpand"],
    extras_require={
        # 1.53 is the oldest DALI that is tested; the CUDA 11 builds ended at 1.50.
        "cuda110": ["nvidia-dali-cuda110"],
        "cuda120": ["nvidia-dali-cuda120>=1.53"],
        "cuda130": ["nvidia-dali-cuda130>=1.53"],
        # lmdb: to write LMDB; google-crc32c: TFRecord's checksums, 9 times faster
        "archives": ["lmdb", "google-crc32c"],
        "test": [
            *("pytest", "pytest-timeout", "pytest-xdist", "lightning", "accelerate", "timm", "pytorch-ignite"),
            *("lmdb", "google-crc32c", "tfrecord", "webdataset", "datasets", "pandas", "torchdata"),
            *("pyyaml", "tensorboard"),  # of examples/
            *("mypy", "ruff"),
        ],
    },
)
