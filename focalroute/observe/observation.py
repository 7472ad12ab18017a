"""Computes the policies' input for an ask (see `focalroute.observe.layout`), as functions of arrays.

They take arrays of any leading shape (...,): none for an ask that is being served, whole logs in offline training.
Letters as in `focalroute.core.records`: N endpoints, K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import COST_WEIGHT_RANGE, F32, F64, I64, Bools
from focalroute.observe.calibration import LEAST_MASS, STRONGEST, Corrections, likelihoods
from focalroute.observe.layout import CANDIDATE, MEMBER, slices, width

#: A free-form question counts as one with this many choices, regardless of how many answers were given.
OPEN_CHOICES = 8

_AT = slices(MEMBER)
_VOTE, _PROBABILITY, _LOG_PROBABILITY, _EVIDENCE, _CALIBRATED = (
    _AT[name].start for name in ("vote", "probability", "log_probability", "evidence", "calibrated")
)
_MOST_WEIGHT = 8.0  # of a vote, reached only with more than 60 candidates
_MOST_EVIDENCE = 80.0  # nats, so that the odds do not overflow
_AS_CHEAP = 1.02  # endpoints up to this many times the least cost count as equally cheap


# -- Observation.context ---------------------------------------------------------------------------------------------


def bounded_cost_weight(cost_weight: Any) -> Any:
    """Return the cost weight, lambda, clipped to `COST_WEIGHT_RANGE`."""
    return np.minimum(np.maximum(cost_weight, COST_WEIGHT_RANGE[0]), COST_WEIGHT_RANGE[1])


def context_columns(
    *,
    earlier_rounds: int,
    log_cost_weight: Any,
    budget_left: Any,
    pool: int,
    asked: Any,
    replied: Any,
    posterior: Sequence[Any],
    log_choices: Any,
    level: Any,
) -> tuple[Any, ...]:
    """Return the columns of `CONTEXT`, in its order; numbers or arrays of one shape, as the arguments are.

    Args:
        earlier_rounds: the number of earlier rounds.
        log_cost_weight: log10 of the bounded cost weight.
        budget_left: share of the ask's cap that is left.
        pool: N.
        asked: endpoints asked so far; ``replied``: those with a usable reply.
        posterior: see `posterior_columns`.
        log_choices: ln(K); 0 for a free-form question.
        level: the column "level", see `focalroute.observe.pool_stats.level_column`.
    """
    return (
        earlier_rounds == 0,
        min(earlier_rounds / 4, 4.0),
        log_cost_weight,
        budget_left,
        math.log(pool) / 4,
        asked / pool,
        replied / pool,
        *posterior,
        log_choices / 4,
        level,
    )


def posterior_columns(largest: Sequence[Any], p_log_p: Any, log_candidates: Any) -> tuple[Any, ...]:
    """Return the columns "posterior", "margin" and "entropy" of a posterior p; numbers or arrays, as the arguments are.

    Args:
        largest: its four largest probabilities, falling.
        p_log_p: sum of p ln(p).
        log_candidates: ln of the number of candidates, at least ln(2).
    """
    return (*largest, largest[0] - largest[1], -p_log_p / log_candidates)


# -- Observation.endpoints -------------------------------------------------------------------------------------------


def similar_column(similar: F32) -> F32:
    """Return the column "similar" for a memory's estimate, a difference of accuracies in [-1, 1]."""
    return 4 * similar


def accuracy_alone(similar: F32, departure: F64) -> F64:
    """Return how accurate each endpoint is expected to be on a text if asked alone, (..., N), relative to the others.

    Half of the departure is added, as the memory of texts holds recent outcomes as well as old ones.

    Args:
        similar: (..., N) the column "similar".
        departure: (..., N) see `focalroute.observe.accuracy.departures`.
    """
    return similar.astype(np.float64) / 4 + departure / 2


def worth_cheapest(accuracy: F64, shares: Any) -> F64:
    """Return scores (..., N) that rank the cheapest endpoints by accuracy first, then the others by cost.

    Args:
        accuracy: (..., N) see `accuracy_alone`.
        shares: (..., N) c / C, the cost of a typical call relative to asking all.
    """
    as_cheap = shares <= _AS_CHEAP * np.min(shares, axis=-1, keepdims=True)
    return np.where(as_cheap, accuracy, -3 - shares)  # -3 is less than any relative accuracy


def signal_column(signal: F64) -> F32:
    """Return the column "signal" (..., N) from `Corrections.signal`."""
    column: F32 = (signal - signal.mean(axis=-1, keepdims=True)).clip(-4, 4).astype(np.float32)
    return column


def agreement(candidate: Any, leader: Any) -> Any:
    """Return the column "agrees" of an endpoint that replied: 1 if it backs the leading candidate, else -1."""
    return 2 * (candidate == leader) - 1


def focal_column(asked: F32, number: Any, pairs: F32) -> NDArray[Any]:
    """Return the column "focal" (..., N): each endpoint's mean focal diversity over its pairs with those asked.

    Args:
        asked: (..., N) 1 for those asked, else 0.
        number: (..., 1) how many were asked, at least 1.
        pairs: (..., N, N) focal diversity of pairs, 0 on the diagonal.
    """
    sums = (asked[..., None, :] @ pairs)[..., 0, :]
    column: NDArray[Any] = sums / np.maximum(number - asked, 1)
    return column


# -- Evidence --------------------------------------------------------------------------------------------------------


