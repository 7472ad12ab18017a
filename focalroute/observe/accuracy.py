"""Estimates endpoints' accuracy from windows of several lengths, each weighted by how well it has predicted.

The pool's window knows most while queries stay of one kind. Where their topics change, the latest few outcomes describe
the present better. So accuracy is a mean over the window and two shorter ones, weighted by how likely each made the
labels so far; older labels count less (Raftery, Karny and Ettler 2010, Technometrics 52, 52-66).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from focalroute.core.records import F64

#: Strength, in asks, of the prior of an endpoint's accuracy: its pool's level.
PRIOR_ASKS = 10

#: Strength where it is stated (`focalroute.Endpoint.expected_accuracy`), as a distance from the mean of those stated.
PRIOR_EXPECTED = 100

#: Strength where its long-run accuracy is known: the prior is then its long-run distance from the pool's level.
PRIOR_LONG_RUN = 50

_RECENT = (60, 150)  # lengths of the shorter windows, in answers with feedback
_KEPT = 0.998  # share of the evidence that is left after another outcome of an endpoint


def window_lengths(window: int) -> tuple[int, ...]:
    """Return the lengths of the pool's window and of the shorter ones, in answers with feedback."""
    return (window, *(min(length, window) for length in _RECENT))


def relative_accuracies(n: F64, right: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
    """Return accuracy minus level (..., K, N), and the levels (..., K), by the pool's window and by the shorter ones.

    In a shorter window few endpoints may have been asked. So its level is corrected for which ones were by their
    relative accuracy in the pool's window. An endpoint whose prior says nothing of it keeps the latter: a shorter
    window would forget it while it is not asked.

    Args:
        n: (..., K, N) outcomes by window, the pool's first; the rest as for `shrunk_accuracy`.
    """
    accuracy, level = shrunk_accuracy(n[..., :1, :], right[..., :1, :], offsets, strengths)
    relative, total = accuracy - level[..., None], n.sum(axis=-1)
    levels, estimates, told = _level(n, right, relative), relative, strengths > PRIOR_ASKS
    if told.any():
        estimates = _posterior_mean(n, right, levels, offsets, strengths) - levels[..., None]
    shorter = total < total[..., :1]
    return np.where(shorter[..., None] & told, estimates, relative), np.where(shorter, levels, level)


def shrunk_accuracy(n: F64, right: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
    """Return accuracies (..., N) and the pool's level (...,) from counts.

    Accuracy is (right + S (level + offset)) / (n + S), the mean of a Beta posterior whose prior is the pool's level
    plus the endpoint's long-run offset, within 0.02 and 0.98. The level is (sum of right - sum of n offset + 1)
    / (sum of n + 2): 1/2 before anything was seen, and the pool's mean where no long run is known, all offsets being 0.

    Args:
        n: (..., N) outcomes; ``right``: how many were right, or the sum of their values.
        offsets: (N,) long-run accuracy minus the pool's; 0 where not known.
        strengths: (N,) S.
    """
    level = _level(n, right, offsets)
    return _posterior_mean(n, right, level, offsets, strengths), level


def _level(n: F64, right: F64, relative: F64) -> F64:
    level: F64 = ((right - n * relative).sum(axis=-1) + 1) / (n.sum(axis=-1) + 2)
    return level


def _posterior_mean(n: F64, right: F64, level: F64, offsets: F64, strengths: F64) -> F64:
    return (right + strengths * _within_bounds(level[..., None] + offsets)) / (n + strengths)


def _within_bounds(accuracy: F64) -> F64:
    return np.minimum(np.maximum(accuracy, 0.02), 0.98)  # half the time of `clip`


def departures(relative: F64, offsets: F64, strengths: F64) -> F64:
    """Return how far the accuracies, relative to the pool, are from the long run, (..., N); 0 where that is not known.

    Args:
        relative: (..., N) see `mixed`; the rest as for `shrunk_accuracy`.
    """
    return np.where(strengths == PRIOR_LONG_RUN, relative - offsets, 0.0)


def log_losses(relative: F64, levels: F64, known: F64, right: F64) -> F64:
    """Return what each window's estimates lose on the outcomes of a row, nats, (..., K).

    Args:
        relative: (..., K, N) accuracy minus level; ``levels``: (..., K).
        known: (..., N) 1 where it is known how right the endpoint was, else 0.
        right: (..., N) how right it was; 0 where not known.
    """
    p = _within_bounds(relative + levels[..., None])
    hits, misses = right[..., None, :], (known - right)[..., None, :]
    losses: F64 = -(hits * np.log(p) + misses * np.log(1 - p)).sum(axis=-1)
    return losses


def evidence(losses: F64, known: F64) -> F64:
    """Return the evidence (T, K) against each window before each row.

    Args:
        losses: (T, K) see `log_losses`; ``known``: (T,) how many outcomes of each row are known.
    """
    before, kept = np.empty_like(losses), _KEPT**known
    now = np.zeros(losses.shape[1])
    for t in range(len(losses)):
        before[t] = now
        now = now * kept[t] + losses[t]
    return before


def mixed(relative: F64, against: F64) -> F64:
    """Return the mean of all windows' accuracy minus level, (..., N).

    Args:
        relative: (..., K, N) by each window; ``against``: (..., K), see `evidence`.
    """
    weights = np.exp(against.min(axis=-1, keepdims=True) - against)
    weights /= weights.sum(axis=-1, keepdims=True)
    mean: F64 = (weights[..., None] * relative).sum(axis=-2)
    return mean


class RecentOutcomes:
    """The labels of the shorter windows, and the evidence against each window's estimate.

    Args:
        endpoints: N.
        window: length of the pool's window.
    """

    def __init__(self, endpoints: int, window: int) -> None:
        self._lengths = window_lengths(window)[1:]
        self._rows = np.zeros((max(self._lengths), 2, endpoints))  # oldest first: whether known, and how right
        self._ids: deque[str] = deque([""] * len(self._rows), len(self._rows))
        self._against = np.zeros(1 + len(self._lengths))

    def learn(self, answer_id: str, right: F64, counts: F64, offsets: F64, strengths: F64) -> None:
        """Add the labels of an answer, or replace them.

        Args:
            right: (N,) how right each endpoint was; NaN where not known.
            counts: see `estimates`, before this answer; the rest likewise.
        """
        known = ~np.isnan(right)
        row = np.array([known, np.where(known, right, 0)])
        if answer_id in self._ids:
            self._rows[self._ids.index(answer_id)] = row
            return
        losses = log_losses(*self.estimates(counts, offsets, strengths), *row)
        self._against = self._against * _KEPT ** row[0].sum() + losses
        self._rows[:-1] = self._rows[1:]
        self._rows[-1] = row
        self._ids.append(answer_id)

    def forget(self, index: int, newest: int) -> None:
        """Forget all but the newest outcomes of an endpoint."""
        known = np.flatnonzero(self._rows[:, 0, index])
        self._rows[known[: max(len(known) - newest, 0)], :, index] = 0

    def relative_accuracy(self, counts: F64, offsets: F64, strengths: F64) -> tuple[F64, float]:
        """Return each endpoint's accuracy minus the pool's level, (N,), and that level; see `estimates`."""
        relative, levels = self.estimates(counts, offsets, strengths)
        return mixed(relative, self._against), float(levels[0])

    def estimates(self, counts: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
        """Return accuracy minus level (K, N), and the levels (K,), by the pool's window and by the shorter ones.

        Args:
            counts: (2, 2, N) of the pool's window: n and the sum of the values, of the labels and of what agreement
                infers, which all windows share.
            offsets: see `shrunk_accuracy`; ``strengths`` likewise.
        """
        labels, inferred = counts
        by_window = np.empty((1 + len(self._lengths), *labels.shape))
        by_window[0] = labels
        for number, length in enumerate(self._lengths, 1):
            np.add.reduce(self._rows[-length:], axis=0, out=by_window[number])
        n, right = (by_window + inferred).swapaxes(0, 1)
        return relative_accuracies(n, right, offsets, strengths)
