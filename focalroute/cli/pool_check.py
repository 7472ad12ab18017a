"""``focalroute pool check`` and ``pool probe``: whether a pool can be asked, and what its endpoints can do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.pool import load_pool
from focalroute.endpoints import capabilities
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.client import EndpointClient, HttpClients
from focalroute.money.cost import Bill, bill_of
from focalroute.money.prices import NotListed, fetch_models
from focalroute.serving.settings import pool_settings
from focalroute.serving.sync import Ensemble
from focalroute.store import open_store, require_existing
from focalroute.store.base import PROBE, CapabilityRow, LedgerRow, Store

_TIMEOUT_S = 10.0
_REFUSED = (401, 403)


State = Literal["ok", "key", "refused", "unreachable", "no address"]


@dataclass(frozen=True, slots=True)
class _Service:
    """A service, reached with one key; ``models``: those that it lists."""

    state: State
    detail: str
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Checked:
    """One endpoint, without asking it anything.

    Attributes:
        state: "ok"; "key" (its variable is not set, or holds no key); "refused" (the service does not take the key);
            "unreachable"; "no address" (it can only be replayed).
        detail: the state in words; never a key.
        key: the variable of its key; None: it needs none.
        listed: whether the service lists the model; None: it gives no list.
        priced: whether its price is known.
        capabilities: what it can do; None: not known yet, `pool probe` finds out.
        source: where that is from: "pool file", "store", or "".
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


@dataclass(frozen=True, slots=True)
class Probed:
    """One endpoint, asked a tiny question and then what it can do.

    Attributes:
        state: "ok" or "failed".
        detail: why it failed.
        latency_s: of the tiny question.
        capabilities: None where it failed.
        cost: USD of all these calls, None where unknown.
    """

    endpoint: str
    state: Literal["ok", "failed"]
    detail: str
    latency_s: float | None
    capabilities: Capabilities | None
    cost: Decimal | None


# -- check -------------------------------------------------------------------------------------------------------------


def check_command(pool: Path, store: str | None = None, *, as_json: bool = False) -> bool:
    """Check a pool file, and print what was found; whether every endpoint can be asked.

    If all have their address and key, an ensemble is made of it, too, which is asked nothing: that checks its settings.

    Args:
        store: where earlier probes are remembered.

    Raises:
        ConfigError: the file itself or a setting in it is wrong, or there is no such store.
        StoreError: the store cannot be read.
    """
    if store is not None:
        require_existing(store)
    endpoints = load_pool(pool).endpoints
    pool_settings(pool, {})
    if store is None:
        found = check_pool(endpoints)
    else:
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
    """Ask each service once for its list of models, which is free, all at a time."""
    places = {_place(one): one for one in endpoints if _unusable(one) is None}
    with ThreadPoolExecutor(max_workers=16) as workers:
        services = dict(zip(places, workers.map(_service, places.values()), strict=True))
    return [_check(one, services.get(_place(one)), store) for one in endpoints]


def _place(endpoint: Endpoint) -> tuple[str | None, str | None]:
    return endpoint.base_url, endpoint.api_key_env


def _unusable(endpoint: Endpoint) -> tuple[State, str] | None:
    """Why it cannot be asked whatever its service says."""
    if endpoint.base_url is None:
        return "no address", "has no base_url: it can be replayed, not asked"
    try:
        endpoint.api_key()
    except ConfigError as error:
        return "key", str(error)
    return None


def _service(endpoint: Endpoint) -> _Service:
    try:
        payload = fetch_models(endpoint, _TIMEOUT_S)
    except NotListed as error:
        if error.status in _REFUSED:
            return _Service("refused", f"HTTP {error.status}: is the key right, and for this service?")
        if error.status is None:
            detail = f"{endpoint.base_url}/models {error}: is the address right, and the service up?"
            return _Service("unreachable", detail)
        return _Service("ok", f"gives no list of models ({error})")
    models = payload.get("data") if isinstance(payload, Mapping) else payload
    listed = models if isinstance(models, list) else ()
    return _Service("ok", "", frozenset(str(model.get("id")) for model in listed if isinstance(model, Mapping)))


def _check(endpoint: Endpoint, service: _Service | None, store: Store | None) -> Checked:
    known, source = _known(endpoint, store)
    state, detail = _unusable(endpoint) or ("ok", "")
    listed = None
    if service is not None:
        state, detail = service.state, service.detail
        listed = endpoint.model in service.models if service.models else None
    if listed is False:
        detail = f"the service does not list the model {endpoint.model!r}"
    return Checked(
        endpoint.name, endpoint.model, state, detail, endpoint.api_key_env, listed,
        priced=endpoint.price is not None, capabilities=known, source=source,
    )  # fmt: skip


