"""Memory that a process shares with its workers: mapped once, used by one batch after another.

A slot is a file without a name (memfd): nothing is left of it once the last process has closed it, it can grow, and the
size of /dev/shm does not bound it. Beside CUDA its pages are locked, so that a GPU copies straight from and to it.
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

    # of one that is not quite made, or that another process has made
    _fd, _pid, _mapped_by, _locked = -1, -1, -1, False
    _bytes: torch.Tensor | None = None
    _device: torch.device | None = None
    _read: torch.cuda.Event | None = None  # the end of the last copy to the device
    _reading = False  # a copy has begun whose end is not known yet

    def __init__(self, device: torch.device | None = None):
        self._device = device
        self._pid = self._mapped_by = os.getpid()
        self._fd = os.memfd_create("dali_compat")

    def __reduce__(self):
        return _received, (reduction.DupFd(self._fd),)

    @property
    def own(self) -> bool:
        """True if this process has made it, and it has not ended; a forked child must leave it to its parent."""
        return self._pid == os.getpid() and self._fd >= 0

    def reserve(self, size: int) -> None:
        """Make it at least ``size`` bytes long, once the device has read what was there.

        Raises:
            OSError: there is no room.
        """
        self.wait()
        if self._bytes is not None and len(self._bytes) >= size:
            return
        self._unmap()
        os.posix_fallocate(self._fd, 0, -(-size // _PAGE) * _PAGE)  # now: later it would be a signal, SIGBUS
        made = self._map()
        if self._on_gpu:
            with torch.cuda.device(self._device):
                code = torch.cuda.cudart().cudaHostRegister(made.data_ptr(), len(made), 0)
                self._locked = int(code) == 0  # else copies take longer, that is all
                if not self._locked:
                    with contextlib.suppress(RuntimeError):  # CUDA keeps the error for whoever asks next
                        torch.ones(1, device=self._device)

    @contextlib.contextmanager
    def read(self):
        """A context manager, within which copies to the device are begun."""
        self._reading = self._on_gpu
        yield
        if self._on_gpu:
            self._read = torch.cuda.current_stream(self._device).record_event()
        self._reading = False

    def wait(self) -> None:
        """Waits until the copies to the device are over."""
        if self._reading:  # an interrupt came before the event
            torch.cuda.synchronize(self._device)
        if self._read is not None:
            self._read.synchronize()
        self._reading, self._read = False, None

    def bytes(self, place: Place) -> torch.Tensor:
        """Returns a uint8 view of a place."""
        mapped = self._bytes
        if mapped is None or self._mapped_by != os.getpid() or len(mapped) < place.end:
            mapped = self._map()
        return mapped[place.begin : place.end]

    def __del__(self, ending=sys.is_finalizing):
        """Views of it live on. At the program's end the modules are gone, and the system frees it all."""
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
    """Keeps free slots from one epoch to the next. Whoever takes one has it alone; a slot that is not given back is
    freed with its taker.

    Attributes:
        room: bytes that a result takes, at most, as far as it is known; 0 before.
    """

    def __init__(self):
        self.room = 0
        self._free: list[Slot] = []

    def take(self, count: int, device: torch.device) -> list[Slot]:
        """Slots of this process, new ones too; fewer where the system gives none."""
        taken: list[Slot] = []
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: a Python that was built without memfd
            while len(taken) < count:
                slot = self._free.pop() if self._free else Slot(device)
                if slot.own:
                    slot.wait()  # no process is born with events
                    taken.append(slot)
        return taken

    def give_back(self, slot: Slot) -> None:
        """Takes a slot back; once, and only where no process may still write there."""
        if slot.own:
            self._free.append(slot.renewed())


def in_a_file(data: bytes) -> BinaryIO | None:
    """Puts bytes into a file without a name, which another process can map; None where the system gives no such
    memory."""
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: as above
        file = open(os.memfd_create("dali_compat"), "wb")
        file.write(data)
        file.flush()
        return file
    return None


def mapped(file: int) -> memoryview:
    """The bytes of such a file, which it closes."""
    try:
        return memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
    finally:
        os.close(file)


def aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def private(values: torch.Tensor) -> torch.Tensor:
    """A copy, through NumPy: torch's threads wait for each other where DALI's keep the cores busy."""
    return torch.from_numpy(values.numpy().copy())
