"""Off-policy evaluation: estimates the value of two policies from the stored answers of other policies.

The value is that of a policy which serves with exploration, on queries like the stored ones, with the records of the
endpoints at that time. An episode is the decisions of one answer. mu is the probability with which a decision was
sampled (its propensity, which is stored), pi that by the evaluated policy. rho_1:t is the product of an episode's
ratios pi / mu up to decision t.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.core.records import F64, Bools, Feedback
from focalroute.core.spelling import counted
from focalroute.evaluate import output
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.gate import POINTS, log_q, worth
from focalroute.learn.losses import likelihood
from focalroute.learn.nets import DeciderNet, Floats, decider_pass
from focalroute.learn.reward import SEVERAL_RIGHT
from focalroute.learn.trajectory import (
    Batch,
    Costs,
    Decisions,
    Episode,
    StepBatch,
    batch,
    episode,
    rewarded,
    vocabulary,
)
from focalroute.policy.bundle import Policy
from focalroute.policy.references import load_reference
from focalroute.store import display_name, open_store, require_existing
from focalroute.store.base import StoredAnswer

#: The quantities to estimate: accuracy in points (100 (u + 1) / 2), cost in units of asking every endpoint once, and
#: the reward u - lambda cost in points, with the lambda that each decision saw.
MEASURES = ("accuracy", "cost", "reward")
#: The estimators. "ips": inverse propensity scoring, which weights episodes by their ratio rho; "self-normalised": the
#: same divided by the mean ratio; "doubly-robust": with a fitted value function V as control variate at each decision.
ESTIMATORS = ("ips", "self-normalised", "doubly-robust")
#: A mean ratio further than this from 1 is insufficient evidence: the policy's actions are too rare, or too frequent,
#: in the stored answers.
UNTRIED = 0.05

#: Parts for cross-fitting: an episode's V is fitted on the other parts.
PARTS = 5
#: An effective sample size below this is insufficient evidence.
ENOUGH = 50.0

_Z = 1.96  # of a 95 % interval
_RIDGE = 10.0  # penalty; acts like this many episodes in which no feature has an effect


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval (normal approximation over episodes)."""

    value: float
    low: float
    high: float


