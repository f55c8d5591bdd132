"""Programs that once gave other data than with torch's loader, or crashed, each written like a user's program.

All have the imports of HEADER.
"""

HEADER = """
import functools
import random

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms import v2


class Files(Dataset):
    def __init__(self, paths, masks):
        self.paths, self.masks = paths, masks

    def __len__(self):
        return len(self.paths)

    def rgb(self, i):
        return Image.open(self.paths[i]).convert("RGB")
"""

CASES = {
    "more sizes than each worker has, and a count": """
class Turn:
    count = 0

    def next(self):
        self.count += 1
        return self.count


class Own(Files):
    turn = Turn()

    def __getitem__(self, i):
        count = self.turn.next()
        return count, [T.ToTensor()(F.resize(self.rgb(i), (30 + 2 * i + more, 40))) for more in range(2)]
""",
    "a converted image and its tensor": """
class Own(Files):
    def __getitem__(self, i):
        image = self.rgb(i)
        return F.to_tensor(image), image
""",
    "a state before two transforms": """
class Own(Files):
    flip, crop = T.RandomHorizontalFlip(), T.RandomCrop(30, pad_if_needed=True)

    def __getitem__(self, i):
        state = torch.default_generator.get_state()
        a = self.crop(self.flip(self.rgb(i)))
        torch.Generator.set_state(torch.default_generator, state)
        return T.ToTensor()(a), T.ToTensor()(self.crop(self.flip(self.rgb(i))))
""",
    "a state before two transforms and a number": """
class Own(Files):
    flip, crop = T.RandomHorizontalFlip(), T.RandomCrop(30, pad_if_needed=True)

    def changed(self, image):
        image = self.flip(image)
        return T.ToTensor()(self.crop(F.rotate(image, 40 * float(torch.rand(1)))))

    def __getitem__(self, i):
        state = torch.get_rng_state()
        a = self.changed(self.rgb(i))
        torch.set_rng_state(state)
        return a, self.changed(self.rgb(i))
""",
    "a state before two transforms, of few samples": """
class Own(Files):
    flip, crop = T.RandomHorizontalFlip(), T.RandomCrop(30, pad_if_needed=True)

    def __getitem__(self, i):
        state = torch.get_rng_state()
        a = self.crop(self.flip(self.rgb(i)))
        if i in (4, 5, 8):
            torch.set_rng_state(state)
        b = self.crop(self.flip(self.rgb(i)))
        return (T.ToTensor()(a), T.ToTensor()(b)) if i not in (4, 5, 8) else ((a == b) or T.ToTensor()(a), i)
""",
    # windows after a varying size
    "half of a flipped image": """
class Own(Files):
    def __getitem__(self, i):
        m = F.hflip(self.rgb(i))
        m = m.resize((m.width // 2, m.height // 2))
        return T.ToTensor()(m.crop((4, 3, 26, 24)))
""",
    "half of a transposed image": """
class Own(Files):
    def __getitem__(self, i):
        image = self.rgb(i).transpose(0)
        width, height = image.size
        small = image.resize((width // 2, height // 2), Image.BILINEAR)
        return F.to_tensor(small.crop((5, 5, 25, 25))), i
""",
    "half of an image that a transform has flipped": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.flip = v2.RandomHorizontalFlip(1.0)

    def __getitem__(self, i):
        image = self.flip(self.rgb(i))
        image = image.resize((image.width // 2, image.height // 2))
        return dict(image=T.ToTensor()(image.crop((1, 2, 21, 22))), label=i % 3)
""",
    "half of a turned image": """
class Own(Files):
    def __getitem__(self, i):
        image = T.RandomRotation((i, i))(self.rgb(i))
        image = image.resize((image.width // 2, image.height // 2))
        return T.ToTensor()(image.crop((2, 2, 22, 22)))
""",
    "fractions of fractions": """
class Own(Files):
    def __getitem__(self, i):
        m = self.rgb(i)
        w, h = m.size
        m = m.crop((w // 8, h // 8, w * 7 // 8, h * 7 // 8))
        m = F.pad(m, [4, 1], 0, "edge")
        m = m.resize((m.width // 2, m.height // 2))
        return T.ToTensor()(m.crop((2, 3, 20, 20)))
""",
    "fractions of fractions, reflected": """
class Own(Files):
    def __getitem__(self, i):
        m = self.rgb(i)
        m = m.crop((int(.1 * m.width), int(.1 * m.height), int(.9 * m.width), int(.9 * m.height)))
        m = F.pad(m, (4, 1), padding_mode="reflect")
        m = m.resize((m.width // 2, m.height // 2))
        return T.PILToTensor()(m.crop((2, 3, 20, 20)))
""",
    # image and mask
    "torch's state by imported names": """
from torch import get_rng_state, set_rng_state

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.t = T.Compose([T.RandomCrop(40), T.RandomHorizontalFlip(), T.ToTensor()])

    def __getitem__(self, i):
        image, mask = Image.open(self.masks[i]).convert("RGB"), Image.open(self.masks[i]).convert("RGB")
        state = get_rng_state()
        image = self.t(image)
        set_rng_state(state)
        return image, self.t(mask)
""",
    "the state of the default generator": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.t = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __getitem__(self, i):
        state = torch.default_generator.get_state()
        image = self.t(Image.open(self.masks[i]).convert("RGB"))
        torch.default_generator.set_state(state)
        return image, self.t(Image.open(self.masks[i]).convert("RGB"))
""",
    "a seed by an imported name": """
from torch import manual_seed

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.t = T.Compose([T.RandomCrop(40), T.ToTensor()])

    def __getitem__(self, i):
        seed = random.randrange(2 ** 31)
        manual_seed(seed)
        image = self.t(Image.open(self.masks[i]).convert("RGB"))
        manual_seed(seed)
        return image, self.t(Image.open(self.masks[i]).convert("RGB"))
""",
    "the seed that is in use": """
from torch import manual_seed

class Own(Files):
    def __getitem__(self, i):
        crop = T.RandomCrop(40)
        manual_seed(torch.initial_seed())
        image = crop(Image.open(self.masks[i]).convert("RGB"))
        manual_seed(torch.initial_seed())
        mask = crop(Image.open(self.masks[i]).convert("L").convert("RGB"))
        return T.ToTensor()(image), T.ToTensor()(mask)
""",
    "a state before what the program draws itself": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.first = T.Compose([lambda image: image.point(lambda value: value), T.RandomCrop(40), T.ToTensor()])
        self.t = T.Compose([T.RandomCrop(40), T.ToTensor()])

    def __getitem__(self, i):
        with torch.random.fork_rng(devices=[]):
            image = self.first(Image.open(self.masks[i]).convert("RGB"))
        return image, self.t(Image.open(self.masks[i]).convert("RGB"))
""",
    # settings that vary between samples
    "an angle for each image": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths * 6, masks)

    def __getitem__(self, i):
        angle = float(i * 5 % 360)
        t = T.Compose([T.RandomRotation((angle, angle)), T.Resize((24, 24)), T.ToTensor()])
        return t(self.rgb(i)), i
""",
    "a square by the image's own size": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths * 4, masks)

    def __getitem__(self, i):
        m = self.rgb(i)
        m = m.crop((0, 0, m.width - i % 30, m.height))
        side = max(m.size)
        m = T.Pad(((side - m.width) // 2, (side - m.height) // 2))(m)
        return T.ToTensor()(T.CenterCrop(min(m.size))(m).resize((24, 24)))
""",
    # side effects of one trial sample
    "filtered by the index": """
class Own(Files):
    def __getitem__(self, i):
        m = self.rgb(i)
        if i % 3:
            m = m.filter(ImageFilter.GaussianBlur(1))
        return T.ToTensor()(m), i
""",
    "filtered by chance": """
class Own(Files):
    def __getitem__(self, i):
        m = self.rgb(i)
        if random.random() < .5:
            m = m.filter(ImageFilter.GaussianBlur(1))
        return T.ToTensor()(m), i
""",
    "a class counts": """
class Alternate:
    count = 0

    def __call__(self, image):
        Alternate.count += 1
        return F.hflip(image) if Alternate.count % 2 else image

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.alternate = Alternate()

    def __getitem__(self, i):
        return T.ToTensor()(self.alternate(self.rgb(i))), Alternate.count
""",
    "a tensor counts": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.count = torch.zeros(1, dtype=torch.int64)

    def __getitem__(self, i):
        self.count += 1
        m = self.rgb(i)
        return T.ToTensor()(F.vflip(m) if self.count % 2 else m), int(self.count)
""",
    "slots count": """
class Turn:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.turn = Turn()

    def __getitem__(self, i):
        turn = self.turn.next()
        m = self.rgb(i)
        return T.ToTensor()(m.transpose(0) if turn % 2 else m), turn
""",
    "a closure counts": """
def counter():
    count = 0

    def turn():
        nonlocal count
        count += 1
        return count

    return turn

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.turn = counter()

    def __getitem__(self, i):
        turn, m = self.turn(), self.rgb(i)
        return T.ToTensor()(m.transpose(1) if turn % 2 else m), turn
""",
    "a partial counts": """
def grown(kept):
    kept.append(1)
    return len(kept)

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.turn = functools.partial(grown, [])

    def __getitem__(self, i):
        return T.ToTensor()(self.rgb(i)), self.turn()
""",
    "a module counts": """
_seen = []

def seen(i):
    _seen.append(i)
    return len(_seen)

class Own(Files):
    def __getitem__(self, i):
        m = self.rgb(i)
        return T.ToTensor()(m.transpose(0) if seen(i) % 2 else m), len(_seen)
""",
    # errors that the program catches
    "bad files are counted": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.paths[2] = self.paths[7] = paths[0] + " is not there"
        self.bad = 0

    def __getitem__(self, i):
        try:
            image = self.rgb(i)
        except OSError:
            self.bad += 1
            return self[0]
        return T.ToTensor()(image), self.bad
""",
    "files that are no images are counted": """
from pathlib import Path

class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths, masks)
        self.paths[3] = str(Path(paths[0]).with_name("broken.jpg"))
        self.bad = []

    def __getitem__(self, i):
        try:
            image = Image.open(self.paths[i]).convert("RGB")
        except (OSError, ValueError) as error:
            self.bad.append(type(error).__name__)
            image = Image.new("RGB", (40, 40))
        return T.ToTensor()(image), len(self.bad)
""",
    "sizes by the index, from some on": """
class Own(Files):
    def __init__(self, paths, masks):
        super().__init__(paths * 4, masks)

    def __getitem__(self, i):
        return T.ToTensor()(self.rgb(i).resize((40 + max(0, i - 9), 40))), i
""",
}
