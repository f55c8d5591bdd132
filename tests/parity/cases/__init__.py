"""Test cases of every translated transform, in its v1 and v2 class, with limits for the difference to torchvision.

Limits are (mean, max) in levels of 0..255 over the drawn images of tests/helpers.py on the CPU backend: of the default,
and of exact=True. Comments give the values measured with DALI 2.4 and Pillow 13 (default; exact), the larger of v1 and
v2.
"""

from . import choices, sizes, values, warps, windows  # noqa: F401  (each adds its cases)
from .case import CASES, Case

__all__ = ["CASES", "Case"]
