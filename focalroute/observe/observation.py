"""The numbers that the policies see of an ask (see `focalroute.observe.layout`), as functions of arrays.

They take any leading shape (...,): none for an ask that is being served, whole logs in offline training. Letters as in
`focalroute.core.records`: N endpoints, K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import COST_WEIGHT_RANGE, F32, F64, I64, Bools
from focalroute.observe.calibration import LEAST_MASS, Corrections, likelihoods
from focalroute.observe.layout import CANDIDATE, MEMBER, slices, width

#: A free-form question counts as one of this many choices, however many answers were seen.
OPEN_CHOICES = 8

_AT = slices(MEMBER)
_VOTE, _PROBABILITY, _LOG_PROBABILITY, _EVIDENCE, _CALIBRATED = (
    _AT[name].start for name in ("vote", "probability", "log_probability", "evidence", "calibrated")
)
_HEAVIEST = 8.0  # bound of a vote's weight, reached only with more than 60 candidates
_SUREST = 80.0  # nats of evidence; the odds of more would overflow
_AS_CHEAP = 1.02  # times the least cost, up to which endpoints are equally cheap


# -- Observation.context ---------------------------------------------------------------------------------------------


def bounded_cost_weight(cost_weight: Any) -> Any:
    """The cost weight, lambda, within `COST_WEIGHT_RANGE`."""
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
    """The columns of `CONTEXT`, in its order; each a number, or an array of one shape, as the arguments are.

    Args:
        earlier_rounds: the round's number, from 0.
        log_cost_weight: log10 of the bounded cost weight.
        budget_left: share of the ask's cap that is left.
        pool: N.
        asked: endpoints asked so far; ``replied``: those with a usable reply.
        posterior: see `posterior_columns`.
        log_choices: ln(K); 0 for a free-form question.
        level: the column of this name, see `focalroute.observe.pool_stats.level_column`.
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
    """The columns "posterior", "margin" and "entropy" of a fused posterior p; numbers or arrays, as the arguments are.

    Args:
        largest: its four largest probabilities, falling.
        p_log_p: sum of p ln(p).
        log_candidates: ln of how many candidates there are, at least 2.
    """
    return (*largest, largest[0] - largest[1], -p_log_p / log_candidates)


# -- Observation.endpoints -------------------------------------------------------------------------------------------


def similar_column(similar: F32) -> F32:
    """The column "similar" of a memory's estimate, which is within 1 of 0 as a difference of accuracies."""
    return 4 * similar


def worth_alone(similar: F32, cost_weight: Any, shares: Any) -> F64:
    """How right each endpoint is expected to be on a text, minus what asking it costs: of one call, the best choice.

    Args:
        similar: (..., N) the column of this name.
        cost_weight: lambda, beyond `COST_WEIGHT_RANGE` as well; a number, or (..., 1).
        shares: (..., N) c / C, what a typical call costs, relative to asking all.
    """
    worth: F64 = similar.astype(np.float64) / 4 - cost_weight * shares
    return worth


def worth_cheapest(similar: F32, shares: Any) -> F64:
    """Likewise where only the cost counts, beyond all weights: of what costs as little as the least, who is right.

    Args:
        similar: (..., N) as above; ``shares`` likewise.
    """
    as_cheap = shares <= _AS_CHEAP * np.min(shares, axis=-1, keepdims=True)
    worth: F64 = np.where(as_cheap, similar.astype(np.float64) / 4, -2 - shares)
    return worth


def signal_column(signal: F64) -> F32:
    """The column "signal" (..., N) of `Corrections.signal`."""
    column: F32 = (signal - signal.mean(axis=-1, keepdims=True)).clip(-4, 4).astype(np.float32)
    return column


def agreement(candidate: Any, leader: Any) -> Any:
    """The column "agrees" of an endpoint that replied: 1 where it backs the leading candidate, else -1."""
    return 2 * (candidate == leader) - 1


def focal_column(asked: F32, number: Any, pairs: F32) -> NDArray[Any]:
    """The column "focal" (..., N) once endpoints are asked: mean focal diversity over pairs with the others asked.

    Args:
        asked: (..., N) 1 for those asked, else 0.
        number: how many these are, at least one; (..., 1).
        pairs: (..., N, N) focal diversity of pairs, 0 on the diagonal.
    """
    sums = (asked[..., None, :] @ pairs)[..., 0, :]
    column: NDArray[Any] = sums / np.maximum(number - asked, 1)
    return column


