"""One epoch, from the sampler's indices to batches.

Modules, in the order to read them:

- iterator: draws indices from torch's sampler, keeps a few batches in flight and returns them in order.
- epoch: state shared by the batches of one epoch. batch: the base class of a batch.
- prefetch_thread: prepares batches ahead. dali_batch: a batch on the DALI route, which uses:
  - rows: files, headers and random numbers of a batch's images (rows). decodable: the base class of rows.
  - part: decodes rows that share a plan, in groups.
  - decode: groups decoded by DALI or Pillow. planes_group: groups decoded by a GPU's JPEG engine.
  - collate: default_collate or a custom collate_fn, on the device.
- traced, traced_batch: custom data sets, read by torch's own loader, with images decoded by DALI.
- resident, chunk: the route for arrays on the device. A chunk is several batches computed together.
- fallback: torch's own loader, followed by a copy to the device.
- on_error: handling of samples that cannot be read.
- history, progress, traits: state_dict() and load_state_dict(). samplers: samplers and random generators.
- stats, preview: stats() and preview() of a loader.
"""
