"""Baselines that combine the answers of several endpoints: votes, a fixed subset, weights by the query, a cascade.

The *backers* of a candidate are the endpoints that answered it. Ties go to the candidate with the best-ranked backer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from focalroute.core.records import F32, F64, I64, Bools
from focalroute.evaluate.replay import (
    COST_WEIGHT,
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

_PRIOR_ANSWERS = 10.0


def elect(scores: Mapping[int, float], replies: Mapping[int, RecordedReply], rank: Sequence[int]) -> int:
    """Return the candidate with the highest score; -1 without candidates.

    Scores within 1e-9 of the highest count as ties, as sums of floats depend on their order.
    """
    if not scores:
        return -1
    place = {endpoint: n for n, endpoint in enumerate(rank)}

    def best_backer(candidate: int) -> int:
        return min((place[i] for i, reply in replies.items() if reply.candidate == candidate), default=len(place))

    highest = max(scores.values())
    tied = [candidate for candidate, score in scores.items() if score >= highest - 1e-9]
    return min(tied, key=lambda candidate: (best_backer(candidate), candidate))


def evidence_weight(accuracy: float, candidates: int) -> float:
    """The naive Bayes weight of a vote, ln((K - 1) a / (1 - a)), with accuracy a clipped to [0.02, 0.98]."""
    a = max(0.02, min(0.98, accuracy))
    return math.log((max(candidates, 2) - 1) * a / (1 - a))


class Accuracies:
    """Each endpoint's accuracy so far, from the training part on; the prior is 10 answers at the pool's mean."""

    def __init__(self, training: Training) -> None:
        table, rows = training.table, training.rows
        known = table.there[rows] & ~table.failed[rows]
        total, count = np.where(known, table.value[rows], 0.0).sum(axis=0), known.sum(axis=0)
        mean = total.sum() / max(count.sum(), 1)
        self._total: list[float] = (total + _PRIOR_ANSWERS * mean).tolist()
        self._count: list[float] = (count + _PRIOR_ANSWERS).tolist()

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
        members = [i for i in turn.available if self._members is None or i in self._members]
        for i in members or turn.available[:1]:
            turn.ask(i)
        return elect(self._scores(turn), turn.replies, self._rank)

    def _scores(self, turn: Turn) -> dict[int, float]:
        """Return candidate -> the sum of its backers' weights."""
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
            given: Iterable[tuple[int, float]] = ()
            if reply.output.probabilities is not None and reply.output.error is None:
                given = enumerate(reply.output.probabilities)
            elif reply.candidate >= 0:
                given = [(reply.candidate, 1.0)]
            for candidate, p in given:
                scores[candidate] = scores.get(candidate, 0.0) + p
        return scores


class Weighted(Vote):
    """``weighted-vote``: votes with naive Bayes weights, from each member's accuracy so far."""

    def __init__(self, training: Training) -> None:
        super().__init__(training.rank)
        self._accuracies = Accuracies(training)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count the worth of the members' answers."""
        self._accuracies.learn(revealed)

    def _weight(self, endpoint: int, turn: Turn) -> float:
        return evidence_weight(self._accuracies[endpoint], _candidates(turn))


class LogLinear(Vote):
    """``log-linear-online``: a vote whose weights are learned by online gradient ascent.

    The score of a candidate is the sum of its backers' weights, and q is the softmax of the scores. The objective is
    log q(right candidate) if that is known, log(1 - q(answer)) if it is only known that the answer was wrong, and the
    expected score if answers are graded. Weights start at 1, which is a plurality vote.

    Args:
        rank: endpoints by accuracy on the training part, for ties.
        size: number of endpoints.
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
        """Return the gradient of the objective with respect to each candidate's score."""
        if revealed.label is not None:
            return {c: (c == revealed.label) - p for c, p in q.items()}
        if revealed.text is not None:  # no endpoint gave the right answer, so there is nothing to learn
            return {}
        if len(revealed.values) == len(turn.replies) > 1:  # every member's score is known
            worth = {turn.replies[i].candidate: value for i, value in revealed.values.items()}
            mean = sum(p * worth.get(c, 0.0) for c, p in q.items())
            return {c: p * (worth.get(c, 0.0) - mean) for c, p in q.items()}
        answer = turn.memo
        if revealed.worth == 0 and answer in q:
            odds = q[answer] / max(1 - q[answer], 1e-6)
            return {c: -min(odds, 1.0) * ((c == answer) - p) for c, p in q.items()}  # odds are clipped at 1
        return {}

    def _weight(self, endpoint: int, turn: Turn) -> float:
        return self.weights[endpoint]


