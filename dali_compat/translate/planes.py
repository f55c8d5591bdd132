"""Which steps kernels do on the planes of luma and chroma that a GPU's JPEG engine gives (engine/planes)."""

from __future__ import annotations

import re

from ..ops.arguments import is_in_two_passes
from ..plan import UPRIGHT, Step

NO_CHANGE = ("pil_to_tensor", "identity", UPRIGHT)  # of the values
NO_KERNEL = {*NO_CHANGE, "choose"}

# of steps, a letter each (_letter): [crop] [resize] [crop] [flips] [conversion to floating point] [normalize] with a
# filter, to one size; and steps that choose pixels of each image, with conversions after them
_RESIZED = re.compile("-*[Cc]?-*(?:[Rr]-*[CO]|R(?!-*[co]))[-f]*[-t]*[-n]*")
_PICKED = re.compile("[-CcOofNP]*[-tn]*")


def from_planes(ordered: tuple[Step, ...], split: int) -> int | None:
    """Returns how many of the first steps kernels do on a JPEG's planes. The others torch does; None if there are steps
    before ``split`` among these that are for images of several sizes: DALI does them at once, torch one by one."""
    letters = "".join(map(_letter, ordered))
    found = _RESIZED.match(letters) or _PICKED.match(letters)
    at = found.end() if found else 0
    ragged = not at or ordered[at - 1].gives.size is None
    return None if ragged and any(s.op not in NO_KERNEL for s in ordered[at:split]) else at


_LETTERS = dict.fromkeys(NO_CHANGE, "-") | {"flip": "f", "to_dtype": "t", "normalize": "n"}


def _letter(s: Step) -> str:
    """C: a crop within the image, O: another one, R: a resize with a filter, N: one to the nearest pixels, P: padding
    with black; c, o, r: to sizes that differ. What kernels do not do has another."""
    how, letter = s.kwargs, _LETTERS.get(s.op, "?")
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
