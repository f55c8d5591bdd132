"""Typical custom data sets, with the files and labels of an image folder."""

import csv
import io
import os
import random
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import functional as F
from torchvision.transforms import v2

TRANSFORM = T.Compose(
    [T.Resize((20, 24)), T.CenterCrop(16), T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
)
FLIPPED = T.Compose([T.CenterCrop(16), T.RandomHorizontalFlip(1.0), T.ToTensor()])
V2 = v2.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
AFTER = T.Compose([T.ToTensor(), T.Normalize((0.5,), (0.25,))])


class Plain(data.Dataset):
    def __init__(self, folder: ImageFolder, transform=TRANSFORM):
        self.paths = [path for path, _ in folder.samples]
        self.labels = [label for _, label in folder.samples]
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        if self.transform:
            image = self.transform(image)
        return image, self.labels[i]


# ---- data sets whose images are deferred


class WithV2(Plain):
    def __init__(self, folder):
        super().__init__(folder, V2)


class AsDict(Plain):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        image = image.convert("RGB")
        return {"image": self.transform(image), "label": self.labels[idx], "path": self.paths[idx]}


class Boxes(Plain):
    """Columns of an image's only box, contiguous in torch for any stride."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        boxes = torch.arange(10.0).reshape(2, 5)[:1] + i
        return image, boxes[:, 4], boxes.t()[:1], boxes.diagonal()[:1], label


class Pets(data.Dataset):
    """The data set of Accelerate's cv_example.py."""

    def __init__(self, folder):
        self.file_names = [path for path, _ in folder.samples]
        self.image_transform = TRANSFORM
        self.label_to_id = {name: number for number, name in enumerate(folder.classes)}

    def __len__(self):
        return len(self.file_names)

    def __getitem__(self, idx):
        fname = self.file_names[idx]
        raw_image = Image.open(fname)
        image = raw_image.convert("RGB")
        if self.image_transform is not None:
            image = self.image_transform(image)
        label = Path(fname).parent.name
        if self.label_to_id is not None:
            label = self.label_to_id[label]
        return {"image": image, "label": label}


class Kaggle(Plain):
    """A data set from a CSV file, read by pandas if installed."""

    def __init__(self, folder):
        self.root, self.transform = Path(folder.root), TRANSFORM
        rows = [(os.path.relpath(path, folder.root), label) for path, label in folder.samples]
        try:
            import pandas as pd
        except ImportError:
            buffer = io.StringIO()
            csv.writer(buffer).writerows(rows)
            self.df = list(csv.reader(io.StringIO(buffer.getvalue())))
        else:
            self.df = pd.DataFrame(rows, columns=["image_id", "label"])

    def __len__(self):
        return len(self.df)

    def __getitem__(self, index):
        row = self.df[index] if isinstance(self.df, list) else self.df.iloc[index]
        img_path = os.path.join(self.root, row[0] if isinstance(row, list) else row["image_id"])
        label = torch.tensor(int(row[1] if isinstance(row, list) else row["label"]), dtype=torch.float32)
        with Image.open(img_path) as img:
            img = self.transform(img.convert("RGB"))
        return img, label


class OpenedFile(Plain):
    def __getitem__(self, i):
        with open(self.paths[i], "rb") as f:
            img = Image.open(f)
            img = img.convert("RGB")
        return self.transform(img), np.int64(self.labels[i])


class InMemory(Plain):
    def __init__(self, folder):
        super().__init__(folder)
        self.blobs = [Path(path).read_bytes() for path in self.paths]

    def __getitem__(self, i):
        return self.transform(Image.open(io.BytesIO(self.blobs[i])).convert("RGB")), self.labels[i]


class OpensByMethod(Plain):
    """Images opened by a method and a function."""

    def load(self, path):
        return read_rgb(path)

    def __getitem__(self, i):
        return self.transform(self.load(Path(self.paths[i]))), self.labels[i]


def read_rgb(path):
    return Image.open(path).convert("RGB")


class UsesLoaders(Plain):
    def __getitem__(self, i):
        load = default_loader if i % 2 else pil_loader
        return TRANSFORM(load(self.paths[i])), torch.eye(4)[self.labels[i]]


Item = namedtuple("Item", "index image extra")


class Named(Plain):
    def __getitem__(self, i):
        image = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return Item(i, image, {"a": [1.5, i], "name": os.path.basename(self.paths[i])})


class AsList(Plain):
    def __getitem__(self, i):
        return [i, self.transform(read_rgb(self.paths[i]))]


class ImageOnly(Plain):
    def __getitem__(self, i):
        return self.transform(read_rgb(self.paths[i]))


class Gray(Plain):
    def __getitem__(self, i):
        return AFTER(T.CenterCrop(16)(Image.open(self.paths[i]).convert("L"))), self.labels[i]


class WithoutConvert(Plain):
    """Images without convert()."""

    def __init__(self, folder):
        super().__init__(folder)
        self.paths = [path for path in self.paths if Image.open(path).mode == "RGB"]

    def __getitem__(self, i):
        return self.transform(Image.open(self.paths[i])), self.labels[i]


class CreatesTransforms(Plain):
    """Transforms created for each sample."""

    def __getitem__(self, i):
        image = T.CenterCrop(16)(read_rgb(self.paths[i]))
        image = T.ToTensor()(image)
        return T.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))(image), self.labels[i]


