"""Prices from listings: units, what is missing, and the pool file they are written into. Over real HTTP."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from focalroute.cli.app import app
from focalroute.core.config import Dialect, Endpoint, Price
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.money.prices import (
    ListedPrice,
    listed_prices,
    read_listing,
    show_prices,
    stale,
    warn_if_stale,
    write_prices,
)
from focalroute.sim import SimulatedModel, SimulatedPool
from tests.loopback import json_reply, serving

#: What the three services answer to GET /models, cut down to what is read and some of what is beside it.
TOGETHER = [
    {"id": "org/a", "object": "model", "type": "chat", "context_length": 131072,
     "pricing": {"hourly": 0, "input": 0.88, "output": 0.9, "base": 0, "finetune": 0}},
    {"id": "org/cached", "pricing": {"hourly": 0, "input": 1.25, "output": 1.25, "cached_input": 0.2}},
    {"id": "org/dedicated-only", "pricing": {"hourly": 0, "input": 0, "output": 0, "base": 0, "finetune": 0}},
    {"id": "org/none"},
]  # fmt: skip
DEEPINFRA = {
    "object": "list",
    "data": [
        {"id": "org/a", "object": "model", "owned_by": "deepinfra", "metadata": {"description": "x", "pricing":
            {"input_tokens": 0.23, "output_tokens": 0.4, "cache_read_tokens": 0.1}}},
        {"id": "org/image", "metadata": {"pricing": {"per_image_unit": 0.01}}},
        {"id": "org/none", "metadata": None},
    ],
}  # fmt: skip
OPENROUTER = {
    "data": [
        {"id": "org/a", "pricing": {"prompt": "0.00000055", "completion": "0.00000219", "request": "0", "image": "0",
            "input_cache_read": "0.00000014"}},
        {"id": "org/a:free", "pricing": {"prompt": "0", "completion": "0"}},
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "org/odd", "pricing": {"prompt": "cheap", "completion": None}},
        {"id": "org/searches", "pricing": {"prompt": "0.000001", "completion": "0.000001", "request": "0.005"}},
        {"id": "org/researches", "pricing": {"prompt": "0.000001", "completion": "0.000001", "request": "0.5"}},
    ]
}  # fmt: skip


def price(prompt: str, completion: str, cached: str | None = None) -> Price:
    return Price(Decimal(prompt), Decimal(completion), Decimal(cached or prompt))


@pytest.mark.parametrize(
    ("dialect", "payload", "prices"),
    [
        ("together", TOGETHER, {"org/a": price("0.88", "0.9"), "org/cached": price("1.25", "1.25", "0.2")}),
        ("deepinfra", DEEPINFRA, {"org/a": price("0.23", "0.4", "0.1")}),
        ("openrouter", OPENROUTER, {"org/a": price("0.55", "2.19", "0.14"), "org/a:free": price("0", "0")}),
        ("together", {"data": "x"}, {}),
        ("deepinfra", None, {}),
        ("openrouter", [3, None, {"id": 3, "pricing": {"prompt": "1e-6", "completion": "1e-6"}}], {}),
    ],
)
def test_each_service_has_its_own_shape_and_unit(dialect: Dialect, payload: Any, prices: dict[str, Price]) -> None:
    """What is no price is left out: zero is one only where the service gives tokens away."""
    assert read_listing(payload, dialect) == prices


def endpoint(name: str, url: str, model: str = "org/a", **settings: Any) -> Endpoint:
    return Endpoint(name, model=model, base_url=url, **{"dialect": "together", **settings})


def test_every_endpoint_is_compared_with_its_listing_which_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTING_KEY", "k-123")

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(TOGETHER)

    with serving(handler) as server:
        pool = [
            endpoint("same", server.url, api_key_env="LISTING_KEY", input_usd_per_1m="0.880", output_usd_per_1m=0.9),
            endpoint("changed", server.url, input_usd_per_1m=1, output_usd_per_1m=1),
            endpoint("new", server.url),
            endpoint("gone", server.url, "org/withdrawn"),
            endpoint("silent", server.url, "org/none"),
            endpoint("own", server.url, dialect="vllm"),
        ]
        listed = {one.endpoint: one for one in listed_prices(pool)}
    states = {name: one.state for name, one in listed.items()}
    assert states == {
        "same": "same", "changed": "changed", "new": "new",
        "gone": "unlisted", "silent": "unlisted", "own": "no listing",
    }  # fmt: skip
    assert listed["new"].price == price("0.88", "0.9")
    assert [(got.path, got.headers["Authorization"]) for got in server.received] == [("/v1/models", "Bearer k-123")]


@pytest.mark.parametrize(
    ("answer", "detail"), [(web.Response(status=401), "HTTP 401"), (web.Response(text="<html>"), "is not JSON")]
)
def test_a_listing_that_cannot_be_fetched_says_why(answer: web.Response, detail: str) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return answer

    with serving(handler) as server:
        (one,) = listed_prices([endpoint("a", server.url)])
    assert (one.state, one.detail, one.price) == ("failed", detail, None)
    (one,) = listed_prices([endpoint("a", server.url)])  # nobody listens there any more
    assert (one.state, one.detail) == ("failed", "could not be fetched (ConnectError)")


def test_a_key_that_is_not_set_leaves_the_other_endpoints_their_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOGETHER_API_KEY", raising=False)
    model = SimulatedModel("m", input_usd_per_1m=Decimal("0.25"), output_usd_per_1m=Decimal("1.5"))
    with SimulatedPool([model], dialects="together") as pool:
        keyless, other = listed_prices([Endpoint("a", model="m", service="together"), *pool.endpoints])
    assert keyless.state == "failed"
    assert "TOGETHER_API_KEY is not set" in keyless.detail
    assert other.state == "same"


def test_a_key_that_is_not_set_leaves_others_of_the_same_address_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_KEY", raising=False)
    monkeypatch.setenv("LISTING_KEY", "k-123")

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(TOGETHER)

    with serving(handler) as server:
        keys = ("UNSET_KEY", "LISTING_KEY", "UNSET_KEY")
        listed = listed_prices([endpoint(f"{n}", server.url, api_key_env=key) for n, key in enumerate(keys)])
    assert [one.state for one in listed] == ["failed", "new", "new"]
    assert len(server.received) == 1


@pytest.mark.parametrize("dialect", ["together", "deepinfra", "openrouter"])
def test_the_simulated_services_list_what_they_charge(dialect: Any) -> None:
    model = SimulatedModel("m", input_usd_per_1m=Decimal("0.25"), output_usd_per_1m=Decimal("1.5"))
    with SimulatedPool([model], dialects=dialect) as pool:
        (one,) = listed_prices(pool.endpoints)
    assert one.price is not None
    assert (one.price[:2], one.state) == ((Decimal("0.25"), Decimal("1.5")), "same")


# -- the pool file -----------------------------------------------------------------------------------------------------

TODAY = date(2026, 11, 21)
POOL = """\
# my pool
[[endpoint]]
name = "a"
model = "org/a"  # the big one
input_usd_per_1m = 1.0   # from the invoice
output_usd_per_1m = 2

