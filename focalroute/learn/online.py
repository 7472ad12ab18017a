"""Learns online (the paper's Algorithm 2): a challenger from the store, and the next policy from a challenger.

It runs on any thread or in its own process, never on the event loop. Read `_update` from top to bottom.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from focalroute.core.errors import PolicyError
from focalroute.learn.adam import Moments
from focalroute.learn.export import decider_model, decider_net, fusion_model, fusion_net
from focalroute.learn.gate import Nets
from focalroute.learn.mappo import Hyperparameters, Learner, best_supported, update
from focalroute.learn.nets import CriticNet, DeciderNet, Floats, FusionNet, parameters, restored
from focalroute.learn.trajectory import Costs, Episode, batch, episode, grown, rewarded, vocabulary
from focalroute.learn.trial import Counted, Trial, read_trial, verdict, with_new_evidence, write_trial
from focalroute.learn.update_report import REACH, WINDOW, Comparison, UpdateReport
from focalroute.policy import bundle
from focalroute.policy.publish import end_trial, make_current, publish, updating
from focalroute.policy.slot import CHALLENGER_SHARE
from focalroute.store.base import Store

#: The least number of answers with feedback to learn a challenger from.
LEAST = 100
#: For the shipped policy, whose Fusion does not know this pool yet but whose Decider was trained for any pool.
STARTING = Hyperparameters(decider_rate=5e-4, target_kl=0.005)
#: For a policy trained on recorded answers: these say much more than the thousand answers of an update.
REFINING = replace(STARTING, fusion_rate=1.5e-3)

_HELD_OUT = 5  # one episode in five is held out, to choose how far the Fusion moves

_log = logging.getLogger("focalroute")


def update_policy(
    store: Store,
    root: str | Path,
    *,
    settings: Hyperparameters | None = None,
    seed: int | None = None,
    share: float = CHALLENGER_SHARE,
) -> UpdateReport:
    """Judge the challenger on new answers in the store; if there is none, learn one and put it on trial.

    Args:
        store: where answers and their feedback are.
        root: the folder of bundles; an empty one gets the shipped policy first.
        settings: how to learn; None: `REFINING` for a policy with experience, else `STARTING`.
        seed: for the split and the minibatches; None: random. The same seed, store and folder give the same weights.
        share: share of the asks that a challenger decides; 0: it does not serve during its trial.

    Raises:
        PolicyError: the current bundle fails a check, or the folder cannot be written.
        StoreError: the store cannot be read.
    """
    with updating(Path(root)), threadpool_limits(1, "blas"):  # two threads on matrices this small take twice as long
        return _update(store, root, settings, seed, share)


def _update(
    store: Store, root: str | Path, settings: Hyperparameters | None, seed: int | None, share: float
) -> UpdateReport:
    """Do one of three: return to the previous version, judge the challenger, or learn a new one."""
    policy = bundle.load(root) if bundle.versions(root) else bundle.cold()
    rows = rewarded(store.recent(REACH))
    costs = Costs.of(row.answer for row in rows[-WINDOW:])
    made = (episode(row.answer, row.feedback, costs, row.weight) for row in rows)
    episodes = [one for one in made if one is not None]
    trial = read_trial(root, policy.version, bundle.challenger(root))

    if trial.parent in bundle.versions(root):
        trial, rolled_back = _compare_with_parent(root, policy, trial, episodes)
        if rolled_back is not None:
            return rolled_back
    if trial.challenger is not None:
        return _judge_challenger(root, policy, trial, trial.challenger, episodes, share)
    return _learn_challenger(root, policy, trial, episodes, settings, seed, costs, share)


def _compare_with_parent(
    root: str | Path, policy: bundle.Policy, trial: Trial, episodes: Sequence[Episode]
) -> tuple[Trial, UpdateReport | None]:
    """Roll back to the previous version if it is better with 95 % confidence; stop comparing once that is unlikely.

    Returns:
        The trial, and the report of the rollback, if there was one.
    """
    try:
        before = bundle.load(root, trial.parent)
    except PolicyError as error:
        _log.warning("version %d is no longer compared with its predecessor: %s", policy.version, error)
        return replace(trial, parent=None), None
    trial = with_new_evidence(trial, _nets(policy), _nets(before), episodes)
    outcome, found = verdict(trial.watched)
    if outcome != "better":
        trial = replace(trial, parent=None) if outcome == "not better" else trial
        write_trial(root, trial)
        return trial, None
    reason = f"version {before.version}, which served before, is better with 95 % confidence: {_describe(found)}"
    make_current(root, before.version)
    record = trial.with_record(policy.version, "rolled back", found, reason).record
    write_trial(root, Trial(before.version, record=record))
    return trial, UpdateReport("rolled back", before.version, policy.version, reason, comparison=found)


def _judge_challenger(
    root: str | Path, policy: bundle.Policy, trial: Trial, version: int, episodes: Sequence[Episode], share: float
) -> UpdateReport:
    """Publish the challenger, which is this version, drop it, or keep it on trial."""
    try:
        challenger = bundle.load(root, version)
    except PolicyError as error:  # it would be on trial for ever
        return _drop(root, trial, version, verdict(trial.tried)[1], f"version {version} cannot be tried: {error}")
    trial = with_new_evidence(trial, _nets(policy), _nets(challenger), episodes, share=share)
    outcome, found = verdict(trial.tried)
    if outcome == "open":
        write_trial(root, trial)
        reason = f"version {challenger.version} is on trial: {_describe(found)}"
        return UpdateReport("on trial", policy.version, policy.version, reason, challenger.version, comparison=found)
    if outcome == "better":
        reason = f"better with 95 % confidence: {_describe(found)}"
        record = trial.with_record(challenger.version, "published", found, reason).record
        make_current(root, challenger.version)
        used = Counted(trial.tried.ids)  # it was chosen on these answers, so they would flatter it
        write_trial(root, Trial(challenger.version, parent=policy.version, watched=used, record=record))
        return UpdateReport("published", challenger.version, policy.version, reason, comparison=found)
    return _drop(root, trial, version, found, f"version {version} is unlikely to prove better: {_describe(found)}")


def _drop(root: str | Path, trial: Trial, version: int, found: Comparison, reason: str) -> UpdateReport:
    """End the challenger's trial; the champion continues to serve."""
    end_trial(root)
    record = trial.with_record(version, "dropped", found, reason).record
    write_trial(root, Trial(trial.champion, parent=trial.parent, watched=trial.watched, record=record))
    return UpdateReport("dropped", trial.champion, trial.champion, reason, comparison=found)


