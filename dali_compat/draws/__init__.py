"""Per-sample arguments of every step: geometry and random draws, on the host, for a whole batch at once.

Each function takes the image sizes that reach it, (N, 2) int64 as (height, width) in pixels, and returns the arrays its
kernel wants together with the sizes after it. Sizes are known before anything is decoded (data/headers.py), so all
geometry is torchvision's own arithmetic, vectorised with numpy, and the engines only carry it out.
"""

import importlib
import pkgutil

from .randoms import Randoms, generator_states, own_generators, replacement, seed_generators, set_generators
from .registry import Arrays, Computed, ImageTooSmall, compute, is_random

__all__ = [
    "Arrays",
    "Computed",
    "ImageTooSmall",
    "Randoms",
    "compute",
    "generator_states",
    "is_random",
    "own_generators",
    "replacement",
    "seed_generators",
    "set_generators",
]

for _module in pkgutil.iter_modules(__path__):  # each kind registers its draws
    importlib.import_module(f"{__name__}.{_module.name}")
