"""Find out which known transforms a user's callable applies, without running it on real data.

    class TwoCrops:
        def __call__(self, image):
            return [self.weak(image), self.strong(image)]

    find_transforms(TwoCrops(), known)
    # AppliedTransforms(structure=[0, 1], paths=((0,), (1,)), transforms=(weak, strong))

The callable is called with a placeholder for the image and with stand-ins for all other objects that it refers to. The
stand-in of a known transform records each application. Everything else that could affect the result (a random number, a
clock, a file, the image's size) ends the attempt with Refused, before it has any effect. So a callable is either fully
understood, or called unchanged for each sample. No object of the user is changed, nothing is patched, and other threads
are not affected.

The modules, in reading order:

- sandbox: chooses the stand-in for each object. find_transforms() calls a callable twice and compares the results.
- standins: the behavior of each stand-in. The Untouchable refuses everything.
- objects: inspection of objects, classes and code without running them.
- replaced: detection of replaced functions of torchvision, timm or Pillow.
- untranslatable: the error for a transform without a translation.
"""

from .sandbox import AppliedTransforms, NotUnderstood, find_transforms

__all__ = ["AppliedTransforms", "NotUnderstood", "find_transforms"]
