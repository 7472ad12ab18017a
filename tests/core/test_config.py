"""Validation of pool files and settings, and that no secret leaks from them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import SecretStr

from focalroute.core.config import Budget, Endpoint, require_json
from focalroute.core.dollars import parse_usd
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool, validate_pool

SECRET = "sk-live-4f9a7c1e8b2d"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

ONE = '[[endpoint]]\nname = "a"\nmodel = "m"\n'


def pool_file(folder: Path, text: str) -> Path:
    path = folder / "pool.toml"
    path.write_text(text)
    return path


def make(**settings: Any) -> Endpoint:
    return Endpoint("a", model="m", **settings)


# -- the pool file -----------------------------------------------------------------------------------------------------


def test_a_full_pool_file_is_read_with_money_exact_as_written(tmp_path: Path) -> None:
    text = """
    [[endpoint]]
    name = "a"
    model = "org/m"
    base_url = "https://api.together.xyz/v1/"
    api_key_env = "TOGETHER_API_KEY"
    input_usd_per_1m = 0.1
    output_usd_per_1m = 3
    cached_input_usd_per_1m = "0.01"
    timeout_s = 5
    max_concurrency = 4
    n = true
    [endpoint.params]
    temperature = 0.2

    [[endpoint]]
    name = "b"
    model = "m"

    [ensemble]
    max_rounds = 2

    [budget]
    max_usd_per_ask = 0.002
    """
    pool = load_pool(str(pool_file(tmp_path, text)))
    first, second = pool.endpoints
    assert (first.name, second.name) == ("a", "b")
    assert first.base_url == "https://api.together.xyz/v1"
    assert (first.input_usd_per_1m, first.output_usd_per_1m) == (Decimal("0.1"), Decimal(3))
    assert first.cached_input_usd_per_1m == Decimal("0.01")
    assert first.params == {"temperature": 0.2}
    assert first.n is True
    assert first.price is not None
    assert second.price is None
    assert pool.ensemble == {"max_rounds": 2}
    assert pool.budget == Budget(max_usd_per_ask=Decimal("0.002"))


def test_without_a_budget_table_there_is_no_budget(tmp_path: Path) -> None:
    assert load_pool(pool_file(tmp_path, ONE)).budget is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{ONE}baseurl = "https://x/v1"\n', r"endpoint\[0\] 'a': unknown key 'baseurl'; did you mean 'base_url'\?"),
        (f'{ONE}client = "x"\n', r"endpoint\[0\] 'a': client: a pool file"),
        (
            f"{ONE}[budget]\nusd_per_day = 1\n",
            "budget: unknown key 'usd_per_day'; did you mean 'usd_per_period'",
        ),
        (f"{ONE}[endpoints]\nx = 1\n", r"unknown key 'endpoints'; a pool file has \[\[endpoint\]\]"),
        ('[[endpoint]]\nmodel = "m"\n', r"endpoint\[0\]: name: required"),
        (f'{ONE}[[endpoint]]\nname = "b"\n', r"endpoint\[1\] 'b': model: required"),
        ("", "the pool is empty"),
        ("endpoint = []\n", "the pool is empty"),
        ("[budget]\nusd_total = 1\n", "the pool is empty"),
        (ONE + ONE, "names must be unique, a judge's and an embedder's too; more than once: a"),
        ('[endpoint]\nname = "a"\nmodel = "m"\n', r"write \[\[endpoint\]\], with two brackets"),
        ("endpoint = 3\n", r"write \[\[endpoint\]\], with two brackets"),
        ("endpoint = [3]\n", r"endpoint\[0\]: write it as a table"),
        ('endpoint = ["name"]\n', r"endpoint\[0\]: write it as a table"),
        (f"budget = 20\n{ONE}", "budget: write it as a table"),
        (f"{ONE}[[budget]]\nusd_total = 1\n", "budget: write it as a table"),
        (f"ensemble = 20\n{ONE}", r"ensemble: write it as a table, \[ensemble\]"),
        (f"{ONE}[budget]\nusd_total = -1\n", "budget: usd_total: .*positive amount"),
        (f"{ONE}timeout_s = 0\n", r"endpoint\[0\] 'a': timeout_s: give more than 0$"),
        (f"{ONE}prices_as_of = '2026-11-30'\n", "prices_as_of: give a date, in a file without quotes"),
        (f"{ONE}client = 'openai'\n", "client: a pool file cannot hold one"),
        (f"{ONE}rpm = 60\n", "did you mean 'requests_per_minute'"),
        (f"{ONE}[budget]\ndaily = 5\n", "unknown key 'daily'; give usd_per_period"),
        ("[[endpoint]]\nname = ''\n", "name: is empty; give a text"),
        ("[[endpoint\n", "not valid TOML"),
        (f"{ONE}n = {'1' * 5000}\n", "not valid TOML"),
    ],
)
def test_a_wrong_pool_file_is_a_config_error_that_names_the_file_and_the_place(
    tmp_path: Path, text: str, says: str
) -> None:
    path = pool_file(tmp_path, text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_pool(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_is_not_text_or_not_there_or_a_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary.toml", tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            load_pool(path)


def test_the_example_pool_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGETHER_API_KEY", SECRET)
    monkeypatch.setenv("DEEPINFRA_API_KEY", SECRET)
    example = Path(__file__).resolve().parents[2] / "examples" / "pool.toml"
    assert validate_pool(load_pool(example).endpoints, askable=True)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded answers are not beside this checkout")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.pool.toml")), ids=lambda path: path.name)
def test_a_real_pool_file_is_read_whole(path: Path) -> None:
    written = tomllib.loads(path.read_text())["endpoint"]
    read = load_pool(path).endpoints
    assert [e.name for e in read] == [e["name"] for e in written]
    prices = [Decimal(str(e["input_usd_per_1m"])) if "input_usd_per_1m" in e else None for e in written]
    assert [e.input_usd_per_1m for e in read] == prices
    assert [e.price is None for e in read] == [price is None for price in prices]
    assert all(e.spoken == "openai" for e in read)


# -- one endpoint ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"max_concurrency": True},
        {"max_concurrency": "4"},
        {"max_concurrency": 0},
        {"timeout_s": "60"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"n": 1},
        {"logprobs": "no"},
        {"top_logprobs": 21},
        {"params": ["temperature"]},
        {"dialect": "anthropic"},
        {"base_url": 5},
        {"bogus": 1},
    ],
    ids=str,
)
def test_a_setting_of_the_wrong_type_or_range_names_itself(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make(**settings)


@pytest.mark.parametrize("name", ["", "x" * 201, 5, None])
def test_a_name_is_a_text_of_sensible_length(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        Endpoint(name, model="m")


@pytest.mark.parametrize(
    "prices",
    [
        {"input_usd_per_1m": 1},
        {"output_usd_per_1m": 1},
        {"cached_input_usd_per_1m": 1},
        {"input_usd_per_1m": -1, "output_usd_per_1m": 1},
        {"input_usd_per_1m": 1, "output_usd_per_1m": float("nan")},
        {"input_usd_per_1m": "NaN", "output_usd_per_1m": 1},
        {"input_usd_per_1m": float("inf"), "output_usd_per_1m": 1},
        {"input_usd_per_1m": 1, "output_usd_per_1m": True},
        {"input_usd_per_1m": 1, "output_usd_per_1m": "cheap"},
        {"input_usd_per_1m": 1, "output_usd_per_1m": 1, "cached_input_usd_per_1m": -1},
    ],
    ids=str,
)
def test_a_price_is_two_sided_finite_and_not_negative(prices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="usd_per_1m"):
        make(**prices)


def test_a_free_endpoint_is_priced_and_an_unpriced_one_is_not() -> None:
    assert make(input_usd_per_1m=0, output_usd_per_1m=0).price is not None
    assert make().price is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.together.xyz/v1",
        "ftp://x/v1",
        "https://",
        "https://x:port/v1",
        "https://x:99999",
        "http://x:0/v1",
        "http://[zz]/v1",
        " https://x/v1",
        "https://x/a b",
        "https://x/v1?version=1",
        "https://x/v1#top",
    ],
)
def test_an_address_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        make(base_url=url)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:{}@x/v1",
        "https://{}@x/v1",
        "https://:{}@x/v1",
        "https://u:{}@x℀.com",
        "http://user:{}",
        "https://x/v1?key={}",
        "https://u:{}@[zz]/v1",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        make(base_url=url.format(SECRET))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        SECRET,
        "0123abcd" * 8,
        "f0e1d2c3" * 8,  # starts with a letter, so it could be a variable's name
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
        "gsk_x9Y8w7V6u5T4s3R2q1P0o9N8m7L6",
        "has space",
        "",
        "CLÉ",
    ],
)
def test_a_key_in_place_of_a_variables_name_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match=r"api_key_env: give the [*]name[*] of an environment variable") as caught:
        make(api_key_env=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("name", ["TOGETHER_API_KEY", "key", "_K2", "AZURE_OPENAI_EASTUS2_CREDENTIALS_PRODUCTION"])
def test_usual_variable_names_are_taken(name: str) -> None:
    assert make(api_key_env=name).api_key_env == name


def test_a_mistaken_key_in_any_field_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    for field in ("dialect", "timeout_s", "n", "input_usd_per_1m", "params", "api_key", "base_url"):
        for build in (
            lambda field=field: make(**{field: SECRET + " \n" if field != "api_key" else f"{SECRET}\nX-Evil: 1"}),
            lambda field=field: load_pool(pool_file(tmp_path, f'{ONE}{field} = "{SECRET}"\n')),
        ):
            with pytest.raises(ConfigError, match=field) as caught:
                build()
            assert SECRET not in str(caught.value)
            assert caught.value.__cause__ is None


# -- keys --------------------------------------------------------------------------------------------------------------


def test_the_key_is_read_when_wanted_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = make(base_url="https://x/v1", api_key_env="SOME_KEY")
    monkeypatch.setenv("SOME_KEY", SECRET + "\n")
    key = endpoint.key()
    assert isinstance(key, SecretStr)
    assert key.get_secret_value() == SECRET
    shown = [str(key), repr(key), f"{key}", str(endpoint), repr(endpoint), repr([endpoint]), str(vars(endpoint))]
    assert not any(SECRET in text for text in shown)


def test_a_key_that_the_program_gives_is_shown_nowhere() -> None:
    for given in (SECRET, f" {SECRET}\n", SecretStr(SECRET)):
        endpoint = make(base_url="https://x/v1", api_key=given)
        key = endpoint.key()
        assert key is not None
        assert key.get_secret_value() == SECRET
        shown = [
            str(endpoint),
            repr(endpoint),
            str(vars(endpoint)),
            repr(asdict(endpoint)),
            json.dumps(asdict(endpoint), default=str),
        ]
        assert not any(SECRET in text for text in shown)
    with pytest.raises(ConfigError, match="give one of them"):
        make(api_key=SECRET, api_key_env="SOME_KEY")
    with pytest.raises(ConfigError, match="unencrypted"):
        validate_pool([make(base_url="http://api.openai.com/v1", api_key=SECRET)])


def test_without_a_variable_there_is_no_key() -> None:
    assert make(base_url="https://x/v1").key() is None


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_variable_that_is_not_set_is_a_config_error(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("SOME_KEY", raising=False)
    else:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match="'a': the environment variable SOME_KEY is not set"):
        make(api_key_env="SOME_KEY").key()


@pytest.mark.parametrize("value", [f"{SECRET}\r\nX-Evil: 1", f"{SECRET}\u2019", f"{SECRET}\x7f"])
def test_a_key_that_could_break_a_header_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match="SOME_KEY holds characters") as caught:
        make(api_key_env="SOME_KEY").key()
    assert SECRET not in str(caught.value)


def test_a_ready_client_is_kept_but_not_shown() -> None:
    client = openai.AsyncOpenAI(api_key=SECRET, base_url="https://x/v1")
    endpoint = make(client=client)
    assert endpoint.client is client
    assert SECRET not in repr(endpoint)
    assert "client" not in repr(endpoint)


def test_a_ready_client_excludes_an_address_and_a_key() -> None:
    client = openai.AsyncOpenAI(api_key=SECRET)
    with pytest.raises(ConfigError, match="not both"):
        make(client=client, base_url="https://x/v1")
    with pytest.raises(ConfigError, match="api_key_env"):
        make(client=client, api_key_env="SOME_KEY")


# -- dialects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("https://api.together.xyz/v1", "together"),
        ("https://API.Together.XYZ/v1", "together"),
        ("https://together.ai/v1", "together"),
        ("https://api.deepinfra.com/v1/openai", "deepinfra"),
        ("https://openrouter.ai:443/api/v1", "openrouter"),
        ("https://api.openai.com/v1", "openai"),
        ("http://localhost:8000/v1", "openai"),
        ("https://evil-together.xyz.example.com/v1", "openai"),
        ("https://together.xyz.example.com/v1", "openai"),
        ("https://evil-together.xyz/v1", "openai"),
        ("https://example.com/api.together.xyz/v1", "openai"),
        ("https://notopenrouter.ai/v1", "openai"),
    ],
)
def test_auto_goes_by_the_host_and_is_not_fooled_by_look_alikes(url: str, dialect: str) -> None:
    assert make(base_url=url).spoken == dialect


def test_a_dialect_that_was_set_wins_over_the_host() -> None:
    assert make(base_url="https://api.together.xyz/v1", dialect="vllm").spoken == "vllm"


def test_without_an_address_plain_openai_is_spoken() -> None:
    assert make().spoken == "openai"


# -- the pool, the budget, the limits ----------------------------------------------------------------------------------


def test_an_endpoint_is_frozen_and_does_not_share_its_params_with_the_caller() -> None:
    params = {"seed": 1}
    endpoint = make(params=params)
    params["seed"] = 2
    assert endpoint.params == {"seed": 1}
    with pytest.raises(AttributeError):
        endpoint.name = "b"  # type: ignore[misc]


def test_a_pool_to_ask_needs_addresses_but_one_to_replay_does_not() -> None:
    assert validate_pool([make()]) == (make(),)
    with pytest.raises(ConfigError, match="a: give base_url"):
        validate_pool([make()], askable=True)


def test_a_pool_holds_endpoints_only() -> None:
    with pytest.raises(ConfigError, match="expected Endpoint objects, got str"):
        validate_pool("pool.toml")


@pytest.mark.parametrize("amount", [0, -1, "NaN", "Infinity", "free", True, None])
def test_a_budget_is_a_positive_amount(amount: Any) -> None:
    if amount is not None:
        with pytest.raises(ConfigError, match="usd_total"):
            Budget(usd_total=amount)
    with pytest.raises(ConfigError, match="max_usd: give a positive amount"):
        parse_usd(amount, "max_usd")


@pytest.mark.parametrize("amount", [0.1, "0.1", Decimal("0.1")])
def test_an_amount_is_exact_as_written(amount: Any) -> None:
    assert parse_usd(amount, "max_usd") == Decimal("0.1") == Budget(usd_total=amount).usd_total


def test_all_but_the_name_go_by_keyword() -> None:
    with pytest.raises(ConfigError, match="Endpoint: give settings by keyword"):
        Endpoint("a", "https://x/v1", model="m")  # type: ignore[misc]
    with pytest.raises(ConfigError, match="Budget: give settings by keyword"):
        Budget(20)  # type: ignore[call-arg]


def nested(depth: int, inner: object) -> object:
    for _ in range(depth):
        inner = [{"a": inner}]
    return inner


@pytest.mark.parametrize("inner", [None, 1, True, 1.5, "ö\ud800", (1, 2), {1: "number"}, {}, []])
@pytest.mark.parametrize("depth", [0, 1, 15])
def test_values_that_json_can_hold_are_accepted(inner: object, depth: int) -> None:
    require_json("params", {"a": 1, "b": nested(depth, inner)})


@pytest.mark.parametrize(
    "inner", [{1, 2}, b"bytes", float("nan"), float("inf"), {("a",): 1}, object(), nested(9999, 1)]
)
@pytest.mark.parametrize("depth", [0, 1, 15])
def test_values_that_json_cannot_hold_are_refused(inner: object, depth: int) -> None:
    with pytest.raises(ConfigError, match="params: b: cannot be sent as JSON"):
        require_json("params", {"a": 1, "b": nested(depth, inner)})
