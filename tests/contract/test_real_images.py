"""Custom data sets give the same results with both loaders, for any operations on images and tensors.

Each case is a function that returns a sample, or a data set class. Values, exact types, dtypes, shapes, strides,
exceptions, the data set's attributes and the states of all generators must be equal to those with torch's DataLoader.
With workers each sample seeds the generators itself, because a sample's random numbers do not depend on the worker.
"""

import builtins
import collections
import copy
import functools
import io
import os
import pickle
import random
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from black_box import ADDITION_ORDER, EQUAL, SETTLED, Limit, run, seed_all, under_test, unlike
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFile, ImageFilter, ImageOps, ImageStat
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.functional import hflip, normalize, to_tensor

from contract import checked_types

pytestmark = pytest.mark.filterwarnings("ignore")
HALF, THIRD = [0.5] * 3, [0.3] * 3


class Case(NamedTuple):
    sample: object  # a function of the data set and an index, or a Dataset class
    options: dict
    limit: Limit


CASES = {}


def case(function=None, *, limit=EQUAL, **options):
    """Register a function or a Dataset class. Options are the loader's."""
    if function is None:
        return functools.partial(case, limit=limit, **options)
    assert function.__name__ not in CASES
    CASES[function.__name__] = Case(function, {"batch_size": 4, **options}, limit)
    return function


class Files(NamedTuple):
    photos: list  # paths of JPEGs
    odd: dict  # paths by name
    cut: str  # a truncated JPEG


class Photos(Dataset):
    """Base of all cases."""

    def __init__(self, files, sample=None, seeded=False):
        self.files, self.sample, self.seeded = files, sample, seeded

    def __len__(self):
        return len(self.files.photos)

    def image(self, i):
        return Image.open(self.files.photos[i]).convert("RGB")

    def small(self, i):
        return self.image(i).resize((64, 48))

    def __getitem__(self, i):
        if self.seeded:
            seed_all(i if isinstance(i, int) else 0)
        return self.sample(self, i)


# ---- classes of images and tensors


UNTRACED = 6  # index of a sample that is not part of the trial


@case(collate_fn=list)
def palette_given_to_a_gray_image(data, i):
    image = data.image(i).convert("L")
    if i == UNTRACED:
        image.putpalette([*range(128)] * 6)
    return F.to_tensor(F.resized_crop(image, 0, i, 20, 18, [24, 24]))


@case(collate_fn=list)
def storage_offset_of_a_window(data, i):
    x = F.to_tensor(data.small(i))
    if i != UNTRACED:
        return x, 0, 0
    window = F.center_crop(F.crop(x, 3, 4, 30, 20), [16, 16])[:, 2:12]
    return window.as_strided((2, 5), (7, 1), window.storage_offset()), window.storage_offset(), window.stride()


def flip_if(condition, image):
    return F.to_tensor(F.hflip(image) if condition else image)


@case
def class_compared_in_a_helper(data, i):
    transform = checked_types.Compose([checked_types.Flip()])
    return F.to_tensor(transform({"image": data.small(i)})["image"])


@case
def class_compared_four_calls_away(data, i):
    transform = checked_types.Flip()
    for _ in range(3):
        transform = checked_types.OneOf([transform])
    return F.to_tensor(checked_types.Compose([transform])({"image": data.small(i)})["image"])


@case
def class_compared_in_a_registry(data, i):
    image = data.small(i)
    return flip_if(checked_types.CHECKS[f"check_{i}"](image), image)


@case
def class_compared_by_a_function_found_by_name(data, i):
    image = data.small(i)
    return flip_if(getattr(checked_types, "is_plain" + "_image")(image), image)


@case
def class_compared_by_builtins_type(data, i):
    image = data.small(i)
    return flip_if(builtins.type(image) is Image.Image, image)


type_alias = type


@case
def class_compared_by_an_alias(data, i):
    image = data.small(i)
    return flip_if(type_alias(image) is Image.Image, image)


@case
def class_compared_by_a_default_argument(data, i, kind=type):
    image = data.small(i)
    return flip_if(kind(image) is Image.Image, image)


@case
def class_compared_in_executed_source(data, i):
    names = {"image": data.small(i), "Image": Image}
    exec("same = type(image) is Image.Image", names)
    return flip_if(names["same"], names["image"])


@case
def class_as_key_of_a_registry(data, i):
    image = data.small(i)
    return {Image.Image: lambda: F.to_tensor(F.hflip(image))}[type(image)]()


@case
def class_of_an_opened_file(data, i):
    image = Image.open(data.files.photos[i])
    return F.to_tensor(image.convert("RGB").resize((64, 48))), type(image).__name__, type(image).__module__


@case
def names_of_an_image_class(data, i):
    image = data.small(i)
    kind = type(image)
    return F.to_tensor(image), kind.__name__, kind.__qualname__, kind.__module__, image.__class__ is kind


@case
def class_of_a_tensor_compared(data, i):
    x = F.to_tensor(data.small(i))
    return x.flip(-1) if checked_types.is_plain_tensor(x) else x


@case
def class_of_a_tensor_compared_in_a_registry(data, i):
    x = F.to_tensor(data.small(i))
    return x.flip(-1) if checked_types.TENSOR_CHECKS["plain"](x) else x


@case
def class_of_a_tensor_as_key(data, i):
    x = F.to_tensor(data.small(i))
    return {torch.Tensor: 1}.get(type(x), 0), x


@case
def metaclass_of_the_users(data, i):
    class Meta(type):
        tag = 1

    made = Meta("Made", (), {})
    return F.to_tensor(data.small(i)), made.tag, isinstance(int, Meta), type(made) is Meta


@case
def annotation_with_a_class(data, i):
    def check(kind: type[Image.Image]):
        return isinstance(data.small(i), kind)

    return F.to_tensor(data.small(i)), check(Image.Image)


@case
def class_or_object(data, i):
    transform = T.Resize if i % 2 else T.Resize((9, 9))
    return flip_if(type(transform) is type, data.small(i))


@case
def type_as_a_key(data, i):
    return F.to_tensor(data.small(i)), {type: 1, int: 2}[type(type("Made", (), {}))]


