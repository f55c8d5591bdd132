"""Trainings with the checkpoints of frameworks, for crash.py to kill.

Each resumes from the newest checkpoint of its folder. The record of samples is stored in the checkpoint, like a user's
data.
"""

import importlib
import logging
import shutil
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
import torchvision.transforms as T

import dali_compat
from dali_compat import DALIImageFolder, DataLoader

MODULES = {
    "lightning": "lightning.pytorch",
    "accelerate": "accelerate",
    "prepared": "accelerate",
    "ignite": "ignite.engine",
    "transformers": "transformers",
}
TRANSFORM = T.Compose([T.RandomResizedCrop(16, antialias=True), T.RandomHorizontalFlip(), T.ToTensor()])


def import_framework(kind: str) -> Any:
    """Import the framework.

    Raises:
        ImportError: it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "transformers":
            importlib.import_module("accelerate")
        return importlib.import_module(MODULES[kind])


class Record:
    """Rows of (epoch, index, label, checksum of the pixels)."""

    def __init__(self, samples_per_epoch: int):
        self.rows: list[tuple[int, ...]] = []
        self._samples_per_epoch = samples_per_epoch

    def add(self, images: torch.Tensor, labels: torch.Tensor, indices: torch.Tensor) -> None:
        for image, label, index in zip(images.cpu(), labels.tolist(), indices.tolist(), strict=True):
            row = len(self.rows) // self._samples_per_epoch, index, label, zlib.crc32(image.numpy().tobytes())
            self.rows.append(row)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = [tuple(row) for row in state["rows"]]


def model() -> torch.nn.Module:
    """Return a model that draws from torch's generator in each step."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3))


def loss(net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(net(images.cpu()), labels.cpu())


def newest(folder: Path) -> Path | None:
    """Return the last complete checkpoint, and remove the others."""
    made = sorted(folder.glob("step-*"), key=lambda path: int(path.stem.split("-")[1]))
    for old in made[:-1]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return made[-1] if made else None


def train(kind: str, place: Path, workers: int, device: str, seed: int, epochs: int, batch: int) -> tuple[list, int]:
    """Train to the end. Return the record of samples and the number of samples.

    ``seed`` is used by a resumed process.
    """
    logging.disable(logging.WARNING)
    folder = place / "checkpoint"
    folder.mkdir(exist_ok=True)
    dataset = DALIImageFolder(place / "images", TRANSFORM, return_index=True)
    seen = Record(len(dataset))
    torch.manual_seed(0 if newest(folder) is None else seed)
    options: dict[str, Any] = {"batch_size": batch, "num_workers": workers}
    TRAININGS[kind](folder, dataset, options, device, seen, epochs)
    return seen.rows, len(dataset)


def lightning(folder: Path, dataset, options: dict[str, Any], device: str, seen: Record, epochs: int) -> None:
    pl = import_framework("lightning")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, number):
            seen.add(*batch)
            return loss(self.net, *batch[:2])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

        def on_save_checkpoint(self, checkpoint):
            checkpoint["seen"] = seen.state_dict()

        def on_load_checkpoint(self, checkpoint):
            seen.load_state_dict(checkpoint["seen"])
            (state,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]  # see docs/resume.md
            loader.load_state_dict(state)

    loader = DataLoader(dataset, shuffle=True, device=device, **options)
    # Every third step. If an epoch's last batch has a checkpoint, Lightning 2.6 miscounts the following epochs.
    saving = pl.callbacks.ModelCheckpoint(folder, "step-{step}", auto_insert_metric_name=False, save_top_k=-1,
                                          every_n_train_steps=3)  # fmt: skip
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=epochs, callbacks=[saving],
                         default_root_dir=folder, **quiet)  # fmt: skip
    trainer.fit(Module(), loader, ckpt_path=newest(folder))


def accelerate(folder: Path, dataset, options: dict[str, Any], device: str, seen: Record, epochs: int) -> None:
    """Train with a loader that is not passed to prepare()."""
    _accelerated(folder, DataLoader(dataset, shuffle=True, device=device, **options), False, seen, epochs)


