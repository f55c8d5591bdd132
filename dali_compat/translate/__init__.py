"""torchvision transforms -> steps of a plan. Knows torchvision; never sees DALI."""

import importlib
import pkgutil

from .chain import Chain, translate
from .registry import LATER, on_batch, register
from .several import views
from .untranslatable import Untranslatable

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate", "views"]

for _module in pkgutil.iter_modules(__path__):  # each kind registers its translators
    if _module.name not in LATER:
        importlib.import_module(f"{__name__}.{_module.name}")
