"""Says how far each step is from torchvision, in words that the parity tests bear out.

step(fidelity=...) takes it. It is a text, or a function of the step, where it runs, the options, and whether DALI
resizes in two passes.
"""

from __future__ import annotations

from ..plan import DALI, Options, Step
from ..runtime.versions import resizes_in_whole_numbers

EXACT = "exact"
OTHER_ORDER = "exact but for the order of additions"
OWN = "yours, not measured"
BLURRED = "mean error .0001 of 255"


def converted(s: Step, where: str, options: Options, two_pass: bool) -> str:
    """DALI multiplies in float32 where torchvision divides, and so does a CPU's kernel by default."""
    return "within 1e-6" if where == DALI or not (options.exact or options.gpu) else EXACT


def warped(s: Step, where: str, options: Options, two_pass: bool) -> str:
    return "mean error .001 of 255" if where == DALI else EXACT


def coded(s: Step, where: str, options: Options, two_pass: bool) -> str:
    """A GPU's JPEG is arithmetic of its own."""
    return "mean error 1 of 255 (exact=True: 0)" if where == DALI and options.gpu else EXACT


def resized(s: Step, where: str, options: Options, two_pass: bool) -> str:
    if where == DALI:
        return _resized_by_dali(s, two_pass)
    if not (options.exact or options.gpu) and not _in_floats(s) and not s.kwargs["interpolation"].startswith("nearest"):
        return "mean error .05 of 255 (exact=True: 0)"
    return OTHER_ORDER if options.gpu and _in_floats(s) else EXACT


def _in_floats(resize: Step) -> bool:
    """Returns whether torchvision's sums are of floating point numbers."""
    like, interpolation = resize.kwargs["like"], resize.kwargs["interpolation"]
    if like == "pil" or interpolation.startswith("nearest"):
        return False
    return like == "v1" or resize.gives.dtype.is_floating_point or not resizes_in_whole_numbers(interpolation)


def _resized_by_dali(s: Step, two_pass: bool) -> str:
    if s.kwargs["interpolation"].startswith("nearest"):
        return "nearest pixel; a rounding tie may differ (exact=True: 0)"
    if s.kwargs["like"] != "pil":
        close = two_pass or s.kwargs["like"] == "v1"
        return "mean error .05 of 255 (exact=True: 0)" if close else "mean error .2 of 255 (exact=True: 0)"
    if two_pass:
        return "two passes as Pillow: mean error .01 of 255 (exact=True: 0)"
    return "one pass: mean error .2 of 255 (exact=True: 0)"
