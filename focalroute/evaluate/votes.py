"""Baselines that combine answers: of all endpoints, by votes or the query's text, of a fixed subset, or in a cascade.

Ties go to the candidate with the best-ranked backer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from focalroute.core.records import F32, F64, I64, Bools
from focalroute.evaluate.replay import (
    PRICE_OF_MONEY,
    RecordedReply,
    Revealed,
    Strategy,
    Training,
    Turn,
    best_setting,
    play,
)
from focalroute.evaluate.table import LogTable
from focalroute.learn.adam import Adam
from focalroute.learn.nets import Floats
from focalroute.observe.features import unit_vector
from focalroute.policy.decider import posterior

_PRIOR = 10.0


def elect(scores: Mapping[int, float], replies: Mapping[int, RecordedReply], rank: Sequence[int]) -> int:
    """The candidate with the highest score, with the best-ranked backer among equals; -1 without candidates.

    Scores within 1e-9 of each other are equal: sums of floats depend on their order.
    """
    if not scores:
        return -1
    place = {endpoint: n for n, endpoint in enumerate(rank)}
    backer = {c: min((place[i] for i, h in replies.items() if h.candidate == c), default=len(place)) for c in scores}
    most = max(scores.values())
    return min((c for c, score in scores.items() if score >= most - 1e-9), key=lambda c: (backer[c], c))


def evidence_weight(accuracy: float, candidates: int) -> float:
    """The naive Bayes weight of a vote, ln((K - 1) a / (1 - a)), a kept within [0.02, 0.98]."""
    a = max(0.02, min(0.98, accuracy))
    return math.log((max(candidates, 2) - 1) * a / (1 - a))


class Accuracies:
    """Each endpoint's accuracy so far, including the training part, with a prior of 10 answers at the pool's mean."""

    def __init__(self, training: Training) -> None:
        table, rows = training.table, training.rows
        known = table.there[rows] & ~table.failed[rows]
        total, count = np.where(known, table.value[rows], 0.0).sum(axis=0), known.sum(axis=0)
        mean = total.sum() / max(count.sum(), 1)
        self._total: list[float] = (total + _PRIOR * mean).tolist()
        self._count: list[float] = (count + _PRIOR).tolist()

    def __getitem__(self, endpoint: int) -> float:
        return self._total[endpoint] / self._count[endpoint]

    def learn(self, revealed: Revealed) -> None:
        """Count the worth of the endpoints' answers."""
        for i, value in revealed.values.items():
            self._total[i] += value
            self._count[i] += 1


class Vote(Strategy):
    """``plurality``: one vote for each endpoint.

    Args:
        rank: endpoints by accuracy on the training part, for ties.
        members: the endpoints to ask; None: all.
    """

    def __init__(self, rank: Sequence[int], members: Sequence[int] | None = None) -> None:
        self._rank = tuple(rank)
        self._members = None if members is None else frozenset(members)

    def answer(self, turn: Turn) -> int:
        """Ask all members, and elect a candidate."""
        there = [i for i in turn.available if self._members is None or i in self._members]
        for i in there or turn.available[:1]:
            turn.ask(i)
        return elect(self._scores(turn), turn.replies, self._rank)

    def _scores(self, turn: Turn) -> dict[int, float]:
        scores: dict[int, float] = {}
        for i, reply in turn.replies.items():
            if reply.candidate >= 0:
                scores[reply.candidate] = scores.get(reply.candidate, 0.0) + self._weight(i, turn)
        return scores

    def _weight(self, endpoint: int, turn: Turn) -> float:
        return 1.0


class MeanVote(Vote):
    """``mean``: the mean of the members' probabilities; a member without any counts as certain of its answer."""

    def _scores(self, turn: Turn) -> dict[int, float]:
        scores: dict[int, float] = {}
        for reply in turn.replies.values():
            mass = reply.output.probabilities if reply.output.error is None else None
            sure = {reply.candidate: 1.0} if reply.candidate >= 0 else {}
            for candidate, p in sure.items() if mass is None else enumerate(mass):
                scores[candidate] = scores.get(candidate, 0.0) + p
        return scores


class Weighted(Vote):
    """``weighted-vote``: naive Bayes, with each member's accuracy so far, including the training part."""

    def __init__(self, training: Training) -> None:
        super().__init__(training.rank)
        self._accuracies = Accuracies(training)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count the worth of the members' answers."""
        self._accuracies.learn(revealed)

    def _weight(self, endpoint: int, turn: Turn) -> float:
        return evidence_weight(self._accuracies[endpoint], _candidates(turn))


