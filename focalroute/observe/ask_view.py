"""The policies' view of one ask: its candidates, the members backing each, and the fused posterior so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.answers import normal_form, reply_form, shown
from focalroute.answers.tool_calls import CALLS
from focalroute.core.records import F32, F64, HASHED, Evidence, Member, Observation, Query, Reply, differ
from focalroute.observe import observation
from focalroute.observe.agreement import Agreement, moved_to_leader, soft_votes
from focalroute.observe.calibration import LEAST_MASS, MOST_CHOICES, Corrections, centred_log_mass, recalibrated
from focalroute.observe.confusion import Confusion
from focalroute.observe.layout import ENDPOINT, MEMBER, slices
from focalroute.observe.memory import Expectation
from focalroute.observe.observation import OPEN_CHOICES, vote_weights
from focalroute.observe.pool_stats import COST_PENALTIES, FEW, PoolStats, cost_penalties, standardised_length

_AGREES, _SIMILAR, _SIGNAL, _FOCAL = (slices(ENDPOINT)[name].start for name in ("agrees", "similar", "signal", "focal"))
_MARKS = 2  # an endpoint's first columns: asked, replied
_AT = slices(MEMBER)
_SIMILAR_MEMBER, _EVIDENCE, _LENGTH, _LATER = (_AT[name].start for name in ("similar", "evidence", "length", "later"))
_SUMMED = slice(_AT["vote"].start, _AT["probability"].stop)
_NOTHING_YET = (0.0,) * 6


class AskView:
    """The mutable state of one ask; used by one task at a time.

    Args:
        query: the query.
        stats: the pool's statistics.
        index: name -> pool index.
        features: of the query's text.
        expected: accuracy and cost expected on this text.
        corrections: calibration of the endpoints' probabilities; None: nothing is known.
        embedder: name of the embedder that made the features.
        agreement: measures how similar open texts are; None: different candidates have nothing in common.
        curves: (alpha, beta) of the confidence in undisputed and in disputed answers, see
            `focalroute.observe.calibration`.
        confusion: how endpoints confuse the choices; None: nothing is known.

    Attributes:
        candidates: the choices of a closed question; else one reply's text for each cluster of equal answers, growing.
        asked: pool indices of the members whose reply was added, usable or not, in order of arrival.
        backs: pool index of each member with a usable reply -> index of the candidate it backs.
        features: as given.
        embedder: as given.
        agreement: as given.
    """

    def __init__(
        self,
        query: Query,
        stats: PoolStats,
        index: Mapping[str, int],
        features: F32,
        expected: Expectation,
        corrections: Corrections | None = None,
        embedder: str = HASHED,
        agreement: Agreement | None = None,
        curves: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0)),
        confusion: Confusion | None = None,
    ) -> None:
        self._curves = curves
        self.features = features
        self.embedder = embedder
        self.agreement = agreement
        self.candidates: list[str] = list(query.choices or ())
        self.asked: list[int] = []
        self.backs: dict[int, int] = {}
        self._query = query
        self._stats = stats
        self._index = index
        self._closed = query.choices is not None
        self._corrections = corrections if 1 < len(self.candidates) <= MOST_CHOICES else None
        self._confusion = confusion
        self._signal = None if self._corrections is None else observation.signal_column(self._corrections.signal)
        self._similar = observation.similar_column(expected.right)
        self._cost_factors = expected.cost
        self._choices = len(self.candidates) if self._closed else OPEN_CHOICES
        self._log_choices = math.log(self._choices) if self._closed else 0.0
        self._rows = stats.member_rows(self._choices)
        self._rows[..., _SIMILAR_MEMBER] = self._similar
        self._marks: F32 = np.zeros((len(stats.names), _MARKS), np.float32)
        self._clusters: dict[str, int] = {}
        self._members: dict[int, Member] = {}
        self._masses: dict[int, Sequence[float]] = {}  # probabilities of the candidates known when the member replied
        self._least: dict[int, float] = {}  # mass of a candidate that is not among a member's free-form samples
        self._leader = -1
        self._agrees: list[float] = []  # of open texts: column "agrees" for a member backing each candidate
        self._evidence: Evidence | None = None  # of all replies so far; computed on demand
        self._none: float | None = None  # see `none_of_these`; computed on demand
        self._fused: tuple[float, ...] = _NOTHING_YET  # top four, margin, entropy

    @property
    def forms(self) -> tuple[str, ...]:
        """The normal form of each candidate: the choice itself, or the form its replies share."""
        return tuple(self.candidates if self._closed else self._clusters)

    @property
    def order(self) -> tuple[int, ...]:
        """Endpoint indices, the cheapest for this query first: the order of the Decider's heads."""
        return self._stats.order

    @property
    def by_price(self) -> tuple[int, ...]:
        """Endpoint indices, cheapest typical call first; see `observation.worth_cheapest`."""
        return _best_first(observation.worth_cheapest(self._accuracy_alone(), self._stats.typical_shares))

    def hardly_known(self, endpoints: Iterable[int]) -> bool:
        """Whether any of these endpoints has fewer than `FEW` outcomes; False while no endpoint has any."""
        return any(self._stats.seen) and any(self._stats.seen[i] < FEW for i in endpoints)

    def best_alone(self, cost_weight: float, waits: F64) -> int:
        """Return the best endpoint to ask alone, by its record minus its cost and the cost of waiting for it."""
        shares = self._stats.rows.shares * self._cost_factors + self._stats.wait_shares(waits)
        return int((self._stats.rows.skill + self._similar / 4 - cost_weight * shares).argmax())

    def by_text(self, cost_weight: float, waits: F64 | None = None) -> tuple[int, ...] | None:
        """Return endpoint indices, the best to ask alone first, by accuracy on similar texts minus the cost penalty.

        None if their accuracy on similar texts is unknown.

        Args:
            cost_weight: lambda, not clipped to `COST_WEIGHT_RANGE`.
            waits: as in `observe`.
        """
        if not self._similar.any():
            return None
        shares = self._stats.typical_shares * self._cost_factors
        if waits is not None:
            shares = shares + self._stats.wait_shares(waits)
        return _best_first(self._accuracy_alone() - cost_weight * shares)

    def _accuracy_alone(self) -> F64:
        return observation.accuracy_alone(self._similar, self._stats.departure)

    def fork(self) -> AskView:
        """Return a copy to try replies on; this view stays unchanged."""
        trial = copy.copy(self)
        trial.candidates, trial.asked, trial.backs = self.candidates.copy(), self.asked.copy(), self.backs.copy()
        trial._evidence = trial._none = None
        trial._clusters, trial._members = self._clusters.copy(), self._members.copy()
        trial._masses, trial._least = self._masses.copy(), self._least.copy()
        trial._rows, trial._marks = self._rows.copy(), self._marks.copy()
        return trial

    def supposing(self, votes: Iterable[tuple[int, int | None]], round: int, *, sure: bool) -> Evidence:
        """Return the Fusion's input as if these endpoints had also backed these candidates (None: did not answer).

        An index beyond the last candidate adds a new one.

        Args:
            sure: each endpoint gives its candidate probability 1; otherwise it votes without probabilities.
        """
        trial = self.fork()
        for i, candidate in votes:
            if candidate is not None:
                if candidate >= len(self.candidates):
                    candidate = trial._cluster(f"\0{candidate}", "")
                mass = [float(k == candidate) for k in range(len(trial.candidates))] if sure else None
                if sure and not self._closed:
                    trial._least[i] = _half_a_sample(self._query.samples or 1)
                trial._back(i, candidate, mass, 0, round)
        return trial.evidence()

    def add(self, reply: Reply, round: int) -> int | None:
        """Add a member's reply of this round (1-based); of a failed call, only that the member was asked.

        A reply without a readable answer counts as failed. Of a member that replied before, the latest usable reply
        counts.

        Returns:
            The candidate that the reply backs; None if the reply is not usable.
        """
        i = self._index[reply.endpoint]
        candidate, mass = self._answer_in(reply)
        if i not in self.asked:
            self.asked.append(i)
            self._marks[i, 0] = 1
        if candidate is None:
            if reply.error is None or reply.error.kind == "unusable":
                self._members.setdefault(i, Member(round, None, reply.length, reply.latency_s, reply.cost))
            return None
        self._members[i] = Member(round, candidate, reply.length, reply.latency_s, reply.cost)
        self._back(i, candidate, mass, reply.length, round)
        return candidate

    def _back(self, i: int, candidate: int, mass: Sequence[float] | None, tokens: int, round: int) -> None:
        """Record the candidate a member backs and its mass on each candidate; None: all on that one."""
        self._evidence = self._none = None
        self.backs[i] = candidate
        self._masses.pop(i, None)
        if mass is not None:
            self._masses[i] = mass
        length = 0.0
        if tokens > 0:
            length = standardised_length(tokens, self._stats.mean_length[i], self._stats.length_deviation[i])
        self._rows[:, i, _LENGTH] = max(-4.0, min(4.0, length))
        self._rows[:, i, _LATER] = round > 1
        self._marks[i, 1] = 1

    def usual(self, endpoint: int) -> tuple[float | None, float | None]:
        """Return the usual cost (USD) and latency (seconds) of a call; None where unknown."""
        return self._stats.expected_cost[endpoint], self._stats.latency_s[endpoint]

    @property
    def length_ratio(self) -> float:
        """The replies' lengths relative to their endpoints' mean lengths: the geometric mean, within 1/4 and 4."""
        usual = self._stats.mean_length
        tokens = {i: member.completion_tokens for i, member in self._members.items()}
        logs = [math.log(length / usual[i]) for i, length in tokens.items() if length and usual[i] > 0]
        if not logs:
            return 1.0
        return min(max(math.exp(sum(logs) / len(logs)), 0.25), 4.0)

    def observe(
        self,
        *,
        round: int,
        cost_weight: float,
        budget_left: float,
        waits: F64 | None = None,
        paid: Sequence[int] = (),
    ) -> Observation:
        """Return the Decider's input before its decision of this round (see `focalroute.observe.layout`).

        Args:
            round: 1-based.
            cost_weight: lambda, what asking the whole pool once costs in reward.
            budget_left: share of this ask's cap that is left; 1 without a cap.
            waits: (N,) USD that waiting for each endpoint costs; None: nothing.
            paid: endpoints whose calls are already paid.
        """
        rows, log_cost_weight = self._stats.columns(cost_weight)
        rows[:, _SIMILAR] = self._similar
        if self._signal is not None:
            rows[:, _SIGNAL] = self._signal
        context = observation.context_columns(
            earlier_rounds=round - 1,
            log_cost_weight=log_cost_weight,
            budget_left=max(0.0, min(1.0, budget_left)),
            pool=len(self._stats.names),
            asked=len(self.asked),
            replied=len(self.backs),
            posterior=self._fused,
            log_choices=self._log_choices,
            level=self._stats.level,
        )
        if self.asked:
            rows[:, :_MARKS] = self._marks
            rows[:, _FOCAL] = observation.focal_column(self._marks[:, 0], len(self.asked), self._stats.pairs)
        if self._leader >= 0:
            for i, candidate in self.backs.items():
                rows[i, _AGREES] = self._agreement(candidate)
        if waits is not None:
            shares = self._stats.rows.shares.copy()
            shares[list(paid)] = 0
            shares += self._stats.wait_shares(waits)
            rows[:, COST_PENALTIES] = cost_penalties(observation.bounded_cost_weight(cost_weight) * shares)
        return Observation(np.array(context, np.float32), rows)

    def see(self, posterior: Sequence[float]) -> None:
        """Record the fused posterior over the present candidates, which the next observations show."""
        p = list(posterior)
        self._leader, self._none = p.index(max(p)), None
        self._agrees = []
        if self.agreement is not None and len(p) > 1:
            similarities = self._similarities(self.agreement)
            p = moved_to_leader(p, self._leader, similarities)
            self._agrees = (2 * similarities[self._leader] - 1).tolist()
        none = self.none_of_these()
        if none:
            unseen = self._unseen()
            p = [(1 - none) * x for x in p] + [none / unseen] * unseen
        largest = [*sorted(p, reverse=True)[:4], 0.0, 0.0, 0.0][:4]
        p_log_p = sum([x * math.log(x) for x in p if x > 0])
        self._fused = observation.posterior_columns(largest, p_log_p, math.log(max(len(p), 2)))

    def _agreement(self, candidate: int) -> float:
        """Return the column "agrees" of a member that backs this candidate."""
        if candidate < len(self._agrees):
            return self._agrees[candidate]
        agrees: float = observation.agreement(candidate, self._leader)
        return agrees

    def confidence(self, posterior: float) -> float:
        """Return the calibrated probability that a candidate with this posterior is right."""
        curve = self._curves[differ(self.backs.values())]
        return recalibrated(posterior * (1 - self.none_of_these()), curve)

    def none_of_these(self) -> float:
        """Return the probability that no candidate is right; 0 for a closed question.

        A posterior over the candidates alone would give a lone reply probability 1. By naive Bayes a candidate has odds
        e^s, s its evidence, and each answer that no member gave has odds 1; there are `OPEN_CHOICES` answers in all.
        Of open texts only the leader counts, as different texts may give the same answer.
        """
        if self._none is None:
            self._none = self._compute_none()
        return self._none

    def _compute_none(self) -> float:
        if self._closed or not self.backs:
            return 0.0
        evidence = np.add.reduce(self.evidence().members[:, :, _EVIDENCE], axis=1)
        if self.agreement is not None:
            evidence = evidence[max(self._leader, 0), None]
        unseen = self._unseen()
        return unseen / (float(np.add.reduce(observation.odds_of(evidence))) + unseen)

    def _unseen(self) -> int:
        """Return the number of possible answers to a free-form question that no member gave."""
        given = 1 if self.agreement is not None else len(self.candidates)
        return max(OPEN_CHOICES - given, 1)

    def _similarities(self, agreement: Agreement) -> F32:
        """Return the similarity of each pair of candidates, (K, K); for tool calls, 1 if equal, else 0."""
        similarities = agreement.similarities(self.candidates)
        calls = [k for k, form in enumerate(self.forms) if form.startswith(CALLS)]
        if calls:
            similarities[calls] = similarities[:, calls] = 0
            similarities[calls, calls] = 1
        return similarities

    def evidence(self) -> Evidence:
        """Return the Fusion's input: a row for each candidate and each member with a usable reply, in pool order."""
        if self._evidence is None:
            self._evidence = self._make_evidence()
        return self._evidence

    def _make_evidence(self) -> Evidence:
        members, k = sorted(self.backs), len(self.candidates)
        m, n = len(members), len(self._stats.names)
        places = [members] * k  # rows without the member's vote; those with it are n further on
        for candidate in {*self.backs.values()}:
            places[candidate] = [i + n * (self.backs[i] == candidate) for i in members]
        seen = observation.member_features(self._rows, np.array(places, np.int64).reshape(k, m))
        mass = self._mass(members)
        if mass is not None:
            self._write_mass(seen, mass, members)
        if self._confusion is not None and members:
            self._weigh_choices(seen, self._confusion, members)
        if self.agreement is not None and members:
            seen = soft_votes(seen, self._similarities(self.agreement) if k > 1 else None)
        sums = np.add.reduce(seen[:, :, _SUMMED], axis=1)
        candidates = observation.candidate_features(sums, max(m, 1), math.log(max(k, 1)), m / n)
        return Evidence(seen, candidates, tuple(members))

    def _write_mass(self, seen: F32, mass: NDArray[np.float64], members: Sequence[int]) -> None:
        if not self._closed:
            least = np.array([[self._least.get(i, LEAST_MASS)] for i in members])
            observation.write_mass(seen, mass, least, vote_weights(self._stats.rows.skill[members], OPEN_CHOICES))
            return
        observation.write_mass(seen, mass)
        if self._corrections is not None:
            known = Corrections(*(array[members] for array in self._corrections))
            log_mass = centred_log_mass(mass, np.array(mass.shape[1]))
            observation.calibrate(seen, log_mass, known, ~np.isnan(mass[:, 0]))

    def _weigh_choices(self, seen: F32, confusion: Confusion, members: Sequence[int]) -> None:
        ratios = confusion.votes[members, [self.backs[i] for i in members]]
        ratios[[i in self._masses for i in members]] = 0  # their probabilities are calibrated instead
        observation.weigh_choices(seen, ratios, confusion.prior)

    def _mass(self, members: Sequence[int]) -> NDArray[np.float64] | None:
        """Return the members' mass on each candidate, (m, K), NaN where unknown; None if all are."""
        if not self._masses:
            return None
        mass = np.full((len(members), len(self.candidates)), np.nan)
        for row, i in enumerate(members):
            if i in self._masses:
                mass[row] = 0  # on candidates added later
                mass[row, : len(self._masses[i])] = self._masses[i]
        return mass

    def members(self) -> dict[str, Member]:
        """Return how each member that replied took part, by name, in order of arrival."""
        return {self._stats.names[i]: member for i, member in self._members.items()}

    def _answer_in(self, reply: Reply) -> tuple[int | None, Sequence[float] | None]:
        """Return the candidate a reply backs (None: no answer) and its mass on each (None: all on that one)."""
        if not reply.ok:
            return None, None
        if not self._closed:
            return self._free_form(reply)
        return reply.choice, reply.probabilities

    def _free_form(self, reply: Reply) -> tuple[int | None, Sequence[float] | None]:
        """Return the same for a free-form reply, whose new answers become candidates; of several it backs the first."""
        if reply.shares is None:
            form = reply_form(reply, self._query.answer)
            if form is None:
                return None, None
            return self._cluster(form, shown(reply, form, self._query.answer)), None
        mass: dict[int, float] = {}
        for text, share in reply.shares:
            form = normal_form(text, self._query.answer)
            if form is not None:
                candidate = self._cluster(form, text)
                mass[candidate] = mass.get(candidate, 0.0) + share
        backed = next(iter(mass), None)
        self._least[self._index[reply.endpoint]] = _half_a_sample(reply.samples)
        return backed, [mass.get(k, 0.0) for k in range(len(self.candidates))]

    def _cluster(self, form: str, text: str) -> int:
        """Return the candidate with this normal form; ``text`` becomes a new one if there is none."""
        found = self._clusters.setdefault(form, len(self.candidates))
        if found == len(self.candidates):
            self.candidates.append(text)
        return found


def _half_a_sample(samples: int) -> float:
    """Return the mass of an answer that none of the samples gave: half of one sample's."""
    return 1 / (2 * samples)


def _best_first(worth: F64) -> tuple[int, ...]:
    """Return endpoint indices by decreasing worth (N,); ties in pool order."""
    return tuple(np.argsort(-worth, kind="stable").tolist())
