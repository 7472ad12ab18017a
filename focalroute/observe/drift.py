"""Detects silent changes of an endpoint from its known outcomes, two-sided, in O(log n) per outcome.

The test is a generalised likelihood ratio test of Bernoulli outcomes. A cut divides them into an older and a newer
part; its gain is the log-likelihood gained by giving each part its own share of right outcomes. The best cut is a
change if its gain reaches a threshold (Lai 2001, Statistica Sinica 11, 303-408; Besson, Kaufmann, Maillard and Seznec
2022, JMLR 23(77)). The cuts are those of an exponential histogram (Bifet and Gavalda 2007, SDM, 443-448): integer
counts in blocks of 1, 2, 4, ... outcomes, two or three of each size, so that time and memory are logarithmic.

When queries get harder, all endpoints are right less often although none changed. So a cut must have the same gain over
the hypothesis that the endpoint's log-odds moved by as much as those of the other members of the same queries (the
model without a three-way interaction; Bishop, Fienberg and Holland 1975, Discrete Multivariate Analysis, 3.5). If the
endpoint was asked alone, it is compared with the others' outcomes since its own last one.

Nor has an endpoint changed if it is merely asked about other topics. So `Observer` also requires that the outcomes
are as surprising given its memory of texts (`focalroute.observe.memory.Memory.surprise`).

Measured on synthetic outcomes without peers or texts (`python -m tests.benchmarks.drift detector`): at a constant share
right, one false alarm in 5,600 outcomes of one endpoint at .5, in 10,000 at .7 and in 50,000 at .9; a drop from .7 to
.4 after 200 outcomes is found after a median of 43 outcomes, a rise from .4 to .7 after 42.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F64

#: Log-likelihood that a change must gain, nats.
THRESHOLD = 8.0

_BLOCKS = 3  # most blocks of one size
_SIZES = 9  # of blocks: 1 to 256 outcomes, so that at least the latest 1,000 are remembered
_LEAST = 8  # outcomes on either side of a cut
_PRIOR_PEERS = 1.0  # added to each of the peers' counts (right or wrong, older or newer), against extreme shares
_SCALINGS = 25  # rounds of iterative proportional scaling
_RETRY_AFTER = 4  # outcomes before an unconfirmed change is tested again, at least
_RETRY_SHARE = 1 / 8  # the same as a share of the outcomes since the change

_COUNTS = np.arange(_BLOCKS * 2**_SIZES + 1)
_N_LOG_N: NDArray[np.float64] = _COUNTS * np.log(np.maximum(_COUNTS, 1))

#: Outcomes, how many were right, the peers' outcomes to compare with, how many of those were right.
Block = tuple[int, int, int, int]


class Change(NamedTuple):
    """A change of one endpoint.

    Attributes:
        before: its share right before the change, as far back as is remembered.
        after: its share right since.
        since: known outcomes since.
        at: Unix time of the feedback that showed it.
    """

    before: float
    after: float
    since: int
    at: float = 0.0

    def __str__(self) -> str:
        return f"right {self.after:.0%} of the last {self.since} times, {self.before:.0%} before"


class Detector:
    """Watches the outcomes of one endpoint. After a change it keeps only the outcomes since."""

    def __init__(self) -> None:
        self._levels: list[list[Block]] = [[]]  # level k: blocks of 2**k outcomes, newest first
        self._quiet = 0  # outcomes to wait before the next test

    def push(
        self,
        right: bool,
        peers: int = 0,
        peers_right: int = 0,
        confirmed: Callable[[Change], bool] = lambda _: True,
    ) -> Change | None:
        """Add an outcome; return the change that it reveals, if any.

        Args:
            right: whether the endpoint was right.
            peers: outcomes of other endpoints to compare with: on the same query or, if it was asked alone, since its
                last outcome.
            peers_right: how many of these were right.
            confirmed: whether nothing else explains a change; an unconfirmed one is not reported.
        """
        self._levels[0].insert(0, (1, int(right), peers, peers_right))
        for level, blocks in enumerate(self._levels):
            if len(blocks) <= _BLOCKS:
                break
            oldest, older = blocks.pop(), blocks.pop()
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].insert(0, _added(oldest, older))
        if len(self._levels) > _SIZES:
            self._levels.pop()
        if self._quiet:
            self._quiet -= 1
            return None
        change = self._change()
        if change is None:
            return None
        if not confirmed(change):
            self._quiet = max(_RETRY_AFTER, int(change.since * _RETRY_SHARE)) - 1
            return None
        self._keep(change.since)
        return change

    def _change(self) -> Change | None:
        """Return the change at the best cut, if its gain reaches the threshold."""
        sums = np.array([block for blocks in self._levels for block in blocks]).cumsum(axis=0)
        newer, every = sums[:-1], sums[-1]
        older = every - newer
        allowed = (newer[:, 0] >= _LEAST) & (older[:, 0] >= _LEAST)
        gain = np.where(allowed, _fit(newer) + _fit(older) - _fit(every), 0.0)
        if not len(gain) or gain.max() < THRESHOLD:
            return None
        if every[2]:
            gain = np.minimum(gain, _gain_over_common(older, newer))
        best = int(gain.argmax())
        if gain[best] < THRESHOLD:
            return None
        (since, right), (size, was_right) = newer[best, :2].tolist(), older[best, :2].tolist()
        return Change(was_right / size, right / since, since)

    def _keep(self, newest: int) -> None:
        """Forget all but this many of the newest outcomes, which are a whole number of blocks."""
        for blocks in self._levels:
            kept = 0
            while kept < len(blocks) and newest:
                newest -= blocks[kept][0]
                kept += 1
            del blocks[kept:]


def _added(one: Block, other: Block) -> Block:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def _fit(counts: NDArray[np.int64]) -> F64:
    """Return the maximum log-likelihood of outcomes counted as (..., [outcomes, right, ...]), nats."""
    n, right = counts[..., 0], counts[..., 1]
    fit: F64 = _N_LOG_N[right] + _N_LOG_N[n - right] - _N_LOG_N[n]
    return fit


def _gain_over_common(older: NDArray[np.int64], newer: NDArray[np.int64]) -> F64:
    """Return the gain over the hypothesis that the log-odds of the endpoint and of its peers moved by the same amount.

    This is the log-linear model of (endpoint or peer) x (older or newer) x (right or wrong) without a three-way
    interaction, fitted by iterative proportional scaling.
    """
    n = np.stack([older[:, 0::2], newer[:, 0::2]], axis=-1).astype(float)  # (cuts, endpoint or peers, older or newer)
    right = np.stack([older[:, 1::2], newer[:, 1::2]], axis=-1).astype(float)
    seen: F64 = np.stack([right, n - right], axis=-1)
    seen[:, 1] += _PRIOR_PEERS
    fitted = np.ones_like(seen)
    for _ in range(_SCALINGS):
        for axis in (1, 2, 3):
            margin = fitted.sum(axis=axis, keepdims=True)
            fitted *= np.divide(seen.sum(axis=axis, keepdims=True), margin, out=np.zeros_like(margin), where=margin > 0)
    ratio = np.divide(seen, fitted, out=np.ones_like(seen), where=(seen > 0) & (fitted > 0))
    gain: F64 = (seen * np.log(ratio)).sum(axis=(1, 2, 3))
    return gain
