"""Statistical tests of random numbers."""

import math

import numpy as np

SIGNIFICANCE = 1e-4


COUNT = 6000


def statistic(a, b) -> float:
    """Kolmogorov-Smirnov statistic, the largest distance between two empirical distribution functions."""
    a, b = np.sort(np.ravel(a)), np.sort(np.ravel(b))
    at = np.concatenate([a, b])
    return np.abs(np.searchsorted(a, at, "right") / len(a) - np.searchsorted(b, at, "right") / len(b)).max()


def differ(a, b) -> bool:
    """Return True if two samples come from different distributions.

    Wrong in SIGNIFICANCE of the cases, in fewer for whole numbers.
    """
    return statistic(a, b) > math.sqrt(-math.log(SIGNIFICANCE / 2) / 2 * (1 / len(a) + 1 / len(b)))


def quantile(freedom: int) -> float:
    """Quantile of chi-square that is exceeded with probability SIGNIFICANCE.

    By Wilson and Hilferty, 1931; 7% too large at one degree of freedom, less at more.
    """
    normal = 3.719  # the same quantile of a standard normal variable
    return freedom * (1 - 2 / (9 * freedom) + normal * math.sqrt(2 / (9 * freedom))) ** 3


def misfit(counts, probabilities) -> bool:
    """Pearson's goodness of fit. Return True if ``counts`` do not fit ``probabilities``.

    Cells with an expectation below 5 are merged. Cells with probability zero must be empty.
    """
    counts, expected = np.asarray(counts, float), np.asarray(probabilities, float) * np.sum(counts)
    if counts[expected == 0].any():
        return True
    counts, expected = merged_cells(counts[None], expected)
    counts = counts[0]
    return len(counts) > 1 and ((counts - expected) ** 2 / expected).sum() > quantile(len(counts) - 1)


def unlike_in(a, b) -> bool:
    """Pearson's test of homogeneity. Return True if two samples of hashable values differ in distribution."""
    names = {name: i for i, name in enumerate(dict.fromkeys([*a, *b]))}
    counts = np.array([np.bincount([names[x] for x in sample], minlength=len(names)) for sample in (a, b)], float)
    counts, both = merged_cells(counts, counts.sum(0) * min(len(a), len(b)) / (len(a) + len(b)))
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    return len(both) > 1 and ((counts - expected) ** 2 / expected).sum() > quantile(len(both) - 1)


def merged_cells(counts, expected):
    """Merge the columns with an expectation below 5 into one."""
    rare = expected < 5
    if not rare.any():
        return counts, expected
    counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(1, keepdims=True)], 1)
    expected = np.append(expected[~rare], expected[rare].sum())
    return (counts, expected) if expected[-1] >= 5 else (counts[:, :-1], expected[:-1])
