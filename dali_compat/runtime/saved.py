"""Files that cache results for later starts, and locks for processes that write the same file."""

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
"""Seconds to wait for each lock; 0 after the first timeout, because the lock's holder may be stopped."""


def cache_folder() -> Path:
    """Return the user's cache folder of dali_compat. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dali_compat"


def digest(*values) -> str:
    """Return a hash of JSON-encodable values, as a string of 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def save(path: str | Path, meta: dict, arrays: dict[str, np.ndarray], mode: int = 0o600) -> None:
    """Write ``meta`` and arrays atomically to a file with permissions ``mode``. ``meta`` must be JSON-encodable.

    Raises:
        OSError: the folder is not writable, or the disk is full.
    """
    write(Path(path), [packed(meta, arrays)], mode)


def write(path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o600) -> None:
    """Write pieces of bytes atomically to a file."""
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
    """Return the bytes that save() writes."""
    file, named = io.BytesIO(), {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays}
    np.savez(file, **named)  # type: ignore[arg-type]  # none is named allow_pickle
    return file.getbuffer()


def load(path: str | Path, owners: tuple[int, ...] = ()) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Return ``meta`` and the arrays of a file written by save(). Return None if the file is missing or damaged, is
    writable by others, or belongs neither to this user nor to one of ``owners`` (user ids)."""
    return unpacked(read(path, owners))


def read(path: str | Path, owners: tuple[int, ...] = ()) -> bytes:
    """Return the bytes of a file, or b"" if it cannot be read or others may have written it (see load())."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            is_others = stat.st_uid not in (os.geteuid(), *owners) or stat.st_mode & 0o022
            return b"" if is_others else file.read()
    except OSError:
        return b""


def unpacked(data: bytes) -> tuple[dict, dict[str, np.ndarray]] | None:
    """Return ``meta`` and the arrays from the bytes of a file, or None if these are invalid."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = dict(stored)
        return json.loads(arrays.pop("meta").tobytes()), arrays
    except Exception:  # zipfile, zlib and NumPy raise various errors for invalid files
        return None


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Context manager that holds the lock ``name``, to keep the ranks of a training job from repeating work. The block
    runs without the lock if locks do not work, or if this one is not free within a minute."""
    path = cache_folder() / "locks" / name
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path, timeout=_patience[path]))
        except Timeout:
            if seconds := _patience[path]:
                text = f"another process has held the lock {path} for {seconds:g} s; continuing without it"
                warnings.warn(text, stacklevel=stack_level())
            _patience[path] = 0
        except (OSError, NotImplementedError):
            pass
        yield
