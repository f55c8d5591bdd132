"""Decode JPEGs to luma and chroma planes with a GPU's JPEG engine, and convert the planes as libjpeg and Pillow do.

Modules, in reading order:

- nvjpeg: ctypes bindings. files: encoded files. engine: a GPU's JPEG engine and its threads.
- geometry: memory layout of planes, and parameters of the kernels. kernels: Triton kernels that convert and compare
  images. program: a plan's steps as calls of these kernels.
- verified: an engine that compares its pixels with Pillow's for each file. engines: the engine of each GPU.

data/verdicts stores the results of the comparisons.
"""