def log_linear_online(training: Training) -> LogLinear:
    """``log-linear-online`` after one pass over the training part; its rate is chosen on the last fifth."""
    rate = best_setting(training, (0.03, 0.01, 0.003), _after_one_pass)
    return _after_one_pass(training, rate)


def _after_one_pass(training: Training, rate: float) -> LogLinear:
    model = LogLinear(training.rank, len(training.table.endpoints), rate)
    play(model, training.table, training.rows, feedback="label")
    return model


def _candidates(turn: Turn) -> int:
    """Return the number of choices; for a free-form question, of distinct answers."""
    return turn.choices or len({reply.candidate for reply in turn.replies.values() if reply.candidate >= 0})


_LARGEST_POOL = 12  # of a larger pool, only subsets of the most accurate endpoints are tried
_MOST_ROWS = 1000  # subsets are compared on this many rows, evenly spread


def static_subset(training: Training) -> Vote:
    """``static-subset``, after LLM-TOPLA: plurality of the subset that is best on the training part.

    A subset has at least 2 endpoints. Its score is w x focal diversity + (1 - w) x plurality accuracy, both scaled to
    [0, 1] over all subsets; of equally good subsets the cheaper is used, then the first. The weight w is chosen on the
    last fifth from 0, 0.25, 0.5, 0.75 and 1.
    """
    if len(training.table.endpoints) < 3:
        return Vote(training.rank)
    fit, _ = training.hold_out()
    weights = (0.0, 0.25, 0.5, 0.75, 1.0)
    found = dict(zip(weights, _best_subsets(fit, weights), strict=True))
    weight = best_setting(training, weights, lambda part, w: Vote(part.rank, found[w]))
    return Vote(training.rank, _best_subsets(training, (weight,))[0])


def _best_subsets(training: Training, weights: Sequence[float]) -> list[tuple[int, ...]]:
    """Return the best subset with each weight of diversity."""
    table, rows = training.table, training.rows
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(np.int64)]
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
    """Scale to [0, 1]."""
    scaled: F64 = (x - x.min()) / max(float(np.ptp(x)), 1e-12)
    return scaled


