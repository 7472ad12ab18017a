"""Computes the observer's statistics before each recorded query, given the endpoints asked before it.

These are the statistics that `focalroute.observe` computes one query at a time, for a whole log at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, I64, Bools, Labelled
from focalroute.learn.offline import RecordedLog
from focalroute.observe.accuracy import (
    averaged,
    departures,
    discounted_sums,
    log_losses,
    relative_accuracies,
    window_lengths,
)
from focalroute.observe.calibration import (
    MOST_CHOICES,
    Corrections,
    Totals,
    centred_log_mass,
    corrections_of,
    totals_of,
)
from focalroute.observe.confusion import ChoiceCounts, ChoiceSet, ConfusionStats
from focalroute.observe.diversity import pair_focal_diversity
from focalroute.observe.memory import (
    CAPACITY,
    SHRINK,
    Expectation,
    cosines,
    cost_factors,
    kernel,
    mean_text,
    overall_mean,
    relative_costs,
    shrunk,
)
from focalroute.observe.pool_stats import (
    EndpointRows,
    call_means,
    length_moments,
    relative_skills,
    rows_of,
    standardised_length,
)

_RECURS = 10  # labelled queries with the same choices
_EVERY = 20  # rows that share one matrix of pairs
_BLOCK = 512  # rows whose similarities are computed at once


@dataclass(frozen=True, slots=True)
class LongRun:
    """The priors of each endpoint.

    Attributes:
        offsets: (N,) accuracy minus the pool's level.
        strengths: (N,) strength of the accuracy's prior, in asks.
        usd: (N,) cost of a call.
    """

    offsets: F64
    strengths: F64
    usd: F64


@dataclass(frozen=True, slots=True)
class PriorStats:
    """The statistics before each of T queries.

    Attributes:
        rows: see `focalroute.observe.pool_stats.EndpointRows`, (T, N, ...).
        departure: (T, N) see `focalroute.observe.accuracy.departures`.
        length: (T, N) the column "length" of the recorded reply.
        pairs: (ceil(T / every), N, N) focal diversity of pairs, 0 on the diagonal; row t uses entry t // every.
        every: see `compute_prior_stats`.
    """

    rows: EndpointRows
    departure: F64
    length: F32
    pairs: F32
    every: int

    def pairs_at(self, rows: NDArray[np.int64]) -> F32:
        """Return the focal diversity of pairs before these rows, (len(rows), N, N)."""
        return self.pairs[rows // self.every]


def compute_prior_stats(
    recorded: RecordedLog, first: Bools, later: Bools, long_run: LongRun, *, window: int, every: int = _EVERY
) -> PriorStats:
    """Compute the statistics of the ``window`` queries before every query.

    Args:
        recorded: the log.
        first: (T, N) whether the endpoint was asked in round 1.
        later: (T, N) whether it was asked in round 2 or later.
        long_run: the priors.
        window: T of the observer.
        every: number of rows that share the statistics of pairs, focal diversity and relative skill. The observer
            renews these with every row, which here would take longer than everything else.
    """
    known = (first | later) & recorded.replied
    answered = known & recorded.usable & (recorded.tokens > 0)
    sums = {
        "usd": known * recorded.usd,
        "timed": known & (recorded.latency_s > 0),
        "latency": known * recorded.latency_s,
        "lengths": answered,
        "tokens": answered * recorded.tokens,
        "squares": answered * recorded.tokens.astype(np.float64) ** 2,
    }
    seen = {name: _windowed(array.astype(np.float64), window) for name, array in sums.items()}
    seen["n"], relative_accuracy, level = _accuracies(recorded, known, long_run, window)
    pairs, together, ahead = _pairs(recorded, known, window, every)
    size = len(recorded.names)
    focal = np.repeat(pairs.sum(axis=2) / max(size - 1, 1), every, axis=0)[: len(recorded)]
    relative_skill = relative_skills(together, ahead, long_run.offsets, long_run.strengths)
    relative_skill = np.repeat(relative_skill, every, axis=0)[: len(recorded)]
    counts = np.stack([seen[name] for name in ("n", "usd", "timed", "latency")], axis=-1)
    calls = call_means(long_run.usd, counts)
    rows = rows_of(calls, seen["n"], focal, relative_skill, relative_accuracy, level)
    departure = departures(relative_accuracy, long_run.offsets, long_run.strengths)
    return PriorStats(rows, departure, _lengths(recorded, seen), pairs, every)


def _accuracies(recorded: RecordedLog, known: Bools, long_run: LongRun, window: int) -> tuple[F64, F64, F64]:
    """Return the number of known outcomes, accuracy minus level, and the level, before each query.

    Returns:
        The number in the pool's window (T, N), accuracy minus level averaged over all windows (T, N), and the level in
        the pool's window (T,).
    """
    n, right = known.astype(np.float64), (known * recorded.value).astype(np.float64)
    lengths = window_lengths(window)
    seen, sums = (np.stack([_windowed(each, length) for length in lengths], axis=1) for each in (n, right))
    relative, levels = relative_accuracies(seen, sums, long_run.offsets, long_run.strengths)
    losses = discounted_sums(log_losses(relative, levels, n, right), n.sum(axis=1))
    return seen[:, 0], averaged(relative, losses), levels[:, 0]


def expected(recorded: RecordedLog) -> Expectation:
    """Return the expected accuracy and cost of each endpoint, (T, N), from a memory of the earlier queries."""
    has_text = np.asarray(recorded.vectors.any(axis=1))
    known = (recorded.replied & has_text[:, None]).astype(np.float32)
    paid = relative_costs(np.where(known, recorded.value, np.nan), relative_usd(recorded))
    remembered = np.concatenate([known * recorded.value, known, paid], axis=1)
    size = len(recorded.names)
    sums, total = np.zeros((len(recorded), 3 * size), np.float32), np.zeros(len(recorded), np.float32)
    means = _mean_texts(recorded.vectors, has_text)
    for at, rows in zip(range(0, len(recorded), _BLOCK), _remembered(len(recorded)), strict=True):
        block = slice(at, at + _BLOCK)
        weights = kernel(cosines(recorded.vectors[block], recorded.vectors[rows], means[block]))
        weights *= has_text[rows] & (rows < np.arange(at, at + len(weights))[:, None])
        sums[block] = weights @ remembered[rows]
        total[block] = weights.sum(axis=1)
    strength = SHRINK * max(float(np.median(total)), 1e-6)
    before = (np.cumsum(remembered.astype(np.float64), axis=0) - remembered).astype(np.float32)
    (right, count, costs), (weighted, seen, dear) = (np.split(part, 3, axis=1) for part in (before, sums))
    estimate = shrunk(weighted, seen, overall_mean(right, count), strength)
    estimate -= estimate.mean(axis=1, keepdims=True)
    estimate[~has_text] = 0
    factors = cost_factors(dear, seen, costs, count, strength)
    return Expectation(estimate, np.where(has_text[:, None], factors, np.float32(1)))


def relative_usd(recorded: RecordedLog) -> F32:
    """Return each call's cost relative to the endpoint's mean, (T, N); NaN if that is unknown or 0."""
    mean = (recorded.usd * recorded.there).sum(axis=0) / np.maximum(recorded.there.sum(axis=0), 1)
    return np.where(mean > 0, recorded.usd / np.maximum(mean, 1e-12), np.nan).astype(np.float32)


def _mean_texts(vectors: F32, has_text: Bools) -> F32:
    """Return the mean text before each query, (T, D), of a memory that never replaced any."""
    before = np.cumsum(vectors, axis=0, dtype=np.float64) - vectors
    count: I64 = np.cumsum(has_text) - has_text
    return mean_text(before, count)


def _remembered(size: int) -> Iterator[I64]:
    """Yield for each block of a log the rows that a memory may hold: the block's own, and those kept before it."""
    rng, rows = np.random.default_rng(0), np.arange(0)
    for at in range(0, size, _BLOCK):
        block = np.arange(at, min(at + _BLOCK, size))
        yield np.concatenate([rows, block])
        free = CAPACITY - len(rows)
        rows, later = np.concatenate([rows, block[:free]]), block[free:]
        rows[rng.integers(len(rows), size=len(later))] = later


