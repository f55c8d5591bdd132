"""Data sets: the location and the target of each sample. Nothing here decodes an image.

In reading order:

- sources: the encoded bytes of a sample, a path or a record of a store. readers: how each data set of files is read.
- base_datasets: the data sets that a Subset or a ConcatDataset consists of, sample i of it, and its typical files.
- table, lookup: the samples of a whole batch at once, in arrays.
- header, headers: an image's size before it is decoded, and its decoder. intact, intact_jpeg: whether all decoders read
  its bytes in the same way. verdicts: which JPEGs a GPU's engine may decode. prefetch: processes that read headers
  ahead.
- Data sets of this package: folder, image_table (with label_columns), hugging_face, arrays. Data sets of other
  packages: torchvision_sets, timm.
"""
