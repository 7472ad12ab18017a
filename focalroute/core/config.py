"""Settings, validated once where they come in: `Endpoint` and `Budget`.

Inside the package only these frozen objects are used. A wrong setting raises a `ConfigError` that names the field and
says what to do. API keys are read from the environment when a client is made; a key given by the program is held
masked.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, fields, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, SecretStr, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema

from focalroute.core.dollars import Amount, parse_decimal, parse_usd_per_period, parse_usd_per_tag, positive_usd
from focalroute.core.errors import ConfigError
from focalroute.core.services import SERVICES, find_service, service_within, thinking_params
from focalroute.core.spelling import advice, did_you_mean

Dialect = Literal["auto", "openai", "together", "deepinfra", "vllm", "llamacpp", "openrouter"]

# A part of a variable's name that looks like a key: long, and not just words in one case.
_KEY_LIKE = re.compile(r"(?=.*[0-9]|.*[a-z].*[A-Z]|.*[A-Z].*[a-z])[A-Za-z0-9]{20,}")

# Clients read a host whose last label is a number as an IPv4 address, in hex, octal and short forms, too.
_HOST, _NUMBER = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_.])?"), re.compile(r"[0-9]+|0x[0-9a-f]*")

#: Request fields that focalroute sets.
RESERVED_PARAMS = frozenset(("messages", "model", "stream", "stream_options"))

#: Arguments of openai's client that are not fields of the body -> what to use here instead.
_NOT_IN_BODY = {
    "extra_query": "is not sent; give a ready client with default_query",
    "timeout": "give timeout_s to the Endpoint, or deadline_s to ask",
}

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_FRAMING = frozenset(
    ("accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "te",
     "transfer-encoding", "upgrade")
)  # fmt: skip
_KEY_HEADERS = frozenset(("api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"))
_MAX_HEADERS, _MAX_HEADER_LENGTH = 100, 8192
_PLAIN = frozenset((str, int, bool, type(None), dict, list))  # no floats: JSON has no NaN and no infinity
_DEEPEST_PLAIN = 20

#: The most samples that any service gives in one call.
MOST_SAMPLES = 128
#: The most choices of a closed question.
MOST_CHOICES = 1000

_HIGHEST_PRICE = Decimal(100_000)

_IN_PARAMS = 'give it in params, such as params={"temperature": 0, "max_tokens": 100}'
#: For each class: a name used by other libraries or earlier versions -> its name here, or a sentence with advice.
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "Endpoint": {
        **dict.fromkeys(("url", "api_base", "host", "endpoint", "server"), "base_url"),
        **dict.fromkeys(("key", "token", "key_env", "api_key_var"), "api_key_env"),
        **dict.fromkeys(("temperature", "max_tokens", "top_p", "seed"), _IN_PARAMS),
        **dict.fromkeys(("price", "cost", "prices"), "give input_usd_per_1m and output_usd_per_1m"),
        **dict.fromkeys(("retries", "max_retries"), "give attempts to the Ensemble"),
        **dict.fromkeys(("organization", "project"), 'give headers, such as {"OpenAI-Organization": "..."}'),
        **dict.fromkeys(("tags", "metadata"), "give it to ask()"),
        **dict.fromkeys(("weight", "order", "priority"), "leave it out; the policy chooses the endpoints"),
        **dict.fromkeys(("accuracy", "quality", "score", "skill"), "expected_accuracy"),
        "api_version": "give it in the base_url, or a ready client such as AsyncAzureOpenAI as client=",
        "custom_llm_provider": "service",
        "max_parallel_requests": "max_concurrency",
        "provider": "service",
        "rpm": "requests_per_minute",
        "timeout": "timeout_s",
        "tpm": "tokens_per_minute",
    },
    "Budget": {
        **dict.fromkeys(("max_usd", "usd_per_ask", "max_cost", "per_ask"), "max_usd_per_ask"),
        **dict.fromkeys(("usd", "total", "limit", "max_budget"), "usd_total"),
        "budget_duration": 'give usd_per_period, such as {"day": 5}',
        **dict.fromkeys(("usd_per_minute", "usd_per_hour", "usd_per_day"), "usd_per_period"),
        **dict.fromkeys(("hourly", "daily", "per_hour", "per_day"), 'give usd_per_period, such as {"day": 5}'),
    },
    "Ensemble": {
        **dict.fromkeys(("pool", "models", "members", "clients", "model_list"), "endpoints"),
        **dict.fromkeys(("timeout", "timeout_s", "deadline", "request_timeout"), "deadline_s"),
        **dict.fromkeys(("db", "database", "path", "redis_url", "redis_host"), "store"),
        **dict.fromkeys(("retries", "max_retries", "num_retries"), "attempts"),
        **dict.fromkeys(("strategy", "routing_strategy", "router", "routers"), "policy"),
        **dict.fromkeys(("ttl", "cache", "caching", "cache_responses"), "cache_ttl_s"),
        **dict.fromkeys(("max_budget", "provider_budget_config"), "give budget=Budget(usd_total=...)"),
        **dict.fromkeys(
            ("api_key", "base_url", "headers", "default_headers", "organization", "max_concurrency"),
            "give it to each Endpoint",
        ),
        **dict.fromkeys(("max_parallel_requests", "rpm", "tpm"), "give max_concurrency or a rate to each Endpoint"),
        **dict.fromkeys(
            ("fallbacks", "allowed_fails", "cooldown_time"),
            "leave it out; where an endpoint fails, another of the pool is asked",
        ),
        **dict.fromkeys(("strong_model", "weak_model"), "give both as endpoints, each with its price"),
        **dict.fromkeys(("verbose", "set_verbose", "debug", "logger"), "set FOCALROUTE_LOG=info, or logging's level"),
        **dict.fromkeys(("callbacks", "success_callback"), "read the answer's receipt, or set telemetry"),
        **dict.fromkeys(("max_usd", "usd_total", "max_usd_per_ask"), "give budget=Budget(usd_total=...)"),
        **dict.fromkeys(
            ("temperature", "max_tokens", "top_p", "params"), "give it to ask(), or in an Endpoint's params"
        ),
        # in a pool file's table
        **dict.fromkeys(("budget", "embedder"), "write it as a table of its own, such as [budget]"),
        **dict.fromkeys(("judge", "http_client"), "a file cannot hold one; give it in Python, beside the file"),
        "rounds": "max_rounds",
        "price_of_money": "cost_weight",
    },
}

_C = TypeVar("_C")


def raises_config_error(cls: type[_C]) -> type[_C]:
    """Make construction of a dataclass raise `ConfigError` instead of pydantic's ValidationError."""
    construct = cls.__init__
    what = getattr(cls, "shown_as", cls.__name__)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    positional = [field.name for field in fields(cls) if not field.kw_only]  # type: ignore[arg-type]

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it replaces one
        if len(args) > len(positional):  # which pydantic may overlook
            raise ConfigError(f"{what}: give settings by keyword")
        try:
            construct(self, *args, **kwargs)
        except ValidationError as error:
            raise ConfigError(_describe(what, names, error)) from None

    type.__setattr__(cls, "__init__", __init__)
    return cls


