"""Data sets of the user's whose first sample is left to DALI, and others not: torch's data, whatever they do later."""

import collections
import os
import random
import threading

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from contract import own_datasets as own
from contract.both import ours, stock
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader

X = T.Compose([T.Resize((20, 24)), T.CenterCrop(16), T.ToTensor()])
XT = v2.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
HALF = [0.5, 0.5, 0.5]


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


def of(folder, get, **attributes):
    """A data set with this __getitem__."""
    dataset = type("Odd", (own.Plain,), {"__getitem__": get, "__module__": __name__})(folder)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def assert_as_torch(make, batch=5, **options) -> None:
    """Two data sets alike, on our loader and on torch's."""
    mine = seeded(make(), batch, **options)(lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw))
    assert_same(mine, seeded(make(), batch, **options)(stock))


def _drawn_on(self, i):
    image = own.read_rgb(self.paths[i])
    x = X(image)
    if i % 3 == 1:
        ImageDraw.Draw(image).rectangle([0, 0, 50, 50], fill=(255, 0, 0))
        return x * 1.0, int(np.asarray(image).sum())
    return x, 0


def _pasted_on(self, i):
    image = own.read_rgb(self.paths[i])
    x = X(image)
    if i % 3 == 1:
        image.paste((255, 0, 0), (0, 0, 60, 60))
    return x.clone() if i % 2 else x


@pytest.mark.parametrize("get", [_drawn_on, _pasted_on])
def test_an_image_that_changes_after_its_transform(folder, get):
    """What a transform has given does not."""
    assert_as_torch(lambda: of(folder, get))


def test_the_format_of_images_alone_some_of_which_are_real(folder):
    def get(self, i):
        x = X(own.read_rgb(self.paths[i]))
        return x * 1.0 if i % 3 == 1 else x

    for batch in ours(of(folder, get), 5, device="cpu", memory_format=torch.channels_last):
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_a_random_image_that_is_looked_at(folder):
    """Its tensor has the same draws."""
    crop = T.RandomCrop(8)

    def get(self, i):
        part = crop(own.read_rgb(self.paths[i]))
        x = T.ToTensor()(part)
        return x, np.array(part).transpose(2, 0, 1).copy() if i % 3 == 1 else np.zeros((3, 8, 8), np.uint8)

    for x, part in ours(of(folder, get), 1, exact=True, device="cpu"):
        assert not part.any() or torch.equal(x, part.float() / 255)


OF_TENSORS = {
    "as_tensor": lambda x: torch.as_tensor(x, dtype=torch.float64).float(),
    "tensor": lambda x: torch.tensor(x),
    "Tensor": lambda x: torch.Tensor(x),
    "asarray": lambda x: torch.asarray(x) + 0,
    "FloatTensor": lambda x: x * 2 if isinstance(x, torch.FloatTensor) else x,
    "class": lambda x: x * 2 if x.__class__ is torch.Tensor else x,
    "trace": torch.jit.trace(torch.nn.ReLU(), torch.rand(3, 16, 16)),
    "vmap": lambda x: torch.vmap(lambda y: y * 2)(x),
    "new_tensor": lambda x: torch.zeros(1).new_tensor(x),
    "Parameter": lambda x: torch.nn.Parameter(x).detach(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OF_TENSORS)
def test_functions_that_do_not_ask_the_class(folder, name):
    """What goes past __torch_function__ sees the real tensor, too."""

    def get(self, i):
        x = X(own.read_rgb(self.paths[i]))
        return OF_TENSORS[name](x) if i % 3 == 1 else x

    assert_as_torch(lambda: of(folder, get))


OF_IMAGES = {
    "shape": lambda x: x + x.shape[1] + x.ndim,
    "flip": v2.functional.horizontal_flip,
    "normalize": lambda x: v2.functional.normalize(x, HALF, HALF),
    "Lambda": v2.Lambda(lambda x: x + 1),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(1.0),
    "to_pil_image": lambda x: XT(v2.functional.to_pil_image(x)),
    "Image": lambda x: tv_tensors.Image(x),
    "within": lambda x: v2.RandomHorizontalFlip(1.0)({"image": x})["image"],
    "isinstance": lambda x: x * 2 if isinstance(x, tv_tensors.Image) else x,
}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_of_v2(folder, name):
    """tv_tensors.Image has attributes and functions of its own."""

    def get(self, i):
        x = XT(own.read_rgb(self.paths[i]))
        return OF_IMAGES[name](x) if i % 3 == 1 else x

    assert_as_torch(lambda: of(folder, get))


def test_links_that_lead_elsewhere(folder, tmp_path):
    """The same path, another file each time."""
    path = str(tmp_path / "link")

    def get(self, i):
        if i <= 2:
            return X(own.read_rgb(self.paths[i]))
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(self.paths[i], path)
        return X(own.read_rgb(path))

    assert_as_torch(lambda: of(folder, get))


def test_transforms_that_change_meanwhile(folder):
    """In __getitem__, and, without workers, in the training loop."""

    def make():
        return of(folder, get, steps=T.Compose([T.Resize((16, 16)), T.CenterCrop(16), T.ToTensor()]))

    def get(self, i):
        if i == 6:
            self.steps.transforms[0].size = (32, 32)
        if i == 12:
            self.steps.transforms.insert(1, T.RandomHorizontalFlip(1.0))
        return self.steps(own.read_rgb(self.paths[i]))

    assert_as_torch(make)
    assert_as_torch(make, num_workers=1)
    transform = T.Compose([T.Resize((16, 16)), T.ToTensor()])
    sizes = []
    for batch, _ in ours(own.Plain(folder, transform), 6, device="cpu"):
        sizes.append(batch.shape[-1])
        transform.transforms[0].size = (8, 8)
    assert sizes == [16, 8, 8, 8]


@pytest.mark.parametrize("workers", [0, 1])
def test_seeds_of_each_sample(folder, workers):
    """An index has always the same augmentation."""
    flip = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])

    def get(self, i):
        torch.manual_seed(i)
        return flip(own.read_rgb(self.paths[i]))

    with pytest.warns(match="seeds torch's generator"):
        loader = DataLoader(of(folder, get), 5, device="cpu")
    assert_same(list(loader), list(stock(of(folder, get), 5)))

    def later(self, i):
        if i:
            torch.manual_seed(i)
        return flip(own.read_rgb(self.paths[i]))

    mine = list(ours(of(folder, later), 1, exact=True, device="cpu", num_workers=workers))
    assert_same(mine[1:], list(stock(of(folder, later), 1))[1:])


