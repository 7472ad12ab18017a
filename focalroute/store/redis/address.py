"""Parses a Redis store's address: ``redis://[user[:password]@]host[:port][/db][?setting=value&...]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from focalroute.core.errors import ConfigError

#: How the address of a Redis store begins; ``rediss`` is TLS.
SCHEMES = ("redis://", "rediss://")

#: Settings passed on to redis-py. Unknown settings are refused, as they are probably misspelled.
_TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_TLS = {*_TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname"}
_CERT_REQS = ("none", "optional", "required")


def is_redis(where: object) -> bool:
    """Whether this is the address of a Redis store."""
    return isinstance(where, str) and where.startswith(SCHEMES)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis store's address, parsed.

    Attributes:
        url: the URL for the client, with the password; never shown.
        name: the address to show: scheme, host, port, database, and the prefix if one is given.
        prefix: the prefix of every key, so that several fleets can share a server.
        keep: how many of the latest answers stay in Redis; None: as many as the last address with this setting said.
        journal: the folder where writes wait while Redis is unavailable; None: they wait in memory.
    """

    url: str = field(repr=False)
    name: str
    prefix: str = "focalroute"
    keep: int | None = None
    journal: Path | None = None

    @classmethod
    def of(cls, where: str) -> RedisAddress:
        """Parse an address.

        Settings: ``prefix``, ``keep``, ``journal``, ``password_env`` (the environment variable with the password), and
        for TLS ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs``, ``ssl_check_hostname``.

        Raises:
            ConfigError: the string is not an address, or a setting is unknown or wrong.
        """
        try:
            parts = urlsplit(where)
            host, port = parts.hostname, parts.port or 6379
            (host or "").encode("idna")  # connecting would raise the same error later
        except ValueError:
            raise ConfigError(
                "store: the address of the Redis store cannot be read; write redis://host:6379/0"
            ) from None
        database = parts.path.strip("/") or "0"
        if not host or not database.isdecimal():
            raise ConfigError("store: a Redis store needs a host and the number of a database: redis://host:6379/0")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        tls = {key: given.pop(key) for key in sorted(_TLS & given.keys())}
        if tls and parts.scheme != "rediss":
            raise ConfigError(f"store: {next(iter(tls))} is for TLS; write rediss:// for it")
        _check_tls(tls)
        own: dict[str, object] = {key: read(given.pop(key)) for key, read in _SETTINGS.items() if key in given}
        location = _with_password(parts.netloc, given.pop("password_env", None))
        if given:
            known = ", ".join(sorted({*_SETTINGS, "password_env", *_TLS}))
            raise ConfigError(f"store: unknown setting {sorted(given)[0]!r} of a Redis store; known: {known}")
        url = urlunsplit((parts.scheme, location, f"/{database}", urlencode(tls), ""))
        name = f"{parts.scheme}://{host}:{port}/{database}"
        if "prefix" in own:
            name += f"?prefix={own['prefix']}"
        return cls(url, name, **own)  # type: ignore[arg-type]


def _check_tls(settings: Mapping[str, str]) -> None:
    """Refuse wrong TLS settings, which redis-py would report as a server that cannot be reached."""
    for name in sorted(_TLS_FILES & settings.keys()):
        try:
            Path(settings[name]).open("rb").close()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = type(error).__name__
            raise ConfigError(f"store: {name}: {settings[name]!r} cannot be read ({reason}); give a PEM file") from None
    if settings.get("ssl_cert_reqs", "required") not in _CERT_REQS:
        raise ConfigError(f"store: ssl_cert_reqs: give one of {', '.join(_CERT_REQS)}")


def _with_password(location: str, variable: str | None) -> str:
    """User, host and port, with the password from this environment variable."""
    if variable is None:
        return location
    password = os.environ.get(variable)
    if not password:
        raise ConfigError(
            f"store: password_env: the environment variable {variable} is not set; set it to the password"
        )
    login, _, host = location.rpartition("@")
    if ":" in login:
        raise ConfigError("store: give the password in the address or in password_env, not in both")
    return f"{login}:{quote(password, safe='')}@{host}"


def _prefix(text: str) -> str:
    if not text or set(text) & set("{}") or not text.isprintable():
        raise ConfigError("store: prefix: give a printable one without braces; a cluster takes them for its own")
    return text


def _keep(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"store: keep: must be a whole number of answers from 1, got {text!r}")
    return int(text)


def _journal(text: str) -> Path:
    path = Path(unquote(text)).absolute()  # the working folder may change
    if not path.parent.is_dir():
        raise ConfigError(f"store: journal: the folder that {path} would be in does not exist; make it first")
    return path


_SETTINGS: Mapping[str, Callable[[str], object]] = {"prefix": _prefix, "keep": _keep, "journal": _journal}
