"""ctypes bindings of nvJPEG's batched decoder for a GPU's JPEG engine.

One call decodes many JPEGs to planes, and releases the GIL. See
https://docs.nvidia.com/cuda/nvjpeg.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ...runtime.installation import nvjpeg_libraries

_VERSION = 0, 1, 2  # properties: major, minor, patch level
_HARDWARE, _YUV, _444 = 3, 1, 0  # backend, output format, chroma subsampling
_FILES, _SIDES = 256, (256, 512, 1024)  # files per call; side lengths in pixels that memory is preallocated for
_ROOM = 2**29  # for longer sides: maximum of files per call * longest side ** 2
_STATUS = {2: "invalid parameter", 3: "a bad JPEG", 4: "not supported", 5: "no memory", 6: "execution failed"}
_STATUS |= {8: "internal error", 9: "not implemented", 10: "an incomplete JPEG"}
_NO_MEMORY, _NO_ENGINE = 5, 7


class EngineError(RuntimeError):
    """Raised if a function of nvJPEG fails. The message contains its name and status."""


class EngineMemoryError(MemoryError):
    """Raised if nvJPEG is out of memory. No file is at fault."""


class Nvjpeg:
    """nvJPEG's decoder on the current device's engine. Not thread-safe. Raises EngineError if the library is missing
    or this GPU has no engine, and AttributeError if the library is too old."""

    def __init__(self) -> None:
        failed: Exception = EngineError("the nvJPEG library was not found")
        for library in nvjpeg_libraries():  # the first may require a newer driver
            try:
                self._open(library)
                return
            except (AttributeError, EngineError) as error:
                failed = error
        raise failed

    def _open(self, library: Any) -> None:
        self._library: Any = library
        # keeps the GIL during short calls, since reacquiring it may take longer
        self._quick = ctypes.PyDLL(None, handle=library._handle)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._side = 0  # nothing is preallocated
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
        """Decode the N baseline JPEGs of one group from calls_of(). Before another call, synchronize ``stream``. Raises
        EngineError if the engine cannot decode one of the files, and EngineMemoryError if nvJPEG is out of memory.

        Args:
            files, lengths: (N,) uint64, host addresses and sizes in bytes.
            outputs: (N, 8) uint64, addresses of four planes and bytes per line of each (nvjpegImage_t).
            longest: longest side of all images, in pixels.
        """
        side = next((side for side in _SIDES if side >= longest), _SIDES[-1])
        if side > self._side:  # otherwise nvJPEG reallocates memory for each larger image
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
            raise EngineMemoryError(f"{name} failed: {_STATUS[status]}")
        if status == _NO_ENGINE:
            raise EngineError("this GPU has no JPEG engine")
        if status:
            raise EngineError(f"{name} failed: {_STATUS.get(status, f'status {status}')}")


def calls_of(sides: np.ndarray) -> list[np.ndarray]:
    """Split N files into calls of decode(). Return the indices of the files of each call.

    ``sides`` (N,) is the longest side of each image. For each position in a call, nvJPEG keeps enough memory for the
    largest file so far. To limit this memory, large files are decoded first, in small calls.
    """
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
