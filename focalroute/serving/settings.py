"""The settings of an ensemble, with their types, defaults and bounds, from arguments or a pool file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Concatenate, Literal, ParamSpec, get_type_hints

from pydantic import Field
from pydantic.dataclasses import dataclass

from focalroute.core.config import (
    INSTEAD,
    MOST_SAMPLES,
    STRICT,
    Budget,
    Endpoint,
    Unchecked,
    check_http_client,
    raises_config_error,
)
from focalroute.core.errors import ConfigError, locating
from focalroute.core.pool import find_pool, load_pool, validate_pool
from focalroute.core.spelling import did_you_mean
from focalroute.serving.embedders import TextEmbedder, embedder_from_pool_file
from focalroute.serving.judge import Judge, judge_from_pool_file
from focalroute.serving.query import LONGEST_DEADLINE_S, MOST_USD_PER_SECOND
from focalroute.serving.telemetry import Telemetry

#: Settings that a pool file's [ensemble] cannot have, as they are code or have tables of their own.
_NO_FILE_KEYS = {"endpoints", "http_client", "budget", "embedder", "judge"}

P = ParamSpec("P")


@raises_config_error
@dataclass(frozen=True, config=STRICT)
class Settings:
    """The settings of an ensemble: the arguments of `AsyncEnsemble` and of `Ensemble`.

    Attributes:
        endpoints: the pool, with unique names; or the path of a pool file, whose other tables then apply, too; None:
            the pool file named by ``FOCALROUTE_POOL``, or ``pool.toml`` in the working directory.
        policy: folder of policy bundles, written as a path ("policy/"); None, or a folder without any yet: the cold
            start. Or the name of a rule such as "plurality", "best-single", "cascade" (`focalroute.policy.baselines`).
        store: file of the SQLite store; None: in memory, gone at the end. Or the address of a Redis, for a fleet:
            "redis://host:6379/0" (extra ``redis``; settings in `focalroute.store.redis.address`).
        http_client: an ``httpx.AsyncClient`` for all calls, except to endpoints with connection settings of their own
            (``client``, ``http_client``, ``verify``, ``cert``, ``proxy``); used as it is, and yours to close. None: our
            own connections.
        budget: limits on spending; None: no limit. With a budget every endpoint needs a price.
        embedder: embeds queries, and replies in open text to compare them: an endpoint with embeddings, an
            `OnnxEmbedder`, or any function of a text that returns a vector or an awaitable of one; None: the built-in
            hashed n-grams. Give the one that the policy was trained with. If it fails, or takes longer than a tenth of
            the deadline, the ask goes on without it, and ``degraded`` says so.
        max_rounds: how often the Decider may ask before it has to stop.
        explore: whether decisions are sampled from the policy (as updates of the Decider and `focalroute policy
            compare` need) instead of the most probable ones taken. None: they are sampled with ``update_every``, and
            from a policy that was not trained on a log of the pool, to get to know it.
        cost_weight: lambda, the cost of asking the whole pool once, in units of reward (1 for a right answer, -1 for a
            wrong one); the Decider sees it. With ``Budget(usd_per_query=...)`` it is only the initial weight on a new
            store.
        usd_per_second: the price, in USD, of each second until the answer; ``ask(usd_per_second=)`` overrides it. It
            counts in later rounds and in every wait for a member under way (`focalroute.serving.ask.TimePrice`). 0:
            time is free. With ``Budget(seconds_per_query=...)`` it is only the initial price on a new store.
        window: how many past outcomes the observation covers.
        deadline_s: for one whole ask, all rounds.
        attempts: most calls to one member, retries included; all members of an ask together have ``attempts - 1``
            retries.
        hedge_after: if a member takes longer than this quantile of its own latencies (such as 0.95), the next best
            endpoint is asked as well, as one of those retries. None: only if a member is silent
            (`docs/reliability.md`).
        early_stop: cancel members whose replies can no longer change the answer; see `docs/reliability.md` for when
            not to.
        cache_ttl_s: how long `ask` answers identical questions from a cache in this process (see
            `focalroute.serving.cache`). Such an answer is ``cached``, costs nothing and teaches nothing. Streams do
            not use the cache. None: no cache.
        samples: how many samples to draw from an endpoint without log-probabilities.
        update_every: how much feedback starts a background update, which trains or judges a challenger in the folder
            ``policy``; None: only by `update`. If several processes share a store, set it in one.
        probe_share: long-run cost of exploration (background calls to endpoints that an ask left out), as a share of
            the asks' cost; more at first without feedback, and after an endpoint changed (see
            `focalroute.serving.exploration`). These calls teach by the answer's feedback or by agreement. A named
            policy does not explore.
        learn_from_agreement: learn which endpoints are good from how far an answer's members agree, until feedback on
            it comes (see `focalroute.observe.referees`).
        synthesiser: the name of the pool's endpoint that writes the answers of ``ask(combine="synthesise")``.
        judge: gives feedback on some of the answers in the background; None: no judge.
        store_text: whether prompts and replies are kept in the store.
        durability: "normal" survives a crash of the process, "full" a loss of power.
        seed: makes the sampled decisions repeatable. With ``learn_from_agreement`` they also depend on when concurrent
            asks end, and on background exploration, which ``probe_share=0`` turns off. The first requests on a new
            store also depend on when the capability checks end (``focalroute pool measure`` makes these in
            advance).
        telemetry: whether spans and metrics are recorded (`docs/telemetry.md`), by the program's OpenTelemetry
            providers or by those of a `focalroute.serving.telemetry.Telemetry`.

    Raises:
        ConfigError: a setting is unknown, or out of bounds; the message names it.
    """

    shown_as: ClassVar[str] = "Ensemble"

    endpoints: Annotated[  # the code that uses them checks those that are unchecked here
        Iterable[Endpoint] | str | Path | None, Unchecked
    ] = None
    _: KW_ONLY
    policy: Annotated[str | Path | None, Unchecked] = None
    store: Annotated[str | Path | None, Unchecked] = None
    http_client: Annotated[Any, Unchecked] = None
    budget: Annotated[Budget | None, Unchecked] = None
    embedder: Annotated[TextEmbedder | None, Unchecked] = None
    max_rounds: Annotated[int, Field(ge=1, le=64)] = 3
    explore: bool | None = None
    cost_weight: Annotated[float, Field(ge=1e-4, le=1e4)] = 0.1
    usd_per_second: Annotated[float, Field(ge=0, le=MOST_USD_PER_SECOND)] = 0.0
    window: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    deadline_s: Annotated[float, Field(gt=0, le=LONGEST_DEADLINE_S)] = 60.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    hedge_after: Annotated[float, Field(ge=0.5, lt=1)] | None = None
    early_stop: bool = False
    cache_ttl_s: Annotated[float, Field(gt=0)] | None = None
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 10
    update_every: Annotated[int, Field(ge=1)] | None = None
    probe_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    learn_from_agreement: bool = True
    synthesiser: Annotated[str | None, Unchecked] = None
    judge: Annotated[Judge | None, Unchecked] = None
    store_text: bool = False
    durability: Literal["normal", "full"] = "normal"
    seed: Annotated[int, Field(ge=0)] | None = None
    telemetry: Annotated[Telemetry | bool, Unchecked] = False


def over_http_client(settings: Settings) -> Settings:
    """Return the settings with ``http_client`` set at every endpoint that uses it, judge and embedder included.

    Raises:
        ConfigError: ``http_client`` is not an ``httpx.AsyncClient``.
    """
    client, judge = settings.http_client, settings.judge
    if client is None:
        return settings
    try:
        check_http_client(client)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    endpoints = [endpoint.over(client) for endpoint in validate_pool(settings.endpoints)]
    if isinstance(judge, Judge) and isinstance(judge.by, Endpoint):
        judge = replace(judge, by=judge.by.over(client))
    embedder = settings.embedder
    if isinstance(embedder, Endpoint):
        embedder = embedder.over(client)
    return replace(settings, endpoints=endpoints, judge=judge, embedder=embedder)


def takes_settings(
    _: Callable[P, Settings],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an ``__init__`` the signature of `Settings`, for type checkers, editors and ``help``."""

    def with_signature(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        types = get_type_hints(Settings)
        parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for name, one in inspect.signature(Settings).parameters.items():
            parameters.append(one.replace(annotation=types[name]))
        init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return init

    return with_signature


def make_settings(endpoints: Iterable[Endpoint] | str | Path | None = None, *more: Any, **settings: Any) -> Settings:
    """Make the settings of an ensemble, from a pool file if a path or nothing is given.

    Raises:
        ConfigError: a setting, or the pool file, is wrong.
    """
    if endpoints is None and settings.keys() <= {field.name for field in fields(Settings)}:
        endpoints = find_pool()
    if isinstance(endpoints, str | Path) and not more:
        return Settings(**pool_settings(endpoints, settings))
    return Settings(endpoints, *more, **settings)


@contextmanager
def naming_pool_file(endpoints: object, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Name the pool file in errors of its settings, also in those that are found only where a setting is used."""
    try:
        yield
    except ConfigError as error:
        if error.field is None or error.field in overrides:
            raise
        path = find_pool() if endpoints is None else endpoints
        if not isinstance(path, str | Path) or error.field not in load_pool(path).ensemble:
            raise
        raise ConfigError(f"{path}: ensemble: {error}", private=error.private) from None


def pool_settings(path: str | Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an ensemble from a pool file, where ``overrides`` take precedence.

    Raises:
        ConfigError: the file is wrong, or has an unknown setting.
    """
    pool = load_pool(path)
    known = {field.name for field in fields(Settings)} - _NO_FILE_KEYS
    unknown = sorted(set(pool.ensemble) - known)
    with locating(f"{path}: ensemble", f"{Settings.shown_as}: "):
        if unknown:
            meant = did_you_mean(unknown[0], known, INSTEAD[Settings.shown_as])
            raise ConfigError(f"unknown key {unknown[0]!r}; {meant}")
        Settings(**{name: value for name, value in pool.ensemble.items() if name not in overrides})
    settings = {"endpoints": pool.endpoints, "budget": pool.budget, **pool.ensemble, **overrides}
    if "embedder" not in settings:
        settings["embedder"] = embedder_from_pool_file(pool, path)
    if "judge" not in settings:
        settings["judge"] = judge_from_pool_file(pool, path)
    return settings
