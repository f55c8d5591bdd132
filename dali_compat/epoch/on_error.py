"""DataLoader's on_error: samples that cannot be read are replaced or skipped, and listed, instead of ending the
epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from ..data.lookup import Listed
from ..errors import BadImageWarning, ImageReadError, remedy_of
from ..randoms import replacement
from ..runtime.messages import stack_level
from .epoch import Epoch

POLICIES = "raise", "skip", "replace"
ATTEMPTS = 100  # samples that are tried in the place of one
_READ_ERRORS = OSError, SyntaxError, EOFError, Image.DecompressionBombError  # what PIL raises for bad files
NOTHING = object()  # a batch of which nothing is left


class SampleError(NamedTuple):
    """A sample that could not be read.

    Attributes:
        path: its file; of an archive file and byte.
        index: in the data set, as the sampler gave it, or as it was drawn in the place of another.
        epoch: in which it was met first; a loader's first is 0.
        reason: class and text of torchvision's error.

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
    """The policy for samples that cannot be read, and those that were met.

    Args:
        policy: one of POLICIES.
        in_python: whether it is for errors of the user's own functions, too.
    """

    def __init__(self, policy: str, in_python: bool):
        self.policy, self.in_python = policy, in_python
        self._found: dict[tuple[str, str], SampleError] = {}  # by path and index
        self._epoch, self._count = -1, 0
        self._so_far = 0  # the count of an epoch that is gone on with
        self._warned = 0  # how many of those found a warning counts

    @property
    def found(self) -> list[SampleError]:
        """The samples that were met, each once."""
        return list(self._found.values())

    def begin(self) -> None:
        """An epoch begins, or goes on."""
        self._epoch, self._count, self._so_far = self._epoch + 1, self._so_far, 0

    def state(self) -> dict[str, Any]:
        """Returns what was met so far, as plain data; an index that is no number is kept as its text."""
        plain = [one.index if isinstance(one.index, (int, str)) else repr(one.index) for one in self.found]
        found = [[one.path, index, one.epoch, one.reason] for one, index in zip(self.found, plain, strict=True)]
        return {"epoch": self._epoch, "count": self._count, "found": found}

    def load(self, state: dict[str, Any], under_way: bool) -> None:
        """Take over what a state has. ``under_way``: its epoch goes on when the next one begins."""
        self._found = {(path, repr(index)): SampleError(path, index, *rest) for path, index, *rest in state["found"]}
        self._epoch, self._count = state["epoch"] - under_way, state["count"]
        self._so_far = self._count if under_way else 0
        self._warned = sum(one.epoch <= self._epoch for one in self.found)

    def add(self, path: str, index: Any, reason: str) -> None:
        """A sample was left out of a batch."""
        self._count += 1
        index = index.__index__() if hasattr(index, "__index__") else index  # samplers give tensors, too
        key = path, repr(index)
        if key in self._found:
            return
        self._found[key] = SampleError(path, index, self._epoch, reason)
        if len(self._found) == 1:
            _warn(f"{path}, index {index}, is {self._verb}: {reason} (loader.errors lists all such samples)")

    @property
    def covers(self) -> tuple[type[Exception], ...]:
        """The errors of a sample that are its own; others end the epoch."""
        return (Exception,) if self.in_python else _READ_ERRORS

    def end(self, samples: int) -> None:
        """An epoch of so many samples is over. Says how many could not be read, if there were others than before; once:
        a warning may be an error, and whoever asks for a next batch then comes here again."""
        (count, self._count), warned, self._warned = (self._count, 0), self._warned, len(self._found)
        if count and self._warned > warned:
            _warn(f"epoch {self._epoch}: {count:,} of {samples:,} samples were {self._verb} (see loader.errors)")

    @property
    def _verb(self) -> str:
        return "skipped" if self.policy == "skip" else "replaced"


def checked_policy(policy: str) -> str:
    """The policy, as it is.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"on_error must be 'raise', 'skip' or 'replace', got {policy!r}")
    return policy


def reason_of(error: BaseException | str) -> str:
    """The error as ``loader.errors`` words it: class and text, without the path and index that stand beside it; of one
    from another process its last line, without the traceback that torch has put into its text."""
    if isinstance(error, str):
        return error
    error = error.__cause__ or error
    reason = f"{type(error).__name__}: {error}"
    return reason.strip().splitlines()[-1] if "\nOriginal Traceback" in reason else reason


def _warn(text: str) -> None:
    warnings.warn(text, BadImageWarning, stacklevel=stack_level())


class Substitute:
    """Samples of the data set that stand in, one after another until one can be read, for the one at a position of the
    epoch. Which ones depends on the epoch's seed and the position alone. ``make`` gives the batch of ``indices``."""

    def __init__(self, epoch: Epoch[Any], position: int, make: Callable[..., Any]):
        self._epoch, self._position, self._make, self._attempts = epoch, position, make, 0
        self._try_another()

    def outcome(self) -> tuple[Listed, Any]:
        """The sample that stands in, and its image.

        Raises:
            ImageReadError: too many samples cannot be read.
        """
        while True:
            errors, index = self._epoch.errors, self._batch.indices[0]
            try:
                sample, image, bad = self._batch.alone()
                if bad is None:
                    return sample, image
                source, why = bad
                if self._attempts == ATTEMPTS:
                    text = f"cannot read {source}, index {index}: {why}"
                    raise ImageReadError(text) if isinstance(why, str) else why  # text of a data set of the user's
                errors.add(str(source), index, reason_of(why))
            except Exception as error:
                if self._attempts == ATTEMPTS or not errors.in_python or remedy_of(error):
                    raise
                errors.add(type(self._epoch.dataset).__name__, index, reason_of(error))
            finally:
                bad = why = None  # an error refers to its traceback, and that to this frame
            self._try_another()

    def _try_another(self) -> None:
        self.discard()
        among = self._epoch.among
        index = among[replacement(self._epoch.seed, self._position, self._attempts, len(among))]
        self._attempts += 1
        self._batch = self._make(indices=[index])
        self._batch.start()

    def discard(self) -> None:
        if self._attempts:
            self._batch.discard()
            self._batch.forget_errors()
