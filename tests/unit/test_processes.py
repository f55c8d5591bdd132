"""Processes that are not forks (runtime/forks.py)."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dali_compat import ImageReadError
from dali_compat.remote.event_loop import HelperProcess


def test_a_process_starts_without_torch():
    """With it, it would start seconds later and take half a gigabyte."""
    code = (
        "import sys, dali_compat.remote.event_loop; print({'torch', 'torchvision', 'nvidia.dali'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_a_process_finds_packages_of_pythonpath_if_the_current_folder_is_kept_out(tmp_path, monkeypatch):
    """Its first folder is Python's first then."""
    packages = Path(np.__file__).parents[1]
    (tmp_path / "deps").symlink_to(packages)
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.remove({os.fspath(packages)!r})")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/deps:{tmp_path}")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    process = HelperProcess()
    try:
        with pytest.raises(ImageReadError, match="'object' object has no attribute 'get'"):
            process.get(object(), "s3://bucket/1.jpg")
    finally:
        process.end()
