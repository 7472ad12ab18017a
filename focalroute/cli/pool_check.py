"""``focalroute pool check`` and ``pool measure``: check that a pool can be asked, and what its endpoints can do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import textwrap
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Literal

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.event_loops import DaemonThreads
from focalroute.core.json_values import as_object
from focalroute.core.pool import load_pool
from focalroute.core.records import Failure
from focalroute.core.spelling import did_you_mean
from focalroute.endpoints import capabilities
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.wire.refusals import located
from focalroute.money.cost import Bill, bill_of
from focalroute.money.prices import NotListed, fetch_models, listed_models, with_prices
from focalroute.serving.settings import pool_settings
from focalroute.serving.sync import Ensemble
from focalroute.store import is_redis, open_store, require_existing
from focalroute.store.base import PROBE, CapabilityRow, LedgerRow, Store

_TIMEOUT_S = 10.0
_WIDEST = 10_000  # characters of a table
_REFUSED = (401, 403)
_MOST_NAMES = 1000  # searched for a similar name
_LONGEST_ADVICE = 160


State = Literal["ok", "key", "refused", "unlisted", "unreachable", "no address"]


@dataclass(frozen=True, slots=True)
class _Service:
    """A service's response to a key.

    Attributes:
        accepted: whether the service accepts the key; None: it does not say.
        models: the models it lists; empty: it gives no list.
        more: whether the list is incomplete.
    """

    state: State
    detail: str = ""
    remedy: str = ""
    accepted: bool | None = None
    models: frozenset[str] = frozenset()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking one endpoint without asking it.

    Attributes:
        state: "ok" (no problem was found); "key" (its variable is not set, or holds no key); "refused" (the service
            does not accept the key); "unlisted" (the service's list lacks the model); "unreachable"; "no address" (it
            can only be replayed).
        detail: the state in words; never a key.
        key: the variable of its key; None: it needs none.
        listed: whether the service lists the model; None: it gives no list.
        priced: whether its price is known.
        capabilities: None: not known yet; `pool measure` finds them out.
        source: where ``capabilities`` comes from: "pool file", "store", or "" if unknown.
        reachable: whether the service responds; None: it was not called.
        accepted: whether the service accepts the key; None: it does not say, or there is none.
        remedy: what to do next, in one sentence; empty: nothing.
    """

    endpoint: str
    model: str
    state: State
    detail: str
    key: str | None
    listed: bool | None
    priced: bool
    capabilities: Capabilities | None
    source: str
    reachable: bool | None
    accepted: bool | None
    remedy: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of measuring one endpoint with a tiny question and a check of its capabilities.

    Attributes:
        state: "ok" or "failed".
        detail: why it failed.
        latency_s: latency of the tiny question.
        capabilities: None if it failed.
        cost: cost of all these calls in USD; None if unknown.
    """

    endpoint: str
    state: Literal["ok", "failed"]
    detail: str
    latency_s: float | None
    capabilities: Capabilities | None
    cost: Decimal | None


# -- check -------------------------------------------------------------------------------------------------------------


def check_command(pool: Path, store: str | None = None, *, as_json: bool = False) -> bool:
    """Check a pool file, and print the result; return whether every endpoint can be asked.

    If all endpoints have an address and a key, an ensemble is made, too, to check the settings. It is not asked.

    Args:
        store: the store with earlier measurements; None: the pool file's, if it has one.

    Raises:
        ConfigError: the file or a setting in it is invalid, or there is no such store.
        StoreError: the store cannot be read.
    """
    if store is not None:
        require_existing(store)
    endpoints = with_prices(load_pool(pool).endpoints)
    settings = pool_settings(pool, {})
    if store is None:
        store = settings.get("store")
        if isinstance(store, str) and not is_redis(store) and not Path(store).exists():
            store = None  # it is created by the first ask
    with closing(open_store(store)) as opened:
        found = check_pool(endpoints, opened)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
    else:
        _show_checked(found)
    if not any(one.state in ("key", "no address") for one in found):
        Ensemble.from_toml(pool, store=None).close()
    return all(one.state == "ok" for one in found)


def check_pool(endpoints: Sequence[Endpoint], store: Store | None = None) -> list[Checked]:
    """Check endpoints by their services' lists of models, which are free and fetched concurrently."""
    places = {_place(one): one for one in endpoints if _unusable(one) is None}
    with DaemonThreads(16, "focalroute-check") as workers:
        services = dict(zip(places, workers.map(_service, places.values()), strict=True))
    return [_check(one, services.get(_place(one)), store) for one in endpoints]


def _place(endpoint: Endpoint) -> tuple[str | None, str | None]:
    return endpoint.base_url, endpoint.api_key_env