@case
def identity_of_unchanged_tensors(data, i):
    tensor = F.to_tensor(data.image(i))
    if i % 3 == 2:
        tensor.roll(1)  # needs the pixels
    same = [one is tensor for one in (tensor.float(), tensor.cpu(), tensor.contiguous(), tensor.to("cpu"))]
    return F.resize(tensor, [24, 24]), torch.tensor(same)


@case
def isinstance_of_a_tensor(data, i):
    x = F.to_tensor(data.small(i))
    return x, isinstance(x, torch.Tensor), torch.is_tensor(x), torch.overrides.is_tensor_like(x)


@case
def match_and_singledispatch(data, i):
    image = data.small(i)

    @functools.singledispatch
    def kind(value):
        return 0

    kind.register(Image.Image, lambda value: 1)
    match image:
        case Image.Image(mode=mode):
            pass
    return kind(image), mode, F.to_tensor(image)


@case(
    collate_fn=lambda samples: [(type(a).__name__, type(b).__name__, sorted(map(str, a.info)), b) for a, b in samples]
)
def image_and_tensor_in_collate(data, i):
    image = data.image(i).convert("L")
    return image, T.ToTensor()(image)


@case(collate_fn=lambda samples: [type(x) is torch.Tensor for x in samples])
def class_of_tensors_in_collate(data, i):
    return F.to_tensor(data.small(i))


@case(collate_fn=list)
def classes_of_tv_tensors_after_operations(data, i):
    x = v2.functional.to_image(data.small(i))
    several = [x + 1, x.clone(), x.detach(), x[0], x.float(), x.to(torch.float32), x.float().add_(1), copy.deepcopy(x)]
    return [type(one).__name__ for one in [*several, tv_tensors.wrap(x + 1, like=x)]]


# ---- nothing runs twice


@case
class DegenerateIsReadOnce(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.count, self.numbers, self.left = 0, np.random.default_rng(3), list(range(100))

    def __getitem__(self, i):
        self.count += 1
        self.left.pop()
        enhance = ImageEnhance.Color(self.small(i).rotate(float(self.numbers.uniform(-20, 20))))
        return F.to_tensor(enhance.degenerate) if i % 4 == 3 else F.to_tensor(enhance.enhance(0.5))


@case
class MissingAttributeIsCounted(Photos):
    count = 0

    def __getitem__(self, i):
        self.count += 1
        image = self.small(i)
        try:
            image.no_such_attribute  # noqa: B018
        except AttributeError:
            return F.to_tensor(image), self.count


@case
class Counter(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.count, self.seen = 0, []

    def __getitem__(self, i):
        self.count += 1
        self.seen.append(i)
        return F.to_tensor(self.small(i)), self.count, len(self.seen)


# ---- files


@case
def rest_of_an_open_file(data, i):
    with open(data.files.photos[i], "rb") as file:
        image = Image.open(file).convert("RGB").resize((64, 48))
        return F.to_tensor(image), len(file.read())


@case
def rest_of_an_open_file_with_trailing_data(data, i):
    with open(data.files.odd["trailing.jpg"], "rb") as file:
        image = Image.open(file).convert("RGB").resize((64, 48))
        return F.to_tensor(image), file.tell(), file.read()[-9:]


@case
def bytes_overwritten_after_convert(data, i):
    buffer = io.BytesIO(Path(data.files.photos[i]).read_bytes())
    image = Image.open(buffer).convert("RGB").resize((64, 48))
    position = buffer.tell()
    buffer.seek(0)
    buffer.write(b"xxxx")
    return F.to_tensor(image), position


@case
def file_closed_after_convert(data, i):
    with open(data.files.photos[i], "rb") as file:
        image = Image.open(file).convert("RGB")
    return F.to_tensor(image.resize((64, 48)))


@case
def image_closed_by_with(data, i):
    with Image.open(data.files.photos[i]) as image:
        image = image.convert("RGB").resize((64, 48))
    return F.to_tensor(image)


@case
def file_closed_before_convert(data, i):
    with open(data.files.photos[i], "rb") as file:
        image = Image.open(file)
    return F.to_tensor(image.convert("RGB"))


@case
def closed_image(data, i):
    image = data.small(i)
    image.close()
    return F.to_tensor(image)


@case
def closed_opened_image(data, i):
    image = Image.open(data.files.photos[i])
    image.close()
    return F.to_tensor(image.convert("RGB"))


@case
def attributes_of_an_opened_file_after_convert(data, i):
    image = Image.open(data.files.photos[i])
    x = F.to_tensor(image.convert("RGB").resize((64, 48)))
    return x, image.tile, image.fp is None, image.readonly, image.format, image.size, sorted(map(str, image.info))


@case
def name_of_an_opened_file(data, i):
    image = Image.open(data.files.photos[i])
    return F.to_tensor(image.convert("RGB").resize((64, 48))), os.path.basename(image.filename)


opened = Image.open


def open_in_a_wrapper(*args, **kwargs):
    return opened(*args, **kwargs)


@case
def open_replaced_by_a_wrapper(data, i):
    Image.open = open_in_a_wrapper
    try:
        return F.to_tensor(Image.open(data.files.photos[i]).convert("RGB").resize((64, 48)))
    finally:
        Image.open = opened


@case
def loaded_as_a_statement(data, i):
    image = Image.open(data.files.photos[i])
    image.load()
    image = image.convert("RGB")
    image.load()
    return F.to_tensor(image.resize((64, 48)))


@case
def bytes_loaded_as_hugging_face_does(data, i):
    image = Image.open(io.BytesIO(Path(data.files.photos[i]).read_bytes()))
    image.load()
    return F.to_tensor(image.convert("RGB").resize((64, 48)))


@case
class OpenedByTheConstructor(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.images = [Image.open(path) for path in files.photos]

    def __getitem__(self, i):
        return F.to_tensor(self.images[i].convert("RGB").resize((64, 48)))


@case
def turned_by_exif(data, i):
    return F.to_tensor(ImageOps.exif_transpose(Image.open(data.files.odd["turned.jpg"])).convert("RGB"))


@case
def turned_by_exif_in_place(data, i):
    image = Image.open(data.files.odd["turned.jpg"])
    ImageOps.exif_transpose(image, in_place=True)
    return F.to_tensor(image.convert("RGB").resize((64, 48)))


@case
def exif_after_convert_and_resize(data, i):
    image = Image.open(data.files.odd["turned.jpg"]).convert("RGB")
    return F.to_tensor(image), image.getexif().get(274), image.resize((5, 5)).getexif().get(274)


@case
def odd_files_as_rgb(data, i):
    return F.to_tensor(Image.open([*data.files.odd.values()][i]).convert("RGB").resize((32, 32)))


@case
def odd_files_as_gray(data, i):
    return F.to_tensor(Image.open([*data.files.odd.values()][i]).convert("L").resize((32, 32)))


@case(collate_fn=list)
def odd_files_as_they_are(data, i):
    image = Image.open([*data.files.odd.values()][i])
    return F.pil_to_tensor(image.resize((32, 32))), image.mode, len(image.info), image.size


@case
def truncated_file_skipped(data, i):
    if i % 3:
        return F.to_tensor(data.small(i))
    try:
        return F.to_tensor(Image.open(data.files.cut).convert("RGB").resize((64, 48)))
    except OSError:
        return torch.zeros(3, 48, 64)


@case
def truncated_file_raises(data, i):
    return F.to_tensor(Image.open(data.files.cut if i == 5 else data.files.photos[i]).convert("RGB").resize((64, 48)))


@case
def truncated_file_allowed(data, i):
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return F.to_tensor(Image.open(data.files.cut).convert("RGB").resize((64, 48)))
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


@case
def missing_file_raises(data, i):
    return F.to_tensor(Image.open("/nowhere.jpg" if i == 6 else data.files.photos[i]).resize((64, 48)))


@case
class MissingFileCounted(Photos):
    bad = 0

    def __getitem__(self, i):
        try:
            return F.to_tensor(
                Image.open("/nowhere.jpg" if i % 5 == 2 else self.files.photos[i]).resize((64, 48))
            ), self.bad
        except OSError:
            self.bad += 1
            return self[0]


# ---- transforms

TRAINING = T.Compose(
    [
        T.RandomResizedCrop(64),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


@case(shuffle=True)
def classification(data, i):
    return TRAINING(data.image(i)), i


@case
def functions_imported_by_name(data, i):
    return normalize(to_tensor(hflip(data.small(i))), HALF, HALF)


Point = collections.namedtuple("Point", "a b")


@case
def dict_namedtuple_and_text(data, i):
    return {"x": TRAINING(data.image(i)), "y": (i, str(i)), "z": 1.5, "p": Point(i, "k")}


@case
def v2_of_images(data, i):
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(HALF, THIRD),
        ]
    )
    return transform(data.image(i))


@case
def v2_image_first(data, i):
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomCrop((40, 40)),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(HALF, THIRD),
        ]
    )
    return transform(data.small(i))


@case
def v2_to_pure_tensor(data, i):
    transform = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(HALF, THIRD), v2.ToPureTensor()]
    )
    return transform(data.small(i))