#: Measure -> estimator -> estimate.
Estimates = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """The estimates for one policy.

    Attributes:
        effective_sample_size: (sum rho)^2 / sum rho^2 over episodes: how many of the policy's own answers the stored
            answers are worth.
        mean_ratio: the mean of rho, whose expectation is 1. If it is far from 1, the policy's actions were hardly ever
            tried. The effective sample size does not show that, as actions never taken have no ratio.
        changed: number of answers that the policy's Fusion would have replaced by others.
        guessed: number of those whose worth is uncertain, as the feedback (a reward or a preference without a label)
            does not tell whether they are right.
        estimates: measure -> estimator -> value; None for insufficient evidence: the effective sample size is below
            `ENOUGH`, or the mean ratio further from 1 than `UNTRIED`.
    """

    effective_sample_size: float
    mean_ratio: float
    changed: int
    guessed: int
    estimates: Estimates | None

    @property
    def enough(self) -> bool:
        """Whether there is sufficient evidence."""
        return self.estimates is not None


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Two policies on the same stored answers.

    Attributes:
        rewarded: number of answers of a policy that have feedback.
        episodes: number of answers used: all their decisions were sampled, with the current layout of observations.
        greedy: number of answers left out because a decision was not sampled and so has no propensity.
        unread: number of answers left out because another version of this package observed them in another layout.
        labelled: number of answers used whose right answer is known.
        a: the first policy.
        b: the second.
        difference: b minus a, paired; None if either has insufficient evidence.
    """

    rewarded: int
    episodes: int
    greedy: int
    unread: int
    labelled: int
    a: PolicyValue
    b: PolicyValue
    difference: Estimates | None


def compare_policies(
    answers: Iterable[tuple[StoredAnswer, Sequence[Feedback]]], a: Policy, b: Policy, *, seed: int = 0
) -> PolicyComparison:
    """Estimate the values of two policies, and their difference, from stored answers with feedback.

    Args:
        answers: answers of any policies with their feedback, as from `Store.recent`.
        a: a policy.
        b: another one.
        seed: the seed of the split for cross-fitting.

    Raises:
        ConfigError: both are the same policy, or no answer can be used.
        PolicyError: a policy is not one that this package wrote.
    """
    if (a.decider_onnx, a.fusion_onnx, a.names) == (b.decider_onnx, b.fusion_onnx, b.names):
        raise ConfigError("policies: both are the same; give two that differ")
    with_feedback = rewarded(answers)
    if not with_feedback:
        raise ConfigError("no stored answer has a policy and feedback; ask, give feedback, then compare")
    costs = Costs.of(answer for answer, *_ in with_feedback)
    readable, sampled = 0, []
    for answer, feedback, weight in with_feedback:
        one = episode(answer, feedback, costs, weight)
        if one is None:
            continue
        readable += 1
        if all(step.log_mu is not None for _, step in one.trajectory.decisions):
            sampled.append((answer, feedback, one))
    unread = len(with_feedback) - readable
    if not sampled:
        raise ConfigError(
            f"none of the {len(with_feedback)} rewarded answers can be used: {readable} were decided greedily "
            f"(explore=False), {unread} have another version's layout; serve with exploration, then compare"
        )
    log = _Log.of(sampled, seed)
    (value_a, by_episode_a), (value_b, by_episode_b) = _evaluate(log, a), _evaluate(log, b)
    difference = None
    if value_a.enough and value_b.enough:
        difference = _estimates(by_episode_b - by_episode_a)
    return PolicyComparison(
        rewarded=len(with_feedback),
        episodes=len(sampled),
        greedy=readable - len(sampled),
        unread=unread,
        labelled=int(log.batch.fusions.labelled.sum()),
        a=value_a,
        b=value_b,
        difference=difference,
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """The episodes as arrays (letters as in `focalroute.learn.trajectory`).

    Attributes:
        batch: the episodes as learning reads them.
        names: the endpoints, in the order of the batch's ids.
        shares: (B, T) c_k / C, each decision's share of the cost of asking every endpoint.
        worth: (B, K) what u would be if this candidate were the answer.
        known: (B, K) whether that is known for certain.
        part: (B,) the part for cross-fitting that the episode is in.
        weight: (B,) see `focalroute.learn.trajectory.feedback_weights`; mean 1.
    """

    batch: Batch
    names: tuple[str, ...]
    shares: F64
    worth: F64
    known: NDArray[np.bool_]
    part: NDArray[np.int64]
    weight: F64

    @classmethod
    def of(cls, sampled: Sequence[tuple[StoredAnswer, Feedback, Episode]], seed: int) -> _Log:
        episodes = [one for *_, one in sampled]
        names = vocabulary((), episodes)
        made = batch(episodes, names)
        shares = np.zeros_like(made.steps.rewards, np.float64)
        posterior = np.zeros_like(made.fusions.offered, np.float64)
        for row, (answer, _, one) in enumerate(sampled):
            shares[row, shares.shape[1] - 1 - len(one.shares) : -1] = one.shares
            known = answer.probabilities[: posterior.shape[1]]
            posterior[row, : len(known)] = known
        weight = np.array([one.weight for one in episodes])
        fusions = made.fusions
        answered = np.arange(posterior.shape[1]) == fusions.answered[:, None]
        answered |= fusions.answered[:, None] < 0  # synthesised from the replies, whichever the Fusion prefers
        two_choices = np.array([answer.kind == "choice" and len(answer.keys) == 2 for answer, *_ in sampled])
        one_right = np.array(
            [feedback.preference is None and answer.kind not in SEVERAL_RIGHT for answer, feedback, _ in sampled]
        )
        # If exactly one candidate is right, these rewards tell which: 1, and -1 where there are only two choices.
        all_known = fusions.labelled | one_right & ((fusions.reward == 1) | (two_choices & (fusions.reward == -1)))
        return cls(
            batch=made,
            names=names,
            shares=shares,
            worth=worth(fusions, np.log(np.maximum(posterior, 1e-12))),
            known=answered | all_known[:, None],
            part=np.random.default_rng(seed).permutation(len(episodes)) % PARTS,
            weight=weight / weight.mean(),
        )


def _evaluate(log: _Log, policy: Policy) -> tuple[PolicyValue, F64]:
    """Evaluate one policy; also return (estimator, measure, B) values whose means over episodes are its estimates."""
    steps, fusions = log.batch.steps, log.batch.fusions
    rows = np.concatenate([[0], policy.ids(log.names)])  # maps the batch's ids to the policy's own
    decisions = replace(log.batch.decisions, ids=rows[log.batch.decisions.ids])
    ratio = ratios(decider_net(policy.decider_onnx), decisions, steps.taken.shape)
    answer = log_q(fusion_net(policy.fusion_onnx), replace(fusions, ids=rows[fusions.ids])).argmax(axis=1)
    each, weight = np.arange(len(answer)), log.weight * ratio[:, -1]
    size, mean = effective_sample_size(weight), float(weight.mean())
    rewards = _rewards(log, log.worth[each, answer])
    total = rewards.sum(axis=2)
    values = np.stack(
        [weight * total, _self_normalised(total, weight), log.weight * _doubly_robust(log, rewards, ratio)]
    )
    estimates = None
    if size >= ENOUGH and abs(mean - 1) <= UNTRIED:
        estimates = _estimates(values)
    value = PolicyValue(
        effective_sample_size=size,
        mean_ratio=mean,
        changed=int(((answer != fusions.answered) & (fusions.answered >= 0)).sum()),
        guessed=int((~log.known[each, answer]).sum()),
        estimates=estimates,
    )
    return value, values


def _rewards(log: _Log, u: F64) -> F64:
    """Return each step's reward in each measure, (measure, B, T), for answers worth ``u`` (B,)."""
    right = np.zeros_like(log.shares)
    right[:, -1] = POINTS * (u + 1)
    paid = POINTS * log.batch.steps.rewards.astype(np.float64)  # -lambda c_k / C at the Decider's steps
    paid[:, -1] = 0
    return np.stack([right, log.shares, right + paid])


