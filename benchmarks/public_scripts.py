"""Question: do public training scripts for detection and segmentation get the same data from our loader, and how much
processor time does a sample take, in torch's loader and in ours?

Method. The scripts are git checkouts, unmodified, in folders under --scripts named as in SOURCES, at its commits. Their
functions create the data set, transforms and collate_fn, over fakes of their data (fakes.py) made from the photos of
--data. Each case is a separate process. First an epoch in torch's loader and one in ours with exact=True run under one
seed and without workers: are all batches equal to the last bit, and the generators of torch, Python and NumPy
afterwards? Then both loaders, with exact=True and by default, take turns over --rounds epochs: time.process_time() per
sample, of all threads.

Confounders.
- Nothing consumes the batches. Files come from memory, after an epoch that is not counted.
- Worker processes would add the same to both loaders, and are left out.
- torch computes with one thread; DALI has one per core.

Command.
    python benchmarks/public_scripts.py --scripts CHECKOUTS --data PHOTOS --rounds 5 --json OUT.json
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types
import warnings

import common
import fakes
import numpy as np
import torch

SOURCES = {
    "vision": ("pytorch/vision", "838ad6c"),
    "tutorials": ("PyTorchKorea/tutorials-kr", "84b7db6"),
    "Pytorch-UNet": ("milesial/Pytorch-UNet", "21d7850"),
    "detr": ("facebookresearch/detr", "29901c5"),
    "DeepLabV3Plus-Pytorch": ("VainF/DeepLabV3Plus-Pytorch", "4e1087d"),
    "Fast-SCNN-pytorch": ("Tramac/Fast-SCNN-pytorch", "0638517"),
    "kuangliu-retinanet": ("kuangliu/pytorch-retinanet", "2d7c663"),
    "Image_Segmentation": ("LeeJunHyun/Image_Segmentation", "5e9da93"),
    "PraNet": ("DengPingFan/PraNet", "95f12bd"),
    "face-parsing.PyTorch": ("zllrunning/face-parsing.PyTorch", "d2e684c"),
    "sgrvinod-ssd": ("sgrvinod/a-PyTorch-Tutorial-to-Object-Detection", "5d5b759"),
    "segmentation_models.pytorch": ("qubvel/segmentation_models.pytorch", "bd7f877"),
    "pytorch-nested-unet": ("4uiiurz1/pytorch-nested-unet", "557ea02"),
}
Options = types.SimpleNamespace
CASES = {}  # name: (source, function(checkout, data) that returns (data set, collate_fn, batch size))


def case(name, source, **options):
    def registered(function):
        CASES[name] = source, lambda checkout, data: function(checkout, data, **options)
        return function

    return registered


def use(folder):
    """Set the working folder and sys.path as if a script in ``folder`` were started there."""
    sys.path.insert(0, str(folder))
    os.chdir(folder)


def module(path):
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem + "_of_script", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# ---- torchvision's references, and its tutorial


@case("torchvision, segmentation, v1", "vision")
@case("torchvision, segmentation, v2 tensor, test", "vision", is_train=False, use_v2=True, backend="tensor")
def segmentation(checkout, data, is_train=True, dataset="coco", backend="pil", use_v2=False):
    use(checkout / "references/segmentation")
    import train
    import utils

    options = Options(
        dataset=dataset, data_path=str(data / dataset), backend=backend, use_v2=use_v2, weights=None, test_only=False
    )
    return train.get_dataset(options, is_train)[0], utils.collate_fn, 4 if is_train else 1


@case("torchvision, detection, v1, flips", "vision")
@case("torchvision, detection, v1, ssd", "vision", augmentation="ssd")
@case("torchvision, detection, v1 tensor, ssd", "vision", augmentation="ssd", backend="tensor")
@case("torchvision, detection, v1, lsj", "vision", augmentation="lsj")
@case("torchvision, detection, v1, multiscale", "vision", augmentation="multiscale")
@case("torchvision, detection, v2, ssd", "vision", augmentation="ssd", use_v2=True)
@case("torchvision, detection, v2 tensor, ssd", "vision", augmentation="ssd", use_v2=True, backend="tensor")
@case(
    "torchvision, detection, v2, masks, ssd", "vision", augmentation="ssd", use_v2=True, model="maskrcnn_resnet50_fpn"
)
def detection(
    checkout, data, is_train=True, augmentation="hflip", backend="pil", use_v2=False, dataset="coco", model="fasterrcnn"
):
    use(checkout / "references/detection")
    import train
    import utils

    options = Options(
        dataset=dataset, data_path=str(data / "coco"), backend=backend, use_v2=use_v2, weights=None, test_only=False
    )
    options.model, options.data_augmentation = model, augmentation
    return train.get_dataset(is_train, options)[0], utils.collate_fn, 4 if is_train else 1


@case("torchvision, tutorial", "tutorials")
def tutorial(checkout, data):
    """Run the part of the tutorial that defines the data set and its transforms."""
    text = (checkout / "intermediate_source/torchvision_tutorial.py").read_text()
    names = {"__name__": "tutorial"}
    for first, last in ("import os\nimport torch\n", "#####"), ("from torchvision.transforms import v2 as T", "#####"):
        begin = text.index(first)
        exec(text[begin : text.index(last, begin)], names)
    dataset = names["PennFudanDataset"](str(data / "penn/data/PennFudanPed"), names["get_transform"](train=True))
    return dataset, lambda batch: tuple(zip(*batch, strict=True)), 2


# ---- others


@case("Pytorch-UNet", "Pytorch-UNet")
def unet(checkout, data):
    use(checkout)
    from utils.data_loading import CarvanaDataset

    return CarvanaDataset(str(data / "carvana/data/imgs"), str(data / "carvana/data/masks"), 0.5), None, 1


@case("DETR", "detr")
@case("DETR, masks", "detr", masks=True)
def detr(checkout, data, masks=False):
    import torchvision

    torchvision.__version__ = "0.9.0"  # the script parses it as a number
    use(checkout)
    import datasets.coco
    import util.misc

    return datasets.coco.build("train", Options(coco_path=str(data / "coco"), masks=masks)), util.misc.collate_fn, 2


@case("DeepLabV3Plus-Pytorch", "DeepLabV3Plus-Pytorch")
def deeplab(checkout, data):
    """Use the transforms of the checkout's main.py."""
    use(checkout)
    from datasets.voc import VOCSegmentation

    et = module("utils/ext_transforms.py")
    steps = et.ExtRandomScale((0.5, 2.0)), et.ExtRandomCrop(size=(513, 513), pad_if_needed=True)
    normalize = et.ExtNormalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    transform = et.ExtCompose([*steps, et.ExtRandomHorizontalFlip(), et.ExtToTensor(), normalize])
    return VOCSegmentation(str(data / "voc"), image_set="train", transform=transform), None, 4


