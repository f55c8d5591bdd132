"""Operations, one module per kind, each with translators, draws and kernels.

The modules, in reading order:

- Kinds: color, resize, windows, warp, jitter, filters, noise, policy, augmix and convert. timm and timm_policies (with
  timm_operations) are imported when a transform of timm is translated.
- translators: the registry of translators by class. arguments: reads the arguments of transforms.
- draws: draws all numbers of a batch and computes all windows and sizes. matrices: matrices of warps.
- kernels: kernel() registers an operation, and run() applies a step to a batch. image_by_image: applies all steps to
  one image before the next, on a CPU.
- pixels/: arithmetic of Pillow and torchvision on batches. operations/: a different operation for each image, for
  policies and ColorJitter.
"""

import importlib
import pkgutil

from .translators import LAZY_MODULES

for _module in pkgutil.iter_modules(__path__):  # importing a kind registers its functions
    if _module.name not in LAZY_MODULES:
        importlib.import_module(f"{__name__}.{_module.name}")
