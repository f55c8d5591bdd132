"""The exact arithmetic of Pillow and torchvision, on batches of tensors. No module depends on plans or registries.

- resample: resizing. transform: warps. squares: random numbers for noise.
- lists: images of several sizes. values: arithmetic with one number per image, and tables of 256 values.
"""