def _self_normalised(total: F64, weight: F64) -> F64:
    """Return values with mean sum(rho G) / sum(rho), linearised so that the interval of their mean is right for it.

    Args:
        total: (measure, B) the episodes' returns G.
        weight: (B,) their ratios rho, times their feedback weight.
    """
    value = (total @ weight / weight.sum())[:, None]
    linear: F64 = value + weight / weight.mean() * (total - value)
    return linear


def _doubly_robust(log: _Log, rewards: F64, ratio: F64) -> F64:
    """Return V(s_1) plus its `corrections`, (measure, B)."""
    steps = log.batch.steps
    value = cross_fitted(steps, rewards, ratio, log.part)
    first = steps.taken.argmax(axis=1)
    start = value[:, np.arange(len(first)), first]
    added = np.stack([corrections(r, v, ratio, steps.taken) for r, v in zip(rewards, value, strict=True)])
    return start + added


def _estimates(values: F64) -> Estimates:
    """Average values (estimator, measure, B) over episodes."""
    return {
        measure: {how: estimated(values[e, m]) for e, how in enumerate(ESTIMATORS)}
        for m, measure in enumerate(MEASURES)
    }


def ratios(net: DeciderNet, decisions: Decisions, shape: tuple[int, ...]) -> F64:
    """Return rho_1:t, (B, T); the last column, which belongs to the Fusion, covers all decisions."""
    logits, _ = decider_pass(net, decisions.context, decisions.endpoints, decisions.ids)
    log_ratio = np.zeros(shape)
    log_ratio[decisions.episode, decisions.step] = likelihood(logits, decisions.heads).log_pi - decisions.log_mu
    return np.exp(np.cumsum(log_ratio, axis=1))


