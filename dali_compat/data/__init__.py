"""Data sets, and the file and target of each of their samples.

In reading order:

- sources: encoded images in files or stores.
- readers: paths and targets of the supported classes.
- base_datasets: data sets inside a Subset or ConcatDataset, and their samples.
- lookup: paths and targets of a whole batch.
- header, headers: size and decoder of an image.
- intact, intact_jpeg: whether all decoders read a file in the same way.
- verdicts: which JPEGs a GPU's JPEG engine may decode.
- prefetch: processes that read headers ahead.
- folder, image_table, label_columns, hugging_face, arrays: data sets of this package.
- torchvision_sets, timm: data sets of other packages.
"""
