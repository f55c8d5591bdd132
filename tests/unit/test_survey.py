"""On a GPU, data sets of small images are decoded with libjpeg's chroma interpolation."""

import os
import statistics

import numpy as np
import pytest
from helpers import make_image
from parity.compare import error
from PIL import Image
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.data.base_datasets import survey


def folder(root, side: int, ending: str = "jpg", count: int = 20) -> DALIImageFolder:
    rng = np.random.default_rng(side)
    (root / "class_a").mkdir(parents=True)
    for i in range(count):
        Image.fromarray(make_image(rng, side, side)).save(root / "class_a" / f"{i:02d}.{ending}", quality=90)
    return DALIImageFolder(root, T.PILToTensor())


def test_survey_returns_the_kind_and_the_median_size_of_files(tmp_path):
    small, large, png = folder(tmp_path / "a", 32), folder(tmp_path / "b", 400), folder(tmp_path / "c", 20, "png", 50)
    sizes = [os.path.getsize(path) for path, _ in large.samples]
    assert survey([small])[1] < 2000 < survey([large])[1] == statistics.median(sizes)
    assert survey([small, large, png])[1] < 2000 and survey([])[1] == 0
    assert survey([small])[0] and not survey([png])[0] and not survey([small, png])[0]
    assert survey([folder(tmp_path / "d", 20, count=120), png, png])[0] and not survey([png, small, small])[0]
    os.remove(small.samples[0][0])
    small.samples.append(("/nowhere", 0))
    assert survey([small])[1] < 2000


@pytest.mark.gpu
@pytest.mark.parametrize(
    "side, transform, limit, text",
    [  # limits measured on an H100
        (32, T.PILToTensor(), 0.02, "chroma as libjpeg"),
        (96, T.Compose([T.CenterCrop(33), T.PILToTensor()]), 0.02, "chroma as libjpeg"),
        (400, T.PILToTensor(), 3, "mean error .2 of 255"),
    ],
)
def test_gpu_decodes_small_images_with_libjpegs_chroma_interpolation(tmp_path, side, transform, limit, text):
    data = folder(tmp_path / "a", side)
    data.transform = transform
    loader = DataLoader(data, 7, device="cuda", fallback="error")
    assert text in loader.explain()
    found = error([image for images, _ in loader for image in images], [image for image, _ in data])
    print(f"measured {side}: {found}")
    assert found.mean <= limit, found
    exact = DataLoader(data, 7, device="cuda", fallback="error", exact=True)
    assert error([image for images, _ in exact for image in images], [image for image, _ in data]).within(0, 0)