def _describe(what: str, names: Sequence[str], error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        first, *rest = item["loc"] or ("",)
        if isinstance(first, int):
            first = names[first]
        where = ".".join(map(str, (first, *rest)))
        message = advice(item)
        if item["type"] == "unexpected_keyword_argument":
            message = f"unknown key; {did_you_mean(where, names, INSTEAD.get(what))}"
        problems.append(f"{where}: {message}".removeprefix(": "))
    return f"{what}: " + "; ".join(problems)


def _printable(text: str) -> str:
    if not text.isprintable():  # a terminal would obey escapes
        raise ValueError("holds control or other unprintable characters; remove them")
    return text


def is_http(url: str) -> bool:
    """Whether this is an HTTP or HTTPS address."""
    try:
        parts = urlsplit(url)
        return bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.split() == [url])
    except ValueError:  # invalid host or port; its message may quote credentials
        return False


def _http_url(url: str) -> str:
    if not is_http(url):
        raise ValueError("give an http:// or https:// address, such as https://api.together.xyz/v1")
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ValueError("must not contain credentials; name an environment variable in api_key_env instead")
    _check_host(parts.hostname or "")
    if parts.query or parts.fragment:
        raise ValueError("must not contain a query (?) or a fragment (#); the path of the call is appended to it")
    base, of_a_call, _ = url.partition("/chat/completions")
    if of_a_call:
        raise ValueError(f"is the address of a call; end it before that: {base}")
    return url.rstrip("/")


