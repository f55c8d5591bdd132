"""torchvision transforms -> a plan: steps, which of them DALI does, and which torch. Never sees DALI.

In the order to read them:

- chain: a whole transform, containers included, up to what has no translation, and what explain() says of it. views:
  several images of one.
- lower: which steps DALI does and which torch; planes: which kernels do on what a JPEG engine gives.
"""

from ..inspection.untranslatable import Untranslatable
from ..ops.translators import on_batch, register
from .chain import Chain, translate
from .views import views

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate", "views"]