def targets():
    boxes = tv_tensors.BoundingBoxes([[3, 4, 30, 40]], format="XYXY", canvas_size=(48, 64))
    mask = tv_tensors.Mask(torch.arange(48 * 64).reshape(1, 48, 64) % 7)
    return {"boxes": boxes, "masks": mask, "labels": torch.tensor([1])}


def transpose_samples(samples):
    return tuple(zip(*samples, strict=True))


@case(collate_fn=transpose_samples)
def boxes_and_masks(data, i):
    transform = v2.Compose(
        [
            *(v2.RandomHorizontalFlip(), v2.RandomIoUCrop(), v2.Resize((40, 40))),
            *(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(HALF, THIRD)),
        ]
    )
    return transform(data.small(i), targets())


@case(collate_fn=transpose_samples)
def boxes_and_masks_image_first(data, i):
    transform = v2.Compose(
        [
            *(v2.ToImage(), v2.RandomHorizontalFlip(), v2.RandomIoUCrop(), v2.Resize((40, 40))),
            *(v2.ToDtype(torch.float32, scale=True), v2.Normalize(HALF, THIRD)),
        ]
    )
    return transform(data.small(i), targets())


@case
def v2_to_image(data, i):
    return v2.functional.to_image(data.small(i))


@case(collate_fn=list)
def v2_to_image_in_lists(data, i):
    return v2.functional.to_image(data.small(i))


@case(collate_fn=list)
def v2_functions(data, i):
    x = v2.functional.to_dtype(v2.functional.to_image(data.small(i)), torch.float32, scale=True)
    return v2.functional.normalize(x, HALF, HALF)


@case
def bytes_of_pixels(data, i):
    return F.pil_to_tensor(data.small(i))


@case(collate_fn=list)
def bytes_of_pixels_in_lists(data, i):
    return F.pil_to_tensor(data.small(i))


@case
def several_views(data, i):
    image = data.image(i)
    return [TRAINING(image), TRAINING(image), T.ToTensor()(F.resize(image, (32, 32)))]


@case
def views_stacked(data, i):
    image = data.small(i)
    return torch.stack([TRAINING(image), TRAINING(image)])


@case
def views_concatenated(data, i):
    image = data.small(i)
    return torch.cat([TRAINING(image), TRAINING(image)])


@case(collate_fn=list)
def as_many_crops_as_objects(data, i):
    image = data.image(i)
    return [F.to_tensor(image.crop((k, k, 40 + k, 30 + k))) for k in range(3 + i % 4)]


@case(collate_fn=list)
def as_many_images_as_objects(data, i):
    image = data.image(i)
    return [image.crop((k, k, 40 + k, 30 + k)) for k in range(3 + i % 4)]


@case
def color_jitter(data, i):
    return T.Compose([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.ToTensor()])(data.small(i))