def prepared(folder: Path, dataset, options: dict[str, Any], device: str, seen: Record, epochs: int) -> None:
    """Train with torch's loader, which Accelerate prepares."""
    with dali_compat.install(device=device):
        loader = torch.utils.data.DataLoader(dataset, shuffle=True, **options)
        _accelerated(folder, loader, True, seen, epochs)


def _accelerated(folder: Path, loader, is_prepared: bool, seen: Record, epochs: int) -> None:
    accelerator = import_framework("accelerate").Accelerator(cpu=True)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01))
    if is_prepared:
        loader = accelerator.prepare(loader)
    accelerator.register_for_checkpointing(loader, seen)
    last = newest(folder)
    if last is not None:
        accelerator.load_state(last)
    step = len(seen.rows)
    while step < epochs * len(loader.dataset):
        for batch in loader:
            accelerator.backward(loss(net, *batch[:2]))
            optimizer.step()
            seen.add(*batch)
            step = len(seen.rows)
            accelerator.save_state(folder / "half")
            (folder / "half").rename(folder / f"step-{step}")  # a state consists of several files


def ignite(folder: Path, dataset, options: dict[str, Any], device: str, seen: Record, epochs: int) -> None:
    import_framework("ignite")
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step(engine, batch):
        optimizer.zero_grad()
        loss(net, *batch[:2]).backward()
        optimizer.step()
        seen.add(*batch)

    trainer = Engine(step)
    loader = DataLoader(dataset, shuffle=True, device=device, **options)
    parts = {"trainer": trainer, "net": net, "optimizer": optimizer, "loader": loader, "seen": seen}
    saver = DiskSaver(folder, require_empty=False)  # it writes complete files
    checkpoint = Checkpoint(parts, saver, filename_pattern="{name}-{global_step}.pt", filename_prefix="step",
                            n_saved=2, global_step_transform=lambda engine, _: engine.state.iteration)  # fmt: skip
    checkpoint.filename_pattern = "step-{global_step}.{ext}"
    last = newest(folder)
    if last is not None:
        Checkpoint.load_objects(parts, torch.load(last))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, checkpoint)
    if len(seen.rows) < epochs * len(dataset):  # Ignite would repeat a finished training
        trainer.run(loader, max_epochs=epochs)


def transformers(folder: Path, dataset, options: dict[str, Any], device: str, seen: Record, epochs: int) -> None:
    hf = import_framework("transformers")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()

        def forward(self, images, labels, indices):
            seen.add(images, labels, indices)
            return {"loss": loss(self.net, images, labels)}

    class LoaderState(hf.TrainerCallback):  # as described in docs/resume.md
        def on_save(self, args, state, control, train_dataloader, **kwargs):
            file = f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt"
            torch.save(train_dataloader.state_dict() | {"seen": seen.state_dict()}, file)
            Path(file).parent.rename(folder / f"step-{state.global_step}")  # a checkpoint consists of several files

        def on_train_begin(self, args, state, control, train_dataloader, **kwargs):
            if state.global_step:
                before = torch.load(folder / f"step-{state.global_step}" / "loader.pt")
                train_dataloader.load_state_dict(before)
                seen.load_state_dict(before["seen"])

    def collate(samples):
        images, labels, indices = zip(*samples, strict=True)
        return {"images": torch.stack(images), "labels": torch.tensor(labels), "indices": torch.tensor(indices)}

    arguments = hf.TrainingArguments(
        str(folder), per_device_train_batch_size=options["batch_size"], num_train_epochs=epochs, report_to=[],
        use_cpu=True, save_strategy="steps", save_steps=1, remove_unused_columns=False, disable_tqdm=True,
        dataloader_num_workers=options["num_workers"], ignore_data_skip=True, logging_strategy="no",
    )  # fmt: skip
    with dali_compat.install(device=device):
        trainer = hf.Trainer(Net(), arguments, train_dataset=dataset, data_collator=collate, callbacks=[LoaderState()])
        trainer.train(resume_from_checkpoint=newest(folder))


TRAININGS = {
    "lightning": lightning,
    "accelerate": accelerate,
    "prepared": prepared,
    "ignite": ignite,
    "transformers": transformers,
}
