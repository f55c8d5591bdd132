"""torchvision transforms -> steps of a plan. Knows torchvision; never sees DALI."""

from . import color, containers, convert, geometry, noise, policy, warp  # noqa: F401  (each registers its translators)
from .registry import Chain, Untranslatable, on_batch, register, translate

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate"]
