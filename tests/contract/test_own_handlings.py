"""A custom data set that processes images in unusual ways gets bit-identical pixels to those in torch's loader."""

import pytest
from torch.utils import data
from torchvision.datasets import ImageFolder

from contract.both import stock
from contract.own_handlings import HANDLINGS
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader

CACHED = "an image that the data set keeps"


class HandlingDataset(data.Dataset):
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
def test_samples_equal_torchs_for_each_handling(own_root, name):
    theirs = seeded(HandlingDataset(own_root, name), 3, shuffle=True, collate_fn=list)(stock)
    assert_same(seeded(HandlingDataset(own_root, name), 3, shuffle=True, collate_fn=list)(ours), theirs)
