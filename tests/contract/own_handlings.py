"""Processing of an image in a custom data set: each function is a `__getitem__` of a list of paths and an index."""

import copy
import io
import pickle
import random
import threading

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2

TAIL = T.Compose([T.Resize((32, 40)), T.ToTensor()])
CROP = T.RandomResizedCrop(24)


def open_rgb(paths, i):
    return Image.open(paths[i % len(paths)]).convert("RGB")


# ---- PIL images: changed, read and created


def thumbnail(paths, i):
    image = open_rgb(paths, i)
    image.thumbnail((50, 50))
    return T.CenterCrop(24)(F.to_tensor(image))


def thumbnail_before_reading(paths, i):
    image = Image.open(paths[i])
    image.thumbnail((50, 50))
    return T.CenterCrop(24)(F.to_tensor(image.convert("RGB")))


def draft(paths, i):
    image = Image.open(paths[i])
    image.draft("RGB", (30, 30))
    return TAIL(image.convert("RGB")), image.size


def pasted_into(paths, i):
    image = open_rgb(paths, i)
    image.paste((255, 0, 0), (0, 0, 20, 20))
    return TAIL(image)


def drawn_on_after_its_transform(paths, i):
    image = open_rgb(paths, i)
    before = TAIL(image)
    ImageDraw.Draw(image).rectangle((0, 0, 30, 30), fill=(0, 255, 0))
    return before, TAIL(image)


def image_attributes(paths, i):
    image = Image.open(paths[i])
    first = image.format, image.mode, image.filename == paths[i], sorted(map(str, image.info)), image.size
    rgb = image.convert("RGB")
    window = rgb.crop((0, 0, 40, 40))
    second = rgb.format, window.format, hasattr(window, "filename"), window.size, window.getbands(), window.width
    return F.to_tensor(window), str((first, second))


def resized_in_several_ways(paths, i):
    image = open_rgb(paths, i)
    return [
        F.to_tensor(image.resize((40, 30), Image.Resampling.LANCZOS)),
        F.to_tensor(image.resize((40, 30), Image.Resampling.BILINEAR, (3, 4, 30, 35))),
        F.to_tensor(image.resize((40, 30), Image.Resampling.BICUBIC, reducing_gap=2.0)),
        F.to_tensor(image.reduce(3)).shape,
    ]


def rotated_and_transposed(paths, i):
    image = open_rgb(paths, i)
    return [
        TAIL(image.rotate(33, expand=True, fillcolor=(9, 8, 7))),
        TAIL(image.rotate(-20, Image.Resampling.BICUBIC, center=(10, 20), translate=(3, 5))),
        TAIL(image.rotate(90, expand=True)),
        *(TAIL(image.transpose(Image.Transpose(way))) for way in range(7)),
    ]


def in_other_modes(paths, i):
    image = open_rgb(paths, i)
    swapped = Image.merge("RGB", image.split()[::-1])
    return [
        TAIL(image.convert("L")),
        TAIL(image.convert("L").convert("RGB")),
        TAIL(image.quantize(8).convert("RGB")),
        TAIL(swapped),
        TAIL(image.getchannel(i % 3)),
    ]


def by_imageops(paths, i):
    image = ImageOps.exif_transpose(Image.open(paths[i])).convert("RGB")
    return [
        F.to_tensor(ImageOps.fit(image, (40, 40), Image.Resampling.BILINEAR)),
        F.to_tensor(ImageOps.pad(image, (40, 40), color=(1, 2, 3))),
        T.CenterCrop(32)(F.to_tensor(ImageOps.contain(image, (40, 40)))),
        TAIL(ImageOps.expand(ImageOps.mirror(ImageOps.flip(ImageOps.grayscale(image))), 5, 77)),
        TAIL(ImageEnhance.Color(ImageEnhance.Contrast(image).enhance(1.5)).enhance(0.3)),
        TAIL(image.filter(ImageFilter.GaussianBlur(2))),
        TAIL(image.point(lambda value: 255 - value)),
    ]


