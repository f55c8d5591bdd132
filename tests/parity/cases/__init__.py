"""Every translated transform in its v1 and v2 class, and how near to torchvision it must come.

Limits are (mean, max) in levels of 0..255 over the drawn images of tests/helpers.py on the CPU backend: of the default,
and of exact=True. What was measured with DALI 2.4 and Pillow 13 stands in the comment (default; exact), the larger of
v1 and v2.
"""

from . import choices, sizes, values, warps, windows  # noqa: F401  (each adds its cases)
from .case import CASES, Case

__all__ = ["CASES", "Case"]
