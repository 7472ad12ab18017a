"""How differently a set of models fails: pure functions of a failure matrix.

``fails`` has shape (T, m): entry (t, i) is 1 where model i failed row t, 0 where it was right; every row was put to all
m models. Below, s_t is the number of models that failed row t, n_i the number of rows model i failed.

Each function says what it gives where its measure is undefined; fewer than two models always have 0.

References:
    Kuncheva and Whitaker (2003), Measures of diversity in classifier ensembles, Machine Learning 51, 181-207.
    RL-Focal (2025), arXiv:2502.04492: focal negative correlation and focal diversity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def focal_negative_correlation(fails: ArrayLike) -> F64:
    """How seldom the others fail along when model i, the focal model, fails; shape (m,), each in [0, 1].

    1 - P2_i / P1_i with P1_i = sum_t f_ti s_t / (m n_i) and P2_i = sum_t f_ti s_t (s_t - 1) / (m (m - 1) n_i): one
    minus the chance that two models drawn without replacement both fail over the chance that one does, on the rows the
    focal model failed (arXiv:2502.04492). A model that never failed has 1; with m < 2 all are 0.

    >>> focal_negative_correlation([[1, 1], [1, 0], [0, 0]]).round(3).tolist()
    [0.333, 0.0]
    """
    f = _failures(fails)
    m = f.shape[1]
    if m < 2:
        return np.zeros(m)
    s = f.sum(axis=1)
    one, two = f.T @ s, f.T @ (s * (s - 1))
    # n_i and m cancel in P2 / P1
    return np.asarray(1 - np.divide(two, (m - 1) * one, out=np.zeros(m), where=one > 0))


def focal_diversity(fails: ArrayLike) -> float:
    """The mean focal negative correlation over the m models, in [0, 1]; 0 with m < 2 (arXiv:2502.04492).

    >>> round(focal_diversity([[1, 1], [1, 0], [0, 0]]), 3)
    0.167
    """
    rho = focal_negative_correlation(fails)
    return float(rho.mean()) if rho.size > 1 else 0.0


def generalised_diversity(fails: ArrayLike) -> float:
    """1 - p(2) / p(1), p(k) the chance that k models drawn without replacement all fail a random row; in [0, 1].

    p(1) = mean_t s_t / m, p(2) = mean_t s_t (s_t - 1) / (m (m - 1)) (Partridge and Krzanowski 1997, Information and
    Software Technology 39, 707-717). 1 if nobody ever failed; 0 with m < 2.

    >>> round(generalised_diversity([[1, 1], [1, 0], [0, 0]]), 3)
    0.333
    """
    f = _failures(fails)
    m = f.shape[1]
    if m < 2:
        return 0.0
    s = f.sum(axis=1)
    return float(1 - (s * (s - 1)).sum() / ((m - 1) * s.sum())) if s.sum() else 1.0


def binary_entropy(fails: ArrayLike) -> float:
    """Mean over rows of the entropy, in bits, of the split into right and wrong: H(s_t / m), in [0, 1].

    H(p) = -p log2 p - (1 - p) log2 (1 - p) (Cunningham and Carney 2000, ECML). 0 with m < 2 or without rows.

    >>> round(binary_entropy([[1, 1], [1, 0], [0, 0]]), 3)
    0.333
    """
    f = _failures(fails)
    if f.shape[1] < 2 or not len(f):
        return 0.0
    share = np.stack([f.mean(axis=1), 1 - f.mean(axis=1)])
    return float(-(share * np.log2(share, out=np.zeros_like(share), where=share > 0)).sum(axis=0).mean())


def fleiss_kappa(fails: ArrayLike) -> float:
    """Agreement of the m models on right and wrong beyond chance: 1 full, 0 as by chance, lower is more diverse.

    1 - sum_t s_t (m - s_t) / (T m (m - 1) p (1 - p)), p the share of failures over all entries (Fleiss 1981; Kuncheva
    and Whitaker 2003). 1 if p is 0 or 1: they always agreed; 0 with m < 2 or without rows.

    >>> round(fleiss_kappa([[1, 1], [1, 0], [0, 0]]), 3)
    0.333
    """
    f = _failures(fails)
    rows, m = f.shape
    if m < 2 or not rows:
        return 0.0
    s, p = f.sum(axis=1), f.mean()
    chance = rows * m * (m - 1) * p * (1 - p)
    return float(1 - (s * (m - s)).sum() / chance) if chance else 1.0


def q_statistic(fails: ArrayLike) -> float:
    """Yule's Q averaged over pairs, in [-1, 1]; 0 for independent models, negative where they fail different rows.

    With a, b, c, d the rows where both of a pair fail, only the first, only the second, neither: (ad - bc) / (ad + bc)
    (Kuncheva and Whitaker 2003). A pair with ad + bc = 0 counts 0; 0 with m < 2.

    >>> q_statistic([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]])
    0.3333333333333333
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(a * d - b * c, a * d + b * c, 0.0)


