"""What turns encoded bytes and drawn numbers into pixels.

- dali/: one DALI pipeline for each plan: decoding, and the steps that DALI does.
- kernels/: the steps that torch does, on a whole batch. fused: several of them in turn, on rows of an array.
- pil: the steps on one image, by Pillow and torchvision. It takes the files that DALI reads otherwise, and is what
  the others are measured against.
- launches/: what policies and ColorJitter choose for each image of a batch, in a few launches.
- planes/: JPEGs from a GPU's JPEG engine, and kernels that finish them.
- device: memory, and copies to a device. views: several images of one sample.
"""
