"""Every operation, in the module of its kind: its translator, draw and kernels.

In the order to read them:

- color is a kind, as are resize, windows, warp, jitter, filters, noise, policy, augmix, convert;
  timm and timm_policies, with the timm_operations of these, are imported when one of timm's transforms comes.
- translators: which function translates a class, and what it returns. arguments: what a transform's arguments mean, and
  how far a step is from torchvision, in words.
- draws: every number drawn and every window, for a batch at once, and what they are made of. matrices: of warps.
- kernels: run() does a step on a batch. image_by_image: a CPU's way, all steps on one image. pixels/: the arithmetic of
  Pillow and torchvision on batches of tensors. operations/ does what ColorJitter and policies choose for each image.
"""

import importlib
import pkgutil

from .translators import LATER

for _module in pkgutil.iter_modules(__path__):  # each kind registers its functions
    if _module.name not in LATER:
        importlib.import_module(f"{__name__}.{_module.name}")