def _learn_challenger(
    root: str | Path,
    policy: bundle.Policy,
    trial: Trial,
    episodes: Sequence[Episode],
    settings: Hyperparameters | None,
    seed: int | None,
    costs: Costs,
    share: float,
) -> UpdateReport:
    """Learn a challenger from the latest answers, and put it on trial."""
    rng, latest = np.random.default_rng(seed), episodes[-WINDOW:]
    if settings is None:
        settings = STARTING if policy.experience is None else REFINING
    held, rest = _split(latest, rng)
    if len(latest) < LEAST:
        found = f"only {len(latest)} of the latest {REACH:,} answers have feedback to learn from"
        reason = f"{found}; {LEAST} are needed"
        return UpdateReport("insufficient", policy.version, policy.version, reason, None, len(rest), len(held))
    names = vocabulary(policy.names, latest)
    learner = _resumed(root, policy, len(names), rng)
    learned, diagnostics = update(learner, batch(rest, names), settings, rng)
    learned = replace(learned, fusion=best_supported(learner.fusion, learned.fusion, batch(held, names).fusions))
    if learned.fusion is learner.fusion and learned.decider is learner.decider:
        reason = "no decision was sampled, and no other Fusion is likely better: there is nothing to try"
        return UpdateReport(
            "insufficient", policy.version, policy.version, reason, None, len(rest), len(held), diagnostics=diagnostics
        )
    version = _version_to_challenge(root, policy)
    served = {"curve": policy.metrics["curve"]} if "curve" in policy.metrics else {}  # see `Policy.served`
    challenger = publish(
        root,
        decider=decider_model(learned.decider),
        fusion=fusion_model(learned.fusion),
        names=names,
        parent=version,
        hyperparameters={**asdict(settings), "seed": seed, "usd_per_call": dict(costs.usd)},
        metrics={**served, **asdict(diagnostics)},
        experience=policy.experience,
        learner=pack(learned),
        trained_on=policy.trained_on,
        on_trial=True,
    )
    # With a share, no earlier answer is the challenger's, even if another folder's version with its number made some.
    tried = Counted(tuple(one.id for one in (episodes if share else latest)))
    write_trial(root, replace(trial, champion=version, challenger=challenger, tried=tried))
    reason = f"version {challenger} is on trial from now on"
    return UpdateReport(
        "on trial", version, policy.version, reason, challenger, len(rest), len(held), diagnostics=diagnostics
    )


