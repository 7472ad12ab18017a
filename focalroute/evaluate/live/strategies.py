"""All strategies on one pool and one set of queries: what each of them answered, paid and asked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.records import F32, Member, Outcome, Query
from focalroute.evaluate.live.playing import LiveResult, cut, play
from focalroute.evaluate.live.queries import LiveQuery
from focalroute.evaluate.sequential import Asker, Settings, Step, World, publish_routes, train_routes
from focalroute.money.cost import typical_cost
from focalroute.observe import Observer
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.policy.sequential import QUERY
from focalroute.serving.sync import Ensemble

#: The prices of cost that DER is trained for: its operating points.
ALPHAS = (0.1, 0.3, 1.0)

_WARM = 100  # training queries that an ensemble with a window serves first, unscored
_COLUMNS = [slices(ENDPOINT)[name].start for name in ("accuracy", "price")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played.

    Attributes:
        most: T_max of every chain.
        alphas: of DER.
        settings: DER's, but for these two.
        keep: folder to publish DER's policies to, the last alpha last; None: they are forgotten.
    """

    most: int = 3
    alphas: Sequence[float] = ALPHAS
    settings: Settings = Settings()  # noqa: RUF009 - immutable
    keep: Path | None = None


def der_name(alpha: float) -> str:
    """The row of DER at this price of cost."""
    return f"der @ alpha {alpha:g}"


def play_all(
    endpoints: Sequence[Endpoint],
    train: Sequence[LiveQuery],
    test: Sequence[LiveQuery],
    ask: Asker,
    *,
    plan: Plan,
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
        with Ensemble([endpoint], policy="self-correction", max_rounds=plan.most) as ensemble:
            answers = play(ensemble, test, advance)
        played[f"single {endpoint.name}"] = cut(test, answers, 1)
        for steps in range(2, plan.most + 1):
            played[f"self-correction {endpoint.name} @ {steps}"] = cut(test, answers, steps)
    with Ensemble(endpoints, policy="sequential-round-robin", max_rounds=plan.most) as ensemble:
        answers = play(ensemble, test, advance)
    for steps in range(1, plan.most + 1):
        played[f"round-robin @ {steps}"] = cut(test, answers, steps)
    for name, policy in (("plurality", "plurality"), ("focalroute", None)):
        with Ensemble(endpoints, policy=policy, max_rounds=plan.most, seed=seed) as ensemble:
            play(ensemble, warm)
            played[name] = cut(test, play(ensemble, test, advance))
    world = world_of(endpoints, train, ask)
    with tempfile.TemporaryDirectory() as folder:
        for alpha in plan.alphas:
            root = plan.keep or Path(folder) / f"{alpha:g}"
            train_der(root, world, endpoints, replace(plan.settings, most=plan.most, alpha=alpha), seed=seed)
            with Ensemble(endpoints, policy=root, max_rounds=plan.most, explore=False, probe_share=0) as ensemble:
                play(ensemble, warm)
                played[der_name(alpha)] = cut(test, play(ensemble, test, advance))
    return played


def world_of(endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery], ask: Asker) -> World:
    """What endpoints say to these queries, asked as training needs it."""
    features = np.stack([text_features(live.query.text, QUERY) for live in queries])
    return World(features, [endpoint.name for endpoint in endpoints], ask)


def train_der(root: str | Path, world: World, endpoints: Sequence[Endpoint], settings: Settings, *, seed: int) -> int:
    """Train DER on a world and publish it as the next version of a folder."""
    net = train_routes(world, settings, seed, columns=_columns(world, endpoints))
    return publish_routes(root, net, world.names, settings, seed=seed)


def _columns(world: World, endpoints: Sequence[Endpoint]) -> F32:
    """ "accuracy" and "price" (N, 2) as a window shows them in which everybody was asked every query."""
    observer = Observer(world.names, [typical_cost(endpoint) for endpoint in endpoints])
    n = len(world.names)
    for query in range(len(world.queries)):
        replies = world.say([Step(query, i, None) for i in range(n)])
        usable = {name: said for name, said in zip(world.names, replies, strict=True) if said.text is not None}
        members = {name: Member(1, 0, 0, 0.0, None) for name in usable}
        observer.learn(Outcome(str(query), members, {name: said.worth for name, said in usable.items()}))
    sight = observer.begin(Query("columns", ()))
    return sight.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints[:, _COLUMNS]
