"""Draw the random arguments of steps (a transform's operations) for a whole batch, on the host.

A draw function takes the image sizes before a step, (N, 2) int64 as (height, width). It returns the arrays for the
kernel and the sizes after the step. All windows and sizes are computed here, before images are decoded, with
torchvision's arithmetic vectorized in NumPy. The engines only apply the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..plan import Draw, Step

Arrays = dict[str, np.ndarray]

_MOST_PIXELS = 1 << 29  # of an output image; Pillow refuses to open an image with a third as many
_SIDES = 4  # (height, width) of the input and of the output

_DRAWS: dict[str, tuple[int | Callable[..., int] | None, Callable]] = {}


class ImageTooSmall(ValueError):
    """Raised if an image is too small for a transform, or if its size before or after a step is otherwise invalid.

    ``row`` is the image's index in the ``sizes`` passed to compute().
    """

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


class Computed(list[Arrays]):
    """Result of compute(): the arrays of each step, and ``sizes`` (N, 2), the (height, width) of the images after all
    steps."""

    sizes: np.ndarray


def compute(
    steps: tuple[Step, ...],
    sizes: np.ndarray,
    randoms: Callable[[int, int], np.ndarray],
    rows: Sequence[int] | np.ndarray | slice,
) -> Computed:
    """Return the arrays of arguments of each step, for the samples at ``rows`` of a batch.

    The array ``flag``, if present, is 0 for the samples that a step leaves unchanged. If a container such as
    RandomChoice does not choose a step for a sample, all arrays of the step are 0 for this sample.

    Args:
        sizes: (N, 2), the (height, width) of these samples.
        randoms: returns (batch size, count) uniform numbers of a random stream, given (stream, count).

    Raises:
        ImageTooSmall: an image is too small, its size is not the traced one, or an output does not have 1 to 2**29
            pixels.
    """
    arrays = Computed()
    chosen: dict[int, np.ndarray] = {}
    for step in steps:
        flag = _passed_gates(step.when, chosen, len(sizes))
        at = slice(None) if flag is None else np.flatnonzero(flag)
        values, after = {}, sizes[at]
        if step.draw is not None and len(after):
            uniforms = uniforms_of(step.draw)
            u = randoms(step.stream, uniforms)[rows][at] if uniforms else None
            try:
                values, after = run(step.draw, sizes[at], u)
            except ImageTooSmall as error:  # its row counts only the samples that passed the gates
                raise ImageTooSmall(int(np.arange(len(sizes))[at][error.row]), str(error)) from None
        if step.operation.calls_user and step.gives.size is not None:
            after = np.tile(np.array(step.gives.size, sizes.dtype), (len(after), 1))
        if step.draw is not None or step.gives.size is not None:
            _refuse_sizes(step, after, np.arange(len(sizes))[at])
        if flag is not None:
            values = {name: _scattered(array, at, len(sizes)) for name, array in values.items()}
            values["flag"] = values.get("flag", flag)
            sizes = sizes.copy()
            sizes[at] = after
        else:
            sizes = after
        if step.op == "choose":
            chosen[step.stream] = next(iter(values.values()))
            values = {}
        arrays.append(values)
    arrays.sizes = sizes
    return arrays


def _refuse_sizes(step: Step, sizes: np.ndarray, rows: np.ndarray) -> None:
    wrong = (sizes < 1).any(1) | (sizes.astype(float).prod(1) > _MOST_PIXELS)
    if wrong.any():
        row = int(wrong.argmax())
        what = f"an image of size {tuple(sizes[row].tolist())}; it must have 1 to {_MOST_PIXELS:,} pixels"
        raise ImageTooSmall(int(rows[row]), f"{step.op} would return {what}")


def _passed_gates(gates, chosen: dict[int, np.ndarray], count: int) -> np.ndarray | None:
    """Return an int32 array (count,), 1 for samples that fulfil all ``gates``, otherwise 0. Return None if there are no
    gates."""
    if not gates:
        return None
    passed = np.ones(count, np.int32)
    for gate in gates:
        choice = chosen[gate.stream]
        passed &= (choice if choice.ndim == 1 else choice[:, gate.rank]) == gate.value
    return passed


def _scattered(array: np.ndarray, at: np.ndarray | slice, count: int) -> np.ndarray:
    whole = np.zeros((count, *array.shape[1:]), array.dtype)
    whole[at] = array
    return whole


def is_random(step: Step) -> bool:
    return step.draw is not None and uniforms_of(step.draw) > 0


def uniforms_of(draw: Draw) -> int:
    """Return how many uniform random numbers a draw takes per sample."""
    (uniforms, _), args = _entry(draw), dict(draw.args)
    if uniforms is None:
        return max((uniforms_of(one) for one in args.values() if isinstance(one, Draw)), default=0)
    return uniforms(**args) if callable(uniforms) else uniforms


def run(draw: Draw, sizes, u):
    return _entry(draw)[1](sizes, u, **dict(draw.args))


def _entry(draw: Draw) -> tuple[int | Callable[..., int] | None, Callable]:
    if draw.name not in _DRAWS:
        raise LookupError(f"no draw is registered as {draw.name!r}: define it in ops/<kind>.py with @draws")
    return _DRAWS[draw.name]


def draws(uniforms=None):
    """Register a function ``draw_<name>`` for the draw ``name``.

    The function is called as ``draw_<name>(sizes, u, **args)`` with the sizes (N, 2) before the step and uniform
    numbers (N, uniforms) in [0, 1). It returns the kernel's arguments, {name: array of length N}, and the sizes after
    the step. Samples with an int32 ``flag`` of 0 are left unchanged.

    Args:
        uniforms: number of uniform numbers per sample, or a function of the draw's arguments that returns the number.
            By default, the largest number that one of the draws in ``args`` takes.
    """

    def decorate(function):
        name = function.__name__.removeprefix("draw_")
        if name in _DRAWS:
            before = _DRAWS[name][1].__module__
            raise ValueError(f"a draw {name!r} is already registered in {before}; rename one of them")
        _DRAWS[name] = uniforms, function
        return function

    return decorate


# ---- arguments chosen by the data set's code, or by a transform that it calls, rather than drawn


def width_of(layout: Any, sized: bool) -> int:
    """Return the number of columns of ``u`` that draw_given() reads."""
    return _SIDES * sized + sum(int(np.prod(shape)) for _, shape, _ in layout)


@draws(uniforms=lambda at, layout, sized: at + width_of(layout, sized))
def draw_given(sizes, u, *, at, layout, sized):
    """Return the arguments that the data set's code has chosen. The columns of ``u`` from ``at`` on contain these
    arguments.

    ``layout`` lists the (name, shape per image, dtype) of each array. If ``sized`` is True, the traced (height, width)
    before and after the step precede the arguments.
    """
    after = sizes
    if sized:
        after = _checked_size(sizes, u[:, at : at + _SIDES])
        at += _SIDES
    arrays = {}
    for name, shape, dtype in layout:
        count = int(np.prod(shape))
        arrays[name] = u[:, at : at + count].reshape(-1, *shape).astype(dtype)
        at += count
    return arrays, after


def _checked_size(sizes, sides) -> np.ndarray:
    """Return the traced image sizes after a step. Raise ImageTooSmall if an image's size before the step is
    no longer the traced one."""
    other = (sides[:, :2] != sizes).any(1)
    if other.any():
        row = int(other.argmax())
        have, meant = (tuple(one[row].astype(int).tolist()) for one in (sizes, sides))
        raise ImageTooSmall(row, f"image size changed since it was traced: expected {meant[:2]}, found {have}")
    return sides[:, 2:].astype(np.int64)


def is_given(step: Step) -> bool:
    """Return True if the data set's own code has chosen a step's arguments."""
    return step.draw is not None and step.draw.name.startswith("given")


# ---- distributions, and draws that several kinds share


def uniform(u, low, high) -> np.ndarray:
    """Map uniform numbers to the range from ``low`` to ``high``, rounded to float32 as in ``torch.Tensor.uniform_``."""
    if np.any(low > high):
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    return (low + (high - low) * u).astype(np.float32).astype(np.float64)


def randint(u, low, high) -> np.ndarray:
    """Map uniform numbers to integers from ``low`` to ``high`` (exclusive), as in ``torch.randint``."""
    return np.floor(u * (high - low)).astype(np.int64) + low


def rand(u) -> np.ndarray:
    """Round uniform numbers to float32 multiples of 2**-24, as in ``torch.rand``."""
    return (np.floor(u * 2**24) / 2**24).astype(np.float32)


def permutation(u) -> np.ndarray:
    """Map each row of uniform numbers (N, n) to a permutation, as in ``torch.randperm(n)``."""
    return np.argsort(u, axis=1, kind="stable").astype(np.int32)


@draws(uniforms=1)
def draw_bernoulli(sizes, u, *, p, values=()):
    """Draw a ``flag`` that is 1 with probability ``p``. ``values`` are (name, number) pairs of arguments that all
    samples share."""
    alike = {n: np.full(len(sizes), value, np.int32 if isinstance(value, int) else float) for n, value in values}
    return {"flag": (u[:, 0] < p).astype(np.int32), **alike}, sizes


@draws(uniforms=1)
def draw_random_key(sizes, u):
    """Draw the seed of each sample's random pixels, an integer in [0, 2**53)."""
    return {"key": integer_key(u[:, 0])}, sizes


def integer_key(u) -> np.ndarray:
    return (u * 2**53).astype(np.int64)


@draws(uniforms=lambda count: count)
def draw_uniforms(sizes, u, *, count):
    """Draw ``count`` numbers in [0, 1) for a custom translation."""
    return {"uniforms": np.ascontiguousarray(rand(u))}, sizes


def rand_between(u, interval) -> np.ndarray:
    low, high = interval
    return np.float32(low) + rand(u) * np.float32(high - low)
