"""The class of a case, and functions that define cases."""

from collections.abc import Callable
from dataclasses import dataclass

import nvidia.dali
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

OLD_DALI = int(nvidia.dali.__version__.split(".")[0]) < 2  # its kernels add in another order
SAME = (0, 0)  # rounds as torchvision does
FLOAT = (255e-6, 255e-6)  # float32 kernels of DALI: within 1e-6 of the range 0..1
NEAR = (1e-4, 1)  # sums in another order: values within 1e-5 of the middle of two levels round the other way


@dataclass(frozen=True)
class Case:
    """A transform and its limits.

    Attributes:
        std: The divisor of the normalization.
        levels: Levels per unit of the values, if not the dtype's default.
        calls: A part has no translation, so Python calls it for each image.
        most: Number of images.
        rims: Pixels on the border of a warped image may be inside or outside.
        gpu: Limits of exact=True on a GPU, if not those of the CPU.
    """

    name: str
    make: Callable
    default: tuple[float, float] = SAME
    exact: tuple[float, float] = SAME
    std: tuple[float, ...] | None = None
    levels: float | None = None
    calls: bool = False
    most: int = 12
    rims: bool = False
    gpu: tuple[float, float] | None = None

    def limits(self, exact: bool, device: str, dtype: torch.dtype) -> tuple[float, float]:
        mean, most = self.exact if exact else self.default
        if exact and device != "cpu" and self.gpu:
            mean, most = self.gpu
        if device == "cpu":
            return mean, most
        # CUDA fuses multiply-add, and DALI's resize accumulates in another order, so that ties of nearest round
        # differently (.05 of 255 on average). The images on a GPU differ (conftest.py), and so do their borders.
        # Logarithms and cosines of normal noise differ, too (.00018)
        rounding = 8 * 255 * torch.finfo(dtype).eps if dtype.is_floating_point else 0
        # contrast's mean is summed in another order, and hue amplifies the error:
        if "ColorJitter" in self.name and rounding:
            most = max(most, 2e-3)  # .00093
        if "nearest" in self.name:
            return (0.08, 255) if mean else (0, 0)
        return 2 * mean + rounding, 255 if self.rims else most + rounding + (8 if mean > FLOAT[0] else 0)


CASES: list[Case] = []


def case(name: str, make: Callable, default=SAME, exact=SAME, both=None, versions=(v1, v2), **options) -> None:
    """Add a case for each version.

    ``make(T)`` returns a transform or the transforms of a Compose. Limits are (mean, max) of the default and of
    exact=True, or of ``both``.
    """
    limits = (both, both) if both else (default, exact)
    for T in versions:

        def build(T=T):
            made = make(T)
            return T.Compose(made) if isinstance(made, list) else made

        CASES.append(Case(f"{'v1' if T is v1 else 'v2'} {name}", build, *limits, **options))


def of_pil(name, make, *limits, **options):
    """Add a case of one or several transforms of PIL images, followed by PILToTensor."""
    case(name, lambda T: [*_list(make(T)), T.PILToTensor()], *limits, **options)


def _list(made):
    return made if isinstance(made, list) else [made]
