"""What a callable of the user's does, where all that it does is apply known transforms.

    class TwoCrops:                               look_through(TwoCrops(weak), known) gives
        def __call__(self, image):                    Seen(structure=[0, 1],
            return [self.weak(image),                      paths=((0,), (1,)),
                    self.weak(image)]                      transforms=(weak, weak))

Its code is run, not read. It gets a placeholder in the image's place, and stand-ins in the place of everything that it
refers to. A stand-in of a known transform notes that it is applied. Any other use that could matter ends the attempt
with Refused, before anything has happened: a random number, a clock, a file, the image's size. So a callable is either
understood or called as it is. Nothing of the user's is changed, and nothing is patched.

The modules, in the order to read them:

- seen: look_through() asks twice and compares; what it gives, and the chains that become of it
- sandbox: which stand-in for which object
- standins: what each stand-in does when the user's code uses it
- untouchable: the one that refuses everything
- objects: what an object or class is, found without running code of the user's
- bytecode: what a function's code may do, found without running it
"""

from .seen import Seen, Unseen, chains_of, look_through

__all__ = ["Seen", "Unseen", "chains_of", "look_through"]
