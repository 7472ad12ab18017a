"""Telling listeners what was committed, whatever they make of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from focalroute.core.records import Feedback
from focalroute.store.base import OnFeedback, StoredAnswer

_log = logging.getLogger("focalroute.store")


def tell(listeners: Iterable[OnFeedback], rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
    """Call each listener with these rows, if there are any; one that fails is logged, and harms nobody."""
    for listener in listeners if rows else ():
        try:
            listener(rows)
        except BaseException:  # noqa: BLE001 - whatever it is, the thread has others to serve
            _log.exception("a listener failed on %d rows of feedback; it will not see them again", len(rows))
