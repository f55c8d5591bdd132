"""RandomIoUCrop's window, drawn faster: the same one, and as many random numbers."""

import numpy as np
import pytest
import torch
from dali_compat.lazy import iou_crop
from torchvision import tv_tensors
from torchvision.transforms import v2


def boxes_of(rng, number, height, width):
    count = int(rng.integers(1, 12))
    corners, sides = (rng.random((count, 2)) * [width, height] * share for share in (0.8, 0.6))
    if number % 5 == 0:
        corners, sides[0] = corners.round(), 0
    name = ("XYXY", "XYWH", "CXCYWH")[number % 3]
    values = np.concatenate([corners, corners + sides if name == "XYXY" else sides], 1)
    values = torch.tensor(values, dtype=torch.float32)
    return tv_tensors.BoundingBoxes(values, format=name, canvas_size=(height, width))


@pytest.mark.parametrize("options", [{}, {"min_scale": 0.1, "max_scale": 0.9, "sampler_options": [0.05, 0.9, 1]}])
def test_equal(options):
    assert iou_crop._is_the_same()
    rng, transform, seen = np.random.default_rng(0), v2.RandomIoUCrop(**options), set()
    for number in range(60):
        height, width = map(int, rng.integers(9, 900, 2))
        inputs = [torch.empty(3, height, width, dtype=torch.uint8), boxes_of(rng, number, height, width)]
        torch.manual_seed(number)
        theirs, after = iou_crop._really(transform, inputs), torch.rand(3)
        torch.manual_seed(number)
        ours = iou_crop.params(transform, inputs)
        assert torch.equal(torch.rand(3), after)
        assert ours.keys() == theirs.keys() and {name: type(one) for name, one in ours.items()} == {
            name: type(one) for name, one in theirs.items()
        }
        assert all(torch.equal(*map(torch.as_tensor, (ours[name], theirs[name]))) for name in ours)
        seen.add(len(ours))
    assert seen == {0, 5}


def test_another_torchvision_draws_for_itself(monkeypatch):
    """One whose method draws otherwise."""

    def other(self, inputs):
        return {"top": int(torch.randint(9, (1,)))}

    rng = np.random.default_rng(1)
    inputs = [torch.empty(3, 90, 80, dtype=torch.uint8), boxes_of(rng, 1, 90, 80)]
    assert iou_crop.params(v2.RandomIoUCrop(), inputs, other).keys() == {"top"}
    monkeypatch.setattr(iou_crop, "_really", other)
    iou_crop._is_the_same.cache_clear()
    before = torch.get_rng_state()
    assert not iou_crop._is_the_same() and torch.equal(before, torch.get_rng_state())
    iou_crop._is_the_same.cache_clear()
