"""What waits for Redis: writes, scripts that may be run again, and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from focalroute.store.base import Release, Row
from focalroute.store.redis.connection import RedisConnection


@dataclass(eq=False, slots=True)
class Job:
    """Anything that waits.

    Attributes:
        until: the moment (monotonic) after which nobody waits for it any more.
    """

    future: Future[Any] = field(default_factory=Future, init=False)
    until: float = field(default=0.0, init=False)


@dataclass(eq=False, slots=True)
class Write(Job):
    """A call that writes rows, as ``write.lua`` takes them.

    Attributes:
        number: its place among the calls of its writer; 0: not given yet, and once given its own for good.
    """

    rows: tuple[Row, ...]
    keys: list[str]
    words: list[bytes]
    number: int = field(default=0, init=False)


@dataclass(eq=False, slots=True)
class Script(Job):
    """A script that may be run again without harm, and how its reply is read.

    Attributes:
        unwanted: what has to be written if it may have been run, but nobody waited for it so long.
        sent: whether it may have been run.
    """

    name: str
    words: Sequence[Any]
    read: Callable[[Any], Any]
    unwanted: Release | None = None
    sent: bool = field(default=False, init=False)


@dataclass(eq=False, slots=True)
class Read(Job):
    """Work that only reads, or that is safe to do again."""

    work: Callable[[RedisConnection], Any]