[endpoint.params]
temperature = 0.5

[[endpoint]]
name = "b"
model = "org/b"

[budget]
usd_total = 5
"""


def found(name: str, amount: Price, source: str = "listing") -> ListedPrice:
    return ListedPrice(name, amount, "new", source=source, as_of=TODAY)


def test_prices_their_date_and_source_go_into_the_file_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(POOL)
    unlisted = ListedPrice("c", None, "unlisted", source="listing", as_of=TODAY)
    write_prices(path, [unlisted])
    assert path.read_text() == POOL
    library = "genai-prices 0.2.3"
    write_prices(path, [found("a", price("0.88", "100", "0.2")), found("b", price("0.5", "0.5"), library), unlisted])
    text = path.read_text()
    assert "input_usd_per_1m = 0.88   # from the invoice\noutput_usd_per_1m = 100.0\n" in text
    assert text.startswith('# my pool\n[[endpoint]]\nname = "a"\nmodel = "org/a"  # the big one\n')
    a, b = load_pool(path).endpoints
    assert (a.price, b.price) == (price("0.88", "100", "0.2"), price("0.5", "0.5"))
    assert (a.prices_as_of, b.prices_as_of, a.params) == (TODAY, TODAY, {"temperature": 0.5})
    assert tomllib.loads(text)["budget"] == {"usd_total": 5}
    assert (a.prices_from, b.prices_from) == ("listing", library)
    write_prices(path, [found("b", price("0.5", "0.5"), library)])
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        '[[endpoint]]\r\nname = "a"\r\nmodel = "m" # mine\r\n',
        'endpoint = [{name = "a", model = "m"}]\n',
        '# on top\nendpoint = [\n  {name = "b", model = "m"}, # other\n  {name = "a", model = "m"},\n]\n',
        '  [[ endpoint ]] # odd\n  name = "a"\n  model = "m"\n\n  [endpoint.params]\n  stop = ["[[endpoint]]"]\n',
    ],
)
def test_any_layout_is_edited_with_its_comments(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_bytes(text.encode())
    write_prices(path, [found("a", price("1", "2"))])
    edited = path.read_bytes().decode()
    assert [one.price for one in load_pool(path).endpoints if one.name == "a"] == [price("1", "2")]
    assert all(comment in edited for comment in re.findall("#.*", text.replace("\r", "")))
    assert text.count("\n") <= edited.count("\n") <= text.count("\n") + 5


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_prices_end_their_own_table_in_the_file_s_own_line_ends(tmp_path: Path, newline: str) -> None:
    path, bom = tmp_path / "pool.toml", b"\xef\xbb\xbf"
    one, two = '[[endpoint]]\nname = "a"\nmodel = "m"\n', '\n  # the next one\n[[endpoint]]\nname = "b"\nmodel = "m"\n'
    path.write_bytes(bom + (one + two).replace("\n", newline).encode())
    write_prices(path, [found("a", price("1", "2"))])
    edited = path.read_bytes().removeprefix(bom).decode()
    write_prices(path, [found("a", price("1", "2"))])
    assert path.read_bytes() == bom + edited.encode()
    assert edited.count(newline) == edited.count("\n")
    edited = edited.replace(newline, "\n")
    assert edited.startswith(one + "input_usd_per_1m = 1.0\n")
    assert edited.endswith('prices_from = "listing"\n' + two)


def test_a_file_that_cannot_be_edited_safely_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(POOL)
    monkeypatch.setattr("tomlkit.dumps", lambda _: POOL.replace("org/b", "org/c"))
    with pytest.raises(ConfigError, match="write the prices into it by hand"):
        write_prices(path, [found("a", price("1", "1"))])
    assert path.read_text() == POOL


def test_prices_are_written_through_a_link_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "pool.toml", tmp_path / "pool.toml"
    path.write_text(POOL)
    path.chmod(0o640)
    link.symlink_to(path)
    write_prices(link, [found("a", price("1", "2"))])
    assert link.is_symlink()
    assert load_pool(path).endpoints[0].price == price("1", "2")
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_may_not_be_written_to_is_named() -> None:
    """In a process without the rights of root, for which nothing is read-only."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom focalroute.money.prices import _write_atomically\n"
        "os.geteuid() or os.seteuid(65534)\ntry:\n    _write_atomically(Path(sys.argv[1]), '')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.toml"
        path.write_text(POOL)
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        refused = f"ConfigError {path}: cannot be written: Permission denied; check its folder's permissions"
        assert refused in done.stdout
        assert path.read_text() == POOL


