"""JPEGs from a GPU's JPEG engine: planes of luma and chroma, and kernels that convert them as libjpeg and Pillow do.

Modules, in the order to read them:

- nvjpeg: the library, by ctypes. files: the encoded files. engine: a GPU's engine, the threads that feed it, and planes
  in progress.
- geometry: locations of planes, and each image's parameters for the kernels. kernels: planes to images in Triton, and
  comparison of images. program: a plan's steps by these kernels.
- verified: an engine whose pixels are compared with Pillow's file by file. engines: the engine of each GPU.

epoch/planes_group uses them. data/verdicts stores the results of the comparisons.
"""