def _unusable(endpoint: Endpoint) -> _Service | None:
    """Return why an endpoint cannot be asked, whatever its service says; None if nothing prevents it."""
    if endpoint.base_url is None:
        return _Service("no address", "it can be replayed, not asked", "give it a base_url")
    try:
        endpoint.key()
    except ConfigError as error:
        return _Service("key", str(error), _hint(endpoint, 401))
    return None


def _service(endpoint: Endpoint) -> _Service:
    """Fetch a service's list of models with an endpoint's key."""
    try:
        payload = fetch_models(endpoint, _TIMEOUT_S)
    except NotListed as error:
        return _without_list(endpoint, error)
    names = (model["id"] for model in listed_models(payload))
    return _Service(
        "ok", accepted=_lists_for_key_only(endpoint) or None, models=frozenset(filter(str.isprintable, names)),
        more=as_object(payload).get("has_more") is True,
    )  # fmt: skip


def _without_list(endpoint: Endpoint, error: NotListed) -> _Service:
    """Return what it means that a service gives no list of models."""
    address = f"{endpoint.base_url}/models"
    if error.status is None:
        return _Service("unreachable", f"{address} {error}", _hint(endpoint, None))
    if error.status in _REFUSED:
        return _Service("refused", f"{address}: {error}", _hint(endpoint, error.status), accepted=False)
    remedy = _hint(endpoint, 404) if error.status == 404 else "try it with focalroute pool measure"
    return _Service("ok", f"{address} gives no list of models: {error}", remedy)


def _hint(endpoint: Endpoint, status: int | None) -> str:
    """Return what to do about this HTTP status; None: there was no response."""
    return located(Failure("connection" if status is None else "status", "", status=status), endpoint).hint


def _lists_for_key_only(endpoint: Endpoint) -> bool:
    """Whether the list is refused without the key. Only then does getting it show that the key is accepted."""
    if endpoint.key() is None:
        return False
    try:
        fetch_models(replace(endpoint, service=None, api_key_env=None), _TIMEOUT_S)
    except NotListed as error:
        return error.status in _REFUSED
    return False


def _check(endpoint: Endpoint, service: _Service | None, store: Store | None) -> Checked:
    """Combine what the endpoint, its service and the store tell."""
    known, source = _known(endpoint, store)
    found = _unusable(endpoint) or service or _Service("ok")
    listed = _is_listed(endpoint, found)
    if listed is False and endpoint.spoken != "llamacpp":  # llama.cpp answers to any name
        advice = did_you_mean(endpoint.model, sorted(found.models)[:_MOST_NAMES])
        remedy = textwrap.shorten(
            f"correct the model {endpoint.model!r}; {advice}", _LONGEST_ADVICE, placeholder=" ..."
        )
        found = replace(found, state="unlisted", detail="the service does not list it", remedy=remedy)
    remedy = found.remedy
    if not remedy and endpoint.price is None:
        remedy = "look its price up with focalroute pool prices --write, or write it into the file"
    reachable = None if found.state in ("key", "no address") else found.state != "unreachable"
    return Checked(
        endpoint.name, endpoint.model, found.state, found.detail, endpoint.api_key_env, listed,
        priced=endpoint.price is not None, capabilities=known, source=source,
        reachable=reachable, accepted=found.accepted, remedy=remedy,
    )  # fmt: skip


def _is_listed(endpoint: Endpoint, service: _Service) -> bool | None:
    """Whether the service lists the model under any of its names; None if it gives no complete list."""
    model = endpoint.model
    names = {model, f"models/{model}", f"{model}:latest"}  # Gemini's and Ollama's forms
    if endpoint.spoken == "openrouter":
        names.add(model.rpartition(":")[0])  # without a routing suffix such as :nitro
    if names & service.models or any(one[-1:] == "*" and model.startswith(one[:-1]) for one in service.models):
        return True  # a LiteLLM proxy lists openai/*
    return None if service.more or not service.models else False


def _known(endpoint: Endpoint, store: Store | None) -> tuple[Capabilities | None, str]:
    """Return an endpoint's capabilities, as far as known, and their source."""
    said = capabilities.declared(endpoint)
    if said is not None:
        return said, "pool file"
    row = None if store is None else store.capabilities(capabilities.key(endpoint))
    if row is None:
        return None, ""
    return capabilities.override(endpoint, Capabilities.from_dict(row.values)), "store"


# -- measure -----------------------------------------------------------------------------------------------------------


def measure_command(pool: Path, store: str | None = None, *, as_json: bool = False) -> bool:
    """Measure a pool, and print the results; return whether every endpoint answered.

    Args:
        store: where to keep measurements and cost; created if missing. None: the pool file's, if it has one.

    Raises:
        ConfigError: the file is invalid.
        StoreError: the store cannot be opened or written.
    """
    endpoints = with_prices(load_pool(pool).endpoints)
    with closing(open_store(store or pool_settings(pool, {}).get("store"))) as opened:
        found = asyncio.run(measure_pool(endpoints, opened))
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2, default="{:f}".format))
    else:
        _show_measured(found)
    return all(one.state == "ok" for one in found)


