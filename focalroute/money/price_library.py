"""Prices from the library genai-prices (extra ``prices``). The only module that imports it.

The package ships the prices of many services (Together, Fireworks, OpenRouter, OpenAI and others; not DeepInfra), so
nothing is fetched, and prices are as old as the installed package. It does not say when they were looked up. The latest
start date of any price in it stands for that date, so prices may be newer, but not older.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from focalroute.core.config import Endpoint, Price
from focalroute.core.errors import ConfigError

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo


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
    """The endpoints, where those of a ``service`` without a price get the library's price and context length."""
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
        return LibraryPrice(None, source, as_of, "not in it")
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
    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.types import ModelPrice, StartDateConstraint

    today = datetime.now(UTC).date()
    entries = (entry for provider in get_snapshot().providers for entry in provider.models)
    conditions = (one for entry in entries if not isinstance(entry.prices, ModelPrice) for one in entry.prices)
    begun = (one.constraint.start_date for one in conditions if isinstance(one.constraint, StartDateConstraint))
    return max((day for day in begun if day <= today), default=date.min)