@case
def randaugment_and_erasing(data, i):
    return T.Compose([T.RandAugment(), T.ToTensor(), T.RandomErasing(1.0)])(data.small(i))


@case
def trivial_augment_and_perspective(data, i):
    transforms = [
        v2.TrivialAugmentWide(),
        v2.RandomPerspective(p=1),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ]
    return v2.Compose(transforms)(data.small(i))


@case(limit=ADDITION_ORDER)
def gaussian_blur(data, i):
    return T.Compose([T.GaussianBlur(5), T.ToTensor()])(data.small(i))


@case
def fill_as_a_number(data, i):
    return F.to_tensor(data.image(i).rotate(30, expand=True, fillcolor=255).resize((64, 48)))


@case
def fill_of_one_number(data, i):
    return F.to_tensor(data.small(i).rotate(30, fillcolor=(255,)))


# ---- caches, aliases, operations in place


@case
class CacheOfImages(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.cache = {}

    def __getitem__(self, i):
        if i % 3 not in self.cache:
            self.cache[i % 3] = self.small(i)
        return F.to_tensor(F.hflip(self.cache[i % 3]))


@case
class CacheOfTensorsChangedInPlace(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.cache = {}

    def __getitem__(self, i):
        if i % 3 not in self.cache:
            self.cache[i % 3] = F.to_tensor(self.small(i))
        x = self.cache[i % 3]
        x -= 0.01
        return x, x * 2


@case
class ImageKeptForTheNextSample(Photos):
    previous = None

    def __getitem__(self, i):
        image = self.small(i)
        other, self.previous = self.previous or image, image
        return F.to_tensor(Image.blend(image, other, 0.5)), F.to_tensor(other)


@case
class LruCacheOfImages(Photos):
    def __init__(self, files):
        super().__init__(files)
        self.read = functools.lru_cache(4)(self.small)

    def __getitem__(self, i):
        return F.to_tensor(self.read(i % 5))


@case
def arithmetic_in_place_with_copies(data, i):
    x = F.to_tensor(data.small(i))
    y = x.clone()
    x -= 0.5
    z = x.detach()
    x /= 0.2
    x.mul_(2).add_(0.1)
    return x, y, z


@case
def operators_in_place(data, i):
    return F.to_tensor(data.small(i)).__isub__(0.5).__itruediv__(0.2)


@case
def row_then_arithmetic_in_place(data, i):
    x = F.to_tensor(data.small(i))
    y = x[0]
    x -= 0.5
    return x, y


@case
def row_of_a_tensor(data, i):
    return F.to_tensor(data.small(i))[0]


@case
def slice_of_a_tensor(data, i):
    return F.to_tensor(data.small(i))[:1]


@case
def channels_reversed(data, i):
    return F.to_tensor(data.small(i))[[2, 1, 0]]


@case
def region_assigned(data, i):
    x = F.to_tensor(data.small(i))
    x[:, 3:9, 2:7] = 0
    x[0] -= 1
    return x


@case
def data_changed_in_place(data, i):
    return F.to_tensor(data.small(i)).data.add_(1)


@case(collate_fn=list)
def parts_that_share_memory(data, i):
    x = F.to_tensor(data.small(i))
    return x, x[0], x.view(-1), x.storage_offset(), x[1].storage_offset(), x.data_ptr() == x[0].data_ptr()


# ---- tensors


@case
def as_numpy(data, i):
    return F.to_tensor(data.small(i)).numpy()


@case
def as_array(data, i):
    return np.asarray(F.to_tensor(data.small(i))) * 2


@case
def written_through_numpy(data, i):
    x = F.to_tensor(data.small(i))
    array = x.numpy()
    array *= 2
    return x


@case
def image_as_array(data, i):
    return np.asarray(data.small(i)).transpose(2, 0, 1).copy()


@case
def values_as_numbers(data, i):
    x = F.to_tensor(data.small(i))
    return x.tolist()[0][0], x.mean().item(), bool((x >= 0).all()), float(x.max()), int(x.argmax())


@case
def dtypes_flips_and_permutations(data, i):
    x = F.to_tensor(data.small(i))
    return x.half(), x.double(), x.flip(-1), x.permute(1, 2, 0), x.transpose(0, 1).contiguous()


@case
def operators(data, i):
    x = F.to_tensor(data.small(i))
    return 2 * x, 1 - x, x**2, -x, x / 2, x + x, x - x.mean(), x @ torch.ones(64, 1), x // 0.1, 3 / (x + 1), x > 0.5


@case
def operators_of_integers(data, i):
    x = F.pil_to_tensor(data.small(i))
    return x / 255, x.float() / 255, x * 2, x // 2, x.to(torch.float32).div(255), x + 1.5, ~x, x ^ 3


@case
def division_of_integers_in_place_raises(data, i):
    x = F.pil_to_tensor(data.small(i))
    try:
        x /= 2
    except RuntimeError as error:
        return x, str(error)
    return x, "no error"


@case
def normalize_by_zero_raises(data, i):
    return F.normalize(F.to_tensor(data.small(i)), HALF, [0.0, 1.0, 1.0])


@case
def normalize_of_two_channels_raises(data, i):
    return F.normalize(F.to_tensor(data.small(i)), [0.5] * 2, [1.0] * 2)


@case
def sizes_that_differ_raise(data, i):
    return F.to_tensor(data.small(i).resize((20 + i, 20)))


@case
def copies_and_pickles(data, i):
    x, image = F.to_tensor(data.small(i)), data.small(i)
    copies = copy.deepcopy(image), copy.copy(image), pickle.loads(pickle.dumps(image))
    return copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x)), *map(F.to_tensor, copies)


@case
def text_hash_and_equality(data, i):
    x = F.to_tensor(data.small(i))
    return str(x), repr(x), f"{x.mean():.3f}", (x == x.clone()).all().item(), type(hash(x)).__name__, x in {x}


@case
def attributes_of_a_tensor(data, i):
    x = F.to_tensor(data.small(i))
    numbers = x.numel(), len(x), x.element_size(), x.storage_offset(), x.ndim, x.nbytes, x._version
    flags = x.requires_grad, x.is_contiguous(), x.layout == torch.strided, x.is_floating_point(), x.is_leaf
    return str(x.device), x.stride(), *numbers, *flags, F.pil_to_tensor(data.small(i)).stride()