def test_old_prices_are_flagged_and_undated_ones_are_trusted(caplog: pytest.LogCaptureFixture) -> None:
    today = datetime.now(UTC).date()
    old, fresh = (
        Endpoint(str(days), model="m", input_usd_per_1m=1, output_usd_per_1m=1, prices_as_of=today - timedelta(days))
        for days in (40, 3)
    )
    assert [stale(old), stale(fresh), stale(Endpoint("x", model="m"))] == [True, False, False]
    with caplog.at_level(logging.WARNING):
        warn_if_stale([fresh])
        assert caplog.text == ""
        warn_if_stale([old, fresh])
    assert "the prices of 40 are more than 30 days old" in caplog.text


@pytest.mark.usefixtures("no_period_ends")
def test_the_command_shows_writes_and_fails_where_a_listing_does(tmp_path: Path) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(TOGETHER)

    path = tmp_path / "pool.toml"
    with serving(handler) as server:
        path.write_text(f'[[endpoint]]\nname = "a"\nmodel = "org/a"\ndialect = "together"\nbase_url = "{server.url}"\n')
        shown = CliRunner().invoke(app, ["pool", "prices", str(path), "--json"])
        assert shown.exit_code == 0
        (one,) = json.loads(shown.stdout)
        assert one == {
            "endpoint": "a", "state": "new", "stale": False, "detail": "",
            "price": {"prompt": "0.88", "completion": "0.9", "cached": "0.88"},
            "source": "listing", "as_of": datetime.now(UTC).date().isoformat(),
        }  # fmt: skip
        assert load_pool(path).endpoints[0].price is None
        written = CliRunner().invoke(app, ["pool", "prices", str(path), "--write"])
        assert "0.88" in written.stdout
        assert load_pool(path).endpoints[0].price == price("0.88", "0.9")
    assert CliRunner().invoke(app, ["pool", "prices", str(path)]).exit_code == 1


def test_the_table_says_what_is_unknown() -> None:
    (one,) = listed_prices([Endpoint("local", model="m", base_url="http://localhost:1/v1")])
    assert show_prices([one], as_json=False).splitlines()[1].split() == ["local", "-", "-", "-", "no", "listing"]
