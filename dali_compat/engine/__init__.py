"""Engines that compute pixels from encoded bytes and drawn parameters.

- dali/: one DALI pipeline per plan, for decoding and the steps that DALI executes.
- fused: steps that torch executes (ops/kernels), several at a time, on rows of an array.
- pil: the steps on one image, by Pillow and torchvision. It processes files that DALI decodes differently, and is the
  reference for the other engines.
- planes/: a GPU's JPEG engine, and kernels that convert its planes.
"""
