"""Turns encoded bytes and drawn numbers into pixels.

- dali/: one DALI pipeline for each plan: decoding, and the steps that DALI does.
- fused: steps that torch does (ops/kernels), several in turn, on rows of an array.
- pil: the steps on one image, by Pillow and torchvision. It takes the files that DALI reads otherwise, and is what
  the others are measured against.
- planes/: JPEGs from a GPU's JPEG engine, and kernels that finish them.
"""