def _check_host(host: str) -> None:
    """Refuse a host that other software may read as another one; ValueError names it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        named = ascii(host[:100])
    else:
        return
    if not _HOST.fullmatch(host) or ".." in host:
        raise ValueError(f"the host {named} is not plain ASCII letters, digits, dots and hyphens; write its xn-- form")
    if _NUMBER.fullmatch(host.rstrip(".").rsplit(".", 1)[-1]):
        raise ValueError(f"the host {named} is not an IPv4 address in its usual form, such as 127.0.0.1")


def _proxy_url(url: str) -> str:
    if not is_http(url):
        raise ValueError("give an http:// or https:// address, such as http://proxy:3128; others with an http_client")
    return url


def check_headers(headers: object, *, shared: bool = False) -> Mapping[str, str]:
    """Return the headers, name -> value; ValueError, without any value, if they may not be sent.

    Args:
        shared: whether they go to all services, so that none may hold a key.
    """
    if not isinstance(headers, Mapping) or len(headers) > _MAX_HEADERS:
        raise ValueError(f'give at most {_MAX_HEADERS} names and values, such as {{"x-team": "search"}}')
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError("a name has letters, digits and hyphens only")
        if name.lower() in _FRAMING:
            raise ValueError(f"{name}: is set by focalroute; remove it")
        if shared and name.lower() in _KEY_HEADERS:
            raise ValueError(f"{name}: would go to every service; give it in the headers of an Endpoint")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            raise ValueError(f"{name}: give a text of plain ASCII characters")
        if len(value) > _MAX_HEADER_LENGTH:
            raise ValueError(f"{name}: is longer than {_MAX_HEADER_LENGTH} characters; shorten it")
    return dict(headers)


def check_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return provider parameters as fields of the body; ``extra_body`` is merged in, as openai's client does.

    ``extra_headers`` is kept. ValueError names a parameter that cannot be sent.
    """
    params = dict(params)
    extra = params.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise ValueError('extra_body: give a mapping such as {"top_k": 5}')
    params |= extra
    for name in params:
        if not isinstance(name, str):
            raise ValueError(f"{str(name)[:40]}: name each parameter by text, not by {type(name).__name__}")
        if name in RESERVED_PARAMS:
            raise ValueError(f"{name}: is set by focalroute; remove it")
        if name in _NOT_IN_BODY:
            raise ValueError(f"{name}: {_NOT_IN_BODY[name]}")
    return params


def require_json(what: str, value: object) -> None:
    """Raise a ConfigError if the value cannot be written as JSON; it names ``what`` and, in a mapping, the key."""
    error = _json_error(value)
    if error is None:
        return
    if isinstance(value, Mapping):
        what = next((f"{what}: {key}" for key, one in value.items() if _json_error(one)), what)
    raise ConfigError(f"{what}: cannot be sent as JSON ({type(error).__name__}); give plain values only")


def _json_error(value: object) -> Exception | None:
    try:
        if not _is_plain(value):
            json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return error
    return None