@case
def custom_attributes(data, i):
    image = data.small(i)
    x = F.to_tensor(image)
    image.mine, x.mine = 5, 6
    return x, image.mine, x.mine


@case
def gradients(data, i):
    x = F.to_tensor(data.small(i)).requires_grad_()
    (x * x).sum().backward()
    return x.grad


@case
def functions_with_out(data, i):
    x = F.to_tensor(data.small(i))
    return torch.add(x, 1), torch.sub(x, 0.5, out=torch.empty(3, 48, 64)), torch.mul(2, x)


@case
def interpolated(data, i):
    return torch.nn.functional.interpolate(F.to_tensor(data.small(i))[None], (20, 20), mode="bilinear")[0]


@case
def torchvisions_functions_on_tensors(data, i):
    x = F.to_tensor(data.small(i))
    colors = F.adjust_hue(x, 0.1), F.erase(x, 1, 1, 5, 5, 0.0)
    resized = F.resize(x, (20, 20)), F.resize(x, [20, 21], antialias=False)
    return *resized, F.rotate(x, 10), *colors, F.to_pil_image(x).getpixel((1, 1))


SCRIPTED = torch.jit.script(torch.nn.Sequential(T.Resize((20, 20)), T.ConvertImageDtype(torch.float)))


@case
class ScriptedTransform(Photos):
    def __getitem__(self, i):
        return SCRIPTED(F.to_tensor(self.small(i)))


@case
def dlpack_and_shared_memory(data, i):
    x = F.to_tensor(data.small(i))
    return torch.from_dlpack(x), np.from_dlpack(x).sum(), F.to_tensor(data.small(i)).share_memory_()


@case
def tensors_made_like_it(data, i):
    x = F.to_tensor(data.small(i))
    return x.new_zeros(3), torch.zeros_like(x), torch.ones_like(x) * x, x.new_tensor([1.0])


@case
def saved_by_torch(data, i):
    buffer = io.BytesIO()
    torch.save(F.to_tensor(data.small(i)), buffer)
    return torch.load(io.BytesIO(buffer.getvalue()))


@case
def tv_tensors_plus_one(data, i):
    with tv_tensors.set_return_type("TVTensor"):
        return v2.functional.to_image(data.small(i)) + 1


@case
def vmapped(data, i):
    return torch.vmap(lambda channel: channel.sum())(F.to_tensor(data.small(i)))


@case
def inference_mode_and_no_grad(data, i):
    with torch.inference_mode():
        x = F.to_tensor(data.small(i)) * 2
    with torch.no_grad():
        return x.clone(), F.to_tensor(data.small(i)) - 1


@case
class Compiled(Photos):
    def __getitem__(self, i):
        if not hasattr(Compiled, "function"):
            Compiled.function = torch.compile(lambda x: x * 2 + 1, backend="eager")
        return Compiled.function(F.to_tensor(self.small(i)))


# ---- strides, classes, info and errors of torchvision's functions


STRIDES = {
    "resized": lambda f, x: f.resize(x, [20, 24]),
    "window": lambda f, x: f.crop(x, 3, 4, 20, 24),
    "resized window": lambda f, x: f.resized_crop(x, 3, 4, 20, 24, [30, 30]),
    "resized window of all columns": lambda f, x: f.resized_crop(x, 3, 0, 20, 64, [30, 30]),
    "resized window of the same size": lambda f, x: f.resized_crop(x, 3, 4, 20, 24, [20, 24]),
    "padded": lambda f, x: f.pad(x, [2, 3]),
    "padded by nothing": lambda f, x: f.pad(x, [0, 0]),
    "hue": lambda f, x: f.adjust_hue(x, 0.2),
    "saturation": lambda f, x: f.adjust_saturation(x, 1.2),
    "three gray channels": lambda f, x: f.rgb_to_grayscale(x, 3),
    "one gray channel": lambda f, x: f.rgb_to_grayscale(x, 1),
    "inverted": lambda f, x: f.invert(x),
}
STRIDES_V2 = {
    "equalized": lambda x: v2.functional.equalize(x),
    "jpeg": lambda x: v2.functional.jpeg(x, 40),
    "permuted": lambda x: v2.functional.permute_channels(x, [2, 0, 1]),
    "same levels": lambda x: v2.functional.posterize(x, 8),
    "quarter turn": lambda x: v2.functional.rotate(x, 90, expand=True),
}


@case(collate_fn=list)
def strides_of_functions_of_floats(data, i):
    functions = {
        (f.__name__, name): functools.partial(made, f) for f in (F, v2.functional) for name, made in STRIDES.items()
    }
    return {name: function(F.to_tensor(data.small(i))) for name, function in functions.items()}


@case(collate_fn=list)
def strides_of_functions_of_bytes(data, i):
    functions = {
        (f.__name__, name): functools.partial(made, f) for f in (F, v2.functional) for name, made in STRIDES.items()
    }
    return {name: function(F.pil_to_tensor(data.small(i))) for name, function in functions.items()}


@case(collate_fn=list)
def strides_of_functions_of_images(data, i):
    functions = STRIDES_V2 | {name: functools.partial(made, v2.functional) for name, made in STRIDES.items()}
    return {name: function(v2.functional.to_image(data.small(i))) for name, function in functions.items()}


@case(collate_fn=list)
def strides_of_functions_of_windows(data, i):
    x = v2.functional.to_image(data.small(i))[:, 3:-2, 4:]
    made = {name: function(v2.functional, x) for name, function in STRIDES.items() if "all" not in name}
    return made, {name: function(x) for name, function in STRIDES_V2.items()}, copy.deepcopy(x)


@case(collate_fn=list)
def strides_of_functions_of_gray_images(data, i):
    x = F.pil_to_tensor(data.small(i).convert("L"))
    return F.adjust_brightness(x, 1.2), F.solarize(x, 99), v2.functional.invert(x), v2.functional.resize(x, [9, 9])