# -- Evidence --------------------------------------------------------------------------------------------------------


def vote_weights(accuracy: F64, choices: Any) -> F64:
    """The naive Bayes weight of a vote, ln((K - 1) a / (1 - a)); kept positive: a vote never repels.

    Args:
        accuracy: a, clipped to between guessing and 0.98; of any shape.
        choices: K; `OPEN_CHOICES` for a free-form question.
    """
    a = np.minimum(np.maximum(accuracy, 1 / choices + 0.02), 0.98)
    weights: F64 = np.minimum(np.log((choices - 1) * a / (1 - a)), _HEAVIEST)
    return weights


def odds_of(evidence: NDArray[Any]) -> NDArray[Any]:
    """How many times likelier candidates of this evidence are than one that no endpoint gave: e^s."""
    odds: NDArray[Any] = np.exp(np.minimum(evidence, _SUREST))
    return odds


def member_rows(weights: F64, relative_skill: F32, similar: Any, level: Any, length: Any) -> F32:
    """Rows of `MEMBER` as if asked in round 1, (2, ..., N, Fm): of candidates without a member's vote and with it.

    Args:
        weights: (..., N) of the votes.
        relative_skill: (..., N) the column of this name, and so the next ones.
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
    """Every candidate seen through every member by its vote, (..., K, N, Fm).

    Args:
        rows: (2, M, Fm), see `member_rows`.
        places: (..., K, N) which of the M is the member's row, and M more where it votes for the candidate.
    """
    features: F32 = rows.reshape(-1, rows.shape[-1]).take(places, axis=0)
    return features


def write_mass(features: F32, mass: NDArray[Any], least_mass: Any = LEAST_MASS, weights: F64 | None = None) -> None:
    """Write the columns of members that gave probabilities, in place.

    Args:
        features: (..., K, N, Fm), see `member_features`.
        mass: (..., N, K), NaN where a member gave none.
        least_mass: the least whose logarithm is taken; of any shape that goes with ``mass``.
        weights: (..., N) of the votes, if the mass is that of samples, each of which is a vote.
    """
    mass = np.minimum(np.maximum(mass, 0), 1).swapaxes(-1, -2)
    given = ~np.isnan(mass)
    features[..., _PROBABILITY] = np.where(given, mass, features[..., _PROBABILITY])
    logs = np.log(np.maximum(mass, np.swapaxes(least_mass, -1, -2) if np.ndim(least_mass) else least_mass)) / 8
    features[..., _LOG_PROBABILITY] = np.where(given, logs, 0)
    if weights is not None:
        features[..., _EVIDENCE] = np.where(given, mass * weights[..., None, :], features[..., _EVIDENCE])


def calibrate(features: F32, log_mass: F64, known: Corrections, given: Bools) -> None:
    """Let the probabilities of members speak, and their votes the less, in place.

    Args:
        features: (..., K, N, Fm), see `member_features`.
        log_mass: (..., N, K'), see `focalroute.observe.calibration.centred_log_mass`, for the first K' candidates.
        known: what is known of these members.
        given: (..., N) whether a member gave probabilities.
    """
    k = log_mass.shape[-1]
    means = known.means[..., :k]
    if means.shape[-1] < k:
        means = np.concatenate([means, np.zeros((*means.shape[:-1], k - means.shape[-1]))], axis=-1)
    ratios = likelihoods(log_mass, means, known.weights) * given[..., None]
    features[..., :k, :, _CALIBRATED] = ratios.swapaxes(-1, -2) * features[..., :k, :, 0]
    features[..., _EVIDENCE] *= 1 - (known.trust * given)[..., None, :]


def candidate_features(sums: F32, members: Any, log_offered: Any, replied: Any) -> F32:
    """The rows (..., K, Fc) of `CANDIDATE`.

    Args:
        sums: (..., K, 2) of the members' votes, and of their probabilities.
        members: how many answered, at least 1; a number, or (..., 1, 1).
        log_offered: ln of how many candidates there are; a number, or (..., 1), as is the next one.
        replied: share of the pool that answered.
    """
    features = np.empty((*sums.shape[:-1], width(CANDIDATE)), np.float32)
    features[..., :2] = sums / members
    features[..., 2] = log_offered / 4
    features[..., 3] = replied
    return features
