"""Files that save a later start from repeating work. They are written atomically, by one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import uuid
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from .messages import stack_level

_patience: dict[Path, float] = defaultdict(lambda: 60.0)
"""Seconds to wait for the holder of a lock, which may be stopped, or on a server that is gone. 0 after the first
timeout."""


def cache_folder() -> Path:
    """Return the user's cache folder of dali_compat, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dali_compat"


def digest(*values) -> str:
    """Return 32 hexadecimal digits for values that can be encoded as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def save(path: str | Path, meta: dict, arrays: dict[str, np.ndarray], mode: int = 0o600) -> None:
    """Write ``meta``, which must be JSON-encodable, and arrays to a file with permissions ``mode``. The file appears
    complete or not at all.

    Raises:
        OSError: the folder is not writable or full.
    """
    write(Path(path), [packed(meta, arrays)], mode)


def write(path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o600) -> None:
    """Write a file from pieces, as save() does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines(pieces)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def packed(meta: dict, arrays: dict[str, np.ndarray]) -> memoryview:
    """Return the bytes of such a file."""
    file, named = io.BytesIO(), {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays}
    np.savez(file, **named)  # type: ignore[arg-type]  # none is named allow_pickle
    return file.getbuffer()


def load(path: str | Path, owners: tuple[int, ...] = ()) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Return the content written by save(). Return None if there is no such file, it is damaged, or others may have
    written it. It must be owned by this user or one of ``owners`` (user ids), and not be writable by others."""
    return unpacked(read(path, owners))


def read(path: str | Path, owners: tuple[int, ...] = ()) -> bytes:
    """Return a file's bytes, or none if it cannot be read, or others may have written it."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            is_others = stat.st_uid not in (os.geteuid(), *owners) or stat.st_mode & 0o022
            return b"" if is_others else file.read()
    except OSError:
        return b""


def unpacked(data: bytes) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Decode the bytes of a file written by save(), or return None if they are invalid."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = dict(stored)
        return json.loads(arrays.pop("meta").tobytes()), arrays
    except Exception:  # zipfile, zlib and NumPy raise various errors for invalid files
        return None


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold a lock by name, for one process of this machine at a time, so that the ranks of a training job do not repeat
    the same work. If locks do not work, or another process holds this one for long, continue without it; save() keeps
    files consistent."""
    path = cache_folder() / "locks" / name
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path, timeout=_patience[path]))
        except Timeout:
            if seconds := _patience[path]:
                text = f"another process has held {path} for {seconds:g} s; continuing without it"
                warnings.warn(text, stacklevel=stack_level())
            _patience[path] = 0
        except (OSError, NotImplementedError):
            pass
        yield
