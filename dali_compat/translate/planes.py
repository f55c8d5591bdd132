"""Select the steps that kernels run on the luma and chroma planes from a GPU's JPEG engine (engine/planes)."""

from __future__ import annotations

import re

from ..ops.arguments import is_in_two_passes
from ..plan import Step

# Patterns of steps, one letter each (see _letter). _RESIZED matches [crop] resize [crop] [flips] [conversions to
# floating point] [normalize], if all results have one size. Steps in brackets are optional. _PICKED matches steps that
# only select pixels, followed by conversions.
_RESIZED = re.compile("-*[Cc]?-*(?:[Rr]-*[CO]|R(?!-*[co]))[-f]*[-t]*[-n]*")
_PICKED = re.compile("[-CcOofNP]*[-tn]*")


def from_planes(ordered: tuple[Step, ...], split: int) -> int | None:
    """Return the number of leading steps that kernels can run on a JPEG's planes. Return None if DALI is faster."""
    letters = "".join(map(_letter, ordered))
    found = _RESIZED.match(letters) or _PICKED.match(letters)
    at = found.end() if found else 0
    ragged = not at or ordered[at - 1].gives.size is None
    # DALI is faster than torch on images of different sizes
    return None if ragged and any(not s.operation.unchanged for s in ordered[at:split]) else at


def _letter(s: Step) -> str:
    """Return the letter that stands for a step in the patterns _RESIZED and _PICKED.

    C is a crop within the image, O another crop, R a resize with a filter, N a resize to nearest pixels, P padding with
    black, f a flip, t a to_dtype, n a normalize, and "-" a step without effect. c, o and r are C, O and R with results
    that differ in size. "?" is a step that kernels do not support.
    """
    how = s.kwargs
    letter = "-" if s.operation.unchanged else {"flip": "f", "to_dtype": "t", "normalize": "n"}.get(s.op, "?")
    if s.op == "crop":
        letter = "C" if how["inside"] else "O"
    elif s.op == "pad" and how["mode"] == "constant" and not any(how["fill"]):
        letter = "P"
    elif s.op == "resize" and how["like"] == "pil" and how["interpolation"].startswith("nearest"):
        letter = "N"
    elif s.op == "resize" and is_in_two_passes(s):
        letter = "R"
    if s.when:
        return "?"
    return letter.lower() if letter in "COR" and s.gives.size is None else letter
