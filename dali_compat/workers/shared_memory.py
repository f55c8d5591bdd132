"""Memory that a process shares with its workers, mapped once and reused for one batch after another.

A slot is an anonymous file (memfd). It is freed when the last process closes it, it can grow, and the size of /dev/shm
does not limit it. With CUDA its pages are locked, so that the GPU can copy from and to it directly.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from multiprocessing import reduction
from typing import BinaryIO, NamedTuple

import torch

_PAGE = 4096
_ALIGNED = 64  # bytes, a multiple of every dtype's size


class Place(NamedTuple):
    """Bytes of a slot.

    Attributes:
        slot: number of the slot in its pool.
        begin, end: range of the bytes.
    """

    slot: int
    begin: int
    end: int


class Slot:
    """Shared bytes. A slot may be passed to forked or spawned processes when they start, and each maps it.

    Args:
        device: device that copies from and to the slot in the process that creates it.

    Raises:
        OSError: the system has no such memory.
    """

    # defaults for an incomplete slot, and for a slot of another process
    _fd, _pid, _mapped_by, _locked = -1, -1, -1, False
    _bytes: torch.Tensor | None = None
    _device: torch.device | None = None
    _read: torch.cuda.Event | None = None  # the end of the last copy to the device
    _reading = False  # a copy has begun and its event is not recorded yet

    def __init__(self, device: torch.device | None = None):
        self._device = device
        self._pid = self._mapped_by = os.getpid()
        self._fd = os.memfd_create("dali_compat")

    def __reduce__(self):
        return _received, (reduction.DupFd(self._fd),)

    @property
    def own(self) -> bool:
        """True if this process created the slot and it is open; a forked child must leave it to its parent."""
        return self._pid == os.getpid() and self._fd >= 0

    def reserve(self, size: int) -> None:
        """Grow the slot to at least ``size`` bytes, after the device has read its contents.

        Raises:
            OSError: there is not enough memory.
        """
        self.wait()
        if self._bytes is not None and len(self._bytes) >= size:
            return
        self._unmap()
        os.posix_fallocate(self._fd, 0, -(-size // _PAGE) * _PAGE)  # fails now instead of with SIGBUS later
        made = self._map()
        if self._on_gpu:
            with torch.cuda.device(self._device):
                code = torch.cuda.cudart().cudaHostRegister(made.data_ptr(), len(made), 0)
                self._locked = int(code) == 0  # without it copies only take longer
                if not self._locked:
                    with contextlib.suppress(RuntimeError):  # clears CUDA's stored error
                        torch.ones(1, device=self._device)

    @contextlib.contextmanager
    def read(self):
        """Return a context manager for starting copies to the device."""
        self._reading = self._on_gpu
        yield
        if self._on_gpu:
            self._read = torch.cuda.current_stream(self._device).record_event()
        self._reading = False

    def wait(self) -> None:
        """Wait for the copies to the device."""
        if self._reading:  # interrupted before the event was recorded
            torch.cuda.synchronize(self._device)
        if self._read is not None:
            self._read.synchronize()
        self._reading, self._read = False, None

    def bytes(self, place: Place) -> torch.Tensor:
        """Return a uint8 view of a place."""
        mapped = self._bytes
        if mapped is None or self._mapped_by != os.getpid() or len(mapped) < place.end:
            mapped = self._map()
        return mapped[place.begin : place.end]

    def __del__(self, ending=sys.is_finalizing):
        """Close the file; views stay valid. At exit, modules may be gone, and the system frees the memory."""
        if ending():
            return
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def renewed(self) -> Slot:
        """Return another slot with the same memory, which this one no longer has.

        If an iterator is garbage, the collector may call ``__del__`` of its slots after it has given them back.
        """
        other = Slot.__new__(Slot)
        other.__dict__, self.__dict__ = self.__dict__, {}
        return other

    @property
    def _on_gpu(self) -> bool:
        return self._device is not None and self._device.type == "cuda"

    def _map(self) -> torch.Tensor:
        self._bytes = mapped = torch.frombuffer(mmap.mmap(self._fd, os.fstat(self._fd).st_size), dtype=torch.uint8)
        self._mapped_by = os.getpid()
        return mapped

    def _unmap(self) -> None:
        if self._locked and self.own and self._bytes is not None:
            self.wait()
            with torch.cuda.device(self._device):
                torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        self._locked, self._bytes = False, None


def _received(descriptor) -> Slot:
    slot = Slot.__new__(Slot)
    slot._fd = descriptor.detach()
    return slot


class SlotStore:
    """Free slots, kept from one epoch to the next. A slot that is not given back is freed with its user.

    Attributes:
        room: largest known size of a result in bytes; 0 at first.
    """

    def __init__(self):
        self.room = 0
        self._free: list[Slot] = []

    def take(self, count: int, device: torch.device) -> list[Slot]:
        """Return ``count`` slots of this process, free or new; fewer if the system has no memory."""
        taken: list[Slot] = []
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: a Python that was built without memfd
            while len(taken) < count:
                slot = self._free.pop() if self._free else Slot(device)
                if slot.own:
                    slot.wait()  # processes must not inherit events
                    taken.append(slot)
        return taken

    def give_back(self, slot: Slot) -> None:
        """Take a slot back. Call it once per slot, and only if no process may still write there."""
        if slot.own:
            self._free.append(slot.renewed())


def in_a_file(data: bytes) -> BinaryIO | None:
    """Write bytes to an anonymous file, which another process can map; None if the system has no such memory."""
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: as above
        file = open(os.memfd_create("dali_compat"), "wb")
        file.write(data)
        file.flush()
        return file
    return None


def mapped(file: int) -> memoryview:
    """Return the bytes of such a file, and close its descriptor."""
    try:
        return memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
    finally:
        os.close(file)


def aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def private(values: torch.Tensor) -> torch.Tensor:
    """Return a copy made by NumPy, since torch's threads wait for each other while DALI's keep the cores busy."""
    return torch.from_numpy(values.numpy().copy())
