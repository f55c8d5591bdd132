"""Whatever a data set's own code does with an image, it gets what it gets in torch's loader, to the last bit."""

import pytest
from torch.utils import data
from torchvision.datasets import ImageFolder

from contract.both import stock
from contract.own_handlings import HANDLINGS
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader

CACHED = "an image that the data set keeps"


class Own(data.Dataset):
    def __init__(self, root, handling):
        self.paths = [path for path, _ in ImageFolder(root).samples]
        self.handling, self.calls, self.kept = handling, 0, {}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        self.calls += 1
        if self.handling == CACHED:
            if i % 3 not in self.kept:
                self.kept[i % 3] = HANDLINGS["shaped"](self.paths, i % 3)
            return self.kept[i % 3], self.calls
        return HANDLINGS[self.handling](self.paths, i), self.calls


def ours(dataset, *args, **kwargs):
    return DataLoader(dataset, *args, exact=True, device="cpu", fallback="silent", **kwargs)


@pytest.mark.parametrize("name", [*HANDLINGS, CACHED])
def test_it_gets_what_torchs_loader_gives(own_root, name):
    theirs = seeded(Own(own_root, name), 3, shuffle=True, collate_fn=list)(stock)
    assert_same(seeded(Own(own_root, name), 3, shuffle=True, collate_fn=list)(ours), theirs)
