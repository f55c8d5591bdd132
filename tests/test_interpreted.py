"""Run kernel tests in Triton's interpreter, all in one process because starting it takes seconds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import interpreted

FILES = ("contract/test_jpeg_kinds.py", "unit/test_launches.py", "unit/test_planes.py")


@interpreted.elsewhere
def test_kernel_tests_pass_in_tritons_interpreter():
    files = [str(Path(__file__).parent / file) for file in FILES]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    passed = re.findall(r"tests/(\S+\.py) s*\.", done.stdout)
    assert sorted(passed) == sorted(FILES), done.stdout
