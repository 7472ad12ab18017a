"""Settings, validated once, at the door: `Endpoint`, `Budget`, and the pool file.

Inside, only these frozen objects travel. Whatever is wrong with them is a `ConfigError` that names the field and says
what to do. API keys are read from the environment when a client is made and are never held here.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, SecretStr, ValidationError
from pydantic.dataclasses import dataclass

from focalroute.core.amounts import decimal_of, per_period, per_tag
from focalroute.core.errors import ConfigError
from focalroute.core.keys import KeyUse, misdirected

Dialect = Literal["auto", "openai", "together", "deepinfra", "vllm", "llamacpp", "openrouter"]

_DIALECT_HOSTS: tuple[tuple[str, Dialect], ...] = (
    ("together.xyz", "together"),
    ("together.ai", "together"),
    ("deepinfra.com", "deepinfra"),
    ("openrouter.ai", "openrouter"),
)

# A part of a variable's name that is rather a key: long, and not just words in one case.
_KEY_LIKE = re.compile(r"(?=.*[0-9]|.*[a-z].*[A-Z]|.*[A-Z].*[a-z])[A-Za-z0-9]{20,}")

#: Request fields that are ours to set.
RESERVED_PARAMS = frozenset(("messages", "model", "stream", "stream_options"))

#: No service gives more samples in one call.
MOST_SAMPLES = 128

_HIGHEST_PRICE = Decimal(100_000)

#: Settings by the names they once had, and have now.
FORMER_KEYS = {"price_of_money": "cost_weight"}

_C = TypeVar("_C")


def raises_config_error(cls: type[_C]) -> type[_C]:
    """Make construction raise `ConfigError` instead of pydantic's ValidationError."""
    construct = cls.__init__
    positional = [field.name for field in fields(cls) if not field.kw_only]  # type: ignore[arg-type]

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it replaces one
        if len(args) > len(positional):  # which pydantic may overlook
            raise ConfigError(f"{cls.__name__}: give settings by keyword")
        try:
            construct(self, *args, **kwargs)
        except ValidationError as error:
            raise ConfigError(_explain(cls.__name__, positional, error)) from None

    type.__setattr__(cls, "__init__", __init__)
    return cls


def _explain(what: str, positional: Sequence[str], error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        first, *rest = item["loc"] or ("",)
        where = ".".join(map(str, (positional[first] if isinstance(first, int) else first, *rest)))
        if item["type"] == "unexpected_keyword_argument":
            now = FORMER_KEYS.get(where)
            advice = f"is named {now} now; rename it" if now else "unknown key; remove it or correct its spelling"
            problems.append(f"{where}: {advice}")
        elif item["type"] in ("missing", "missing_argument"):
            problems.append(f"{where}: required")
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {message}" if where else message)
    return f"{what}: " + "; ".join(problems)


def _http_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.split() == [url]
    except ValueError:  # no such host or port; its message may quote credentials
        usable = False
    if not usable:
        raise ValueError("give an http:// or https:// address, such as https://api.together.xyz/v1")
    if parts.username or parts.password:
        raise ValueError("must not contain credentials; name an environment variable in api_key_env instead")
    if parts.query or parts.fragment:
        raise ValueError("must not contain a query (?) or a fragment (#); the path of the call is appended to it")
    return url.rstrip("/")


def _env_name(name: str) -> str:
    if not name.isascii() or not name.isidentifier() or any(map(_KEY_LIKE.fullmatch, name.split("_"))):
        raise ValueError("give the *name* of an environment variable (letters, digits, _), never the key itself")
    return name


def _price(amount: object) -> Decimal:
    value = decimal_of(amount)
    if value is None or not 0 <= value <= _HIGHEST_PRICE:
        raise ValueError(f"give USD per million tokens, between 0 and {_HIGHEST_PRICE}")
    return value


def _budget(amount: object) -> Decimal:
    value = decimal_of(amount)
    if value is None or value <= 0:
        raise ValueError("give a positive amount of USD")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200)]
Url = Annotated[str, AfterValidator(_http_url)]
EnvName = Annotated[str, AfterValidator(_env_name)]
#: Money as the caller may write it. Once validated it is a Decimal, exact as written; inside it is read through
#: `Endpoint.price` and `usd`.
Amount = Decimal | float | str
UsdPer1M = Annotated[Amount, PlainValidator(_price)]
Usd = Annotated[Amount, PlainValidator(_budget)]

#: Of every class of settings: exact types, no unknown keys, no values in messages.
STRICT = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class Price(NamedTuple):
    """USD per million tokens; ``cached`` for prompt tokens from the provider's cache, ``prompt`` for the others."""

    prompt: Decimal
    completion: Decimal
    cached: Decimal