def plurality_accuracies(table: LogTable, rows: I64, chosen: F64, rank: Sequence[int]) -> F64:
    """Return the mean worth of each subset's plurality vote on these rows.

    Args:
        table: the log.
        rows: the rows.
        chosen: (S, N) 1 for the members of each subset, else 0.
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
        # a vote counts 1; the bonus of a candidate's best backer is less than that, so it only breaks ties
        bonus = np.where(backs, ((n - place) / (2 * n))[:, None], 0.0)
        votes = chosen @ backs.astype(np.float64)
        best_backer = np.stack([(chosen * bonus[:, c]).max(axis=1) for c in range(len(given))], axis=1)
        total += worth[(votes + best_backer).argmax(axis=1)] * (votes.sum(axis=1) > 0)
    return total / len(rows)


def focal_diversities(fails: Floats, pools: Floats) -> Floats:
    """Focal diversity of B pools, (B,), as `focalroute.observe.diversity` has it for one.

    Args:
        fails: (T, N) 1 if an endpoint failed a row, else 0.
        pools: (B, N) 1 for the members of each pool, else 0.
    """
    m = pools.sum(axis=1)
    s = fails @ pools.T  # (T, B): how many members failed a row
    failed_with = fails.T @ s
    together = fails.T @ (s * s) - failed_with  # sum_t f_ti s_t (s_t - 1)
    # for a member that never failed, both sums are 0 and its term is 1
    rho = 1 - together / np.maximum(np.maximum(m - 1, 1) * failed_with, 1)
    focal: Floats = (rho.T * pools).sum(axis=1) / np.maximum(m, 1)
    return focal


_SPREAD = 0.5  # standard deviation of the drawn logits
_SAMPLES = 16  # draws for each query; the mean reward of the others is a draw's baseline
_BATCH = 128
_PASSES = 10
_QUERIES_PER_STEP = 32  # after training


class QueryWeights:
    """``query-weights``, after RLAE (arXiv 2506.00439): weights of the members that depend on the query's text.

    RLAE mixes models token by token; here whole answers are mixed, as logs have only these. The weights are
    w = softmax(W x + b) over the members, for features x of the text. The answer is argmax_c sum_i w_i p_i(c), where
    p_i are member i's probabilities (its vote if it gave none).

    In training, logits are drawn from a Gaussian around W x + b, and the reward is the worth of the answer with the
    drawn weights. So members learn to be right together. (The expected worth of a candidate drawn from the mixture
    would be linear in w, and best with all weight on one member.) Learning is by policy gradient, which equals RLAE's
    PPO with one epoch, where every ratio is 1; instead of a critic, the other draws of a query are the baseline. On the
    test part it goes on learning from labels, with a step every 32 queries.

    Args:
        training: the training part.
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
        self._collected: list[tuple[F32, F32, F32]] = []  # features, probabilities, worth

    def answer(self, turn: Turn) -> int:
        """Ask all endpoints; return the candidate with the highest weighted probability."""
        for i in turn.available:
            turn.ask(i)
        width = max([turn.choices, *(reply.candidate + 1 for reply in turn.replies.values())])
        probabilities = turn.probabilities(width)
        text = self._features(turn.query.text)
        turn.memo = text, probabilities
        weighted = _softmax(self._logits(text)) @ probabilities
        return int(weighted.argmax()) if weighted.any() else -1

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Collect feedback that reveals every candidate's worth, and take a step once there is enough."""
        text, probabilities = turn.memo
        worth = _worth_by_candidate(turn, revealed, probabilities.shape[1])
        if worth is None:
            return
        self._collected.append((text, probabilities, worth))
        if len(self._collected) == _QUERIES_PER_STEP:
            texts, several, worths = zip(*self._collected, strict=True)
            width = max(map(len, worths))
            self._step(
                np.stack(texts),
                np.stack([_padded(probabilities, width) for probabilities in several]),
                np.stack([_padded(worth, width) for worth in worths]),
            )
            self._collected = []

    def _features(self, text: str) -> F32:
        return unit_vector(self._embed(text))

    def _logits(self, texts: F32) -> F32:
        weights, bias = (np.asarray(self._adam.parameters[name], np.float32) for name in ("weights", "bias"))
        return texts @ weights + bias

    def _step(self, texts: F32, probabilities: F32, worth: F32) -> None:
        """Take a gradient step on B queries.

        Args:
            texts: (B, F) features of their texts.
            probabilities: (B, N, C) each member's probability of each candidate.
            worth: (B, C) the worth of each candidate.
        """
        logits = self._logits(texts)
        noise = self._rng.standard_normal((_SAMPLES, *logits.shape)).astype(np.float32)
        drawn = _softmax(logits + _SPREAD * noise)
        answers = np.einsum("sbn,bnc->sbc", drawn, probabilities, optimize=True).argmax(axis=2)
        reward = np.take_along_axis(worth, answers.T, axis=1).T
        # a reward minus the mean of the other draws
        gain = (reward - reward.mean(axis=0)) * np.float32(_SAMPLES / (_SAMPLES - 1))
        # d log N(z) / d mean = noise / spread; the sign is for Adam, which descends
        slope = -(gain[:, :, None] * noise).mean(axis=0) / np.float32(_SPREAD * len(logits))
        self._adam.step({"weights": texts.T @ slope, "bias": slope.sum(axis=0)})