def _is_plain(value: object) -> bool:
    """Whether a value is valid JSON by its types alone; this is many times faster than writing it."""
    level = [value]
    for _ in range(_DEEPEST_PLAIN):
        below: list[object] = []
        for one in level:
            if type(one) is not dict and type(one) is not list:
                return False
            held = one.values() if isinstance(one, dict) else one
            kinds = set(map(type, held))
            if not kinds <= _PLAIN or (isinstance(one, dict) and not set(map(type, one)) <= {str}):
                return False
            if not kinds.isdisjoint((dict, list)):
                below += [inner for inner in held if type(inner) is dict or type(inner) is list]
        if not below:
            return True
        level = below
    return False


def _cert(files: object) -> str | tuple[str, str]:
    if isinstance(files, str | Path):
        return str(files)
    if isinstance(files, list | tuple) and len(files) == 2 and all(isinstance(file, str | Path) for file in files):
        return str(files[0]), str(files[1])
    raise ValueError("give a PEM file with certificate and key, or a pair of files")


def _verify(trusted: object) -> object:
    if not isinstance(trusted, bool | str | Path | ssl.SSLContext):
        raise ValueError("give True, False, a file or folder of certificates, or an ssl.SSLContext")
    return trusted


def check_http_client(client: object) -> None:
    """Raise a ValueError unless this is an ``httpx.AsyncClient``."""
    if not any(cls.__name__ == "AsyncClient" and cls.__module__.startswith("httpx") for cls in type(client).__mro__):
        raise ValueError(f"http_client: give an httpx.AsyncClient, got {type(client).__name__}")


def _env_name(name: str) -> str:
    if not name.isascii() or not name.isidentifier() or any(map(_KEY_LIKE.fullmatch, name.split("_"))):
        raise ValueError("give the *name* of an environment variable (letters, digits, _), never the key itself")
    return name


def _key(key: object) -> SecretStr:
    text = key.get_secret_value() if isinstance(key, SecretStr) else key
    if not isinstance(text, str) or not text.strip() or not text.strip().isascii() or not text.strip().isprintable():
        raise ValueError("give the key as a string of printable ASCII; better, name its variable in api_key_env")
    if text.strip().startswith("os.environ/"):  # LiteLLM's way; the service would refuse it as a wrong key
        raise ValueError("names an environment variable; give its name, without os.environ/, as api_key_env")
    return SecretStr(text.strip())


def _price(amount: object) -> Decimal:
    value = parse_decimal(amount)
    if value is None or not 0 <= value <= _HIGHEST_PRICE:
        raise ValueError(f"give USD per million tokens, between 0 and {_HIGHEST_PRICE}")
    return value


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError("give a share from 0 to 1, such as 0.84 for 84 %")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Url = Annotated[str, AfterValidator(_http_url)]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url)]
Cert = Annotated[str | tuple[str, str], PlainValidator(_cert)]
Verify = Annotated[bool | str | Path | ssl.SSLContext, PlainValidator(_verify)]
Headers = Annotated[Mapping[str, str], PlainValidator(check_headers)]
EnvName = Annotated[str, AfterValidator(_env_name)]
Key = Annotated[SecretStr | str, PlainValidator(_key)]
UsdPer1M = Annotated[Amount, PlainValidator(_price)]
Usd = Annotated[Amount, PlainValidator(positive_usd)]

#: pydantic's configuration of all settings: exact types, no unknown keys, no values in messages.
STRICT = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class Unchecked:
    """Marks a setting that the code using it checks, with a message of its own."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.any_schema()


class Price(NamedTuple):
    """USD per million tokens; ``cached`` is for prompt tokens read from the provider's cache, ``prompt`` for others."""

    prompt: Decimal
    completion: Decimal
    cached: Decimal


