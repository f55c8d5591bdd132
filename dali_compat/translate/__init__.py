"""torchvision transforms -> steps of a plan. Knows torchvision; never sees DALI."""

from . import color, containers, convert, geometry  # noqa: F401  (each registers its translators)
from .registry import Untranslatable, register, translate

__all__ = ["Untranslatable", "register", "translate"]
