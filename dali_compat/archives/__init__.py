"""Images in archives: RecordIO, TFRecord, LMDB and tar files as map-style data sets.

A scan of each file, done once and cached, gives a table of where every image lies and what its target is (index.py).
From then on a data set (archive.py) reads images by position (files.py), whatever the format.
"""
