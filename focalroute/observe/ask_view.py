"""One ask as the policies see it: its candidates, who backs which, and what the fusion made of it so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from focalroute.answers import normal_form, reply_form, shown
from focalroute.answers.tool_calls import CALLS
from focalroute.core.records import COST_WEIGHT_RANGE, HASHED, Evidence, Member, Observation, Query, Reply
from focalroute.observe.agreement import Agreement, gathered, shared
from focalroute.observe.calibration import MOST_CHOICES, Corrections, likelihoods
from focalroute.observe.layout import CANDIDATE, ENDPOINT, MEMBER, slices, width
from focalroute.observe.pool_stats import Reading

F32 = NDArray[np.float32]

_ASKED, _REPLIED, _AGREES, _SIMILAR, _SIGNAL, _FOCAL = (
    slices(ENDPOINT)[name].start for name in ("asked", "replied", "agrees", "similar", "signal", "focal")
)
_EVIDENCE = slices(MEMBER)["evidence"].start
_MEMBER = width(MEMBER)
_CANDIDATE = width(CANDIDATE)
_LOG_FLOOR = math.exp(-30)
_NOTHING_YET = (0.0,) * 6
_UNBACKED = (0.0,) * 5  # vote, probability, log probability, evidence, calibrated: without the member's vote or mass
_HEAVIEST = 8.0  # bound of a vote's weight, reached only with more than 60 candidates
_OPEN = 8  # a free-form question counts as one of so many choices, however many answers were seen


def _bounded(x: float) -> float:
    return -4.0 if x < -4.0 else 4.0 if x > 4.0 else x


def _half_a_sample(samples: int) -> float:
    """The mass of an answer that none of the samples gave: there may be one as likely as that."""
    return 1 / (2 * samples)


def vote_weight(accuracy: float, choices: int) -> float:
    """The naive Bayes weight of a vote, ln((K - 1) a / (1 - a)); kept positive: a vote never repels."""
    a = max(1 / choices + 0.02, min(0.98, accuracy))
    return min(math.log((choices - 1) * a / (1 - a)), _HEAVIEST)


def signal_column(signal: NDArray[np.float64]) -> F32:
    """The layout's "signal" (..., N) of `Corrections.signal`."""
    column: F32 = (signal - signal.mean(axis=-1, keepdims=True)).clip(-4, 4).astype(np.float32)
    return column


