"""Turns outcomes and queries into the policies' input: one `Observer` per pool, one `AskView` per ask.

learn(outcome) -> window -> pool stats (renewed when the window changed) ─┐
learn(outcome) -> memory of texts -> estimate for a text ─────────────────┼─> begin(query) -> AskView
learn(outcome) -> calibration stats -> corrections for a task ────────────┘

"Labels" are values known from feedback; "inferred" values come from the members' agreement.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import combinations
from typing import Any, Literal, Self

import numpy as np

from focalroute.answers import candidate_key
from focalroute.core.config import Endpoint
from focalroute.core.records import F32, F64, Outcome, Query
from focalroute.money.cost import typical_cost
from focalroute.observe.accuracy import (
    PRIOR_ASKS,
    PRIOR_EXPECTED,
    PRIOR_LONG_RUN,
    RecentOutcomes,
    departures,
    shrunk_accuracy,
)
from focalroute.observe.agreement import Agreement, BatchEmbedder
from focalroute.observe.ask_view import AskView
from focalroute.observe.calibration import CalibrationStats, Recalibration
from focalroute.observe.confusion import ConfusionStats
from focalroute.observe.diversity import pair_focal_diversity
from focalroute.observe.drift import THRESHOLD, Change, Detector
from focalroute.observe.experience import Experience
from focalroute.observe.features import Embedder, name_of, text_features, unit_vector
from focalroute.observe.memory import Memory
from focalroute.observe.pool_stats import PoolStats, PoolTotals, relative_skills
from focalroute.observe.referees import MOST_WORTH, Referees, judge
from focalroute.observe.window import Window

#: Which part of an answer is new to `Observer.agree`.
New = Literal["answer", "probes", "nothing"]

_log = logging.getLogger("focalroute")

_REFEREED_WINDOWS = 4  # windows of rows compared by agreement: more than one, as agreement says less than a label
# The first _FIRST_AGREED outcomes without feedback renew the statistics one by one; later ones only once there are
# max(_AGREED_AT_ONCE, 1 / _AGREED_SHARE of those in the window) new ones.
_AGREED_AT_ONCE = 8
_AGREED_SHARE = 16
_FIRST_AGREED = 32
_DISCOUNT = 0.999  # factor of the counts of pairs for each further answer
_LEAST_PAIRS = 1e-9  # with fewer pairs that differed it is unknown how often a pair differs
_MOST_UNCOUNTED = 20  # labelled answers of other processes that count towards how often members differ
_UNSETTLED = 200  # outcomes after a change during which the pool counts as unsettled


class Observer:
    """The statistics of a pool of endpoints. Safe to use from any number of threads.

    The pool's order does not matter, and outcomes may name endpoints outside the pool.

    Args:
        endpoints: the pool's N distinct names; indices elsewhere point into them.
        prices: expected USD of a typical call of each, from its listed price; None where unknown. Observed costs take
            over, the listed one weighing as much as 5 calls.
        expected: expected accuracy of each, in [0, 1]; None where it is not stated. Only the differences count.
        window: outcomes kept.
        detect: whether to detect endpoints that changed, and to forget their earlier outcomes.
        embed: maps a query's text to a vector of finite numbers, always of the same length.
        embedder: name of the embedder that makes the features given to `begin`; None: ``embed`` makes them.

    Attributes:
        endpoints: as given.
        embedder: name of the embedder; features from other embedders are ignored.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prices: Sequence[float | Decimal | None],
        *,
        expected: Sequence[float | None] = (),
        window: int = 500,
        detect: bool = True,
        embed: Embedder = text_features,
        embedder: str | None = None,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self._embed = embed
        self.embedder = name_of(embed) if embedder is None else embedder
        self._index = {name: i for i, name in enumerate(self.endpoints)}
        self._lock = threading.Lock()
        self._window, self._agreed = Window(window), Window(window)
        self._referees = Referees(len(self.endpoints), _REFEREED_WINDOWS * window)
        self._totals = PoolTotals(prices)
        self._recent = RecentOutcomes(len(self.endpoints), window)
        self._listed = self._totals.prices
        n = len(self.endpoints)
        self._pairs = np.where(np.eye(n, dtype=bool), 0.0, pair_focal_diversity(0, 0, 0, 0))
        self._together = np.zeros((2, n, n))  # [all or disputed answers, i, j]: rows with labels of both i and j
        self._ahead = np.zeros((n, n))  # in how many of these rows i was right minus in how many j was
        # [all or disputed answers, i, j]: recent answers with replies of both i and j, labelled or not, discounted; the
        # diagonals count an endpoint's replies that did not come alone
        self._replied = np.zeros((2, n, n))
        self._uncounted = 0  # replies to labelled queries that another process asked, which are not in `_replied`
        self._expected = np.array(expected or [None] * n, np.float64)  # minus their mean; NaN where not stated
        if not np.isnan(self._expected).all():
            self._expected -= np.nanmean(self._expected)
        self._offsets, self._strengths = self._prior()
        self._memory = Memory(n)
        self._calibration = CalibrationStats(self.endpoints, window)
        self._confusion = ConfusionStats(n, window)
        self._recalibrations = Recalibration(window), Recalibration(window)  # of undisputed and of disputed answers
        self._relative_skill = np.zeros(n)  # see `_compare`, also for the next two
        self._bias = self._presumed_bias = np.zeros((2, n))  # of undisputed and of disputed answers
        self._recompare = True  # whether `_compare` is due: there is a new verdict, or a label of several members
        self._presumed_flattery = 0.0  # how much the pool's level is lowered for flattery that no label has shown
        self._suspicious = False  # whether two endpoints may be copies
        self._pending = 0  # outcomes without feedback that the statistics do not include yet
        self._adopted: Experience | None = None
        self._detecting = detect
        self._detectors: dict[str, Detector] = {}
        self._changes: dict[str, Change] = {}
        self._labels = (0, 0)  # labels of all endpoints so far, and how many were right
        self._labels_at: dict[str, tuple[int, int]] = {}  # the same at each endpoint's last label
        self._agreed_version = 0
        self._learned = 0  # outcomes so far
        self._unsettled_until = 0  # value of _learned
        self._changed: set[int] = set()  # endpoints whose windows changed since the statistics were renewed
        self._changed_pairs: set[tuple[int, int]] = set()  # likewise
        self._stats = self._renewed()
        self._stats_version = self._version
        self._begun = False  # whether an ask began since the statistics were last renewed by `learn`

    @classmethod
    def of(cls, endpoints: Iterable[Endpoint], **settings: Any) -> Self:
        """Make the observer of a pool, with its endpoints' names, prices and expected accuracies.

        Args:
            settings: the other keyword arguments of the class.
        """
        pool = tuple(endpoints)
        names, prices = [endpoint.name for endpoint in pool], [typical_cost(endpoint) for endpoint in pool]
        return cls(names, prices, expected=[endpoint.expected_accuracy for endpoint in pool], **settings)

    def adopt(self, experience: Experience | None) -> None:
        """Replace long-run accuracies, memory and calibration by a policy's experience; None changes nothing.

        The window stays.
        """
        if experience is None or experience is self._adopted:
            return
        with self._lock:
            before, self._adopted = self._adopted, experience
            if before is not None and before.same(experience):  # another version of the policy
                return
            offsets = experience.offsets(self.endpoints)
            known = ~np.isnan(offsets)
            expected, strengths = self._prior()
            self._offsets = np.where(known, offsets, expected)
            self._strengths = np.where(known, float(PRIOR_LONG_RUN), strengths)
            self._memory = self._remembered(experience)
            self._calibration.fill(experience.totals(self.endpoints))
            self._confusion.fill(experience.confused(self.endpoints))
            for recalibration in self._recalibrations:
                recalibration.trust()
            self._totals.prices = experience.prices(self._listed, self.endpoints)
            self._recompare = True
            self._renew()

    def _prior(self) -> tuple[F64, F64]:
        """Return the prior of each endpoint's accuracy minus the pool's level, (N,), and its strength in asks, (N,)."""
        stated = ~np.isnan(self._expected)
        return np.where(stated, self._expected, 0.0), np.where(stated, float(PRIOR_EXPECTED), float(PRIOR_ASKS))

    def _remembered(self, experience: Experience) -> Memory:
        """Return the experience's memory of texts, empty if another embedder made its features."""
        if experience.embedder == self.embedder or not len(experience.vectors):
            return experience.memory(self.endpoints)
        _log.warning(
            "the policy's memory of texts is ignored: its embedder was %r, this pool's is %r; use the embedder it was "
            "trained with, or train it again",
            experience.embedder,
            self.embedder,
        )
        return Memory(len(self.endpoints))

    def learn(self, outcome: Outcome, at: float = 0.0) -> Mapping[str, Change]:
        """Learn an outcome; asks that begin afterwards use it.

        Args:
            at: when it became known, Unix time.

        Returns:
            The changes it reveals, by endpoint (see `focalroute.observe.drift`); these endpoints' outcomes from before
            are forgotten.
        """
        with self._lock:
            self._update_totals()
            counts = self._value_counts()
            new = outcome.answer_id not in self._window
            before = self._window.known(outcome.answer_id)
            for row in self._window.push(outcome):
                here = sorted(self._indices(row))
                self._changed.update(here)
                self._changed_pairs.update(combinations(here, 2))
            self._changed.update(self._indices(self._agreed.drop(outcome.answer_id)))
            right = [self._right(outcome, name) for name in self.endpoints]
            labels = np.array(right)
            self._recent.learn(outcome.answer_id, labels, counts, self._offsets, self._strengths)
            disputed = outcome.disputed
            any_known = not outcome.right.keys() <= outcome.inferred
            if self._referees.label(outcome.answer_id, labels, disputed, known=any_known):
                self._recompare = True
            self._remember(outcome, right)
            self._calibration.add(outcome.answer_id, outcome.masses)
            self._confusion.add(outcome.answer_id, outcome.labelled, self._votes(outcome))
            if outcome.posterior is not None:
                recalibration = self._recalibrations[disputed]
                recalibration.learn(outcome.answer_id, outcome.posterior, outcome.correct)
            self._learned += new
            changes = self._detect(outcome.answer_id, before, at) if self._detecting else {}
            self._renew_if_begun()
        return changes

    def agree(self, outcome: Outcome, choices: int | None, *, new: New = "answer") -> None:
        """Learn from an answer without feedback: infer from agreement how likely each member was right.

        Later feedback replaces it; it is ignored if the answer already has feedback.

        Args:
            outcome: with an empty ``right``.
            choices: number of choices of a closed question; `OPEN_CHOICES` for a free-form one; None if its answers
                cannot be compared: only costs, latencies and lengths are learned.
            new: which part was not given before, and so counts towards how often members differ: the whole answer, the
                endpoints that were probed after it, or nothing.
        """
        with self._lock:
            if choices is not None and new != "nothing":
                self._count_pairs(outcome, only_probed=new == "probes")
            if outcome.answer_id in self._window:
                return
            here = [name for name in outcome.members if name in self._index]
            if new == "nothing":
                self._uncounted += len(here)
            if choices is not None and len(here) > 1:
                outcome = self._judged(outcome, here, choices)
            for row in self._agreed.push(outcome):
                self._changed.update(self._indices(row))
            self._pending += 1
            agreed = len(self._agreed)
            # an answer that was given before mostly has feedback
            earlier = agreed if new == "answer" else agreed + len(self._window)
            if self._pending >= max(_AGREED_AT_ONCE, agreed // _AGREED_SHARE) or earlier <= _FIRST_AGREED:
                self._pending = 0
                self._agreed_version = self._agreed.version
                self._renew()  # the next verdict depends on it

    def recount_pairs(self, outcomes: Iterable[tuple[Outcome, int | None]]) -> None:
        """Count from scratch how often members differ, in these answers, labelled or not.

        Args:
            outcomes: each answer's outcome and choices, as for `agree`.
        """
        with self._lock:
            self._replied[:], self._uncounted = 0, 0
            for outcome, choices in outcomes:
                if choices is not None:
                    self._count_pairs(outcome)

    def _judged(self, outcome: Outcome, here: Sequence[str], choices: int) -> Outcome:
        """Return the outcome with each of these members' probability of being right, judged by the others."""
        self._recompare = True
        backed = [outcome.members[name].candidate for name in here]
        members = np.array(self._indices(here))
        candidates = np.array([-1 if candidate is None else candidate for candidate in backed])
        for copy in self._referees.compare(outcome.answer_id, members, candidates):  # forget credit from before that
            self._agreed.forget(self.endpoints[copy], 0)
            self._memory.forget_inferred(copy)
            self._referees.forget(copy)
            self._changed.add(copy)
        rows = self._stats.rows
        # Add the presumed flattery back, or members would trust each other less with every verdict.
        skill = np.minimum(np.maximum(rows.skill[members] + self._presumed_flattery, 0.02), 0.98)
        copies = self._referees.copies[members[:, None], members]
        verdict = judge(members, candidates, choices, skill, rows.skill[members] - rows.level, copies)
        self._referees.add(outcome.answer_id, verdict)
        values = {name: v for name, v in zip(here, verdict.values.tolist(), strict=True) if not math.isnan(v)}
        outcome = replace(outcome, right=values, inferred=frozenset(values))
        self._remember(outcome, [values.get(name, math.nan) for name in self.endpoints], inferred=True)
        self._calibration.add(outcome.answer_id, outcome.masses)
        return outcome

    def _votes(self, outcome: Outcome) -> dict[int, int]:
        """Return the candidate that each member gave, by index."""
        return {
            self._index[name]: member.candidate
            for name, member in outcome.members.items()
            if name in self._index and member.candidate is not None
        }

    def _remember(self, outcome: Outcome, right: Sequence[float], *, inferred: bool = False) -> None:
        if outcome.features is not None and outcome.embedder == self.embedder:
            costs = self._relative_costs(outcome)
            self._memory.add(outcome.answer_id, outcome.features, right, costs, inferred=inferred)

    def _relative_costs(self, outcome: Outcome) -> list[float]:
        """Return the cost of each member's call relative to the endpoint's usual one; NaN where either is unknown."""
        costs = [math.nan] * len(self.endpoints)
        for name, member in outcome.members.items():
            usual = self._stats.expected_cost[self._index[name]] if name in self._index else None
            if usual and member.usd is not None:
                costs[self._index[name]] = float(member.usd) / usual
        return costs

    def _renew_if_begun(self) -> None:
        """Renew the statistics, so that the next ask finds them ready, if any ask began since the last time.

        Replaying a backlog thus renews them only once.
        """
        if self._begun:
            self._begun = False
            self._renew()

    def _renew(self) -> None:
        self._stats, self._stats_version = self._renewed(), self._version

    def _indices(self, names: Iterable[str]) -> list[int]:
        """Return the pool indices of these names, without those of endpoints outside the pool."""
        return [self._index[name] for name in names if name in self._index]

    @property
    def _version(self) -> int:
        return self._window.version + self._agreed_version

    def _detect(self, answer_id: str, before: Mapping[str, bool], at: float) -> dict[str, Change]:
        """Give the detectors the new labels of an answer; corrections of earlier ones are ignored."""
        known = self._window.known(answer_id)
        new = [name for name in known if name not in before]
        known_right = sum(known.values())
        labels, right = self._labels
        self._labels = labels + len(new), right + sum(known[name] for name in new)
        changes = {}
        for name in new:
            peers, peers_right = len(known) - 1, known_right - known[name]
            if not peers:  # asked alone: compare with the others' outcomes since its last one
                labels_then, right_then = self._labels_at.get(name, (labels, right))
                peers, peers_right = labels - labels_then, right - right_then
            self._labels_at[name] = self._labels
            detector = self._detectors.setdefault(name, Detector())
            confirmed = partial(self._surprising, name)
            change = detector.push(known[name], peers, peers_right, confirmed)
            if change is not None:
                changes[name] = self._changes[name] = change._replace(at=at)
                self._forget(name, change.since)
        return changes

    def _surprising(self, name: str, change: Change) -> bool:
        """Whether the change is surprising given the texts of the queries."""
        return name not in self._index or self._memory.surprise(self._index[name], change.since) >= THRESHOLD

    def _forget(self, name: str, newest: int) -> None:
        """Forget an endpoint's record from before its newest outcomes, including its long-run accuracy."""
        self._window.forget(name, newest)
        self._agreed.forget(name, 0)
        if name in self._index:
            index, others = self._index[name], range(len(self.endpoints))
            self._replied[:, index] = self._replied[:, :, index] = 0
            self._recent.forget(index, newest)
            self._memory.forget(index, newest)
            self._calibration.forget(index)
            self._confusion.forget(index)
            self._referees.reset(index)
            self._recompare = True
            self._offsets[index], self._strengths[index] = 0.0, PRIOR_ASKS
            self._changed.update(others)
            self._changed_pairs.update((min(index, i), max(index, i)) for i in others if i != index)
            self._unsettled_until = self._learned + _UNSETTLED

    @property
    def unsettled(self) -> bool:
        """Whether to explore more: an endpoint changed within the last 200 outcomes, or two may be copies."""
        return self._learned < self._unsettled_until or self._suspicious

    def copies(self) -> F64:
        """Return how far each pair are copies, k (N, N), see `focalroute.observe.referees`; do not change the array."""
        return self._referees.copies

    def changes(self) -> tuple[Change | None, ...]:
        """Return the last change of each endpoint; None where none was found."""
        return tuple(self._changes.get(name) for name in self.endpoints)

    def begin(
        self,
        query: Query,
        features: F32 | None = None,
        reply_embedder: BatchEmbedder | None = None,
        factors: F64 | None = None,
    ) -> AskView:
        """Begin an ask: return its state, based on the pool's current statistics.

        Args:
            features: of the query's text, norm 1; None: computed here.
            reply_embedder: embeds open-text replies to compare them; None: `text_features` is used.
            factors: (N,) the query's cost at each endpoint relative to the usual cost there; None: 1.

        Raises:
            ConfigError: the embedder does not return a vector of finite numbers.
        """
        features = self._features(query.text) if features is None else features
        stats, confusion = self._current(), None
        with self._lock:
            expected = self._memory.estimate(features)
            corrections = self._calibration.corrections(query.task) if query.choices else None
            if query.choices and self._confusion:
                keys = [candidate_key(choice) for choice in query.choices]
                confusion = self._confusion.of(query.task, keys, stats.rows.skill)
        self._begun = True
        agreement = Agreement(reply_embedder) if query.open else None
        return AskView(
            query,
            stats if factors is None else stats.at(factors),
            self._index,
            features,
            expected,
            corrections,
            self.embedder,
            agreement,
            (self._recalibrations[0].curve, self._recalibrations[1].curve),
            confusion,
        )

    def expected_cost(self) -> tuple[float | None, ...]:
        """Return the expected USD of one call to each endpoint; None where neither a price nor a cost is known."""
        return tuple(self._current().expected_cost)

    def order(self) -> tuple[int, ...]:
        """Return endpoint indices in the Decider's order: cheapest first, unknown cost last, equals by name."""
        return self._current().order

    def accuracy(self) -> tuple[float, ...]:
        """Return each endpoint's accuracy in the window, shrunk (see `shrunk_accuracy`), inferred values included."""
        return tuple(self._accuracy().tolist())

    def _accuracy(self) -> F64:
        self._current()
        with self._lock:
            n, right = self._value_counts().sum(axis=0)
            return shrunk_accuracy(n, right, self._offsets, self._strengths)[0]

    def accuracy_interval(self) -> tuple[tuple[float, float], ...]:
        """Return a 95 % interval of each endpoint's accuracy a that allows for errors of inferred values.

        Its variance is a (1 - a) / (n + S) + (sum over k of m_k bias_deviation_k / (n + S))^2, where m_k of the n rows
        are inferred, for k undisputed or disputed answers (prediction-powered inference, arXiv 2301.09633).
        """
        accuracy, seen = self._accuracy(), np.array(self._current().seen)
        with self._lock:
            # A stated expected accuracy is not evidence, so it does not narrow the interval.
            weight = seen + np.where(self._strengths == PRIOR_EXPECTED, PRIOR_ASKS, self._strengths)
            flattered = (self._totals.inferred() * self._referees.bias_deviation()).sum(axis=0) / weight
        margin = 1.96 * np.sqrt(accuracy * (1 - accuracy) / weight + flattered**2)
        low, high = (accuracy - margin).clip(0, 1).tolist(), (accuracy + margin).clip(0, 1).tolist()
        return tuple(zip(low, high, strict=True))

    def seen(self) -> tuple[int, ...]:
        """Return the number of each endpoint's values in the window, known or inferred."""
        return tuple(self._current().seen)

    def labelled(self) -> tuple[int, ...]:
        """Return how many of the values counted by `seen` come from feedback; the others come from agreement."""
        counts = map(self._window.counts, self.endpoints)
        return tuple(count.known + count.inferred for count in counts)

    def latency_s(self) -> tuple[float | None, ...]:
        """Return the mean latency of each endpoint's replies, seconds; None where unknown."""
        return tuple(self._current().latency_s)

    @staticmethod
    def _right(outcome: Outcome, name: str) -> float:
        """Return how right an endpoint was; NaN if unknown or not a member, as in the window."""
        return outcome.right.get(name, math.nan) if name in outcome.members else math.nan

    def _features(self, text: str) -> F32:
        return text_features(text) if self._embed is text_features else unit_vector(self._embed(text))

    def _current(self) -> PoolStats:
        if self._stats_version != self._version:
            with self._lock:
                if self._stats_version != self._version:
                    self._renew()
        return self._stats

    def _renewed(self) -> PoolStats:
        """Return new statistics, recomputing only what changed; earlier ones are not modified."""
        self._update_totals()
        self._update_pairs()
        if self._recompare:
            self._recompare = False
            self._compare()
        presumed = (self._totals.inferred() * self._presumed_bias).sum()
        self._presumed_flattery = float(presumed / (self._totals.seen().sum() + 2))
        counts = self._value_counts()
        relative_accuracy, level = self._recent.relative_accuracy(counts, self._offsets, self._strengths)
        departure = departures(relative_accuracy, self._offsets, self._strengths)
        return self._totals.stats(
            self.endpoints, self._pairs, self._relative_skill, relative_accuracy, level, departure
        )

    def _update_totals(self) -> None:
        """Update the totals of the endpoints whose windows changed."""
        for i in self._changed:
            name = self.endpoints[i]
            disputed = self._window.disputed(name), self._agreed.disputed(name)
            self._totals.update(i, self._window.counts(name), self._agreed.counts(name), disputed)
        self._changed.clear()

    def _update_pairs(self) -> None:
        """Update the statistics of the pairs whose labels changed."""
        if not self._changed_pairs:
            return
        first, second = np.array(list(self._changed_pairs)).T
        names = self.endpoints
        counts = np.array([self._window.co_asked(names[i], names[j]) for i, j in self._changed_pairs]).T
        together, wrong_first, wrong_second, _, disputed = counts
        self._pairs[first, second] = self._pairs[second, first] = pair_focal_diversity(*counts[:4])
        self._together[:, first, second] = self._together[:, second, first] = together, disputed
        self._ahead[first, second] = wrong_second - wrong_first
        self._ahead[second, first] = wrong_first - wrong_second
        self._changed_pairs.clear()
        self._recompare = True

    def _count_pairs(self, outcome: Outcome, *, only_probed: bool = False) -> None:
        """Count an answer's pairs of replies, or only those pairs with a probed endpoint."""
        names = [name for name in outcome.members if name in self._index]
        if len(names) < 2:
            return
        here, pairs = np.array(self._indices(names)), np.ones((len(names), len(names)))
        if only_probed:
            earlier = np.array([outcome.members[name].round > 0 for name in names])
            if earlier.sum() > 1:  # a reply that came alone was not counted
                pairs -= np.outer(earlier, earlier)
        else:
            self._replied *= _DISCOUNT
        self._replied[: 1 + outcome.disputed, here[:, None], here] += pairs

    def _compared_rows(self) -> F64:
        """Return how many rows each pair's labels compare, (N, N).

        If users label disputed answers more often than others, rows without a label, in which the two are equal, are
        added until disputed answers are as frequent as among all answers.
        """
        together, disputed = self._together
        if not len(self._agreed):
            return together
        replied, differed = self._replied
        uncounted = min(self._uncounted / len(together), _MOST_UNCOUNTED)
        replied, differed = replied + uncounted, differed + uncounted * disputed / np.maximum(together, 1)
        known = differed > _LEAST_PAIRS
        due = np.divide(disputed * replied, differed, out=np.zeros(replied.shape), where=known)
        return np.maximum(together, due)

    def _value_counts(self) -> F64:
        """Return the number and sum of labelled and of inferred values, see `PoolTotals.values`."""
        replies, disputed = self._replied.trace(axis1=1, axis2=2).tolist()
        uncounted = min(self._uncounted, _MOST_UNCOUNTED * len(self.endpoints))
        replies, disputed = replies + uncounted, disputed + uncounted * self._totals.disputed_share()
        return self._totals.values(self._bias, disputed / replies if replies else None)

    def _compare(self) -> None:
        """Compute relative skills and biases again from the present labels and agreement."""
        offsets, strengths = self._offsets, self._strengths
        self._suspicious = self._referees.suspicious()
        refereed, ahead = self._referees.comparisons()
        if refereed.any():  # agreement is the prior for labels, worth at most `MOST_WORTH` of them
            offsets = relative_skills(refereed, ahead.sum(axis=1), offsets, strengths)
            strengths = strengths + np.minimum(refereed.sum(axis=1), MOST_WORTH)
        self._relative_skill = relative_skills(self._compared_rows(), self._ahead.sum(axis=1), offsets, strengths)
        self._bias, self._presumed_bias = self._referees.bias(), self._referees.presumed()
