"""Learning online (the paper's Algorithm 2): from the store to the next policy, if it passes the gate.

It runs on any thread or in a process of its own, and never on the event loop. Read `_updated` from top to bottom.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from focalroute.core.errors import PolicyError
from focalroute.learn.adam import Moments
from focalroute.learn.critic import CriticNet, critic_parameters
from focalroute.learn.episodes import Costs, Episode, episode, rewarded
from focalroute.learn.export import decider_model, decider_net, fusion_model, fusion_net
from focalroute.learn.gate import compare, supported
from focalroute.learn.mappo import Hyperparameters, Learner, update
from focalroute.learn.nets import DeciderNet, Floats, FusionNet, parameters
from focalroute.learn.trajectory import batch, grown, vocabulary
from focalroute.learn.update_report import ENOUGH, MARGIN, REACH, WINDOW, Comparison, Status, UpdateReport
from focalroute.policy import bundle
from focalroute.policy.publish import publish
from focalroute.store.base import Store

#: How many versions an episode's policy may differ from the current one.
MAX_LAG = 3
#: How many updates may learn from an episode.
MAX_USES = 3
#: How the shipped policy goes on learning: its Fusion knows nothing of this pool yet, its Decider is meant for any.
STARTING = Hyperparameters(decider_rate=5e-4, target_kl=0.005)
#: How one that was trained on recorded answers does: a thousand answers of its own say much less than these.
REFINING = replace(STARTING, fusion_rate=1.5e-3)

_NOTHING = "no decision was sampled, and no other Fusion is likely better: the old policy stays"
_HELD_OUT = 5  # one in so many is held out for the gate

_log = logging.getLogger("focalroute")


def update_policy(
    store: Store, root: str | Path, *, settings: Hyperparameters | None = None, seed: int | None = None
) -> UpdateReport:
    """Run one update on what the store holds, and publish the new policy unless the gate keeps the old one.

    Args:
        store: where answers and their feedback are.
        root: the folder of bundles; the shipped policy is the start as long as it holds none.
        settings: how to learn; None: `STARTING`, or `REFINING` a policy that brings experience along.
        seed: for the split and the minibatches; None: new chance every time. The same seed, store and folder give the
            same weights.

    Raises:
        PolicyError: the current bundle does not pass its checks, or the new one cannot be written.
        StoreError: the store cannot be read.
    """
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take twice as long
        return _updated(store, root, settings, seed)


def _updated(store: Store, root: str | Path, settings: Hyperparameters | None, seed: int | None) -> UpdateReport:
    rng = np.random.default_rng(seed)
    policy = bundle.load(root) if bundle.versions(root) else bundle.cold()
    settings = settings or (STARTING if policy.experience is None else REFINING)
    state = _state(root, policy.version)
    rows = rewarded(store.recent(REACH))[-WINDOW:]
    costs = Costs.of(answer for answer, _ in rows)
    episodes = [found for answer, said in rows if (found := episode(answer, said, costs))]
    held, rest = _split(episodes, rng)
    used = uses(state)
    fresh = [one for one in rest if used.get(one.id, 0) < MAX_USES and _lag(one, policy.version) <= MAX_LAG]
    if not fresh or not held:
        reason = f"only {len(fresh)} rewarded answers to learn from and {len(held)} to test on"
        return UpdateReport("insufficient", policy.version, policy.version, len(fresh), len(held), reason)

    names = vocabulary(policy.names, episodes)
    learner = _resumed(state, policy, len(names), rng)
    learned, diagnostics = update(learner, batch(fresh, names), settings, rng)
    judged = batch(held, names)
    learned = replace(learned, fusion=supported(learner.fusion, learned.fusion, judged.fusions))
    comparison = compare(learner, learned, judged)
    changed = learned.fusion is not learner.fusion or learned.decider is not learner.decider
    status, reason = _verdict(comparison) if changed else ("insufficient", _NOTHING)
    version = policy.version
    if status == "published":
        version = publish(
            root,
            decider=decider_model(learned.decider),
            fusion=fusion_model(learned.fusion),
            names=names,
            parent=policy.version,
            hyperparameters={**asdict(settings), "seed": seed, "usd_per_call": dict(costs.usd)},
            metrics={**asdict(diagnostics), "gate": asdict(comparison)},
            experience=policy.experience,
            learner=pack(learned, _counted(used, fresh, episodes)),
            trained_on=policy.trained_on,
        )
    return UpdateReport(status, version, policy.version, len(fresh), len(held), reason, comparison, diagnostics)


def _split(episodes: Sequence[Episode], rng: np.random.Generator) -> tuple[list[Episode], list[Episode]]:
    """A random fifth, and the rest; both in order."""
    held = set(rng.permutation(len(episodes))[: len(episodes) // _HELD_OUT].tolist())
    parts: tuple[list[Episode], list[Episode]] = [], []
    for place, one in enumerate(episodes):
        parts[place not in held].append(one)
    return parts


def _lag(one: Episode, version: int) -> int:
    """How many versions lie between; after a rollback the episode's may be the later one."""
    return abs(version - one.trajectory.version)


