"""Estimates endpoints' accuracy from windows of several lengths, each weighted by how well it has predicted.

While queries stay of one kind, the pool's whole window gives the best estimate; after a change of topic, the latest few
outcomes do. So accuracy is a mean over the window and two shorter ones, each weighted by the likelihood of the labels
so far under its estimates. Older labels count less (Raftery, Karny and Ettler 2010, Technometrics 52, 52-66).

Letters: T queries, N endpoints, W windows, the pool's first.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from focalroute.core.records import F64

#: Strength, in asks, of the prior of an endpoint's accuracy, whose mean is the pool's level.
PRIOR_ASKS = 10

#: Strength if its expected accuracy is stated (`focalroute.Endpoint.expected_accuracy`). The prior's mean is then the
#: level plus the stated accuracy minus the mean of those stated.
PRIOR_EXPECTED = 100

#: Strength if its long-run accuracy is known. The prior's mean is then the level plus its long-run offset.
PRIOR_LONG_RUN = 50

_RECENT = (60, 150)  # lengths of the shorter windows, in answers with feedback
_DISCOUNT = 0.998  # factor of all earlier log losses for each further outcome


def window_lengths(window: int) -> tuple[int, ...]:
    """Return the lengths of the pool's window and of the shorter ones, in answers with feedback."""
    return (window, *(min(length, window) for length in _RECENT))


def relative_accuracies(n: F64, right: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
    """Return each window's estimates of accuracy minus level, (..., W, N), and its level, (..., W).

    A shorter window may hold outcomes of only a few endpoints. Its level is corrected for that by these endpoints'
    relative accuracy in the pool's window. An endpoint without a prior of its own has that relative accuracy in every
    window, as a shorter window would forget it while it is not asked.

    Args:
        n: (..., W, N) outcomes in each window; ``right`` likewise; the rest as for `shrunk_accuracy`.
    """
    accuracy, level = shrunk_accuracy(n[..., :1, :], right[..., :1, :], offsets, strengths)
    relative, total = accuracy - level[..., None], n.sum(axis=-1)
    levels, estimates, has_prior = _level(n, right, relative), relative, strengths > PRIOR_ASKS
    if has_prior.any():
        estimates = _posterior_mean(n, right, levels, offsets, strengths) - levels[..., None]
    shorter = total < total[..., :1]
    return np.where(shorter[..., None] & has_prior, estimates, relative), np.where(shorter, levels, level)


def shrunk_accuracy(n: F64, right: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
    """Return accuracies (..., N) and the pool's level (...,) from counts.

    Accuracy is (right + S (level + offset)) / (n + S), the mean of a Beta posterior. The prior's mean, level + offset,
    is kept within 0.02 and 0.98. The level is (sum of right - sum of n offset + 1) / (sum of n + 2), over endpoints:
    1/2 without outcomes and, if all offsets are 0, the share of right outcomes with one right and one wrong added.

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
    """Return relative accuracy minus its long-run value, (..., N); 0 where the long run is not known.

    Args:
        relative: (..., N) see `averaged`; the rest as for `shrunk_accuracy`.
    """
    return np.where(strengths == PRIOR_LONG_RUN, relative - offsets, 0.0)


def log_losses(relative: F64, levels: F64, known: F64, right: F64) -> F64:
    """Return the log loss of each window's estimates on one query's outcomes, nats, (..., W).

    Args:
        relative: (..., W, N) accuracy minus level; ``levels``: (..., W).
        known: (..., N) 1 where it is known how right the endpoint was, else 0.
        right: (..., N) how right it was, in [0, 1]; 0 where not known.
    """
    p = _within_bounds(relative + levels[..., None])
    hits, misses = right[..., None, :], (known - right)[..., None, :]
    losses: F64 = -(hits * np.log(p) + misses * np.log(1 - p)).sum(axis=-1)
    return losses


def discounted_sums(losses: F64, known: F64) -> F64:
    """Return the discounted sum of each window's log losses before each query, (T, W).

    Args:
        losses: (T, W) see `log_losses`; ``known``: (T,) how many outcomes of each query are known.
    """
    before, discount = np.empty_like(losses), _DISCOUNT**known
    now = np.zeros(losses.shape[1])
    for t in range(len(losses)):
        before[t] = now
        now = now * discount[t] + losses[t]
    return before


def averaged(relative: F64, losses: F64) -> F64:
    """Return accuracy minus level, (..., N), averaged over windows with weights proportional to e^-loss.

    Args:
        relative: (..., W, N) by window; ``losses``: (..., W), see `discounted_sums`.
    """
    weights = np.exp(losses.min(axis=-1, keepdims=True) - losses)
    weights /= weights.sum(axis=-1, keepdims=True)
    mean: F64 = (weights[..., None] * relative).sum(axis=-2)
    return mean


class RecentOutcomes:
    """Keeps the labels in the shorter windows, and the discounted log loss of each window.

    Args:
        endpoints: N.
        window: length of the pool's window.
    """

    def __init__(self, endpoints: int, window: int) -> None:
        self._lengths = window_lengths(window)[1:]
        self._rows = np.zeros((max(self._lengths), 2, endpoints))  # oldest first: whether known, and how right
        self._ids: deque[str] = deque([""] * len(self._rows), len(self._rows))
        self._losses = np.zeros(1 + len(self._lengths))

    def learn(self, answer_id: str, right: F64, counts: F64, offsets: F64, strengths: F64) -> None:
        """Add the labels of an answer, or replace them.

        Args:
            right: (N,) how right each endpoint was; NaN where not known.
            counts: see `estimates`, from before this answer; so are the next two.
        """
        known = ~np.isnan(right)
        row = np.array([known, np.where(known, right, 0)])
        if answer_id in self._ids:
            self._rows[self._ids.index(answer_id)] = row
            return
        relative, levels = self.estimates(counts, offsets, strengths)
        self._losses = self._losses * _DISCOUNT ** row[0].sum() + log_losses(relative, levels, row[0], row[1])
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
        return averaged(relative, self._losses), float(levels[0])

    def estimates(self, counts: F64, offsets: F64, strengths: F64) -> tuple[F64, F64]:
        """Return each window's estimates of accuracy minus level, (W, N), and its level, (W,).

        Args:
            counts: (2, 2, N) n and the sum of values over the pool's window: of labels, and of values inferred from
                agreement. The inferred ones count in every window.
            offsets: see `shrunk_accuracy`; ``strengths`` likewise.
        """
        labels, inferred = counts
        by_window = np.empty((1 + len(self._lengths), *labels.shape))
        by_window[0] = labels
        for number, length in enumerate(self._lengths, 1):
            np.add.reduce(self._rows[-length:], axis=0, out=by_window[number])
        n, right = (by_window + inferred).swapaxes(0, 1)
        return relative_accuracies(n, right, offsets, strengths)
