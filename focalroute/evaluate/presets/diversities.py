"""The diversity metrics of many pools at once: what RL-Focal's Decider sees of how differently a pool fails.

Each equals its definition (Kuncheva and Whitaker 2003, Machine Learning 51, 181-207), over the rows given.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.learn.nets import Floats

#: The columns of `diversities`: the paper's metric and those it compares, plurality accuracy left out.
METRICS = ("focal", "fleiss_kappa", "disagreement", "binary_entropy", "q_statistic", "correlation", "cohen_kappa")

#: With fewer rows all metrics are 0, as before the first query.
MIN_ROWS = 20


def columns_of(metrics: Sequence[str]) -> list[int]:
    """Where these stand among `METRICS`.

    Raises:
        ValueError: there is no such metric.
    """
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"metrics: there is no {name!r}; give some of {', '.join(METRICS)}")
    return [METRICS.index(name) for name in metrics]


def diversities(fails: F32, pools: F32, pairs: F32) -> F32:
    """The metrics (B, 7) of some pools; all 0 with fewer than `MIN_ROWS` rows or two members.

    Args:
        fails: (T, N) 1 where an endpoint failed a row.
        pools: (B, N) 1 for the members of each pool.
        pairs: (3, N, N) of the same rows, see `pair_statistics`.
    """
    rows, n = fails.shape
    m = pools.sum(axis=1)
    if rows < MIN_ROWS or n < 2:
        return np.zeros((len(pools), len(METRICS)), np.float32)
    s = fails @ pools.T  # (T, B): how many members failed a row
    failed, failed_with = fails.sum(axis=0), fails.T @ s  # (N,), (N, B): sum_t f_ti s_t
    others = np.maximum(m - 1, 1)
    all_failed = pools @ failed
    mixed = m * all_failed - (pools * failed_with.T).sum(axis=1)  # sum_t s_t (m - s_t)
    share = all_failed / (rows * np.maximum(m, 1))
    chance = rows * m * others * share * (1 - share)
    size = np.maximum(m, 1)
    found = np.empty((len(pools), len(METRICS)), np.float32)
    found[:, 0] = focal_diversities(fails, pools)
    found[:, 1] = 1 - mixed / np.where(chance > 0, chance, 1)  # without failures, or without successes, mixed is 0
    found[:, 2] = 2 * mixed / (rows * size * others)
    found[:, 3] = _entropies(n)[m.astype(np.intp), s.astype(np.intp)].mean(axis=0)
    found[:, 4:] = ((pools @ pairs) * pools).sum(axis=2).T / (size * others)[:, None]
    found[m < 2] = 0
    return found


def focal_diversities(fails: Floats, pools: Floats) -> Floats:
    """Focal diversity (B,) of some pools (see `focalroute.observe.diversity`); arguments as for `diversities`."""
    m = pools.sum(axis=1)
    s = fails @ pools.T
    failed_with = fails.T @ s
    together = fails.T @ (s * s) - failed_with  # sum_t f_ti s_t (s_t - 1)
    # a member that never failed has both sums 0, and so 1
    rho = 1 - together / np.maximum(np.maximum(m - 1, 1) * failed_with, 1)
    focal: Floats = (rho.T * pools).sum(axis=1) / np.maximum(m, 1)
    return focal


def pair_statistics(both: F32, rows: int) -> F32:
    """Q statistic, correlation and Cohen's kappa of every pair, (3, N, N); the diagonal is 0.

    Args:
        both: (N, N) the number of rows that both of a pair failed; on the diagonal those that one failed.
        rows: the number of rows.
    """
    n = np.diagonal(both)
    one, other = n[:, None], n[None, :]
    a, b, c, d = both, one - both, other - both, rows - one - other + both
    determinant = a * d - b * c
    found = np.stack(
        [
            _ratio(determinant, a * d + b * c, 0.0),
            _ratio(determinant, np.sqrt(one * (rows - one) * other * (rows - other)), 0.0),
            _ratio(2 * determinant, one * (rows - other) + other * (rows - one), 1.0 if rows else 0.0),
        ]
    )
    diagonal = np.arange(len(n))
    found[:, diagonal, diagonal] = 0
    return found


def _ratio(above: F32, below: F32, undefined: float) -> F32:
    ratio: F32 = np.where(below > 0, above / np.where(below > 0, below, 1), undefined).astype(np.float32)
    return ratio


@cache
def _entropies(n: int) -> NDArray[np.float32]:
    """H(s / m) in bits at [m, s]."""
    share = np.clip(np.arange(n + 1) / np.maximum(np.arange(n + 1), 1)[:, None], 0, 1)
    halves = np.stack([share, 1 - share])
    logs = np.log2(halves, out=np.zeros_like(halves), where=halves > 0)
    return np.asarray(-(halves * logs).sum(axis=0), np.float32)