def _known(endpoint: Endpoint, store: Store | None) -> tuple[Capabilities | None, str]:
    said = capabilities.declared(endpoint)
    if said is not None:
        return said, "pool file"
    row = None if store is None else store.capabilities(capabilities.key(endpoint))
    if row is None:
        return None, ""
    return capabilities.override(endpoint, Capabilities.from_dict(row.values)), "store"


# -- probe -------------------------------------------------------------------------------------------------------------


def probe_command(pool: Path, store: str | None = None, *, as_json: bool = False) -> bool:
    """Probe a pool, and print what came back; whether every endpoint answered.

    Args:
        store: where to keep what was measured, and the cost; made if missing.

    Raises:
        ConfigError: the file itself is wrong.
        StoreError: the store cannot be opened.
    """
    endpoints = load_pool(pool).endpoints
    with closing(open_store(store)) as opened:
        found = asyncio.run(probe_pool(endpoints, opened))
    if as_json:
        plain = [dataclasses.asdict(one) | {"cost": None if one.cost is None else f"{one.cost:f}"} for one in found]
        print(json.dumps(plain, indent=2))
    else:
        _show_probed(found)
    return all(one.state == "ok" for one in found)


async def probe_pool(endpoints: Sequence[Endpoint], store: Store) -> list[Probed]:
    """Ask each endpoint a tiny question, then find out what it can do (two to seven tiny calls), all at a time.

    What was measured, and what it cost, is written to the store: an ensemble on it need not probe again for a week.
    """
    clients = HttpClients()
    try:
        return list(await asyncio.gather(*(_probe(endpoint, clients, store) for endpoint in endpoints)))
    finally:
        await clients.aclose()


async def _probe(endpoint: Endpoint, clients: HttpClients, store: Store) -> Probed:
    client, bills, at = EndpointClient(endpoint, clients), list[Bill](), time.time()
    latency: float | None = None
    try:
        client.prepare()
        began = time.perf_counter()
        completion = await capabilities.call_trial(client)
        latency = time.perf_counter() - began
        bills.append(bill_of(endpoint, completion.usage, None))
        measured, usage = await capabilities.check_capabilities(client)
        bills.append(bill_of(endpoint, usage, None))
    except ConfigError as error:
        return Probed(endpoint.name, "failed", str(error), None, None, Decimal(0))
    except CallFailed as error:
        bills.append(bill_of(endpoint, error.usage, None, free=error.free))
        used, cost, source = Bill.total(bills)
        store.write(LedgerRow(PROBE, endpoint.name, at, used, cost, source))
        return Probed(endpoint.name, "failed", error.failure.message, latency, None, cost)
    used, cost, source = Bill.total(bills)
    store.write(
        LedgerRow(PROBE, endpoint.name, at, used, cost, source),
        CapabilityRow(capabilities.key(endpoint), at, measured.to_dict()),
    )
    return Probed(endpoint.name, "ok", "", latency, capabilities.override(endpoint, measured), cost)


# -- what is printed ---------------------------------------------------------------------------------------------------


def _show_checked(found: Sequence[Checked]) -> None:
    rows = []
    for one in found:
        key = f"{one.key} {'not usable' if one.state == 'key' else 'set'}" if one.key else "none needed"
        rows.append((one.endpoint, one.state, key, _can(one.capabilities) or "not known: pool probe"))
    _show(("endpoint", "state", "key", "can do"), rows, found)
    unpriced = ", ".join(one.endpoint for one in found if not one.priced)
    if unpriced:
        print(f"no price: {unpriced}; what they cost is unknown, focalroute pool prices may find it")


def _show_probed(found: Sequence[Probed]) -> None:
    rows = []
    for one in found:
        latency = "" if one.latency_s is None else f"{one.latency_s:.2f} s"
        cost = "unknown" if one.cost is None else f"${one.cost:.6f}"
        rows.append((one.endpoint, one.state, latency, cost, _can(one.capabilities)))
    _show(("endpoint", "state", "latency", "cost", "can do"), rows, found)


def _can(able: Capabilities | None) -> str:
    """What it can do, in words; empty if that is not known."""
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


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]], found: Sequence[Checked | Probed]) -> None:
    """A table, and below it what is to be said of each endpoint."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=SIMPLE)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False).print(grid)
    for one in found:
        if one.detail:
            print(f"{one.endpoint}: {one.detail}")
