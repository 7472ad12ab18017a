"""Reads pool files, and checks which host each endpoint's key would be sent to.

A key goes only to the service that its environment variable is named for, and to one service only. A pool file gives
variable and address in separate lines, so a copied table or a typo could send one service's key to another. Hosts on
the local machine or network may receive any key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from focalroute.core.config import INSTEAD, Budget, Endpoint
from focalroute.core.errors import ConfigError, locating
from focalroute.core.files import read_file, read_toml
from focalroute.core.network import tls_context
from focalroute.core.services import SERVICES, service_within
from focalroute.core.spelling import did_you_mean

_C = TypeVar("_C")

_NAMES = "|".join(name.upper() for name, one in SERVICES.items() if one.domains)
#: Names of a service's key variable.
_VARIABLE = re.compile(rf"({_NAMES})(?:_?AI)?_(?:API_)?(?:KEY|TOKEN)(?:_.*)?")
_ONLY_IN_PYTHON = {"client", "http_client", "api_key"}
_OWN_DOMAINS = ("internal", "invalid", "lan", "local", "localhost", "test")


@dataclass(frozen=True)
class PoolFile:
    """A parsed pool file: the endpoints, and the keyword arguments from its other tables.

    ``embedder``, ``judge``: the tables of these names, not checked yet, or None (see
    `focalroute.serving.embedders.embedder_from_pool_file`, `focalroute.serving.judge.judge_from_pool_file`).
    """

    endpoints: tuple[Endpoint, ...]
    ensemble: Mapping[str, Any]
    budget: Budget | None
    embedder: Mapping[str, Any] | None = None
    judge: Mapping[str, Any] | None = None


def validate_pool(endpoints: Iterable[Endpoint] | str | Path | None, *, askable: bool = False) -> tuple[Endpoint, ...]:
    """Check endpoints together and return them as a tuple.

    Args:
        askable: whether each endpoint needs an address, and its key to be set.

    Raises:
        ConfigError: there are no endpoints, two have the same name, a key would go to the wrong service, or one lacks
            the address or key that ``askable`` requires.
    """
    if not isinstance(endpoints, Iterable):
        raise ConfigError(f"endpoints: give a list of Endpoint objects or a pool file, got {type(endpoints).__name__}")
    pool = cast("tuple[Endpoint, ...]", tuple(endpoints))
    if not pool:
        raise ConfigError("endpoints: the pool is empty; give at least one Endpoint")
    for endpoint in pool:
        if not isinstance(endpoint, Endpoint):  # iterating over a str yields its letters
            named = isinstance(endpoint, str) and "/" in endpoint and endpoint.isprintable()
            meant = repr(endpoint) if named else '"name", model="...", base_url="..."'
            raise ConfigError(
                f"endpoints: expected Endpoint objects, got {type(endpoint).__name__}; write Endpoint({meant})"
            )
    names = [endpoint.name for endpoint in pool]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        names_once = "names must be unique, a judge's and an embedder's too"
        raise ConfigError(f"endpoints: {names_once}; more than once: {', '.join(doubled)}")
    _check_keys(pool)
    if askable:
        unreachable = [endpoint.name for endpoint in pool if endpoint.base_url is None and endpoint.client is None]
        if unreachable:
            raise ConfigError(f"endpoints: {', '.join(unreachable)}: give base_url (or a ready client) to ask it")
        for endpoint in pool:
            endpoint.key()  # reports a key that is not set now rather than at the first ask
            _check_tls(endpoint)
    return pool


def find_pool() -> Path:
    """Return the default pool file: ``FOCALROUTE_POOL``, else ``pool.toml`` in the working directory.

    Raises:
        ConfigError: neither exists.
    """
    named = os.environ.get("FOCALROUTE_POOL", "").strip()
    path = Path(named or "pool.toml")
    if not named and not path.is_file():
        raise ConfigError(
            "endpoints: give a list of Endpoint objects or a pool file (--pool); FOCALROUTE_POOL is not set, and there "
            "is no pool.toml here"
        )
    return path


def load_pool(path: str | Path) -> PoolFile:
    """Read a pool file (TOML).

    Raises:
        ConfigError: the file is missing, is not TOML, or has an unknown or wrong key; the message names it.
    """
    path = Path(path)
    try:
        content = read_file(path)
    except FileNotFoundError as error:
        remedy = "focalroute init writes a pool file"
        if path.parts[0] in SERVICES and path.suffix != ".toml":
            remedy = f"a pool of one endpoint is [Endpoint({str(path)!r})], and {remedy}"
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; {remedy}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give a file that this user may read") from None
    except ValueError as error:  # such as a NUL in its name
        raise ConfigError(f"{str(path)!a}: not a path: {error}") from None
    with locating(path):
        return _parse(content)


def _parse(content: bytes) -> PoolFile:
    try:
        data = read_toml(content)
    except ValueError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    unknown = sorted(set(data) - {"endpoint", "ensemble", "budget", "embedder", "judge"})
    if unknown:
        known = "[[endpoint]], [ensemble], [budget], [embedder] and [judge]"
        raise ConfigError(f"unknown key {unknown[0]!r}; a pool file has {known}")
    tables = data.get("endpoint", [])
    if not isinstance(tables, list):
        raise ConfigError("endpoint: write [[endpoint]], with two brackets")
    endpoints = [_read_table(_place(i, table), Endpoint, table) for i, table in enumerate(tables)]
    budget = _read_table("budget", Budget, data["budget"]) if "budget" in data else None
    for name in ("ensemble", "embedder", "judge"):
        if not isinstance(data.get(name, {}), dict):
            raise ConfigError(f"{name}: write it as a table, [{name}]")
    pool = validate_pool(endpoints)
    return PoolFile(pool, data.get("ensemble", {}), budget, embedder=data.get("embedder"), judge=data.get("judge"))


def endpoint_in_table(table: Mapping[str, Any], name: str) -> Endpoint:
    """Return the endpoint whose settings a table has; ``name`` is its default name.

    Raises:
        ConfigError: a key is unknown or wrong.
    """
    _refuse_objects(table)
    return Endpoint(**{"name": name, **table})


def _refuse_objects(table: Mapping[str, Any]) -> None:
    for key in sorted(_ONLY_IN_PYTHON & table.keys()):
        raise ConfigError(f"{key}: a pool file cannot hold one; give base_url, and the key's variable in api_key_env")


def _place(index: int, table: object) -> str:
    """Return how an error names an endpoint's table: by its index and, if it has one, its name."""
    name = table.get("name") if isinstance(table, dict) else None
    return f"endpoint[{index}] {name[:99]!r}" if isinstance(name, str) else f"endpoint[{index}]"


