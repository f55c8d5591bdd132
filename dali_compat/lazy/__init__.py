"""Traces what a user's data set does with the images that it opens, while its own code runs.

``dataset[index]`` is called as torch calls it: all code runs as it would there, torchvision's transforms and what they
draw included. Only pixels are put off. In that thread ``PIL.Image.open`` gives a stand-in: an image that knows its
file, size and mode, and has not read it. An operation on it gives another stand-in, which knows what was done, with
which numbers: torchvision computes all geometry from sizes alone, and boxes, points and labels go along as ever. A
sample that comes back with stand-ins says what its images are made of, and they are made for the whole batch.

What makes a stand-in real: PIL opens the file, and torchvision's own code does what was done to it, in the caller's
thread. From then on the stand-in passes everything on to that.

- Somebody looks at it: any attribute, method, operator or function, in Python or in C++, of which it is not known what
  it gives without pixels.
- Somebody may look at it later: when the sample comes back, more references to it are left than the sample's own.
- The file was written just now, or its header does not say enough.

Why that is right:

- What the user's code looks at is made by PIL and torchvision, at that moment.
- What it has not looked at cannot have changed what it did. It saw the sizes and types that the real image has, by
  torchvision's own arithmetic.
- Random numbers are torchvision's own, drawn from the generators that it always draws from, in its order.
- Kernels do what was done to an image, with its numbers, as close to torchvision as for any other data set
  (docs/transforms.md). Where no kernel is known to, torchvision's own functions do it once more, in threads: to masks,
  for example.
- A number is for an image of one size. If another image has come to its place, or making it fails, the sample is asked
  for once more, and the data set's own code makes it.
- A doubt makes the stand-in real. The sample is then the one that torch's loader gives, only slower.

The modules, in the order to read them:

- operations: what is known of an image, and of what an operation gives. geometry, color, convert: the operations.
- record: what was done to an image, and the same once more. deferred: what is not made yet, and becoming real.
- images, tensors: the stand-ins. kernels: torchvision's functions on them. tracer, decoders: make those of files.
  hooks: all of these in the place of PIL's and torchvision's functions. iou_crop: one of torchvision's draws, quicker.
- recipes: an order of steps in which more images are alike, and which images go through one pipeline.
- samples: what came back, and which stand-ins are left in it. asker: asks a data set; workers: in processes.
- verdict: whether a data set can be asked, found with a few samples. trial: a process for these. static_checks: what
  the data set's code says.
"""
