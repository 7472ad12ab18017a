"""The callers who may ask: hashes of their keys, and what each may spend.

A file of keys is read again when it changes, so that a key can be revoked while the server runs.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focalroute.core.config import Budget
from focalroute.core.dollars import Amount, parse_usd, parse_usd_per_period
from focalroute.core.errors import ConfigError, StoreError, locating
from focalroute.core.files import MAX_BYTES, read_file, read_toml
from focalroute.serving.query import MAX_TAG_LENGTH, MAX_TAGS, checked_tags

if TYPE_CHECKING:
    from focalroute.serving.ensemble import AsyncEnsemble

#: Environment variable with the key of the only caller, if there is no file of keys.
KEY_VARIABLE = "FOCALROUTE_KEY"

_SHORTEST = 16  # characters of a key: shorter ones can be guessed
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_FIELDS = ("name", "sha256", "key_env", "usd", "tags", "max_concurrency", "requests_per_minute", "metrics")
_TAG = "key:"
_LONGEST_NAME = MAX_TAG_LENGTH - len(_TAG)
_MAX_CONCURRENCY = 100
_LARGEST_BOUND = 1_000_000
_CHECK_EVERY_S = 1.0
_TOML_PLACE = re.compile(r"\(at (line \d+|end of document)[^()]*\)$")

_log = logging.getLogger("focalroute.server")


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller who may ask.

    Attributes:
        name: the key's name; in the ledger the caller's asks have the tag "key:NAME".
        digest: SHA-256 of the key, 32 bytes.
        usd: the most to spend on this store, in total or per period as in ``Budget.usd_per_tag``; None: no limit.
        tags: further tags of the caller's asks, for the ledger and for the budget's ``usd_per_tag``.
        max_concurrency: the most asks under way at a time.
        requests_per_minute: the most asks in any minute, and the most feedbacks; None: no limit.
        metrics: whether the caller may read the server's metrics, which show what every caller spends.
    """

    name: str
    digest: bytes = field(repr=False)
    usd: Decimal | Mapping[str, Decimal] | None = None
    tags: tuple[str, ...] = ()
    max_concurrency: int = _MAX_CONCURRENCY
    requests_per_minute: int | None = None
    metrics: bool = False

    @property
    def tag(self) -> str:
        """The tag of the caller's asks in the ledger."""
        return _TAG + self.name


class Callers:
    """All callers who may ask, at least one. The keys themselves are not kept.

    Raises:
        ConfigError: there are none, or two share a name or a key.
    """

    def __init__(self, callers: Iterable[Caller]) -> None:
        self._all = tuple(callers)
        self._path: Path | None = None  # of the file to follow
        self._stamp: object = None  # of the file as last read
        self._next_check = 0.0
        self._reloading = threading.Lock()
        if not self._all:
            raise ConfigError("keys: there are none; give at least one")
        for what in ("name", "digest"):
            values = [getattr(caller, what) for caller in self._all]
            if len(set(values)) < len(values):
                raise ConfigError(f"keys: two have the same {'key' if what == 'digest' else what}")

    def __iter__(self) -> Iterator[Caller]:
        return iter(self._all)

    @classmethod
    def from_toml(cls, path: str | Path) -> Callers:
        """Read a file of keys: tables ``[[key]]`` with name, sha256 or key_env, and optionally usd, tags and bounds.

        Raises:
            ConfigError: the file, or a key, is invalid.
        """
        path = Path(path)
        stamp = _stamp_of(path)  # before reading, so as not to miss a change meanwhile
        with locating(path):
            callers = cls(_read(path))
        callers._path, callers._stamp = path, stamp
        return callers

    def changed(self) -> bool:
        """Whether the file was changed since it was last read; False within a second of the last check."""
        now = time.monotonic()
        if self._path is None or now < self._next_check:
            return False
        self._next_check = now + _CHECK_EVERY_S
        return _stamp_of(self._path) != self._stamp

    def reload(self, ensemble: AsyncEnsemble) -> None:
        """Read the file again, and have the ensemble enforce its limits. Waits for the store.

        On an error, which is logged, the former keys stay valid. If the store failed, the file is tried again.
        """
        with self._reloading:  # else a reload that waits for the store would undo a later one
            if self._path is not None:
                self._read_again(self._path, ensemble)

    def _read_again(self, path: Path, ensemble: AsyncEnsemble) -> None:
        former, self._stamp = self._stamp, _stamp_of(path)
        try:
            if self._stamp is None:
                raise ConfigError("is missing, or not a regular file")
            callers = Callers(_read(path))
            if callers._limits != self._limits:
                kept = {} if ensemble.budget is None else ensemble.budget.usd_per_tag
                others = {tag: kept[tag] for tag in kept.keys() - self._limits.keys()}
                ensemble.limit_tags({**others, **callers._limits})
        except (ConfigError, StoreError) as error:
            _log.error("the keys stay as they were: %s: %s", path, error)
            if isinstance(error, StoreError):
                self._stamp = former
            return
        self._all = callers._all
        _log.info("%s: read again, %d keys", path, len(self._all))

    @classmethod
    def from_environment(cls) -> Callers | None:
        """Return the single caller whose key is in ``FOCALROUTE_KEY``; None if it is not set.

        Raises:
            ConfigError: the value is not a valid key.
        """
        if not os.environ.get(KEY_VARIABLE):
            return None
        return cls([Caller("default", _digest_of(KEY_VARIABLE), metrics=True)])

    def find(self, key: str) -> Caller | None:
        """Return the caller with this key; None if unknown. All keys are compared, each in constant time."""
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        found = None
        for caller in self._all:
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found

    def within(self, budget: Budget | None) -> Budget | None:
        """Return the budget with every caller's limit added. Make the ensemble with it."""
        if not self._limits:
            return budget
        budget = budget or Budget()
        return replace(budget, usd_per_tag={**budget.usd_per_tag, **self._limits})

    @property
    def _limits(self) -> Mapping[str, Amount | Mapping[str, Amount]]:
        return {caller.tag: caller.usd for caller in self._all if caller.usd is not None}

    def require_limits(self, budget: Budget | None) -> None:
        """Check that an ensemble with this budget enforces every caller's limit.

        Raises:
            ConfigError: it does not.
        """
        kept = {} if budget is None else budget.usd_per_tag
        missing = [tag.removeprefix(_TAG) for tag, limit in self._limits.items() if kept.get(tag) != limit]
        if missing:
            raise ConfigError(
                f"callers: the ensemble does not enforce the limit of {', '.join(missing)}; "
                "make it with budget=callers.within(budget)"
            )