class AskView:
    """The mutable state of one ask; used by one task at a time.

    Args:
        query: what is asked.
        reading: the pool's numbers.
        index: name -> pool index.
        features: of the query's text.
        similar: by endpoint, how much more than the pool it is expected to be right on such a text.
        corrections: what is known of the endpoints' probabilities; None: nothing.
        embedder: what made the features.
        agreement: compares candidates that are open texts; None: what is not equal has nothing in common.

    Attributes:
        candidates: the choices of a closed question; else one reply's text for each cluster of equal answers, growing.
        asked: pool indices of the members whose reply was added, usable or not, in that order.
        backs: pool index of each member with a usable reply -> index of the candidate it backs.
        features: as given.
        embedder: as given.
        agreement: as given.
    """

    def __init__(
        self,
        query: Query,
        reading: Reading,
        index: Mapping[str, int],
        features: F32,
        similar: Sequence[float],
        corrections: Corrections | None = None,
        embedder: str = HASHED,
        agreement: Agreement | None = None,
    ) -> None:
        self.features = features
        self.embedder = embedder
        self.agreement = agreement
        self.candidates: list[str] = list(query.choices or ())
        self.asked: list[int] = []
        self.backs: dict[int, int] = {}
        self._query = query
        self._reading = reading
        self._index = index
        self._closed = query.choices is not None
        self._corrections = corrections if 1 < len(self.candidates) <= MOST_CHOICES else None
        self._similar = [_bounded(4 * x) for x in similar]
        self._log_pool = _bounded(math.log(len(reading.names)) / 4)
        self._log_choices = _bounded(math.log(len(self.candidates)) / 4) if self._closed else 0.0
        self._clusters: dict[str, int] = {}
        self._members: dict[int, tuple[int, int | None, int, float, Decimal | None]] = {}
        self._blocks: dict[int, F32] = {}  # (K, 1, Fm) of each member
        self._least: dict[int, float] = {}  # the mass of what was not among a member's free-form samples
        self._leader = -1
        self._agrees: list[float] = []  # each candidate with the leading one
        self._evidence: Evidence | None = None  # of all replies so far, once it was asked for
        self._unasked: tuple[float, F32] | None = None  # lambda, and the endpoint rows before anybody is asked
        self._fused: tuple[float, ...] = _NOTHING_YET  # top four, margin, entropy

    @property
    def forms(self) -> tuple[str, ...]:
        """The normal form of each candidate: the choices themselves, or what its replies have in common."""
        return tuple(self.candidates if self._closed else self._clusters)

    def fork(self) -> AskView:
        """A copy to try replies out on; what is added to it leaves this one as it is."""
        trial = copy.copy(self)
        trial.candidates, trial.asked, trial.backs = self.candidates.copy(), self.asked.copy(), self.backs.copy()
        trial._evidence = None
        trial._clusters, trial._members, trial._blocks, trial._least = (
            self._clusters.copy(),
            self._members.copy(),
            self._blocks.copy(),
            self._least.copy(),
        )
        return trial

    def supposing(self, votes: Iterable[tuple[int, int | None]], round: int, *, sure: bool) -> Evidence:
        """What the Fusion would see if these endpoints backed these candidates too (None: were silent).

        A candidate beyond the last is a new one; ``sure``: with all their mass on it, instead of a vote without.
        """
        trial = self.fork()
        for i, candidate in votes:
            if candidate is not None:
                if candidate >= len(self.candidates):
                    candidate = trial._cluster(f"\0{candidate}", "")
                mass = [float(k == candidate) for k in range(len(trial.candidates))] if sure else None
                if sure and not self._closed:
                    trial._least[i] = _half_a_sample(self._query.samples or 1)
                trial._blocks[i] = trial._block(i, candidate, mass, 0, round)
        return trial.evidence()

    def add(self, reply: Reply, round: int) -> None:
        """Take in what one asked member gave back in this round (1-based); of a failed one, only that it was asked.

        A reply in which no answer can be found counts as failed.

        Raises:
            KeyError: the endpoint is not in the pool.
            ValueError: it was already added, or its probabilities do not fit the choices.
        """
        if self._index[reply.endpoint] in self.asked:
            raise ValueError(f"endpoint {reply.endpoint!r} was already added to this ask")
        self.again(reply, round)

    def again(self, reply: Reply, round: int) -> int | None:
        """Likewise, of a member that may have replied before; its latest usable reply is what counts.

        Returns:
            The candidate that the reply backs; None: it is not usable.
        """
        i = self._index[reply.endpoint]
        candidate, mass = self._answer_in(reply)
        if i not in self.asked:
            self.asked.append(i)
        if candidate is None:
            if reply.error is None or reply.error.kind == "unusable":
                self._members.setdefault(i, (round, None, reply.length, reply.latency_s, reply.cost))
            return None
        self._evidence = None
        self.backs[i] = candidate
        self._members[i] = (round, candidate, reply.length, reply.latency_s, reply.cost)
        self._blocks[i] = self._block(i, candidate, mass, reply.length, round)
        return candidate

    def usual(self, endpoint: int) -> tuple[float | None, float | None]:
        """What a call to it usually costs, USD, and takes, seconds; None where unknown."""
        return self._reading.expected_cost[endpoint], self._reading.latency_s[endpoint]

    def observe(self, *, round: int, cost_weight: float, budget_left: float) -> Observation:
        """What the Decider sees before its decision of this round (see `focalroute.observe.layout`).

        Args:
            round: 1-based.
            cost_weight: lambda, what a dollar counts in reward.
            budget_left: share of this ask's cap that is left; 1 without a cap.
        """
        price = min(max(cost_weight, COST_WEIGHT_RANGE[0]), COST_WEIGHT_RANGE[1])
        n = len(self._reading.names)
        context = np.array(
            (
                1.0 if round == 1 else 0.0,
                _bounded((round - 1) / 4),
                math.log10(price),
                max(0.0, min(1.0, budget_left)),
                self._log_pool,
                len(self.asked) / n,
                len(self.backs) / n,
                *self._fused,
                self._log_choices,
                self._reading.level,
            ),
            np.float32,
        )
        rows = self._rows_at(price)
        if self.asked:
            rows[:, _FOCAL] = self._reading.focal_row(self.asked)
            rows[self.asked, _ASKED] = 1
        for i, candidate in self.backs.items():
            rows[i, _REPLIED] = 1
            if self._leader >= 0:
                rows[i, _AGREES] = self._agrees[candidate] if candidate < len(self._agrees) else -1.0
        return Observation(context, rows)

    def _rows_at(self, price: float) -> F32:
        """The endpoint rows (N, De) at this lambda before anybody is asked; a copy."""
        if self._unasked is None or self._unasked[0] != price:
            rows = self._reading.rows(price)
            rows[:, _SIMILAR] = self._similar
            if self._corrections is not None:
                rows[:, _SIGNAL] = signal_column(self._corrections.signal)
            self._unasked = price, rows
        return self._unasked[1].copy()

    def see(self, posterior: Sequence[float]) -> None:
        """Take in the fused posterior over the present candidates; the next observations show it.

        Raises:
            ValueError: it is not one probability for each candidate, adding up to 1.
        """
        p = list(posterior)
        if len(p) != len(self.candidates) or not abs(sum(p) - 1) < 0.01 or min(p) < 0:
            raise ValueError(f"a posterior over {len(self.candidates)} candidates must be as many probabilities")
        self._leader = p.index(max(p))
        self._agrees = [1.0 if k == self._leader else -1.0 for k in range(len(p))]
        if self.agreement is not None:
            if len(p) > 1:
                alike = self._alike(self.agreement)
                p = gathered(p, self._leader, alike)
                self._agrees = (2 * alike[self._leader] - 1).tolist()
            p = self._doubted(p)
        falling = sorted(p, reverse=True)
        top = [*falling[:4], 0.0, 0.0, 0.0][:4]
        entropy = -sum(x * math.log(x) for x in p if x > 0) / math.log(len(p)) if len(p) > 1 else 0.0
        self._fused = (*top, top[0] - top[1], entropy)

    def _doubted(self, posterior: Sequence[float]) -> list[float]:
        """The posterior of open texts with what nobody has said yet, as that of a closed question of so many choices.

        A lone reply is always the likeliest of those there are: that says nothing of how good it is. By naive Bayes the
        leader is right with the odds e^s : K - 1, s its evidence.
        """
        evidence = math.exp(-float(self.evidence().members[self._leader, :, _EVIDENCE].sum()))
        sure = 1 / (1 + (_OPEN - 1) * evidence)
        return [*(sure * p for p in posterior), *[(1 - sure) / (_OPEN - 1)] * (_OPEN - 1)]

    def _alike(self, agreement: Agreement) -> F32:
        """How far each two candidates say the same, (K, K); tool calls are the same or are not."""
        alike = agreement.between(self.candidates)
        calls = [k for k, form in enumerate(self.forms) if form.startswith(CALLS)]
        if calls:
            alike[calls] = alike[:, calls] = 0
            alike[calls, calls] = 1
        return alike

    def evidence(self) -> Evidence:
        """What the Fusion sees: every candidate through every member with a usable reply, in pool order."""
        if self._evidence is None:
            self._evidence = self._gathered()
        return self._evidence

    def _gathered(self) -> Evidence:
        members = sorted(self._blocks)
        m, k = len(members), len(self.candidates)
        candidates = np.empty((k, _CANDIDATE), np.float32)
        if not m:
            seen = np.empty((k, 0, _MEMBER), np.float32)
            candidates[:, :2] = 0.0
        else:
            seen = np.concatenate([self._blocks[i] for i in members], axis=1)
            if self.agreement is not None:
                seen = shared(seen, self._alike(self.agreement) if k > 1 else None)
            np.multiply(np.add.reduce(seen[:, :, 1:3], axis=1), 1 / m, out=candidates[:, :2])
        candidates[:, 2:] = (_bounded(math.log(k) / 4) if k else 0.0, m / len(self._reading.names))
        return Evidence(seen, candidates, tuple(members))

    def members(self) -> dict[str, Member]:
        """How each member that replied took part, by name in the order of arrival."""
        return {self._reading.names[i]: Member(*member) for i, member in self._members.items()}

    def _answer_in(self, reply: Reply) -> tuple[int | None, Sequence[float] | None]:
        """The candidate that a reply backs (None: it has no answer) and its mass on each (None: all on that one)."""
        if not reply.ok:
            return None, None
        if not self._closed:
            return self._free_form(reply)
        k, mass, choice = len(self.candidates), reply.probabilities, reply.choice
        if mass is not None and len(mass) != k:
            raise ValueError(f"endpoint {reply.endpoint!r} gave {len(mass)} probabilities for {k} choices")
        if choice is None and mass is not None:
            choice = max(range(k), key=mass.__getitem__)
        if choice is not None and not 0 <= choice < k:
            raise ValueError(f"endpoint {reply.endpoint!r} backs choice {choice} of {k}")
        return choice, mass

    def _free_form(self, reply: Reply) -> tuple[int | None, Sequence[float] | None]:
        """The same of a free-form answer; its candidates may be new, the one it backs the first of them."""
        if reply.shares is None:
            form = reply_form(reply, self._query.answer)
            return None if form is None else self._cluster(form, shown(reply, form, self._query.answer)), None
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
        found = self._clusters.setdefault(form, len(self.candidates))
        if found == len(self.candidates):
            self.candidates.append(text)
            for i, block in self._blocks.items():
                unbacked = block[:1].copy()
                unbacked[0, 0, 1:6] = _UNBACKED
                if i in self._least:
                    unbacked[0, 0, 3] = math.log(self._least[i]) / 8
                self._blocks[i] = np.concatenate([block, unbacked])
        return found

    def _weight(self, i: int) -> float:
        return vote_weight(self._reading.skill[i], len(self.candidates) if self._closed else _OPEN)

    def _block(self, i: int, candidate: int, mass: Sequence[float] | None, tokens: int, round: int) -> F32:
        """Each candidate seen through one member, (K, 1, Fm); columns as in `focalroute.observe.layout.MEMBER`."""
        r = self._reading
        length = _bounded((tokens - r.mean_length[i]) * r.length_scale[i]) if tokens > 0 else 0.0
        block = np.empty((len(self.candidates), 1, _MEMBER), np.float32)
        block[:] = (1.0, *_UNBACKED, r.relative_skill[i], self._similar[i], r.level, length, float(round > 1))
        if mass is None:
            block[candidate, 0, 1:5] = (1.0, 1.0, 0.0, self._weight(i))
        else:
            least = self._least.get(i, _LOG_FLOOR)
            block[:, 0, 2:4] = [(max(0.0, min(1.0, p)), math.log(max(least, min(1.0, p))) / 8) for p in mass]
            block[candidate, 0, 1] = 1.0
            if self._closed:
                block[candidate, 0, 4] = self._weight(i)
            else:  # its samples are votes, too
                block[:, 0, 4] = self._weight(i) * block[:, 0, 2]
            if self._corrections is not None:
                self._calibrate(block, i, self._corrections)
        return block

    def _calibrate(self, block: F32, i: int, known: Corrections) -> None:
        """Let a member's probabilities speak, and its vote the less."""
        log_mass = block[:, 0, 3].astype(np.float64) * 8
        k = len(log_mass)
        means = known.means[i, :k]
        if len(means) < k:
            means = np.concatenate([means, np.zeros(k - len(means))])
        block[:, 0, 4] *= 1 - known.trust[i]
        block[:, 0, 5] = likelihoods(log_mass - log_mass.mean(), means, known.weights[i])
