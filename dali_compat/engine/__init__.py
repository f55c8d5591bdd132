"""Engines that compute pixels from encoded bytes and random arguments.

- dali/: a DALI pipeline per plan (translated transform). It decodes images and runs the steps assigned to DALI.
- fused: torch kernels (ops/kernels), partly fused, on batches that are already on the device.
- pil: runs the steps on one image with Pillow and torchvision, for files that DALI decodes differently. It is the
  reference for the other engines.
- planes/: a GPU's JPEG engine, and kernels that convert the decoded planes to images.
"""
