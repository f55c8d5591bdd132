"""torchvision transforms -> steps of a plan. Knows torchvision; never sees DALI."""

from . import (  # noqa: F401  (each registers its translators)
    color,
    containers,
    convert,
    filters,
    geometry,
    jitter,
    noise,
    policy,
    warp,
)
from .registry import Chain, Untranslatable, on_batch, register, translate

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate"]
