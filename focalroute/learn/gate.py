"""Decides whether a new policy may take over: off-policy evaluation on episodes that it has not learned from.

rho_1:t is the product of an episode's ratios pi / mu up to decision t, mu the probability stored when it was decided.
The Fusion is deterministic: what it would have answered with is computed, not weighed. What another Fusion would have
shown the Decider between rounds is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.critic import values
from focalroute.learn.losses import likelihood, log_posterior, unlikeliness
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import DeciderNet, Floats, FusionNet, between, decider_pass, parameters
from focalroute.learn.trajectory import Batch, Bools, Decisions, Fusions
from focalroute.learn.update_report import Comparison

#: Points in one unit of u, which runs from -1 to 1: a point is 1 % of right answers.
POINTS = 50.0
_SURE = 1.96
F64 = NDArray[np.float64]
#: Standard errors by which a Fusion must be better on held-out feedback.
LIKELY = 1.0
_SHARES = (1.0, 0.5, 0.25, 0.125)


def sampled_throughout(batch: Batch) -> Bools:
    """(B,) the episodes whose every decision was sampled; greedy ones have no probability to weigh by."""
    sampled = np.bincount(batch.decisions.episode, minlength=len(batch.steps.taken))
    whole: Bools = sampled == batch.steps.taken.sum(axis=1) - 1
    return whole


def ratios(net: DeciderNet, decisions: Decisions, shape: tuple[int, ...]) -> F64:
    """rho_1:t (B, T); the last column, the Fusion's, is that of all decisions."""
    logits, _ = decider_pass(net, decisions.context, decisions.endpoints, decisions.ids)
    log_ratio = np.zeros(shape)
    log_ratio[decisions.episode, decisions.step] = likelihood(logits, decisions.heads).log_pi - decisions.log_mu
    found: F64 = np.exp(np.cumsum(log_ratio, axis=1))
    return found


def corrections(rewards: Floats, value: Floats, ratio: F64, taken: Bools) -> F64:
    """sum over t of rho_1:t (r_t + V(s_{t+1}) - V(s_t)), (B,): what doubly robust estimation adds to V(s_1).

    Jiang & Li 2016 (arXiv 1511.03722) with Q(s, a) taken to be V(s). V(s_1) plus this has the policy's value as its
    mean whatever V, as long as V was not fitted on the same episodes, and the less variance the better V.

    Args:
        rewards: (B, T).
        value: (B, T) V(s_t); what stands at padding does not matter.
        ratio: (B, T) rho_1:t.
        taken: (B, T) a step, not padding.
    """
    value = np.where(taken, value, 0).astype(np.float64)
    after = np.concatenate([value[:, 1:], np.zeros_like(value[:, :1])], axis=1)
    total: F64 = np.where(taken, ratio * (rewards + after - value), 0).sum(axis=1)
    return total


def log_q(net: FusionNet, fusions: Fusions) -> F64:
    """The posterior over the candidates in log, (B, K)."""
    return log_posterior(net.forward(fusions.members, fusions.candidates, fusions.ids), fusions.offered)


def worth(fusions: Fusions, log_q: Floats) -> F64:
    """u (B, K), had this candidate been the answer.

    Exact with a label. From a bare reward on answer a the others are right with probability
    (1 - y) q(c) / (1 - q(a)), y = (u + 1) / 2: exact too after a full 1, and of two choices. An answer that was written
    from the candidates does not depend on which of them the Fusion prefers.

    Args:
        fusions: the Fusion steps.
        log_q: (B, K) of the policy that answered, or of one close to it.
    """
    q, each = np.exp(log_q), np.arange(len(log_q))
    y = (fusions.reward.astype(np.float64) + 1) / 2
    rest = np.maximum(1 - q[each, fusions.answered], 1e-9)
    right = ((1 - y) / rest)[:, None] * q
    right[each, fusions.answered] = y
    exact = np.arange(q.shape[1]) == fusions.right[:, None]
    found: F64 = 2 * np.where(fusions.labelled[:, None], exact, np.minimum(right, 1)) - 1
    written = fusions.answered < 0
    found[written] = fusions.reward[written, None]
    return found


def effective_sample_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2: how many episodes of the policy's own these are worth."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def interval(values: Floats) -> tuple[float, float, float]:
    """The mean of one value an episode, and the ends of its 95 % interval.

    By the normal approximation: each decision was sampled by itself, so what weighing adds is independent from episode
    to episode.
    """
    mean, half = float(values.mean()), _SURE * float(values.std()) / max(len(values) - 1, 1) ** 0.5
    return mean, mean - half, mean + half


def compare(old: Learner, new: Learner, held: Batch) -> Comparison:
    """Doubly robust, step by step (see `corrections`).

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