def vote_weights(accuracy: F64, choices: Any) -> F64:
    """Return the naive Bayes weight of a vote, ln((K - 1) a / (1 - a)).

    It is positive, so that a vote never counts against its candidate.

    Args:
        accuracy: a, clipped to between guessing + 0.02 and 0.98; of any shape.
        choices: K; `OPEN_CHOICES` for a free-form question.
    """
    a = np.minimum(np.maximum(accuracy, 1 / choices + 0.02), 0.98)
    weights: F64 = np.minimum(np.log((choices - 1) * a / (1 - a)), _MOST_WEIGHT)
    return weights


def odds_of(evidence: NDArray[Any]) -> NDArray[Any]:
    """Return the odds e^s of candidates with this evidence against an answer that no endpoint gave."""
    odds: NDArray[Any] = np.exp(np.minimum(evidence, _MOST_EVIDENCE))
    return odds


def member_rows(weights: F64, relative_skill: F32, similar: Any, level: Any, length: Any) -> F32:
    """Return two rows of `MEMBER` for each member, as if asked in round 1: without its vote and with it.

    Args:
        weights: (..., N) of the votes, see `vote_weights`.
        relative_skill: (..., N) the column of this name; likewise the next arguments, which broadcast.

    Returns:
        float32 (2, ..., N, Fm).
    """
    rows = np.zeros((2, *relative_skill.shape, width(MEMBER)), np.float32)
    for name, column in (
        ("present", 1),
        ("relative_skill", relative_skill),
        ("similar", similar),
        ("level", level),
        ("length", length),
    ):
        rows[..., _AT[name].start] = column
    rows[1, ..., _VOTE] = rows[1, ..., _PROBABILITY] = 1
    rows[1, ..., _EVIDENCE] = weights
    return rows


def member_features(rows: F32, places: I64) -> F32:
    """Return each member's row for each candidate, with or without its vote, (..., K, N, Fm).

    Args:
        rows: (2, M, Fm), see `member_rows`.
        places: (..., K, N) index of the member's row among the M, plus M where it votes for the candidate.
    """
    return rows.reshape(-1, rows.shape[-1]).take(places, axis=0)


def write_mass(features: F32, mass: NDArray[Any], least_mass: Any = LEAST_MASS, weights: F64 | None = None) -> None:
    """Write the columns of members that gave probabilities, in place.

    Args:
        features: (..., K, N, Fm), see `member_features`.
        mass: (..., N, K), NaN where a member gave none.
        least_mass: logarithms of smaller masses are taken of this; a number, or an array that broadcasts with ``mass``.
        weights: (..., N) of the votes, if the mass is a share of samples, each of which is a vote; else None.
    """
    mass = np.minimum(np.maximum(mass, 0), 1).swapaxes(-1, -2)
    if np.ndim(least_mass):
        least_mass = np.swapaxes(least_mass, -1, -2)
    given = ~np.isnan(mass)
    features[..., _PROBABILITY] = np.where(given, mass, features[..., _PROBABILITY])
    features[..., _LOG_PROBABILITY] = np.where(given, np.log(np.maximum(mass, least_mass)) / 8, 0)
    if weights is not None:
        features[..., _EVIDENCE] = np.where(given, mass * weights[..., None, :], features[..., _EVIDENCE])


def calibrate(features: F32, log_mass: F64, known: Corrections, given: Bools) -> None:
    """Write the column "calibrated" and scale down the votes of members that gave probabilities, in place.

    Args:
        features: (..., K, N, Fm), see `member_features`.
        log_mass: (..., N, K'), see `focalroute.observe.calibration.centred_log_mass`, for the first K' candidates.
        known: the corrections of these members.
        given: (..., N) whether a member gave probabilities.
    """
    k = log_mass.shape[-1]
    means = known.means[..., :k]
    if means.shape[-1] < k:
        means = np.concatenate([means, np.zeros((*means.shape[:-1], k - means.shape[-1]))], axis=-1)
    ratios = likelihoods(log_mass, means, known.weights) * given[..., None]
    features[..., :k, :, _CALIBRATED] = ratios.swapaxes(-1, -2) * features[..., :k, :, 0]
    features[..., _EVIDENCE] *= 1 - (known.trust * given)[..., None, :]


def weigh_choices(features: F32, log_ratios: F64, log_prior: F64) -> None:
    """Add to the column "calibrated" how endpoints confuse choices that recur, in place.

    Args:
        features: (K, m, Fm), see `member_features`.
        log_ratios: (m, K) `focalroute.observe.confusion.Confusion.votes` for the choice that each member gave.
        log_prior: (K,) `Confusion.prior`, of which each member adds an equal share.
    """
    added = log_ratios.T + log_prior[:, None] / len(log_ratios)
    features[..., _CALIBRATED] = (features[..., _CALIBRATED] + added).clip(-STRONGEST, STRONGEST)


def candidate_features(sums: F32, members: Any, log_offered: Any, replied: Any) -> F32:
    """Return the rows (..., K, Fc) of `CANDIDATE`.

    Args:
        sums: (..., K, 2) of the members' votes, and of their probabilities.
        members: how many replied, at least 1; a number, or (..., 1, 1).
        log_offered: ln of the number of candidates; a number, or (..., 1).
        replied: share of the pool that replied; a number, or (..., 1).
    """
    features = np.empty((*sums.shape[:-1], width(CANDIDATE)), np.float32)
    features[..., :2] = sums / members
    features[..., 2] = log_offered / 4
    features[..., 3] = replied
    return features
