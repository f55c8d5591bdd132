"""Custom data sets: their code runs unchanged in torch's own loader, on images and tensors whose pixels are deferred.

In the order to read them:

- nodes: a deferred image or tensor is a Node: a file, and the operations on it. tracing() switches tracing on for a
  thread.
- operations: the known state of a deferred image (size, mode, dtype), and the result and step of an operation.
  geometry, color, convert: the operations. calls: calls that are recorded, and made later on the real image.
- images: real Pillow images whose core is a Node. tensors: a torch.Tensor subclass whose data is a Node. decoders:
  torchvision.io's and torchcodec's. patches: the list of replaced functions
  of Pillow, torchvision and torch.
- sources: encoded files, and the table of their facts, which worker processes share.
- plans: which steps of a node DALI's pipeline takes, and which torch does afterwards.
- columns: a batch as arrays of numbers. worker: the wrapped ``collate_fn`` and ``worker_init_fn``, and seeds of
  samples.
- trial: loads a few samples both ways in a forked child (child), before a data set is traced. static_checks: reasons
  to refuse a data set without running it.

epoch/traced.py and epoch/traced_batch.py make the images of such a batch.
"""