class ByClass(Plain):
    """Flips for some classes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.transforms = {True: FLIPPED, False: TRANSFORM}

    def __getitem__(self, i):
        return self.transforms[self.labels[i] == 1](read_rgb(self.paths[i])), self.labels[i]


class Noisy(Plain):
    """Random labels for some samples."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return image, random.randrange(100) if random.random() < 0.5 else label


class Mixed(Plain):
    """Random replacement of the index, with a numpy generator and torch's."""

    def __init__(self, folder):
        super().__init__(folder)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i):
        if torch.rand(()) < 0.5:
            i = int(self.rng.integers(len(self)))
        return super().__getitem__(i)


class WithPath(ImageFolder):
    """An ImageFolder that also returns the path."""

    def __init__(self, folder):
        super().__init__(folder.root, TRANSFORM)

    def __getitem__(self, index):
        return (*super().__getitem__(index), self.imgs[index][0])


class Transformed(data.Dataset):
    """A Subset with a transform."""

    def __init__(self, folder):
        self.subset, self.transform = data.Subset(ImageFolder(folder.root), range(3, 20)), TRANSFORM

    def __len__(self):
        return len(self.subset)

    def __getitem__(self, index):
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y


class AsOrderedDict(Plain):
    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return OrderedDict(image=image, label=label)


class ChecksClass(Plain):
    """Checks of the image's class, which do not read its pixels."""

    def __getitem__(self, i):
        image = Image.open(self.paths[i])
        number = int(isinstance(image, JpegImageFile))
        image = image.convert("RGB")
        assert not isinstance(image, (torch.Tensor, JpegImageFile)) and isinstance(image, Image.Image)
        return self.transform(image), number


class Tried(Plain):
    """The next file in place of an unreadable one."""

    def __getitem__(self, i):
        try:
            image = read_rgb(self.paths[i])
        except OSError:
            return self[(i + 1) % len(self)]
        return self.transform(image), self.labels[i]


class LoaderAttribute(Plain):
    """A loader attribute as in torchvision's folders."""

    def __init__(self, folder):
        super().__init__(folder)
        self.loader = default_loader

    def __getitem__(self, i):
        return self.transform(self.loader(self.paths[i])), self.labels[i]


class Reader:
    def __init__(self, paths):
        self.paths, self.files = paths, None

    def read(self, i):
        if self.files is None:
            self.files = [Path(path) for path in self.paths]
        return Decoder(self.files[i].read_bytes()).decode()


class Decoder:
    def __init__(self, data):
        self.data = data

    def decode(self):
        return Image.open(io.BytesIO(self.data)).convert(mode="RGB")


class ByReader(Plain):
    """Images opened by objects of other classes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.reader = Reader(self.paths)

    def __getitem__(self, i):
        return self.transform(self.reader.read(i)), self.labels[i]


class ReadsSize(Plain):
    """Mode and size, read from an opened and from a converted image."""

    def __getitem__(self, i):
        image = Image.open(self.paths[i])
        number = min(image.size)
        if image.mode != "RGB":
            image = image.convert("RGB")
        assert image.mode == "RGB" and (image.width, image.height) == image.size
        return self.transform(image), number


class UsesResize(Plain):
    """Pillow's resize() and torchvision's transforms."""

    def __getitem__(self, i):
        image = read_rgb(self.paths[i])
        image = image.resize((18, 22)) if i % 2 else image.resize((24, 20), Image.BILINEAR)
        assert image.resize((8, 8), Image.NEAREST) is not image
        return AFTER(T.CenterCrop(16)(image)), self.labels[i]


class UsesExif(Plain):
    """EXIF orientation, occasional flips, and the size after transforms."""

    def __getitem__(self, i):
        image = ImageOps.exif_transpose(Image.open(self.paths[i]))
        if image.mode != "RGB":
            image = image.convert("RGB")
        assert type(image.copy()) is type(image) and image.getbands() == ("R", "G", "B")
        if i % 3 == 1:
            image = F.hflip(image) if i % 2 else image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        image = T.CenterCrop((16, 12))(image)
        assert (image.mode, image.size, image.height) == ("RGB", (12, 16), 16) and image.convert("L").mode == "L"
        return AFTER(image), self.labels[i]


class UsesFunctions(Plain):
    """Functions instead of transforms."""

    def __getitem__(self, i):
        image = F.resize(read_rgb(self.paths[i]), [20, 24] if i % 2 else 22)
        image = F.center_crop(F.pad(F.hflip(image), 2), output_size=16) if i % 3 else F.center_crop(image, 16)
        return F.normalize(F.to_tensor(image), [0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4]).float(), self.labels[i]


class WithMask(Plain):
    """A mask computed by the data set."""

    def __getitem__(self, i):
        mask = np.array(Image.open(self.paths[i]).convert("L").resize((16, 16)), np.int64) // 128
        return {"image": self.transform(read_rgb(self.paths[i])), "mask": torch.from_numpy(mask)}


class MaybeToTensor(T.ToTensor):
    def __call__(self, pic):
        return pic if isinstance(pic, torch.Tensor) else super().__call__(pic)


class CropSubclass(T.CenterCrop):
    def __init__(self):
        super().__init__(16)


class SubclassedTransforms(Plain):
    """Subclasses of transforms with unchanged behaviour."""

    def __init__(self, folder):
        super().__init__(
            folder, T.Compose([T.Resize(20), CropSubclass(), MaybeToTensor(), T.Normalize((0.5,), (0.25,))])
        )


class Dataset(Plain):
    """A class in a module with the name of Hugging Face's package."""

    __module__ = "datasets.pets"


