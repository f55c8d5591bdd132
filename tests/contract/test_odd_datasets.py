"""Custom data sets that treat later samples differently from the first one: batches equal torch's in any case."""

import collections
import contextlib
import dataclasses
import io
import os
import random
import shutil
import tempfile
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFile, ImageOps
from PIL.TiffImagePlugin import ImageFileDirectory_v2
from torch.utils.data import StackDataset
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from contract import own_datasets as own
from contract.both import ours, stock
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader, FallbackWarning
from dali_compat.tracing import trial

TRANSFORM = T.Compose([T.Resize((20, 24)), T.CenterCrop(16), T.ToTensor()])
V2_TRANSFORM = v2.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
HALF = [0.5, 0.5, 0.5]


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


@pytest.fixture(autouse=True)
def trace_only_one_sample(monkeypatch):
    """Defer images, whatever the data set does with the other samples."""
    monkeypatch.setattr(trial, "_SAMPLES", 1)


def dataset_of(folder, get, **attributes):
    """Return a data set with this __getitem__."""
    dataset = type("Odd", (own.Plain,), {"__getitem__": get, "__module__": __name__})(folder)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def assert_equals_torch(make, batch=5, **options) -> None:
    """Compare our loader and torch's, each with a data set from `make`."""
    mine = seeded(make(), batch, **options)(lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw))
    assert_same(mine, seeded(make(), batch, **options)(stock))


def _draw_after_transform(self, i):
    image = own.read_rgb(self.paths[i])
    x = TRANSFORM(image)
    if i % 3 == 1:
        ImageDraw.Draw(image).rectangle([0, 0, 50, 50], fill=(255, 0, 0))
        return x**1.0, int(np.asarray(image).sum())
    return x, 0


def _paste_after_transform(self, i):
    image = own.read_rgb(self.paths[i])
    x = TRANSFORM(image)
    if i % 3 == 1:
        image.paste((255, 0, 0), (0, 0, 60, 60))
    return x.clone() if i % 2 else x


@pytest.mark.parametrize("get", [_draw_after_transform, _paste_after_transform])
def test_an_image_changed_after_its_transform_keeps_the_transformed_pixels(folder, get):
    assert_equals_torch(lambda: dataset_of(folder, get))


def test_memory_format_is_kept_if_some_images_are_not_deferred(folder):
    def get(self, i):
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        return x**1.0 if i % 3 == 1 else x

    for batch in ours(dataset_of(folder, get), 5, device="cpu", memory_format=torch.channels_last):
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_a_random_image_read_as_an_array_has_the_draws_of_its_tensor(folder):
    crop = T.RandomCrop(8)

    def get(self, i):
        part = crop(own.read_rgb(self.paths[i]))
        x = T.ToTensor()(part)
        return x, np.array(part).transpose(2, 0, 1).copy() if i % 3 == 1 else np.zeros((3, 8, 8), np.uint8)

    for x, part in ours(dataset_of(folder, get), 1, exact=True, device="cpu"):
        assert not part.any() or torch.equal(x, part.float() / 255)


OF_TENSORS = {
    "as_tensor": lambda x: torch.as_tensor(x, dtype=torch.float64).float(),
    "tensor": lambda x: torch.tensor(x),
    "Tensor": lambda x: torch.Tensor(x),
    "asarray": lambda x: torch.asarray(x) + 0,
    "FloatTensor": lambda x: x * 2 if isinstance(x, torch.FloatTensor) else x,
    "trace": torch.jit.trace(torch.nn.ReLU(), torch.rand(3, 16, 16)),
    "vmap": lambda x: torch.vmap(lambda y: y * 2)(x),
    "new_tensor": lambda x: torch.zeros(1).new_tensor(x),
    "Parameter": lambda x: torch.nn.Parameter(x).detach(),
}


BY_CLASS = {
    "class": lambda x: x * 2 if x.__class__ is torch.Tensor else x,
    "type": lambda x: x * 2 if type(x) is torch.Tensor and isinstance(torch.Tensor, type) else x,
    "types": lambda x: {torch.Tensor: torch.neg, list: len}[type(x)](x),
    "map": lambda x: x * [*map(type, (x, x))].count(torch.Tensor),
}


def assert_equals_torch_if_function_reads_some(folder, transform, function):
    """Apply the function to the tensor of every third sample."""

    def get(self, i):
        made = transform(own.read_rgb(self.paths[i]))
        return function(made) if i % 3 == 1 else made

    assert_equals_torch(lambda: dataset_of(folder, get))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OF_TENSORS)
def test_functions_that_bypass_torch_function_get_the_decoded_tensor(folder, name):
    assert_equals_torch_if_function_reads_some(folder, TRANSFORM, OF_TENSORS[name])


@pytest.mark.parametrize("name", BY_CLASS)
def test_code_that_compares_the_class_of_a_tensor_falls_back(folder, name):
    """The code is found without being run. Class names in messages do not count as comparisons."""
    function = BY_CLASS[name]

    def get(self, i):
        made = TRANSFORM(own.read_rgb(self.paths[i]))
        assert isinstance(made, torch.Tensor), f"{type(made)}, {type(made).__name__}"
        return function(made) if i % 3 == 1 else made

    loader = DataLoader(dataset_of(folder, get), 5, device="cpu", fallback="silent")
    assert "compares the class of a tensor (" in loader.explain() and "use isinstance()" in loader.explain()
    assert_same(list(loader), list(stock(dataset_of(folder, get), 5)))
    function = torch.neg
    assert "DALI route" in ours(dataset_of(folder, get), 5, device="cpu").explain()


