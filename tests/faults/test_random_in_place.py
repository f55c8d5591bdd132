"""Random programs that change tensors in place, in samples that the trial does not load, give the same in both loaders.

python tests/faults/test_random_in_place.py 20000 [SEED]    # prints each wrong program
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import functional as F
from torchvision.transforms import v2

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from contract.both import ours, stock

from dali_compat.tracing import trial

PROGRAMS = 400
HALF = [0.5, 0.5, 0.5]

# Operations of a tensor x and another one y; results are new variables of the program
NEW = [
    lambda x, y: x.clone(), lambda x, y: x[:, 1:-1, 2:], lambda x, y: x.flip(-1), lambda x, y: x * 2,
    lambda x, y: torch.stack([x, x * 1]), lambda x, y: torch.stack([x]), lambda x, y: torch.cat([x, y], -1),
    lambda x, y: torch.stack([x, y]), lambda x, y: x.unsqueeze(0), lambda x, y: x[None], lambda x, y: x[[2, 1, 0]],
    lambda x, y: x.detach(), lambda x, y: x.contiguous(), lambda x, y: torch.full(x.shape, 0.25, dtype=x.dtype),
    lambda x, y: copy.deepcopy(x), lambda x, y: x.double(), lambda x, y: x, lambda x, y: x - y, lambda x, y: x[0],
    lambda x, y: F.normalize(x, HALF, HALF), lambda x, y: F.normalize(x, HALF, HALF, inplace=True),
    lambda x, y: F.hflip(x), lambda x, y: F.crop(x, 1, 2, 4, 5), lambda x, y: F.rgb_to_grayscale(x, 3),
    lambda x, y: F.erase(x, 1, 1, 2, 2, torch.tensor(0.0), inplace=True), lambda x, y: x.permute(1, 2, 0),
    lambda x, y: x + torch.tensor(HALF)[:, None, None], lambda x, y: x.view(1, *x.shape), lambda x, y: x.half(),
]  # fmt: skip
IN_PLACE = [
    lambda x, y: x.mul_(0.5), lambda x, y: x.add_(1), lambda x, y: x.__iadd__(1), lambda x, y: x.__isub__(y),
    lambda x, y: x[:, 1:3].mul_(3), lambda x, y: x.__setitem__((..., slice(2)), 0.7), lambda x, y: x.zero_(),
    lambda x, y: x.copy_(y), lambda x, y: x.fill_(0.3), lambda x, y: x.mul_(x), lambda x, y: x.clamp_(0.1, 0.6),
    lambda x, y: torch.add(x, 1, out=x), lambda x, y: x.numpy(), lambda x, y: np.asarray(x).__imul__(0.5),
    lambda x, y: x.add_(torch.tensor(HALF)[:, None, None]), lambda x, y: x.share_memory_(),
]  # fmt: skip


class Programs(Dataset):
    """Runs program ``seed + i`` in sample i, except in sample 0, which the trial loads."""

    def __init__(self, paths: list[str], count: int, seed: int):
        self.paths, self.count, self.seed = paths, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        image = Image.open(self.paths[i % len(self.paths)]).convert("RGB").resize((24, 20))
        draw = random.Random(self.seed + i)
        if draw.random() < 0.3:  # the tensor is not contiguous
            variables = [v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, True)]
        else:
            variables = [F.to_tensor(image)]
        for _ in range(draw.randrange(2, 9) if i else 0):
            x, y = draw.choice(variables), draw.choice(variables)
            try:
                if draw.random() < 0.5:
                    variables.append(draw.choice(NEW)(x, y))
                else:
                    draw.choice(IN_PLACE)(x, y)
            except (IndexError, RuntimeError, TypeError, ValueError):  # raised in both loaders
                pass
        return variables


def differing(paths: list[str], count: int, seed: int) -> list[int]:
    """Return the numbers of the programs whose results differ from those in torch's loader."""
    options = {"batch_size": 16, "collate_fn": list}
    wrong = []
    mine, theirs = ours(Programs(paths, count, seed), device="cpu", exact=True, **options), Programs(paths, count, seed)
    for number, (a, b) in enumerate(zip(sum(mine, []), sum(stock(theirs, **options), []), strict=True)):
        if len(a) != len(b) or not all(map(_are_equal, a, b)):
            wrong.append(seed + number)
    return wrong


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = (type(a), a.dtype, a.shape, a.stride()) == (type(b), b.dtype, b.shape, b.stride())
    return same and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_programs_that_change_tensors_in_place_equal_torch(image_root, monkeypatch):
    monkeypatch.setattr(trial, "_SAMPLES", 1)
    assert differing(sorted(map(str, Path(image_root).rglob("*.jpg"))), PROGRAMS, seed=0) == []


if __name__ == "__main__":
    trial._SAMPLES = 1
    photos = sorted(map(str, (Path(__file__).parents[2] / "docs" / "photos").rglob("*.jpg")))
    print(differing(photos, int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
