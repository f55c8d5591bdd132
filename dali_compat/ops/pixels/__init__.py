"""The arithmetic of Pillow and torchvision on batches of tensors, bit for bit. Independent of plans and registries.

resample resizes, transform warps, and squares generates noise. lists processes images of several sizes. values has
arithmetic with one number per image, and tables of 256 values.
"""