OF_IMAGES = {
    "shape": lambda x: x + x.shape[1] + x.ndim,
    "flip": v2.functional.horizontal_flip,
    "normalize": lambda x: v2.functional.normalize(x, HALF, HALF),
    "Lambda": v2.Lambda(lambda x: x + 1),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(1.0),
    "to_pil_image": lambda x: V2_TRANSFORM(v2.functional.to_pil_image(x)),
    "Image": lambda x: tv_tensors.Image(x),
    "within": lambda x: v2.RandomHorizontalFlip(1.0)({"image": x})["image"],
    "isinstance": lambda x: x * 2 if isinstance(x, tv_tensors.Image) else x,
}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_attributes_and_functions_of_v2_images_equal_torchs(folder, name):
    assert_equals_torch_if_function_reads_some(folder, V2_TRANSFORM, OF_IMAGES[name])


def test_a_link_that_changes_its_target_equals_torch(folder, tmp_path):
    """The path stays the same, with another file for each sample."""
    path = str(tmp_path / "link")

    def get(self, i):
        if i <= 2:
            return TRANSFORM(own.read_rgb(self.paths[i]))
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(self.paths[i], path)
        return TRANSFORM(own.read_rgb(path))

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_transforms_changed_during_an_epoch_equal_torch(folder):
    """They change in __getitem__ or, without workers, in the training loop."""

    def make():
        return dataset_of(folder, get, steps=T.Compose([T.Resize((16, 16)), T.CenterCrop(16), T.ToTensor()]))

    def get(self, i):
        if i == 6:
            self.steps.transforms[0].size = (32, 32)
        if i == 12:
            self.steps.transforms.insert(1, T.RandomHorizontalFlip(1.0))
        return self.steps(own.read_rgb(self.paths[i]))

    assert_equals_torch(make)
    assert_equals_torch(make, num_workers=1)
    transform = T.Compose([T.Resize((16, 16)), T.ToTensor()])
    sizes = []
    for batch, _ in ours(own.Plain(folder, transform), 6, device="cpu"):
        sizes.append(batch.shape[-1])
        transform.transforms[0].size = (8, 8)
    assert sizes == [16, 8, 8, 8]


@pytest.mark.parametrize("workers", [0, 1])
def test_seeding_with_the_index_gives_each_sample_its_augmentation(folder, workers):
    flip = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])

    def get(self, i):
        torch.manual_seed(i)
        return flip(own.read_rgb(self.paths[i]))

    assert_equals_torch(lambda: dataset_of(folder, get), num_workers=workers)

    def later(self, i):
        if i > 3:
            torch.manual_seed(i)
        return flip(own.read_rgb(self.paths[i]))

    mine = list(ours(dataset_of(folder, later), 1, exact=True, device="cpu", num_workers=workers))
    assert_same(mine[4:], list(stock(dataset_of(folder, later), 1))[4:])


def _imported_set_rng_state(function, self, i):
    from torch import get_rng_state, set_rng_state

    state = get_rng_state()
    first = function(own.read_rgb(self.paths[i]))
    set_rng_state(state)
    return first, function(own.read_rgb(self.paths[i]))


def _set_state_of_default_generator(function, self, i):
    state = torch.default_generator.get_state()
    first = function(own.read_rgb(self.paths[i]))
    torch.default_generator.set_state(state)
    return first, function(own.read_rgb(self.paths[i]))


def _manual_seed_with_initial_seed(function, self, i):
    from torch import manual_seed

    manual_seed(torch.initial_seed())
    first = function(own.read_rgb(self.paths[i]))
    torch.rand(3)
    manual_seed(torch.initial_seed())
    return first, function(own.read_rgb(self.paths[i]))


def _fork_rng(function, self, i):
    with torch.random.fork_rng([]):
        first = function(own.read_rgb(self.paths[i]))
    return first, function(own.read_rgb(self.paths[i]))


def _set_rng_state_after_reading(function, self, i):
    state = torch.get_rng_state()
    first = function(own.read_rgb(self.paths[i]))
    first.mean()
    torch.set_rng_state(state)
    return first, function(own.read_rgb(self.paths[i]))


def _set_states_of_all_generators(function, self, i):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    first = function(own.read_rgb(self.paths[i]))
    torch.set_rng_state(states[0]), random.setstate(states[1]), np.random.set_state(states[2])
    return first, function(own.read_rgb(self.paths[i]))


RESTORE_STATE = [
    _imported_set_rng_state,
    _set_state_of_default_generator,
    _manual_seed_with_initial_seed,
    _fork_rng,
    _set_rng_state_after_reading,
    _set_states_of_all_generators,
]
RANDOM_CROPS = {
    "torch": T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()]),
    "Python": T.Compose([T.RandomChoice([T.RandomCrop(8), T.CenterCrop(8)]), T.ToTensor()]),
}


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", RESTORE_STATE, ids=lambda f: f.__name__)
def test_two_images_get_the_same_numbers_when_a_state_is_restored(folder, way, workers):
    """The data set restores the state for each sample, or only for later samples, which are not part of the trial."""
    for name, function in RANDOM_CROPS.items():
        if name == "Python" and way is not _set_states_of_all_generators:
            continue
        for first in (0, 4):

            def get(self, i):
                if i < first:
                    return function(own.read_rgb(self.paths[i])), i
                return way(function, self, i)

            for one, other in ours(
                dataset_of(folder, get), None, exact=True, device="cpu", num_workers=workers, fallback="silent"
            ):
                assert not isinstance(other, torch.Tensor) or torch.equal(one, other)


