"""nvJPEG's decoder for batches, on the JPEG engine of a GPU: files -> planes, many in one call, with ctypes.

https://docs.nvidia.com/cuda/nvjpeg. The library comes with DALI. A call returns when its planes are there, and leaves
the interpreter unlocked meanwhile.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from ...installation import nvjpeg_libraries

_VERSION = 0, 1, 2  # properties: major, minor, patch level
_HARDWARE, _YUV, _444 = 3, 1, 0  # a backend, a format of outputs, a sampling of chroma
_FILES, _SIDE = 256, 1024  # of a call, and pixels: for so many room is kept at first
_ROOM = 2**30  # pixels for which room is kept at most: one long side would have it for a square of each file
_STATUS = {2: "invalid parameter", 3: "a bad JPEG", 4: "not supported", 5: "no memory", 6: "execution failed"}
_STATUS |= {7: "no JPEG engine", 8: "internal error", 9: "not implemented", 10: "an incomplete JPEG"}


class EngineError(RuntimeError):
    """nvJPEG did not do it; the text names its function and status."""


class Nvjpeg:
    """nvJPEG on the current device's engine. One thread at a time uses it.

    Attributes:
        version: the library's.

    Raises:
        AttributeError: the library is too old.
        EngineError: it is not there, or this GPU has no engine.
    """

    def __init__(self) -> None:
        library = next(nvjpeg_libraries(), None)
        if library is None:
            raise EngineError("nvJPEG's library is not there")
        self._library: Any = library
        # keeps the interpreter locked: it may take longer to have it again
        self._quick = ctypes.PyDLL(None, handle=library._handle)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self.version = ".".join(str(self._property(which)) for which in _VERSION)
        self._call("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self._handle))
        engines, cores = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvjpegGetHardwareDecoderInfo", self._handle, ctypes.byref(engines), ctypes.byref(cores))
        if not engines.value:
            raise EngineError("this GPU has no JPEG engine")
        self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        self._make_room(_FILES, _SIDE)

    def decode(self, files: np.ndarray, lengths: np.ndarray, outputs: np.ndarray, longest: int, stream: int) -> None:
        """N baseline JPEGs. The call before is over, on the stream, too.

        Args:
            files, lengths: (N,) uint64, addresses on the host and bytes.
            outputs: (N, 8) uint64, nvjpegImage_t: the addresses of four planes, and bytes a line of each.
            longest: pixels, of any side.
            stream: of CUDA.

        Raises:
            EngineError: one of them at least is nothing for the engine.
        """
        count = len(files)
        room = max(count, self._files)
        side = min(max(1 << (longest - 1).bit_length(), self._side), math.isqrt(_ROOM // room))
        if (room, side) != (self._files, self._side):
            self._make_room(room, side)
        state = self._handle, self._state
        self._checked(
            "nvjpegDecodeBatchedInitialize", self._quick.nvjpegDecodeBatchedInitialize(*state, count, 1, _YUV)
        )
        given = [ctypes.c_void_p(array.ctypes.data) for array in (files, lengths, outputs)]
        self._call("nvjpegDecodeBatched", *state, *given, ctypes.c_void_p(stream))

    def _make_room(self, files: int, side: int) -> None:
        """Beforehand: otherwise every image is given memory, and that is taken away again, as larger ones are."""
        self._call("nvjpegDecodeBatchedPreAllocate", self._handle, self._state, files, side, side, _444, _YUV)
        self._files, self._side = files, side

    def _property(self, which: int) -> int:
        value = ctypes.c_int()
        self._call("nvjpegGetProperty", which, ctypes.byref(value))
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        self._checked(name, getattr(self._library, name)(*arguments))

    def _checked(self, name: str, status: int) -> None:
        if status:
            raise EngineError(f"{name}: {_STATUS.get(status, f'status {status}')}")
