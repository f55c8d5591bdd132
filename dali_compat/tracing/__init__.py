"""Tracing of custom data sets.

The code of a data set runs unchanged in torch's own loader, but its images and tensors are deferred: their pixels are
not computed yet.

The modules, in reading order:

- nodes: a Node is a deferred image or tensor, stored as a file and the operations on it. tracing() switches tracing on
  in a thread.
- operations: a State is the size, mode and dtype of a deferred image. An Outcome is the State after an operation, and
  the steps that compute it. geometry, color, convert: outcomes of the operations. calls: recorded calls.
- images: Pillow's images with a Node in place of the core. tensors: a torch.Tensor subclass without data. cells: the
  storage of such a tensor, with its Node or the tensors that were stacked or viewed. decoders: the decoders of
  torchvision.io and torchcodec. patches: the list of replaced functions of Pillow, torchvision and torch.
- sources: encoded files, and the table of their headers, which worker processes share.
- plans: the split of a node's steps into a head, which becomes a DALI pipeline, and a tail, which torch runs.
- columns: a batch as arrays of numbers. hidden: tensors in objects that columns does not search. worker: wrappers of
  ``collate_fn`` and ``worker_init_fn``, and the seeds of samples.
- trial: loads a few samples with and without tracing, in forked processes (child), before a data set is traced.
  static_checks: checks of a data set's code, without running it.

epoch/traced.py and epoch/traced_batch.py compute the images of a traced batch.
"""
