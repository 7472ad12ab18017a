"""Looks prices up in the providers' own listings or a library, and writes them into the pool file.

Together and DeepInfra list USD per million tokens as numbers, OpenRouter USD per token as strings. A price that is not
listed, or invalid, is reported as unknown, never taken as zero. The pool file keeps each price with its date and
source.

Services without a known listing are looked up in the library genai-prices, if installed (extra ``prices``). It ships
the prices of many services (Together, Fireworks, OpenRouter, OpenAI and others; not DeepInfra), so nothing is fetched,
and prices are as old as the installed package. It does not say when they were looked up. The latest start date of any
price in it stands for that date, so prices may be newer, but not older.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from focalroute.core.config import Dialect, Endpoint, Price
from focalroute.core.dollars import stated_usd
from focalroute.core.errors import ConfigError
from focalroute.core.event_loops import DaemonThreads
from focalroute.core.files import replace_whole
from focalroute.core.json_values import as_object, objects_in
from focalroute.core.network import proxy_of, tls_context
from focalroute.core.services import service_at

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_log = logging.getLogger("focalroute")

LISTING = "listing"
STALE_DAYS = 30
_TIMEOUT_S = 20.0  # between two bytes
_LONGEST_S = 20.0  # in total
_MOST_BYTES = 16 * 2**20
_HIGHEST = Decimal(100_000)


class NotListed(Exception):
    """A service's listing is not available; ``status``: that of the HTTP response, None if there was none."""

    def __init__(self, reason: str, status: int | None) -> None:
        super().__init__(reason)
        self.status = status


State = Literal["same", "changed", "new", "unlisted", "no listing", "failed"]


@dataclass(frozen=True, slots=True)
class ListedPrice:
    """An endpoint's price in its provider's listing, or in the price library.

    Attributes:
        price: the listed price, USD per million tokens; None if there is none.
        state: compared with the pool's own price: "same", "changed", "new" (the pool has none); or why there is no
            listed price: "unlisted" (the listing or library lacks the model or its price), "no listing" (the service
            has no known listing), "failed" (``detail`` says why).
        stale: whether the pool's own price was looked up too long ago.
        source: where ``price`` is from: "listing", or the library and its version.
        as_of: the date of ``price``.
    """

    endpoint: str
    price: Price | None
    state: State
    stale: bool = False
    detail: str = ""
    source: str = ""
    as_of: date | None = None


#: Listing by address; or the failure by (address, key variable), as another key may work.
_Fetched = dict[str | tuple[str, str | None], Mapping[str, Price] | str]


def listed_prices(endpoints: Iterable[Endpoint], *, library: bool = False) -> list[ListedPrice]:
    """Look up every endpoint's price in its provider's listing; each listing is fetched once.

    Endpoints of a service without a known listing are looked up in the price library, if it is installed. With
    ``library`` all endpoints are, and nothing is fetched.

    Raises:
        ConfigError: ``library`` is set, but the library is not installed.
    """
    fetched: _Fetched = {}
    return [_from_library(endpoint) if library else _look_up(endpoint, fetched) for endpoint in endpoints]


def _from_library(endpoint: Endpoint) -> ListedPrice:
    found = look_up(endpoint.base_url, endpoint.model)
    return _compare(endpoint, found.price, found.source, found.as_of, found.detail)


def _compare(endpoint: Endpoint, price: Price | None, source: str, as_of: date, detail: str = "") -> ListedPrice:
    """Compare a listed price with the pool's own."""
    state: State = "changed"
    if price is None:
        state = "unlisted"
    elif endpoint.price is None:
        state = "new"
    elif endpoint.price == price:
        state = "same"
    return ListedPrice(endpoint.name, price, state, stale(endpoint), detail, source, as_of)


def _look_up(endpoint: Endpoint, fetched: _Fetched) -> ListedPrice:
    """Look a price up in the provider's listing or, if there is no known listing, in the library."""
    old = stale(endpoint)
    if endpoint.base_url is None or endpoint.spoken not in _SHAPES:
        detail = ""
        if installed():
            found = _from_library(endpoint)
            if found.price is not None:
                return found
        elif endpoint.price is None:
            detail = "a price library may have it: pip install 'focalroute[prices]'"
        return ListedPrice(endpoint.name, None, "no listing", old, detail)
    address, with_key = endpoint.base_url, (endpoint.base_url, endpoint.api_key_env)
    listing = fetched.get(address, fetched.get(with_key))
    if listing is None:
        listing = _fetch(endpoint)
        fetched[with_key if isinstance(listing, str) else address] = listing
    if isinstance(listing, str):
        return ListedPrice(endpoint.name, None, "failed", old, listing)
    return _compare(endpoint, listing.get(endpoint.model), LISTING, datetime.now(UTC).date())


