"""The engines of the store, so that one test can hold both to the same behaviour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from focalroute.store.base import Store
from focalroute.store.redis.store import RedisStore
from focalroute.store.sqlite.store import SqliteStore
from tests.redis_server import place
from tests.store.made import change

__all__ = ["Engine", "RedisEngine", "SqliteEngine"]


class Engine(Protocol):
    """A place where rows are kept; ``where`` as `open_store` takes it."""

    @property
    def where(self) -> str: ...

    def open(self, **settings: Any) -> Any:
        """A store there; several stand for several processes. Settings: poll_s, keep."""

    def later(self, store: Store, seconds: float, ids: tuple[str, ...] = ()) -> None:
        """As if these reservations (none named: all) had been made so much earlier."""

    def move_reservations(self, store: Store, seconds: float) -> None:
        """As if all reservations had been made by a clock so far ahead."""


class SqliteEngine:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def where(self) -> str:
        return str(self.path)

    def open(self, **settings: Any) -> SqliteStore:
        return SqliteStore(self.path, **settings)

    def later(self, store: Any, seconds: float, ids: tuple[str, ...] = ()) -> None:
        which = f"id IN {(*ids, '', '')}" if ids else "1"
        change(store, "reservations", f"until = until - {seconds} WHERE {which}")

    def move_reservations(self, store: Any, seconds: float) -> None:
        change(store, "reservations", f"at = at + {seconds}, until = until + {seconds}")


class RedisEngine:
    def __init__(self, url: str) -> None:
        self.url = place(url)

    @property
    def where(self) -> str:
        return self.url

    def open(self, *, keep: int | None = None, **settings: Any) -> RedisStore:
        return RedisStore(self.url if keep is None else f"{self.url}&keep={keep}", **settings)

    def later(self, store: Any, seconds: float, ids: tuple[str, ...] = ()) -> None:
        def change(connection: Any) -> None:
            due = connection.keys["due"]
            for held in connection.command("ZRANGE", due, 0, -1):
                if not ids or held.decode() in ids:
                    connection.command("ZINCRBY", due, -seconds, held)

        store.run(change)

    def move_reservations(self, store: Any, seconds: float) -> None:
        def change(connection: Any) -> None:
            found = connection.command("HGETALL", connection.keys["reservations"])
            for name, text in zip(found[::2], found[1::2], strict=True):
                held = json.loads(text)
                held["at"] = str(float(held["at"]) + seconds)
                connection.command("HSET", connection.keys["reservations"], name, json.dumps(held))
                connection.command("ZINCRBY", connection.keys["due"], seconds, name)

        store.run(change)