@case("Fast-SCNN", "Fast-SCNN-pytorch")
def fast_scnn(checkout, data):
    use(checkout)
    import torchvision.transforms as T
    from data_loader.cityscapes import CitySegmentation

    transform = T.Compose([T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    return CitySegmentation(str(data / "city"), transform=transform, base_size=260, crop_size=192), None, 4


@case("kuangliu's RetinaNet", "kuangliu-retinanet")
def retinanet(checkout, data):
    """Use the checkout's collate_fn, without its encoder."""
    use(checkout)
    import datagen
    import torchvision.transforms as T

    transform = T.Compose([T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    dataset = datagen.ListDataset(str(data / "boxes/images"), str(data / "boxes/list.txt"), True, transform, 600)
    return dataset, lambda batch: list(zip(*batch, strict=True)), 4


@case("Image_Segmentation", "Image_Segmentation")
def skin(checkout, data):
    use(checkout)
    import data_loader

    return data_loader.ImageFolder(f"{data}/isic/train/"), None, 1


@case("PraNet", "PraNet")
def polyps(checkout, data):
    use(checkout / "utils")
    import dataloader

    return dataloader.PolypDataset(f"{data}/polyp/image/", f"{data}/polyp/mask/", 352), None, 8


@case("face-parsing", "face-parsing.PyTorch")
def faces(checkout, data):
    use(checkout)
    import face_dataset

    return face_dataset.FaceMask(str(data / "faces"), cropsize=[448, 448], mode="train"), None, 4


@case("sgrvinod's SSD", "sgrvinod-ssd")
def ssd(checkout, data):
    use(checkout)
    import datasets

    made = datasets.PascalVOCDataset(str(data / "boxes"), "train", keep_difficult=True)
    return made, made.collate_fn, 8


@case("segmentation_models.pytorch, Pets", "segmentation_models.pytorch")
def pets(checkout, data):
    found = module(checkout / "segmentation_models_pytorch/datasets/oxford_pet.py")
    return found.SimpleOxfordPetDataset(str(data / "pets"), "train"), None, 8


@case("UNet++ (OpenCV)", "pytorch-nested-unet")
def nested(checkout, data):
    use(checkout)
    import dataset

    root = data / "dsb/inputs/dsb2018_96"
    names = sorted(path.stem for path in (root / "images").iterdir())
    return dataset.Dataset(names, str(root / "images"), str(root / "masks"), ".png", ".png", 1), None, 8


# ---- one case


def differences(a, b, where="") -> list[str]:
    """Return the differences between two batches: types, shapes, dtypes, formats, values."""
    if type(a) is not type(b):
        return [f"{where}: {type(a).__name__} and {type(b).__name__}"]
    if isinstance(a, dict):
        found = [differences(a[key], b[key], f"{where}.{key}") for key in a if key in b]
        return sum(found, [] if a.keys() == b.keys() else [f"{where}: other keys"])
    if isinstance(a, (list, tuple)):
        pairs = zip(a, b, strict=len(a) == len(b))
        found = [differences(x, y, f"{where}[{number}]") for number, (x, y) in enumerate(pairs)]
        return sum(found, [] if len(a) == len(b) else [f"{where}: other lengths"])
    if isinstance(a, torch.Tensor):
        kinds = [(x.shape, x.dtype, getattr(x, "format", None), getattr(x, "canvas_size", None)) for x in (a, b)]
        same = kinds[0] == kinds[1] and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and np.array_equal(a, b)
    elif hasattr(a, "tensors"):  # NestedTensor of DETR
        return differences([a.tensors, a.mask], [b.tensors, b.mask], where)
    else:
        same = a == b
    return [] if same else [f"{where}: other values"]


def seeded(loader):
    """Return the batches under one seed, and the generators' states afterwards."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    batches = list(loader)
    return batches, [torch.get_rng_state(), random.getstate(), list(np.random.get_state())]


def one(name, scripts, data, rounds):
    """Measure one case and return its row."""
    import dali_compat

    source, make = CASES[name]
    dataset, collate, size = make(scripts / source, data)
    warnings.simplefilter("ignore")
    common_options = dict(batch_size=size, shuffle=True, collate_fn=collate)
    ours = dict(device="cpu", fallback="silent")
    loaders = {
        "torch": torch.utils.data.DataLoader(dataset, **common_options),
        "exact": dali_compat.DataLoader(dataset, exact=True, **common_options, **ours),
        "default": dali_compat.DataLoader(dataset, **common_options, **ours),
    }
    found = differences(*(seeded(loaders[which]) for which in ("torch", "exact")))
    list(loaders["default"])
    text = loaders["exact"].explain()
    rows = []
    for number, which in common.in_turn([*loaders], rounds):
        since = time.process_time()
        for _ in loaders[which]:
            pass
        taken = 1e3 * (time.process_time() - since) / len(dataset)
        rows.append({"round": number, "case": name, "loader": which, "cpu_ms": taken})
    facts = {"source": SOURCES[source][0], "commit": SOURCES[source][1], "batch_size": size}
    why = text.partition("because ")[2].partition("\n")[0]
    return {**facts, "on_dali": text.startswith("DALI route"), "why": why, "differences": found[:5], "rounds": rows}


def report(result):
    rows = []
    for name, found in result["cases"].items():
        if "rounds" not in found:
            rows.append([name, found["failed"], *[None] * 4])
            continue
        cpu = {
            which: common.medians(
                [{**row, "case": which} for row in found["rounds"] if row["loader"] == which], "cpu_ms"
            )[which]
            for which in ("torch", "exact", "default")
        }
        routes = "DALI" if found["on_dali"] else "torch"
        equal = "yes" if not found["differences"] else found["differences"][0]
        rows.append([name, routes, equal, *(f"{cpu[which]['median']:.1f}" for which in cpu)])
    print("\n" + common.markdown(["case", "route", "equal", "torch, ms", "exact, ms", "default, ms"], rows))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scripts", type=pathlib.Path, required=True, help="folder of checkouts, named as in SOURCES")
    options.add_argument("--data", required=True, help="folder of photos in ImageFolder layout")
    options.add_argument(
        "--photos", type=int, default=40, help="number of photos to make the fakes from (default %(default)s)"
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    options.add_argument("--json", type=pathlib.Path)
    options.add_argument("--made", type=pathlib.Path, help=argparse.SUPPRESS)  # in the process of a case
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.made:
        print("found: " + json.dumps(one(args.only[0], args.scripts.resolve(), args.made, args.rounds)))
        return
    result = {"benchmark": "public_scripts", "facts": common.facts(), "cases": {}}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dali-compat-bench-", dir=memory) as made:
        fakes.make(pathlib.Path(args.data), pathlib.Path(made), args.photos)
        time.sleep(1)  # recently written files are not decoded by DALI
        for name in args.only:
            command = [sys.executable, __file__, "--scripts", args.scripts, "--data", args.data, "--made", made]
            command += ["--only", name, "--rounds", str(args.rounds)]
            done = subprocess.run(command, capture_output=True, text=True)
            found = done.stdout.rpartition("found: ")[2] if not done.returncode else ""
            failed = {"failed": (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]}
            result["cases"][name] = json.loads(found) if found else failed
            print(name, {k: v for k, v in result["cases"][name].items() if k != "rounds"}, flush=True)
            common.write_json(args.json, result)
    report(result)


if __name__ == "__main__":
    main()
