"""Every exception that focalroute raises, as one tree.

    FocalrouteError
    ├── ConfigError            a setting, a pool file or an argument is wrong (also a ValueError)
    ├── PoolError              every asked endpoint failed; ``.replies`` holds each failure
    │   ├── DeadlineExceeded   nothing usable had arrived when the deadline passed (also a TimeoutError)
    │   └── StreamBroken       a streamed answer broke off; ``.text`` is what had arrived
    ├── BudgetExceeded         no endpoint is affordable; ``.limit``, ``.spent``, ``.needed`` and more
    ├── PolicyError            a policy bundle is missing, damaged or does not fit
    ├── FeedbackError          feedback cannot be accepted
    │   ├── UnknownAnswer      no answer with this id in the store (also a KeyError)
    │   └── BadLabel           the label is not among the choices (also a ValueError)
    ├── EnsembleClosed         the ensemble was closed, or made before a fork (also a RuntimeError)
    └── StoreError             the store cannot be opened, read or written

A member's failure is *not* an exception: it is data, ``Reply.error`` (see `focalroute.core.records.Failure`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from focalroute.core.records import Failure, Reply, Usage

_FIELD = re.compile(r"([a-z_]+)(?:, [a-z_]+)*: ")


def field_of(message: str) -> str | None:
    """Return the field that an error's message begins with, as in "field: do this"; None: it begins otherwise."""
    found = _FIELD.match(message)
    return None if found is None else found[1]


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Make a failing import say which extra to install; its message begins with ``what``, the reason for the import.

    Raises:
        ConfigError: a package other than focalroute is missing.
    """
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] == "focalroute":
            raise
        raise ConfigError(f"{what}; pip install 'focalroute[{extra}]'") from None


@contextmanager
def locating(where: object, instead_of: str = "") -> Iterator[None]:
    """Make a `ConfigError` begin with the place of the mistake, instead of with the class that found it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix(instead_of)}") from None


class FocalrouteError(Exception):
    """Base of everything focalroute raises.

    Attributes:
        index: index of the failed query in `ask_many`; else None.
        answer_id: id of the failed ask, as in the ledger; None: the ask had not begun.
    """

    index: int | None = None
    answer_id: str | None = None


class ConfigError(FocalrouteError, ValueError):
    """A setting, a pool file or an argument is wrong; the message names the field and what to do: "field: do this".

    Attributes:
        field: the setting or argument; None: the message begins with something else, such as a file.
        private: whether the message is about the ensemble's setup, which a server does not show to its callers.
    """

    def __init__(self, message: str, *, private: bool = False) -> None:
        super().__init__(message)
        self.field = field_of(message)
        self.private = private


class PoolError(FocalrouteError):
    """Every asked endpoint failed.

    Attributes:
        replies: the failed replies, each with its `Failure` in ``.error``.
    """

    def __init__(self, message: str, replies: Sequence[Reply] = ()) -> None:
        super().__init__(message)
        self.replies = tuple(replies)


class DeadlineExceeded(PoolError, TimeoutError):
    """The deadline of the ask passed before any usable reply had arrived."""


class StreamBroken(PoolError):
    """A streamed answer broke off: its endpoint failed after the first piece, or the deadline passed.

    Attributes:
        text: what had arrived.
    """

    def __init__(self, message: str, replies: Sequence[Reply] = (), text: str = "") -> None:
        super().__init__(message, replies)
        self.text = text


class BudgetExceeded(FocalrouteError):
    """No endpoint is affordable within the budget.

    Attributes:
        name: of the limit that was hit: "max_usd", or its place in the `Budget`, such as "usd_per_period.day".
        limit: that limit, USD.
        spent: settled under that limit so far, USD.
        reserved: held by calls still under way, USD.
        resets_at: when the limit renews itself; None: it never does, or the whole limit is less than the cheapest call.
        needed: what the cheapest call would have had to reserve, USD; None: not known.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str,
        limit: Decimal,
        spent: Decimal,
        reserved: Decimal,
        resets_at: datetime | None = None,
        needed: Decimal | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.limit = limit
        self.spent = spent
        self.reserved = reserved
        self.resets_at = resets_at
        self.needed = needed

    def __reduce__(self) -> tuple[Any, ...]:  # keyword arguments do not survive the default pickling
        kept = ("name", "limit", "spent", "reserved", "resets_at", "needed")
        return partial(type(self), **{field: getattr(self, field) for field in kept}), self.args, vars(self)


class PolicyError(FocalrouteError):
    """A policy bundle is missing, damaged, or does not fit what is to be served."""


class FeedbackError(FocalrouteError):
    """Feedback cannot be accepted."""


class UnknownAnswer(FeedbackError, KeyError):
    """The store holds no answer with this id."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


class BadLabel(FeedbackError, ValueError):
    """The label is not among the choices of the question."""


class EnsembleClosed(FocalrouteError, RuntimeError):
    """The ensemble was closed, or made before a fork.

    Attributes:
        forked: whether it was made in the process that this one was forked from.
    """

    def __init__(self, message: str, *, forked: bool = False) -> None:
        super().__init__(message)
        self.forked = forked


class StoreError(FocalrouteError):
    """The store cannot be opened, read or written."""


class CallFailed(FocalrouteError):
    """One call to one endpoint failed. Internal: `focalroute.endpoints.member` turns it into ``Reply.error``.

    Attributes:
        usage: tokens that the failed call consumed, where the service reported them.
        free: whether it certainly cost nothing: it never arrived, or the service refused it. Status 408 or 5xx is not
            a refusal: a model may have run behind the gateway that gave up. Default: derived from the failure.
        reported: an error in the body of a successful response, in the service's own words.
    """

    def __init__(
        self, failure: Failure, usage: Usage | None = None, *, free: bool | None = None, reported: object = None
    ) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.usage = usage
        self.reported = reported
        if free is None:
            refused = failure.kind == "status" and failure.status != 408 and (failure.status or 0) < 500
            free = refused or failure.kind in ("limited", "unavailable")
        self.free = free
