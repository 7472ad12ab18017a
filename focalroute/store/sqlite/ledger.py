"""The ledger added up for people: by endpoint, by tag, by day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.store.base import Grouping, LedgerSum
from focalroute.store.codec import from_pico

if TYPE_CHECKING:
    import sqlite3


# Costs are summed as micro- and picodollars apart, as in `tables.totals`.
_ROWS = """
WITH bills AS (
    SELECT CASE WHEN answer_id NOT LIKE 'probe%' AND answer_id NOT LIKE 'judge%' THEN answer_id END AS ask,
        endpoint, at, tags,
        1 AS calls, cost_pico IS NULL AS unpriced, cost_source = 'reserved' AS estimated,
        coalesce(prompt_tokens, 0) AS prompt, coalesce(completion_tokens, 0) AS completion,
        coalesce(cost_pico, 0) / 1000000 AS micro, coalesce(cost_pico, 0) % 1000000 AS pico, 0 AS held
    FROM ledger
    UNION ALL SELECT NULL, endpoint, at, tags, 0, 0, 0, 0, 0, 0, 0, pico FROM reservations
),
everything AS (
    SELECT * FROM bills
    UNION ALL SELECT NULL, endpoint, 0, '[]', calls, unpriced, 0, prompt_tokens, completion_tokens, micro, pico, 0
    FROM ledger_sums
),
tagged AS (
    SELECT coalesce(tag.value, '') AS tag, bills.* FROM bills
    LEFT JOIN json_each(bills.tags) AS tag ON tag.key = (
        SELECT min(same.key) FROM json_each(bills.tags) AS same WHERE same.value = tag.value
    )
)
"""
_SUMS = """
    count(DISTINCT ask), sum(calls), sum(unpriced), sum(estimated), sum(prompt), sum(completion), sum(micro), sum(pico),
    sum(micro * estimated), sum(pico * estimated), sum(held / 1000000), sum(held % 1000000)
"""
_KEYS = {
    "endpoint": ("endpoint", "everything"),
    "tag": ("tag", "tagged"),
    "day": ("date(at, 'unixepoch')", "bills"),
    "all": ("'all'", "bills"),
}


def sums(db: sqlite3.Connection, by: Grouping) -> list[LedgerSum]:
    """See `Store.ledger`."""
    key, rows = _KEYS[by]
    query = f"{_ROWS} SELECT {key}, {_SUMS} FROM {rows} GROUP BY 1 ORDER BY 1"  # noqa: S608 - constants
    return [
        LedgerSum(*row[:7], *(from_pico(row[i] * 1_000_000 + row[i + 1]) for i in (7, 9, 11)))
        for row in db.execute(query)
    ]
