"""What a data set of the user's does with the images that it opens, seen while its own code runs.

``dataset[i]`` is called as torch calls it. Meanwhile, in that thread alone, ``PIL.Image.open`` gives a stand-in: an
image that knows its file and has not read it. A transform that has a translation gives a stand-in, too: a tensor that
knows its image and the transform, and has not been computed. A sample that comes back with such tensors says which
files and which transforms its images are made of. DALI then makes them, with the others of the batch.

What makes a stand-in real: PIL opens the file, and torchvision's own code computes what came after, in the caller's
thread. From then on the stand-in passes everything on to that.

- Somebody looks at it: any attribute, method, operator or function, in Python or in C++, but for those that only lead
  to another stand-in: ``convert()`` to RGB or L, ``resize()``, a flip, ``copy()``, ``with``, and a transform with a
  translation, or the function that does the same; and for those that the file's header answers.
- Somebody may look at it later: when the sample comes back, more references to it are left than the sample's own.
- DALI could not give the same: a file that was written just now, an image that may not be in RGB, a transform whose
  settings do not say all that it does, or random ones where the user's code has set a generator.

Why that is right:

- What the user's code looks at is made by PIL and torchvision, at that moment.
- What it has not looked at cannot have changed what it did. DALI makes the same of the same file and transforms, as
  close to torchvision as for any other data set (docs/transforms.md).
- A random transform draws once for a stand-in: what it is made of becomes real with it, and what was made of it. It
  draws from where the generators were when it was called.
  Several images of a sample draw numbers of their own, but for the transforms that they have gone through together.
- A doubt makes the stand-in real. The sample is then the one that torch's loader gives, only slower, and explain() says
  what was in the way.

The modules, in the order to read them:

- later: what is not made yet, how it would be, and becoming real. generators: whether somebody has set one.
- images, tensors: the stand-ins. chains: the transforms that one has gone through, and whether they have a translation.
- tracer: makes the stand-ins. hooks: puts it in the place of PIL's and torchvision's functions.
- samples: what came back, and which stand-ins are left in it. asker: asks a data set; workers: in processes.
- verdict: whether a data set can be asked, found with a few samples. trial: a process for these. reading: what the data
  set's code says; reach: what that calls.
"""