@raises_config_error
@dataclass(frozen=True, config=STRICT)
class Endpoint:
    """One model at one OpenAI-compatible service.

    Attributes:
        name: what the pool calls it; everything learned is kept under this name.
        model: the model name sent to the service.
        base_url: the service, up to and including ``/v1``; not needed with ``client``, nor to replay recorded answers.
        api_key_env: the environment variable that holds the key; None: no key is sent. The key goes to ``base_url``'s
            host only, and a pool in which one variable would go to two services is refused.
        client: a ready ``openai.AsyncOpenAI`` or ``AsyncAzureOpenAI`` to speak through instead of our own HTTP client.
        input_usd_per_1m: USD per million prompt tokens; None: unknown (which is not free).
        output_usd_per_1m: USD per million completion tokens.
        cached_input_usd_per_1m: USD per million cached prompt tokens; None: same as the others.
        prices_as_of: when the prices were looked up (`focalroute pool prices` writes it); None: not known to age.
        prices_from: where they were looked up, "listing" or a price library and its version (written there, too);
            None: whoever wrote them down knows.
        dialect: how the service deviates from OpenAI; "auto" goes by the host.
        timeout_s: for one call.
        max_concurrency: calls under way at a time, in each event loop; None: no limit but what 429 teaches.
        requests_per_minute: calls in any 60 seconds, by each process; None: no limit.
        tokens_per_minute: prompt and completion tokens in any 60 seconds, by each process; None: no limit.
        logprobs: overrides the probe: whether log-probabilities come back.
        top_logprobs: overrides the probe: how many alternatives a token comes with (0: only its own).
        n: overrides the probe: whether several samples can be asked for in one call.
        structured_choice: overrides the probe: whether an answer can be constrained to the choices.
        stream_usage: overrides the probe: whether a stream ends with its usage.
        whole_choices: score a closed question by the likelihood of each choice as a whole instead of asking for its
            letter: a prompt for every choice, at a service whose ``/completions`` echoes prompts with their
            log-probabilities, such as vLLM. Where that is refused, the letters are asked for.
        tools: whether it takes tools; None: it is asked, and what it refuses is remembered for an hour. Queries with
            tools are not put to an endpoint that takes none.
        images: likewise of images in messages.
        json_schema: likewise of a ``response_format`` with a JSON schema in ``params``.
        params: provider parameters sent with every call (``temperature``, ``seed``, ...).
    """

    name: Name
    _: KW_ONLY
    model: Name
    base_url: Url | None = None
    api_key_env: EnvName | None = None
    client: Any = Field(default=None, repr=False)
    input_usd_per_1m: UsdPer1M | None = None
    output_usd_per_1m: UsdPer1M | None = None
    cached_input_usd_per_1m: UsdPer1M | None = None
    prices_as_of: date | None = None
    prices_from: Name | None = None
    dialect: Dialect = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: bool | None = None
    structured_choice: bool | None = None
    stream_usage: bool | None = None
    whole_choices: bool = False
    tools: bool | None = None
    images: bool | None = None
    json_schema: bool | None = None
    params: Mapping[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.client is not None and not any(cls.__name__ == "AsyncOpenAI" for cls in type(self.client).__mro__):
            raise ValueError(f"client: give an AsyncOpenAI or AsyncAzureOpenAI, got {type(self.client).__name__}")
        reserved = RESERVED_PARAMS & set(self.params)
        if reserved:
            raise ValueError(f"params: {min(reserved)}: is set by focalroute; remove it")
        if self.base_url is not None and self.client is not None:
            raise ValueError("base_url, client: give one of them, not both")
        if self.client is not None and self.api_key_env is not None:
            raise ValueError("api_key_env: a ready client brings its own key; drop it")
        if (self.input_usd_per_1m is None) != (self.output_usd_per_1m is None):
            raise ValueError("input_usd_per_1m, output_usd_per_1m: give both or neither")
        if self.cached_input_usd_per_1m is not None and self.input_usd_per_1m is None:
            raise ValueError("cached_input_usd_per_1m: give input_usd_per_1m and output_usd_per_1m as well")

    @functools.cached_property
    def price(self) -> Price | None:
        """Its price; None if unknown."""
        given = (self.input_usd_per_1m, self.output_usd_per_1m, self.cached_input_usd_per_1m)
        prompt, completion, cached = (amount if isinstance(amount, Decimal) else None for amount in given)
        if prompt is None or completion is None:
            return None
        return Price(prompt, completion, prompt if cached is None else cached)

    @functools.cached_property
    def spoken(self) -> Dialect:
        """The dialect, "auto" resolved by the host; plain OpenAI where nothing else is known."""
        if self.dialect != "auto":
            return self.dialect
        host = urlsplit(self.base_url or "").hostname or ""
        return next((d for suffix, d in _DIALECT_HOSTS if host == suffix or host.endswith("." + suffix)), "openai")

    def api_key(self) -> SecretStr | None:
        """The key from the environment; ConfigError if its variable is not set, or could not go into an HTTP header."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ConfigError(f"Endpoint {self.name!r}: the environment variable {self.api_key_env} is not set")
        if not key.isascii() or not key.isprintable():
            raise ConfigError(f"Endpoint {self.name!r}: {self.api_key_env} holds characters that no API key has")
        return SecretStr(key)


@raises_config_error
@dataclass(frozen=True, config=STRICT)
class Budget:
    """What may be spent, in USD.

    All limits but ``max_usd_per_ask`` are kept in the store: exact for all processes that share it, across restarts and
    deaths. A call is reserved at the most it can cost and settled at what it did cost; what was reserved by a process
    that died stays reserved.

    Under a budget a free-form reply is held to 1,024 tokens, unless ``params`` has ``max_tokens``: what has no bound
    cannot be reserved. Finding out what an endpoint can do (a few tiny calls, once a week) counts towards
    ``usd_total`` and ``usd_per_period``, not towards an ask or a tag.

    Attributes:
        max_usd_per_ask: cap for one ask, all its rounds and retries.
        usd_total: cap for all asks on this store, ever.
        usd_per_period: caps for all asks of a "minute", "hour" or "day", which begin by the clock, in UTC.
        usd_per_tag: tag -> cap for all asks with it: an amount for ever, or amounts per period.
        usd_per_query: the mean to hold in the long run, no cap: the cost weight follows what asks really cost.
        allow_unpriced: take endpoints whose price is unknown, and count what they cost as nothing.
    """

    _: KW_ONLY
    max_usd_per_ask: Usd | None = None
    usd_total: Usd | None = None
    usd_per_period: Annotated[Mapping[str, Amount], PlainValidator(per_period)] = Field(default_factory=dict)
    usd_per_tag: Annotated[Mapping[str, Amount | Mapping[str, Amount]], PlainValidator(per_tag)] = Field(
        default_factory=dict
    )
    usd_per_query: Usd | None = None
    allow_unpriced: bool = False


@dataclass(frozen=True)
class PoolFile:
    """A parsed pool file: the endpoints, and the keyword arguments its other tables give.

    ``embedder``: the table of that name as it stands (see `focalroute.serving.embedders.embedder_of`); None: there is
    none.
    """

    endpoints: tuple[Endpoint, ...]
    ensemble: Mapping[str, Any]
    budget: Budget | None
    embedder: Mapping[str, Any] | None = None


def validate_pool(endpoints: Iterable[Endpoint], *, askable: bool = False) -> tuple[Endpoint, ...]:
    """The endpoints as a tuple.

    Raises:
        ConfigError: there are none, two have one name, a key would go where it should not (see
        `focalroute.core.keys`), or
            (``askable``) one lacks its address or key.
    """
    if not isinstance(endpoints, Iterable):
        raise ConfigError(f"endpoints: give a list of Endpoint objects, got {type(endpoints).__name__}")
    pool = tuple(endpoints)
    if not pool:
        raise ConfigError("endpoints: the pool is empty; give at least one Endpoint")
    for endpoint in pool:
        if not isinstance(endpoint, Endpoint):
            raise ConfigError(f"endpoints: expected Endpoint objects, got {type(endpoint).__name__}")
    names = [endpoint.name for endpoint in pool]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"endpoints: names must be unique; more than once: {', '.join(doubled)}")
    keys = [KeyUse(e.name, e.api_key_env, e.base_url) for e in pool if e.api_key_env and e.base_url]
    if (wrong := misdirected(keys)) is not None:
        raise ConfigError(f"endpoints: {wrong}")
    lost = [endpoint.name for endpoint in pool if endpoint.base_url is None and endpoint.client is None]
    if askable and lost:
        raise ConfigError(f"endpoints: {', '.join(lost)}: give base_url (or a ready client) to ask it")
    if askable:
        for endpoint in pool:
            endpoint.api_key()  # a key that is not set is said now, not at the first ask
    return pool


def load_pool(path: str | Path) -> PoolFile:
    """Read a pool file (TOML).

    Raises:
        ConfigError: the file is missing, is not TOML, or has an unknown or wrong key; the message names it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, an integer of too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    unknown = sorted(set(data) - {"endpoint", "ensemble", "budget", "embedder"})
    if unknown:
        known = "[[endpoint]], [ensemble], [budget] and [embedder]"
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}; a pool file has {known}")
    tables = data.get("endpoint", [])
    if not isinstance(tables, list):
        raise ConfigError(f"{path}: endpoint: write [[endpoint]], with two brackets")
    endpoints = [_table(path, f"endpoint[{i}]", Endpoint, table) for i, table in enumerate(tables)]
    budget = _table(path, "budget", Budget, data["budget"]) if "budget" in data else None
    ensemble, embedder = data.get("ensemble", {}), data.get("embedder")
    for name, table in {"ensemble": ensemble, "embedder": embedder or {}}.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name}: write it as a table, [{name}]")
    try:
        return PoolFile(validate_pool(endpoints), ensemble, budget, embedder)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _table(path: Path, where: str, make: Callable[..., _C], table: object) -> _C:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {where}: write it as a table of keys and values")
    known = {f.name for f in fields(make)} - {"client"}  # type: ignore[arg-type]
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(f"{path}: {where}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    if make is Endpoint and "name" not in table:
        raise ConfigError(f"{path}: {where}: name: required")
    try:
        return make(**table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {where}: {error}") from None
