"""Focal diversity from bitsets: a set of models costs a few microseconds.

Each model has a pair of Python ints whose bit t speaks of row t: asked (it is known whether the model was right) and
failed (it was wrong; a subset of asked). `focalroute.observe.diversity` holds the same quantity by its definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: (asked, failed) of one model.
Bits = tuple[int, int]

#: Common rows needed to take a set's focal diversity from its own rows rather than from its pairs.
MIN_ROWS = 20

#: A pair with fewer common rows: its q is shrunk as if the partner had failed in half of this many further failures.
PRIOR_FAILURES = 4


def pair_focal(first: Bits, second: Bits) -> float:
    """Focal diversity of two models over the rows both were asked in, in [0, 1].

    For a pair the definition reduces to the mean over both orders of (1 - q) / (1 + q), q = P(j fails | i fails). With
    fewer than `MIN_ROWS` common rows q is shrunk towards 1/2: (both + 2) / (n_i + 4); an unseen pair so has 1/3.

    >>> round(pair_focal((0, 0), (0, 0)), 3)
    0.333
    """
    rows, n_i, n_j = both_asked(first, second)
    both = (first[1] & second[1]).bit_count()
    if rows < MIN_ROWS:
        n_i, n_j, both = n_i + PRIOR_FAILURES, n_j + PRIOR_FAILURES, both + PRIOR_FAILURES // 2
    rho_i = (n_i - both) / (n_i + both) if n_i else 1.0
    rho_j = (n_j - both) / (n_j + both) if n_j else 1.0
    return (rho_i + rho_j) / 2


def both_asked(first: Bits, second: Bits) -> tuple[int, int, int]:
    """The rows that both were asked in, and how many of them the first and the second failed."""
    rows = first[0] & second[0]
    return rows.bit_count(), (first[1] & rows).bit_count(), (second[1] & rows).bit_count()


def exact_focal(models: Sequence[Bits]) -> float | None:
    """Focal diversity over the rows where all were asked; None with fewer than two models or `MIN_ROWS` such rows.

    The mean over i of 1 - sum_t f_ti s (s - 1) / ((m - 1) sum_t f_ti s). With c_k the rows that i failed and at least k
    of all failed: sum s = sum_k c_k, sum s (s - 1) = sum_k 2 (k - 1) c_k.

    >>> always = (1 << 40) - 1
    >>> exact_focal([(always, 0b011), (always, 0b100)]), exact_focal([(1, 1), (1, 0)])
    (1.0, None)
    """
    m, rows = len(models), common_rows(models)
    if m < 2 or rows.bit_count() < MIN_ROWS:
        return None
    failed = [bits & rows for _, bits in models]
    at_least = [rows]  # at_least[k]: rows that k or more of the models failed
    for bits in failed:
        at_least = [rows, *[high | (low & bits) for low, high in pairwise(at_least)], at_least[-1] & bits]
    total = 0.0
    for bits in failed:
        counts = [(bits & level).bit_count() for level in at_least[1:]]
        together = 2 * sum(k * count for k, count in enumerate(counts))
        total += 1 - together / ((m - 1) * sum(counts)) if counts[0] else 1.0
    return total / m


def common_rows(models: Sequence[Bits]) -> int:
    """The rows in which all of the models were asked."""
    rows = -1 if models else 0
    for asked, _ in models:
        rows &= asked
    return rows