def _version_to_challenge(root: str | Path, policy: bundle.Policy) -> int:
    """Return the current version; in an empty folder, publish the shipped policy and return its version."""
    if bundle.versions(root):
        return policy.version
    return publish(
        root,
        decider=policy.decider_onnx,
        fusion=policy.fusion_onnx,
        names=policy.names,
        parent=None,
        hyperparameters=policy.hyperparameters,
        metrics=policy.metrics,
    )


def _nets(policy: bundle.Policy) -> Nets:
    return Nets(policy.version, policy.names, decider_net(policy.decider_onnx), fusion_net(policy.fusion_onnx))


def _describe(found: Comparison) -> str:
    if not found.episodes:
        return "no new feedback on an answer that either decided; serve with this policy folder, and give feedback"
    return (
        f"{found.gain:+.1f} points ({found.low:+.1f} to {found.high:+.1f}) on {found.episodes} answers, right answers "
        f"{found.right:+.1f}, cost {found.cost:+.1f} % of asking all endpoints"
    )


def _split(episodes: Sequence[Episode], rng: np.random.Generator) -> tuple[list[Episode], list[Episode]]:
    """Return a random fifth, and the rest; both in order."""
    held = set(rng.permutation(len(episodes))[: len(episodes) // _HELD_OUT].tolist())
    parts: tuple[list[Episode], list[Episode]] = [], []
    for place, one in enumerate(episodes):
        parts[place not in held].append(one)
    return parts


def _resumed(root: str | Path, policy: bundle.Policy, names: int, rng: np.random.Generator) -> Learner:
    """Return the policy's nets, grown to this many names, with the stored critic and moments.

    The critic is new for the shipped policy, and if the stored state is missing or damaged.
    """
    decider = grown(decider_net(policy.decider_onnx), names, rng)
    fusion = grown(fusion_net(policy.fusion_onnx), names, rng)
    try:
        state = bundle.learner(root, policy.version) if policy.version in bundle.versions(root) else None
        if state:
            return unpack(state, decider, fusion)
    except PolicyError as error:
        _log.warning("the critic starts anew: %s", error)
    return Learner.fresh(decider, fusion, CriticNet.initial(rng))


_TABLES = ("names", "vote")

Arrays = Mapping[str, NDArray[Any]]


def pack(learner: Learner) -> dict[str, NDArray[Any]]:
    """Return the learner's state as named arrays."""
    arrays: dict[str, NDArray[Any]] = {f"critic.{key}": value for key, value in parameters(learner.critic).items()}
    for net, moments in learner.moments.items():
        arrays[f"{net}.steps"] = np.array(moments.steps)
        arrays |= {f"{net}.first.{key}": value for key, value in moments.first.items()}
        arrays |= {f"{net}.second.{key}": value for key, value in moments.second.items()}
    return arrays


def unpack(arrays: Arrays, decider: DeciderNet, fusion: FusionNet) -> Learner:
    """Return the learner of these nets with a packed state; moments of names added since are zero.

    Raises:
        PolicyError: the arrays are not a state that `pack` made for such nets.
    """
    try:
        critic = restored(CriticNet, arrays, "critic.")
        moments = {
            "decider": _moments(arrays, "decider", parameters(decider)),
            "fusion": _moments(arrays, "fusion", parameters(fusion)),
            "critic": _moments(arrays, "critic", parameters(critic)),
        }
    except (KeyError, ValueError) as error:
        said = f"learner.npz: does not fit this version of focalroute ({error}); roll back, or train again"
        raise PolicyError(said) from None
    return Learner(decider, fusion, critic, moments)


def _moments(arrays: Arrays, net: str, shapes: Mapping[str, Floats]) -> Moments:
    first, second = (
        {key: _padded(arrays[f"{net}.{part}.{key}"], like, key) for key, like in shapes.items()}
        for part in ("first", "second")
    )
    return Moments(int(arrays[f"{net}.steps"]), first, second)


def _padded(array: NDArray[Any], like: Floats, key: str) -> NDArray[Any]:
    """Append rows of zeros for new names; ValueError if the shapes differ otherwise."""
    new = len(like) - len(array) if key in _TABLES else 0
    padded = np.concatenate([array, np.zeros((max(new, 0), *array.shape[1:]), array.dtype)])
    if padded.shape != like.shape:
        raise ValueError(f"{key} has the shape {array.shape}, expected {like.shape}")
    return padded