@case(collate_fn=list)
def classes_of_results_of_tv_tensors(data, i):
    made = [v2.functional.to_image(data.small(i)) for _ in range(7)]
    floats = [v2.functional.to_dtype(x, torch.float32, scale=True) for x in made]
    floats[0] += 0.5
    changed = made[0].clamp_(3, 99), made[1].bitwise_and_(17), floats[1].mul_(2), torch.relu_(floats[2])
    return made, floats, changed, made[2].cpu(), floats[3].float(), made[3].byte(), +made[4], made[5].contiguous()


@case(collate_fn=list)
def info_of_gray_and_compressed_images(data, i):
    image = data.image(i)
    images = [v2.Grayscale(3)(image), T.Grayscale(3)(image), T.Grayscale(1)(image)]
    return *images, v2.functional.jpeg(image, 50), v2.functional.permute_channels(image, [2, 1, 0]), F.to_tensor(image)


@case(collate_fn=list)
def gray_images_made_of_arrays(data, i):
    gray = data.small(i).convert("L")
    return F.pad(gray, 3, padding_mode="reflect"), F.gaussian_blur(gray, 3), F.to_tensor(data.small(i))


@case(collate_fn=list)
def errors_of_functions_that_take_no_such_tensor(data, i):
    x, mask, seen = F.to_tensor(data.small(i)), tv_tensors.Mask(data.small(i).convert("L")), []
    calls = [
        lambda: F.posterize(x, 3),
        lambda: F.equalize(x),
        lambda: v2.functional.jpeg(x, 50),
        lambda: v2.functional.invert(mask),
        lambda: v2.functional.normalize(mask, [0.5], [0.5]),
    ]
    for call in calls if i > 7 else []:  # after the samples of the trial
        try:
            call()
        except (TypeError, RuntimeError) as error:
            seen.append((type(error).__name__, str(error)))
    return x, seen


# ---- Pillow


@case
def pasted(data, i):
    canvas, image = Image.new("RGB", (99, 99)), data.small(i)
    canvas.paste(image, (3, 3))
    canvas.paste(image.crop((0, 0, 9, 9)), (50, 50))
    return F.to_tensor(canvas)


@case
def drawn_on_after_resize_and_to_tensor(data, i):
    image = data.small(i)
    small, x = image.resize((20, 20)), F.to_tensor(image)
    ImageDraw.Draw(image).rectangle((3, 3, 20, 20), fill=(255, 0, 0))
    image.putpixel((0, 0), (1, 2, 3))
    image.paste((9, 9, 9), (30, 30, 33, 33))
    return F.to_tensor(image), F.to_tensor(small), x


@case
def pixels_read_and_written(data, i):
    image = data.small(i)
    pixels = image.load()
    value = pixels[3, 3]
    pixels[5, 5] = (7, 7, 7)
    return F.to_tensor(image), value


@case
def blended_inverted_and_filtered(data, i):
    image = data.small(i)
    images = Image.blend(image, F.hflip(image), 0.3), ImageChops.invert(image), image.filter(ImageFilter.BLUR)
    others = image.split()[1], Image.merge("RGB", image.split()), image.getchannel(2), image.point(lambda v: 255 - v)
    return *map(F.to_tensor, images), *map(F.to_tensor, others)


@case
def values_of_an_image(data, i):
    image = data.small(i)
    return (
        ImageStat.Stat(image).mean,
        image.getpixel((3, 3)),
        image.histogram()[:9],
        image.getcolors(9999)[:3],
        image.entropy(),
    )


@case(collate_fn=list)
def thumbnail_draft_and_reduce(data, i):
    image, other = Image.open(data.files.photos[i]), Image.open(data.files.photos[i])
    image.thumbnail((50, 50))
    other.draft("RGB", (60, 60))
    return F.to_tensor(image.convert("RGB")), F.to_tensor(other.convert("RGB")), F.to_tensor(data.small(i).reduce(2))


@case(collate_fn=list)
def thumbnail_after_convert(data, i):
    image = data.image(i)
    image.thumbnail((50, 50))
    return F.to_tensor(image)


@case(collate_fn=list)
def rotated_quantized_and_fitted(data, i):
    image = data.small(i)
    several = (
        image.rotate(20, expand=True),
        image.rotate(-20, Image.Resampling.BICUBIC, center=(10, 20), translate=(3, 5)),
        image.transform((40, 40), 0, (1, 0.1, 0, 0, 1, 0)),
        image.quantize(9).convert("RGB"),
    )
    return [
        F.to_tensor(x)
        for x in (*several, ImageOps.autocontrast(image), ImageOps.fit(image, (30, 30)), ImageOps.pad(image, (70, 30)))
    ]


@case
def all_transpositions(data, i):
    return [F.to_tensor(data.small(i).transpose(kind)) for kind in Image.Transpose]


@case
def windows(data, i):
    return [F.to_tensor(data.small(i).crop(box)) for box in ((0, 0, 9, 9), (-5, -5, 70, 60), (1.4, 2.6, 9.5, 10.5))]


@case
def all_resamplings(data, i):
    image = data.image(i)
    return [F.to_tensor(image.resize((40, 30), kind)) for kind in Image.Resampling], F.to_tensor(
        image.resize((40, 30), 2, (3, 4, 50, 60))
    )


@case
def empty_window_raises(data, i):
    return F.to_tensor(data.small(i).crop((9, 9, 3, 3)))


@case
def empty_size_raises(data, i):
    return F.to_tensor(data.small(i).resize((0, 3)))


@case
def unknown_resampling_raises(data, i):
    return F.to_tensor(data.small(i).resize((3, 3), 17))


@case
def unknown_mode_raises(data, i):
    return F.to_tensor(data.small(i).convert("XYZ"))


@case(collate_fn=list)
def facts_of_an_image(data, i):
    image = data.small(i)
    facts = image.getbands(), image.getbbox(), image.getextrema(), image.width, image == image.copy()
    facts += image.format, image.crop((0, 0, 9, 9)).format, hasattr(image, "filename")
    return F.to_tensor(image), *facts, image.tobytes()[:9], image.getcolors(1), image.has_transparency_data