class LogLinear(Vote):
    """``log-linear-online``: q(c) = softmax of the summed weights of c's backers, by online gradient ascent.

    The objective is log q(right) if the right candidate is known, log(1 - q(answer)) if it is only known that the
    answer was wrong, and the expected score if answers are graded. Weights start at 1, a plurality vote.

    Args:
        rate: the step size.

    Attributes:
        weights: the weight of each endpoint's vote.
    """

    def __init__(self, rank: Sequence[int], size: int, rate: float) -> None:
        super().__init__(rank)
        self.weights = [1.0] * size
        self._rate = rate

    def answer(self, turn: Turn) -> int:
        """Ask all endpoints, and elect a candidate."""
        turn.memo = super().answer(turn)
        return int(turn.memo)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Take one gradient step."""
        q = self._posterior(turn)
        slope = self._slope(q, turn, revealed)
        for i, reply in turn.replies.items():
            if reply.candidate >= 0:
                self.weights[i] += self._rate * slope.get(reply.candidate, 0.0)

    def _posterior(self, turn: Turn) -> dict[int, float]:
        scores = dict.fromkeys(range(turn.choices), 0.0) | self._scores(turn)
        if not scores:
            return {}
        return dict(zip(scores, posterior(list(scores.values())), strict=True))

    def _slope(self, q: Mapping[int, float], turn: Turn, revealed: Revealed) -> dict[int, float]:
        """The gradient with respect to each candidate's score."""
        if revealed.label is not None:
            return {c: (c == revealed.label) - p for c, p in q.items()}
        if revealed.text is not None:  # no endpoint gave the right answer, so there is nothing to learn
            return {}
        if len(revealed.values) == len(turn.replies) > 1:  # every member's score is known
            worth = {turn.replies[i].candidate: value for i, value in revealed.values.items()}
            mean = sum(p * worth.get(c, 0.0) for c, p in q.items())
            return {c: p * (worth.get(c, 0.0) - mean) for c, p in q.items()}
        said = turn.memo
        if revealed.worth == 0 and said in q:
            odds = q[said] / max(1 - q[said], 1e-6)
            return {c: -min(odds, 1.0) * ((c == said) - p) for c, p in q.items()}
        return {}

    def _weight(self, endpoint: int, turn: Turn) -> float:
        return self.weights[endpoint]


def log_linear_online(training: Training) -> LogLinear:
    """``log-linear-online`` after one pass over the training part, with its rate chosen on the last fifth of that."""
    rate = best_setting(training, (0.03, 0.01, 0.003), _after_one_pass)
    return _after_one_pass(training, rate)


def _after_one_pass(training: Training, rate: float) -> LogLinear:
    model = LogLinear(training.rank, len(training.table.endpoints), rate)
    play(model, training.table, training.rows, feedback="label")
    return model


def _candidates(turn: Turn) -> int:
    return turn.choices or len({reply.candidate for reply in turn.replies.values() if reply.candidate >= 0})


_LARGEST_POOL = 12  # only subsets of this many most accurate endpoints are enumerated
_ROWS = 1000  # evenly spread rows to compare subsets on


def static_subset(training: Training) -> Vote:
    """``static-subset``, after LLM-TOPLA: plurality of the training part's best subset of at least 2 endpoints.

    The score of a subset is w x focal diversity + (1 - w) x plurality accuracy, both scaled to [0, 1] over all subsets
    (the cheaper, then the first among equals); w out of 0, .25, .5, .75 and 1 is chosen on the last fifth.
    """
    if len(training.table.endpoints) < 3:
        return Vote(training.rank)
    fit, _ = training.cut()
    weights = (0.0, 0.25, 0.5, 0.75, 1.0)
    found = dict(zip(weights, _best_subsets(fit, weights), strict=True))
    weight = best_setting(training, weights, lambda part, w: Vote(part.rank, found[w]))
    return Vote(training.rank, _best_subsets(training, (weight,))[0])


def _best_subsets(training: Training, weights: Sequence[float]) -> list[tuple[int, ...]]:
    table, rows = training.table, training.rows
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(np.int64)]
    members = sorted(training.rank[:_LARGEST_POOL])
    subsets = [s for size in range(2, len(members) + 1) for s in combinations(members, size)]
    chosen = np.zeros((len(subsets), len(table.endpoints)))
    for n, subset in enumerate(subsets):
        chosen[n, list(subset)] = 1
    failed = (table.value[rows] < 0.5) | ~table.there[rows]
    accuracy = _scaled(plurality_accuracies(table, rows, chosen, training.rank))
    diversity = _scaled(focal_diversities(failed.astype(np.float64), chosen).astype(np.float64))
    usd = chosen @ table.usd[rows].sum(axis=0)
    orders = (np.lexsort((usd, -(w * diversity + (1 - w) * accuracy).round(9))) for w in weights)
    return [subsets[int(order[0])] for order in orders]


