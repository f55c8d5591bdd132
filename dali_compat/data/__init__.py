"""Data sets: where sample i is, and its target. Nothing here decodes an image.

In the order to read them:

- sources: the encoded bytes of a sample: a path, or a record of a store. readers: how each data set of files is read.
- base_datasets: the data sets that a Subset or a ConcatDataset is made of, sample i of it, and what most files are.
- table, lookup: the samples of a whole batch at once, in arrays.
- header, headers: an image's size before it is decoded, and who decodes it. intact, intact_jpeg: whether all decoders
  read its bytes alike. verdicts: which JPEGs a GPU's engine may decode. prefetch: processes that look ahead.
- Our data sets: folder, image_table (with label_columns), hugging_face, arrays. Those of others:
  torchvision_sets, timm.
"""