def corrections(rewards: Floats, value: Floats, ratio: F64, taken: Bools) -> F64:
    """Return what doubly robust estimation adds to V(s_1): sum_t rho_1:t (r_t + V(s_{t+1}) - V(s_t)), (B,).

    From Jiang & Li 2016 (arXiv 1511.03722), with V(s) in place of Q(s, a). If V was not fitted on the same episodes,
    V(s_1) plus this is unbiased for any V, and a better V reduces its variance.

    Args:
        rewards: (B, T).
        value: (B, T) V(s_t); values at padding are ignored.
        ratio: (B, T) rho_1:t.
        taken: (B, T) whether it is a step, not padding.
    """
    value = np.where(taken, value, 0).astype(np.float64)
    after = np.concatenate([value[:, 1:], np.zeros_like(value[:, :1])], axis=1)
    total: F64 = np.where(taken, ratio * (rewards + after - value), 0).sum(axis=1)
    return total


def effective_sample_size(weights: Floats) -> float:
    """Return (sum w)^2 / sum w^2: how many of the policy's own episodes these weighted ones are worth."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def estimated(values: Floats) -> Estimate:
    """Return the mean over episodes, with its 95 % interval by the normal approximation.

    Decisions were sampled independently, so the weights are independent across episodes.
    """
    mean, half = float(values.mean()), _Z * float(values.std()) / max(len(values) - 1, 1) ** 0.5
    return Estimate(mean, mean - half, mean + half)


def cross_fitted(steps: StepBatch, rewards: F64, ratio: F64, part: NDArray[np.int64]) -> F64:
    """Return V at every step, (measure, B, T), each fitted on the episodes of the other parts.

    V is a linear function for each kind of step: the first decision, later decisions, the Fusion. It is fitted by ridge
    regression on the returns after a step, weighted by the ratios of the decisions from there on, so V is that of the
    evaluated policy. An error of V costs precision, not correctness, so this closed-form fit suffices. Values at
    padding are meaningless.

    Args:
        steps: the observed states.
        rewards: (measure, B, T).
        ratio: (B, T) rho_1:t.
        part: (B,) in 0..`PARTS` - 1.
    """
    returns = np.cumsum(rewards[:, :, ::-1], axis=2)[:, :, ::-1]
    before = np.concatenate([np.ones_like(ratio[:, :1]), ratio[:, :-1]], axis=1)
    weights = ratio[:, -1:] / before
    value = np.zeros_like(rewards)
    for kind in _kinds(steps.taken):
        for number in range(PARTS):
            own = kind & (part == number)[:, None]
            rest = kind & (part != number)[:, None]
            if own.any() and rest.any():
                value[:, own] = _fitted(
                    steps.states[rest].astype(np.float64), returns[:, rest], weights[rest], steps.states[own]
                )
    return value


def _kinds(taken: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    """Return the masks of first decisions, later decisions and Fusion steps, (B, T) each."""
    fusion = np.zeros_like(taken)
    fusion[:, -1] = True
    first = taken & (np.cumsum(taken, axis=1) == 1) & ~fusion
    return first, taken & ~first & ~fusion, fusion


def _fitted(states: F64, returns: F64, weights: F64, wanted: NDArray[np.float32]) -> F64:
    """Fit ``returns`` (measure, n) to ``states`` (n, Ds) by weighted ridge regression; predict at ``wanted`` states."""
    weights = weights / weights.mean()
    total = weights.sum()
    centre, level = weights @ states / total, returns @ weights / total
    x = (states - centre) * weights[:, None]
    gram = x.T @ (states - centre) + _RIDGE * np.eye(states.shape[1])
    slopes = np.linalg.solve(gram, x.T @ (returns - level[:, None]).T)
    found: F64 = ((wanted - centre) @ slopes + level).T
    return found


_TITLES = {"accuracy": "accuracy, points", "cost": "cost, % of asking all", "reward": "reward, points"}
_UNITS = {"accuracy": 1.0, "cost": 100.0, "reward": 1.0}


def compare_command(a: str, b: str, store: str, *, seed: int = 0, as_json: bool = False) -> None:
    """Compare two policies (see `focalroute.cli.policy.describe`) on a store's answers, and print the estimates.

    Raises:
        ConfigError: a policy or the store does not exist, both policies are the same, or no answer can be used.
        PolicyError: a policy does not pass its checks.
        StoreError: the store cannot be read.
    """
    first, second = load_reference(a), load_reference(b)
    with closing(open_store(require_existing(store))) as opened:
        found = compare_policies(opened.recent(output.LATEST), first, second, seed=seed)
    names = {"a": f"{a} (version {first.version})", "b": f"{b} (version {second.version})"}
    if as_json:
        head = {"store": display_name(store), "seed": seed, "policies": names, "verdict": _verdict(found)}
        print(json.dumps({**head, **dataclasses.asdict(found)}, indent=2, allow_nan=False))
    else:
        _show(display_name(store), names, found)


def _show(store: str, names: dict[str, str], found: PolicyComparison) -> None:
    print(f"{store}: {found.episodes} of {found.rewarded} rewarded answers, {found.labelled} with a label")
    for key, value in (("a", found.a), ("b", found.b)):
        print(f"{key.upper()}: {names[key]}; {_evidence(value, found.episodes)}")
    if found.a.enough or found.b.enough:
        _show_estimates((found.a.estimates, found.b.estimates, found.difference))
    print(_verdict(found))
    for note in _notes(found):
        print(f"note: {note}")


def _show_estimates(columns: Sequence[Estimates | None]) -> None:
    rows = []
    for measure in MEASURES:
        title = _TITLES[measure]
        for how in ESTIMATORS:
            rows.append((title, how, *(_cell(part, measure, how) for part in columns)))
            title = ""
    output.show_table(("", "", "A", "B", "B minus A"), rows)


def _evidence(value: PolicyValue, episodes: int) -> str:
    text = f"effective sample size {value.effective_sample_size:.0f} of {episodes}, mean ratio {value.mean_ratio:.2f}"
    if not value.enough:
        text += ": insufficient evidence"
    return text


def _cell(part: Estimates | None, measure: str, how: str) -> str:
    if part is None:
        return "-"
    one, unit = part[measure][how], _UNITS[measure]
    return f"{one.value * unit:.2f} ({one.low * unit:.2f} to {one.high * unit:.2f})"


def _verdict(found: PolicyComparison) -> str:
    """Say which policy is better, by the doubly robust estimate of the reward."""
    if found.difference is None:
        lacking = [name for name, value in (("A", found.a), ("B", found.b)) if not value.enough]
        return (
            f"insufficient evidence on {' and '.join(lacking)}: the effective sample size is below {ENOUGH:.0f}, or "
            f"the mean ratio further from 1 than {UNTRIED:g}; gather more answers, or serve with more exploration"
        )
    gain = found.difference["reward"]["doubly-robust"]
    surely = "neither surely better nor worse"
    if gain.low > 0:
        surely = "surely better"
    elif gain.high < 0:
        surely = "surely worse"
    return f"B is {surely} than A: {gain.value:+.2f} points of reward ({gain.low:+.2f} to {gain.high:+.2f})"


def _notes(found: PolicyComparison) -> list[str]:
    notes = []
    if found.greedy:
        notes.append(
            f"{counted(found.greedy, 'answer')} left out: decided greedily, so no probability of the decision is stored"
        )
    if found.unread:
        notes.append(
            f"{counted(found.unread, 'answer')} left out: another version of focalroute stored them in another layout"
        )
    for name, value in (("A", found.a), ("B", found.b)):
        if value.changed:
            guessed = ""
            if value.guessed:
                guessed = f" ({value.guessed} of uncertain worth, without a label)"
            notes.append(
                f"{name}'s Fusion would have given {counted(value.changed, 'other answer')}{guessed}; its effect on "
                "decisions between rounds is not taken into account"
            )
    return notes
