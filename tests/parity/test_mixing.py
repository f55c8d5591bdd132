"""CutMix and MixUp, applied to the loader's batches and in collate_fn."""

import pytest
import torch
from torch.utils.data import default_collate
from torchvision.transforms import v2

from dali_compat import DALIImageFolder, DataLoader

TRANSFORM = v2.Compose([v2.CenterCrop(50), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
MIXING = [
    v2.CutMix(num_classes=3),
    v2.MixUp(num_classes=3),
    v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)]),
]
mixing = pytest.mark.parametrize("mix", MIXING, ids=lambda mix: type(mix).__name__)


def loaders(root, device, **options):
    """Return torch's loader and ours over PNGs, with a transform that is exact on every device."""
    dataset = DALIImageFolder(root, TRANSFORM)
    return torch.utils.data.DataLoader(dataset, 5, **options), DataLoader(
        dataset, 5, device=device, exact=True, **options
    )


@mixing
def test_mixing_batches_equals_torchs_loader(mix, lossless_root, device):
    stock, ours = loaders(lossless_root, device)
    for theirs, mine in zip(stock, ours, strict=True):
        mine = _seeded(mix, *mine)
        assert {part.device.type for part in mine} == {device}
        for a, b in zip(mine, _seeded(mix, *theirs), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=1e-6)
        images, labels = mine
        assert labels.shape == (len(images), 3) and torch.allclose(labels.sum(1), torch.ones((), device=device))


@mixing
def test_mixing_in_collate_fn_equals_torchs_loader(mix, lossless_root, device):
    """Images are already on the device, and torchvision's example of a collate_fn works unchanged."""

    def collate(samples):
        return _seeded(mix, *default_collate(samples))

    stock, ours = loaders(lossless_root, device, collate_fn=collate)
    for theirs, mine in zip(stock, ours, strict=True):
        assert {part.device.type for part in mine} == {device}
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=1e-6)


def _seeded(mix, images, labels):
    torch.manual_seed(7)
    return mix(images, labels)
