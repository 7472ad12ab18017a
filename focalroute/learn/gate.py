"""Whether a new policy may take over: what it would have been worth on episodes that it has not learned from."""

from __future__ import annotations

import numpy as np

from focalroute.learn.critic import values
from focalroute.learn.losses import unlikeliness
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import FusionNet, between, parameters
from focalroute.learn.offpolicy import (
    POINTS,
    corrections,
    effective_sample_size,
    interval,
    log_q,
    ratios,
    sampled_throughout,
    worth,
)
from focalroute.learn.trajectory import Batch, Fusions
from focalroute.learn.update_report import Comparison

#: Standard errors by which a Fusion must be better on held-out feedback.
LIKELY = 1.0
_SHARES = (1.0, 0.5, 0.25, 0.125)


def compare(old: Learner, new: Learner, held: Batch) -> Comparison:
    """Doubly robust, step by step (see `focalroute.learn.offpolicy.corrections`).

    V is the new critic's for both, so V(s_1) cancels, and the difference is taken episode by episode. The last step is
    the Fusion's: its reward is that of the candidate the policy would have answered with. Two that decide alike are as
    likely to have decided as it was, greedily or not: what they differ in is their answers to the same replies.
    """
    steps = held.steps
    whole = np.ones(len(steps.taken), np.bool_) if _decide_alike(old, new) else sampled_throughout(held)
    if not whole.any():
        return Comparison(0, 0.0, 0.0, 0.0, 0.0)
    value = values(new.critic, steps.states)
    u = worth(held.fusions, log_q(old.fusion, held.fusions))
    weights = [ratios(policy.decider, held.decisions, value.shape) for policy in (new, old)]
    totals = []
    for policy, ratio in zip((new, old), weights, strict=True):
        rewards = steps.rewards.astype(np.float64)
        answer = log_q(policy.fusion, held.fusions).argmax(axis=1)
        rewards[:, -1] = u[np.arange(len(u)), answer]
        totals.append(corrections(rewards, value, ratio, steps.taken))
    gain, low, high = interval(POINTS * (totals[0] - totals[1])[whole])
    return Comparison(int(whole.sum()), gain, low, high, effective_sample_size(weights[0][whole, -1]))


def supported(old: FusionNet, new: FusionNet, held: Fusions) -> FusionNet:
    """As far from the old Fusion towards the new one as held-out feedback says that it is better.

    Of the shares of the way that are likely better, the one that is best; the old one itself if none is. Better is the
    likelihood of the feedback, which tells much smaller steps apart than the share of right answers does: the Decider
    reads the posterior, and a Fusion that is a little too sure stops asking too soon.
    """
    losses = unlikeliness(log_q(old, held), held)
    best, found = 0.0, old
    for share in _SHARES:
        moved = between(old, new, share)
        gains = losses - unlikeliness(log_q(moved, held), held)
        gain, error = float(gains.mean()), float(gains.std()) / max(len(gains) - 1, 1) ** 0.5
        if gain > max(best, LIKELY * error):
            best, found = gain, moved
    return found


def _decide_alike(old: Learner, new: Learner) -> bool:
    """Whether the Decider is the same: where nothing was sampled, nothing of it is learned."""
    before, after = parameters(old.decider), parameters(new.decider)
    return all(np.array_equal(before[name], after[name]) for name in before)
