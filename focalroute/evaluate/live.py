"""Runs ``focalroute eval --live``: strategies on a live pool, scored, and DER compared with them at equal cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pydantic
from pydantic import Field

from focalroute.answers import AnswerKind, normaliser
from focalroute.core.config import STRICT, Endpoint, Unchecked, raises_config_error
from focalroute.core.errors import ConfigError, FocalrouteError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.core.receipts import Answer
from focalroute.core.records import F32, Member, Outcome, Query
from focalroute.core.spelling import counted
from focalroute.evaluate import output
from focalroute.evaluate.live_environment import (
    Asker,
    ChainCall,
    LiveEnvironment,
    LiveQuery,
    LiveResult,
    over_http,
    play,
    read_queries,
    truncated,
)
from focalroute.evaluate.metrics import PairedDifference, Score, compare, on_curve, score
from focalroute.evaluate.presets import Mlp
from focalroute.evaluate.presets.der import DerSettings, train_routes
from focalroute.evaluate.quality import metric
from focalroute.evaluate.replay import ReplayResult
from focalroute.learn.export import der_model
from focalroute.learn.nets import parameters
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.observe.observer import Observer
from focalroute.policy.publish import publish_der
from focalroute.policy.sequential import QUERY
from focalroute.serving.sync import Ensemble
from focalroute.sim import SimulatedPool, relay_models

#: The cost weights (alpha) that DER is trained for: its operating points.
ALPHAS = (0.1, 0.3, 1.0)

_WARM_UP = 100  # training queries that an ensemble answers first, unscored, to fill its window
_COLUMNS = [slices(ENDPOINT)[name].start for name in ("accuracy", "price")]


@raises_config_error
@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LiveOptions:
    """The options of a live evaluation.

    Attributes:
        answer: kind of free-form answers, as for ``ask(answer=)``.
        quality: name of the metric that scores free-form answers; None: an answer is right or wrong.
        train_fraction: share of the queries, from the start, that DER is trained on.
        seed: the first random seed.
        seeds: how often everything is trained and run, each time with the next seed.
        max_steps: T_max, the most steps of a chain.
        alphas: DER's cost weights.
        settings: DER's other settings.
        publish_to: folder to publish DER's policies to, the last alpha last; None: they are discarded.

    Raises:
        ConfigError: a value is invalid.
    """

    shown_as: ClassVar[str] = "eval"

    answer: str | None = None
    quality: str | None = None
    train_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.8
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 1
    max_steps: Annotated[int, Field(ge=1)] = 3
    alphas: Annotated[Sequence[Annotated[float, Field(ge=0)]], Field(min_length=1)] = ALPHAS
    settings: Annotated[DerSettings, Unchecked] = DerSettings()
    publish_to: Path | None = None

    def __post_init__(self) -> None:
        # An unknown kind raises here, even if every query has choices.
        normaliser(cast("AnswerKind | None", self.answer))
        if self.publish_to is not None:
            output.check_folder(self.publish_to)


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
    """Run every strategy on the test queries; return the results by name.

    Args:
        endpoints: the pool.
        train: the training queries.
        test: the test queries.
        ask: makes the calls that DER is trained with.
        options: the options of the evaluation.
        seed: the random seed.
        advance: called with the number of queries done.

    Raises:
        FocalrouteError: no endpoint answered any of the test queries.
    """
    warm_up, lengths = train[-_WARM_UP:], range(1, options.max_steps + 1)
    played: dict[str, LiveResult] = {}

    def answered(pool: Sequence[Endpoint], before: Sequence[LiveQuery], **settings: Any) -> list[Answer | None]:
        """Answer the ``before`` queries, which are not scored; then answer the test queries."""
        with Ensemble(pool, max_rounds=options.max_steps, **settings) as ensemble:
            play(ensemble, before)
            return play(ensemble, test, advance)

    for endpoint in endpoints:
        answers = answered([endpoint], (), policy="self-correction")
        played[f"single {endpoint.name}"] = truncated(test, answers, 1)
        for steps in lengths[1:]:
            played[f"self-correction {endpoint.name} @ {steps}"] = truncated(test, answers, steps)
    if not any(result.asked.any() for result in played.values()):
        raise FocalrouteError("no endpoint answered any of the questions; focalroute pool measure says why")
    answers = answered(endpoints, (), policy="sequential-round-robin")
    played |= {f"round-robin @ {steps}": truncated(test, answers, steps) for steps in lengths}
    for name, policy in (("plurality", "plurality"), ("focalroute", None)):
        played[name] = truncated(test, answered(endpoints, warm_up, policy=policy, seed=seed))
    environment = environment_of(endpoints, train, ask)
    with tempfile.TemporaryDirectory() as folder:
        for alpha in options.alphas:
            root = options.publish_to or Path(folder) / f"{alpha:g}"
            settings = replace(options.settings, max_steps=options.max_steps, alpha=alpha)
            train_der(root, environment, endpoints, settings, seed=seed)
            answers = answered(endpoints, warm_up, policy=root, explore=False, probe_share=0)
            played[f"der @ alpha {alpha:g}"] = truncated(test, answers)
    return played


def environment_of(endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery], ask: Asker) -> LiveEnvironment:
    """Make the training environment of these endpoints and queries; it makes a call only when training needs it."""
    features = np.stack([text_features(live.query.text, QUERY) for live in queries])
    return LiveEnvironment(features, [endpoint.name for endpoint in endpoints], ask)


def train_der(
    root: str | Path, environment: LiveEnvironment, endpoints: Sequence[Endpoint], settings: DerSettings, *, seed: int
) -> int:
    """Train DER on live endpoints and publish it as the next version of a folder."""
    environment.columns = _columns(environment, endpoints)
    return publish_routes(root, train_routes(environment, settings, seed), environment.names, settings, seed=seed)


def publish_routes(root: str | Path, net: Mlp, names: Sequence[str], settings: DerSettings, *, seed: int) -> int:
    """Publish a trained DER policy as the next version of a folder."""
    return publish_der(
        root,
        model=der_model(parameters(net)),
        names=names,
        parent=None,
        hyperparameters={**asdict(settings), "seed": seed},
    )


def _columns(environment: LiveEnvironment, endpoints: Sequence[Endpoint]) -> F32:
    """Return the columns "accuracy" and "price", (N, 2), as they are after every endpoint was asked every query."""
    observer = Observer.of(endpoints)
    n = len(environment.names)
    for query in range(len(environment.queries)):
        replies = environment.replies([ChainCall(query, i, None) for i in range(n)])
        usable = {name: reply for name, reply in zip(environment.names, replies, strict=True) if reply.text is not None}
        members = {name: Member(1, 0, 0, 0.0, None) for name in usable}
        observer.learn(Outcome(str(query), members, {name: reply.worth for name, reply in usable.items()}))
    view = observer.begin(Query("columns", ()))
    return view.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints[:, _COLUMNS]


#: The name of the built-in simulated pool for ``--live``.
SIMULATED = "sim"
_PIPED_WIDTH = 120

#: Family -> prefixes of the names of its rows; a family is compared as one curve.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "single": ("single ",),
    "round-robin": ("round-robin ",),
    "self-correction": ("single ", "self-correction "),
}


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The result of a live evaluation.

    Attributes:
        title: the queries and pool, for display.
        n_test: number of scored queries, over all seeds.
        seeds: number of seeds.
        scored: "accuracy", or the name of the quality metric.
        methods: one row for each strategy. Cost ratios are relative to plurality, which asks every endpoint once.
        equal_cost: row of DER -> family -> DER minus the family's curve at DER's cost (see `live_report`).
        minus: row of DER -> any other row -> DER minus that, regardless of cost.
    """

    title: str
    n_test: int
    seeds: int
    scored: str
    methods: tuple[Score, ...]
    equal_cost: Mapping[str, Mapping[str, PairedDifference]]
    minus: Mapping[str, Mapping[str, PairedDifference]]


