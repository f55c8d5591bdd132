"""Create fake data sets with masks and boxes from photos, in the layouts of COCO, Pascal VOC and others."""

import json
import math
import os
import random

import numpy as np
from PIL import Image, ImageDraw

COCO_OF_VOC = [5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72]
CITYSCAPES = [4, 7, 8, 11, 21, 26]


class Photo:
    """A photo and objects in it: boxes (left, top, right, bottom), each with an ellipse."""

    def __init__(self, path, draw: random.Random):
        self.path, self.size, self.draw = path, Image.open(path).size, draw
        self.boxes = [self._box() for _ in range(draw.randint(1, 4))]

    def _box(self):
        sides = [self.draw.randint(side // 6, side // 2) for side in self.size]
        corner = [self.draw.randint(0, side - length) for side, length in zip(self.size, sides, strict=True)]
        return (*corner, *(at + length for at, length in zip(corner, sides, strict=True)))

    def mask(self, labels, border=None):
        """Draw a mask. The objects get the ``labels`` in turn."""
        mask = Image.new("L", self.size)
        for number, box in enumerate(self.boxes):
            ImageDraw.Draw(mask).ellipse(box, labels[number % len(labels)], border)
        return mask


class Folder:
    """The folder that a data set's files are written to."""

    def __init__(self, root):
        self.root = root

    def path(self, *parts):
        made = self.root.joinpath(*parts)
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    def link(self, photo, *parts):
        os.symlink(photo.path, self.path(*parts))

    def text(self, lines, *parts):
        self.path(*parts).write_text("\n".join(lines) + "\n")

    def json(self, value, *parts):
        self.path(*parts).write_text(json.dumps(value))


def make(photos, root, count):
    """Write all data sets below ``root``, with ``count`` photos for training and a quarter of that for validation."""
    draw = random.Random(0)
    files = [path.resolve() for path in sorted(photos.glob("*/*")) if path.is_file()]
    usable = [path for path in files if _is_usable(path)][: count + count // 4]
    if len(usable) < count + count // 4:
        raise SystemExit(f"{photos} has {len(usable)} RGB photos of 180 pixels or more; pass a smaller --photos")
    several = [Photo(path, draw) for path in usable]
    train, val = several[:count], several[count:]
    for split, part in ("train2017", train), ("val2017", val):
        coco(Folder(root / "coco"), split, part, draw)
    voc(Folder(root / "voc/VOCdevkit/VOC2012"), train, val)
    boxes(Folder(root / "boxes"), train)
    for number, photo in enumerate(train):
        masks(root, number, photo)
    pets = [f"cat_{number} 1 1 1" for number in range(count)]
    for name in "trainval", "test":
        Folder(root / "pets").text(pets, "annotations", f"{name}.txt")


def _is_usable(path):
    with Image.open(path) as image:
        return image.mode == "RGB" and min(image.size) >= 180


def coco(folder, split, photos, draw):
    images, found = [], {"instances": [], "person_keypoints": []}
    for number, photo in enumerate(photos, 1):
        name = f"{number:012d}.jpg"
        folder.link(photo, split, name)
        images.append({"id": number, "file_name": name, "width": photo.size[0], "height": photo.size[1]})
        for left, top, right, bottom in photo.boxes if number % 9 else []:  # some photos have no object
            width, height = float(right - left), float(bottom - top)
            turns = [math.tau * step / 12 for step in range(12)]
            outline = [(left + width * (1 + math.cos(t)) / 2, top + height * (1 + math.sin(t)) / 2) for t in turns]
            one = {"id": len(found["instances"]) + 1, "image_id": number, "iscrowd": 0, "area": width * height}
            one |= {"bbox": [float(left), float(top), width, height], "segmentation": [sum(map(list, outline), [])]}
            points = [[draw.randint(left, right), draw.randint(top, bottom), draw.choice([1, 2])] for _ in range(17)]
            found["instances"].append(one | {"category_id": draw.choice(COCO_OF_VOC)})
            found["person_keypoints"].append(one | {"category_id": 1, "keypoints": sum(points, [])})
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, 91)]
    for kind, annotations in found.items():
        whole = {"images": images, "annotations": annotations, "categories": categories}
        folder.json(whole, "annotations", f"{kind}_{split}.json")


def voc(folder, train, val):
    names = [f"2007_{number:06d}" for number in range(len(train + val))]
    palette = np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes()
    for name, photo in zip(names, train + val, strict=True):
        folder.link(photo, "JPEGImages", f"{name}.jpg")
        mask = photo.mask([8, 12, 15, 20], border=255)
        mask.putpalette(palette)
        mask.save(folder.path("SegmentationClass", f"{name}.png"))
    for part, some in ("train", names[: len(train)]), ("val", names[len(train) :]):
        folder.text(some, "ImageSets", "Segmentation", f"{part}.txt")


def masks(root, number, photo):
    """Write the data sets that have one mask per photo."""
    penn, city = Folder(root / "penn/data/PennFudanPed"), Folder(root)
    image = Image.open(photo.path)
    image.save(penn.path("PNGImages", f"FudanPed{number:05d}.png"))
    photo.mask([1, 2, 3, 4]).save(penn.path("PedMasks", f"FudanPed{number:05d}_mask.png"))
    carvana = Folder(root / "carvana/data")
    carvana.link(photo, "imgs", f"car_{number:03d}.jpg")
    photo.mask([255]).convert("1").save(carvana.path("masks", f"car_{number:03d}_mask.gif"))
    name, sides = f"aachen_{number:06d}_000019", (512, 256)
    image.resize(sides).save(city.path("city/leftImg8bit/train/aachen", f"{name}_leftImg8bit.png"))
    labels = photo.mask(CITYSCAPES).resize(sides, Image.Resampling.NEAREST)
    labels.save(city.path("city/gtFine/train/aachen", f"{name}_gtFine_labelIds.png"))
    pets = Folder(root / "pets")
    pets.link(photo, "images", f"cat_{number}.jpg")
    photo.mask([1]).point(lambda value: 2 - value).save(pets.path("annotations/trimaps", f"cat_{number}.png"))
    cells, small = Folder(root / "dsb/inputs/dsb2018_96"), (96, 96)
    image.resize(small).save(cells.path("images", f"{number:03d}.png"))
    photo.mask([255]).resize(small, Image.Resampling.NEAREST).save(cells.path("masks/0", f"{number:03d}.png"))
    polyps = Folder(root / "polyp")
    image.save(polyps.path("image", f"{number}.png"))
    photo.mask([255]).save(polyps.path("mask", f"{number}.png"))
    skin = Folder(root / "isic")
    skin.link(photo, "train", f"ISIC_{number:07d}.jpg")
    photo.mask([255]).save(skin.path("train_GT", f"ISIC_{number:07d}_segmentation.png"))
    faces = Folder(root / "faces")
    image.resize((1024, 1024)).save(faces.path("CelebA-HQ-img", f"{number}.jpg"), quality=90)
    photo.mask([1, 2, 3, 4]).resize((512, 512), Image.Resampling.NEAREST).save(faces.path("mask", f"{number}.png"))


def boxes(folder, photos):
    """Write lists of boxes as text and JSON."""
    lines, images, objects = [], [], []
    for number, photo in enumerate(photos):
        name = f"{number:05d}.jpg"
        folder.link(photo, "images", name)
        labels = [index % 20 for index in range(len(photo.boxes))]
        pairs = zip(photo.boxes, labels, strict=True)
        lines.append(" ".join([name, *(" ".join(map(str, (*box, label))) for box, label in pairs)]))
        images.append(str(folder.path("images", name)))
        objects.append({"boxes": photo.boxes, "labels": labels, "difficulties": [0] * len(labels)})
    folder.text(lines, "list.txt")
    folder.json(images, "TRAIN_images.json")
    folder.json(objects, "TRAIN_objects.json")
