"""Memory that a process shares with its workers: mapped once, used by one batch after another.

A slot is a file without a name (memfd): nothing is left of it once the last process has closed it, it can grow, and the
size of /dev/shm does not bound it. Beside CUDA its pages are locked, so that a GPU copies straight from and to it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from multiprocessing import reduction
from typing import NamedTuple

import torch

_PAGE = 4096
_ALIGNED = 64  # bytes, a multiple of every dtype's size


class Place(NamedTuple):
    """Bytes of a slot.

    Attributes:
        slot: its number among those that a pool of workers shares.
        begin, end: the bytes.
    """

    slot: int
    begin: int
    end: int


class Slot:
    """Shared bytes. It may be given to processes as they start, forked or spawned; they map it for themselves.

    Args:
        device: which copies from and to it, in the process that makes it.

    Raises:
        OSError: the system gives none.
    """

    def __init__(self, device: torch.device | None = None):
        self._fd = -1
        self._device, self._locked = device, False
        self._read: torch.cuda.Event | None = None  # the end of the last copy to the device
        self._bytes: torch.Tensor | None = None
        self._fd = os.memfd_create("dali_compat")
        self._pid = self._mapped_by = os.getpid()

    def __reduce__(self):
        return _received, (reduction.DupFd(self._fd),)

    @property
    def own(self) -> bool:
        """Whether this process has made it; a forked child must leave it to its parent."""
        return self._pid == os.getpid()

    def reserve(self, size: int) -> None:
        """Make it at least ``size`` bytes long, once the device has read what was there.

        Raises:
            OSError: there is no room.
        """
        self.wait()
        if self._bytes is not None and len(self._bytes) >= size:
            return
        self._unmap()
        os.ftruncate(self._fd, max(-(-size // _PAGE) * _PAGE, os.fstat(self._fd).st_size))
        self._map()
        if self._on_gpu:
            with torch.cuda.device(self._device):
                code = torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), len(self._bytes), 0)
                self._locked = int(code) == 0  # else copies take longer, that is all
                if not self._locked:
                    with contextlib.suppress(RuntimeError):  # CUDA keeps the error for whoever asks next
                        torch.ones(1, device=self._device)

    def being_read(self) -> None:
        """Copies to the device are under way."""
        if self._on_gpu:
            self._read = torch.cuda.current_stream(self._device).record_event()

    def wait(self) -> None:
        """Until they are over."""
        if self._read is not None:
            self._read.synchronize()
            self._read = None

    def bytes(self, place: Place) -> torch.Tensor:
        """A uint8 view of them."""
        if self._bytes is None or self._mapped_by != os.getpid() or len(self._bytes) < place.end:
            self._map()
        return self._bytes[place.begin : place.end]

    def __del__(self):
        """Views of it live on."""
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _on_gpu(self) -> bool:
        return self._device is not None and self._device.type == "cuda"

    def _map(self) -> None:
        self._bytes = torch.frombuffer(mmap.mmap(self._fd, os.fstat(self._fd).st_size), dtype=torch.uint8)
        self._mapped_by = os.getpid()

    def _unmap(self) -> None:
        if self._locked and self.own:
            self.wait()
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        self._locked, self._bytes = False, None


def _received(descriptor) -> Slot:
    slot = Slot.__new__(Slot)
    slot._fd, slot._device, slot._locked, slot._read, slot._bytes = descriptor.detach(), None, False, None, None
    slot._pid = slot._mapped_by = -1
    return slot


def aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