def query_weights(training: Training) -> QueryWeights:
    """``query-weights``, with its learning rate chosen on the last fifth of the training part."""
    return QueryWeights(training, best_setting(training, (0.01, 0.03), QueryWeights))


def _worth_by_candidate(turn: Turn, revealed: Revealed, width: int) -> F32 | None:
    """Return the worth of each candidate, padded to ``width``; None if it is not known for all."""
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
    """Pad the last axis with zeros."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


_FREE_FORM_CHOICES = 10  # votes on a free-form question are weighted as if it had this many choices
_THRESHOLDS = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99, math.inf)


class TrainedCascade(Strategy):
    """``cascade``, after FrugalGPT (arXiv 2305.05176): asks one endpoint after another until the answer is sure enough.

    It stops once the naive Bayes posterior of the leading candidate, given the votes so far, reaches the stage's
    threshold. The posterior is over the K choices; for a free-form question, over the answers so far and one more. It
    takes the place of the paper's scorer, which reads the text of the replies; logs do not have that. Accuracies are
    updated from feedback.

    Args:
        training: the training part.
        stages: (endpoint, threshold to stop after it), in order.
    """

    def __init__(self, training: Training, stages: Sequence[tuple[int, float]]) -> None:
        self._stages = tuple(stages)
        self._rank = training.rank
        self._accuracies = Accuracies(training)

    def answer(self, turn: Turn) -> int:
        """Ask endpoints in order until the answer is sure enough."""
        scores: dict[int, float] = {}
        stages = [stage for stage in self._stages if stage[0] in turn.available]
        for i, threshold in stages or [(i, 0.0) for i in turn.available]:
            candidate = turn.ask(i).candidate
            turn.wait()
            if candidate >= 0:
                weight = evidence_weight(self._accuracies[i], turn.choices or _FREE_FORM_CHOICES)
                scores[candidate] = scores.get(candidate, 0.0) + weight
                if _leading_posterior(scores, turn.choices) >= threshold:
                    break
        return elect(scores, turn.replies, self._rank)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count the worth of the members' answers."""
        self._accuracies.learn(revealed)


def _leading_posterior(scores: dict[int, float], choices: int) -> float:
    """Return the posterior of the leading candidate, the largest softmax; candidates without a backer score 0."""
    most = max(scores.values())
    unbacked = 0 if len(scores) == choices else max(choices - len(scores), 1)
    total = sum(math.exp(score - most) for score in scores.values()) + unbacked * math.exp(-most)
    return 1 / total


def cascade(training: Training) -> TrainedCascade:
    """``cascade`` with endpoints and thresholds chosen together, as in FrugalGPT (Section 3).

    It tries all lists of up to 3 endpoints, cheapest first, with a threshold for each stage; and the 4 and the 6 most
    accurate endpoints, cheapest first, with one threshold for all. They are compared on the last fifth of the training
    part, with accuracies from the rest. The best is the most accurate that costs at most ``usd_per_query``; without
    such a target, the one with the highest accuracy - `COST_WEIGHT` x cost ratio.
    """
    table = training.table
    fit, held_out = training.hold_out()
    usd = table.usd[training.rows].sum(axis=0) / np.maximum(table.there[training.rows].sum(axis=0), 1)
    cheapest_first = np.argsort(usd, kind="stable").tolist()
    orders = [c for size in (1, 2, 3) for c in combinations(cheapest_first, size)]
    for size in (4, 6):
        if size <= len(cheapest_first):
            orders.append(tuple(sorted(training.rank[:size], key=cheapest_first.index)))
    replay = CascadeReplay(fit, held_out)
    ask_all_usd = max(float(table.usd[held_out].sum(axis=1).mean()), 1e-12)

    def value(result: tuple[float, float, object]) -> tuple[bool, float]:
        accuracy, usd_per_query, _ = result
        if training.usd_per_query is None:
            return True, accuracy - COST_WEIGHT * usd_per_query / ask_all_usd
        if usd_per_query <= training.usd_per_query:
            return True, accuracy
        return False, -usd_per_query

    _, _, stages = max((result for order in orders for result in replay.results(order)), key=value)
    return TrainedCascade(training, stages)


