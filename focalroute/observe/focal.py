"""Focal diversity from bitsets: a set of models costs a few microseconds, whatever the window's length.

Each model has two Python ints whose bit t speaks of row t: ``asked`` (it is known whether the model was right) and ``failed`` (it
was wrong; a subset of asked). `focalroute.observe.diversity` holds the same quantity by its definition; tests compare them.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MIN_ROWS", "Levels", "exact_focal", "pair_focal"]

#: Common rows needed to take a set's focal diversity from its own rows rather than from its pairs.
MIN_ROWS = 20

#: A pair with fewer common rows: its q is shrunk as if the partner had failed in half of this many further failures.
PRIOR_FAILURES = 4


def pair_focal(asked_i: int, failed_i: int, asked_j: int, failed_j: int) -> float:
    """Focal diversity of two models over the rows both were asked in, in [0, 1].

    For a pair the definition reduces to the mean over both orders of (1 - q) / (1 + q), q = P(j fails | i fails). With fewer than
    `MIN_ROWS` common rows q is shrunk towards 1/2: (both + 2) / (n_i + 4); an unseen pair so has 1/3.
    """
    rows = asked_i & asked_j
    both = (failed_i & failed_j).bit_count()
    n_i, n_j = (failed_i & rows).bit_count(), (failed_j & rows).bit_count()
    if rows.bit_count() < MIN_ROWS:
        both2 = 2 * both + PRIOR_FAILURES
        n_i2, n_j2 = 2 * (n_i + PRIOR_FAILURES), 2 * (n_j + PRIOR_FAILURES)
        return ((n_i2 - both2) / (n_i2 + both2) + (n_j2 - both2) / (n_j2 + both2)) / 2
    rho_i = (n_i - both) / (n_i + both) if n_i else 1.0
    rho_j = (n_j - both) / (n_j + both) if n_j else 1.0
    return (rho_i + rho_j) / 2


class Levels:
    """The rows a set of models was asked in, sorted by how many of them failed; a base to add one more model to.

    Attributes:
        rows: the rows in which all of them were asked.
    """

    __slots__ = ("_at_least", "_failed", "rows")

    def __init__(self, asked: Sequence[int], failed: Sequence[int]) -> None:
        rows = -1
        for bits in asked:
            rows &= bits
        self.rows = rows
        self._failed = [bits & rows for bits in failed]
        at_least = [rows]  # at_least[k]: rows that k or more of the models failed
        for bits in self._failed:
            at_least = _raised(at_least, bits)
        self._at_least = at_least

    def focal(self) -> float | None:
        """Focal diversity of the set; None with fewer than two models or than `MIN_ROWS` common rows."""
        if len(self._failed) < 2 or self.rows.bit_count() < MIN_ROWS:
            return None
        return _focal(self._failed, self._at_least)

    def focal_with(self, asked: int, failed: int) -> float | None:
        """The same for the set and one more model, which is not in it."""
        rows = self.rows & asked
        if not self._failed or rows.bit_count() < MIN_ROWS:
            return None
        if rows == self.rows:
            members, at_least = [*self._failed, failed & rows], self._at_least
        else:
            members = [bits & rows for bits in self._failed]
            members.append(failed & rows)
            at_least = [bits & rows for bits in self._at_least]
        return _focal(members, _raised(at_least, members[-1]))


def exact_focal(asked: Sequence[int], failed: Sequence[int]) -> float | None:
    """Focal diversity over the rows where all of the models were asked; None with fewer than two models or `MIN_ROWS` such rows.

    >>> every_row = (1 << 40) - 1
    >>> exact_focal([every_row, every_row], [0b011, 0b100]), exact_focal([1, 1], [0, 0])
    (1.0, None)
    """
    return Levels(asked, failed).focal()


def _raised(at_least: Sequence[int], bits: int) -> list[int]:
    """``at_least`` after one more model, which failed the rows in ``bits``."""
    return [
        at_least[0],
        *[high | (low & bits) for low, high in zip(at_least, at_least[1:], strict=False)],
        at_least[-1] & bits,
    ]


def _focal(failed: Sequence[int], at_least: Sequence[int]) -> float:
    """Mean over i of 1 - sum_t f_ti s (s - 1) / ((m - 1) sum_t f_ti s).

    With c_k the rows that i failed and at least k failed: sum s = sum_k c_k, sum s (s - 1) = sum_k 2 (k - 1) c_k.
    """
    m = len(failed)
    everybody = at_least[m].bit_count()
    middle = at_least[2:m]
    total = 0.0
    for bits in failed:
        one = bits.bit_count()  # c_1
        if not one:
            total += 1.0
            continue
        two = 0
        for k, level in enumerate(middle, 1):
            count = (bits & level).bit_count()
            one += count
            two += k * count
        total += 1 - 2 * (two + (m - 1) * everybody) / ((m - 1) * (one + everybody))
    return total / m
