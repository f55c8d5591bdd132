"""Object storage (S3, Google Cloud Storage, Azure and web servers), read with obstore.

``client`` fetches the objects that ``urls`` name. ``objects`` holds a data set's objects, and lists a folder in a
bucket. ``fetcher`` fetches objects ahead of the batches that need them. All requests run concurrently in one thread
(``event_loop``); a forked process delegates them to another process.
"""
