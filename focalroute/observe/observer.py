"""From outcomes and queries to what the policies see: one `Observer` a pool, one `AskView` an ask.

learn(outcome) -> window -> reading (renewed when the window changed) ─┐
learn(outcome) -> memory of texts -> estimate for a text ──────────────┼─> begin(query) -> Sight
learn(outcome) -> book of probabilities -> corrections for a task ─────┘
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.core.records import Outcome, Query
from focalroute.observe.agreement import Agreement, Reader
from focalroute.observe.ask_view import AskView
from focalroute.observe.calibration import CalibrationStats
from focalroute.observe.drift import THRESHOLD, Change, Detector
from focalroute.observe.experience import Experience
from focalroute.observe.features import Embedder, name_of, text_features, unit_vector
from focalroute.observe.focal import Bits, both_asked, pair_focal
from focalroute.observe.memory import Memory
from focalroute.observe.pool_stats import PRIOR_ASKS, PRIOR_LONG_RUN, Reading, Summary, read, relative_skills
from focalroute.observe.window import Counts, Window

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_log = logging.getLogger("focalroute")

_UNSETTLED = 200  # outcomes: for so long after a change the pool counts as unsettled


class Observer:
    """What is known of a pool of endpoints. Safe to use from any number of threads.

    Everything learned is kept by endpoint name: the pool's order does not matter, and outcomes may name others, too.

    Args:
        endpoints: the pool's names, N of them, distinct; indices elsewhere point into them.
        prices: the expected USD of one typical call of each, from its listed price; None where unknown. Windowed costs
            take over as they are seen, the listed one weighing as much as 5 calls.
        window: outcomes kept.
        detect: whether to look for endpoints that changed, and to forget what was before.
        embed: maps a query's text to finite numbers, always as many.
        embedder: what makes the features that `begin` is given, by its name; None: ``embed`` does.

    Attributes:
        endpoints: as given.
        embedder: the name of what makes the features; what is remembered of others is left aside.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prices: Sequence[float | Decimal | None],
        *,
        window: int = 500,
        detect: bool = True,
        embed: Embedder = text_features,
        embedder: str | None = None,
    ) -> None:
        self.endpoints = tuple(endpoints)
        if len(set(self.endpoints)) != len(self.endpoints) or not self.endpoints:
            raise ConfigError("endpoints: give at least one name, each only once")
        if len(prices) != len(self.endpoints):
            raise ConfigError(f"prices: give one for each of the {len(self.endpoints)} endpoints, not {len(prices)}")
        self._embed = embed
        self.embedder = name_of(embed) if embedder is None else embedder
        self._index = {name: i for i, name in enumerate(self.endpoints)}
        self._lock = threading.Lock()
        self._window = Window(window)
        self._summary = Summary([None if price is None else float(price) for price in prices])
        self._listed = self._summary.prices
        n = len(self.endpoints)
        unseen = pair_focal((0, 0), (0, 0))
        self._pairs = [[0.0 if i == j else unseen for j in range(n)] for i in range(n)]
        self._focal = np.full(n, unseen if n > 1 else 0.0)
        self._bits: list[Bits] = [(0, 0)] * n
        self._together, self._ahead = np.zeros((n, n)), np.zeros((n, n))  # rows in common; more of them right
        self._offsets, self._strengths = np.zeros(n), np.full(n, float(PRIOR_ASKS))
        self._memory = Memory(n)
        self._book = CalibrationStats(self.endpoints, window)
        self._adopted: Experience | None = None
        self._detecting = detect
        self._detectors: dict[str, Detector] = {}
        self._changes: dict[str, Change] = {}
        self._learned = 0  # outcomes
        self._unsettled_until = 0  # of these
        self._stale: set[int] = set()
        self._stale_pairs: set[tuple[int, int]] = set()
        self._reading = self._renewed()
        self._read_at = self._window.version
        self._begun = False  # whether an ask began since the reading was made

    def adopt(self, experience: Experience | None) -> None:
        """Go on from what a policy brings along: it takes the place of the long run and the memory known so far.

        What was learned since in the window stays; None changes nothing.
        """
        if experience is None or experience is self._adopted:
            return
        with self._lock:
            before, self._adopted = self._adopted, experience
            if before is not None and before.same(experience):  # of another version of the policy
                return
            offsets = experience.offsets(self.endpoints)
            self._offsets = np.array([0.0 if offset is None else offset for offset in offsets])
            self._strengths = np.array([PRIOR_ASKS if offset is None else PRIOR_LONG_RUN for offset in offsets], float)
            self._memory = self._remembered(experience)
            self._book.fill(experience.totals(self.endpoints))
            self._summary.prices = experience.prices(self._listed, self.endpoints)
            self._reading, self._read_at = self._renewed(), self._window.version

    def _remembered(self, experience: Experience) -> Memory:
        """Its memory of texts; none where other features than ours are in it."""
        if experience.embedder == self.embedder or not len(experience.vectors):
            return experience.memory(self.endpoints)
        _log.warning(
            "the policy remembers texts as %r made them, here %r does: that memory is left out; give the embedder it "
            "was trained with, or train it again",
            experience.embedder,
            self.embedder,
        )
        return Memory(len(self.endpoints))

    def learn(self, outcome: Outcome, at: float = 0.0) -> Mapping[str, Change]:
        """Take in an outcome; asks begun afterwards see it.

        Args:
            at: when it became known, Unix time.

        Returns:
            The endpoints that it shows to have changed (see `focalroute.observe.drift`); what the window held of them
            from before is forgotten.

        Raises:
            ValueError: a value of ``outcome.right`` is not within [0, 1]; nothing is then learned.
        """
        with self._lock:
            new = outcome.answer_id not in self._window
            before = self._window.known(outcome.answer_id)
            for row in self._window.push(outcome):
                here = sorted(self._index[name] for name in row if name in self._index)
                self._stale.update(here)
                self._stale_pairs.update(combinations(here, 2))
            if outcome.features is not None and outcome.embedder == self.embedder:
                right = [self._right(outcome, name) for name in self.endpoints]
                self._memory.add(outcome.answer_id, outcome.features, right)
            self._book.add(outcome.answer_id, outcome.masses)
            self._learned += new
            changes = self._detect(outcome.answer_id, before, at) if self._detecting else {}
            if self._begun:  # asks are under way: renew here, so that the next one need not; a replayed backlog waits
                self._begun = False
                self._reading, self._read_at = self._renewed(), self._window.version
        return changes

    def _detect(self, answer_id: str, before: Mapping[str, bool], at: float) -> dict[str, Change]:
        """Show the detectors what is known that was not before; a correction of what was is not taken up."""
        known = self._window.known(answer_id)
        changes = {}
        for name in [name for name in known if name not in before]:
            detector = self._detectors.setdefault(name, Detector())
            change = detector.push(known[name], len(known) - 1, sum(known.values()) - known[name])
            if change is not None and self._surprising(name, change):
                changes[name] = self._changes[name] = change._replace(at=at)
                self._forget(name, change.since)
        return changes

    def _surprising(self, name: str, change: Change) -> bool:
        """Whether its texts do not explain it."""
        return name not in self._index or self._memory.surprise(self._index[name], change.since) >= THRESHOLD

    def _forget(self, name: str, newest: int) -> None:
        """All that was known of an endpoint before its newest outcomes, its long run included, is of another one."""
        self._window.forget(name, newest)
        if name in self._index:
            index, others = self._index[name], range(len(self.endpoints))
            self._memory.forget(index, newest)
            self._book.forget(index)
            self._offsets[index], self._strengths[index] = 0.0, PRIOR_ASKS
            self._stale.update(others)
            self._stale_pairs.update((min(index, i), max(index, i)) for i in others if i != index)
            self._unsettled_until = self._learned + _UNSETTLED

    @property
    def unsettled(self) -> bool:
        """Whether an endpoint of the pool changed within the last 200 outcomes."""
        return self._learned < self._unsettled_until

    def changes(self) -> tuple[Change | None, ...]:
        """The last change of each endpoint; None where none was found."""
        return tuple(self._changes.get(name) for name in self.endpoints)

    def begin(self, query: Query, features: F32 | None = None, reader: Reader | None = None) -> AskView:
        """Begin one ask: its own mutable state, on the pool's numbers as they are now.

        Args:
            features: of the query's text, norm 1; None: they are made here.
            reader: makes the vectors that replies of open text are compared by; None: `text_features` does.

        Raises:
            ConfigError: the embedder gives something else than such features.
        """
        features = self._features(query.text) if features is None else features
        with self._lock:
            similar = self._memory.estimate(features)
            corrections = self._book.corrections(query.task) if query.choices else None
        self._begun = True
        agreement = Agreement(reader) if query.open else None
        return AskView(query, self._read(), self._index, features, similar, corrections, self.embedder, agreement)

    def expected_cost(self) -> tuple[float | None, ...]:
        """Expected USD of one call to each endpoint; None where neither a price nor a cost is known."""
        return tuple(self._read().expected_cost)

    def order(self) -> tuple[int, ...]:
        """Endpoint indices, cheapest first, unknown cost last, then by name: the order of a decider's heads."""
        return self._read().order

    def accuracy(self) -> tuple[float, ...]:
        """Windowed accuracy of each endpoint, shrunk (see `rows_of`); inferred values count, too."""
        return tuple(self._read().accuracy)

    def seen(self) -> tuple[int, ...]:
        """Rows of the window in which it is known or inferred of each endpoint whether it was right."""
        return tuple(self._read().seen)

    def latency_s(self) -> tuple[float | None, ...]:
        """Mean latency of each endpoint's replies, seconds; None where unknown."""
        return tuple(self._read().latency_s)

    def counts(self, name: str) -> Counts:
        """The window's totals of one endpoint, in the pool or not."""
        with self._lock:
            return self._window.counts(name)

    def focal(self, names: Iterable[str]) -> float:
        """Focal diversity of a set of endpoints (see `Window.focal`)."""
        with self._lock:
            return self._window.focal(names)

    @staticmethod
    def _right(outcome: Outcome, name: str) -> float:
        """NaN where it is not known; what is said of others than members is passed over, as the window does."""
        return outcome.right.get(name, math.nan) if name in outcome.members else math.nan

    def _features(self, text: str) -> F32:
        return text_features(text) if self._embed is text_features else unit_vector(self._embed(text))

    def _read(self) -> Reading:
        if self._read_at != self._window.version:
            with self._lock:
                if self._read_at != self._window.version:
                    self._reading = self._renewed()
                    self._read_at = self._window.version
        return self._reading

    def _renewed(self) -> Reading:
        """A new reading; only what changed since the last one is computed again. Earlier readings stay as they were."""
        window, names = self._window, self.endpoints
        self._bits, self._pairs = self._bits.copy(), self._pairs.copy()
        for i in self._stale:
            self._summary.renew(i, window.counts(names[i]))
            self._bits[i] = window.bits(names[i])
            self._pairs[i] = self._pairs[i].copy()
        for i, j in self._stale_pairs:
            self._pairs[i][j] = self._pairs[j][i] = pair_focal(self._bits[i], self._bits[j])
            together, wrong_i, wrong_j = both_asked(self._bits[i], self._bits[j])
            self._together[i, j] = self._together[j, i] = together
            self._ahead[i, j], self._ahead[j, i] = wrong_j - wrong_i, wrong_i - wrong_j
        for i in self._stale:
            self._focal[i] = sum(self._pairs[i]) / max(len(names) - 1, 1)
        self._stale.clear()
        self._stale_pairs.clear()
        relative_skill = relative_skills(self._together, self._ahead.sum(axis=1), self._offsets, self._strengths)
        return read(names, self._summary, self._pairs, self._focal, relative_skill, self._offsets, self._strengths)
