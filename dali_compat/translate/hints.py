"""A helper: which transform of torchvision's does what a user's class does with Pillow."""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

from .wrappers.bytecode import names
from .wrappers.objects import attributes

# functions of PIL.ImageOps
_OPERATIONS = {
    "autocontrast": "RandomAutocontrast(p={p})",
    "equalize": "RandomEqualize(p={p})",
    "flip": "RandomVerticalFlip(p={p})",
    "invert": "RandomInvert(p={p})",
    "mirror": "RandomHorizontalFlip(p={p})",
    "posterize": "RandomPosterize(bits={bits}, p={p})",
    "solarize": "RandomSolarize(threshold={threshold}, p={p})",
}
_DEFAULTS = {"bits": 4, "threshold": 128}
_SIGMAS = 3  # beyond so many a kernel has nothing


def instead(transform: Any) -> str:
    """What to write for it; "" where nobody knows. Looks at the names in its code alone."""
    own = (vars(base).get(name) for base in type(transform).__mro__ for name in ("forward", "__call__"))
    code = next((call.__code__ for call in own if isinstance(call, FunctionType)), None)
    used = set() if code is None else names(code)
    given = attributes(transform)
    p = next((given[name] for name in ("p", "prob") if isinstance(given.get(name), (int, float))), 1)
    if {"ImageFilter", "GaussianBlur"} <= used:
        low, high = _sigma(given)
        blur = f"T.GaussianBlur({2 * math.ceil(_SIGMAS * high) + 1}, sigma=({low}, {high}))"
        return blur if p == 1 else f"T.RandomApply([{blur}], p={p})"
    found = [name for name in _OPERATIONS if name in used] if "ImageOps" in used else []
    if len(found) != 1:
        return ""
    values = {name: given.get(name, default) for name, default in _DEFAULTS.items()}
    return "T." + _OPERATIONS[found[0]].format(p=p, **values)


def _sigma(given: dict[str, Any]) -> tuple[float, float]:
    """The least and largest sigma, by attributes of usual names; otherwise SimCLR's."""
    pair = given.get("sigma", given.get("sigmas", (given.get("radius_min"), given.get("radius_max"))))
    numbers = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(n, (int, float)) for n in pair)
    return (pair[0], pair[1]) if numbers else (0.1, 2.0)
