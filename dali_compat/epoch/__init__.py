"""One epoch: the sampler's indices become batches.

In the order to read them:

- iterator: next(). It draws indices from torch's sampler, keeps a few batches under way, and gives them in order.
- epoch: what the batches of one epoch share. batch: one batch, from its indices to what collate_fn gives. part: the
  rows of a batch that share a plan. These three know no route; each route has subclasses of them.
- dali_iterator, dali_epoch, dali_batch, dali_part: the DALI route. A group is the rows of a part that one decoder
  decodes: DALI (dali_group), Pillow (pil_group), or a GPU's JPEG engine (planes_group). dali_owner: what a batch is to
  its parts and groups. file_batch: where a batch's samples are. batch_headers: what is known of their files. aside: the
  thread that works ahead. early: what it has made of a batch.
- resident, chunk: the route of arrays on the device. A chunk is several batches, computed together.
- stock: torch's own loader, followed by a copy to the device.
- on_error: what becomes of a sample that cannot be read. substitute: the sample in its place.
- collate: a collate_fn of the user's, on a GPU.
- history, progress, traits, generators: state_dict() and load_state_dict(). lightning: where a Trainer is meanwhile.
- stats: stats(). samplers: what is known of torch's samplers.
"""
