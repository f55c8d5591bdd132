"""Object storage: S3, Google Cloud Storage, Azure and web servers through obstore, and the Hugging Face Hub.

- urls: the URLs of objects.
- client: requests to a bucket.
- disk_cache: fetched objects on a local disk.
- objects: the images of a data set, and the contents of folders in a bucket.
- fetcher: fetches objects ahead of the batches that need them.
- event_loop: the thread that runs all requests.
"""
