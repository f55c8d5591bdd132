"""The arithmetic of Pillow and torchvision on batches of tensors, bit for bit. Knows neither plans nor registries.

resample resizes, transform warps, squares makes noise. lists is for images of
several sizes, values for one number an image, and for tables of 256 values.
"""
