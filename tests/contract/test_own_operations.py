"""What the code of a data set does to an image and leaves to DALI: it gets what torch's loader gives."""

import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F

from contract.both import ours, stock
from contract.test_joint import unlike
from contract.test_own_datasets import real, seeded

SMALL, TENSOR = T.Resize((32, 40)), T.Compose([T.Resize((32, 40)), T.ToTensor()])
MEAN, STD = (torch.tensor(three).view(3, 1, 1) for three in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))

# ---- of tensors

OF_TENSORS = {
    "divided": lambda x: F.pil_to_tensor(SMALL(x)) / 255,
    "divided as floats": lambda x: F.pil_to_tensor(SMALL(x)).float().div(255),
    "divided by another number": lambda x: F.pil_to_tensor(SMALL(x)) / 127.5 - 1,
    "of two signs": lambda x: TENSOR(x) * 2 - 1,
    "normalised by hand": lambda x: TENSOR(x).sub(MEAN).div(STD),
    "normalised by operators": lambda x: (TENSOR(x) - MEAN) / STD,
    "all of them": lambda x: 1 - torch.mul(0.5 * TENSOR(x) + 0.1, 3).add(-0.2),
    "some of them": lambda x: TENSOR(x) * 2.5 if torch.rand(1) < 0.5 else TENSOR(x) * 0.5 - MEAN,
    "drawn": lambda x: TENSOR(x) * float(torch.rand(1)) + float(torch.rand(1)),
    "halves": lambda x: TENSOR(x).half(),
    "bfloat16": lambda x: TENSOR(x).bfloat16(),
    "doubles": lambda x: TENSOR(x).double() * 0.1,
    "flipped": lambda x: TENSOR(x).flip(-1),
    "flipped twice": lambda x: torch.flip(TENSOR(x), (1, 2)) if torch.rand(1) < 0.5 else TENSOR(x).flip([-2]),
    "BGR": lambda x: TENSOR(x)[[2, 1, 0]],
    "BGR by flipping": lambda x: TENSOR(x).flip(0),
    "a window": lambda x: F.to_tensor(x)[:, 5:35, 7:40],
    "a window at random": lambda x: F.to_tensor(x)[..., int(torch.randint(0, 20, ())) :, 3:][:, :30, :30],
    "three channels": lambda x: TENSOR(x)[:3].cpu().contiguous(),
    "of tv_tensors": lambda x: tv_tensors.Image(SMALL(x)).flip(-1)[:, 2:30] / 255,
    "plain of tv_tensors": lambda x: tv_tensors.Image(SMALL(x)).contiguous(),
}


class Own(data.Dataset):
    def __init__(self, root, change):
        self.paths, self.change = [path for path, _ in ImageFolder(root).samples], change

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.change(Image.open(self.paths[i]).convert("RGB")), i


def assert_deferred(root, change, near=0.02, kind=Own):
    """To the last bit with exact=True, and near by default; DALI makes each sample's image."""
    theirs = seeded(kind(root, change), 3, shuffle=True, collate_fn=list)(stock)
    for exact in (True, False):
        loaders = []

        def make(*args, exact=exact, loaders=loaders, **kwargs):
            loaders.append(ours(*args, exact=exact, device="cpu", **kwargs))
            return loaders[-1]

        mine = seeded(kind(root, change), 3, shuffle=True, collate_fn=list)(make)
        wrong = unlike(mine, theirs)
        if exact:
            assert not wrong, wrong[:3]
        assert all(float(text.rpartition(": ")[2]) <= near for text in wrong), wrong[:3]
        assert real(loaders[0]) == 0, loaders[0]._route.asker.why


@pytest.mark.parametrize("name", OF_TENSORS)
def test_tensors(own_root, name):
    assert_deferred(own_root, OF_TENSORS[name])