class CascadeReplay:
    """Replays cascades on recorded rows, all rows at once.

    Args:
        training: the part of the log that accuracies are taken from.
        rows: the rows to replay.
    """

    def __init__(self, training: Training, rows: I64) -> None:
        table, accuracies = training.table, Accuracies(training)
        self._worths, self._candidate, self._usd = table.worths(rows), table.candidate[rows], table.usd[rows]
        self._choices = np.array([len(table.queries[row].choices or ()) for row in rows.tolist()])
        others = np.maximum(np.where(self._choices, self._choices, _FREE_FORM_CHOICES), 2) - 1
        log_odds = [evidence_weight(accuracies[i], 2) for i in range(len(table.endpoints))]
        self._weights = np.log(others)[:, None] + log_odds  # (rows, N) as `evidence_weight`

    def results(self, order: Sequence[int]) -> Iterator[tuple[float, float, tuple[tuple[int, float], ...]]]:
        """Yield (accuracy, USD per query, stages) of cascades in this order, for each set of thresholds."""
        scores, backed = np.zeros_like(self._worths), np.zeros(self._worths.shape, bool)
        rows, paid, states = np.arange(len(scores)), np.zeros(len(scores)), []
        for i in order:
            voted = self._candidate[:, i] >= 0
            at = rows[voted], self._candidate[voted, i]
            scores[at] += self._weights[voted, i]
            backed[at] = True
            paid = paid + self._usd[:, i]
            states.append((self._leading_posterior(scores, backed), self._leader_worth(scores, backed), paid))
        *earlier, (_, last_worth, last_paid) = states
        thresholds: Iterable[tuple[float, ...]] = product(_THRESHOLDS, repeat=len(earlier))
        if len(order) > 3:
            thresholds = ((threshold,) * len(earlier) for threshold in _THRESHOLDS)
        for chosen in thresholds:
            worth, usd = last_worth, last_paid
            for (posterior_, worth_here, paid_here), threshold in zip(earlier[::-1], chosen[::-1], strict=True):
                stops = posterior_ >= threshold
                worth, usd = np.where(stops, worth_here, worth), np.where(stops, paid_here, usd)
            yield float(worth.mean()), float(usd.mean()), tuple(zip(order, (*chosen, math.inf), strict=True))

    def _leading_posterior(self, scores: F64, backed: Bools) -> F64:
        """As the function `_leading_posterior`, for each row; 0 without an answer."""
        size = backed.sum(axis=1)
        most = np.where(backed, scores, -np.inf).max(axis=1, initial=-100.0)
        unbacked = np.where(self._choices == size, 0, np.maximum(self._choices - size, 1))
        total = np.where(backed, np.exp(scores - most[:, None]), 0).sum(axis=1) + unbacked * np.exp(-most)
        leading: F64 = (size > 0) / np.maximum(total, 1e-12)
        return leading

    def _leader_worth(self, scores: F64, backed: Bools) -> F64:
        """Return the worth of each row's leading candidate; 0 without an answer."""
        leader = np.where(backed, scores, -np.inf).argmax(axis=1)
        return np.where(backed.any(axis=1), self._worths[np.arange(len(leader)), leader], 0)
