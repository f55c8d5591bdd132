"""Options: defaults in this file, overridden by the --config file, overridden by the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
import typing
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent


def option(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclasses.dataclass
class Options:
    """One field for each option. ``--batch-size 64`` on the command line is ``batch_size: 64`` in a config."""

    # data
    data: str = option("", "folder of train/ and val/ (class folders or archives), or the training archive itself")
    val_data: str = option("", "the validation set, if it is not next to --data under the name val")
    classes: int = option(0, "outputs of the model; 0: number of classes of the training set")
    synthetic: bool = option(False, "make a tiny folder of images, and train on that: a trial on any machine")
    loader: str = option(
        "dali", "who loads: dali_compat, or torch's DataLoader with torchvision", ("dali", "torchvision")
    )
    workers: int = option(0, "num_workers per rank; 0: the cores of the machine, shared among its ranks")
    on_error: str = option(
        "raise", "an image that cannot be read ends the run, or another takes its place", ("raise", "replace")
    )

    # model
    model: str = option("resnet18", "name of a torchvision or timm model; timm/NAME is always timm's")
    model_args: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "further arguments of the model, as YAML: '{drop_path_rate: 0.1}'", "choices": None},
    )
    ema: float = option(0.0, "decay per step of an exponential moving average of the weights; 0: none")
    compile: bool = option(False, "torch.compile the training step's model")
    channels_last: bool = option(True, "memory format of model and images")
    amp: str = option("bf16", "autocast; fp16 with a GradScaler", ("none", "bf16", "fp16"))
    parallel: str = option(
        "ddp", "how ranks share the model: DistributedDataParallel or fully_shard (FSDP2)", ("ddp", "fsdp")
    )

    # optimizer
    epochs: int = option(90, "epochs")
    batch_size: int = option(128, "images per rank and step")
    optimizer: str = option("sgd", "SGD with Nesterov momentum, or AdamW", ("sgd", "adamw"))
    lr: float = option(0.1, "learning rate for 256 images per step; scaled to the images of all ranks")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(1e-4, "weight decay; biases and norms have none")
    warmup: float = option(5.0, "epochs of linear warm-up; a cosine to zero follows")
    clip_grad: float = option(0.0, "largest norm of the gradient; 0: any")
    label_smoothing: float = option(0.1, "label smoothing of the loss")

    # augmentation
    size: int = option(224, "side of the training crops")
    start_size: int = option(0, "progressive sizes: side in the first epoch, a multiple of 32; 0: always --size")
    ramp: float = option(0.8, "share of the epochs after which --start-size has grown to --size")
    crop_scale: float = option(0.08, "smallest share of the image in a crop")
    augment: str = option("none", "torchvision's policy", ("none", "randaugment", "trivialaugment", "autoaugment"))
    magnitude: int = option(9, "magnitude of RandAugment")
    erasing: float = option(0.0, "probability of RandomErasing")
    mixup: float = option(0.0, "alpha of MixUp; 0: none")
    cutmix: float = option(0.0, "alpha of CutMix; 0: none. With both, each batch uses one of them")

    # evaluation
    val_size: int = option(224, "side of the centre crop")
    val_resize: int = option(256, "shorter side of the image before the crop")
    evaluate: bool = option(False, "evaluate the checkpoint in --out, without training")

    # the run
    out: str = option("runs/imagenet", "folder for checkpoint.pt, best.pt, log.csv and TensorBoard's events")
    resume: bool = option(False, "continue from OUT/checkpoint.pt, if it exists")
    save_every: int = option(500, "steps between checkpoints within an epoch; 0: only at its end")
    log_every: int = option(10, "steps between updates of the progress line and checks for a stop signal")
    max_steps: int = option(0, "end epochs after this many steps and save nothing: to measure speed; 0: never")
    seed: int = option(0, "seed of weights, order and augmentation")
    timeout: int = option(600, "seconds after which a rank that waits for another one gives up")

    def __post_init__(self) -> None:
        if not self.data and not self.synthetic:
            raise ValueError("where are the images? --data FOLDER, --data train.rec, or --synthetic for a trial")
        if self.loader == "torchvision" and self.on_error == "replace":
            raise ValueError("torchvision replaces no image: --on-error replace needs --loader dali")
        if self.parallel == "fsdp" and self.amp == "fp16":
            raise ValueError("GradScaler does not look at all shards: with --parallel fsdp take --amp bf16")
        if self.start_size % 32:
            raise ValueError(f"--start-size must be a multiple of 32, got {self.start_size}")


# Values of --synthetic, unless the command line gives others; it takes seconds on a CPU.
SYNTHETIC = dict(
    **dict(epochs=2, batch_size=16, warmup=0.5, workers=1, amp="none", compile=False),
    **dict(size=32, start_size=0, val_size=32, val_resize=36, log_every=2),
)


def parse(argv: list[str] | None = None) -> Options:
    """Parse a command line (by default sys.argv). Exit with a message if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", help="YAML file of options; a relative path may begin at this example's folder")
    for field in dataclasses.fields(Options):
        _add(parser, field)
    given = vars(parser.parse_args(argv))
    try:
        values = _read(given.pop("config")) if "config" in given else {}
        if given.get("synthetic", values.get("synthetic", False)):
            values |= SYNTHETIC
        return Options(**{name: _typed(name, value) for name, value in (values | given).items()})
    except (ValueError, OSError, yaml.YAMLError) as error:
        parser.error(str(error))


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field) -> None:
    name, text = "--" + field.name.replace("_", "-"), field.metadata["help"]
    if isinstance(field.default, bool):
        parser.add_argument(name, action=argparse.BooleanOptionalAction, help=text)
        return
    shown = "" if field.default in ("", dataclasses.MISSING) else f" (default: {field.default})"
    parser.add_argument(name, choices=field.metadata["choices"], help=text.replace("%", "%%") + shown)


def _read(name: str) -> dict[str, Any]:
    """Read the options in a config file."""
    places = [Path(name), HERE / name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        there = ", ".join(sorted(f"configs/{path.name}" for path in (HERE / "configs").glob("*.yaml")))
        raise ValueError(f"there is no config {name}; the example has {there}")
    values = yaml.safe_load(found.read_text()) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{found} is not a mapping of options, such as 'epochs: 90'")
    known = [field.name for field in dataclasses.fields(Options)]
    for unknown in values.keys() - set(known):
        near = difflib.get_close_matches(str(unknown), known, 1)
        raise ValueError(f"{found}: there is no option {unknown!r}" + (f"; is it {near[0]!r}?" if near else ""))
    return values


def _typed(name: str, value: Any) -> Any:
    """Convert a value from a config or the command line to the option's type. YAML reads 1e-4 as a string."""
    kind = typing.get_type_hints(Options)[name]
    kind = typing.get_origin(kind) or kind
    field = Options.__dataclass_fields__[name]
    try:
        if kind is dict and isinstance(value, str):
            value = yaml.safe_load(value)
        made = value if kind in (bool, dict) else kind(value)
    except (ValueError, TypeError):
        made = None
    if not isinstance(made, kind) or (kind is int and isinstance(value, float) and made != value):
        raise ValueError(f"{name} is a {kind.__name__}, got {value!r}")
    if field.metadata["choices"] and made not in field.metadata["choices"]:
        raise ValueError(f"{name} is one of {', '.join(field.metadata['choices'])}, got {made!r}")
    return made
