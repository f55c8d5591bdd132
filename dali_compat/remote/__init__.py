"""Object storage: S3, Google Cloud Storage, Azure and web servers, read with obstore.

``client`` gets what ``urls`` name; ``objects`` is what a data set has of it, and lists a folder in a bucket;
``fetcher`` gets objects ahead of the batches that need them. All requests run in one thread (``event_loop``), many at a
time; a forked process has another process for them.
"""
