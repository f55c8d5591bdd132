"""nvJPEG's decoder for batches, on the JPEG engine of a GPU: files -> planes, many in one call, with ctypes.

https://docs.nvidia.com/cuda/nvjpeg. The library comes with DALI. A call returns when its planes are there, and leaves
the interpreter unlocked meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ...runtime.installation import nvjpeg_libraries

_VERSION = 0, 1, 2  # properties: major, minor, patch level
_HARDWARE, _YUV, _444 = 3, 1, 0  # a backend, a format of outputs, a sampling of chroma
_FILES, _SIDES = 256, (256, 512, 1024)  # of a call, and pixels: for so many files of such sides room is kept
_ROOM = 2**29  # pixels of a call that has longer sides: files times the square of the longest
_STATUS = {2: "invalid parameter", 3: "a bad JPEG", 4: "not supported", 5: "no memory", 6: "execution failed"}
_STATUS |= {8: "internal error", 9: "not implemented", 10: "an incomplete JPEG"}
_NO_MEMORY, _NO_ENGINE = 5, 7


class EngineError(RuntimeError):
    """nvJPEG did not do it; the text names its function and status."""


class EngineMemoryError(MemoryError):
    """nvJPEG has found no memory: the file is not to blame."""


class Nvjpeg:
    """nvJPEG on the current device's engine; ``version`` is the library's. One thread at a time uses it. Raises
    AttributeError if the library is too old, and EngineError if it is not there, or this GPU has no engine."""

    def __init__(self) -> None:
        failed: Exception = EngineError("nvJPEG's library is not there")
        for library in nvjpeg_libraries():  # one may be for a newer driver
            try:
                self._open(library)
                return
            except (AttributeError, EngineError) as error:
                failed = error
        raise failed

    def _open(self, library: Any) -> None:
        self._library: Any = library
        # keeps the interpreter locked: it may take longer to have it again
        self._quick = ctypes.PyDLL(None, handle=library._handle)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._side = 0  # no room is kept
        self.version = ".".join(str(self._property(which)) for which in _VERSION)
        self._call("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self._handle))
        try:
            engines, cores = ctypes.c_uint(), ctypes.c_uint()
            self._call("nvjpegGetHardwareDecoderInfo", self._handle, ctypes.byref(engines), ctypes.byref(cores))
            self._checked("", 0 if engines.value else _NO_ENGINE)
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        except BaseException:
            library.nvjpegDestroy(self._handle)
            raise

    def decode(self, files: np.ndarray, lengths: np.ndarray, outputs: np.ndarray, longest: int, stream: int) -> None:
        """N baseline JPEGs, as calls_of() says. The call before is over, on the stream, too. Raises EngineError if one
        of them at least is nothing for the engine, and EngineMemoryError if nvJPEG has no memory.

        Args:
            files, lengths: (N,) uint64, addresses on the host and bytes.
            outputs: (N, 8) uint64, nvjpegImage_t: the addresses of four planes, and bytes a line of each.
            longest: pixels, of any side.
            stream: of CUDA.
        """
        side = next((side for side in _SIDES if side >= longest), _SIDES[-1])
        if side > self._side:  # otherwise every image is given memory, and that is taken away again, as larger ones are
            self._call("nvjpegDecodeBatchedPreAllocate", self._handle, self._state, _FILES, side, side, _444, _YUV)
            self._side = side
        state = self._handle, self._state
        self._checked(
            "nvjpegDecodeBatchedInitialize", self._quick.nvjpegDecodeBatchedInitialize(*state, len(files), 1, _YUV)
        )
        given = [ctypes.c_void_p(array.ctypes.data) for array in (files, lengths, outputs)]
        self._call("nvjpegDecodeBatched", *state, *given, ctypes.c_void_p(stream))

    def _property(self, which: int) -> int:
        value = ctypes.c_int()
        self._call("nvjpegGetProperty", which, ctypes.byref(value))
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        self._checked(name, getattr(self._library, name)(*arguments))

    def _checked(self, name: str, status: int) -> None:
        if status == _NO_MEMORY:
            raise EngineMemoryError(f"{name}: {_STATUS[status]}")
        if status == _NO_ENGINE:
            raise EngineError("this GPU has no JPEG engine")
        if status:
            raise EngineError(f"{name}: {_STATUS.get(status, f'status {status}')}")


def calls_of(sides: np.ndarray) -> list[np.ndarray]:
    """Which of N files a call should have, by the longest side of each: nvJPEG keeps, for each file of a call, what the
    largest in its place has needed. So long ones come in calls of few, the longest first: what is kept for all places
    is bounded, wherever in a batch the long ones are."""
    order: np.ndarray = np.arange(len(sides))
    calls = []
    if sides.max() > _SIDES[-1]:
        order = np.argsort(-sides, kind="stable")
    while len(order):
        longest = max(int(sides[order[0]]), _SIDES[-1])
        count = max(1, min(_FILES, _ROOM // longest**2))
        calls.append(order[:count])
        order = order[count:]
    return calls
