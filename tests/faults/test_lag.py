"""A GPU that lags behind the host: batches are dropped at once, and DALI must not write where they were."""

import pytest
import torch
from contract.both import EXACT, ours
from helpers import make_folder

from dali_compat import DALIImageFolder
from faults.interrupts import Truth

MILLISECONDS_20 = 40_000_000  # cycles


@pytest.mark.gpu
@pytest.mark.parametrize("options", [dict(), dict(num_workers=2), dict(cache=1 << 28)], ids=str)
def test_a_gpu_that_lags(tmp_path, options):
    """Every batch is summed behind 20 ms of other work, and dropped; the sums are those of torchvision's pixels."""
    dataset = DALIImageFolder(make_folder(tmp_path / "images", classes=2, per_class=8), EXACT, return_index=True)
    truth = Truth(dataset)
    sums = {name: image.sum().item() for name, image in truth.images.items()}
    loader = ours(dataset, 2, shuffle=True, exact=True, device="cuda", **options)
    found = []
    for _ in range(10):
        for images, labels, indices in loader:
            torch.cuda._sleep(MILLISECONDS_20)
            found.append((images.sum((1, 2, 3), dtype=torch.int64), labels, indices))
            del images
    for batch in found:
        for total, label, index in zip(*(column.tolist() for column in batch), strict=True):
            assert total == sums[label, index]
