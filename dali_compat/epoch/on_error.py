"""Implementation of ``on_error``. Unreadable samples are replaced or skipped, and recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from ..data.lookup import Samples
from ..errors import BadImageWarning, ImageReadError, remedy_of
from ..randoms import replacement
from ..runtime.messages import stack_level
from .epoch import Epoch

POLICIES = "raise", "skip", "replace"
ATTEMPTS = 100  # number of samples to try as a replacement
_READ_ERRORS = OSError, SyntaxError, EOFError, Image.DecompressionBombError  # raised by PIL for damaged files
NOTHING = object()  # returned instead of a batch without samples


class SampleError(NamedTuple):
    """A sample that was replaced or skipped.

    Attributes:
        path: path of the file. In an archive, the archive's path and the byte offset. For a DALIHuggingFace without
            files, the row. If the file is unknown, the name of the data set's class.
        index: index in the data set, from the sampler or drawn as a replacement.
        epoch: epoch of the first failure. A loader's first epoch is 0.
        reason: class and message of the error.

    Examples:
        >>> loader = DataLoader(DALIImageList(["empty.jpg", "train/cat/0.jpg"]), on_error="skip", device="cpu",
        ...                     collate_fn=list)
        >>> batches = list(loader)
        >>> loader.errors[0].path, loader.errors[0].index
        ('.../empty.jpg', 0)
    """

    path: str
    index: Any
    epoch: int
    reason: str


class Errors:
    """Policy for unreadable samples, and a record of these samples.

    Args:
        policy: the loader's ``on_error``.
        in_python: the loader's ``on_error_in_python``.
    """

    def __init__(self, policy: str, in_python: bool):
        self.policy, self.in_python = policy, in_python
        self._found: dict[tuple[str, str], SampleError] = {}  # by path and index
        self._epoch, self._count = -1, 0  # number of the epoch, and of its failures
        self._so_far = 0  # number of failures before the checkpoint
        self._warned = 0  # len(_found) at the end of the last epoch

    @property
    def found(self) -> list[SampleError]:
        return list(self._found.values())

    def begin(self, reloads: bool = False) -> None:
        """Begin or resume an epoch. A resumed epoch keeps its count of failures unless it ``reloads`` its earlier
        batches."""
        self._epoch, self._count, self._so_far = self._epoch + 1, 0 if reloads else self._so_far, 0

    def state(self) -> dict[str, Any]:
        """Return all failures as plain data. An index that is not a number is stored as text."""
        plain = [one.index if isinstance(one.index, (int, str)) else repr(one.index) for one in self.found]
        found = [[one.path, index, one.epoch, one.reason] for one, index in zip(self.found, plain, strict=True)]
        return {"epoch": self._epoch, "count": self._count, "found": found}

    def load(self, state: dict[str, Any], under_way: bool) -> None:
        """Restore a result of state(). ``under_way`` is whether the next begin() resumes that state's epoch."""
        self._found = {(path, repr(index)): SampleError(path, index, *rest) for path, index, *rest in state["found"]}
        self._epoch, self._count = state["epoch"] - under_way, state["count"]
        self._so_far = self._count if under_way else 0
        self._warned = sum(one.epoch <= self._epoch for one in self.found)

    def add(self, path: str, index: Any, reason: str) -> None:
        """Record a sample that was skipped or replaced. Warn about the loader's first one."""
        self._count += 1
        index = index.__index__() if hasattr(index, "__index__") else index  # some samplers return tensors
        key = path, repr(index)
        if key in self._found:
            return
        self._found[key] = SampleError(path, index, self._epoch, reason)
        if len(self._found) == 1:
            _warn(f"{path}, index {index}, is {self._verb}: {reason} (loader.errors lists all such samples)")

    @property
    def covers(self) -> tuple[type[Exception], ...]:
        """Classes of errors that the policy covers. Other errors end the epoch."""
        return (Exception,) if self.in_python else _READ_ERRORS

    def end(self, samples: int) -> None:
        """End an epoch of ``samples`` samples. If any failed for the first time, warn about the number of
        failures."""
        # before the warning, which may be raised as an error
        (count, self._count), warned, self._warned = (self._count, 0), self._warned, len(self._found)
        if count and self._warned > warned:
            _warn(f"epoch {self._epoch}: {count:,} of {samples:,} samples were {self._verb} (see loader.errors)")

    @property
    def _verb(self) -> str:
        return "skipped" if self.policy == "skip" else "replaced"


def checked_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise ValueError(f"on_error must be 'raise', 'skip' or 'replace', got {policy!r}")
    return policy


def reason_of(error: BaseException | str) -> str:
    """Return the class and message of an error, for SampleError.reason. Path, index and a worker's traceback are
    removed."""
    if isinstance(error, str):
        return error
    error = error.__cause__ or error
    reason = f"{type(error).__name__}: {error}"
    return reason.strip().splitlines()[-1] if "\nOriginal Traceback" in reason else reason


def _warn(text: str) -> None:
    warnings.warn(text, BadImageWarning, stacklevel=stack_level())


class Substitute:
    """A replacement for the unreadable sample at one position of an epoch. Random samples are tried until one can be
    read. They depend only on the epoch's seed and the position. ``make`` creates a batch of one sample."""

    def __init__(self, epoch: Epoch[Any], position: int, make: Callable[..., Any]):
        self._epoch, self._position, self._make, self._attempts = epoch, position, make, 0
        self._try_another()

    def outcome(self) -> tuple[Samples, Any]:
        """Return the replacement and its image. Record the samples that could not be read. Raise the last error after
        ATTEMPTS failures."""
        while True:
            errors, index = self._epoch.errors, self._batch.indices[0]
            try:
                sample, image, bad = self._batch.single_outcome()
                if bad is None:
                    return sample, image
                source, why = bad
                if self._attempts == ATTEMPTS:
                    text = f"cannot read {source}, index {index}: {why}"
                    raise ImageReadError(text) if isinstance(why, str) else why  # str if a custom data set raised it
                errors.add(str(source), index, reason_of(why))
            except Exception as error:
                if self._attempts == ATTEMPTS or not errors.in_python or remedy_of(error):
                    raise
                errors.add(type(self._epoch.dataset).__name__, index, reason_of(error))
            finally:
                bad = why = None  # break a reference cycle through the traceback
            self._try_another()

    def _try_another(self) -> None:
        self.discard()
        candidates = self._epoch.candidates
        index = candidates[replacement(self._epoch.seed, self._position, self._attempts, len(candidates))]
        self._attempts += 1
        self._batch = self._make(indices=[index])
        self._batch.start()

    def discard(self) -> None:
        if self._attempts:
            self._batch.discard()
            self._batch.forget_errors()
