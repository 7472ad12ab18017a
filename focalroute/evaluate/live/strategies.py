"""All strategies on one pool and one set of queries: what each of them answered, paid and asked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.records import F32, Member, Outcome, Query
from focalroute.evaluate.live.environment import Asker, ChainCall, LiveEnvironment
from focalroute.evaluate.live.queries import LiveQuery, LiveResult, cut, play
from focalroute.evaluate.presets.der import DerSettings, train_routes
from focalroute.evaluate.presets.networks import Mlp, mlp_parameters
from focalroute.learn.export import der_model
from focalroute.money.cost import typical_cost
from focalroute.observe import Observer
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.policy.publish import publish_der
from focalroute.policy.sequential import QUERY
from focalroute.serving.sync import Ensemble

#: The prices of cost that DER is trained for: its operating points.
ALPHAS = (0.1, 0.3, 1.0)

_WARM = 100  # training queries that an ensemble with a window serves first, unscored
_COLUMNS = [slices(ENDPOINT)[name].start for name in ("accuracy", "price")]


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a live evaluation goes.

    Attributes:
        answer: kind of a free-form answer; None: as the queries have it.
        quality: name of the metric that free-form answers are scored by; None: right or wrong.
        train_fraction: share of the queries, from the first on, that DER is trained on.
        seed: of everything random, the first of ``seeds``.
        seeds: how often everything is trained and played.
        max_steps: T_max of every chain.
        alphas: of DER.
        settings: DER's, but for these two.
        publish_to: folder to publish DER's policies to, the last alpha last; None: they are forgotten.
    """

    answer: str | None = None
    quality: str | None = None
    train_fraction: float = 0.8
    seed: int = 0
    seeds: int = 1
    max_steps: int = 3
    alphas: Sequence[float] = ALPHAS
    settings: DerSettings = DerSettings()  # noqa: RUF009 - immutable
    publish_to: Path | None = None


def der_name(alpha: float) -> str:
    """The row of DER at this price of cost."""
    return f"der @ alpha {alpha:g}"


def play_all(
    endpoints: Sequence[Endpoint],
    train: Sequence[LiveQuery],
    test: Sequence[LiveQuery],
    ask: Asker,
    *,
    options: LiveOptions,
    seed: int,
    advance: Callable[[int], object] = lambda _: None,
) -> dict[str, LiveResult]:
    """Every strategy on the test queries, by name.

    Args:
        ask: makes the calls that DER is trained with.
        advance: called with the queries played.
    """
    warm = train[-_WARM:]
    played: dict[str, LiveResult] = {}
    for endpoint in endpoints:
        with Ensemble([endpoint], policy="self-correction", max_rounds=options.max_steps) as ensemble:
            answers = play(ensemble, test, advance)
        played[f"single {endpoint.name}"] = cut(test, answers, 1)
        for steps in range(2, options.max_steps + 1):
            played[f"self-correction {endpoint.name} @ {steps}"] = cut(test, answers, steps)
    with Ensemble(endpoints, policy="sequential-round-robin", max_rounds=options.max_steps) as ensemble:
        answers = play(ensemble, test, advance)
    for steps in range(1, options.max_steps + 1):
        played[f"round-robin @ {steps}"] = cut(test, answers, steps)
    for name, policy in (("plurality", "plurality"), ("focalroute", None)):
        with Ensemble(endpoints, policy=policy, max_rounds=options.max_steps, seed=seed) as ensemble:
            play(ensemble, warm)
            played[name] = cut(test, play(ensemble, test, advance))
    environment = environment_of(endpoints, train, ask)
    with tempfile.TemporaryDirectory() as folder:
        for alpha in options.alphas:
            root = options.publish_to or Path(folder) / f"{alpha:g}"
            train_der(
                root,
                environment,
                endpoints,
                replace(options.settings, max_steps=options.max_steps, alpha=alpha),
                seed=seed,
            )
            with Ensemble(
                endpoints, policy=root, max_rounds=options.max_steps, explore=False, probe_share=0
            ) as ensemble:
                play(ensemble, warm)
                played[der_name(alpha)] = cut(test, play(ensemble, test, advance))
    return played


def environment_of(endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery], ask: Asker) -> LiveEnvironment:
    """What endpoints reply to these queries, asked as training needs it."""
    features = np.stack([text_features(live.query.text, QUERY) for live in queries])
    return LiveEnvironment(features, [endpoint.name for endpoint in endpoints], ask)


def train_der(
    root: str | Path, environment: LiveEnvironment, endpoints: Sequence[Endpoint], settings: DerSettings, *, seed: int
) -> int:
    """Train DER on live endpoints and publish it as the next version of a folder."""
    environment.columns = _columns(environment, endpoints)
    return publish_routes(root, train_routes(environment, settings, seed), environment.names, settings, seed=seed)


def publish_routes(root: str | Path, net: Mlp, names: Sequence[str], settings: DerSettings, *, seed: int) -> int:
    """Publish a trained policy as the next version of a folder; `focalroute.Ensemble` serves it."""
    return publish_der(
        root,
        model=der_model(mlp_parameters(net)),
        names=names,
        parent=None,
        hyperparameters={**asdict(settings), "seed": seed},
    )


def _columns(environment: LiveEnvironment, endpoints: Sequence[Endpoint]) -> F32:
    """ "accuracy" and "price" (N, 2) as a window shows them in which everybody was asked every query."""
    observer = Observer(environment.names, [typical_cost(endpoint) for endpoint in endpoints])
    n = len(environment.names)
    for query in range(len(environment.queries)):
        replies = environment.replies([ChainCall(query, i, None) for i in range(n)])
        usable = {name: reply for name, reply in zip(environment.names, replies, strict=True) if reply.text is not None}
        members = {name: Member(1, 0, 0, 0.0, None) for name in usable}
        observer.learn(Outcome(str(query), members, {name: reply.worth for name, reply in usable.items()}))
    sight = observer.begin(Query("columns", ()))
    return sight.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints[:, _COLUMNS]