@raises_config_error
@dataclass(frozen=True, config=STRICT)
class Endpoint:
    """One model at one OpenAI-compatible service.

    Attributes:
        name: its name in the pool, under which everything learned is kept. Alone, it gives service and model:
            ``Endpoint("openai/gpt-5-mini")`` is ``Endpoint(..., service="openai", model="gpt-5-mini")``.
        model: the model name sent to the service.
        service: name of a known service (`focalroute.core.services`), which fills in ``base_url``, ``api_key_env``,
            ``dialect`` and the capabilities its models lack, where not given.
        base_url: the service's address, up to and including ``/v1``; not needed with ``client``, nor to replay recorded
            answers.
        api_key_env: the environment variable that holds the key; None: no key is sent. The key goes to ``base_url``'s
            host only, and a pool in which one variable would go to two services is refused.
        api_key: the key itself, for programs that get keys at run time. It is masked wherever it is shown, and written
            nowhere; in code and files name its variable instead.
        client: a ready ``openai.AsyncOpenAI`` or ``AsyncAzureOpenAI`` to call through instead of our own HTTP client.
        http_client: an ``httpx.AsyncClient`` to call through, used as it is; None: the ensemble's, else our own
            connections. It is yours to close.
        verify: the certificates to trust. True: those of SSL_CERT_FILE or SSL_CERT_DIR, else certifi's; False: any; or
            a file or folder of certificates, or an ``ssl.SSLContext``.
        cert: the client's own certificate (mTLS): a PEM file with its key, or the files of both.
        proxy: the HTTP proxy to call through; None: the environment's (``https_proxy``, ``no_proxy``), but none for
            this machine.
        headers: sent with every call; no repr shows their values.
        input_usd_per_1m: USD per million prompt tokens; None: unknown (which is not free).
        output_usd_per_1m: USD per million completion tokens.
        cached_input_usd_per_1m: USD per million cached prompt tokens; None: same as the others.
        prices_as_of: when the prices were looked up (`focalroute pool prices` writes it); None: they never count as
            old.
        prices_from: where they were looked up: "listing", or a price library and its version (also written by that
            command); None: unknown.
        dialect: how the service deviates from OpenAI; "auto" goes by the host.
        timeout_s: limit on the time of one call.
        max_concurrency: limit on concurrent calls, per event loop; None: limited only after 429 replies.
        requests_per_minute: limit on calls in any 60 seconds, per process; None: no limit.
        tokens_per_minute: limit on prompt and completion tokens in any 60 seconds, per process; None: no limit.
        logprobs: whether it returns log-probabilities. This and the next four are detected where not given.
        top_logprobs: how many alternatives to each token it returns (0: only the token's own log-probability).
        n: whether one call can ask for several samples.
        structured_choice: whether an answer can be constrained to the choices.
        stream_usage: whether a stream ends with its usage.
        whole_choices: score a closed question by the likelihood of each whole choice instead of asking for its letter.
            This takes a prompt for every choice, and a service whose ``/completions`` echoes prompts with their
            log-probabilities, such as vLLM. Where the service refuses that, it is asked for the letter.
        tools: whether it supports tools; None: they are sent, and a refusal is remembered for an hour. Queries with
            tools are not sent to an endpoint without them.
        images: likewise for images in messages.
        json_schema: likewise for a ``response_format`` with a JSON schema in ``params``.
        context_tokens: limit on the tokens of a prompt and its reply together; None: unknown, or what genai-prices
            lists beside the price. A query of more than twice as many words is not sent to it.
        reasoning_effort: how much the model should reason ("none", "minimal", "low", "medium", "high", ...); None: its
            default. One model at two efforts is two endpoints.
        thinking_tokens: tokens for reasoning in a reply, besides the answer's. They are reserved, and sent as a budget
            where the service has one. None: 8,192 where the model is found to reason, more where those do not suffice.
        verbosity: how long the model's replies should be ("low", "medium", "high"), where supported.
        expected_accuracy: how often it is expected to be right, in [0, 1], such as its score on a public benchmark.
            Only the differences within a pool count, as much as 100 answers with feedback. None: the pool's average.
        params: provider parameters sent with every call (``temperature``, ``seed``, ...).
        extra_body: the same, under the name openai's client has for parameters it does not know.

    Examples:
        >>> Endpoint("openai/gpt-5-mini").base_url
        'https://api.openai.com/v1'
        >>> Endpoint("local", model="Qwen/Qwen3-8B", base_url="http://localhost:8000/v1", dialect="vllm").name
        'local'
    """

    name: Name
    _: KW_ONLY
    model: Name = ""
    service: Name | None = None
    base_url: Url | None = None
    api_key_env: EnvName | None = None
    api_key: Key | None = Field(default=None, repr=False)
    client: Any = Field(default=None, repr=False)
    http_client: Any = Field(default=None, repr=False)
    verify: Verify = True
    cert: Cert | None = None
    proxy: ProxyUrl | None = Field(default=None, repr=False)
    headers: Headers = Field(default_factory=dict, repr=False)
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
    context_tokens: Annotated[int, Field(ge=1024)] | None = None
    reasoning_effort: Name | None = None
    thinking_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    verbosity: Name | None = None
    expected_accuracy: Annotated[float, AfterValidator(_share)] | None = None
    params: Mapping[str, Any] = Field(default_factory=dict)
    extra_body: Mapping[str, Any] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fill_in()
        if self.client is not None and not any(cls.__name__ == "AsyncOpenAI" for cls in type(self.client).__mro__):
            raise ValueError(f"client: give an AsyncOpenAI or AsyncAzureOpenAI, got {type(self.client).__name__}")
        if self.http_client is not None:
            check_http_client(self.http_client)
        for name in ("http_client", "verify", "cert", "proxy"):
            if self.client is not None and getattr(self, name) not in (None, True):
                raise ValueError(f"{name}, client: a ready client brings its own; give one of them")
        for name in ("verify", "cert", "proxy"):
            if self.http_client is not None and getattr(self, name) not in (None, True):
                raise ValueError(f"{name}, http_client: give it to the http_client")
        if self.cert is not None and isinstance(self.verify, ssl.SSLContext):
            raise ValueError("cert, verify: load the certificate into the SSLContext")
        if (self.api_key_env or self.api_key) and "authorization" in map(str.lower, self.headers):
            raise ValueError("headers: Authorization: api_key_env or api_key gives it; drop one of them")
        try:
            params = check_params({**self.params, "extra_body": self.extra_body})
        except ValueError as error:
            raise ValueError(f"params: {error}") from None
        if "extra_headers" in params:
            raise ValueError("params: extra_headers: is named headers here; give it beside params")
        require_json("params", params)
        thinking = thinking_params(self.base_url, self.reasoning_effort, self.thinking_tokens, self.verbosity)
        self._set(params={**params, **thinking})
        if self.base_url is not None and self.client is not None:
            raise ValueError("base_url, client: give one of them, not both")
        if self.client is not None and (self.api_key_env or self.api_key):
            raise ValueError("api_key_env, api_key: a ready client brings its own key; drop it")
        if self.api_key_env is not None and self.api_key is not None:
            raise ValueError("api_key_env, api_key: give one of them, better the variable's name")
        if (self.input_usd_per_1m is None) != (self.output_usd_per_1m is None):
            raise ValueError("input_usd_per_1m, output_usd_per_1m: give both or neither")
        if self.cached_input_usd_per_1m is not None and self.input_usd_per_1m is None:
            raise ValueError("cached_input_usd_per_1m: give input_usd_per_1m and output_usd_per_1m as well")

    def over(self, http_client: Any) -> Endpoint:
        """Return this endpoint with an ensemble's ``http_client``, unless it has connection settings of its own."""
        own = (self.client, self.http_client, self.cert, self.proxy)
        if self.verify is not True or any(one is not None for one in own):
            return self
        return replace(self, http_client=http_client)

    def _fill_in(self) -> None:
        """Fill in the model from the endpoint's name, and what is known of its service."""
        if not self.model and self.service is None and "/" in self.name:
            service, _, model = self.name.partition("/")
            if service in SERVICES or (self.base_url is None and self.client is None):
                self._set(service=service, model=model)
        if not self.model:
            raise ValueError("model: required; or name a service and its model, as in Endpoint('openai/gpt-5-mini')")
        if self.service is not None:
            known = find_service(self.service)
            if self.client is None and self.base_url is None and known.base_url is None:
                raise ValueError(f"base_url: required at {self.service}, such as {known.example}")
            if self.client is None:
                self._set(
                    base_url=self.base_url or known.base_url,
                    api_key_env=self.api_key_env or (None if self.api_key else known.api_key_env),
                )  # fmt: skip
            self._set(dialect=known.dialect if self.dialect == "auto" else self.dialect)
            self._set(**{name: False for name in known.lacks if getattr(self, name) is None})
            if self.logprobs is False and self.top_logprobs is None:
                self._set(top_logprobs=0)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def price(self) -> Price | None:
        """Its price; None if unknown."""
        prompt, completion, cached = self.input_usd_per_1m, self.output_usd_per_1m, self.cached_input_usd_per_1m
        if not isinstance(prompt, Decimal) or not isinstance(completion, Decimal):
            return None
        if not isinstance(cached, Decimal):
            cached = prompt
        return Price(prompt, completion, cached)

    @functools.cached_property
    def spoken(self) -> Dialect:
        """The dialect, "auto" resolved by the host; "openai" for an unknown host."""
        if self.dialect != "auto":
            return self.dialect
        service = service_within(urlsplit(self.base_url or "").hostname or "")
        return "openai" if service is None else SERVICES[service].dialect

    def key(self) -> SecretStr | None:
        """Return the given key, else the environment's; None: no key is sent.

        Raises:
            ConfigError: its variable is not set, or its value could not go into an HTTP header.
        """
        if self.api_key_env is None:
            return self.api_key if isinstance(self.api_key, SecretStr) else None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"Endpoint {self.name!r}: the environment variable {self.api_key_env} is not set; set it to a key"
            )
        if not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"Endpoint {self.name!r}: {self.api_key_env} holds characters that no API key has; set it anew"
            )
        return SecretStr(key)


