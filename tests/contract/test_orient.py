"""DALIImageFolder(..., orient=True): images are turned as ImageOps.exif_transpose() turns them."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import EXACT, assert_same_epoch, ours, stock
from dali_compat import DALIImageFolder

KINDS = "jpg", "png", "tiff", "webp"
WINDOWS = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()])


@pytest.fixture
def turned(tmp_path):
    """All orientations of EXIF, and none, in several formats; higher than wide."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(KINDS):
        folder = tmp_path / f"class_{number}"
        folder.mkdir()
        for orientation in range(9):
            exif = Image.Exif()
            exif[0x010F] = "a camera"
            if orientation:
                exif[0x0112] = orientation
            pixels = rng.integers(0, 256, (8, 5, 3), dtype=np.uint8).repeat(12, 0).repeat(12, 1)
            Image.fromarray(pixels).save(folder / f"{orientation}.{kind}", exif=exif, **_lossless(kind))
    return tmp_path


def _lossless(kind: str) -> dict:
    return {"lossless": True} if kind == "webp" else {}


def upright(path):
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def test_batches_are_those_of_a_loader_that_turns(turned):
    mine, theirs = DALIImageFolder(turned, EXACT, orient=True), ImageFolder(turned, EXACT, loader=upright)
    for _ in range(2):
        loader = ours(mine, 5, num_workers=2, device="cpu")
        assert_same_epoch(loader, stock(theirs, 5))
        assert_same_epoch(loader, stock(theirs, 5))
    for index in range(len(mine)):
        assert torch.equal(mine[index][0], theirs[index][0]) and mine[index][1] == theirs[index][1]
    plain = ImageFolder(turned, EXACT)
    assert (
        sum(not torch.equal(mine[index][0], plain[index][0]) for index in range(len(mine))) == 3 * 7
    )  # a TIFF Pillow turns


def test_windows_are_of_the_turned_image(turned):
    """Numbers that are drawn depend on the sizes: those are the turned image's."""
    made = DALIImageFolder(turned, WINDOWS, orient=True)
    copies = turned.parent / f"{turned.name} turned"
    for path, _ in made.samples:
        target = copies / path[len(str(turned)) + 1 :]
        target = target.with_name(f"{target.stem}.png")
        target.parent.mkdir(parents=True, exist_ok=True)
        upright(path).save(target)
    batches = []
    for dataset in (made, DALIImageFolder(copies, WINDOWS)):
        torch.manual_seed(0)
        loader = ours(dataset, 6, exact=True, device="cpu")
        batches.append(list(loader))
    for (a, _), (b, _) in zip(*batches, strict=True):
        assert (a - b).abs().max() <= 2 / 255  # Pillow and DALI resize


def test_it_is_not_for_a_loader_of_the_users_own(turned):
    with pytest.raises(ValueError, match="turn those of your loader= in it"):
        DALIImageFolder(turned, loader=upright, orient=True)


def test_in_object_storage(turned):
    pytest.importorskip("obstore")
    from remote.server import Running

    with Running(turned) as server:
        mine = DALIImageFolder(server.url, EXACT, orient=True, storage_options=server.options)
        theirs = ImageFolder(turned, EXACT, loader=upright)
        assert_same_epoch(ours(mine, 5, num_workers=2, device="cpu"), stock(theirs, 5))
        assert torch.equal(mine[6][0], theirs[6][0])
