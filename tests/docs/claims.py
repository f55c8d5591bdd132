"""Every measured number in the pages, with the sentence that contains it and its computation from a committed result.

A claim is a piece of a page's prose with braces in place of the numbers, and the values for them. Text between
backticks is not part of the prose (`` stands for it). Numbers that are not measured are in NOT_MEASURED.
"""

import math
import re
import statistics
from collections import Counter
from typing import NamedTuple

from measured import (
    FIGURES,
    facts,
    gpu_of,
    median,
    of_medians,
    ratios,
    reaches,
    read,
    rounds,
    rows_of,
    spread,
    within,
)
from measured import rows as all_rows

from dali_compat import __version__
from docs.pages import ROOT


class Claim(NamedTuple):
    """A statement that ``page`` contains ``words``, with ``values`` in place of the braces."""

    page: str
    words: str
    values: tuple

    @property
    def written(self) -> str:
        return self.words.format(*self.values)


CLAIMS: list[Claim] = []


def claim(page: str, words: str, *values) -> None:
    CLAIMS.append(Claim(page, words, values))


README, MEASURED = "README.md", "docs/measurements.md"
GPU, CPU, TRAINING = "imagefolder_h100", "imagefolder_cpu", "training_h100"


def percent(values) -> list[float]:
    return [100 * value for value in values]


# ---- README: the claims of its first screen, each a range over all files of its configuration

FIRST_SCREEN = {name: None for figure in FIGURES.values() for name in figure.files()}  # files, in order
PIXELS = "parity_cpu", "parity_h200", "answers_h200"
_FIRST = [median("on_error_h200", case, "first to second") for case in ("raise", "replace", "broken")]
claim(
    README,
    "**{} times torchvision's speed** in loading ImageNet photos, on an H100 or H200 with {} cores. Without "
    "JPEG engines, which most GPUs lack, the factor is {} with {} cores. Once the GPU's decoder has "
    "started, the first epoch runs at {} of later epochs' speed.",
    *(FIGURES["loading"], 16, FIGURES["no engine"]),
    reaches(
        {row["cores"] for row in all_rows(**FIGURES["no engine"].where, file=tuple(FIGURES["no engine"].files()))}, "d"
    ),
    reaches(_FIRST, ".0%"),
)
claim(
    README,
    "With 16 cores, ResNet-18 (not compiled) trains at {} of its speed on synthetic data ({} runs). Without JPEG "
    "engines, it reaches {}; with torchvision's loader, {}. With a custom data set, it reaches {} ({} with 4 cores).",
    FIGURES["share"],
    len(FIGURES["share"].files()),
    *(FIGURES[name] for name in ("share no engine", "their share", "own", "own, 4 cores")),
)
claim(
    README,
    "With {} CPU cores, ResNet-50 on an H200 trains {} times as fast as with torchvision's loader; with {} cores, {} "
    "times. Without a GPU, {} cores load images at {} times torchvision's speed.",
    *(2, FIGURES["2 cores"], 16, FIGURES["16 cores"], 2, FIGURES["cpu"]),
)
_ROWS = [row for name in FIRST_SCREEN for row in rows_of(name)]
claim(
    README,
    "copies of {} photos from memory, in batches of {}.",
    reaches({read(name)["images"]["different_images"] for name in FIRST_SCREEN}, "d"),
    " or ".join(map(str, sorted({int(row.get("batch_size", 256)) for row in _ROWS}))),
)
_ENVIRONMENT = read("environment_cpu")
for page in (README, "docs/install.md"):
    claim(page, "A new environment takes {:.0f} GB", _ENVIRONMENT["bytes"] / 1e9)
claim(
    "docs/install.md",
    "{:.1f} GB for torch's CUDA libraries, {:.1f} GB for torch and Triton, and {:.1f} GB for DALI",
    *(_ENVIRONMENT[key] / 1e9 for key in ("cuda_bytes", "torch_bytes", "dali_bytes")),
)


def torchvision_of(name: str) -> tuple[int, int]:
    """Return the version of torchvision that a result was measured with, such as (0, 29)."""
    return tuple(map(int, facts(read(name))["torchvision"].split(".")[:2]))