def _stamp_of(path: Path) -> object:
    """Return a stamp that changes whenever a file does; None if it is not a regular file."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_dev, status.st_ino, status.st_size


def _read(path: Path) -> list[Caller]:
    """Read a file of keys; ConfigError, with the line if known, if it is invalid."""
    try:
        data = read_file(path)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes; keep only keys in it")
    try:
        tables = read_toml(data)
    except ValueError as error:  # its message may quote a line with a key
        place = _TOML_PLACE.search(str(error))
        raise ConfigError(f"{f'{place[1]}: ' if place else ''}not valid TOML") from None
    keys = tables.pop("key", None)
    if tables or not isinstance(keys, list):
        raise ConfigError("a file of keys has tables [[key]], and nothing else")
    lines = data.decode("utf-8-sig").splitlines()
    heads = [number for number, line in enumerate(lines, 1) if line.split("#")[0].strip() == "[[key]]"]
    callers = []
    for i, table in enumerate(keys):
        where = f"key[{i}]"
        if len(heads) == len(keys):
            where = f"line {heads[i]}: {where}"
        with locating(where):
            callers.append(_caller(table))
    return callers


def _caller(table: object) -> Caller:
    """Read a table ``[[key]]``."""
    if not isinstance(table, dict):
        raise ConfigError("write [[key]], with two brackets, and keys and values below it")
    if "key" in table:
        raise ConfigError("key: never write a key itself here; give its sha256, or key_env")
    unknown = sorted(set(table) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r}; known keys: {', '.join(_FIELDS)}")
    name, tags = table.get("name"), table.get("tags", [])
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError("name: give a name")
    if not isinstance(tags, list) or not all(tags):
        raise ConfigError("tags: give a list of strings")
    tags = checked_tags(tags, MAX_TAGS - 1)  # each ask also has the key's own tag
    if any(tag.startswith(_TAG) for tag in tags):
        raise ConfigError('tags: those that begin with "key:" are reserved for keys; give others')
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"name: give one of at most {_LONGEST_NAME} characters")
    concurrency = _whole("max_concurrency", table.get("max_concurrency", _MAX_CONCURRENCY))
    rate = table.get("requests_per_minute")
    if rate is not None:
        _whole("requests_per_minute", rate)
    metrics = table.get("metrics", False)
    if not isinstance(metrics, bool):
        raise ConfigError("metrics: give true or false")
    return Caller(name, _digest(table), _limit(table.get("usd")), tags, concurrency, rate, metrics)


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_BOUND:
        raise ConfigError(f"{name}: give a whole number from 1 to {_LARGEST_BOUND}")
    return value


def _digest(table: Mapping[str, Any]) -> bytes:
    """Read the SHA-256 of a key: it is given as such, or the key is in an environment variable."""
    sha256, variable = table.get("sha256"), table.get("key_env")
    if (sha256 is None) == (variable is None):
        raise ConfigError("sha256, key_env: give one of them (`focalroute key NAME` makes a key and its sha256)")
    if sha256 is not None:
        if not isinstance(sha256, str) or not _DIGEST.fullmatch(sha256):
            raise ConfigError("sha256: give the 64 hex digits of the key's SHA-256")
        return bytes.fromhex(sha256)
    if not isinstance(variable, str) or not variable.isidentifier():
        raise ConfigError("key_env: give the name of an environment variable")
    return _digest_of(variable)


def _digest_of(variable: str) -> bytes:
    """Return the SHA-256 of the key in an environment variable."""
    key = os.environ.get(variable, "")
    if not key:
        raise ConfigError(f"the environment variable {variable} is not set; set it to the key")
    if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{variable}: a key has at least {_SHORTEST} printable ASCII characters, and no spaces")
    return hashlib.sha256(key.encode()).digest()


def _limit(given: object) -> Decimal | Mapping[str, Decimal] | None:
    """Read ``usd``: an amount, or amounts by period."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given:
        with locating("usd"):
            return parse_usd_per_period(given)
    return parse_usd(given, "usd")


def new_key(name: str) -> tuple[str, str]:
    """Make a new key of 192 random bits, and its table for a file of keys.

    Raises:
        ConfigError: the name is invalid.
    """
    if not name.strip() or not name.isprintable() or '"' in name or "\\" in name:
        raise ConfigError("name: give a name without quotes")
    key = f"fr-{secrets.token_hex(24)}"
    return key, f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
