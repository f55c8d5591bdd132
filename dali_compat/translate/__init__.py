"""torchvision transforms -> steps of a plan. Knows torchvision; never sees DALI.

In the order to read them:

- registry: who translates a class, and what a translator returns. color is one of the kinds, each with its translators.
- chain: a whole transform, containers included, up to what has no translation.
- wrappers/: what a callable of the user's does, if it only applies transforms that have a translation.
- fidelity: how far a step is from torchvision, in words. untranslatable: why there is no translation. several: views().
  of_views: what torchvision refuses of several images.
- timm, timm_policies: timm's transforms; imported when one comes.
"""

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