class ImageAndMask(Plain):
    def __getitem__(self, i):
        image, mask = read_rgb(self.paths[i]), Image.open(self.paths[i]).convert("L")
        return AFTER(T.CenterCrop(16)(image)), AFTER(T.CenterCrop(16)(mask))


class TwoCrops(Plain):
    def __getitem__(self, i):
        image = read_rgb(self.paths[i])
        return [self.transform(image), FLIPPED(image)], self.labels[i]


class Triplets(Plain):
    """Images of several files, one of them twice, nested and of several shapes and sources."""

    def __getitem__(self, i):
        anchor = self.transform(read_rgb(self.paths[i]))
        with open(self.paths[i - 1], "rb") as file:
            other = self.transform(Image.open(io.BytesIO(file.read())).convert("RGB"))
        small = {"small": AFTER(T.Resize((8, 9))(read_rgb(self.paths[i - 2]))), "again": anchor}
        return Item(i, anchor, [other, small, self.labels[i]])


class LargeMasks(Plain):
    """Large masks computed by the data set."""

    def __getitem__(self, i):
        mask = np.array(Image.open(self.paths[i]).convert("L").resize((300, 250)), np.int64)
        return self.transform(read_rgb(self.paths[i])), mask, torch.from_numpy(mask[:, ::2].copy())


class CropsBeyondImage(Plain):
    def __getitem__(self, i):
        image = read_rgb(self.paths[i])
        return self.transform(image.crop((-1, 0, 18, 18))), self.labels[i]


class Stacked(Plain):
    def __getitem__(self, i):
        return torch.stack([self.transform(read_rgb(self.paths[i - number])) for number in range(2)]), self.labels[i]


class Cached(Plain):
    def __init__(self, folder):
        super().__init__(folder)
        self.cache = {}

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = read_rgb(self.paths[i])
        return self.transform(self.cache[i]), self.labels[i]


class CachedTensors(Plain):
    def __init__(self, folder):
        super().__init__(folder)
        self.cache = {}

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = super().__getitem__(i)
        return self.cache[i]


class Batched(Plain):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class DelegatesGetitems(data.Dataset):
    """A data set whose __getitems__ belongs to another data set; torch calls it only if there is a batch size."""

    def __init__(self, folder):
        self.inner = data.Subset(Plain(folder), range(len(folder.samples)))

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        return self.inner[i], i


SERVED = [
    Plain,
    WithV2,
    AsDict,
    Boxes,
    Pets,
    Kaggle,
    OpenedFile,
    InMemory,
    OpensByMethod,
    UsesLoaders,
    Named,
    AsList,
    ImageOnly,
    Gray,
    CreatesTransforms,
]
SERVED += [ByClass, Noisy, Mixed, WithPath, Transformed, Tried, WithoutConvert, AsOrderedDict, ChecksClass]
SERVED += [
    LoaderAttribute,
    ByReader,
    SubclassedTransforms,
    Dataset,
    ReadsSize,
    UsesResize,
    UsesExif,
    UsesFunctions,
    WithMask,
]
SERVED += [ImageAndMask, TwoCrops, Triplets, LargeMasks, CropsBeyondImage, Stacked]
SERVED += [Cached, CachedTensors, Batched, DelegatesGetitems]


# ---- data sets that are left to torch's loader


class Arrays(Plain):
    """Arrays, as for albumentations or OpenCV."""

    def __getitem__(self, i):
        image = np.array(read_rgb(self.paths[i]))[:16, :16]
        return torch.from_numpy(image).permute(2, 0, 1), self.labels[i]


class Clamped(Plain):
    def __getitem__(self, i):
        return super().__getitem__(i)[0].clamp(0.1), self.labels[i]


class Untranslated(Plain):
    def __init__(self, folder):
        super().__init__(folder, T.Compose([T.CenterCrop(16), T.Lambda(np.asarray), T.ToTensor()]))


REFUSED = {
    Arrays: "uses the image's pixels",
    Clamped: "uses the tensor's clamp",
    Untranslated: "uses the image's",
}