def _state(root: str | Path, version: int) -> Mapping[str, NDArray[Any]]:
    """Return the learner's state of this version; nothing if it is missing or damaged."""
    if version not in bundle.versions(root):  # the shipped one
        return {}
    try:
        return bundle.learner(root, version) or {}
    except PolicyError as error:
        _log.warning("the critic starts anew: %s", error)
        return {}


def _resumed(state: Mapping[str, NDArray[Any]], policy: bundle.Policy, names: int, rng: np.random.Generator) -> Learner:
    """The policy's nets, grown to this many names, with the critic and the moments that were left."""
    decider = grown(decider_net(policy.decider_onnx), names, rng)
    fusion = grown(fusion_net(policy.fusion_onnx), names, rng)
    if state:
        try:
            return unpack(state, decider, fusion)
        except PolicyError as error:
            _log.warning("the critic starts anew: %s", error)
    return Learner.fresh(decider, fusion, CriticNet.initial(rng))


def _verdict(comparison: Comparison) -> tuple[Status, str]:
    size, gain = comparison.effective_sample_size, f"{comparison.gain:+.1f} points"
    interval = f"{gain} ({comparison.low:+.1f} to {comparison.high:+.1f})"
    if not comparison.enough:
        return "insufficient", f"an effective sample size of {size:.0f} is under {ENOUGH:.0f}: the old policy stays"
    if comparison.worse:
        return "rejected", f"surely worse: {interval}, more than {MARGIN:.0f} lost; the old policy stays"
    return "published", f"{interval} on an effective sample size of {size:.0f}"


def _counted(used: Mapping[str, int], fresh: Iterable[Episode], episodes: Iterable[Episode]) -> dict[str, int]:
    """The uses after this update, of the episodes that a later one may still meet."""
    now = {one.id for one in fresh}
    counts = {one.id: used.get(one.id, 0) + (one.id in now) for one in episodes}
    return {key: count for key, count in counts.items() if count}


_TABLES = ("names", "vote")

Arrays = Mapping[str, NDArray[Any]]


def pack(learner: Learner, used: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The state as named arrays."""
    arrays: dict[str, NDArray[Any]] = {
        f"critic.{key}": value for key, value in critic_parameters(learner.critic).items()
    }
    for net, moments in learner.moments.items():
        arrays[f"{net}.steps"] = np.array(moments.steps)
        arrays |= {f"{net}.first.{key}": value for key, value in moments.first.items()}
        arrays |= {f"{net}.second.{key}": value for key, value in moments.second.items()}
    ids = np.array(list(used), np.str_) if used else np.zeros(0, "U1")
    return {**arrays, "uses.ids": ids, "uses.counts": np.array(list(used.values()), np.int64)}


def uses(arrays: Arrays) -> dict[str, int]:
    """By episode, in how many updates it was; none where that is not kept."""
    if "uses.ids" not in arrays or "uses.counts" not in arrays:
        return {}
    return dict(zip(arrays["uses.ids"].tolist(), arrays["uses.counts"].tolist(), strict=False))


def unpack(arrays: Arrays, decider: DeciderNet, fusion: FusionNet) -> Learner:
    """The learner of these nets with the state that was packed; what is new in their tables has no moments yet.

    Raises:
        PolicyError: the state is not one that `pack` left for such nets.
    """
    try:
        critic = CriticNet(**{field.name: arrays[f"critic.{field.name}"] for field in fields(CriticNet)})
        moments = {
            "decider": _moments(arrays, "decider", parameters(decider)),
            "fusion": _moments(arrays, "fusion", parameters(fusion)),
            "critic": _moments(arrays, "critic", critic_parameters(critic)),
        }
    except (KeyError, ValueError) as error:
        raise PolicyError(f"learner.npz: does not fit this version of focalroute: {error}") from None
    return Learner(decider, fusion, critic, moments)


def _moments(arrays: Arrays, net: str, shapes: Mapping[str, Floats]) -> Moments:
    first, second = (
        {key: _padded(arrays[f"{net}.{part}.{key}"], like, key) for key, like in shapes.items()}
        for part in ("first", "second")
    )
    return Moments(int(arrays[f"{net}.steps"]), first, second)


def _padded(array: NDArray[Any], like: Floats, key: str) -> NDArray[Any]:
    """The array with rows of zeros for names that are new; ValueError if it differs otherwise."""
    new = len(like) - len(array) if key in _TABLES else 0
    padded = np.concatenate([array, np.zeros((max(new, 0), *array.shape[1:]), array.dtype)])
    if padded.shape != like.shape:
        raise ValueError(f"{key} has the shape {array.shape}, expected {like.shape}")
    return padded
