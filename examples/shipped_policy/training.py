"""Trains the shipped policy, which serves any pool of endpoints from its first query on.

It starts from nets set by hand, learns only from synthetic logs (see `examples.shipped_policy.synthetic_pools`) by the
steps of offline training, and knows no endpoints: neither names nor long-run accuracies. Offline
training and online updates start from it.

    python -m examples.shipped_policy.training    some minutes of one core; rewrites focalroute/policy/cold
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from examples.shipped_policy.synthetic_pools import synthetic_pool
from focalroute.learn.adam import Moments
from focalroute.learn.backend import NUMPY
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.nets import DeciderNet, FusionNet, parameters, zeroed
from focalroute.learn.offline.lookahead import look_ahead
from focalroute.learn.offline.prior_stats import LongRun
from focalroute.learn.offline.reinforce import OfflineSettings, PolicyGradient, improve
from focalroute.learn.offline.stacking import Lesson, descend, random_sets
from focalroute.learn.offline.views import COST_WEIGHTS, Views, random_masks
from focalroute.learn.trajectory import unlimited
from focalroute.observe import layout
from focalroute.observe.accuracy import PRIOR_ASKS
from focalroute.policy.bundle import COLD
from focalroute.policy.publish import bundle_files

_SEED = 20261121
_BATCH = 256


@dataclass(frozen=True, slots=True)
class ShippedSettings:
    """The amount of training.

    Attributes:
        worlds: number of synthetic logs.
        queries: number of queries in each.
        fusion_steps: steps of Adam for the Fusion, each on a batch of one log.
        lookahead_steps: steps of the regression on gains.
        iterations: iterations of the policy gradient.
        renewals: how often the windows are renewed, before and during the policy gradient.
    """

    pools: int = 120
    queries: int = 1200
    fusion_steps: int = 2500
    lookahead_steps: int = 1200
    iterations: int = 1500
    renewals: int = 3


def shipped(settings: ShippedSettings | None = None, seed: int = _SEED) -> tuple[DeciderNet, FusionNet]:
    """Train the two networks; the same seed gives the same networks on the same machine."""
    settings = settings or ShippedSettings()
    with threadpool_limits(1, "blas"):
        rng = np.random.default_rng(seed)
        pools = [synthetic_views(rng, settings.queries) for _ in range(settings.pools)]
        fusion = descend(
            cold_fusion(), _lessons(pools, settings.fusion_steps, rng), steps=settings.fusion_steps, rate=3e-3
        )
        decider = look_ahead(
            _untimed(DeciderNet.initial(rng)),
            fusion,
            [(views, np.arange(settings.queries)) for views in pools],
            steps=settings.lookahead_steps,
            rate=3e-3,
            batch=_BATCH,
            rng=rng,
            passes=NUMPY,
            advance=_ignore_progress,
        )
        return unlimited(_improved(pools, decider, fusion, settings, rng)), fusion


def cold_fusion() -> FusionNet:
    """Naive Bayes over votes (plurality while no accuracy is known), plus a quarter of the members' probabilities.

    Where probabilities are well calibrated, their log-likelihood ratio replaces the vote's weight.

    A feature that is equal for all candidates, such as a member's accuracy, has no effect here: it is in ``evidence``.
    """
    weights = np.zeros(layout.width(layout.MEMBER), np.float32)
    for name, weight in (("evidence", 1.0), ("probability", 0.25), ("calibrated", 1.0)):
        weights[layout.slices(layout.MEMBER)[name]] = weight
    return replace(FusionNet.initial(np.random.default_rng(_SEED)), skip_member=weights)


def _untimed(net: DeciderNet) -> DeciderNet:
    """Return the network without weights for latencies, which synthetic logs do not have."""
    return replace(net, hidden_endpoint=zeroed(net.hidden_endpoint, layout.slices(layout.ENDPOINT)["latency"]))


def synthetic_views(rng: np.random.Generator, queries: int) -> Views:
    """Draw a synthetic log as the cold start would see it, without long-run records except prices."""
    log = synthetic_pool(rng, queries)
    n = len(log.names)
    unknown = LongRun(np.zeros(n), np.full(n, float(PRIOR_ASKS)), log.prices)
    settings = OfflineSettings()
    masks = random_masks(log, rng)
    return Views(log, unknown, np.zeros(n, np.int64), masks, window=settings.window, probed=settings.probed)


def _lessons(pools: Sequence[Views], steps: int, rng: np.random.Generator) -> Iterator[Lesson]:
    sets = [random_sets(views.recorded.usable) for views in pools]
    for _ in range(steps):
        which = int(rng.integers(len(pools)))
        views = pools[which]
        rows = rng.choice(len(views.recorded), min(_BATCH, len(views.recorded)), replace=False)
        yield views.at(int(rng.integers(len(COST_WEIGHTS))), rows), np.arange(len(rows)), sets[which](rows, rng)


def _improved(
    pools: Sequence[Views],
    decider: DeciderNet,
    fusion: FusionNet,
    settings: ShippedSettings,
    rng: np.random.Generator,
) -> DeciderNet:
    """Improve the Decider by policy gradient, with windows of the endpoints that it asked itself."""
    learners = [
        PolicyGradient(
            views,
            np.arange(settings.queries),
            fusion,
            float(views.recorded.usd.sum() / settings.queries),
            replace(OfflineSettings(), decider_rate=1.5e-3, entropy=0.003),  # it has to explore
            NUMPY,
            _ignore_progress,
        )
        for views in pools
    ]
    moments = Moments.zero(parameters(decider))
    for steps in np.array_split(np.arange(settings.iterations), settings.renewals):
        for learner in learners:
            learner.views.renew(decider, fusion, learner.ask_all_usd, learner.settings.rounds, rng)
        decider, moments = improve(
            learners,
            decider,
            moments,
            steps=range(int(steps[0]), int(steps[-1]) + 1),
            total=settings.iterations,
            share=1.0,
            rng=rng,
        )
    return decider


def _ignore_progress(_: int) -> None:
    """No progress is shown."""


def _files(decider: DeciderNet, fusion: FusionNet) -> dict[str, bytes]:
    return bundle_files(
        version=0,
        parent=None,
        created_at=0.0,
        decider=decider_model(decider),
        fusion=fusion_model(fusion),
        names=(),
        hyperparameters={},
        metrics={},
    )


if __name__ == "__main__":
    for _name, _data in _files(*shipped()).items():
        (COLD / _name).write_bytes(_data)
