"""One epoch, from the sampler's indices to batches.

Modules, in the order to read them:

- iterator: next(). Draws indices from torch's sampler, keeps a few batches in flight and returns them in order.
- epoch: state shared by the batches of one epoch. batch: the base class of a batch, from its indices to the result of
  collate_fn. Neither depends on a route.
- prefetch_thread: the thread that prepares batches ahead. dali_batch: a batch on the DALI route. Its stages, in order:
  - rows: locations of the images, their file headers, and their random parameters. decodable: their base class, and
    the rows of a traced batch.
  - part: rows that share a plan. They are decoded in groups.
  - decode: groups decoded by DALI or Pillow. planes_group: groups decoded by a GPU's JPEG engine. A group is submitted,
    and returns images and the errors of rows that failed.
  - collate: default_collate, or a custom collate_fn, on a GPU.
- traced, traced_batch: a custom data set, read by torch's own loader; DALI decodes and transforms its images.
- resident, chunk: the route for arrays on the device. A chunk is several batches computed together.
- fallback: torch's own loader, followed by a copy to the device.
- on_error: handling of samples that cannot be read, and their substitutes.
- history, progress, traits: state_dict() and load_state_dict(). samplers: torch's samplers and the generators that an
  epoch draws from.
- stats: stats(). preview: preview().
"""
