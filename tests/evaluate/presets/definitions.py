"""Measures of how differently models fail, each by its definition: what the presets' vectorised ones must equal.

``fails`` has shape (T, m): entry (t, i) is 1 where model i failed row t, 0 where it was right. Below, s_t is the number
of models that failed row t. Fewer than two models always have 0.

Reference:
    Kuncheva and Whitaker (2003), Measures of diversity in classifier ensembles, Machine Learning 51, 181-207.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def binary_entropy(fails: ArrayLike) -> float:
    """Mean over rows of the entropy, in bits, of the split into right and wrong: H(s_t / m), in [0, 1].

    H(p) = -p log2 p - (1 - p) log2 (1 - p) (Cunningham and Carney 2000, ECML). 0 with m < 2 or without rows.
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
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(a * d - b * c, a * d + b * c, 0.0)


def correlation(fails: ArrayLike) -> float:
    """Correlation coefficient of the failures averaged over pairs, in [-1, 1].

    (ad - bc) / sqrt((a + b)(c + d)(a + c)(b + d)), letters as in `q_statistic` (Kuncheva and Whitaker 2003). A pair of
    which one always or never fails counts 0; 0 with m < 2.
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(a * d - b * c, np.sqrt((a + b) * (c + d) * (a + c) * (b + d)), 0.0)


def disagreement(fails: ArrayLike) -> float:
    """Share of rows on which exactly one of a pair fails, averaged over pairs; in [0, 1].

    (b + c) / T, letters as in `q_statistic` (Skalak 1996; Kuncheva and Whitaker 2003). 0 without rows or with m < 2.
    """
    a, b, c, d = _pairs(fails)
    return _mean_ratio(b + c, a + b + c + d, 0.0)


def cohen_kappa(fails: ArrayLike) -> float:
    """Pairwise agreement on right and wrong beyond chance, averaged over pairs; in [-1, 1].

    2 (ad - bc) / ((a + b)(b + d) + (a + c)(c + d)), letters as in `q_statistic` (Cohen 1960). A pair that is always
    right together, or always wrong, counts 1; 0 without rows or with m < 2.
    """
    a, b, c, d = _pairs(fails)
    full = 1.0 if np.shape(fails)[0] else 0.0
    return _mean_ratio(2 * (a * d - b * c), (a + b) * (b + d) + (a + c) * (c + d), full)


def _failures(fails: ArrayLike) -> F64:
    return np.asarray(fails, dtype=np.float64)


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