def log_masses(recorded: RecordedLog) -> F64:
    """Return the centred logs of the masses, (T, N, K), see `centred_log_mass`; 0 where unknown."""
    if recorded.mass is None:
        return np.zeros((*recorded.there.shape, recorded.worth.shape[1]))
    return centred_log_mass(recorded.mass, recorded.size)


def _totals(recorded: RecordedLog) -> Totals:
    """Return each query's own calibration totals, (T, ...)."""
    logs = log_masses(recorded)[..., :MOST_CHOICES]
    labelled = recorded.closed & (recorded.size <= MOST_CHOICES) & ((recorded.worth == 1).sum(axis=1) == 1)
    given = recorded.usable & labelled[:, None]
    if recorded.mass is not None:
        given &= ~np.isnan(recorded.mass[:, :, 0])
    return totals_of(logs, given, recorded.worth.argmax(axis=1), recorded.size)


def calibration(recorded: RecordedLog) -> Corrections | None:
    """Return the calibration before each query, (T, ...), as if all had been asked; None without probabilities."""
    if recorded.mass is None:
        return None
    added = _totals(recorded)
    shared = _before(added)
    own = Totals(np.zeros_like(shared.sums), np.zeros_like(shared.squares))
    for task in _tasks(recorded):
        rows = recorded.tasks == task
        before = _before(Totals(added.sums[rows], added.squares[rows]))
        own.sums[rows], own.squares[rows] = before.sums, before.squares
    return corrections_of(own, shared)


