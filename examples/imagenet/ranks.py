"""The ranks of a run: who this process is, and what all of them do together."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """torchrun starts one process a GPU, and each of them makes one of these. Without torchrun it is a world of one.

    Two groups. The default one is NCCL's on GPUs, and moves gradients. ``control`` is Gloo's everywhere: it carries
    Python objects, and its barrier names the ranks that did not come. Both give up after ``timeout`` seconds: a rank
    that died on another machine ends the run with an error. One that died on this machine torchrun notices at once.

    Attributes:
        rank, local_rank, world: as torchrun says.
        device: this rank's.
        stopping: whether SIGTERM came, from torchrun, Slurm's time limit or a spot machine that goes; or Ctrl-C. A
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
        """Whether this rank prints and saves."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Printed once, by the first rank."""
        if self.is_first:
            print(text, flush=True)

    def wait(self, seconds: float | None = None) -> None:
        """Until all ranks are here.

        Raises:
            RuntimeError: some did not come in time; the first rank's text says which.
        """
        timeout = self._timeout if seconds is None else timedelta(seconds=seconds)
        dist.monitored_barrier(self.control, timeout, wait_all_ranks=True)

    def total(self, values: torch.Tensor) -> list[float]:
        """Sums over all ranks of a vector on the device."""
        dist.all_reduce(values)
        return values.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's, in all ranks."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, self.control)
        return values

    def leave(self) -> None:
        """At the end. Not behind an error: the others may never come."""
        for number, before in self._before.items():
            signal.signal(number, before)
        dist.destroy_process_group()
