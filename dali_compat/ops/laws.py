"""The laws that every random parameter is made of, and the draws that transforms of several kinds share."""

from __future__ import annotations

import numpy as np

from .draws import draws


def real(u, low, high) -> np.ndarray:
    """``torch.empty(1).uniform_(low, high).item()``: a float32, widened.

    Raises:
        RuntimeError: ``low`` is larger than ``high``, as torch's.
    """
    if np.any(low > high):
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    return (low + (high - low) * u).astype(np.float32).astype(np.float64)


def whole(u, low, high) -> np.ndarray:
    """``torch.randint(low, high, ())``: ``high`` is not drawn."""
    return np.floor(u * (high - low)).astype(np.int64) + low


def rand(u) -> np.ndarray:
    """``torch.rand(())``: a float32, one of 2**24, for arithmetic that torchvision does in float32."""
    return (np.floor(u * 2**24) / 2**24).astype(np.float32)


def permutation(u) -> np.ndarray:
    """``torch.randperm(n)`` of each row of (N, n)."""
    return np.argsort(u, axis=1, kind="stable").astype(np.int32)


def gammas(u, alpha: float, count: int) -> np.ndarray:
    """(N, count) gamma variates of shape ``alpha``: of 1 they are exponential, and ``u`` has as many numbers; others
    come from a numpy generator for each row, whose key is the row's one uniform number."""
    if alpha == 1:
        return -np.log1p(-u)
    generators = (np.random.Generator(np.random.Philox(key=key)) for key in (u[:, 0] * 2**53).astype(int).tolist())
    return np.array([generator.standard_gamma(alpha, count) for generator in generators]).reshape(-1, count)


def shares(gamma) -> np.ndarray:
    """A Dirichlet variate is gamma variates over their sum; those too small for a float64 are the least one."""
    gamma = np.maximum(gamma, np.finfo(np.float64).tiny)
    return gamma / gamma.sum(1, keepdims=True)


def deepest(depth: int) -> int:
    """Returns the most links that a chain of AugMix has; where ``depth`` is not above 0, 1 to 3 are drawn."""
    return depth if depth > 0 else 3


def ended(u, depth: int) -> np.ndarray:
    """(N, chains, deepest) bool of a random number for each chain (N, chains): which links are beyond its end."""
    lengths = whole(u, 1, 4) if depth <= 0 else np.full(u.shape, depth)
    return np.arange(deepest(depth)) >= lengths[..., None]


@draws(uniforms=1)
def draw_bernoulli(sizes, u, *, p):
    """``torch.rand(1) < p`` of every transform that is applied or not."""
    return {"flag": (u[:, 0] < p).astype(np.int32)}, sizes


@draws(uniforms=1)
def draw_random_key(sizes, u):
    """A whole number in [0, 2**53) for kernels that make random pixels of it."""
    return {"key": key(u[:, 0])}, sizes


def key(u) -> np.ndarray:
    return (u * 2**53).astype(np.int64)


@draws(uniforms=1)
def draw_bernoulli_with(sizes, u, *, p, values):
    """A flag as bernoulli's, beside ``values`` (pairs of a name and a number) that are the same for every sample."""
    arrays = {
        name: np.full(len(sizes), value, np.int32 if isinstance(value, int) else np.float64) for name, value in values
    }
    return {"flag": (u[:, 0] < p).astype(np.int32), **arrays}, sizes


@draws(uniforms=lambda count: count)
def draw_uniforms(sizes, u, *, count):
    """``count`` numbers in [0, 1) for a translation of one's own."""
    return {"uniforms": np.ascontiguousarray(rand(u))}, sizes


def rand_between(u, interval) -> np.ndarray:
    low, high = interval
    return np.float32(low) + rand(u) * np.float32(high - low)