def _scaled(x: F64) -> F64:
    scaled: F64 = (x - x.min()) / max(float(np.ptp(x)), 1e-12)
    return scaled


def plurality_accuracies(table: LogTable, rows: I64, chosen: F64, rank: Sequence[int]) -> F64:
    """Return the mean worth of each subset's plurality; ties go to the candidate with the best-ranked backer.

    Args:
        chosen: (S, N) 1 for the members of each subset.
        rank: the endpoints, best first.

    Returns:
        float64 (S,).
    """
    n = chosen.shape[1]
    place = np.empty(n)
    place[list(rank)] = np.arange(n)
    total = np.zeros(len(chosen))
    for row in rows.tolist():
        backed = table.candidate[row]
        given = np.unique(backed[backed >= 0])
        if not len(given):
            continue
        backs = backed[:, None] == given  # (N, C)
        worth = np.array([table.worth(row, candidate) for candidate in given.tolist()])
        # a vote counts 1; the best backer's bonus is smaller, and breaks ties
        bonus = np.where(backs, ((n - place) / (2 * n))[:, None], 0.0)
        votes = chosen @ backs.astype(np.float64)
        best_backer = np.stack([(chosen * bonus[:, c]).max(axis=1) for c in range(len(given))], axis=1)
        total += worth[(votes + best_backer).argmax(axis=1)] * (votes.sum(axis=1) > 0)
    return total / len(rows)


def focal_diversities(fails: Floats, pools: Floats) -> Floats:
    """Focal diversity of some pools, (B,) (see `focalroute.observe.diversity`); arguments as for `diversities`."""
    m = pools.sum(axis=1)
    s = fails @ pools.T
    failed_with = fails.T @ s
    together = fails.T @ (s * s) - failed_with  # sum_t f_ti s_t (s_t - 1)
    # for a member that never failed both sums are 0, so its term is 1
    rho = 1 - together / np.maximum(np.maximum(m - 1, 1) * failed_with, 1)
    focal: Floats = (rho.T * pools).sum(axis=1) / np.maximum(m, 1)
    return focal


_SPREAD = 0.5  # standard deviation of the drawn logits
_SAMPLES = 16  # draws for each query, which serve as each other's baseline
_BATCH = 128
_PASSES = 10
_ONLINE = 32  # test queries between two steps