def test_crop_parameters_drawn_again_for_a_mask_match_the_crop(folder):

    def get(self, i):
        image = own.read_rgb(self.paths[i]).resize((16, 16), Image.Resampling.NEAREST)
        if i < 4:
            return T.Compose([T.RandomCrop(8), T.ToTensor()])(image), 0
        state = torch.get_rng_state()
        made = T.Compose([T.RandomCrop(8), T.ToTensor()])(image)
        torch.set_rng_state(state)
        top, left, height, width = T.RandomCrop.get_params(image, (8, 8))
        return made, T.ToTensor()(image.crop((left, top, left + width, top + height)))

    for one, other in list(ours(dataset_of(folder, get), None, exact=True, device="cpu"))[4:]:
        assert torch.equal(one, other)


def test_tracing_does_not_advance_counters_or_iterators_of_a_data_set(folder):

    def get(self, i):
        self.counts[0] += 1
        self.array[0] += 1
        self.shared += 1
        self.mapped[0] += 1
        self.long.append(i)
        self.queue.append(i)
        self.add()
        numbers = self.counts[0], int(self.array[0]), len(self.long), self.queue.popleft(), self.number
        numbers += int(self.shared), int(self.mapped[0])
        return TRANSFORM(own.read_rgb(self.paths[i])), numbers

    def add(self):
        self.number += 1

    def make():
        dataset = dataset_of(
            folder,
            get,
            counts=collections.Counter(),
            array=np.zeros(3, np.int64),
            shared=torch.zeros(()).share_memory_(),
            mapped=np.memmap(tempfile.TemporaryFile(), np.int64, shape=(1,)),
            long=[0] * 2000,
            queue=collections.deque(range(5)),
            number=0,
        )
        dataset.add = types.MethodType(add, dataset)
        return dataset

    assert_equals_torch(make)

    def draws(self, i):
        return TRANSFORM(own.read_rgb(self.paths[i])), next(self.numbers)

    assert_equals_torch(lambda: dataset_of(folder, draws, numbers=iter(range(100))))


def test_tracing_does_not_change_transforms_of_a_data_set(folder):
    def get(self, i):
        made = self.steps(own.read_rgb(self.paths[i]))
        self.steps.transforms[0] = T.CenterCrop(30)
        self.steps.transforms[2].mean = (0.1 * i,) * 3
        return made

    def make():
        steps = [T.Resize((20, 24)), T.Compose([T.CenterCrop(16), T.ToTensor()]), T.Normalize(HALF, HALF)]
        return dataset_of(folder, get, steps=T.Compose(steps))

    # the data set changes its transforms
    mine = seeded(make(), 5)(lambda *args: ours(*args, exact=True, device="cpu", fallback="silent"))
    assert_same(mine, seeded(make(), 5)(stock))


