"""loader.preview() draws the next batch and does not change the epoch."""

import numpy as np
import pytest
import torch
from helpers import make_folder
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors

from dali_compat import DALIImageFolder, DataLoader, views
from dali_compat.epoch.preview import _each, _sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("preview"), classes=2, per_class=3, special=False)


def loader(dataset, **options):
    return DataLoader(dataset, 4, device="cpu", num_workers=0, **options)


@pytest.mark.parametrize("generator", [False, True])
def test_epochs_are_unchanged_by_preview(folder, generator):
    def epochs(preview_first):
        torch.manual_seed(5)
        options = {"generator": torch.Generator().manual_seed(7)} if generator else {}
        dataset = DALIImageFolder(folder, T.Compose([T.RandomResizedCrop(16), T.ToTensor()]))
        one = loader(dataset, shuffle=True, **options)
        found = []
        for _ in range(2):
            if preview_first:
                one.preview(3)
            found += [batch for batch, _ in one]
        return torch.cat(found), one

    plain, previewed = epochs(False)[0], epochs(True)
    assert torch.equal(plain, previewed[0]) and previewed[1].stats().batches == 4 and previewed[1].errors == []


def test_preview_draws_the_next_batch(folder):
    """The order matches, and normalization is reversed in the pixels."""
    transform = T.Compose([T.Resize((224, 224)), T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))])
    one = loader(DALIImageFolder(folder, transform), shuffle=True)
    picture = one.preview(1)
    images, _ = next(iter(one))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    shown = np.asarray(picture).astype(int)[26:250, 6:230]
    assert np.abs(shown - ((images[0] * std + mean) * 255).permute(1, 2, 0).numpy()).max() <= 1
    assert isinstance(picture, Image.Image) and one.preview(4).size > picture.size


@pytest.mark.parametrize("batch_size, count", [(4, 6), (2, 5), (1, 3)])
def test_preview_takes_as_many_batches_as_it_needs(folder, batch_size, count):
    transform = T.Compose([T.Resize((224, 224)), T.ToTensor()])
    one = DataLoader(DALIImageFolder(folder, transform), batch_size, device="cpu")
    whole = DataLoader(DALIImageFolder(folder, transform), 6, device="cpu")
    assert one.preview(count).tobytes() == whole.preview(count).tobytes()


def detection(index):
    image = tv_tensors.Image(torch.full((3, 8, 10), 40 * index, dtype=torch.uint8))
    masks = tv_tensors.Mask(torch.zeros(2, 8, 10, dtype=torch.bool))
    boxes = tv_tensors.BoundingBoxes([[1, 1, 4, 4], [2, 2, 3, 3]], format="XYWH", canvas_size=(8, 10))
    return image, {"boxes": boxes, "masks": masks, "labels": torch.tensor([index, 1]), "image_id": index}


SAMPLES = [detection(index) for index in range(2)]
SEGMENTED = torch.zeros(2, 8, 10, dtype=torch.long)
IMAGES = torch.rand(2, 3, 8, 10)
BATCHES = {
    "default": ([IMAGES, torch.tensor([3, 4])], 1, 0, 0, [3]),
    "dict": ({"pixels": IMAGES, "label": torch.tensor([3, 4]), "path": ["a", "b"]}, 1, 0, 0, [3]),
    "views": ([[IMAGES, IMAGES], torch.tensor([3, 4])], 2, 0, 0, [3]),
    "names": ([IMAGES, ["cat", "dog"]], 1, 0, 0, ["cat"]),
    "masks": ([IMAGES, SEGMENTED], 1, 0, 1, []),
    "zipped": (tuple(zip(*SAMPLES, strict=True)), 1, 2, 2, [0, 1]),
    "as a list": (SAMPLES, 1, 2, 2, [0, 1]),
    "PIL": ([(Image.new("L", (3, 4)), 5), (Image.new("L", (5, 6)), 6)], 1, 0, 0, [5]),
    "several labels": ([IMAGES, torch.tensor([[0.0, 1, 1], [1, 0, 0]])], 1, 0, 0, [0, 1, 1]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_images_boxes_masks_and_labels_are_found_in_a_batch(name):
    batch, images, boxes, masks, labels = BATCHES[name]
    samples = [_sample(one) for one in _each(batch)]
    assert len(samples) == 2
    first = samples[0]
    assert (len(first.images), len(first.boxes), len(first.masks)) == (images, boxes, masks)
    flat = [value for label in first.labels for value in (label.reshape(-1) if hasattr(label, "reshape") else [label])]
    assert flat == labels
    if boxes:
        assert first.boxes[0] == [1, 1, 5, 5]


class BlackImages(torch.utils.data.Dataset):
    """Black images with a box and a label."""

    classes = ("cat", "dog")

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(3, 224, 224), {"boxes": torch.tensor([[10.0, 20, 100, 120]]), "labels": torch.tensor([1])}


def test_box_is_drawn_at_its_coordinates():
    one = loader(BlackImages(), fallback="silent", collate_fn=lambda samples: tuple(zip(*samples, strict=True)))
    shown = np.asarray(one.preview(1))[26:250, 6:230].astype(int).sum(-1)
    rows, columns = np.nonzero(shown)
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (10, 20, 100, 120)


def test_views_are_drawn_next_to_each_other(folder):
    plain = T.Compose([T.Resize((32, 32)), T.ToTensor()])
    one, two = (loader(DALIImageFolder(folder, t)).preview(1) for t in (plain, views(plain, plain)))
    assert two.width == 2 * one.width - 6


def test_preview_raises_without_images_or_samples(folder):
    class OnlyNumbers(BlackImages):
        def __getitem__(self, index):
            return index

    class FeaturesAndLabel(BlackImages):
        def __getitem__(self, index):
            return torch.zeros(10), index

    with pytest.raises(ValueError, match="no images in a batch of type Tensor"):
        loader(OnlyNumbers(), fallback="silent").preview()
    with pytest.raises(ValueError, match="no images in a batch of type list"):
        loader(FeaturesAndLabel(), fallback="silent").preview()
    with pytest.raises(ValueError, match="must be 1 or more, got 0"):
        loader(DALIImageFolder(folder, T.ToTensor())).preview(0)


class Continuing(data.Sampler):
    """A sampler with state_dict(). Each epoch continues where the one before it ended."""

    def __init__(self, count):
        self.count, self.at = count, 0

    def __len__(self):
        return self.count

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        for _ in range(self.count):
            self.at += 1
            yield (self.at - 1) % self.count


def test_preview_restores_a_sampler_with_a_state(folder):
    dataset = DALIImageFolder(folder, T.Compose([T.CenterCrop(16), T.ToTensor()]), return_index=True)
    one = DataLoader(dataset, 2, sampler=Continuing(len(dataset)), device="cpu")
    one.preview(2)
    assert next(iter(one))[2].tolist() == [0, 1]
