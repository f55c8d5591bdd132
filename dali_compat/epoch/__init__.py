"""One epoch: the sampler's indices become batches.

In the order to read them:

- iterator: next(). It draws indices from torch's sampler, keeps a few batches under way, and gives them in order.
- epoch: state that the batches of one epoch share. batch: one batch, from its indices to what collate_fn gives. These
  two know no route.
- prefetch_thread: the thread that works ahead. dali_batch: a batch on the DALI route, with its stages in their order:
  - rows: where its images are, what is known of their files, and what is drawn for them.
  - part: the rows that share a plan. They are decoded in groups, and go through functions without a translation.
  - decode: groups of rows that DALI or Pillow decodes. planes_group: those of a GPU's JPEG engine. A group is
    submitted, and gives images, and the errors of rows that cannot be made.
  - collate: default_collate, or a collate_fn of the user's, on a GPU.
- traced, traced_batch: a custom data set, which torch's own loader reads and DALI makes the images of.
- resident, chunk: the route of arrays on the device. A chunk is several batches, computed together.
- fallback: torch's own loader, followed by a copy to the device.
- on_error: what becomes of a sample that cannot be read, and the sample in its place.
- history, progress, traits: state_dict() and load_state_dict(). samplers: torch's samplers, and the generators that an
  epoch draws from.
- stats: stats(). preview: preview().
"""