async def measure_pool(endpoints: Sequence[Endpoint], store: Store) -> list[Measured]:
    """Ask all endpoints concurrently: a tiny question, then two to seven tiny calls that check their capabilities.

    Results and cost are written to the store, so that an ensemble on it need not check again for a week.
    """
    sessions = HttpSessions()
    try:
        return list(await asyncio.gather(*(_measure(endpoint, sessions, store) for endpoint in endpoints)))
    finally:
        await sessions.aclose()


async def _measure(endpoint: Endpoint, sessions: HttpSessions, store: Store) -> Measured:
    client, bills, at = EndpointClient(endpoint, sessions), list[Bill](), time.time()
    latency: float | None = None
    try:
        client.prepare()
        began = time.perf_counter()
        completion = await capabilities.call_trial(client)
        latency = time.perf_counter() - began
        bills.append(bill_of(endpoint, completion.usage, None))
        try:
            check = capabilities.CapabilityCheck(client)
            measured = await check.run()
        except CallFailed as error:
            if not error.failure.cut:
                raise
            bills.append(bill_of(endpoint, error.usage, None))
            check = capabilities.CapabilityCheck(client)  # now with room for the model's thinking
            measured = await check.run()
        bills.append(bill_of(endpoint, check.usage, None))
    except ConfigError as error:
        return Measured(endpoint.name, "failed", str(error), None, None, Decimal(0))
    except CallFailed as error:
        bills.append(bill_of(endpoint, error.usage, None, free=error.free))
        used, cost, source = Bill.total(bills)
        await asyncio.wrap_future(store.write(LedgerRow(PROBE, endpoint.name, at, used, cost, source)))
        return Measured(endpoint.name, "failed", error.failure.message, latency, None, cost)
    used, cost, source = Bill.total(bills)
    row = CapabilityRow(capabilities.key(endpoint), at, measured.to_dict())
    await asyncio.wrap_future(store.write(LedgerRow(PROBE, endpoint.name, at, used, cost, source), row))
    return Measured(endpoint.name, "ok", "", latency, capabilities.override(endpoint, measured), cost)


# -- what is printed ---------------------------------------------------------------------------------------------------


_YES_NO = {True: "yes", False: "no", None: "unknown"}


def _show_checked(found: Sequence[Checked]) -> None:
    rows = []
    for one in found:
        accepted, price = _YES_NO[one.accepted], "unknown"
        if not one.key:
            accepted = "none"
        elif one.state == "key":
            accepted = "not set"
        if one.priced:
            price = "known"
        able = _can(one.capabilities) or "unknown: pool measure"
        rows.append((one.endpoint, _YES_NO[one.reachable], accepted, _YES_NO[one.listed], price, able))
    _show(("endpoint", "reachable", "key accepted", "model listed", "price", "can do"), rows)
    for one in found:
        if one.remedy:
            print(f"{one.endpoint}: {one.remedy}" + (f" ({one.detail})" if one.detail else ""))


def _show_measured(found: Sequence[Measured]) -> None:
    rows = []
    for one in found:
        latency = "" if one.latency_s is None else f"{one.latency_s:.2f} s"
        cost = "unknown" if one.cost is None else f"${one.cost:.6f}"
        rows.append((one.endpoint, one.state, latency, cost, _can(one.capabilities)))
    _show(("endpoint", "state", "latency", "cost", "can do"), rows)
    for one in found:
        if one.detail:
            print(f"{one.endpoint}: {one.detail}")


def _can(able: Capabilities | None) -> str:
    """Describe capabilities in words; empty if unknown."""
    if able is None:
        return ""
    words = {
        f"log-probabilities (top {able.top_logprobs})": able.logprobs,
        "n samples": able.n,
        "held to choices": able.structured_choice,
        "whole choices": able.whole_choices,
        "usage of streams": able.stream_usage,
    }
    return ", ".join(word for word, there in words.items() if there) or "plain replies only"


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose last column is folded to fit; if that is not enough, it exceeds the terminal's width."""
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.measure import measure_renderables
    from rich.table import Table

    from focalroute.evaluate.output import console

    grid = Table(box=SIMPLE)
    *whole, folded = zip(columns, *rows, strict=True)
    for cells in whole:
        grid.add_column(cells[0], min_width=max(map(cell_len, cells)), no_wrap=True)
    grid.add_column(folded[0])
    for row in rows:
        grid.add_row(*row)
    out = console()
    least = measure_renderables(out, out.options.update(max_width=_WIDEST), [grid]).minimum
    out.width = max(out.width, least)
    out.print(grid)
