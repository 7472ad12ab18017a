"""Trains the Decider to look one step ahead, as a start for the policy gradient.

If a log has every endpoint's answer, it is known for any set of members what adding another would have changed. A
regression predicts that gain from the observation before asking. The resulting policy asks the endpoints whose expected
gain exceeds their cost: z_i = kappa (2 gain_i - lambda c_i / C), with the factor 2 as u is 1 or -1.

In round 1 the gain would be the endpoint's whole accuracy, so the pool's level is subtracted from it.

This policy is short-sighted (it ignores later rounds, and other endpoints asked in the same round), but its decisions
depend on the replies. Without this start, the policy gradient settles on one set for all queries, as asking after
round 1 does not pay until it happens on the right queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from focalroute.core.records import F32, I64, Bools
from focalroute.learn.adam import Adam, cosine_decay
from focalroute.learn.backend import Backend
from focalroute.learn.nets import DeciderNet, FusionNet, parameters, sharpened, zeroed
from focalroute.learn.offline.rollout import LogView, fused, members_of, observed
from focalroute.learn.offline.views import COST_WEIGHTS, Views
from focalroute.observe import layout
from focalroute.observe.pool_stats import COST_PENALTIES

_ENDPOINT, _CONTEXT = layout.slices(layout.ENDPOINT), layout.slices(layout.CONTEXT)
_UNIT = 0.25  # the net is fitted to gains in this unit
_KAPPA = 20.0  # logits per unit of reward
_ONE_AT_FIRST = 6.0  # subtracted from the logits of round 1, so that few more are picked than the one that must be


def gains(fusion: FusionNet, seen: LogView, first: Bools, later: Bools) -> tuple[F32, F32, Bools]:
    """Return what asking each endpoint next adds to the value of the answer, (B, N), in [-1, 1].

    Returns:
        The gains, and the posterior (B, K) and the candidates offered (B, K) before asking.
    """
    n = first.shape[1]
    usable = seen.recorded.usable
    none_yet: Bools = np.logical_not(((first | later) & usable).any(axis=1))
    # sets of members asked in round 1 and later, (B, N + 1, N): those asked so far, then with each endpoint added
    sets = [np.repeat((asked & usable)[:, None], n + 1, axis=1) for asked in (first, later)]
    one_more = np.eye(n, dtype=np.bool_)[None] & usable[:, None]
    sets[0][:, 1:] |= one_more & none_yet[:, None, None]
    sets[1][:, 1:] |= one_more & ~none_yet[:, None, None]
    sets[1] &= ~sets[0]
    posterior, offered = fused(fusion, seen, members_of(fusion, seen), *(asked.astype(np.float32) for asked in sets))
    worth = np.take_along_axis(seen.recorded.worth, posterior.argmax(axis=2), axis=1) * offered.any(axis=2)
    return worth[:, 1:] - worth[:, :1], posterior[:, 0], offered[:, 0]


def look_ahead(
    net: DeciderNet,
    fusion: FusionNet,
    logs: Sequence[tuple[Views, I64]],
    *,
    steps: int,
    rate: float,
    batch: int,
    rng: np.random.Generator,
    passes: Backend,
    advance: Callable[[int], object],
) -> DeciderNet:
    """Fit a net to the gains by least squares, and return the Decider that follows from them.

    Args:
        net: where to start; its use of the cost weight is replaced.
        fusion: the Fusion.
        logs: logs with the queries to learn from; each step draws a log at random.
        steps: of Adam, with a learning rate that falls along a cosine.
        rate: the learning rate at the start.
        batch: queries in a step.
        rng: the random generator.
        passes: the engine that runs the networks.
        advance: called with 1 after every step.
    """
    adam = Adam(parameters(net), learning_rate=rate, max_norm=1.0)
    for step in range(steps):
        views, rows = logs[int(rng.integers(len(logs)))]
        at = rng.choice(rows, min(batch, len(rows)), replace=False)
        seen = views.at(int(rng.integers(len(COST_WEIGHTS))), at)
        first, later, number = _draw_asked(seen, rng)
        gain, posterior, offered = gains(fusion, seen, first, later)
        context, endpoints = _observations(seen, first | later, number, posterior, offered)
        ids = np.broadcast_to(seen.ids, gain.shape)
        logits, vjp = passes.decider(net, context, endpoints, ids)
        target = (gain - (number == 0)[:, None] * (seen.level[:, None] + 1) / 2) / _UNIT
        free = seen.recorded.there & ~(first | later)
        d = np.where(free, logits - target, 0) / max(int(free.sum()), 1)
        adam.learning_rate = rate * min(1.0, (step + 1) / 10) * cosine_decay(step, steps)
        adam.step(vjp(d.astype(logits.dtype)))
        net = replace(net, **adam.parameters)
        advance(1)
    return _decider(net)


def _draw_asked(seen: LogView, rng: np.random.Generator) -> tuple[Bools, Bools, I64]:
    """Draw endpoints asked so far, as a policy might ask them.

    Returns:
        Those asked in round 1 and later, (B, N) each, mostly accurate ones; and the number of earlier rounds, (B,).
    """
    shape = seen.recorded.there.shape
    size = rng.choice((0, 1, 1, 2, 2, 3, 4), shape[0])
    skill = seen.columns[..., _ENDPOINT["relative_skill"].start] / 4
    score = skill + rng.gumbel(size=shape) * rng.choice((0.05, 0.2, 1.0)) - 1e3 * ~seen.recorded.there
    asked = ((-score).argsort(axis=1).argsort(axis=1) < size[:, None]) & seen.recorded.there
    later = asked & (rng.random(shape) < 0.4) & (size > 1)[:, None]
    number = np.where(size == 0, 0, 1 + (rng.random(shape[0]) < 0.4))
    return asked & ~later, later, number


def _observations(seen: LogView, asked: Bools, number: I64, posterior: F32, offered: Bools) -> tuple[F32, F32]:
    """Return the Decider's input, with 0 in all columns that depend on the cost weight."""
    b, n = asked.shape
    context = np.zeros((b, layout.width(layout.CONTEXT)), np.float32)
    endpoints = np.zeros((b, n, layout.width(layout.ENDPOINT)), np.float32)
    for k in np.unique(number).tolist():
        of = np.flatnonzero(number == k)
        replied = asked[of] & seen.recorded.usable[of]
        one = np.ones(b, np.float32)
        context[of], endpoints[of] = observed(seen, of, k, one, asked[of], replied, posterior[of], offered[of])
    context[:, _CONTEXT["cost_weight"]] = 0
    endpoints[..., COST_PENALTIES] = 0
    return context, endpoints


def _decider(net: DeciderNet) -> DeciderNet:
    """Turn the net for gains into a Decider; hidden weights of columns that were 0 in training are set to zero."""
    arrays = parameters(sharpened(net, 2 * _KAPPA * _UNIT))
    arrays["skip_endpoint"][_ENDPOINT["cost_penalty"].start] = -_KAPPA
    arrays["skip_context"][_CONTEXT["first"].start] -= _ONE_AT_FIRST
    arrays["hidden_context"] = zeroed(net.hidden_context, _CONTEXT["cost_weight"])
    arrays["hidden_endpoint"] = zeroed(net.hidden_endpoint, COST_PENALTIES)
    return replace(net, **arrays)