def _fetch(endpoint: Endpoint) -> Mapping[str, Price] | str:
    """The listing of the endpoint's service, or why it is not available."""
    try:
        return read_listing(fetch_models(endpoint), endpoint.spoken)
    except (NotListed, ConfigError) as error:  # such as a key that is not set
        return str(error)


def fetch_models(endpoint: Endpoint, timeout_s: float = _TIMEOUT_S) -> object:
    """Fetch ``GET /models`` from the service, parsed from JSON with exact numbers.

    Args:
        timeout_s: the longest wait for the next byte.

    Raises:
        ConfigError: the endpoint's key is not set.
        NotListed: no valid response came.
    """
    headers = {"User-Agent": "focalroute", **endpoint.headers}
    key = endpoint.key()
    if key and "anthropic" in (endpoint.service, service_at(endpoint.base_url)):  # it takes no bearer token here
        headers |= {"x-api-key": key.get_secret_value(), "anthropic-version": "2023-06-01"}
    elif key:
        headers["Authorization"] = f"Bearer {key.get_secret_value()}"
    with DaemonThreads(1, "focalroute-models") as thread:  # the caller may already run an event loop
        body = thread.submit(asyncio.run, _download(endpoint, headers, timeout_s)).result()
    try:
        found: object = json.loads(body, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise NotListed("is not JSON", 200) from None
    return found


async def _download(endpoint: Endpoint, headers: Mapping[str, str], timeout_s: float) -> bytes:
    """Download the response body in bounded time and memory; NotListed if that fails."""
    import httpx

    body, url = bytearray(), f"{endpoint.base_url}/models"
    unpacked = {**headers, "Accept-Encoding": "identity"}  # a compressed body may unpack to any size
    tls, proxy = tls_context(endpoint.verify, endpoint.cert), proxy_of(endpoint)
    try:
        async with (
            asyncio.timeout(_LONGEST_S),  # in total, as a service may send single bytes for ever
            httpx.AsyncClient(timeout=timeout_s, verify=tls, proxy=proxy, trust_env=False) as client,
            client.stream("GET", url, headers=unpacked) as response,
        ):
            if response.status_code != 200:
                raise NotListed(f"HTTP {response.status_code}", response.status_code)
            if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                raise NotListed("the listing is compressed although it was requested uncompressed", 200)
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise NotListed("the listing is too long", 200)
    except TimeoutError:
        raise NotListed("the listing takes too long", None) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotListed(f"could not be fetched ({type(error).__name__})", None) from None
    return bytes(body)


def read_listing(payload: object, dialect: Dialect) -> dict[str, Price]:
    """Read model names and prices from a response to ``GET /models``. Models without a valid price are left out."""
    found: dict[str, Price] = {}
    for model in listed_models(payload):
        price = _SHAPES[dialect].read(model)
        if price is not None:
            found[model["id"]] = price
    return found


def listed_models(payload: object) -> list[Mapping[str, Any]]:
    """Return the models with an id in a response to ``GET /models``, each as the service describes it."""
    models = payload.get("data") if isinstance(payload, Mapping) else payload
    return [model for model in objects_in(models) if isinstance(model.get("id"), str)]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The layout of prices in a listing: the path to their table, their names, and the tokens they are for."""

    path: Sequence[str]
    names: tuple[str, str, str]  # prompt, completion, cached prompt
    tokens: int
    free: bool  # whether zero means free; otherwise it means not sold by the token

    def read(self, model: Mapping[str, Any]) -> Price | None:
        for step in self.path:
            model = as_object(model.get(step))
        prompt, completion, cached = (self._per_million(model.get(name)) for name in self.names)
        if prompt is None or completion is None or (prompt == completion == 0 and not self.free):
            return None
        fee = model.get("request")  # OpenRouter: for each call, such as for a search
        if fee is not None and self._per_million(fee) != 0:
            return None
        if cached is None:
            cached = prompt
        return Price(prompt, completion, cached)

    def _per_million(self, amount: object) -> Decimal | None:
        value = stated_usd(amount, _HIGHEST * self.tokens / 1_000_000)
        return None if value is None else value * 1_000_000 / self.tokens


_SHAPES: Mapping[Dialect, _Shape] = {
    "together": _Shape(("pricing",), ("input", "output", "cached_input"), 1_000_000, free=False),
    "deepinfra": _Shape(
        ("metadata", "pricing"), ("input_tokens", "output_tokens", "cache_read_tokens"), 1_000_000, free=False
    ),
    "openrouter": _Shape(("pricing",), ("prompt", "completion", "input_cache_read"), 1, free=True),
}


# -- the library genai-prices ------------------------------------------------------------------------------------------

_NAME = "genai-prices"
_SHORTEST = 1024  # tokens: a shorter context length is an error in the library


class LibraryPrice(NamedTuple):
    """A model's price in the library.

    Attributes:
        price: None: no single price holds for every call; ``detail`` says why.
        context_tokens: the most tokens of a prompt and its reply; None: unknown.
        source: the library and its version.
        as_of: the date of the library's data; see above.
        detail: the name of the library's entry, if it differs from the model's; or why there is no price.
    """

    price: Price | None
    source: str
    as_of: date
    detail: str = ""
    context_tokens: int | None = None


def installed() -> bool:
    """Whether genai-prices is installed."""
    return find_spec("genai_prices") is not None


def with_prices(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints, with the library's price and context length for those of a ``service`` without a price."""
    return tuple(_filled_in(endpoint) for endpoint in endpoints)


def _filled_in(endpoint: Endpoint) -> Endpoint:
    if endpoint.service is None or endpoint.price is not None or not installed():
        return endpoint
    found = look_up(endpoint.base_url, endpoint.model)
    if endpoint.context_tokens is None:
        endpoint = replace(endpoint, context_tokens=found.context_tokens)
    if found.price is None:
        return endpoint
    prompt, completion, cached = found.price
    return replace(
        endpoint,
        input_usd_per_1m=prompt,
        output_usd_per_1m=completion,
        cached_input_usd_per_1m=cached,
        prices_as_of=found.as_of,
        prices_from=found.source,
    )


def look_up(base_url: str | None, model: str) -> LibraryPrice:
    """The library's price of a model at the service with this address.

    Raises:
        ConfigError: the library is not installed.
    """
    if not installed():
        raise ConfigError("prices from a library need genai-prices: pip install 'focalroute[prices]'")
    from genai_prices.data_snapshot import get_snapshot

    source, as_of = f"{_NAME} {version(_NAME)}", _data_date()
    try:
        provider, entry = get_snapshot().find_provider_model(model, None, None, base_url or "")
    except LookupError:
        return LibraryPrice(None, source, as_of, "the library has no such model")
    price, why = _price(entry)
    named = "" if entry.id.lower() == model.lower() else f"as {provider.id}'s {entry.id}"
    length = entry.context_window if (entry.context_window or 0) >= _SHORTEST else None
    return LibraryPrice(price, source, as_of, ", ".join(filter(None, (named, why))), length)


def _price(entry: ModelInfo) -> tuple[Price | None, str]:
    """Today's price; None, and the reason, if no single price holds for all calls."""
    from genai_prices.types import ModelPrice, TimeOfDateConstraint

    conditions = [] if isinstance(entry.prices, ModelPrice) else entry.prices
    if any(isinstance(one.constraint, TimeOfDateConstraint) for one in conditions):
        return None, "its price depends on the time of day"
    prices = entry.get_prices(datetime.now(UTC))
    if prices.requests_kcount:
        return None, "each call costs something besides its tokens"
    prompt, completion, cached = prices.input_mtok, prices.output_mtok, prices.cache_read_mtok
    if prompt is None or completion is None:
        return None, "it is not sold by the token"
    if not isinstance(prompt, Decimal) or not isinstance(completion, Decimal):
        return None, "its price depends on the length of the prompt"
    return Price(prompt, completion, cached if isinstance(cached, Decimal) else prompt), ""


def _data_date() -> date:
    """Return the latest start date of any price in the library, as a bound of when its prices were looked up."""
    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.types import ModelPrice, StartDateConstraint

    today = datetime.now(UTC).date()
    entries = (entry for provider in get_snapshot().providers for entry in provider.models)
    conditions = (one for entry in entries if not isinstance(entry.prices, ModelPrice) for one in entry.prices)
    begun = (one.constraint.start_date for one in conditions if isinstance(one.constraint, StartDateConstraint))
    return max((day for day in begun if day <= today), default=date.min)


# -- showing them ------------------------------------------------------------------------------------------------------


def show_prices(listed: Iterable[ListedPrice], *, as_json: bool) -> str:
    """Format prices as a table, or as a JSON list; USD per million tokens."""
    if as_json:
        return json.dumps([_to_json(one) for one in listed], indent=2)
    lines = [f"{'endpoint':32} {'input':>10} {'output':>10} {'cached':>10}  state"]
    for one in listed:
        amounts = ["-"] * 3
        if one.price is not None:
            amounts = [f"{amount.normalize():f}" for amount in one.price]
        notes = [one.state, one.detail]
        if one.source not in ("", LISTING):
            notes.append(f"{one.source} of {one.as_of}")
        if one.stale:
            notes.append("stale")
        if one.source not in ("", LISTING) and _old(one.as_of):
            notes.append("the library is out of date")
        columns = " ".join(f"{amount:>10}" for amount in amounts)
        lines.append(f"{one.endpoint:32} {columns}  {', '.join(filter(None, notes))}")
    return "\n".join(lines)


def _to_json(one: ListedPrice) -> dict[str, Any]:
    price = as_of = None
    if one.price is not None:
        price = {name: f"{amount:f}" for name, amount in one.price._asdict().items()}
    if one.as_of is not None:
        as_of = one.as_of.isoformat()
    plain = {"endpoint": one.endpoint, "state": one.state, "stale": one.stale, "detail": one.detail, "price": price}
    return plain | {"source": one.source, "as_of": as_of}


# -- how old they are --------------------------------------------------------------------------------------------------


def stale(endpoint: Endpoint) -> bool:
    """Whether the price was looked up more than 30 days ago; a price without a date is the user's own, never stale."""
    return _old(endpoint.prices_as_of)


def _old(day: date | None) -> bool:
    return day is not None and (datetime.now(UTC).date() - day).days > STALE_DAYS


def warn_if_stale(endpoints: Iterable[Endpoint]) -> None:
    """Log a warning that names the endpoints whose prices are old."""
    names = [endpoint.name for endpoint in endpoints if stale(endpoint)]
    if names:
        _log.warning(
            "the prices of %s are more than %d days old; renew them with focalroute pool prices --write",
            ", ".join(names), STALE_DAYS,
        )  # fmt: skip


# -- the pool file -----------------------------------------------------------------------------------------------------

_KEYS = ("input_usd_per_1m", "output_usd_per_1m", "cached_input_usd_per_1m", "prices_as_of", "prices_from")


def write_prices(path: Path, listed: Iterable[ListedPrice]) -> None:
    """Write known prices, with date and source, into a pool file's ``[[endpoint]]`` tables.

    The rest of the file, including comments and layout, is unchanged.

    Raises:
        ConfigError: the file cannot be edited safely, or cannot be written; it is left unchanged.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    prices = {one.endpoint: one for one in listed if one.price is not None}
    if not prices:
        return
    whole = path.read_bytes().decode()
    text = whole.removeprefix("\ufeff")  # some editors write a byte order mark
    newline = "\r\n" if "\r\n" in text else "\n"
    wanted = tomllib.loads(text)
    try:
        document = tomlkit.parse(text)
        for table, plain in zip(document["endpoint"], wanted["endpoint"], strict=True):  # type: ignore[arg-type,unused-ignore]
            if plain.get("name") in prices:
                ending = _take_ending(table)
                for key, value in zip(_KEYS, _toml_values(prices[plain["name"]]), strict=True):
                    item = tomlkit.value(value)
                    item.trivia.trail = newline
                    table[key] = item
                    plain[key] = tomllib.loads(f"value = {value}")["value"]
                if ending:
                    table.value.body.extend(ending)
        edited = tomlkit.dumps(document)
        safe = tomllib.loads(edited) == wanted
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError):
        safe = False
    if not safe:
        raise ConfigError(f"{path}: cannot be edited safely; write the prices into it by hand")
    _write_atomically(path, whole[: len(whole) - len(text)] + edited)


def _take_ending(table: Any) -> list[Any]:
    """Remove and return a table's trailing comments and empty lines, which belong to the next; none if it is inline."""
    from tomlkit.items import Table

    ending: list[Any] = []
    while isinstance(table, Table) and table.value.body and table.value.body[-1][0] is None:
        ending.insert(0, table.value.body.pop())
    return ending


def _toml_values(listed: ListedPrice) -> tuple[str, ...]:
    """The values of `_KEYS`, as TOML."""
    amounts = [format(amount.normalize(), "f") for amount in listed.price or ()]
    floats = [amount if "." in amount else f"{amount}.0" for amount in amounts]
    return (*floats, str(listed.as_of), json.dumps(listed.source))


def _write_atomically(path: Path, text: str) -> None:
    try:
        replace_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; check its folder's permissions") from None