def correlation(fails: ArrayLike) -> float:
    """Correlation coefficient of the failures averaged over pairs, in [-1, 1].

    (ad - bc) / sqrt((a + b)(c + d)(a + c)(b + d)), letters as in `q_statistic` (Kuncheva and Whitaker 2003). A pair of
    which one always or never fails counts 0; 0 with m < 2.

    >>> round(correlation([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]]), 3)
    0.167
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(a * d - b * c, np.sqrt((a + b) * (c + d) * (a + c) * (b + d)), 0.0)


def disagreement(fails: ArrayLike) -> float:
    """Share of rows on which exactly one of a pair fails, averaged over pairs; in [0, 1].

    (b + c) / T, letters as in `q_statistic` (Skalak 1996; Kuncheva and Whitaker 2003). 0 without rows or with m < 2.

    >>> disagreement([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]])
    0.4
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(b + c, a + b + c + d, 0.0)


def cohen_kappa(fails: ArrayLike) -> float:
    """Pairwise agreement on right and wrong beyond chance, averaged over pairs; in [-1, 1].

    2 (ad - bc) / ((a + b)(b + d) + (a + c)(c + d)), letters as in `q_statistic` (Cohen 1960). A pair that is always
    right together, or always wrong, counts 1; 0 without rows or with m < 2.

    >>> round(cohen_kappa([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]]), 3)
    0.167
    """
    a, b, c, d = _pairs(fails)
    full = 1.0 if np.shape(fails)[0] else 0.0
    return _mean_ratio(2 * (a * d - b * c), (a + b) * (b + d) + (a + c) * (c + d), full)


def plurality_accuracy(votes: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows that the most frequent vote gets right; a tie counts its share, as if broken at random.

    Args:
        votes: int (T, m), the answer each model gave; negative: it gave none.
        labels: int (T,), the right answers, none of them negative.

    Returns:
        In [0, 1]; 0 without rows.

    >>> plurality_accuracy([[0, 0, 1], [1, 0, 1], [0, 1, 2]], [0, 0, 2])
    0.4444444444444444
    """
    v, label = np.asarray(votes), np.asarray(labels)
    if v.ndim != 2 or label.shape != v.shape[:1]:
        raise ValueError(f"votes must be (T, m) and labels (T,), not {v.shape} and {label.shape}")
    if not v.size:
        return 0.0
    backers = (v[:, :, None] == v[:, None, :]).sum(axis=2) * (v >= 0)
    most = backers.max(axis=1)
    # each tied answer appears `most` times among the tied votes
    tied = ((backers == most[:, None]) & (v >= 0)).sum(axis=1) / np.maximum(most, 1)
    right = ((v == label[:, None]) & (v >= 0)).sum(axis=1)
    return float(np.where((most > 0) & (right == most), 1 / np.maximum(tied, 1), 0.0).mean())


def _failures(fails: ArrayLike) -> F64:
    f = np.asarray(fails, dtype=np.float64)
    if f.ndim != 2 or not ((f == 0) | (f == 1)).all():
        raise ValueError("fails must be a matrix (T, m) of 0 and 1")
    return f


def _pairs(fails: ArrayLike) -> tuple[F64, F64, F64, F64]:
    """Counts over unordered pairs: both failed, only the first, only the second, neither; each (m (m - 1) / 2,)."""
    f = _failures(fails)
    rows, m = f.shape
    first, second = np.triu_indices(m, 1)
    n = f.sum(axis=0)
    both = (f.T @ f)[first, second]
    return both, n[first] - both, n[second] - both, rows - n[first] - n[second] + both


def _mean_ratio(above: F64, below: F64, undefined: float) -> float:
    ratio = np.divide(above, below, out=np.full(above.shape, undefined), where=below > 0)
    return float(ratio.mean()) if ratio.size else 0.0
