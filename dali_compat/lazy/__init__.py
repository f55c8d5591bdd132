"""What a data set of the user's does with the images that it opens, seen while its own code runs.

``dataset[i]`` is called as torch calls it. Meanwhile, in that thread alone, ``PIL.Image.open`` gives an image that
knows its file and has not read it, and a transform that has a translation gives a tensor that knows the transform and
has not been computed. Both are what their classes say, and become real as soon as somebody looks at them: the user's
code gets torchvision's own values then, and the sample is torch's. A sample that still holds such a tensor, and nobody
else does, says which file and which transforms it is made of: DALI makes it, with the others of its batch.

The modules, in the order to read them:

- later: what is not made yet, and how it would be.
- images, tensors: the stand-ins. chains: the transforms that one has gone through, and whether they have a translation.
- hooks: what the user's code meets in their place while it is asked.
- samples: what came back. asker: asks a data set. verdict: whether one can be asked, found with one sample; twin: of
  a copy; reach: of one whose code opens images; left_open: what that sample has opened.
"""
