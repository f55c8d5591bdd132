"""Data sets, and the file and target of each of their samples.

In reading order:

- sources: an encoded image, in a file or in a store such as an archive.
- readers: how to read the paths and targets of each supported class of data sets.
- base_datasets: the data sets inside a Subset or ConcatDataset, and their samples.
- table, lookup: the paths and targets of a whole batch.
- header, headers: the size of an image before it is decoded, and its decoder.
- intact, intact_jpeg: check that all decoders read a file in the same way.
- verdicts: which JPEGs a GPU's JPEG engine may decode.
- prefetch: processes that read headers ahead of the batches.
- folder, image_table, label_columns, hugging_face, arrays: the data sets of this package.
- torchvision_sets, timm: the supported data sets of other packages.
"""
