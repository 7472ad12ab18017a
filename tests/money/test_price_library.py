"""Prices from genai-prices: its own code on data made here, and what the data it ships covers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute import Budget, Ensemble
from focalroute.cli.app import app
from focalroute.core.config import Endpoint, Price
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.records import Usage
from focalroute.money.cost import cost_of
from focalroute.money.prices import installed, listed_prices, look_up, show_prices

pytest.importorskip("genai_prices", reason="genai-prices is not installed (extra prices)")

from genai_prices import types
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot

FIREWORKS = "https://api.fireworks.ai/inference/v1"
TODAY = datetime.now(UTC).date()
NEW, TO_COME = TODAY - timedelta(3), TODAY + timedelta(30)


def usd(prompt: str, completion: str, **more: Any) -> types.ModelPrice:
    return types.ModelPrice(input_mtok=Decimal(prompt), output_mtok=Decimal(completion), **more)


def model(name: str, prices: Any, **more: Any) -> types.ModelInfo:
    return types.ModelInfo(id=name, match=types.ClauseStartsWith(starts_with=name), prices=prices, **more)


def since(day: date, prices: types.ModelPrice) -> types.ConditionalPrice:
    return types.ConditionalPrice(constraint=types.StartDateConstraint(start_date=day), prices=prices)


TIERED = types.TieredPrices(base=Decimal(1), tiers=[types.Tier(start=200_000, price=Decimal(2))])
BY_NIGHT = types.TimeOfDateConstraint(start_time=time(0, 0), end_time=time(6, 0))
MODELS = [
    model("plain", usd("0.2", "0.4")),
    model("cached", usd("0.2", "0.4", cache_read_mtok=Decimal("0.05")), context_window=32_000),
    model("dated", [since(date.min, usd("9", "9")), since(NEW, usd("1", "2")), since(TO_COME, usd("7", "7"))]),
    model("tiered", types.ModelPrice(input_mtok=TIERED, output_mtok=Decimal(3)), context_window=9_000),
    model("nightly", [types.ConditionalPrice(constraint=BY_NIGHT, prices=usd("1", "1")), since(NEW, usd("2", "2"))]),
    model("search", usd("1", "1", requests_kcount=Decimal(5))),
    model("speech", types.ModelPrice(input_mtok=Decimal(1))),
]  # fmt: skip


@pytest.fixture
def data() -> Iterator[None]:
    provider = types.Provider(id="fireworks", name="F", api_pattern=r"https://api\.fireworks\.ai", models=MODELS)
    set_custom_snapshot(DataSnapshot([provider], from_auto_update=False))
    yield
    set_custom_snapshot(None)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("name", "price", "detail"),
    [
        ("plain", ("0.2", "0.4", "0.2"), ""),
        ("cached", ("0.2", "0.4", "0.05"), ""),
        ("plain-2026-10", ("0.2", "0.4", "0.2"), "as fireworks's plain"),
        ("dated", ("1", "2", "1"), ""),
        ("tiered", None, "its price depends on the length of the prompt"),
        ("nightly", None, "its price depends on the time of day"),
        ("search-pro", None, "as fireworks's search, each call costs something besides its tokens"),
        ("speech", None, "it is not sold by the token"),
        ("absent", None, "the library has no such model"),
    ],
)
def test_a_price_is_one_that_holds_for_every_call_or_none(
    name: str, price: tuple[str, str, str] | None, detail: str
) -> None:
    found = look_up(FIREWORKS, name)
    assert found.price == (None if price is None else Price(*map(Decimal, price)))
    assert (found.detail, found.as_of) == (detail, NEW)
    assert found.source.startswith("genai-prices 0.")


@pytest.mark.parametrize(
    ("url", "name", "covered"),
    [
        ("https://api.together.xyz/v1", "meta-llama/Llama-3.3-70B-Instruct-Turbo", True),
        (FIREWORKS, "accounts/fireworks/models/llama-v3p1-8b-instruct", True),
        ("https://openrouter.ai/api/v1", "meta-llama/llama-3.3-70b-instruct", True),
        ("https://api.deepinfra.com/v1/openai", "meta-llama/Llama-3.3-70B-Instruct", False),
        ("http://localhost:8000/v1", "gpt-4o", False),
        (None, "gpt-4o", False),
    ],
)
def test_the_data_it_ships_covers_services_by_their_address(url: str | None, name: str, covered: bool) -> None:
    """Never by a model's name alone: another service's price is no price."""
    found = look_up(url, name)
    assert (found.price is not None) is covered
    assert date(2026, 1, 1) < found.as_of <= TODAY


def endpoint(name: str, entry: str, url: str = FIREWORKS, **settings: Any) -> Endpoint:
    return Endpoint(name, model=entry, base_url=url, **settings)


@pytest.mark.usefixtures("data")
def test_services_without_a_listing_are_looked_up_in_it_and_all_others_on_request() -> None:
    pool = [
        endpoint("same", "plain", input_usd_per_1m="0.2", output_usd_per_1m="0.4"),
        endpoint("changed", "plain", input_usd_per_1m=1, output_usd_per_1m=1),
        endpoint("new", "dated"),
        endpoint("tiered", "tiered"),
        endpoint("own", "plain", "http://localhost:1/v1"),
        endpoint("listed", "plain", "http://localhost:1/v1", dialect="together"),
    ]
    by_itself = {one.endpoint: one.state for one in listed_prices(pool)}
    assert by_itself == {
        "same": "same", "changed": "changed", "new": "new",
        "tiered": "no listing", "own": "no listing", "listed": "failed",
    }  # fmt: skip
    wanted = {one.endpoint: (one.state, one.detail) for one in listed_prices(pool, library=True)}
    assert wanted["listed"] == ("unlisted", "the library has no such model")
    assert wanted["tiered"] == ("unlisted", "its price depends on the length of the prompt")


@pytest.mark.usefixtures("data")
def test_the_command_writes_price_date_and_version_and_the_receipt_says_library(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(f'[[endpoint]]\nname = "a"\nmodel = "dated"\nbase_url = "{FIREWORKS}"\n')
    done = CliRunner().invoke(app, ["pool", "prices", str(path), "--write", "--json"])
    assert done.exit_code == 0, done.output
    (one,) = json.loads(done.stdout)
    assert (one["state"], one["as_of"]) == ("new", NEW.isoformat())
    (written,) = load_pool(path).endpoints
    assert (written.price, written.prices_as_of) == (Price(Decimal(1), Decimal(2), Decimal(1)), NEW)
    assert written.prices_from == one["source"]
    assert cost_of(Usage(10, 10), written) == (Decimal("0.00003"), "library")


@pytest.mark.usefixtures("data")
def test_a_library_that_is_out_of_date_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    table = show_prices(listed_prices([endpoint("a", "dated")]), as_json=False)
    assert f"new, genai-prices {look_up(FIREWORKS, 'dated').source.split()[1]} of {NEW}" in table
    assert "out of date" not in table
    monkeypatch.setattr("focalroute.money.prices.STALE_DAYS", 2)
    assert "the library is out of date" in show_prices(listed_prices([endpoint("a", "dated")]), as_json=False)


def test_without_it_services_have_no_listing_and_a_request_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert not installed()
    listed = listed_prices([endpoint("a", "dated")])
    assert [(one.state, one.detail) for one in listed] == [
        ("no listing", "a price library may have it: pip install 'focalroute[prices]'")
    ]
    with pytest.raises(ConfigError, match=r"pip install 'focalroute\[prices\]'"):
        listed_prices([endpoint("a", "dated")], library=True)


@pytest.mark.usefixtures("data")
def test_a_service_by_name_brings_the_price_and_what_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """So one string is enough where a budget is kept."""
    monkeypatch.setenv("FIREWORKS_API_KEY", "none")
    given = Endpoint("mine", service="fireworks", model="cached", input_usd_per_1m=3, output_usd_per_1m=4)
    pool = [Endpoint("fireworks/cached"), Endpoint("fireworks/tiered"), Endpoint("vllm/cached"), given]
    with Ensemble(pool, budget=Budget(usd_total=1, allow_unpriced=True)) as ensemble:
        filled, tiered, local, mine = ensemble.endpoints
    assert filled.price == Price(Decimal("0.2"), Decimal("0.4"), Decimal("0.05"))
    assert (filled.prices_as_of, filled.prices_from) == (NEW, look_up(FIREWORKS, "cached").source)
    assert tiered.price is local.price is None
    assert [one.context_tokens for one in (filled, tiered, local)] == [32_000, 9_000, None]
    assert mine == given


def test_its_data_has_the_context_lengths_of_well_known_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with Ensemble([Endpoint("openai/gpt-5-mini"), Endpoint("openai/gpt-4o", context_tokens=5000)]) as ensemble:
        mini, given = ensemble.endpoints
    assert mini.context_tokens is not None
    assert mini.context_tokens >= 128_000
    assert given.context_tokens == 5000