def on_a_gpu(name: str) -> bool:
    return bool(gpu_of(read(name))) or name.endswith("h200")


# ---- README: other loaders on a CPU

for words, cases in {
    "| **dali_compat** | {:.1f} |": ["ours"],
    "at a speed of {:.1f}": ["ours_exact"],
    "| DALI | {:.1f} |": ["handwritten"],
    "| torchcodec | {:.1f} |": ["torchcodec"],
    "| SPDL | {:.1f} |": ["spdl"],
    "| LitData | {:.1f} to {:.1f} |": ["litdata_raw", "litdata"],
    "| TurboLoader | {:.1f} |": ["turboloader"],
    "| timm | {:.1f} |": ["timm"],
}.items():
    _times = [within("peers_cpu", case, "torchvision", "images_per_s") for case in cases]
    claim(README, words, *map(statistics.median, _times))

# ---- policies, on a GPU

for model, called in (("resnet18", "ResNet-18, eager"), ("vit_s_16", "ViT-S/16")):
    claim(
        MEASURED,
        f"| {called} | {{:.2f}} ({{:.2f}} - {{:.2f}}) | {{:.2f}} ({{:.2f}} - {{:.2f}}) |",
        *(
            x
            for case in ("launches", "torch")
            for x in spread(within("policies_train_h200", case, "synthetic", model=model))
        ),
    )

# ---- the toolkit

_TOOLKIT = [read(name)["images"] for name in {row["file"] for row in all_rows(benchmark="toolkit")}]
claim(
    MEASURED,
    "at least {1:,} files, which are copies of {0} ImageNet photos",
    *{images["different_images"] for images in _TOOLKIT},
    min(images["files"] for images in _TOOLKIT),
)

# ---- loading without training

