"""Views of a log as the policy would have seen it in service, at several cost weights.

A policy knows only the endpoints that it asks, and a frugal one asks few. So in training the window before each query
contains only what the current policy would have asked, and is renewed as the policy changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, I64, Bools
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import LongRun, calibration, compute_prior_stats, expected
from focalroute.learn.offline.rollout import LogView, log_view, roll
from focalroute.observe.accuracy import PRIOR_LONG_RUN

#: The cost weights (lambda) of the views.
COST_WEIGHTS = (0.01, 0.05, 0.2, 0.8)

_RATES = (0.4, 0.3, 0.2, 0.12)  # shares of endpoints that random masks ask in each view
_CHUNK = 1024  # rows rolled out at once
_SPREAD = 0.45  # powers of ten by which a drawn cost weight may differ from its view's

#: Whether each endpoint was asked in round 1, and later, (T, N) each.
Masks = tuple[Bools, Bools]


def long_run(recorded: RecordedLog, rows: I64) -> tuple[F32, LongRun]:
    """Return each endpoint's accuracy over these rows, (N,), and the priors that follow from the rows."""
    replied = recorded.replied[rows]
    right, count = (replied * recorded.value[rows]).sum(axis=0), replied.sum(axis=0)
    overall = right.sum() / max(count.sum(), 1)
    accuracy = ((right + 10 * overall) / (count + 10)).astype(np.float32)
    there = recorded.there[rows]
    usd = (there * recorded.usd[rows]).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    strengths = np.full(len(accuracy), float(PRIOR_LONG_RUN))
    return accuracy, LongRun(accuracy - float(accuracy.mean()), strengths, usd.astype(np.float64))


def random_masks(recorded: RecordedLog, rng: np.random.Generator) -> tuple[Masks, ...]:
    """Draw random members for each view, about as many as a policy might ask at its cost weight."""
    masks = []
    for rate in _RATES:
        asked = rng.random(recorded.there.shape) < rate
        later = asked & (rng.random(asked.shape) < 0.3)
        masks.append((asked & ~later, later))
    return tuple(masks)


class Views:
    """One view for each of `COST_WEIGHTS`.

    Args:
        recorded: the log.
        prior: the priors of each endpoint.
        ids: the endpoints' rows in the nets' tables.
        masks: the endpoints asked, for each view.
        window: length of the observer's window.
        probed: share of queries on which each endpoint that was not asked is in the window, too.
        passes: the engine that runs the networks when windows are renewed.

    Attributes:
        masks: the endpoints asked, for each view.
    """

    def __init__(
        self,
        recorded: RecordedLog,
        prior: LongRun,
        ids: I64,
        masks: Sequence[Masks],
        *,
        window: int,
        probed: float,
        passes: Backend = NUMPY,
    ) -> None:
        self.recorded = recorded
        self.ids = ids
        self._prior, self._window, self._probed, self._passes = prior, window, probed, passes
        self._expected = expected(recorded)
        self._calibration = calibration(recorded)
        self._rows = np.arange(len(recorded))
        self.set_masks(masks)

    def set_masks(self, masks: Sequence[Masks]) -> None:
        """Set the endpoints asked in each view, and compute its windows from them."""
        there = self.recorded.there
        self.masks = [(first & there, later & there) for first, later in masks]
        self._prior_stats = [
            compute_prior_stats(self.recorded, *asked, self._prior, window=self._window) for asked in self.masks
        ]

    def at(self, view: int, rows: I64) -> LogView:
        """Return these queries with the statistics before each, in this view."""
        return log_view(self.recorded, self._prior_stats[view], self._expected, rows, self.ids, self._calibration)

    def renew(
        self, decider: DeciderNet, fusion: FusionNet, ask_all_usd: float, rounds: int, rng: np.random.Generator
    ) -> None:
        """Compute the windows from what these nets ask, given the present windows."""
        masks = []
        for view, cost_weight in enumerate(COST_WEIGHTS):
            first, later = (asked.copy() for asked in self.masks[view])
            for at in range(0, len(self._rows), _CHUNK):
                rows = self._rows[at : at + _CHUNK]
                played = roll(
                    decider,
                    fusion,
                    self.at(view, rows),
                    cost_weight=np.full(len(rows), cost_weight, np.float32),
                    ask_all_usd=ask_all_usd,
                    rounds=rounds,
                    samples=1,
                    rng=rng,
                    passes=self._passes,
                )
                first[rows], later[rows] = played.first, played.later
            probes = (rng.random(first.shape) < self._probed) & ~first & ~later
            masks.append((first | probes, later))
        self.set_masks(masks)


def nearest(cost_weight: float) -> int:
    """Return the view whose cost weight is nearest, on a logarithmic scale."""
    distance: NDArray[np.float64] = np.abs(np.log(COST_WEIGHTS) - np.log(max(cost_weight, 1e-6)))
    return int(distance.argmin())


def draw_cost_weight(rng: np.random.Generator) -> tuple[int, float]:
    """Draw a view at random, and a cost weight near its own."""
    view = int(rng.integers(len(COST_WEIGHTS)))
    return view, COST_WEIGHTS[view] * 10 ** float(rng.uniform(-_SPREAD, _SPREAD))