@case
def saved_and_read_back(data, i):
    buffer = io.BytesIO()
    data.small(i).save(buffer, "PNG")
    return F.to_tensor(Image.open(buffer).convert("RGB"))


# ---- batches


@case(collate_fn=transpose_samples)
def images_in_a_batch(data, i):
    return data.small(i), i


@case(collate_fn=lambda samples: [(np.asarray(x), x.filename, type(x).__name__) for x in samples])
def opened_files_in_collate(data, i):
    return Image.open(data.files.photos[i])


class Box:
    def __init__(self, x):
        self.x = x


@case(collate_fn=lambda samples: [(float(one.x.sum()), one.x[0, 0, 0].item()) for one in samples])
def objects_in_collate(data, i):
    return Box(F.to_tensor(data.small(i)))


@case(collate_fn=list)
def objects_in_a_batch(data, i):
    return Box(F.to_tensor(data.small(i)))


@case(collate_fn=lambda samples: torch.stack(samples) * 2)
def arithmetic_in_collate(data, i):
    return F.to_tensor(data.small(i))


@case(collate_fn=lambda samples: (default_collate(samples), len(samples)))
def default_collate_in_collate(data, i):
    return TRAINING(data.image(i)), i


def cutmix_batch(samples):
    seed_all(len(samples))
    return v2.CutMix(num_classes=3)(*default_collate(samples))


@case(collate_fn=cutmix_batch)
def cutmix_in_collate(data, i):
    return TRAINING(data.image(i)), i % 3


def pad_batch(samples):
    images = [x for x, _ in samples]
    sides = [max(x.shape[at] for x in images) for at in (1, 2)]
    batch = torch.zeros(len(images), 3, *sides)
    for into, x in zip(batch, images, strict=True):
        into[:, : x.shape[1], : x.shape[2]].copy_(x)
    return batch, torch.tensor([i for _, i in samples])


@case(collate_fn=pad_batch)
def padding_in_collate(data, i):
    return F.to_tensor(data.image(i)), i


def raise_value_error(samples):
    raise ValueError(f"batch of {len(samples)}")


@case(collate_fn=raise_value_error)
def error_in_collate(data, i):
    return F.to_tensor(data.small(i))


@case
class Many(Photos):
    def __getitems__(self, indices):
        return [(F.to_tensor(self.small(i)), i) for i in indices]