def live_command(
    pool: str, queries: Path | None, options: LiveOptions | None = None, *, json_file: Path | None = None
) -> None:
    """Run `evaluate_live` with a progress bar, write the JSON, and print the tables.

    Args:
        pool: a pool file, or `SIMULATED`.
        queries: the file of queries; None raises an error.
        options: the options; None: the defaults.
        json_file: where to write the JSON; None: nowhere.

    Raises:
        ConfigError: an argument, the queries or the pool is invalid, or a file cannot be written.
        FocalrouteError: no endpoint answered any of the queries.
    """
    if queries is None:
        raise ConfigError("--queries: is missing; give the file of queries that --live is to ask")
    output.check_writable(json_file, queries, pool)
    options = options or LiveOptions()
    scorer = None if options.quality is None else metric(options.quality)
    asked = read_queries(queries, answer=options.answer, quality=scorer)
    title = f"{queries} on {pool}"
    with progress_bar("playing", _steps(asked, options, pool), shown=True) as advance:
        report = evaluate_live(pool, asked, title=title, options=options, advance=advance)
    output.write_and_show(asdict(report), partial(show_live, report), json_file)


def evaluate_live(
    pool: str | Path,
    queries: Sequence[LiveQuery],
    *,
    title: str,
    options: LiveOptions,
    advance: Callable[[int], object] = lambda _: None,
) -> LiveReport:
    """Train DER on the first part of the queries and run every strategy on the rest, once with each seed.

    Args:
        pool: a pool file, or `SIMULATED`, which has other models for each seed.
        queries: the queries, in order.
        title: the queries and pool, for display.
        options: the options.
        advance: called with the number of queries done.

    Raises:
        ConfigError: one of the parts would be empty, or the pool is invalid.
    """
    train_fraction, seeds = options.train_fraction, range(options.seed, options.seed + options.seeds)
    at = int(len(queries) * train_fraction + 1e-9)
    if not 0 < at < len(queries):
        raise ConfigError(
            f"train_fraction: {train_fraction} leaves {at} queries to train on and {len(queries) - at} to test; give "
            "another, or more queries"
        )
    train, test = queries[:at], queries[at:]
    parts: list[dict[str, LiveResult]] = []
    for number in seeds:
        with ExitStack() as stack:
            if str(pool) == SIMULATED:
                running = stack.enter_context(SimulatedPool(relay_models(number)))
                endpoints: Sequence[Endpoint] = running.endpoints
            else:
                endpoints = load_pool(pool).endpoints
            ask = stack.enter_context(over_http(endpoints, train))
            parts.append(play_all(endpoints, train, test, ask, options=options, seed=number, advance=advance))
    played = {name: [part[name] for part in parts] for name in parts[0]}
    return live_report(title, played, seeds=len(seeds), scored=options.quality or "accuracy")