def test_the_first_sample_takes_nothing(folder):
    """What a data set counts and draws starts at the beginning."""

    def get(self, i):
        self.counts[0] += 1
        self.array[0] += 1
        self.long.append(i)
        self.queue.append(i)
        numbers = self.counts[0], int(self.array[0]), len(self.long), self.queue.popleft()
        return X(own.read_rgb(self.paths[i])), numbers

    def make():
        return of(
            folder,
            get,
            counts=collections.Counter(),
            array=np.zeros(3, np.int64),
            long=[0] * 2000,
            queue=collections.deque(range(5)),
        )

    assert_as_torch(make)

    def draws(self, i):
        return X(own.read_rgb(self.paths[i])), next(self.numbers)

    with pytest.warns(match="has an iterator"):
        loader = DataLoader(of(folder, draws, numbers=iter(range(100))), 5, device="cpu")
    assert_same(list(loader), list(stock(of(folder, draws, numbers=iter(range(100))), 5)))


def test_hooks_are_gone_after_an_interrupt(folder):
    """KeyboardInterrupt in the user's code."""
    before = Image.open, T.Compose.__call__

    def get(self, i):
        x = X(own.read_rgb(self.paths[i]))
        if i == 7:
            raise KeyboardInterrupt
        return x

    loader = ours(of(folder, get), 5, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert before == (Image.open, T.Compose.__call__)
    assert type(Image.open(loader.dataset.paths[0])).__module__.startswith("PIL.")


def test_a_loader_that_another_thread_makes(folder):
    """While a data set is asked, another one can be; and that thread opens files as PIL does."""
    explained, opened = [], []

    def other():
        opened.append(type(Image.open(folder.samples[0][0])))
        explained.append(ours(own.Plain(folder), 5, device="cpu").explain())

    def get(self, i):
        if i == 3:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return X(own.read_rgb(self.paths[i]))

    list(ours(of(folder, get), 5, device="cpu"))
    assert explained[0].startswith("DALI route") and opened[0].__module__.startswith("PIL.")


def test_errors_of_stand_ins_are_not_the_users(folder):
    """Where one is not enough, the sample is asked for once more without."""
    calls = []

    def get(self, i):
        calls.append(i)
        x = X(own.read_rgb(self.paths[i]))
        if i == 2 and type(x) is not torch.Tensor:
            raise TypeError(type(x))
        if i == 9:
            raise KeyError("nine")
        return x

    batches = iter(ours(of(folder, get), 4, exact=True, device="cpu"))
    assert_same(next(batches), next(iter(stock(of(folder, own.Bare.__getitem__, transform=X), 4))))
    next(batches)
    with pytest.raises(KeyError, match="nine"):
        next(batches)
    assert calls.count(2) >= 2


def test_mixed_ways(folder):
    """Another way for each sample."""

    def get(self, i):
        image = own.read_rgb(self.paths[i])
        if i == 0:
            return X(image), 0
        x = [
            lambda: X(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
            lambda: F.normalize(X(image), HALF, HALF),
            lambda: X(Image.blend(image, image.rotate(180, expand=False), 0.5)),
            lambda: X(image),
        ][i % 4]()
        return x, random.random()

    assert_as_torch(lambda: of(folder, get))


@pytest.mark.parametrize("seeded_by", ["torch.manual_seed", "generator"])
def test_persistent_workers_where_most_samples_are_real(folder, seeded_by):
    """Torch's iterator takes the place of ours, which was to live on; the order goes on as torch's."""

    def get(self, i):
        x = X(own.read_rgb(self.paths[i]))
        return (x * 2 if i else x), i

    def epochs(make):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1) if seeded_by == "generator" else None
        options = dict(shuffle=True, num_workers=2, persistent_workers=True, generator=generator)
        loader = make(of(folder, get), 5, **options)
        return [list(loader) for _ in range(4)], loader

    with pytest.warns(match="uses the tensor's mul in most samples"):
        mine, loader = epochs(lambda *args, **kw: DataLoader(*args, exact=True, device="cpu", **kw))
    assert_same(mine, epochs(stock)[0])
    assert loader.explain().startswith("torchvision route") and loader.stats().batches == 20


def test_an_iterator_that_torchs_has_replaced(folder):
    """It has no further batch."""
    dataset = own.Plain(folder)
    loader = DataLoader(dataset, 5, device="cpu", num_workers=1, persistent_workers=True, fallback="silent")
    first = iter(loader)
    next(first)
    dataset.transform = lambda image: X(image) * 2
    assert_same(list(loader), list(stock(dataset, 5)))
    assert list(first) == []
