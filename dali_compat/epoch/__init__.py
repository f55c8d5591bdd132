"""One epoch, from the sampler's indices to batches.

Modules, in the order to read them:

- iterator: next(). Draws indices from torch's sampler, keeps a few batches in flight and returns them in order.
- epoch: state shared by the batches of one epoch. batch: the base class of a batch. Neither depends on a route.
- prefetch_thread: the thread that prepares batches ahead. dali_batch: a batch on the DALI route. Its stages use:
  - rows: locations of the images, their file headers and their random parameters. decodable: the base class of rows,
    and the rows of a traced batch.
  - part: the rows of a batch that share a plan. They are decoded in groups.
  - decode: groups decoded by DALI or Pillow. planes_group: groups decoded by a GPU's JPEG engine.
  - collate: default_collate or a custom collate_fn, on the device.
- traced, traced_batch: custom data sets, which torch's own loader reads and whose images DALI decodes and transforms.
- resident, chunk: the route for arrays on the device. A chunk is several batches computed together.
- fallback: torch's own loader, followed by a copy to the device.
- on_error: handling of samples that cannot be read, and their substitutes.
- history, progress, traits: state_dict() and load_state_dict(). samplers: torch's samplers, and the random generators
  of an epoch.
- stats: stats(). preview: preview().
"""
