"""Trains a classifier on ImageNet, or on any images in classes, on one GPU or many.

    torchrun --nproc-per-node 8 examples/imagenet/train.py --data imagenet/ --config configs/resnet18.yaml
    torchrun --nproc-per-node 8 examples/imagenet/train.py --data train.rec --val-data val.rec
    python examples/imagenet/train.py --synthetic

Reproduces: the toolkits that train ImageNet from .rec files on eight GPUs through DALI pipelines written by hand, and
their tables of models. Here it is torchvision's transforms and PyTorch's sampler, and --loader torchvision is the same
run without dali_compat.

Measured: the speed of the configs, not whole trainings. On an NVIDIA H200 with 16 cores it is, from a folder, 1.1 to
3.3 times that with --loader torchvision. docs/measurements.md has the table.

The modules: options.py (all options), data.py (data sets, transforms, loaders), model.py (model, optimizer, learning
rate), ranks.py (torch.distributed), log.py (progress line, CSV, TensorBoard), and here the loop and its checkpoints.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import data
import options as options_
import torch
from log import Log
from model import Model, learning_rate
from options import Options
from ranks import Ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.elastic.multiprocessing.errors import record

from dali_compat import merge_states

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # includes sharded parameters
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "none": torch.float32}


class Training:
    """A run on this rank.

    Attributes:
        epoch, seen: The position: the epoch, and the number of its images that all ranks have processed.
        sums: Loss and number of correct answers of the epoch so far, over all ranks.
        best: Top-1 accuracy of the best weights so far.
    """

    def __init__(self, options: Options, ranks: Ranks) -> None:
        self.options, self.ranks = options, ranks
        self.checkpoint = Path(options.out) / "checkpoint.pt"
        # Create loaders before the model, because a GPU's JPEG decoder starts in the meantime.
        train, val = data.datasets(options)
        self.loader, self.val_loader = data.loaders(options, ranks, train, val)
        self.classes = options.classes or max(train.targets) + 1
        torch.manual_seed(options.seed)  # the same weights on all ranks
        self.model = Model(options, ranks, self.classes)
        torch.manual_seed(options.seed + 1 + ranks.rank)  # dropout and mixing differ between ranks
        self.mix = data.mixing(options, self.classes)
        self.loss = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
        self.log = Log(options, ranks)
        self.images = len(self.loader.sampler) * ranks.world  # per epoch
        self.step_images = options.batch_size * ranks.world
        self.epoch, self.seen, self.best = 0, 0, 0.0
        self.sums = [0.0, 0.0]

    # ---- training

    def run(self) -> None:
        """Run all remaining epochs."""
        self.log.begin(self.epoch, self.epoch * self.images + self.seen)
        while self.epoch < self.options.epochs:
            if not self.train_epoch():
                self.save()
                self.log.close()  # end the progress line
                self.ranks.say(
                    f"stopped in epoch {self.epoch + 1}, after {self.seen} images; saved: --resume continues from there"
                )
                return
            self.finish_epoch()
        self.log.close()

    def train_epoch(self) -> bool:
        """Train the rest of the epoch; return False if the run was stopped."""
        options, ranks = self.options, self.ranks
        self.set_epoch(self.epoch)
        self.model.plain.train()
        if options.loader == "dali":
            self.loader.stats(reset=True)
        self.log.begin_epoch(self.epoch, options.epochs, self.images, self.seen)
        # of this rank: loss, correct answers, whether it received a stop signal
        pending = torch.zeros(3, device=ranks.device)
        shown = self.seen
        for step, (images, labels) in enumerate(self.loader, 1):
            loss, right = self.train_step(images, labels)
            pending[0] += loss * options.batch_size
            pending[1] += right
            self.seen += self.step_images
            saves = options.save_every and step % options.save_every == 0 and not options.max_steps
            if saves or step % options.log_every == 0:
                stops = self.show(pending, self.seen - shown)
                shown = self.seen
                if stops:
                    return False
                if saves:
                    self.save()
            if step == options.max_steps:
                break
        self.show(pending, self.seen - shown)
        return True

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (mean loss, number of correct answers) without waiting for the GPU."""
        options, model = self.options, self.model
        rate = learning_rate(options, self.epoch + self.seen / self.images, self.step_images)
        for group in model.optimizer.param_groups:
            group["lr"] = rate
        images, labels = self.to_device(images, labels)
        mixed, targets = self.mix(images, labels) if self.mix else (images, labels)
        with self.autocast():
            answers = model.train(mixed)
            loss = self.loss(answers, targets)
        model.scaler.scale(loss).backward()
        if options.clip_grad:
            model.scaler.unscale_(model.optimizer)
            nn.utils.clip_grad_norm_(model.plain.parameters(), options.clip_grad)
        model.scaler.step(model.optimizer)
        model.scaler.update()
        model.optimizer.zero_grad()
        model.after_step()
        return loss.detach(), (answers.detach().argmax(1) == labels).sum()

    def show(self, pending: torch.Tensor, images: int) -> bool:
        """Show the progress of all ranks over their last ``images``, which waits for the GPU. Return True if all
        ranks stop."""
        pending[2] = self.ranks.stopping
        loss, right, stopping = self.ranks.total(pending.double())
        pending.zero_()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} in epoch {self.epoch + 1}: try a smaller --lr, or --clip-grad"
            )
        self.sums = [self.sums[0] + loss, self.sums[1] + right]
        if images:
            done = self.epoch * self.images + self.seen
            self.log.line(done, self.seen, loss / images, right / images, self.loader.stats())
        return stopping > 0

    def set_epoch(self, epoch: int) -> None:
        """Set order and image size of an epoch. They apply from the loader's next iter()."""
        self.loader.sampler.set_epoch(epoch)
        self.loader.dataset.transform = data.train_transform(self.options, data.size_of(self.options, epoch))

    def finish_epoch(self) -> None:
        """Evaluate, log and save."""
        row: dict[str, Any] = self.log.times(self.seen, self.loader.stats())
        row |= {"epoch": self.epoch, "size": data.size_of(self.options, self.epoch), "ema_top1": ""}
        row["lr"] = self.model.optimizer.param_groups[0]["lr"]
        row["train_loss"], row["train_top1"] = (total / max(1, self.seen) for total in self.sums)
        row["val_loss"], row["val_top1"], row["val_top5"] = self.evaluate(self.model.plain)
        weights, top1 = self.model.plain, row["val_top1"]
        if self.model.average is not None:
            row["ema_top1"] = self.evaluate(self.model.average)[1]
            if row["ema_top1"] > top1:
                weights, top1 = self.model.average.module, row["ema_top1"]
        self.log.end_epoch((self.epoch + 1) * self.images, row)
        self.epoch, self.seen, self.sums = self.epoch + 1, 0, [0.0, 0.0]
        if self.options.max_steps:
            return
        if top1 > self.best:
            self.best = top1
            self.write(get_model_state_dict(weights, options=WHOLE), self.checkpoint.with_name("best.pt"))
        self.save()

    # ---- evaluation

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> tuple[float, float, float]:
        """Return (loss, top-1, top-5) on the validation set.

        Each image counts once: the sampler repeats some images to give all ranks equal shares, and the repetitions are
        ignored.
        """
        world, rank, count = self.ranks.world, self.ranks.rank, len(self.val_loader.dataset)
        model.eval()
        sums, had = torch.zeros(4, device=self.ranks.device), 0
        for images, labels in self.val_loader:
            images, labels = self.to_device(images, labels)
            places = rank + world * torch.arange(had, had + len(labels), device=labels.device)
            had += len(labels)
            with self.autocast():
                answers = model(images)
            counts = (places < count).float()
            right = answers.topk(min(5, self.classes)).indices == labels[:, None]
            losses = nn.functional.cross_entropy(answers.float(), labels, reduction="none")
            sums += torch.stack([(part * counts).sum() for part in (losses, right[:, 0], right.any(1), counts)])
        loss, top1, top5, images = self.ranks.total(sums.double())
        return loss / images, top1 / images, top5 / images

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move torchvision's batches to the device; dali_compat's are already there."""
        layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        to = dict(device=self.ranks.device, non_blocking=True)
        return images.to(memory_format=layout, **to), labels.to(**to)

    def autocast(self) -> torch.autocast:
        amp = self.options.amp
        return torch.autocast(self.ranks.device.type, TYPES[amp], enabled=amp != "none")

    # ---- checkpoints: they contain whole tensors for any way of sharding, so that any number of ranks can resume

    def save(self) -> None:
        """Save a checkpoint between two steps; all ranks take part."""
        model, average = self.model, self.model.average
        weights, optimizer = get_state_dict(model.plain, model.optimizer, options=WHOLE)
        loader = self.ranks.gather(self.loader.state_dict() if self.options.loader == "dali" else {})
        state = {
            "model": weights,
            "optimizer": optimizer,
            "average": None if average is None else get_model_state_dict(average, options=WHOLE),
            "scaler": model.scaler.state_dict(),
            "loader": merge_states(loader) if self.options.loader == "dali" else {},
            "generators": self.ranks.gather(self.generators()),
            **{name: getattr(self, name) for name in ("epoch", "seen", "sums", "best")},
        }
        self.write(state, self.checkpoint)

    def write(self, state: dict[str, Any], path: Path) -> None:
        """Write atomically: a crash during writing leaves the previous checkpoint."""
        if self.ranks.is_first:
            torch.save(state, path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)

    def has_checkpoint(self) -> bool:
        """Return True if there is a checkpoint to load.

        Raises:
            FileExistsError, FileNotFoundError: This run would overwrite a checkpoint, or there is none to evaluate.
            RuntimeError: Only some ranks see it.
        """
        found, out = self.ranks.gather(self.checkpoint.exists()), self.options.out
        if any(found) != all(found):
            raise RuntimeError(f"only some ranks see {self.checkpoint}: --out must be a folder that all hosts share")
        if self.options.evaluate and not any(found):
            raise FileNotFoundError(f"there is no {self.checkpoint} to evaluate")
        if any(found) and not (self.options.resume or self.options.evaluate):
            raise FileExistsError(f"{out} has a run already: --resume continues with it, --out takes another folder")
        return any(found)

    def load(self) -> None:
        """Load the checkpoint, to continue with the next batch."""
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True, mmap=True)
        model, average, world = self.model, self.model.average, len(state["generators"])
        set_state_dict(
            model.plain,
            model.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=WHOLE,
        )
        if average is not None:
            if state["average"] is None:
                raise ValueError(f"{self.checkpoint} has no average: leave out --ema")
            set_model_state_dict(average, state["average"], options=WHOLE)
        model.scaler.load_state_dict(state["scaler"])
        self.epoch, self.seen, self.sums, self.best = (state[name] for name in ("epoch", "seen", "sums", "best"))
        if self.options.loader == "dali":
            # a state belongs to one transform: that of its epoch or, between two epochs, that of the previous epoch
            self.set_epoch(self.epoch if self.seen else self.epoch - 1)
            self.loader.load_state_dict(state["loader"])
        elif self.seen:  # torch's loader cannot resume within an epoch
            self.seen, self.sums = 0, [0.0, 0.0]
        if world == self.ranks.world:
            self.set_generators(state["generators"][self.ranks.rank])
        self.ranks.say(
            f"{self.checkpoint}: resuming at epoch {self.epoch + 1}, image {self.seen} "
            f"({world} rank{'s' * (world != 1)})"
        )

    def generators(self) -> list[torch.Tensor]:
        """Return the states of the generators of dropout and mixing."""
        on_gpu = self.ranks.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.ranks.device)] if on_gpu else [])]

    def set_generators(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1 and self.ranks.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.ranks.device)


@record  # torchrun shows the error of the rank that failed first
def main(argv: list[str] | None = None) -> None:
    options = options_.parse(argv)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    ranks = Ranks(options.timeout)
    try:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        if options.synthetic and not options.data:
            options.data = str(Path(options.out) / "images")
            if ranks.local_rank == 0:
                data.make_images(Path(options.data))
            ranks.wait()
        training = Training(options, ranks)
        if options.loader == "dali":
            ranks.say(training.loader.explain())
        if training.has_checkpoint():
            training.load()
        ranks.wait()  # wait until all are ready, since a missing rank would hang the first step
        if options.evaluate:
            weights = training.model.average or training.model.plain
            ranks.say("loss {:.4f}, top-1 {:.2%}, top-5 {:.2%}".format(*training.evaluate(weights)))
        else:
            training.run()
    except Exception as error:
        kept = Path(options.out) / "checkpoint.pt"
        more = f"; {kept} is whole, and --resume continues from it" if kept.exists() else ""
        print(f"rank {ranks.rank} ends: {type(error).__name__}: {error}{more}", file=sys.stderr, flush=True)
        raise
    ranks.leave()


if __name__ == "__main__":
    main()
