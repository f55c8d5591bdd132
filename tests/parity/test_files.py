"""Every kind of file of unit/test_headers.py through the DALI route: pixels equal PIL's, or the file is refused as
by PIL."""

import pytest
import torch
from torchvision import transforms as v1
from unit.test_headers import FILES, HEIGHT, WIDTH

from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from parity.compare import as_tensors, error

WHOLE = v1.PILToTensor()
# windows are decoded by another code path, which may not read to the end of the file
WINDOW = v1.Compose([v1.RandomCrop(HEIGHT - 20), v1.PILToTensor()])
TOP = v1.Compose([v1.CenterCrop((HEIGHT, WIDTH)), v1.RandomVerticalFlip(1.0), v1.PILToTensor()])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("transform", [WHOLE, TOP], ids=["whole", "flipped"])
def test_file_decodes_to_pils_pixels_or_is_refused(name, transform, device, tmp_path):
    (tmp_path / "class_a").mkdir()
    try:
        (tmp_path / "class_a" / "named.jpg").write_bytes(FILES[name][0]())
    except (OSError, KeyError) as reason:
        pytest.skip(f"this Pillow cannot write it: {reason}")
    dataset = DALIImageFolder(tmp_path, transform)
    loader = DataLoader(dataset, device=device, exact=True, fallback="error")
    try:
        expected = dataset[0][0]
    except Exception:
        with pytest.raises(ImageReadError, match=r"named\.jpg"):
            next(iter(loader))
        return
    found = error(as_tensors(next(iter(loader))[0]), [expected])
    assert found.within(0, 0), found  # exact=True decodes on the CPU


@pytest.mark.parametrize("name", ["truncated", "no end marker", "text", "empty"])
def test_windows_of_damaged_files_are_refused_as_by_pil(name, device, tmp_path):
    (tmp_path / "class_a").mkdir()
    (tmp_path / "class_a" / "named.jpg").write_bytes(FILES[name][0]())
    torch.manual_seed(0)
    dataset = DALIImageFolder(tmp_path, WINDOW)
    loader = DataLoader(dataset, device=device, fallback="error")
    try:
        dataset[0]
    except Exception:
        with pytest.raises(ImageReadError, match=r"named\.jpg"):
            next(iter(loader))
    else:
        assert next(iter(loader))[0].shape == (1, 3, HEIGHT - 20, HEIGHT - 20)
