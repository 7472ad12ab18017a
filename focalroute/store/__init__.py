"""Stores answers, feedback, capabilities and the ledger. The interface is `Store`; its default engine is SQLite.

- ``base``: the interface and its records; ``codec``: their encoding; ``accounts``: the arithmetic of budgets;
- ``engine``: the queue of jobs and the delivery of feedback, for both engines;
- ``sqlite``: ``database`` opens and migrates a file (``schema.sql``), ``writes`` and ``reads`` have the SQL,
  ``checksums`` finds damage for `Store.verify`, ``store`` has the thread and the transactions;
- ``redis``: ``sender`` sends each job once, ``journal`` keeps writes while Redis is away, ``lua`` has the scripts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeGuard

from focalroute.core.errors import ConfigError
from focalroute.store.base import Store
from focalroute.store.redis.address import RedisAddress, is_redis

if TYPE_CHECKING:
    from focalroute.store.redis.store import RedisStore

__all__ = ["Store", "display_name", "is_redis", "is_shared", "open_store", "require_existing"]


def open_store(
    where: str | Path | None, *, durability: Literal["normal", "full"] = "normal", maintain: bool = False
) -> Store:
    """Open the store at a path or at a ``redis://`` address, or in memory.

    Args:
        maintain: whether to maintain the store, as ensembles do: drop the oldest answers from Redis, settle dead
            processes' reservations there, and add up a file's ledger. Without it a file may be read-only.

    Raises:
        ConfigError: the address is wrong, or redis-py is not installed.
        StoreError: the store cannot be opened.
    """
    if where is not None and not isinstance(where, str | Path):
        raise ConfigError(f"store: give a file or a redis:// address, got {type(where).__name__}")
    if where == "":
        raise ConfigError("store: is empty; give a file or a redis:// address, or leave it out for one in memory")
    if isinstance(where, str) and is_redis(where):
        from focalroute.store.redis.store import RedisStore

        return RedisStore(where, durability=durability, maintain=maintain)
    if isinstance(where, str) and ("://" in where or where.startswith("redis:")):
        raise ConfigError(f"store: {where.partition(':')[0]}: is not known; give a file, or redis://HOST:PORT/DB")
    from focalroute.store.sqlite.store import SqliteStore

    return SqliteStore(where, durability=durability, maintain=maintain)


def is_shared(store: Store) -> TypeGuard[RedisStore]:
    """Whether a fleet can share the store. Finds out without importing the Redis module."""
    module = sys.modules.get("focalroute.store.redis.store")
    return module is not None and isinstance(store, module.RedisStore)


def require_existing(where: str) -> str:
    """Return a store's path or address if the store exists; opening it would create a missing one.

    Raises:
        ConfigError: the file does not exist or is empty; or Redis has no store at this address.
        StoreError: Redis cannot be used.
    """
    if is_redis(where):
        from focalroute.store.redis.store import require_stored

        require_stored(where)
        return where
    path, remedy = Path(where), "give the file or address that the ensemble uses as its store"
    if not path.exists():
        raise ConfigError(f"{where}: there is no such store; {remedy}")
    if path.is_file() and not path.stat().st_size:
        raise ConfigError(f"{where}: is an empty file, and not a store; {remedy}")
    return where


def display_name(where: str) -> str:
    """Return a store's path, or its address without the password."""
    return RedisAddress.of(where).name if is_redis(where) else where
