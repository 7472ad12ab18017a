"""Focal diversity (RL-Focal, arXiv:2502.04492): how differently the models of an ensemble fail.

`focal_diversity` is the definition, over a failure matrix; `pair_focal_diversity` is its value for two models, over
arrays of counts, shrunk where common rows are few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from focalroute.core.records import F64

#: A pair with fewer common rows is shrunk.
MIN_ROWS = 20

#: A shrunk pair counts as if each model had failed this many further rows, and its partner half of them.
PRIOR_FAILURES = 4


def focal_negative_correlation(fails: ArrayLike) -> F64:
    """Return for each focal model i how rarely the other models fail when it fails; shape (m,), each in [0, 1].

    1 - P2_i / P1_i with P1_i = sum_t f_ti s_t / (m n_i) and P2_i = sum_t f_ti s_t (s_t - 1) / (m (m - 1) n_i), where
    s_t models failed row t and model i failed n_i rows. P1_i is the chance that a model drawn at random fails a row the
    focal model failed, P2_i the chance that two drawn without replacement both fail it (arXiv:2502.04492).

    Args:
        fails: (T, m), 1 where model i failed row t, 0 where it was right; every row was put to all m models.

    Returns:
        1 for a model that never failed; with m < 2 all are 0.

    >>> focal_negative_correlation([[1, 1], [1, 0], [0, 0]]).round(3).tolist()
    [0.333, 0.0]
    """
    f = np.asarray(fails, dtype=np.float64)
    if f.ndim != 2 or not ((f == 0) | (f == 1)).all():
        raise ValueError("fails must be a matrix (T, m) of 0 and 1")
    m = f.shape[1]
    if m < 2:
        return np.zeros(m)
    s = f.sum(axis=1)
    one, two = f.T @ s, f.T @ (s * (s - 1))
    # n_i and m cancel in P2 / P1
    return np.asarray(1 - np.divide(two, (m - 1) * one, out=np.zeros(m), where=one > 0))


def focal_diversity(fails: ArrayLike) -> float:
    """Return the mean focal negative correlation over the m models, in [0, 1]; 0 with m < 2 (arXiv:2502.04492).

    >>> round(focal_diversity([[1, 1], [1, 0], [0, 0]]), 3)
    0.167
    """
    rho = focal_negative_correlation(fails)
    return float(rho.mean()) if rho.size > 1 else 0.0


def pair_focal_diversity(rows: Any, failed: Any, partner_failed: Any, both_failed: Any) -> F64:
    """Return the focal diversity of pairs of models over the rows both were asked in, elementwise, in [0, 1].

    For a pair (i, j) the definition reduces to the mean over both orders of (1 - q) / (1 + q), q = P(j fails | i fails)
    = both / n_i. With fewer than `MIN_ROWS` common rows q is shrunk towards 1/2: (both + 2) / (n_i + 4). An unseen pair
    has 1/3.

    Args:
        rows: how many rows both were asked in; a number or an array, as are the others.
        failed: how many of these the first failed.
        partner_failed: how many the second failed.
        both_failed: how many both failed.

    >>> float(pair_focal_diversity(0, 0, 0, 0).round(3))
    0.333
    """
    few = np.asarray(rows) < MIN_ROWS
    both = both_failed + few * (PRIOR_FAILURES // 2)
    first = _independence(failed + few * PRIOR_FAILURES, both)
    second = _independence(partner_failed + few * PRIOR_FAILURES, both)
    return (first + second) / 2


def _independence(failed: Any, both: Any) -> F64:
    """Return (1 - q) / (1 + q) for q = both / failed; 1 for a model that never failed."""
    return np.where(failed > 0, (failed - both) / np.maximum(failed + both, 1e-9), 1)
