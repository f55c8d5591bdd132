"""Finds what a user's callable does without running it for real, where all that it does is apply known transforms.

    class TwoCrops:
        def __call__(self, image):
            return [self.weak(image), self.strong(image)]

    look_through(TwoCrops(), known)  # Seen(structure=[0, 1], paths=((0,), (1,)), transforms=(weak, strong))

The callable is called: with a placeholder for the image, and with stand-ins for everything else that it refers to. The
stand-in of a known transform notes that it is applied. Whatever could matter besides (a random number, a clock, a file,
the image's size) ends the attempt with Refused, before anything has happened. So a callable is either understood or
called as it is. Nothing of the user's changes, nothing is patched, and other threads see nothing of it.

The modules, in the order to read them:

- sandbox: which stand-in for which object. look_through() tries twice and compares; Seen is what it gives.
- standins: what each stand-in does when the user's code uses it. The Untouchable refuses everything.
- objects: what an object, a class or a function's code is, found without running it.
- replaced: code of torchvision's, timm's or Pillow's that somebody has replaced.
- untranslatable: why a transform has no translation.
"""

from .sandbox import Seen, Unseen, look_through

__all__ = ["Seen", "Unseen", "look_through"]