def _steps(queries: Sequence[LiveQuery], options: LiveOptions, pool: str) -> int:
    """Return the number of answers to test queries, over all strategies and seeds."""
    endpoints = len(relay_models(options.seed)) if pool == SIMULATED else len(load_pool(pool).endpoints)
    test = len(queries) - int(len(queries) * options.train_fraction)
    strategies = endpoints + 3 + len(options.alphas)  # 3: round-robin, plurality, focalroute
    return test * strategies * options.seeds


def live_report(
    title: str, played: Mapping[str, Sequence[ReplayResult]], *, seeds: int, scored: str = "accuracy"
) -> LiveReport:
    """Score strategies on the same queries, and compare DER with all others.

    A family's curve is the upper envelope of its rows in cost and accuracy; between two rows it is linear, as a random
    mixture of both attains it. It is chosen in hindsight on the scored queries, which favours the family. If DER costs
    less than the whole curve, it is compared with the cheapest row.

    Args:
        title: the queries and pool, for display.
        played: strategy -> one result for each seed.
        seeds: number of seeds.
        scored: "accuracy", or the name of the quality metric.
    """
    ask_all_usd = float(np.mean([run.usd.sum() for run in played["plurality"]]))
    methods = {name: score(name, runs, ask_all_usd) for name, runs in played.items()}
    ours = [name for name in played if name.startswith("der ")]
    families = {
        family: [methods[row] for row in played if row.startswith(prefixes)] for family, prefixes in FAMILIES.items()
    }
    pairs = {}
    for name in ours:
        for family, rows in families.items():
            pairs[name, family] = played[name], _best_at_cost(rows, methods[name].cost_ratio, played)
        for other in played:
            if other != name:
                pairs[name, other] = played[name], played[other]
    differences = compare(pairs)
    equal_cost = {name: {family: differences[name, family] for family in families} for name in ours}
    minus = {name: {other: differences[name, other] for other in played if other != name} for name in ours}
    n = sum(len(run.worth) for run in played["plurality"])
    return LiveReport(title, n, seeds, scored, tuple(methods.values()), equal_cost, minus)


def _best_at_cost(
    rows: Sequence[Score], cost_ratio: float, played: Mapping[str, Sequence[ReplayResult]]
) -> Sequence[ReplayResult]:
    """Return the results of the best row, or mixture of two, at a cost; of the cheapest row if all cost more."""
    curve = _envelope(rows)
    found = on_curve(cost_ratio, curve, [played[point.name] for point in curve])
    return played[curve[0].name] if found is None else found


def _envelope(points: Sequence[Score]) -> list[Score]:
    """Return the upper envelope of cost and accuracy, from the cheapest to the most accurate point."""
    hull: list[Score] = []
    for point in sorted(points, key=lambda p: (p.cost_ratio, -p.accuracy)):
        if hull and point.accuracy <= hull[-1].accuracy:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(a: Score, b: Score) -> float:
    return (b.accuracy - a.accuracy) / max(b.cost_ratio - a.cost_ratio, 1e-12)


def show_live(report: LiveReport) -> None:
    """Print the report as two tables, the most accurate first."""
    seeds = counted(report.seeds, "seed")
    output.show_table(
        ("", report.scored, "95 %", "cost ratio", "$ / 1000", "calls"),
        ((row.name, *row.cells()[:5]) for row in sorted(report.methods, key=lambda row: -row.accuracy)),
        title=f"{report.title}: {counted(report.n_test, 'query')}, {seeds}",
        strong=report.minus,
    )
    output.show_table(
        ("", *FAMILIES),
        [(name, *(_difference(found[family]) for family in FAMILIES)) for name, found in report.equal_cost.items()],
        title="DER minus the best of a family at the same cost; *: beats it",
        strong=report.equal_cost,
    )
    output.console(_PIPED_WIDTH).print(
        "Each query is answered first; then its outcome is revealed. @ n: the chain cut after n steps. Cost ratio: the "
        "cost divided by that of asking every endpoint once (plurality). The best of a family is chosen in hindsight, "
        "and may be a random mixture of two of its rows; the single endpoints also count as self-correction."
    )


def _difference(found: PairedDifference) -> str:
    return "{}{} ({})".format(found.cells()[0], "*" if found.beats else " ", found.cells()[1])
