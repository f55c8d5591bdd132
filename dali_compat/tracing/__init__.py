"""Custom data sets: their code runs unchanged in torch's own loader, on images and tensors whose pixels are deferred.

The modules, in reading order:

- nodes: a Node is a deferred image or tensor, stored as a file and the operations on it. tracing() switches tracing on
  for a thread.
- operations: the known state of a deferred image (size, mode, dtype), and the result and step of an operation.
  geometry, color, convert: the operations. calls: recorded calls, applied later to the real image.
- images: real Pillow images whose core is a Node. tensors: a torch.Tensor subclass whose data is a Node. decoders: the
  decoders of torchvision.io and torchcodec. patches: the list of replaced functions of Pillow, torchvision and torch.
- sources: encoded files, and the table of their facts, which worker processes share.
- plans: the split of a node's steps into a DALI pipeline and steps that torch runs afterwards.
- columns: a batch as arrays of numbers. worker: the wrapped ``collate_fn`` and ``worker_init_fn``, and the samples'
  seeds.
- trial: loads a few samples both ways in a forked child (child) before a data set is traced. static_checks: reasons
  to refuse a data set without running it.

epoch/traced.py and epoch/traced_batch.py compute the images of a traced batch.
"""