class QueryWeights:
    """RLAE (arXiv 2506.00439) on whole answers, as logs have no more.

    The weights are w = softmax(W x + b) over the members, for features x of the query's text. The answer is
    argmax_c sum_i w_i p_i(c), with member i's mass p_i (its vote if it gave none). The policy is a Gaussian around the
    logits. Its reward is the worth of the answer under the drawn weights, so that members learn to be right together:
    the *expected* worth of a draw from the mixture would be linear in w, and best with all weight on one member.
    Learning is by the policy gradient, which equals RLAE's PPO with one epoch, where every ratio is 1. The draws of one
    query are each other's baseline instead of a critic. In service it learns from labels, with a step every 32 queries.

    Args:
        rate: Adam's learning rate.
    """

    def __init__(self, training: Training, rate: float) -> None:
        table, rows = training.table, training.rows
        self._embed = table.embed
        self._rng = np.random.default_rng(training.seed)
        data = training.arrays()
        texts = np.stack([self._features(table.texts[row]) for row in rows.tolist()])
        shapes = {"weights": (texts.shape[1], len(table.endpoints)), "bias": (len(table.endpoints),)}
        parts = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._adam = Adam(parts, learning_rate=rate, max_norm=1.0)
        for _ in range(_PASSES):
            order = self._rng.permutation(len(rows))
            for chosen in np.array_split(order, max(1, round(len(rows) / _BATCH))):
                self._step(texts[chosen], data.probabilities[chosen], data.worth[chosen])
        self._seen: list[tuple[F32, F32, F32]] = []

    def answer(self, turn: Turn) -> int:
        """Ask all endpoints, and answer with the highest weighted mass."""
        for i in turn.available:
            turn.ask(i)
        mass = turn.masses(max([turn.choices, *(reply.candidate + 1 for reply in turn.replies.values())]))
        text = self._features(turn.query.text)
        turn.memo = text, mass
        weighed = _softmax(self._logits(text)) @ mass
        return int(weighed.argmax()) if weighed.any() else -1

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Collect feedback that reveals every candidate's worth, and take a step once there is enough."""
        text, mass = turn.memo
        worth = _worth(turn, revealed, mass.shape[1])
        if worth is None:
            return
        self._seen.append((text, mass, worth))
        if len(self._seen) == _ONLINE:
            width = max(len(one[2]) for one in self._seen)
            padded = [(text, _padded(mass, width), _padded(worth, width)) for text, mass, worth in self._seen]
            self._step(*(np.stack(column) for column in zip(*padded, strict=True)))
            self._seen = []

    def _features(self, text: str) -> F32:
        return unit_vector(self._embed(text))

    def _logits(self, texts: F32) -> F32:
        weights, bias = (np.asarray(self._adam.parameters[name], np.float32) for name in ("weights", "bias"))
        return texts @ weights + bias

    def _step(self, texts: F32, masses: F32, worth: F32) -> None:
        """Learn from B queries: features of their texts (B, F), masses (B, N, C), worth of each candidate (B, C)."""
        logits = self._logits(texts)
        noise = self._rng.standard_normal((_SAMPLES, *logits.shape)).astype(np.float32)
        drawn = _softmax(logits + _SPREAD * noise)
        answers = np.einsum("sbn,bnc->sbc", drawn, masses, optimize=True).argmax(axis=2)
        reward = np.take_along_axis(worth, answers.T, axis=1).T
        gain = (reward - reward.mean(axis=0)) * np.float32(_SAMPLES / (_SAMPLES - 1))
        # d log N(z) / d mean = noise / spread; Adam descends
        slope = -(gain[:, :, None] * noise).mean(axis=0) / np.float32(_SPREAD * len(logits))
        self._adam.step({"weights": texts.T @ slope, "bias": slope.sum(axis=0)})


def query_weights(training: Training) -> QueryWeights:
    """``query-weights``, with its rate chosen on the last fifth of the training part."""
    return QueryWeights(training, best_setting(training, (0.01, 0.03), QueryWeights))


def _worth(turn: Turn, revealed: Revealed, width: int) -> F32 | None:
    worth = np.zeros(width, np.float32)
    if revealed.label is not None:
        worth[revealed.label] = 1
        return worth
    if revealed.text is not None or len(revealed.values) < len(turn.replies):
        return None
    for i, value in revealed.values.items():
        if turn.replies[i].candidate >= 0:
            worth[turn.replies[i].candidate] = value
    return worth


def _softmax(z: F32) -> F32:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    q: F32 = e / e.sum(axis=-1, keepdims=True)
    return q


def _padded(x: F32, width: int) -> F32:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


_OPEN = 10  # assumed number of choices of a free-form question
_ENOUGH = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99, math.inf)


class TrainedCascade(Strategy):
    """``cascade``, after FrugalGPT (arXiv 2305.05176): ask one by one, and stop once the answer is sure enough.

    The sureness is the naive Bayes posterior of the leading candidate given the votes so far. It is over the K choices,
    or over the answers given and one more, with votes weighted as for 10 choices. It replaces the paper's scorer, which
    reads the answers' texts, which no log has. Accuracies are updated in service.

    Args:
        stages: (endpoint, least sureness to stop after it), in order.
    """

    def __init__(self, training: Training, stages: Sequence[tuple[int, float]]) -> None:
        self._stages = tuple(stages)
        self._rank = training.rank
        self._accuracies = Accuracies(training)

    def answer(self, turn: Turn) -> int:
        """Ask endpoints in order until the answer is sure enough."""
        scores: dict[int, float] = {}
        stages = [stage for stage in self._stages if stage[0] in turn.available]
        for i, enough in stages or [(i, 0.0) for i in turn.available]:
            candidate = turn.ask(i).candidate
            turn.wait()
            if candidate >= 0:
                weight = evidence_weight(self._accuracies[i], turn.choices or _OPEN)
                scores[candidate] = scores.get(candidate, 0.0) + weight
                if _sureness(scores, turn.choices) >= enough:
                    break
        return elect(scores, turn.replies, self._rank)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count the worth of the members' answers."""
        self._accuracies.learn(revealed)