@case
class Iterated(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        info = get_worker_info()
        for path in self.files.photos[info.id if info else 0 :: info.num_workers if info else 1]:
            yield F.to_tensor(Image.open(path).convert("RGB").resize((64, 48))), 1


@case(batch_size=None)
def without_batches(data, i):
    return TRAINING(data.image(i)), i


@case(drop_last=True, batch_size=5)
def last_batch_dropped(data, i):
    return TRAINING(data.image(i)), i


@case(sampler=[(i, 40) for i in range(12)])
def keys_of_a_sampler(data, key):
    i, side = key
    return F.to_tensor(data.image(i).resize((side, side))), i


@case(batch_size=1, batch_sampler=[[0, 3], [5], [1, 1, 2]])
def batch_sampler(data, i):
    return F.to_tensor(data.small(i)), i


@case
class RaisesInOneSample(Photos):
    count = 0

    def __getitem__(self, i):
        self.count += 1
        return F.to_tensor(self.small(i)), 1 / (i - 6)


@case
class KeyMissing(Photos):
    def __getitem__(self, i):
        return F.to_tensor(self.small(i)), {}[i] if i == 9 else 0


# ---- threads, generators, warnings


@case
def images_made_in_threads(data, i):
    made, image = {}, data.small(i)

    def work(k):
        made[k] = F.to_tensor(F.hflip(image)) if k % 2 else F.to_tensor(data.small(i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[k] for k in range(4)]


@case
def tensor_read_in_a_thread(data, i):
    x, made = F.to_tensor(data.small(i)), []
    thread = threading.Thread(target=lambda: made.append(x * 3))
    thread.start()
    thread.join()
    return made[0], x


@case
def generators_set_back(data, i):
    state = torch.get_rng_state()
    x = TRAINING(data.small(i))
    torch.set_rng_state(state)
    return x, TRAINING(data.small(i)), torch.rand(1), random.random(), np.random.rand()


@case
class WarningsCaught(Photos):
    def __getitem__(self, i):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = F.to_tensor(self.small(i))
            warnings.warn("of the data set", stacklevel=1)
        return x, [str(one.message) for one in caught]


@case
def frames_of_the_caller(data, i):
    return (
        F.to_tensor(data.small(i)),
        sys._getframe().f_code.co_name,
        threading.current_thread() is threading.main_thread(),
    )


# ---- tests


@pytest.fixture(scope="module")
def files(photos, tmp_path_factory):
    """Twelve small photos and as many odd files, all written some seconds ago."""
    root = tmp_path_factory.mktemp("real_images")
    pictures = [Image.open(path).convert("RGB") for path in sorted(photos.glob("*/*.jpg"))][:4]
    paths = []
    for number in range(12):
        picture = pictures[number % len(pictures)]
        left, top = 15 * number, 9 * number
        paths.append(str(root / f"{number:02d}.jpg"))
        window = picture.crop((left, top, left + 150 + 8 * number, top + 190 - 7 * number))
        window.save(paths[-1], quality=90, dpi=(72, 72), subsampling=number % 3)
    picture = pictures[0].resize((96, 72))
    exif = Image.Exif()
    exif[274] = 6
    modes = {
        "gray.jpg": "L",
        "cmyk.jpg": "CMYK",
        "palette.png": "P",
        "alpha.png": "RGBA",
        "rgb.png": "RGB",
        "deep.png": "I;16",
    }
    odd = {}
    for name in (*modes, "turned.jpg", "progressive.jpg", "photo.webp", "photo.bmp", "photo.tif", "photo.gif"):
        image = picture.convert("L").convert("I;16") if name == "deep.png" else picture.convert(modes.get(name, "RGB"))
        image.save(
            root / name, **{"turned.jpg": {"exif": exif}, "progressive.jpg": {"progressive": True}}.get(name, {})
        )
        odd[name] = str(root / name)
    (root / "trailing.jpg").write_bytes(Path(paths[0]).read_bytes() + b"something after the image" * 9)
    (root / "cut.jpg").write_bytes(Path(paths[0]).read_bytes()[:-3000])
    time.sleep(SETTLED)
    return Files(paths, {**odd, "trailing.jpg": str(root / "trailing.jpg")}, str(root / "cut.jpg"))


def run_both(name, files, workers, epochs=2, **options):
    """Run a case with torch's loader and with the tested one."""
    one = CASES[name]

    def dataset():
        if isinstance(one.sample, type):
            return one.sample(files)
        return Photos(files, one.sample, seeded=workers > 0)

    options = {**one.options, **options}
    if options.get("batch_sampler"):
        del options["batch_size"]
    options["num_workers"] = workers
    return [run(loader, dataset, options, epochs) for loader in (DataLoader, under_test)]


# Cases with two workers: some for each way in which samples and errors leave a worker, and for state in a worker
WITH_WORKERS = """
palette_given_to_a_gray_image storage_offset_of_a_window class_compared_in_a_registry class_of_tensors_in_collate
image_and_tensor_in_collate MissingAttributeIsCounted rest_of_an_open_file OpenedByTheConstructor odd_files_as_they_are
truncated_file_skipped missing_file_raises color_jitter boxes_and_masks as_many_images_as_objects
CacheOfTensorsChangedInPlace parts_that_share_memory written_through_numpy sizes_that_differ_raise
strides_of_functions_of_windows classes_of_results_of_tv_tensors drawn_on_after_resize_and_to_tensor
images_in_a_batch opened_files_in_collate objects_in_a_batch arithmetic_in_collate error_in_collate Many
without_batches keys_of_a_sampler RaisesInOneSample images_made_in_threads generators_set_back WarningsCaught
"""


@pytest.mark.alike
@pytest.mark.parametrize("name", WITH_WORKERS.split())
def test_results_equal_torchs_with_two_workers(files, name):
    theirs, ours = run_both(name, files, 2, epochs=1)
    assert not unlike(theirs, ours, 2, CASES[name].limit), unlike(theirs, ours, 2, CASES[name].limit)


# Cases whose pixels DALI must compute
ON_DALI = """
classification v2_of_images v2_image_first v2_to_pure_tensor v2_to_image v2_to_image_in_lists v2_functions
bytes_of_pixels bytes_of_pixels_in_lists functions_imported_by_name dict_namedtuple_and_text several_views
views_stacked views_concatenated as_many_crops_as_objects arithmetic_in_place_with_copies operators_in_place
keys_of_a_sampler without_batches batch_sampler last_batch_dropped default_collate_in_collate
generators_set_back Many Counter MissingAttributeIsCounted MissingFileCounted CacheOfImages
LruCacheOfImages WarningsCaught color_jitter class_compared_in_a_helper class_compared_four_calls_away
class_compared_in_a_registry class_compared_by_a_function_found_by_name class_compared_by_builtins_type
class_compared_by_an_alias class_compared_by_a_default_argument class_compared_in_executed_source
class_as_key_of_a_registry class_of_an_opened_file names_of_an_image_class metaclass_of_the_users
annotation_with_a_class class_or_object type_as_a_key isinstance_of_a_tensor match_and_singledispatch
rest_of_an_open_file bytes_overwritten_after_convert file_closed_after_convert image_closed_by_with
name_of_an_opened_file open_replaced_by_a_wrapper loaded_as_a_statement bytes_loaded_as_hugging_face_does
turned_by_exif image_and_tensor_in_collate all_transpositions windows images_made_in_threads
frames_of_the_caller boxes_and_masks boxes_and_masks_image_first
strides_of_functions_of_floats strides_of_functions_of_bytes strides_of_functions_of_images
strides_of_functions_of_windows classes_of_results_of_tv_tensors info_of_gray_and_compressed_images
gray_images_made_of_arrays errors_of_functions_that_take_no_such_tensor
"""
assert CASES.keys() >= {*ON_DALI.split()}


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_results_equal_torchs_without_workers(files, name):
    """A data set with a state runs for two epochs."""
    theirs, ours = run_both(name, files, 0, epochs=1 + isinstance(CASES[name].sample, type))
    assert not unlike(theirs, ours, 0, CASES[name].limit), unlike(theirs, ours, 0, CASES[name].limit)
    assert name not in ON_DALI.split() or (ours.error is None and ours.on_dali)


@pytest.mark.parametrize("name", ["Counter", "CacheOfImages", "Iterated"])
def test_results_equal_torchs_with_persistent_workers(files, name):
    theirs, ours = run_both(name, files, 2, persistent_workers=True)
    assert not unlike(theirs, ours, 2), unlike(theirs, ours, 2)


def fail_to_start(number):
    raise RuntimeError(f"worker {number} does not start")


def test_worker_init_fn_that_raises_ends_the_epoch_with_torchs_error(files):
    theirs, ours = run_both("classification", files, 2, worker_init_fn=fail_to_start)
    assert theirs.error is not None and not unlike(theirs, ours, 2), unlike(theirs, ours, 2)


def test_comparison_detects_a_changed_value_type_or_generator_state(files):
    theirs, ours = run_both("classification", files, 0)
    theirs, ours = (
        theirs._replace(batches=theirs.batches[:1]),
        theirs._replace(batches=copy.deepcopy(theirs.batches[:1])),
    )
    assert not unlike(theirs, ours, 0)
    ours.batches[0][0][0, 0, 0, 0] += 1e-6
    assert "1 of" in unlike(theirs, ours, 0)
    assert unlike(
        theirs, theirs._replace(batches=[[tv_tensors.Image(x) if x.ndim > 1 else x for x in theirs.batches[0]]]), 0
    )
    assert "generators" in unlike(theirs, theirs._replace(generators=(torch.zeros(3), *theirs.generators[1:])), 0)