def _read_table(where: str, make: Callable[..., _C], table: object) -> _C:
    """Make an `Endpoint` or a `Budget` of a table; an error begins with ``where``."""
    known = {f.name for f in fields(make)} - _ONLY_IN_PYTHON  # type: ignore[arg-type]
    with locating(where, f"{make.__name__}: "):
        if not isinstance(table, dict):
            raise ConfigError("write it as a table of keys and values")
        _refuse_objects(table)
        unknown = sorted(set(table) - known)
        if unknown:
            meant = did_you_mean(unknown[0], known, INSTEAD.get(make.__name__))
            raise ConfigError(f"unknown key {unknown[0]!r}; {meant}")
        if make is Endpoint and "name" not in table:
            raise ConfigError("name: required")
        return make(**table)


def _check_keys(pool: Iterable[Endpoint]) -> None:
    """Raise a ConfigError unless each key would go to one service only, the one its variable is named for."""
    first_use: dict[str, tuple[str, str]] = {}
    for endpoint in pool:
        variable, url = endpoint.api_key_env, urlsplit(endpoint.base_url or "")
        host = url.hostname or ""
        if (variable is None and endpoint.api_key is None) or not host or _is_own_host(host):
            continue
        named, service = _VARIABLE.fullmatch((variable or "").upper()), service_within(host)
        if named and named[1].lower() != service:
            raise ConfigError(
                f"endpoints: {endpoint.name}: api_key_env: {variable} is not a key for {host}; "
                "correct base_url, or put that host's key in another variable"
            )
        if (named or service) and url.scheme == "http":
            raise ConfigError(
                f"endpoints: {endpoint.name}: base_url: a key would be sent to {host} unencrypted; use https://"
            )
        if variable is None:
            continue
        site = service or ".".join(host.split(".")[-2:])
        first_site, first_host = first_use.setdefault(variable, (site, host))
        if first_site != site:
            raise ConfigError(
                f"endpoints: {endpoint.name}: api_key_env: {variable} would be sent to {first_host} and to {host}; "
                "give each service a variable of its own"
            )


def _check_tls(endpoint: Endpoint) -> None:
    """Read the endpoint's certificate files now rather than at the first ask; ConfigError if one cannot be read."""
    if endpoint.verify is True and endpoint.cert is None:
        return
    with locating(f"endpoints: {endpoint.name}"):
        tls_context(endpoint.verify, endpoint.cert)


def _is_own_host(host: str) -> bool:
    """Whether this host is on the local machine or network."""
    try:
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:8.8.8.8 is not private, though older Pythons say so
        return (mapped or address).is_private
    except ValueError:
        return "." not in host or host.rsplit(".", 1)[1] in _OWN_DOMAINS