def _sureness(scores: dict[int, float], choices: int) -> float:
    """The largest posterior; candidates without a backer score 0."""
    most = max(scores.values())
    unbacked = max(choices - len(scores), 1) if choices != len(scores) else 0
    total = sum(math.exp(score - most) for score in scores.values()) + unbacked * math.exp(-most)
    return 1 / total


def cascade(training: Training) -> TrainedCascade:
    """``cascade`` with endpoints and thresholds chosen together, as in FrugalGPT (Section 3).

    It tries lists of up to 3 endpoints from cheap to dear with a threshold for each stage, and of the 4 and 6 most
    accurate with one threshold. They are compared on the last fifth of the training part, with accuracies from the
    rest. The best is the most accurate within ``usd_per_query``; without that, by accuracy - `PRICE_OF_MONEY` x cost.
    """
    table = training.table
    fit, held = training.cut()
    usd = table.usd[training.rows].sum(axis=0) / np.maximum(table.there[training.rows].sum(axis=0), 1)
    rising = np.argsort(usd, kind="stable").tolist()
    lists = [c for size in (1, 2, 3) for c in combinations(rising, size)]
    lists += [tuple(sorted(training.rank[:size], key=rising.index)) for size in (4, 6) if size <= len(rising)]
    replay = CascadeReplay(fit, held)
    ask_all_usd = max(float(table.usd[held].sum(axis=1).mean()), 1e-12)

    def value(tried: tuple[float, float, object]) -> tuple[bool, float]:
        right, paid, _ = tried
        if training.usd_per_query is None:
            return True, right - PRICE_OF_MONEY * paid / ask_all_usd
        within = paid <= training.usd_per_query
        return within, right if within else -paid

    _, _, stages = max((tried for order in lists for tried in replay.tried(order)), key=value)
    return TrainedCascade(training, stages)


class CascadeReplay:
    """Replays cascades on recorded rows, all rows at once."""

    def __init__(self, training: Training, rows: I64) -> None:
        table, accuracies = training.table, Accuracies(training)
        self._worths, self._candidate, self._usd = table.worths(rows), table.candidate[rows], table.usd[rows]
        self._choices = np.array([len(table.queries[row].choices or ()) for row in rows.tolist()])
        among = np.maximum(np.where(self._choices, self._choices, _OPEN), 2) - 1
        odds = [evidence_weight(accuracies[i], 2) for i in range(len(table.endpoints))]
        self._weights = np.log(among)[:, None] + odds

    def tried(self, order: Sequence[int]) -> Iterator[tuple[float, float, tuple[tuple[int, float], ...]]]:
        """Yield (accuracy, USD per query, stages) of this order for each set of thresholds."""
        scores, backed = np.zeros_like(self._worths), np.zeros(self._worths.shape, bool)
        rows, paid, stages = np.arange(len(scores)), np.zeros(len(scores)), []
        for i in order:
            voted = self._candidate[:, i] >= 0
            at = rows[voted], self._candidate[voted, i]
            scores[at] += self._weights[voted, i]
            backed[at] = True
            paid = paid + self._usd[:, i]
            stages.append((self._sure(scores, backed), self._worth(scores, backed), paid))
        free = len(order) - 1
        if len(order) > 3:
            thresholds: Iterable[tuple[float, ...]] = ((enough,) * free for enough in _ENOUGH)
        else:
            thresholds = product(_ENOUGH, repeat=free)
        for enough in thresholds:
            _, right, usd = stages[-1]
            for (sure, worth, cost), least in zip(stages[-2::-1], enough[::-1], strict=True):
                right, usd = np.where(sure >= least, worth, right), np.where(sure >= least, cost, usd)
            yield float(right.mean()), float(usd.mean()), tuple(zip(order, (*enough, math.inf), strict=True))

    def _sure(self, scores: F64, backed: Bools) -> F64:
        """See `_sureness`; 0 without an answer."""
        size = backed.sum(axis=1)
        most = np.where(backed, scores, -np.inf).max(axis=1, initial=-100.0)
        unbacked = np.where(self._choices == size, 0, np.maximum(self._choices - size, 1))
        total = np.where(backed, np.exp(scores - most[:, None]), 0).sum(axis=1) + unbacked * np.exp(-most)
        sure: F64 = (size > 0) / np.maximum(total, 1e-12)
        return sure

    def _worth(self, scores: F64, backed: Bools) -> F64:
        leader = np.where(backed, scores, -np.inf).argmax(axis=1)
        return np.where(backed.any(axis=1), self._worths[np.arange(len(leader)), leader], 0)