def letterboxed(paths, i):
    image = open_rgb(paths, i)
    scale = 40 / max(image.size)
    image = image.resize([max(1, int(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (40, 40), (114, 114, 114))
    canvas.paste(image, ((40 - image.width) // 2, (40 - image.height) // 2))
    return F.to_tensor(canvas)


def blended(paths, i):
    one, other = (open_rgb(paths, k).resize((40, 40)) for k in (i, i + 1))
    return F.to_tensor(Image.blend(one, other, 0.3))


def statistics(paths, i):
    image = open_rgb(paths, i)
    return TAIL(image), image.getextrema(), image.getbbox(), image.histogram()[:5], open_rgb(paths, i) == image


def copied(paths, i):
    image = open_rgb(paths, i)
    return (
        TAIL(copy.copy(image)),
        TAIL(copy.deepcopy(image)),
        TAIL(image.copy()),
        pickle.loads(pickle.dumps(TAIL(image))),
    )


def saved_and_read(paths, i):
    file = io.BytesIO()
    open_rgb(paths, i).resize((30, 30)).save(file, "JPEG", quality=40)
    return F.to_tensor(Image.open(io.BytesIO(file.getvalue())))


def from_bytes(paths, i):
    with open(paths[i], "rb") as file:
        return TAIL(Image.open(io.BytesIO(file.read())).convert("RGB"))


def from_an_open_file(paths, i):
    with open(paths[i], "rb") as file:
        image = Image.open(file).convert("RGB")
    return TAIL(image)


def closed_after_load(paths, i):
    with Image.open(paths[i]) as image:
        image.load()
    return TAIL(image.convert("RGB"))


def as_arrays(paths, i):
    image = open_rgb(paths, i)
    window = np.asarray(image.crop((0, 0, 30, 30))).copy()
    return np.array(image.resize((20, 20))).tolist(), torch.from_numpy(window).permute(2, 0, 1).float() / 255


# ---- tensors


def changed_in_place(paths, i):
    image = TAIL(open_rgb(paths, i))
    image += 1
    image[0] *= 0.5
    image[:, :5] = 0
    row = image[1]
    row.zero_()
    return image


def arithmetic(paths, i):
    image = TAIL(open_rgb(paths, i))
    return image * 2 - 1, -image, image > 0.5, image.sum(), (image - image.mean()) / image.std()


def shaped(paths, i):
    image = TAIL(open_rgb(paths, i))
    return (
        image.permute(1, 2, 0),
        image[None].squeeze(0),
        image[:1],
        image.half(),
        image.double().mean(0),
        image.flip(-1),
    )


def stacked(paths, i):
    image = open_rgb(paths, i)
    both = TAIL(image), TAIL(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    return torch.stack(both), torch.cat(both), 0.3 * both[0] + 0.7 * both[1]


def same_tensor_twice(paths, i):
    image = TAIL(open_rgb(paths, i))
    return {"image": image, "more": [image, {"image": image, "number": i}]}


def tensor_attributes(paths, i):
    image = F.to_tensor(open_rgb(paths, i))
    known = image.shape[1], image.ndim, image.numel(), str(image.dtype), len(image), str(image.device)
    return T.Resize((20, 20))(image), known, isinstance(image, torch.Tensor), torch.is_tensor(image)


def resized_as_tensors(paths, i):
    image = open_rgb(paths, i)
    whole, real = F.pil_to_tensor(image), F.to_tensor(image)
    return [
        F.resize(whole, [20, 21], antialias=True),
        F.resize(real, [20, 21], antialias=False),
        F.rotate(F.hflip(F.adjust_hue(F.crop(F.resize(real, [33, 31]), -2, 3, 30, 40), 0.2)), 30),
        F.to_tensor(F.resize(F.resize(F.resize(image, 60), (40, 44)), (21, 20), T.InterpolationMode.BICUBIC)),
    ]


def custom_attributes(paths, i):
    image = open_rgb(paths, i)
    image.mine = 5
    tensor = TAIL(image)
    tensor.mine = 6
    return tensor, image.mine, tensor.mine


# ---- random numbers


def seeded_per_sample(paths, i):
    torch.manual_seed(i)
    one = CROP(open_rgb(paths, i))
    torch.manual_seed(i)
    return F.to_tensor(one), F.to_tensor(CROP(open_rgb(paths, i))), torch.rand(1)


def in_forked_generator(paths, i):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        image = CROP(open_rgb(paths, i))
    return F.to_tensor(image), torch.rand(2), random.random(), np.random.rand()


def chosen_by_random_numbers(paths, i):
    image = open_rgb(paths, i)
    if random.random() < 0.5:
        image = F.hflip(image)
    if np.random.rand() < 0.5:
        image = F.vflip(image)
    side = random.randint(8, min(image.size))
    left, top = (random.randint(0, length - side) for length in image.size)
    image = image.crop((left, top, left + side, top + side))
    image = image.resize((32, 32), random.choice([Image.Resampling.BILINEAR, Image.Resampling.NEAREST]))
    if torch.rand(1) < 0.3:
        image = image.convert("L").convert("RGB")
    return F.normalize(F.to_tensor(image), [0.5] * 3, [0.5] * 3)


def several_crops(paths, i):
    image = open_rgb(paths, i)
    views = T.Compose([CROP, T.ToTensor()])
    five, ten = T.FiveCrop(20)(image), F.ten_crop(image, 20)
    return [views(image), views(image), *map(F.to_tensor, five), torch.stack([F.to_tensor(one) for one in ten])]


def erased(paths, i):
    image = T.Compose([T.Resize((40, 40)), T.ToTensor(), T.RandomErasing(0.9, value="random")])(open_rgb(paths, i))
    return torch.nn.Sequential(T.RandomErasing(0.9), T.Normalize([0.4] * 3, [0.3] * 3))(image)


def boxes_and_masks(paths, i):
    image = tv_tensors.Image(open_rgb(paths, i))
    height, width = image.shape[-2:]
    corners = [[0, 0, width / 2, height / 2], [5, 5, width - 5, height - 5]]
    boxes = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(height, width))
    target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    image, target = v2.Compose([v2.RandomZoomOut(p=0.7), v2.RandomIoUCrop(), v2.Resize((32, 32))])(image, target)
    return v2.functional.to_dtype(image, torch.float32, scale=True), target["boxes"].sum(), target["labels"].sum()


def in_a_thread(paths, i):
    made = []
    thread = threading.Thread(target=lambda: made.append(TAIL(open_rgb(paths, i))))
    thread.start()
    thread.join()
    return made[0]


HANDLINGS = {
    name: function
    for name, function in list(vars().items())
    if getattr(function, "__module__", "") == __name__ and function is not open_rgb
}
