"""Ranks: this process's rank, and collective operations."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """The group of processes that torchrun starts, one per GPU; without torchrun a group of one.

    There are two process groups. The default one is NCCL's on GPUs, for gradients. ``control`` is always Gloo's. It
    sends Python objects, and its barrier names missing ranks. Both time out after ``timeout`` seconds, so that a rank
    that died on another machine ends the run with an error. torchrun notices at once if a rank died on this machine.

    Attributes:
        rank, local_rank, world: Values set by torchrun.
        device: This rank's device.
        stopping: True after SIGTERM, from torchrun, Slurm's time limit or a reclaimed spot machine; or after Ctrl-C. A
            second Ctrl-C ends the program at once.
    """

    def __init__(self, timeout: int) -> None:
        self.rank, self.local_rank, self.world = (
            int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1))
        )
        self._timeout = timedelta(seconds=timeout)
        if torch.cuda.is_available():
            self.device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        store = {} if "RANK" in os.environ else dict(store=dist.HashStore(), rank=0, world_size=1)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=self._timeout, **store)
        self.control = dist.new_group(backend="gloo", timeout=self._timeout)
        self.stopping = False
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}

    def _stop(self, *_: Any) -> None:
        self.stopping = True
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    @property
    def is_first(self) -> bool:
        """Return True if this rank prints and saves."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Print the text on the first rank only."""
        if self.is_first:
            print(text, flush=True)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until all ranks are here.

        Raises:
            RuntimeError: Ranks are missing after the timeout; the first rank's message names them.
        """
        timeout = self._timeout if seconds is None else timedelta(seconds=seconds)
        dist.monitored_barrier(self.control, timeout, wait_all_ranks=True)

    def total(self, values: torch.Tensor) -> list[float]:
        """Return the sum over all ranks of a vector on the device."""
        dist.all_reduce(values)
        return values.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, self.control)
        return values

    def leave(self) -> None:
        """End the process groups. Do not call it after an error, since it waits for the other ranks."""
        for number, before in self._before.items():
            signal.signal(number, before)
        dist.destroy_process_group()
