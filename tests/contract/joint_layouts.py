"""torchvision's detection and segmentation data sets with tiny photos: each function writes the files below a folder
and returns the data set."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
from helpers import make_image
from PIL import Image
from torchvision import datasets

COUNT = 6
_BOX = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _save(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"quality": 90} if path.suffix == ".jpg" else {}))
    return path


def photos():
    """Yield photos of several sizes, each with a mask of a few labels."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        image = Image.fromarray(make_image(rng, *map(int, rng.integers(70, 130, 2))))
        yield number, image, image.convert("L").point(lambda value: value // 13)


def corners(number: int, image: Image.Image) -> list[list[int]]:
    """Return one or two boxes, each as two corners."""
    width, height = image.size
    return [[5, 6, width // 2, height - 3], [20 + number, 30, width - 9, height - 20]][: 1 + number % 2]


def _voc(root: Path) -> str:
    base = root / "VOCdevkit" / "VOC2012"
    for number, image, mask in photos():
        _save(base / "JPEGImages" / f"{number}.jpg", image)
        _save(base / "SegmentationClass" / f"{number}.png", mask.convert("P"))
        names = zip(("dog", "cat"), corners(number, image), strict=False)
        boxes = "".join(_BOX.format(name, *box) for name, box in names)
        size = f"<size><width>{image.width}</width><height>{image.height}</height><depth>3</depth></size>"
        _write(base / "Annotations" / f"{number}.xml", f"<annotation>{size}{boxes}</annotation>")
    for kind in ("Main", "Segmentation"):
        _write(base / "ImageSets" / kind / "train.txt", "\n".join(map(str, range(COUNT))))
    return str(root)


def voc_segmentation(root: Path):
    return datasets.VOCSegmentation(_voc(root), "2012", "train")


def voc_detection(root: Path):
    return datasets.VOCDetection(_voc(root), "2012", "train")


class _Annotations:
    """The annotations of a file, in place of pycocotools."""

    def __init__(self, of_image):
        self._of_image = of_image

    def loadImgs(self, number):
        return [{"file_name": f"{number}.jpg"}]

    def getAnnIds(self, number):
        return [number]

    def loadAnns(self, numbers):
        return [dict(one) for number in numbers for one in self._of_image[number]]


def coco(root: Path):
    """Return CocoDetection; image 1 has no annotations."""
    of_image = {}
    for number, image, _ in photos():
        _save(root / f"{number}.jpg", image)
        boxes = [] if number == 1 else corners(number, image)
        of_image[number] = [
            {"image_id": number, "category_id": 3 + n, "bbox": [x, y, x2 - x, y2 - y], "area": 9.0, "iscrowd": 0}
            for n, (x, y, x2, y2) in enumerate(boxes)
        ]
    dataset = datasets.CocoDetection.__new__(datasets.CocoDetection)
    datasets.VisionDataset.__init__(dataset, root)
    dataset.coco, dataset.ids = _Annotations(of_image), list(range(COUNT))
    return dataset


def pets(root: Path, target_types="segmentation"):
    base = root / "oxford-iiit-pet"
    for number, image, mask in photos():
        _save(base / "images" / f"beagle_{number}.jpg", image)
        _save(base / "annotations" / "trimaps" / f"beagle_{number}.png", mask)
    lines = "\n".join(f"beagle_{number} {1 + number % 2} {1 + number % 2} 1" for number in range(COUNT))
    _write(base / "annotations" / "trainval.txt", lines)
    return datasets.OxfordIIITPet(root, target_types=target_types)


def pets_and_kinds(root: Path):
    return pets(root, ["category", "segmentation"])


def places(root: Path):
    _write(root / "categories_places365.txt", "/a/airfield 0\n/b/bar 1\n")
    _write(root / "places365_val.txt", "".join(f"{number}.jpg {number % 2}\n" for number in range(COUNT)))
    for number, image, _ in photos():
        _save(root / "val_256" / f"{number}.jpg", image)
    datasets.places365.check_integrity, before = (lambda *args, **kwargs: True), datasets.places365.check_integrity
    try:
        return datasets.Places365(str(root), "val", small=True)
    finally:
        datasets.places365.check_integrity = before


def cityscapes(root: Path, target_type="semantic"):
    for number, image, mask in photos():
        name, labels = f"ulm_{number}", np.array(mask)
        _save(root / "leftImg8bit" / "train" / "ulm" / f"{name}_leftImg8bit.png", image)
        folder = root / "gtFine" / "train" / "ulm"
        _save(folder / f"{name}_gtFine_labelIds.png", mask)
        _save(folder / f"{name}_gtFine_color.png", image.point(lambda value: value // 64 * 64).convert("RGBA"))
        instances = np.where(labels > 9, labels.astype(np.uint16) * 1000 + 3, labels.astype(np.uint16))
        _save(folder / f"{name}_gtFine_instanceIds.png", Image.fromarray(instances))
        _write(folder / f"{name}_gtFine_polygons.json", json.dumps({"objects": [number]}))
    return datasets.Cityscapes(str(root), target_type=target_type)


def cityscapes_instances(root: Path):
    return cityscapes(root, ["semantic", "instance"])


def cityscapes_polygons(root: Path):
    return cityscapes(root, ["polygon", "color"])


def _sbd(root: Path, mode: str):
    for number, image, mask in photos():
        _save(root / "img" / f"{number}.jpg", image)
        _save(root / "cls" / f"{number}.png", mask)
    _write(root / "train.txt", "\n".join(map(str, range(COUNT))))
    there = {name: sys.modules.get(name) for name in ("scipy", "scipy.io")}
    sys.modules["scipy"], sys.modules["scipy.io"] = ModuleType("scipy"), ModuleType("scipy.io")
    sys.modules["scipy.io"].loadmat = _contents
    try:
        return datasets.SBDataset(str(root), mode=mode)
    finally:
        for name, module in there.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})


def _contents(path: str) -> dict:
    """Return the content that scipy.io.loadmat would return; the labels are in a PNG next to the file."""
    labels = np.array(Image.open(path.replace(".mat", ".png")))

    class Sparse:
        def __init__(self, number):
            self.toarray = lambda: (labels == number).astype(np.uint8)

    return {"GTcls": [{"Segmentation": [labels], "Boundaries": [[[Sparse(number)] for number in range(20)]]}]}


def sbd(root: Path):
    return _sbd(root, "segmentation")


def sbd_boundaries(root: Path):
    return _sbd(root, "boundaries")


def widerface(root: Path):
    base, lines = root / "widerface", []
    for number, image, _ in photos():
        _save(base / "WIDER_train" / "images" / "0--Parade" / f"{number}.jpg", image)
        boxes = [[x, y, x2 - x, y2 - y] for x, y, x2, y2 in corners(number, image)]
        lines += [f"0--Parade/{number}.jpg", str(len(boxes))]
        lines += [" ".join(map(str, [*box, 0, 1, 0, number % 3, 0, 1])) for box in boxes]
    _write(base / "wider_face_split" / "wider_face_train_bbx_gt.txt", "\n".join(lines))
    for name in ("WIDER_val", "WIDER_test"):
        (base / name).mkdir()
    return datasets.WIDERFace(str(root), "train")


def kitti(root: Path):
    base = root / "Kitti" / "raw" / "training"
    for number, image, _ in photos():
        _save(base / "image_2" / f"{number:06}.png", image)
        rows = zip(("Car", "Pedestrian"), corners(number, image), strict=False)
        text = "\n".join(
            f"{name} 0.0 1 -1.5 {' '.join(map(str, box))} 1.6 1.7 3.9 2.5 1.7 9.2 -1.4" for name, box in rows
        )
        _write(base / "label_2" / f"{number:06}.txt", text)
    return datasets.Kitti(str(root))
