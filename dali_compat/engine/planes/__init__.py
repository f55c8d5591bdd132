"""JPEGs from a GPU's engine: planes of luma and chroma, and kernels that make of them what libjpeg and Pillow do.

In the order to read them:

- nvjpeg: the library, with ctypes. files: what is decoded. engine: a GPU's engine, the threads that feed it, and planes
  that are being made.
- geometry: where planes lie, and what the kernels have to know of each image. kernels: planes to images,
  in Triton; whether images are others than they should be. program: a plan's steps by these kernels.
- verified: an engine that has to show of each file that its pixels are Pillow's. engines: which one a GPU has.

epoch/planes_group uses them; data/verdicts keeps what an engine has shown.
"""