def calibration_totals(recorded: RecordedLog) -> dict[str | None, Totals]:
    """Return the calibration totals after the whole log, by task (None: all tasks); empty without probabilities."""
    if recorded.mass is None:
        return {}
    added = _totals(recorded)
    found: dict[str | None, Totals] = {None: Totals(added.sums.sum(axis=0), added.squares.sum(axis=0))}
    for task in _tasks(recorded):
        rows = recorded.tasks == task
        found[task] = Totals(added.sums[rows].sum(axis=0), added.squares[rows].sum(axis=0))
    return found


def confusion(recorded: RecordedLog) -> dict[ChoiceSet, ChoiceCounts]:
    """Return the counts of the choices that at least ten labelled queries of the log have in common."""
    if recorded.choices is None:
        return {}
    tasks = [None] * len(recorded) if recorded.tasks is None else [task or None for task in recorded.tasks.tolist()]
    known = np.flatnonzero(recorded.closed & ((recorded.worth == 1).sum(axis=1) == 1)).tolist()
    choices = recorded.choices.tolist()
    sets = {row: (tasks[row], frozenset(choices[row])) for row in known}
    often = Counter(sets.values())
    stats = ConfusionStats(len(recorded.names), kept=0)
    for row, choice_set in sets.items():
        if often[choice_set] >= _RECURS:
            votes = {i: given for i, given in enumerate(recorded.candidate[row].tolist()) if given >= 0}
            stats.add(str(row), Labelled(tasks[row], choices[row], int(recorded.worth[row].argmax())), votes)
    return dict(stats.sets)


def _tasks(recorded: RecordedLog) -> list[str]:
    return [] if recorded.tasks is None else np.unique(recorded.tasks[recorded.tasks != ""]).tolist()


def _before(added: Totals) -> Totals:
    """Return the sums over all rows before each."""
    return Totals(*(np.cumsum(array, axis=0) - array for array in (added.sums, added.squares)))


def _windowed(array: F64, window: int) -> F64:
    """Return the sums over the ``window`` rows before each."""
    total = np.concatenate([np.zeros_like(array[:1]), np.cumsum(array, axis=0)])
    at = np.arange(len(array))
    sums: F64 = total[at] - total[np.maximum(at - window, 0)]
    return sums


def _lengths(recorded: RecordedLog, seen: dict[str, F64]) -> F32:
    mean, deviation = length_moments(seen["lengths"], seen["tokens"], seen["squares"])
    length = standardised_length(recorded.tokens, mean, deviation)
    return np.where(recorded.tokens > 0, length, 0).clip(-4, 4).astype(np.float32)


def _pairs(recorded: RecordedLog, known: Bools, window: int, every: int) -> tuple[F32, F64, F64]:
    """Compute the statistics of pairs, renewed every few rows, from values of 0 and 1 only.

    Returns:
        The focal diversity (T', N, N), and for `relative_skills` the rows in common (T', N, N) and the wins (T', N).
    """
    sure = known & ((recorded.value == 0) | (recorded.value == 1))
    failed = sure & (recorded.value == 0)
    chunks = range(0, len(recorded), every)
    asked_too, failed_too = [], []
    for at in chunks:
        a, f = sure[at : at + every].astype(np.float32), failed[at : at + every].astype(np.float32)
        asked_too.append(np.stack([a.T @ a, f.T @ a]))
        failed_too.append(f.T @ f)
    back = max(window // every, 1)
    rows, fails = (_windowed(np.array(x, np.float64), back) for x in (asked_too, failed_too))
    together, alone = rows[:, 0], rows[:, 1]
    focal = pair_focal_diversity(together, alone, alone.swapaxes(1, 2), fails)
    same = np.arange(len(recorded.names))
    focal[:, same, same] = 0
    common = together.copy()
    common[:, same, same] = 0
    return focal.astype(np.float32), common, (alone.transpose(0, 2, 1) - alone).sum(axis=2)
