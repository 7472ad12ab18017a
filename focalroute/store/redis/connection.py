"""The connection to Redis, its keys and its scripts. The only module that imports redis-py.

If the same call may succeed later, an error of the connection or the server raises `RedisUnavailable`. In a cluster all
keys are on one node; the address may name any node, which redirects to that one.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from focalroute.core.errors import ConfigError, FocalrouteError, StoreError, needing
from focalroute.core.network import innermost, untrusted
from focalroute.store.redis.address import RedisAddress

if TYPE_CHECKING:
    import redis


_SCRIPTS = ("write", "reserve", "balances", "overdue", "verify", "trim", "count", "lease", "publish", "rollback")
_TIMEOUT_S = 5.0
_MOST_REDIRECTS = 5
#: A server's error code -> what is wrong and what to do.
_ADVICE = {
    "OOM": "it has no memory left: raise its maxmemory, or keep fewer answers (?keep=)",
    "MISCONF": "it cannot write to its disk: make room there",
    "READONLY": "it is a replica: name the primary",
    "NOAUTH": "it requires a password: give one in the address, or with ?password_env=",
    "WRONGPASS": "it refuses the user or the password",
    "NOPERM": "its access list does not let this user do that: it needs all keys of the store, whose names begin with "
    "the prefix in braces, and the commands in docs/fleet.md",
    "CROSSSLOT": "a proxy in front of it splits the keys; connect to the server itself",
    "BUSY": "a script keeps it busy",
    "LOADING": "it is still reading its files",
    "CLUSTERDOWN": "its cluster is down",
    "TRYAGAIN": "its cluster is moving the keys",
    "ASK": "its cluster is moving the keys",
    "MASTERDOWN": "its primary is down",
    "WRONGTYPE": "one of the store's keys is another program's: give the store a ?prefix= of its own",
    "NOACCOUNT": "an account of the budget has disappeared, or is damaged; restore the data of Redis, or open a new "
    "ensemble, which adds the account up from the ledger that is left",
    "LOSTDATA": "has lost its data since this process opened it (FLUSHALL, a restart or a failover without it), so "
    "what was spent is unknown; restore the data, or accept a fresh start from zero by opening a new ensemble",
}
_PERMANENT = {"NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT", "WRONGTYPE", "NOACCOUNT"}
_LOST = "LOSTDATA"
#: Scripts that count money. Their last argument is the epoch; they do nothing if the data has another one.
_WITH_EPOCH = {"write", "reserve", "balances"}


#: The names of the keys, by their types:
#: - streams: the ids of "answers", "feedback", the ids of "probed" answers, rows of the "ledger";
#: - hashes: "totals" of the ledger by endpoint, "reservations", ledger entries that estimate a reservation's call
#:   ("overdue"), "balances", the periods of a tag's "accounts", "capabilities" and "health" of endpoints, the last call
#:   of each of the "writers", the state of the "policy" and its files ("bundles");
#: - a sorted set: when reservations are "due"; a set: the ids of the "asks" in the ledger.
KeyName = Literal[
    "answers", "feedback", "probed", "ledger", "totals", "reservations", "due", "overdue", "balances", "accounts",
    "capabilities", "health", "writers", "policy", "bundles", "asks",
]  # fmt: skip
#: Keys that every script gets, in this order, before the keys of the answers it touches. "asks" comes after the
#: answers' keys, since journals of earlier versions refer to those by position.
FIXED: tuple[KeyName, ...] = get_args(KeyName)[:-1]
#: The feedback stream's consumer group. Its one consumer acknowledges an entry once it was learned from.
GROUP = "learner"
#: The field of the policy's hash with a random id, written when the store is first opened. Data loss changes it.
EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under a prefix. All share one hash tag, so a cluster keeps them on one node and scripts may use any."""

    prefix: str

    def __getitem__(self, name: KeyName) -> str:
        """Return the full key for a name."""
        return f"{{{self.prefix}}}:{name}"

    @property
    def fixed(self) -> list[str]:
        """The full keys for `FIXED`."""
        return [self[name] for name in FIXED]

    def answer(self, answer_id: str) -> str:
        """Return the key of an answer's hash."""
        return f"{{{self.prefix}}}:answer:{answer_id}"