def test_images_opened_after_a_keyboard_interrupt_are_not_deferred(folder):

    def get(self, i):
        if i == 7:
            raise KeyboardInterrupt
        return TRANSFORM(own.read_rgb(self.paths[i]))

    loader = ours(dataset_of(folder, get), 5, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert type(F.to_tensor(own.read_rgb(loader.dataset.paths[0]))) is torch.Tensor


def test_a_thread_started_by_a_data_set_opens_ordinary_images(folder):
    """The thread may also iterate over another loader."""
    explained, opened = [], []

    def other():
        opened.append(type(F.to_tensor(Image.open(folder.samples[0][0]))))
        explained.append(ours(own.Plain(folder), 5, device="cpu").explain())

    def get(self, i):
        if i == 3:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return TRANSFORM(own.read_rgb(self.paths[i]))

    list(ours(dataset_of(folder, get), 5, device="cpu"))
    assert explained[0].startswith("DALI route") and opened == [torch.Tensor]


class Nested(own.Plain):
    """A data set that reads its samples with an inner loader, and opens an image itself before and after."""

    def __init__(self, folder, loader):
        super().__init__(folder, TRANSFORM)
        self.inner = loader(own.Plain(folder, TRANSFORM), 1, num_workers=0)

    def __getitem__(self, i):
        before, _ = super().__getitem__(i)
        inner, _ = next(iter(self.inner))
        after, label = super().__getitem__(i)
        return before, inner[0], after, label


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_within_getitem_equals_torch(folder, workers):
    mine = Nested(folder, lambda *args, **kwargs: ours(*args, exact=True, device="cpu", **kwargs))
    batches = list(ours(mine, 5, exact=True, device="cpu", num_workers=workers))
    assert_same(batches, list(stock(Nested(folder, stock), 5)))


def test_checks_of_the_exact_class_of_an_image_equal_torch(folder):

    def get(self, i):
        file = Image.open(self.paths[i])
        image = file.convert("RGB").resize((16, 16))
        image = image.rotate(90) if type(image) is Image.Image and type(file) is not Image.Image else image
        return TRANSFORM(image), issubclass(type(file), Image.Image), type(file).__name__

    assert_same(
        list(ours(dataset_of(folder, get), 4, exact=True, device="cpu")), list(stock(dataset_of(folder, get), 4))
    )
    assert "type" not in globals()


def test_an_error_in_getitem_is_raised_once(folder):
    calls = []

    def get(self, i):
        calls.append(i)
        if i == 9:
            raise KeyError("nine")
        return TRANSFORM(own.read_rgb(self.paths[i]))

    batches = iter(ours(dataset_of(folder, get), 4, exact=True, device="cpu"))
    next(batches), next(batches)
    with pytest.raises(KeyError, match="nine"):
        next(batches)
    assert calls == list(range(10))


def test_samples_processed_in_different_ways_equal_torch(folder):

    def get(self, i):
        image = own.read_rgb(self.paths[i])
        if i == 0:
            return TRANSFORM(image), 0
        x = [
            lambda: TRANSFORM(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
            lambda: F.normalize(TRANSFORM(image), HALF, HALF),
            lambda: TRANSFORM(Image.blend(image, image.rotate(180, expand=False), 0.5)),
            lambda: TRANSFORM(image),
        ][i % 4]()
        return x, random.random()

    assert_equals_torch(lambda: dataset_of(folder, get))


IN_PLACE = {
    "Normalize": T.Normalize(HALF, HALF, inplace=True),
    "v2": v2.Normalize(HALF, HALF, inplace=True),
    "within": T.Compose([T.RandomHorizontalFlip(0.0), T.Normalize(HALF, HALF, inplace=True)]),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_transforms_with_unused_results_equal_torch(folder, name):
    """The return value of the transform is unused."""

    def get(self, i):
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        if i % 3 == 1:
            IN_PLACE[name](x)
        return x

    assert_equals_torch(lambda: dataset_of(folder, get))


@torch.jit.script
def _scale(x):
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x + 5


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripted_code_that_reads_the_dtype_equals_torch(folder):
    part = T.Compose([T.CenterCrop(16), T.PILToTensor()])

    def get(self, i):
        x = part(own.read_rgb(self.paths[i]))
        return _scale(x) if i % 3 == 1 else T.ConvertImageDtype(torch.float32)(x)

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_dlpack_of_a_deferred_tensor_equals_torch(folder):
    """A deferred tensor has no memory until it is computed."""

    def get(self, i):
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        return torch.from_dlpack(x) if i % 3 == 1 else x

    assert_equals_torch(lambda: dataset_of(folder, get))


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_arrays_of_a_transform_changed_in_place_equal_torch(folder, kind):
    def get(self, i):
        if i == 12:
            self.mean += 0.25
        return self.steps(own.read_rgb(self.paths[i]))

    def make():
        dataset = dataset_of(folder, get, mean=kind(HALF))
        dataset.steps = T.Compose([TRANSFORM, T.Normalize(dataset.mean, HALF)])
        return dataset

    assert_equals_torch(make)


def _change_size_after_use(self, i):
    self.steps.transforms[1].size = (16, 16)
    made = self.steps(own.read_rgb(self.paths[i]))
    self.steps.transforms[1].size = (8, 8)
    return made * 1.0 if i % 3 == 1 else made


def _change_probability_per_sample(self, i):
    self.steps.transforms[0].p = float(i % 2)
    return self.steps(own.read_rgb(self.paths[i]))


@pytest.mark.parametrize(
    "get, workers", [(_change_size_after_use, 0), (_change_size_after_use, 1), (_change_probability_per_sample, 0)]
)
def test_transforms_apply_with_their_settings_at_the_call(folder, get, workers):
    """Later changes must not affect a deferred image."""

    def make():
        return dataset_of(folder, get, steps=T.Compose([T.RandomHorizontalFlip(0.0), T.Resize((16, 16)), T.ToTensor()]))

    assert_equals_torch(make, batch=3, num_workers=workers)


def test_new_objects_as_settings_of_a_transform_equal_torch(folder):
    """A new object may have the address of the previous one."""

    def get(self, i):
        flip, resize = self.steps.transforms[:2]
        flip.p = np.float64(i % 2)
        resize.size = torch.Size((10 + i // 6, 12))
        return self.steps(own.read_rgb(self.paths[i]))

    def make():
        return dataset_of(folder, get, steps=T.Compose([T.RandomHorizontalFlip(0.0), T.Resize((9, 9)), T.ToTensor()]))

    assert_equals_torch(make, batch=6)


def test_hooks_added_to_and_removed_from_a_transform_equal_torch(folder):

    def get(self, i):
        if i in (7, 13):
            self.hook = self.steps.register_forward_hook(lambda module, given, made: made + i)
        if i == 11:
            self.hook.remove()
        return self.steps(TRANSFORM(own.read_rgb(self.paths[i])))

    assert_equals_torch(lambda: dataset_of(folder, get, steps=T.Normalize(HALF, HALF)))


_size = [16, 16]


class ResizesByGlobal:
    """A custom transform that depends on a global variable."""

    def __call__(self, image):
        return T.Resize(_size)(image)


def test_a_custom_transform_within_compose_runs_for_each_sample(folder):
    steps = T.Compose([ResizesByGlobal(), T.ToTensor()])

    def get(self, i):
        _size[0] = 16 + 8 * (i // 5 % 2)
        return steps(own.read_rgb(self.paths[i]))

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_a_default_dtype_set_for_some_samples_equals_torch(folder):
    def get(self, i):
        torch.set_default_dtype(torch.float64 if i % 3 == 1 else torch.float32)
        try:
            return TRANSFORM(own.read_rgb(self.paths[i]))
        finally:
            torch.set_default_dtype(torch.float32)

    mine = list(ours(dataset_of(folder, get), 5, exact=True, device="cpu", collate_fn=list))
    assert_same(mine, list(stock(dataset_of(folder, get), 5, collate_fn=list)))


CROP = T.Compose([T.RandomCrop(20), T.RandomHorizontalFlip()])


def _by_state(take, put):
    def pair(image):
        state = take()
        first = CROP(image)
        put(state)
        return first, np.array(CROP(image))

    return pair


def _by_fork(image):
    with torch.random.fork_rng():
        first = CROP(image)
    return first, np.array(CROP(image))


def _by_seed(image):
    torch.manual_seed(42)
    first = CROP(image)
    torch.random.manual_seed(42)
    return first, np.array(CROP(image))


PAIRS = {
    "state": _by_state(lambda: torch.get_rng_state(), lambda state: torch.set_rng_state(state)),
    "fork": _by_fork,
    "seed": _by_seed,
}


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", PAIRS)
def test_an_image_and_its_mask_get_the_same_draws(folder, name, workers):
    """Either of them may be deferred."""

    def get(self, i):
        image = own.read_rgb(self.paths[i])
        first, second = PAIRS[name](image) if i % 3 == 1 else (CROP(image), np.zeros((20, 20, 3), np.uint8))
        return T.ToTensor()(first), second

    for x, mask in ours(dataset_of(folder, get), 1, exact=True, device="cpu", num_workers=workers):
        assert not mask.any() or torch.equal(x[0], mask[0].permute(2, 0, 1) / 255)


def test_one_seed_for_all_samples_gives_equal_draws(folder):
    """This holds for any generator that transforms use."""
    choice = T.Compose([T.RandomChoice([T.Resize((16, 16)), T.CenterCrop(16), T.Pad(3)]), T.Resize((12, 12))])
    flip = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])

    def get(self, i):
        if i:
            torch.manual_seed(42)
            random.seed(42)
        return flip(choice(own.read_rgb(self.paths[i])))

    mine = list(ours(dataset_of(folder, get), 1, exact=True, device="cpu"))
    assert_same(mine[1:], list(stock(dataset_of(folder, get), 1))[1:])


def test_images_without_conversion_keep_format_and_filename(folder):
    """The attributes are also available in collate_fn."""

    def get(self, i):
        return Image.open(self.paths[i]), TRANSFORM(own.read_rgb(self.paths[i])) if i == 2 else None

    def collate(samples):
        return [(image.format, image.filename, image.mode, image.size) for image, _ in samples]

    with pytest.warns(match="returns images, not tensors"):
        loader = DataLoader(dataset_of(folder, get), 5, device="cpu", collate_fn=collate)
    assert_same(list(loader), list(stock(dataset_of(folder, get), 5, collate_fn=collate)))

    def later(self, i):
        return Image.open(self.paths[i]) if i else own.read_rgb(self.paths[i])

    def filenames(samples):
        return [getattr(image, "filename", None) for image in samples]

    mine = list(DataLoader(dataset_of(folder, later), 5, device="cpu", collate_fn=filenames, fallback="silent"))
    assert_same(mine, list(stock(dataset_of(folder, later), 5, collate_fn=filenames)))


def test_exif_orientation_and_pixel_changes_equal_torch(folder, tmp_path):
    """Images may be transposed by their EXIF, or the code changes their EXIF or pixels."""
    turned = [tmp_path / "turned.jpg", tmp_path / "turned.png"]
    for path in turned:
        exif = Image.Exif()
        exif[274] = 6
        Image.open(folder.samples[0][0]).convert("RGB").save(path, exif=exif)

    def get(self, i):
        image = Image.open(turned[i // 5 % 2] if i % 5 == 4 else self.paths[i])
        if i % 5 == 1:
            image.getexif()[274] = 6
        if i % 5 == 2:
            before, pixels = image.copy(), image.convert("RGB").load()
            return TRANSFORM(before.convert("RGB")), pixels[0, 0]
        if i % 5 == 3:
            image = image.convert("RGB")
            image.load()[0, 0] = 255, 0, 0
        image = ImageOps.exif_transpose(image)
        return TRANSFORM(image.convert("RGB")), image.getexif().get(274, 0)

    assert_equals_torch(lambda: dataset_of(folder, get), batch=1)


def test_tiffs_transposed_by_pillow_on_reading_equal_torch(folder):
    """Reading removes the orientation; exif_transpose() reads first."""
    files = []
    for orientation in (1, 3, 6):
        files.append(io.BytesIO())
        tags = ImageFileDirectory_v2()
        tags[274] = orientation
        Image.open(folder.samples[0][0]).convert("RGB").save(files[-1], "TIFF", tiffinfo=tags)

    def get(self, i):
        image = Image.open(io.BytesIO(files[i // 5 % 3].getvalue()) if i % 5 == 4 else self.paths[i])
        size = image.size
        image = ImageOps.exif_transpose(image)
        return TRANSFORM(image.convert("RGB")), size, image.size

    assert_equals_torch(lambda: dataset_of(folder, get), batch=1)


READ_BEFORE_DRAFT = [
    lambda image: image.load(),
    lambda image: image.resize((9, 9)),
    lambda image: image.convert("L"),
    lambda image: F.to_tensor(image),
    lambda image: None,
]


def test_draft_of_an_image_already_read_equals_torch(folder):
    """draft() and thumbnail() decode a JPEG at a smaller size, only if it was not read before."""

    def get(self, i):
        image = Image.open(self.paths[i])
        if i % 3:
            READ_BEFORE_DRAFT[i % 5](image)
        if i % 3 == 2:
            image.draft("RGB", (16, 16))
        if i % 3 == 1:
            image.thumbnail((30, 30))
        return TRANSFORM(image.convert("RGB"))

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_filenames_of_images_equal_torch(folder, monkeypatch):
    """Paths may be bytes, relative, or of open files; the working directory may change afterwards."""

    def get(self, i):
        path = self.paths[i]
        if i % 4 == 0:
            return TRANSFORM(own.read_rgb(path)), ""
        if i % 4 == 1:
            with open(path, "rb") as file:
                image = Image.open(file)
                return TRANSFORM(image.convert("RGB")), str(image.filename)
        if i % 4 == 2:
            image = Image.open(os.fsencode(path))
            return TRANSFORM(image.convert("RGB")), str(image.filename)
        monkeypatch.chdir(os.path.dirname(path))
        image = Image.open(os.path.basename(path))
        made = TRANSFORM(image.convert("RGB")), str(image.filename) if i % 8 == 3 else ""
        monkeypatch.chdir("/")
        return made

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_a_v2_image_next_to_a_plain_tensor_equals_torch(folder):
    """v2 treats the first plain tensor as an image only if the sample has no other image."""
    after = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Normalize(HALF, HALF)])

    def get(self, i):
        x, other = V2_TRANSFORM(own.read_rgb(self.paths[i])), torch.arange(48.0).reshape(3, 4, 4)
        return after(other, x) if i % 3 == 1 else (other, after(x))

    mine = list(ours(dataset_of(folder, get), 5, exact=True, device="cpu", collate_fn=list))
    assert_same(mine, list(stock(dataset_of(folder, get), 5, collate_fn=list)))


def test_a_tensor_changed_through_a_weak_reference_equals_torch(folder):

    def get(self, i):
        before = self.last()
        if before is not None:
            before.add_(1)
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        self.last = weakref.ref(x) if i else self.last
        return x

    assert_equals_torch(lambda: dataset_of(folder, get, last=lambda: None))


def test_threads_that_use_one_image_see_the_same_pixels(folder):
    def get(self, i):
        image = own.read_rgb(self.paths[i])
        if i % 3 != 1:
            return TRANSFORM(image), 0
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: int(np.asarray(image).sum()), range(2))
        assert first == second
        return TRANSFORM(image), first

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_samples_keep_the_type_of_their_container(folder):

    def get(self, i):
        sample = collections.defaultdict(list) if i > 4 else {}
        sample.update(image=TRANSFORM(own.read_rgb(self.paths[i])), label=i)
        return sample

    assert_equals_torch(lambda: dataset_of(folder, get))


def test_unreadable_files_caught_in_getitem_equal_torch(folder, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"nothing")
    time.sleep(0.05)

    def get(self, i):
        try:
            return TRANSFORM(own.read_rgb("/nowhere.jpg" if i == 3 else bad if i == 4 else self.paths[i]))
        except OSError:
            return TRANSFORM(Image.new("RGB", (40, 40), (i, 0, 0)))

    assert_equals_torch(lambda: dataset_of(folder, get))
    assert_equals_torch(lambda: dataset_of(folder, get), num_workers=1)


_NUMBERS = np.random.default_rng(0)


class DrawsFromGenerators:
    """A helper object with three generators."""

    def __init__(self):
        self.array, self.python = np.random.default_rng(1), random.Random(2)
        self.torch = torch.Generator().manual_seed(3)

    def __call__(self):
        drawn = torch.rand((), generator=self.torch)
        return float(self.array.random() + self.python.random() + _NUMBERS.random() + drawn)


def test_tracing_does_not_advance_generators_held_anywhere(folder):
    """This holds whether or not the data set can be traced."""
    closure = random.Random(4)

    def get(self, i):
        return TRANSFORM(own.read_rgb(self.paths[i])), self.picks[0](), closure.random()

    def refused(self, i):
        return TRANSFORM(own.read_rgb(self.paths[i])) ** 2, self.picks[0](), closure.random()

    def batches(make, get):
        closure.seed(4)
        _NUMBERS.bit_generator.state = np.random.default_rng(0).bit_generator.state
        return list(make(dataset_of(folder, get, picks=[DrawsFromGenerators()]), 5))

    assert_same(batches(lambda *args: ours(*args, exact=True, device="cpu"), get), batches(stock, get))
    with pytest.warns(match="uses the tensor's pow"):
        mine = batches(lambda *args: DataLoader(*args, device="cpu"), refused)
    assert_same(mine, batches(stock, refused))


@pytest.mark.parametrize("size", [10**12, NotImplementedError])
def test_a_huge_or_missing_length_equals_torch(folder, size):

    class Endless(own.Plain):
        def __len__(self):
            if isinstance(size, int):
                return size
            raise size

        def __getitem__(self, i):
            return TRANSFORM(own.read_rgb(self.paths[i % len(self.paths)])), i

    options = dict(sampler=[10**10 + 7, 3, 10**9, 5], fallback="silent", device="cpu", exact=True)
    mine = list(DataLoader(Endless(folder), 2, **options))
    assert_same(mine, list(stock(Endless(folder), 2, sampler=options["sampler"])))


def test_a_replaced_method_of_images_falls_back(folder, monkeypatch):
    really = Image.Image.crop
    monkeypatch.setattr(Image.Image, "crop", lambda self, box=None: really(self, box).rotate(90))
    with pytest.warns(match=r"work: PIL\.Image\.Image\.crop was replaced"):
        loader = DataLoader(own.ImageOnly(folder), 5, device="cpu")
    assert_same(list(loader), list(stock(own.ImageOnly(folder), 5)))


@pytest.mark.parametrize("seeded_by", ["torch.manual_seed", "generator"])
def test_persistent_workers_equal_torch_if_most_samples_are_not_deferred(folder, seeded_by):

    def get(self, i):
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        return (x if i % 5 == 1 else x**2), i

    def epochs(make):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1) if seeded_by == "generator" else None
        options = dict(shuffle=True, num_workers=2, persistent_workers=True, generator=generator)
        loader = make(dataset_of(folder, get), 5, **options)
        return [list(loader) for _ in range(4)], loader

    mine, loader = epochs(lambda *args, **kw: DataLoader(*args, exact=True, device="cpu", fallback="silent", **kw))
    assert_same(mine, epochs(stock)[0])
    assert loader.stats().batches == 20


def test_persistent_workers_keep_the_transform_of_their_start(folder):
    def epochs(make):
        dataset = own.Plain(folder)
        loader = make(dataset, 5, num_workers=1, persistent_workers=True)
        first = iter(loader)
        next(first)
        dataset.transform = lambda image: TRANSFORM(image) ** 2
        return list(loader), list(first)

    assert_same(epochs(lambda *args, **options: ours(*args, exact=True, device="cpu", **options)), epochs(stock))


def _except_oserror(self, i):
    try:
        return TRANSFORM(own.read_rgb(self.paths[i])), self.bad
    except OSError:
        self.bad += 1
        return self[0]


def _suppress_oserror(self, i):
    image = own.read_rgb(self.paths[0])
    with contextlib.suppress(OSError):
        image = own.read_rgb(self.paths[i])
        self.bad -= 1
    self.bad += 1
    return TRANSFORM(image), self.bad


def _count_oserror_in_context(self, i):
    @contextlib.contextmanager
    def counting():
        try:
            yield
        except OSError:
            self.bad += 1

    image = Image.new("RGB", (40, 40))
    with counting():
        image = own.read_rgb(self.paths[i])
    return TRANSFORM(image), self.bad


@pytest.mark.parametrize(
    "get, workers",
    [(_except_oserror, 0), (_suppress_oserror, 0), (_suppress_oserror, 1), (_count_oserror_in_context, 0)],
)
def test_an_error_caught_in_getitem_equals_torch(image_root, tmp_path, get, workers):
    """The error occurs at the same place, and counters changed by it reach the next samples of the batch."""
    root = shutil.copytree(image_root, tmp_path / "some")
    folder = ImageFolder(root)
    for number in (5, 8, 17):
        data = Path(folder.samples[number][0]).read_bytes()
        Path(folder.samples[number][0]).write_bytes(data[: len(data) // 2] if number != 8 else b"no image")
    time.sleep(0.1)
    assert_equals_torch(lambda: dataset_of(folder, get, bad=0), 6, num_workers=workers)


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp"])
def test_files_cut_off_that_pillow_may_load_equal_torch(folder, tmp_path, monkeypatch, suffix):
    """Whole files stay on DALI."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    paths = [tmp_path / f"{number}.{suffix}" for number in range(len(folder.samples))]
    for number, (path, (source, _)) in enumerate(zip(paths, folder.samples, strict=True)):
        Image.open(source).convert("RGB").save(path)
        if number % 3 == 2:
            path.write_bytes(path.read_bytes()[: int(0.7 * path.stat().st_size)])
    time.sleep(0.1)  # files that were written just now are not deferred

    def get(self, i):
        image = Image.open(self.paths[i] if i % 2 else io.BytesIO(self.paths[i].read_bytes()))
        return TRANSFORM(image.convert("RGB"))

    assert_equals_torch(lambda: dataset_of(folder, get, paths=paths))
    assert_equals_torch(lambda: dataset_of(folder, get, paths=paths), num_workers=1)


def _read_one(self, i):
    return TRANSFORM(own.read_rgb(self.paths[i]))


def test_data_sets_in_a_dictionary_are_loaded_by_dali(folder):
    def make():
        return StackDataset(left=dataset_of(folder, _read_one), right=dataset_of(folder, _read_one))

    assert_equals_torch(make)
    assert "DALI route" in DataLoader(make(), 5, device="cpu", fallback="error").explain()


def shape(x):
    """A function that no data set calls, with the name of an attribute of tensors."""
    return type(x) is torch.Tensor


def test_a_function_named_like_an_attribute_is_not_taken_for_a_call(folder):
    def get(self, i):
        x = TRANSFORM(own.read_rgb(self.paths[i]))
        return x, x.shape[-1]

    assert_equals_torch(lambda: dataset_of(folder, get))
    assert "DALI route" in DataLoader(dataset_of(folder, get), 5, device="cpu", fallback="error").explain()


def test_a_function_that_compares_classes_is_found_in_a_comprehension(folder):
    def get(self, i):
        return [shape(x) for x in [TRANSFORM(own.read_rgb(self.paths[i]))]]

    with pytest.raises(RuntimeError, match="compares the class of a tensor"):
        DataLoader(dataset_of(folder, get), 5, device="cpu", fallback="error")


def _input_changes_after_stack(x, odd):
    stacked = torch.stack([x, x.clone()])
    if odd:
        x.mul_(2)
    return stacked


def _loaded_input_changes_after_stack(x, odd):
    if odd:
        np.asarray(x)
    stacked = torch.stack([x, x * 2])
    if odd:
        x.mul_(2)
    return stacked


def _other_tensor_changes_after_stack(x, odd):
    other = torch.zeros(x.shape)
    stacked = torch.stack([x, other])
    if odd:
        other.add_(1)
    return stacked


def _stack_changes_before_cat(x, odd):
    stacked = torch.stack([x])
    if odd:
        stacked.mul_(2)
    return torch.cat([stacked, torch.stack([x])])


def _image_changes_after_unsqueeze(x, odd):
    batch = x.unsqueeze(dim=0)
    if odd:
        x.mul_(2)
    return batch


def _image_changes_with_its_unsqueezed_view(x, odd):
    batch = x[None]
    if odd:
        batch.mul_(2)
    return x, batch.stride(), batch.shape, batch.storage_offset()


def _image_changes_after_cat_of_unsqueezed(x, odd):
    batch = torch.cat([x.unsqueeze(0), x.flip(-1).unsqueeze(-4)])
    if odd:
        x.mul_(2)
    return batch


def _image_changes_after_unsqueeze_of_a_window(x, odd):
    batch = x[:, 2:14, 3:9][None]
    if odd:
        x.mul_(2)
    return batch, batch.stride(), batch.storage_offset()


def _other_dimensions_are_unsqueezed(x, odd):
    return x.unsqueeze(-1)[..., 0] if odd else x[None].unsqueeze(0)[0, 0]


def _image_changes_with_its_view_by_an_empty_index(x, odd):
    same = x[()]
    if odd:
        same.mul_(2)
    return x, same.stride(), same.shape


@pytest.mark.parametrize(
    "function",
    [
        _image_changes_with_its_view_by_an_empty_index,
        _input_changes_after_stack,
        _loaded_input_changes_after_stack,
        _other_tensor_changes_after_stack,
        _stack_changes_before_cat,
        _image_changes_after_unsqueeze,
        _image_changes_with_its_unsqueezed_view,
        _image_changes_after_cat_of_unsqueezed,
        _image_changes_after_unsqueeze_of_a_window,
        _other_dimensions_are_unsqueezed,
    ],
    ids=lambda function: function.__name__.strip("_"),
)
@pytest.mark.parametrize("collate_fn", [None, list])
def test_tensors_changed_in_place_equal_torch(folder, function, collate_fn):
    def get(self, i):
        return function(TRANSFORM(own.read_rgb(self.paths[i])), i % 3 == 1)

    options = {"collate_fn": collate_fn, "fallback": "silent"} if function is _other_dimensions_are_unsqueezed else {}
    mine = seeded(dataset_of(folder, get), 5, collate_fn=collate_fn)(
        lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw | options)
    )
    assert_same(mine, seeded(dataset_of(folder, get), 5, collate_fn=collate_fn)(stock))


@pytest.mark.parametrize("arguments", [{}, {"dim": 5}, {"size": 0}])
def test_unsqueeze_with_invalid_arguments_raises_torchs_error(folder, arguments):
    def get(self, i):
        x, text = TRANSFORM(own.read_rgb(self.paths[i])), ""
        if i % 3 == 1:
            with pytest.raises((TypeError, IndexError)) as raised:
                x.unsqueeze(**arguments)
            text = str(raised.value)
        return x, text

    assert_equals_torch(lambda: dataset_of(folder, get))


@dataclasses.dataclass
class Holder:
    images: Any


class SlottedHolder:
    __slots__ = ("images",)

    def __init__(self, images):
        self.images = images


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("holder", [Holder, SlottedHolder])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"several": [x]}], ids=["tensor", "list in a dict"])
def test_tensors_in_objects_of_the_batch_have_torchs_class_and_values(folder, holder, wrap, num_workers):
    def get(self, i):
        image = TRANSFORM(own.read_rgb(self.paths[i]))
        return image, holder(wrap(F.hflip(image)))

    dataset = dataset_of(folder, get)
    options = dict(collate_fn=list, num_workers=num_workers)
    mine, theirs = list(ours(dataset, 5, device="cpu", exact=True, **options)), list(stock(dataset, 5, **options))
    for (image, held), (expected, held_expected) in zip(sum(mine, []), sum(theirs, []), strict=True):
        tensors = [
            one.images["several"][0] if type(one.images) is dict else one.images for one in (held, held_expected)
        ]
        assert type(tensors[0]) is torch.Tensor and torch.equal(*tensors) and torch.equal(image, expected)


def test_fallback_names_the_class_of_objects_that_hold_all_images(folder):
    def get(self, i):
        return TRANSFORM(own.read_rgb(self.paths[i]))

    reason = "returns images in an object of class Holder; return them in a tuple, list or dict"
    for collate_fn in (Holder, lambda samples: Holder(torch.stack(samples))):
        with pytest.warns(FallbackWarning, match=reason):
            mine = list(DataLoader(dataset_of(folder, get), 5, collate_fn=collate_fn, device="cpu"))
        theirs = list(stock(dataset_of(folder, get), 5, collate_fn=collate_fn))
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(torch.stack(list(a.images)), torch.stack(list(b.images)))
