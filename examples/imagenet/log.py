"""Output of the first rank: a progress line, log.csv and TensorBoard events."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

from options import Options
from ranks import Ranks
from tqdm import tqdm

COLUMNS = (
    *("epoch", "size", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5", "ema_top1"),
    *("images_per_s", "waited", "seconds"),
)


class Log:
    """The logs of the first rank; on other ranks it does nothing."""

    def __init__(self, options: Options, ranks: Ranks) -> None:
        self._active = ranks.is_first
        self._file = Path(options.out) / "log.csv"
        self._board: Any = None
        self._bar: tqdm | None = None

    def begin(self, epoch: int, images: int) -> None:
        """Start a run. If it resumes, remove log entries of steps that it will repeat."""
        if not self._active:
            return
        rows = list(csv.DictReader(self._file.open())) if self._file.exists() else []
        with self._file.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["epoch"]) < epoch)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("TensorBoard events are not written: pip install tensorboard", flush=True)
        else:
            self._board = SummaryWriter(self._file.parent, purge_step=images)

    def begin_epoch(self, epoch: int, epochs: int, images: int, seen: int) -> None:
        """Start an epoch; ``seen`` of its images were processed before an interruption."""
        self._since, self._from = time.perf_counter(), seen
        if self._active:
            form = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
            self._bar = tqdm(total=images, initial=seen, desc=f"epoch {epoch + 1}/{epochs}", bar_format=form)

    def line(self, images: int, seen: int, loss: float, top1: float, stats: Any) -> None:
        """Log progress: ``images`` of the whole run, ``seen`` of the epoch."""
        if not self._active:
            return
        speed, waited = self._speed(seen), share(stats)
        assert self._bar is not None
        self._bar.n = min(seen, self._bar.total)
        self._bar.set_postfix_str(f"{speed:,.0f} images/s, waits {waited:.0%}, loss {loss:.3f}, top-1 {top1:.0%}")
        if self._board is not None:
            for name, value in {"loss": loss, "top1": top1, "images_per_s": speed, "waited": waited}.items():
                self._board.add_scalar(f"train/{name}", value, images)

    def times(self, seen: int, stats: Any) -> dict[str, float]:
        """Return the training columns at the end of the epoch."""
        return {"images_per_s": self._speed(seen), "waited": share(stats), "seconds": self._seconds()}

    def end_epoch(self, images: int, row: dict[str, Any]) -> None:
        """Log the end of an epoch; ``row`` has all columns."""
        if not self._active:
            return
        assert self._bar is not None
        self._bar.close()
        with self._file.open("a", newline="") as file:
            values = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
            csv.DictWriter(file, COLUMNS).writerow(values)
        average = "" if row["ema_top1"] == "" else f", average of weights {row['ema_top1']:.2%}"
        print(
            f"epoch {row['epoch'] + 1}: top-1 {row['val_top1']:.2%}, top-5 {row['val_top5']:.2%}{average}", flush=True
        )
        if self._board is not None:
            for name in ("lr", "size", "val_loss", "val_top1", "val_top5", "ema_top1"):
                if row[name] != "":
                    self._board.add_scalar(f"epoch/{name}", row[name], images)
            self._board.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()

    def _seconds(self) -> float:
        return time.perf_counter() - self._since

    def _speed(self, seen: int) -> float:
        return (seen - self._from) / max(1e-9, self._seconds())


def share(stats: Any) -> float:
    """Return the share of the epoch's time in next(). It excludes the time that a GPU still computes a batch."""
    return stats.waited / max(1e-9, stats.seconds)
