"""JPEGs from a GPU's engine: planes of luma and chroma, and kernels that make of them what libjpeg and Pillow do."""