class RedisUnavailable(Exception):
    """Redis cannot be reached, or cannot serve calls now."""


class DataLost(StoreError):
    """Redis no longer has the data that was there when this process opened the store."""


class RedisConnection:
    """One connection, re-established whenever it is lost. Not thread-safe.

    Raises:
        ConfigError: redis-py is not installed, or cannot read the address.
    """

    def __init__(self, address: RedisAddress) -> None:
        with needing("store: a Redis store needs redis-py", "redis"):
            import redis
        self._redis: Any = redis
        self._address = address
        self.keys = Keys(address.prefix)
        self._hashes: dict[str, str] = {}
        self._pool = self._make_pool(address.url)
        self.connected = False
        self._epoch = b""  # of the data; empty until first connected

    def _make_pool(self, url: str, **changed: Any) -> redis.ConnectionPool:
        no_retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)  # the caller retries
        try:
            pool: redis.ConnectionPool = self._redis.ConnectionPool.from_url(
                url, protocol=2, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=no_retry
            )
        except (ValueError, TypeError):
            raise ConfigError(
                "store: the address of the Redis store cannot be read; write redis://host:6379/0"
            ) from None
        pool.connection_kwargs.update(changed)
        return pool

    # -- calls -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect and load the scripts, unless connected already.

        Raises:
            RedisUnavailable: it cannot be reached now.
            StoreError: retrying will not help, as if the password is wrong or the access list forbids a command.
            DataLost: Redis has lost the data that was there when this first connected.
        """
        if self.connected:
            return
        for name in _SCRIPTS:
            self._hashes[name] = self._direct("SCRIPT", "LOAD", _source(name)).decode()
        self._check_epoch()
        self.connected = True

    def _check_epoch(self) -> None:
        """Read the data's epoch on the first connection, creating it if missing; later check that it is unchanged."""
        key = self.keys["policy"]
        found = self._direct("HGET", key, EPOCH)
        if not self._epoch:
            if found is None:
                self._direct("HSETNX", key, EPOCH, secrets.token_hex(8))
                found = self._direct("HGET", key, EPOCH)
            self._epoch = found
        elif found != self._epoch:
            raise DataLost(f"{self._address.name}: {_ADVICE[_LOST]}")

    def has_store(self) -> bool:
        """Whether Redis has this store, which `connect` would create. Raises as `connect` does."""
        return bool(self._direct("HEXISTS", self.keys["policy"], EPOCH))

    def command(self, *words: Any) -> Any:
        """Run one command like `run`, but raise the server's error."""
        self.connect()
        return self._direct(*words)

    def script(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run one script like `command`."""
        return self.command(*self.script_command(name, keys, arguments))

    def script_command(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The command that runs a script. Needs an open connection."""
        every = [*self.keys.fixed, *keys, self.keys["asks"]]
        if name in _WITH_EPOCH:
            arguments = [*arguments, self._epoch]
        return ("EVALSHA", self._hashes[name], len(every), *every, *arguments)

    def run(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run commands in order in one round trip; return the reply to each, as bytes, numbers and lists.

        If a single command fails, its error is returned as its reply; an error that concerns all commands is raised.

        Raises:
            RedisUnavailable: it is unknown which commands were run.
            StoreError: retrying will not help.
        """
        self.connect()
        return self._replies(commands)

    def drop(self) -> None:
        """Close the connection, if open; the next one is to the address again, as a cluster may have moved the keys."""
        self.connected = False
        self._pool.disconnect()
        self._pool = self._make_pool(self._address.url)

    # -- the wire ----------------------------------------------------------------------------------------------------

    def _direct(self, *words: Any) -> Any:
        (reply,) = self._replies([words])
        if isinstance(reply, Exception):
            raise self.error_of(reply)
        return reply

    def _replies(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        for _ in range(_MOST_REDIRECTS):
            replies = self._send(commands)
            moved = next((reply for reply in replies if isinstance(reply, self._redis.exceptions.MovedError)), None)
            if moved is None:
                break
            self.drop()
            self._pool = self._make_pool(self._address.url, host=moved.host, port=moved.port)
            self._send([("SCRIPT", "LOAD", _source(name)) for name in self._hashes])
        for reply in replies:
            if isinstance(reply, self._redis.exceptions.NoScriptError):
                self.drop()
                raise RedisUnavailable(f"{self._address.name}: its scripts were flushed")
        return replies

    def _send(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        errors = self._redis.exceptions
        try:
            connection: Any = self._pool.get_connection()
        except (errors.RedisError, OSError) as error:
            raise self.error_of(error) from None
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            return [_reply(connection, errors.ResponseError) for _ in commands]
        except (errors.RedisError, OSError) as error:
            self.connected = False
            connection.disconnect()
            raise self.error_of(error) from None
        finally:
            self._pool.release(connection)

    def error_of(self, error: Exception) -> FocalrouteError | RedisUnavailable:
        """The error to raise for an exception of redis-py or of decoding a reply. It does not quote what was sent."""
        if isinstance(error, RedisUnavailable | FocalrouteError):
            return error
        if not isinstance(error, self._redis.exceptions.RedisError | OSError):
            return StoreError(f"{self._address.name}: its data is damaged ({type(error).__name__}); restore a copy")
        code, tls = _code(error), self._address.url.startswith("rediss:")
        message = f"{self._address.name}: {_ADVICE.get(code, _without_code(error, tls=tls))}"
        if code == _LOST:
            return DataLost(message)
        refused = isinstance(error, self._redis.exceptions.ResponseError) and not code
        return StoreError(message) if refused or code in _PERMANENT else RedisUnavailable(message)


def _reply(connection: Any, refused: type[Exception]) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except refused as error:
        return error


def _code(error: Exception) -> str:
    """The code of a server's error; redis-py drops the code from errors that have their own class."""
    known = {
        "OutOfMemoryError": "OOM",
        "ReadOnlyError": "READONLY",
        "NoPermissionError": "NOPERM",
        "AuthenticationError": "WRONGPASS",
        "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
        "BusyLoadingError": "LOADING",
        "ClusterCrossSlotError": "CROSSSLOT",
        "ClusterDownError": "CLUSTERDOWN",
        "MasterDownError": "MASTERDOWN",
        "TryAgainError": "TRYAGAIN",
        "AskError": "ASK",
    }
    word = str(error).partition(" ")[0]
    return known.get(type(error).__name__, word if word in _ADVICE else "")


def _without_code(error: Exception, *, tls: bool) -> str:
    """Say what is wrong and what to do, for an error without a code in `_ADVICE`."""
    if type(error).__name__ == "ResponseError":
        return (
            "refused a call; check that it is Redis 6.2 or newer, or Valkey, has that database, and that nothing else "
            "writes to the store's keys"
        )
    root = innermost(error)
    cause, remedy = type(root).__name__, "start it, or check the address"
    if isinstance(root, ssl.SSLCertVerificationError):
        cause, remedy = untrusted(
            root,
            authority="give ssl_ca_certs= the file of the authority that signed its certificate",
            name="call it in the address by a name that is in its certificate",
        )
    elif isinstance(root, ssl.SSLError):
        cause = f"{cause}: {root.reason}" if root.reason else cause
        remedy = "check whether it speaks TLS there (rediss://), and the certificates in ssl_certfile and ssl_ca_certs"
    elif tls and isinstance(root, TimeoutError):  # a server without TLS waits for the rest of a command
        remedy += " and whether it speaks TLS there (redis:// is without)"
    elif not tls and isinstance(root, ConnectionResetError):  # so says a server with TLS
        remedy += " and whether it wants TLS there (rediss://)"
    return f"cannot be reached ({cause}); {remedy}"


def _source(name: str) -> str:
    """Read a script, without its comments: Redis accepts at most 16 kB at once before the password."""
    folder = Path(__file__).parent / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