@raises_config_error
@dataclass(frozen=True, config=STRICT)
class Budget:
    """Limits on spending, in USD, and target means of the cost and time per query.

    All limits but ``max_usd_per_ask`` are kept in the store: exact for all processes that share it, across restarts and
    crashes. A call reserves the most it can cost and is settled at its actual cost. What a process that died had
    reserved counts as spent.

    Under a budget a free-form reply is limited to 1,024 tokens, unless ``params`` has ``max_tokens``, as a cost without
    a bound cannot be reserved. Probing an endpoint's capabilities (a few tiny calls, once a week) counts towards
    ``usd_total`` and ``usd_per_period``, not towards an ask or a tag.

    Attributes:
        max_usd_per_ask: for one ask, all its rounds and retries.
        usd_total: for all asks on this store, ever.
        usd_per_period: for all asks of a "minute", "hour" or "day", which begin by the clock, in UTC.
        usd_per_tag: tag -> limit on all asks with it: an amount for ever, or amounts per period.
        usd_per_query: long-run mean to keep to, not a limit: the cost weight follows the actual costs.
        seconds_per_query: likewise for the seconds until the answer: ``usd_per_second`` follows the actual times.
        allow_unpriced: use endpoints whose price is unknown, counting their cost as zero.

    Examples:
        >>> Budget(max_usd_per_ask="0.01", usd_per_period={"day": 10}).usd_per_period
        {'day': Decimal('10')}
    """

    _: KW_ONLY
    max_usd_per_ask: Usd | None = None
    usd_total: Usd | None = None
    usd_per_period: Annotated[Mapping[str, Amount], PlainValidator(parse_usd_per_period)] = Field(default_factory=dict)
    usd_per_tag: Annotated[Mapping[str, Amount | Mapping[str, Amount]], PlainValidator(parse_usd_per_tag)] = Field(
        default_factory=dict
    )
    usd_per_query: Usd | None = None
    seconds_per_query: Annotated[float, Field(gt=0, le=86_400)] | None = None
    allow_unpriced: bool = False
