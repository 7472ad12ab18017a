"""What waits in the queue of the store's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from focalroute.core.errors import FocalrouteError
from focalroute.store.base import Row
from focalroute.store.sqlite.accounts import AccountBalances

if TYPE_CHECKING:
    import sqlite3


class Unit(NamedTuple):
    """What one call has done; its rows can be read before it is."""

    rows: Sequence[Row]
    work: Callable[[sqlite3.Connection, AccountBalances], Any]


@dataclass(frozen=True, slots=True)
class Write:
    """Work for a transaction that writes.

    Attributes:
        units: each is done as a whole or not at all.
        alone: whether there is one, and the future is of what it gives; else of a list of what each gives.
    """

    units: Sequence[Unit]
    alone: bool
    future: Future[Any] = field(default_factory=Future)

    def settle(self, results: list[Any]) -> None:
        """Tell who waits what each unit gave, or why it was not done."""
        if not self.alone:
            self.future.set_result(results)
        elif isinstance(results[0], FocalrouteError):
            self.future.set_exception(results[0])
        else:
            self.future.set_result(results[0])


@dataclass(frozen=True, slots=True)
class Read:
    """Work for a transaction that only reads."""

    work: Callable[[sqlite3.Connection], Any]
    future: Future[Any]
