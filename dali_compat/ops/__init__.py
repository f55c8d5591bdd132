"""All operations, one module per kind with its translators, draws and kernels.

In reading order:

- The kinds are color, resize, windows, warp, jitter, filters, noise, policy, augmix and convert. timm and
  timm_policies, which uses timm_operations, are imported when one of timm's transforms is translated.
- translators: the registry of translators by class, and their return types. arguments: the meaning of transforms'
  arguments.
- draws: draws all numbers and computes all windows of a batch at once, with the distributions for that. matrices:
  matrices of warps.
- kernels: kernel() registers an operation with its traits, and run() applies a step to a batch. image_by_image: applies
  all steps to one image after another, on a CPU. pixels/: the arithmetic of Pillow and torchvision on batches of
  tensors. operations/: operations that ColorJitter and policies choose per image.
"""

import importlib
import pkgutil

from .translators import LAZY_MODULES

for _module in pkgutil.iter_modules(__path__):  # importing a kind registers its functions
    if _module.name not in LAZY_MODULES:
        importlib.import_module(f"{__name__}.{_module.name}")
