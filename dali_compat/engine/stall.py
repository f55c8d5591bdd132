"""How much of the GPU's time goes by waiting for data."""

from __future__ import annotations

from collections import deque

import torch

_WINDOW = 16  # batches to judge by, after as many at the start of an epoch
_TOO_MUCH = 0.25  # share of the time


class StallMeter:
    """Wrap the making of each batch in ``with meter``; then ask ``meter.persists``.

    Two events on the consumer's stream enclose its wait for DALI: one when it asks, behind all the work it has launched,
    and one when the batch is there. The time between them is time in which the GPU had nothing of the consumer's to do.
    On the CPU it measures nothing and never persists.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.persists = False
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._shares: deque[float] = deque(maxlen=_WINDOW)
        self._skip = _WINDOW

    def __enter__(self):
        if self.device.type == "cuda" and not self.persists:
            self._asked = self._event()

    def __exit__(self, *_):
        if self.device.type == "cuda" and not self.persists:
            self._waits.append((self._asked, self._event()))
            self._judge()

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _judge(self) -> None:
        while len(self._waits) > 1 and self._waits[1][1].query():
            (_, before), (asked, ready) = self._waits.popleft(), self._waits[0]
            total = before.elapsed_time(ready)
            self._shares.append(asked.elapsed_time(ready) / total if total else 0.0)
            self._skip -= 1
        full = len(self._shares) == _WINDOW and self._skip <= 0
        self.persists = full and sum(self._shares) / _WINDOW > _TOO_MUCH