_BYTES = {round(read(name)["images"]["mean_bytes"], -4) // 1000 for name in (GPU, CPU)}
claim(MEASURED, "photos of about {:.0f} KB", *_BYTES)
_NO_ENGINE, _BY_HAND = "ours@DALI_COMPAT_JPEG_ENGINE=0", "handwritten:{}@hw_decoder_load=0.0"
for name, cores, number in (("imagefolder_no_engine_h200", 16, 4), ("imagefolder_no_engine_4_h200", 4, 3)):
    assert len(within(name, _NO_ENGINE, "torchvision")) == number
    claim(
        MEASURED,
        f"| H200, {cores} cores, no engines | {{:,.0f}} | {{:,.0f}} | {{:,.0f}} "
        "| {:.2f} ({:.2f} - {:.2f}) | {:.2f} ({:.2f} - {:.2f}) |",
        *(median(name, case) for case in ("torchvision", _BY_HAND.format(cores), _NO_ENGINE)),
        *spread(within(name, _NO_ENGINE, "torchvision")),
        *spread(within(name, _NO_ENGINE, _BY_HAND.format(cores))),
    )


for model, called in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50")):
    shares = [
        within("training_no_engine_h100", case, "synthetic", model=model) for case in (_NO_ENGINE, _BY_HAND.format(16))
    ]
    claim(
        MEASURED,
        f"| {called}, no engines | {{:.3f}} ({{:.3f}} - {{:.3f}}) | - | {{:.3f}} ({{:.3f}} - {{:.3f}}) |",
        *(x for found in shares for x in spread(found)),
    )
_HYBRID = "handwritten:16@hw_decoder_load=0.75"
for megapixels, hand in ((4, _HYBRID), (12, _HYBRID), (24, "handwritten:16")):
    claim(
        MEASURED,
        f"| photos of {megapixels} megapixels | - | {{:,.0f}} | {{:,.0f}} | {{:,.0f}} |",
        *(median(f"imagefolder_{megapixels}mp_h100", case) for case in (hand, "ours", _NO_ENGINE)),
    )
for cores in (8, 2):
    cases = f"torchvision:{cores}", _BY_HAND.format(cores), f"ours:{cores}@{_NO_ENGINE[5:]}"
    claim(
        MEASURED,
        f"| {cores} cores, no engines | {{:,.0f}} | {{:,.0f}} | - | {{:,.0f}} |",
        *(median(f"imagefolder_no_engine_{cores}_h100", case) for case in cases),
    )
claim(
    MEASURED,
    "Photos of 4 and 12 megapixels are loaded in batches of {}, and photos of 24 megapixels in batches of {}.",
    *dict.fromkeys(read(f"imagefolder_{megapixels}mp_h100")["settings"]["batch_size"] for megapixels in (4, 12, 24)),
)
claim(
    MEASURED,
    "| Resize(256), CenterCrop(224) | - | {:,.0f} | {:,.0f} | - |",
    *(median("imagefolder_eval_h100", case) for case in ("handwritten", "ours")),
)
for _words, _names in (
    (
        "(``, {} to {} rounds).",
        (GPU, CPU, "imagefolder_no_engine_h200", "imagefolder_no_engine_4_h200"),
    ),
    (
        "images/s ({} to {} rounds) on an H100",
        [f"imagefolder_{run}_h100" for run in ("4mp", "12mp", "24mp", "eval", "no_engine_8", "no_engine_2")],
    ),
):
    _COUNTS = [len({row["round"] for row in read(name)["rounds"]}) for name in _names]
    claim(MEASURED, _words, min(_COUNTS), max(_COUNTS))
_TURNS_E, _TURNS_C, _4_5 = "training_in_turn_eager_h100", "training_in_turn_h100", "handwritten:4:5@hw_decoder_load=1.0"
for name, called, cases in (
    (_TURNS_E, "ResNet-18, later epochs", ("ours", "ours_exact", _4_5)),
    (_TURNS_C, "ResNet-18 compiled, later epochs", ("ours", "ours_exact", _4_5)),
    (_TURNS_C, "ResNet-18 compiled, later epochs, no engines", (_NO_ENGINE, "", _BY_HAND.format(16))),
):
    cells = ("{:.3f} ({:.3f} - {:.3f})" if case else "-" for case in cases)
    claim(
        MEASURED,
        f"| {called} | {' | '.join(cells)} |",
        *(x for case in cases if case for x in spread(within(name, case, "synthetic"))),
    )
for name, machine, workers in ((GPU, "H100, 16 cores", 16), (CPU, "2 cores, no GPU", 2)):
    assert {row["workers"] for row in read(name)["rounds"]} == {workers}
    claim(
        MEASURED,
        f"| {machine} | {{:,.0f}} | {{:,.0f}} | {{:,.0f}} "
        "| {:.2f} ({:.2f} - {:.2f}) | {:.2f} ({:.2f} - {:.2f}) |",
        *(median(name, case) for case in ("torchvision", "handwritten", "ours")),
        *spread(within(name, "ours", "torchvision")),
        *spread(within(name, "ours", "handwritten")),
    )
# ---- training

_HANDS = ["handwritten:4:5@hw_decoder_load=1.0", "handwritten:2:2@pipelines=3,hw_decoder_load=1.0"]
_BESIDE = (
    ("training_resnet18_h200", "resnet18", {"eager": "ResNet-18", "compiled": "ResNet-18 compiled"}, _HANDS),
    ("training_resnet18_h200", "resnet18", {"graphs": "ResNet-18 in CUDA graphs"}, _HANDS),
    ("training_item_eager_h200", "resnet18", {"eager_item": "ResNet-18, ``"}, _HANDS[:1]),
    ("training_item_h200", "resnet18", {"compiled_item": "ResNet-18 compiled, ``"}, _HANDS[1:]),
    ("training_others_h200", "resnet50", {"eager": "ResNet-50"}, _HANDS[:1]),
    ("training_others_h200", "vit_s_16", {"eager": "ViT-S/16"}, _HANDS[:1]),
    ("training_others_h200", "efficientnet_b0", {"eager": "EfficientNet-B0"}, _HANDS[:1]),
)
for name, model, kinds, hands in _BESIDE:
    for kind, called in kinds.items():
        where = {"model": model, "kind": kind}
        shares = [within(name, case, "synthetic", **where) for case in ("ours", *hands)]
        cells = ["{:.3f} ({:.3f} - {:.3f})", *("{:.3f} ({:.3f} - {:.3f})" if hand in hands else "-" for hand in _HANDS)]
        claim(
            MEASURED,
            f"| {called} ({{}}) | {{:,.0f}} | {' | '.join(cells)} |",
            len(shares[0]),
            median(name, "synthetic", **where),
            *(value for found in shares for value in spread(found)),
        )

_TWO = [within("training_ddp_h200x2", case, "synthetic", model="resnet50") for case in ("ours", _HANDS[0])]
assert read("training_ddp_h200x2")["processes"] == 2
claim(
    MEASURED,
    "| ResNet-50, DistributedDataParallel on two GPUs ({}) "
    "| {:,.0f} | {:.3f} ({:.3f} - {:.3f}) | {:.3f} ({:.3f} - {:.3f}) | - |",
    len(_TWO[0]),
    median("training_ddp_h200x2", "synthetic", model="resnet50"),
    *spread(_TWO[0]),
    *spread(_TWO[1]),
)

claim(
    MEASURED,
    'a single pipeline with {} threads and {} batches in flight. "By hand, three" is three pipelines with {} threads '
    "each",
    4,
    5,
    2,
)  # _HANDS

# ---- transforms

claim(
    MEASURED,
    "each of {} transforms and recipes",
    len({row["transform"] for row in read("transforms_h100")["rounds"]}),
)

# ---- samples with masks and boxes, during training

BOXES = "docs/detection-segmentation.md"
for called, result in (("U-Net", "unet"), ("DeepLabV3, ResNet-50", "deeplab"), ("SSDlite", "ssdlite")):
    name = f"joint_{result}_h200"
    training, found = rounds(name, "synthetic:0", "cpu_ms"), []
    for case in ("torch:16", "own:16"):
        spent = rounds(name, case, "cpu_ms")
        beyond = statistics.median(spent[number] - training[number] for number in spent if number in training)
        found.append((spread(within(name, case, "synthetic:0", "speed")), beyond))
    form = "| {:.2f} ({:.2f} - {:.2f}) | {:.2f} ({:.2f} - {:.2f}) | {:.1f} | {:.1f} |"
    claim(BOXES, f"| {called} {form}", *found[0][0], *found[1][0], found[0][1], found[1][1])
_RUN = read("joint_unet_h200")
_EPOCH = int(_RUN["images"]["files"]) // int(_RUN["settings"]["batch_size"])
claim(BOXES, "batches of {}, two or three rounds, epochs of {} batches", _RUN["settings"]["batch_size"], _EPOCH)

# ---- views

_BASES = "ours", "torchvision"
for called, recipe, own in (
    ("SimCLR's, two of 224", "simclr", "{:.2f} ({:.2f} - {:.2f}) | {:.0f} ({:.0f} - {:.0f})"),
    ("DINO's, two of 224 and six of 96", "dino", "{:.2f} | {:.0f}"),
):
    custom = [spread(within("views_own_h200", "own", of, "samples_per_s", recipe=recipe)) for of in _BASES]
    claim(
        MEASURED,
        f"| {called} | {{:.0f}} | {{:,.0f}} | {{:.0f}} ({{:.0f}} - {{:.0f}}) | {own} |",
        *(median("views_h200", case, "samples_per_s", recipe=recipe) for case in ("torchvision", "ours")),
        *spread(within("views_h200", "ours", "torchvision", "samples_per_s", recipe=recipe)),
        *(value for of in custom for value in (of if recipe == "simclr" else of[:1])),
    )
claim(
    "examples/simclr.py",
    "two such views of 224 pixels load at {:,.0f} photos/s, and at {:,.0f} with torchvision's",
    *(median("views_h200", case, "samples_per_s", recipe="simclr") for case in ("ours", "torchvision")),
)
claim(MEASURED, "with 16 cores (``, {} rounds)", len(rounds("views_h200", "ours", "samples_per_s", recipe="dino")))
claim(
    MEASURED,
    "The batch size is {} with dali_compat, and {} with torchvision's loader",
    *(read("views_h200")["settings"][key] for key in ("batch_size", "torchvision_batch_size")),
)
claim(MEASURED, "and for {} epochs on a folder of JPEG copies", read("accuracy_h100")["settings"]["epochs"])

# ---- data sets in memory

_HANDED = [median("cifar10_h100", case, "handed_out_ms") for case in ("ours", "torchvision:16")]
_ON_CPU = {case: median("cifar10_cpu", case, "epoch_ms") for case in ("torchvision:2", "dali", "ours")}
claim(MEASURED, "| torchvision, one worker per core | {:,.0f} ms | {:,.0f} ms |", _HANDED[1], _ON_CPU["torchvision:2"])
claim(
    MEASURED,
    "| a DALI pipeline fed with rows of the array | {:.0f} ms | {:,.0f} ms |",
    median("cifar10_h100", "dali", "handed_out_ms"),
    _ON_CPU["dali"],
)
claim(MEASURED, "| dali_compat | {:.1f} ms | {:.0f} ms |", _HANDED[0], _ON_CPU["ours"])
claim(
    MEASURED,
    "The GPU finishes dali_compat's last batch {:.1f} ms after the start of the epoch.",
    median("cifar10_h100", "ours", "epoch_ms"),
)


def _learning(name: str, case: str) -> tuple[float, float, float]:
    """Return (lowest and highest accuracy in percent, seconds)."""
    accuracies = rounds(name, case, "accuracy").values()
    return _half_up(100 * min(accuracies)), _half_up(100 * max(accuracies)), median(name, case, "seconds")


def _half_up(value: float) -> float:
    """Round to one digit; the JSON file stores float32's 94.55 as 94.54999."""
    return math.floor(round(value, 3) * 10 + 0.5) / 10


for case, called in (("torchvision", "torchvision, 16 workers"), ("ours", "dali_compat")):
    _waited = 100 * median("cifar10_train_h100", case, "waited_share")
    claim(
        MEASURED, f"| {called} | {{}} - {{}}% | {{:.0f}} | {{:.0f}}% |", *_learning("cifar10_train_h100", case), _waited
    )
for case, called in (("torchvision", "torchvision"), ("ours", "dali_compat")):
    claim(
        MEASURED,
        f"| {called}, {{}} epochs, from JPEG files | {{}} - {{}}% | {{:.0f}} | - |",
        int(read("accuracy_h100")["settings"]["epochs"]),
        *_learning("accuracy_h100", case),
    )


def _recipe(name: str, case: str) -> list[tuple[float, float, float, float]]:
    """Return (first epoch, median of later epochs, all epochs, in seconds; accuracy in percent) of each seed."""
    rows = [row for row in read(name)["rounds"] if row["case"] == case]
    return [
        (row["seconds"][0], statistics.median(row["seconds"][1:]), sum(row["seconds"]), 100 * row["accuracy"])
        for row in rows
    ]


_SEEDS = list(zip(*_recipe("recipe_cifar10_h100", "dali_compat"), strict=True))
assert min(_SEEDS[3]) > 94  # "reaches the goal"
claim(
    "examples/cifar10.py",
    "on an NVIDIA H100 with {} cores to {:.1f}% - {:.1f}% in {:.0f} to {:.0f} s of training",
    read("recipe_cifar10_h100")["facts"]["cores"],
    min(_SEEDS[3]),
    max(_SEEDS[3]),
    min(_SEEDS[2]),
    max(_SEEDS[2]),
)
_EPOCHS = {case: _recipe("recipe_cifar10_24_h200", case) for case in ("dali_compat", "torchvision")}
for case, called in (("dali_compat", "dali_compat"), ("torchvision", "torchvision, 16 workers")):
    _first, _later, _whole, _accuracies = zip(*_EPOCHS[case], strict=True)
    claim(
        "docs/examples.md",
        f"| {called} | {{:.2f}} | {{:.2f}} | {{:.0f}} | {{:.2f}}%, {{:.2f}}%, {{:.2f}}% |",
        *map(statistics.median, (_first, _later, _whole)),
        *_accuracies,
    )
claim(
    "examples/cifar10.py",
    "an epoch takes {:.2f} s, and {:.2f} s with --loader torchvision and 16 workers",
    *(statistics.median(seed[1] for seed in seeds) for seeds in _EPOCHS.values()),
)
claim(
    "docs/examples.md",
    "in {1} epochs. The images stay on the GPU. The table compares dali_compat with torchvision's loader on an H200 "
    "with 16 cores, with {0} epochs instead of {1} (medians",
    *(len(read(f"recipe_cifar10_{run}")["rounds"][0]["seconds"]) for run in ("24_h200", "h100")),
)
_SHARES = [100 * row["in_next"] for row in read("recipe_cifar10_24_h200")["rounds"] if row["case"] == "dali_compat"]
claim("docs/examples.md", "`` takes {:.0f}% to {:.0f}% of the time", min(_SHARES), max(_SHARES))

# ---- five frameworks


def _in_framework(name: str, example: str, epoch: int) -> tuple[float, float]:
    """Return (images/s, percentage of the time in next()) of an epoch, as medians of rounds."""
    rows = [row for row in read(name)["rounds"] if row["case"] == example]
    rate, share = (statistics.median(row[key][epoch] for row in rows) for key in ("images_per_s", "in_next"))
    return rate, 100 * share


_EPOCHS = [
    _in_framework(name, example, 0)[0] / _in_framework(name, example, 1)[0]
    for name, examples in (
        ("frameworks_h200", ("ignite_trainer", "lightning_classifier", "accelerate_loop")),
        ("frameworks_h200x2", ("accelerate_loop",)),
    )
    for example in examples
]
_PHOTOS = int(read("frameworks_h200")["settings"]["replicate"]) * read("toolkit_vit_h200")["images"]["different_images"]
claim(
    README,
    "With only {:,} photos, the first epoch of the examples ran at {} of the second epoch's speed.",
    _PHOTOS,
    reaches(_EPOCHS, ".0%"),
)
for example in ("ignite_trainer", "lightning_classifier", "accelerate_loop"):
    claim(
        f"examples/{example}.py",
        "trains at {:,.0f} images/s in the second epoch, and next() takes {:.0f}% of the time",
        *_in_framework("frameworks_h200", example, 1),
    )
claim(
    "examples/accelerate_loop.py",
    "in two processes with a GPU each, at {:,.0f} in each of them",
    _in_framework("frameworks_h200x2", "accelerate_loop", 1)[0],
)
_figures = _in_framework("frameworks_h200x2", "ray_train", 0)
claim(
    "examples/ray_train.py",
    "with {} cores a ResNet-18 trains at {:,.0f} images/s in each of two workers, in the second epoch, and next() "
    "takes {:.1f}% of the time",
    read("frameworks_h200x2")["facts"]["cores"],
    *_figures,
)
_figures = _in_framework("frameworks_h200", "huggingface_trainer", 0)
claim(
    "examples/huggingface_trainer.py",
    "{:,.0f} images/s over two epochs of {:,} photos, with {:.0f}% of the time spent waiting",
    _figures[0],
    _PHOTOS,
    _figures[1],
)

# ---- archives

_TO_FOLDER = [
    of_medians("archives_load_h100", f"load {kind}", "load folder") for kind in ("rec", "tfrecord", "lmdb", "tar")
]
claim(
    MEASURED,
    "| | RecordIO | TFRecord, with checksums | LMDB | tar | |---|---:|---:|---:|---:| "
    "| speed | {:.2f} | {:.2f} | {:.2f} | {:.2f} |",
    *_TO_FOLDER,
)
claim(MEASURED, "{:,} photos (``, ratios", read("archives_load_h100")["archive"]["images"])
_SCAN = {kind: median("archives_cpu", f"{kind} index first", "s") for kind in ("rec", "tfrecord", "lmdb", "tar")}
claim(
    "docs/archives.md",
    "{:.0f} GB takes {:.1f} s.",
    read("archives_cpu")["archive"]["bytes"] / 1e9,
    _SCAN["tfrecord"],
)
claim(
    MEASURED,
    "an archive of {:.0f} GB with {:,} photos, on 2 cores",
    read("archives_cpu")["archive"]["bytes"] / 1e9,
    read("archives_cpu")["archive"]["images"],
)
claim(MEASURED, "| scan | {:.2f} s | {:.2f} s | {:.2f} s | {:.2f} s |", *_SCAN.values())
_LIST = [median("archives_list_cpu", f"list {case}", "s") for case in ("torchvision", "first", "again")]
claim(MEASURED, "| torchvision | ``, first time | later | |---:|---:|---:| | {:.1f} s | {:.1f} s | {:.1f} s |", *_LIST)

# ---- object storage

for called, case, base in (
    ("objects fetched batch by batch, relative to obstore without a loader", "fetched", "obstore"),
    ("an epoch from the bucket, relative to a local folder", "bucket", "folder"),
    ("an epoch from ``, relative to a local folder", "disk_cache", "folder"),
    ("an epoch from ``, relative to a local folder", "file", "folder"),
):
    claim("docs/object-storage.md", f"| {called} | {{:.2f}} |", of_medians("remote_cpu", case, base))
claim(
    "docs/object-storage.md",
    "after {:.0f} ms (``, {:,.0f} images, ratios of medians of {} rounds)",
    1000 * float(read("remote_cpu")["settings"]["latency"]),
    int(read("remote_cpu")["settings"]["objects"]),
    len(rounds("remote_cpu", "bucket")),
)

# ---- unreadable images

claim(MEASURED, "it runs at {:.2f} to {:.2f} of the second epoch's speed", min(_FIRST), max(_FIRST))
claim(MEASURED, "without training (``, {} rounds)", len(rounds("on_error_h200", "raise", "second")))
claim(
    MEASURED,
    "| setting | images/s | |---|---:| "
    "| `` | {:,.0f} | | `` | {:,.0f} | | ``, a broken file in every tenth batch | {:,.0f} |",
    *(median("on_error_h200", case, "second") for case in ("raise", "replace", "broken")),
)

# ---- answers of a classifier

_AGREEMENT = {name: round(100 * value, 2) for name, value in read("answers_h200")["agreement"].items()}
_SAME, _RESIZED = "as they are", "Resize(40), CenterCrop(32)"
# README claims this for both cases with `exact=True`, so it must hold for files that the engine decodes, too
for name in (_SAME, _RESIZED):
    assert _AGREEMENT[f"{name}, exact=True"] == _AGREEMENT[f"{name}, exact=True, JPEG engine"] == 100
claim(
    README,
    "for {:g}% of 10,000 images, or {:g}% if they were resized. With ``, it did so for {}% in both cases",
    *(_AGREEMENT[f"{name}, default"] for name in (_SAME, _RESIZED)),
    100,
)

# ---- pixels

_LARGEST = [row["exact"]["max"] for name in ("parity_cpu", "parity_h200") for row in read(name)["transforms"]]
assert 2 * _LARGEST.count(0) > len(_LARGEST)
_TRAINED_ON = [
    row["default"]
    for name in ("parity_cpu", "parity_h200")
    for row in read(name)["recipes"]
    if row["name"] == "ImageNet, training"
]
claim(
    README,
    "pixels (0 to 255) of ImageNet's training transform differ by {:.3f} on average on the CPU ({:.0f} at most), and "
    "by {:.2f} on an H200 ({:.0f} at most). `` follows Pillow's arithmetic, with a difference of {} for most "
    "transforms",
    *(row[key] for row in _TRAINED_ON for key in ("mean", "max")),
    0,
)
_AMPLIFICATION = re.search(r"^AMPLIFICATION = (\d+)$", (ROOT / "benchmarks" / "strip.py").read_text(), re.MULTILINE)
claim("docs/transforms.md", "and the difference, amplified {} times", int(_AMPLIFICATION[1]))

# ---- many GPUs: measured values, and products of them

RANKS = "docs/imagenet.md"
_GPUS, _IMAGENET, _MEAN_BYTES = 8, 1_281_167, read(GPU)["images"]["mean_bytes"]


def _lost(**where) -> str:
    """Return the lost share of the speed on synthetic data, over all files."""
    found = ratios("ours", "synthetic", **where, benchmark="toolkit", source=("folder", None), gpus=1)
    return reaches([1 - statistics.median(values) for values in found.values()], ".0%")


claim(RANKS, "| 2 | {} | {} |", _lost(model="resnet50", cores=2), _lost(model="resnet18", cores=2))
claim(RANKS, "| 4 | {} | {} |", _lost(model="resnet50", cores=4), _lost(model="resnet18", cores=4))


def _to_one(model: str) -> str:
    """Return the speed on two GPUs relative to one, over all pairs of files."""
    where = {"benchmark": "toolkit", "model": model, "source": "folder", "cores": 16, "gpu": "H200", "loader": "ours"}
    speeds: dict[int, dict[str, list[float]]] = {1: {}, 2: {}}
    for row in all_rows(**where):
        speeds[row["gpus"]].setdefault(row["file"], []).append(row["speed"])
    one, two = ([statistics.median(of) for of in speeds[gpus].values()] for gpus in (1, 2))
    return reaches([b / a for a in one for b in two], ".1f")


claim(
    RANKS,
    "Two GPUs trained ResNet-50 at {} times the speed of one, and ResNet-18, whose steps are short, at {}",
    *(_to_one("resnet50"), _to_one("resnet18")),
)
_GHOSTNETS = [median(of, "synthetic", config="ghostnet") for of in ("toolkit_models_h200x2", "toolkit_models_h200")]
assert _GHOSTNETS[0] < _GHOSTNETS[1]  # slower on two
claim(RANKS, "An epoch reads {:.0f} GB", _IMAGENET * _MEAN_BYTES / 1e9)
claim(
    RANKS,
    "eight GPUs would read {:.1f} GB/s to train ResNet-50, and {:.1f} GB/s to train ResNet-18",
    *(_GPUS * median(TRAINING, "ours", model=model) * _MEAN_BYTES / 1e9 for model in ("resnet50", "resnet18")),
)

# ---- versions

claim("CHANGELOG.md", "## [{}] - 2026-11-26", __version__)
claim("CHANGELOG.md", "## [{}] - 2026-11-24", "1.0.0")


# ---- public scripts

_PUBLIC = read("public_scripts_cpu")["cases"].values()
assert not any(found["differences"] for found in _PUBLIC)
_SIZES = [found["batch_size"] for found in _PUBLIC]
claim(BOXES, "With batches of {} to {} on a CPU", min(_SIZES), max(_SIZES))

# ---- how public data sets open images

_OPENERS = Counter(row["opener"] for row in read("openers"))
claim(
    "benchmarks/results/README.md",
    "`` searched the text of {} public training repositories. {} have a custom data set for image files: {} open them "
    "with Pillow, {} with OpenCV, and {} with scikit-image, imageio or SciPy. {} repositories import Albumentations.",
    _OPENERS.total(),
    _OPENERS.total() - _OPENERS["none"],
    *(_OPENERS[name] for name in ("Pillow", "cv2", "scikit-image, imageio, SciPy")),
    sum(row["albumentations"] for row in read("openers")),
)


# ---- numbers that are not measurements, by kind, as patterns of prose

NOT_MEASURED = {
    "versions": (
        r"Python 3\.10( to 3\.14)?",
        r"Python from 3\.10",
        r"CUDA \d+ or \d+",
        r"CUDA 11",
        r"\| 1[123] \| `` \| [\d.]+ or newer",  # versions of CUDA and drivers
        r"DALI from 1\.53",
        r"torchvision from 0\.20",
        r"torch 2\.5 or newer",
        r"from timm 1\.0\.30 on",
    ),
    "arguments": (
        r"RandomResizedCrop\(224\)",
        r"a column of `` alone is 1\.",
        r"beyond 64 bits",
        r"more than 64 MiB remain",
        r"here 200 GB",
    ),
    "samplings of chroma": (r"4:[421]:[0-4]",),
    "sizes of images": (r"0\.\.255", r"16-bit"),
    "papers and their goals": (r"\((Chen et al\., )?20\d\d\)", r"94% of the test images"),
    "settings, which the results repeat": (
        r"[Bb]atch 256",
        r"16 workers",
        r"16 cores",
        r"2 cores",
        r"[23] rounds",
        r"for 40 epochs",
        r"1,280,000 files",
    ),
    "places in a list": (r"(?<= )\d{1,2}\.(?= [`*A-Z])", r"steps 3 to 9"),
    "constants of the code": (
        r"With 0, the loader uses one thread per core, at most 16",
        r"exit code is 1",
    ),
}
