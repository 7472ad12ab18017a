"""The ledger adds up exactly, whatever is pruned; what is kept stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute.core.errors import UnknownAnswer
from focalroute.core.records import Usage
from focalroute.store.base import LedgerRow, LedgerSum
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, judge, on_thread


def totals(store: SqliteStore) -> dict[str, LedgerSum]:
    """The sums by endpoint, but for the asks, which only rows that are not pruned can tell."""
    return {endpoint: replace(row, asks=0) for endpoint, row in store.totals().items()}


def batch_totals(rows: Sequence[LedgerRow]) -> dict[str, LedgerSum]:
    """The definition: a plain sum over all rows."""
    sums: dict[str, LedgerSum] = {}
    for row in rows:
        was = sums.get(row.endpoint, LedgerSum(row.endpoint))
        used = row.usage or Usage(0, 0)
        sums[row.endpoint] = LedgerSum(
            row.endpoint,
            calls=was.calls + 1,
            unpriced=was.unpriced + (row.cost is None),
            prompt_tokens=was.prompt_tokens + used.prompt_tokens,
            completion_tokens=was.completion_tokens + used.completion_tokens,
            cost=was.cost + (row.cost or 0),
        )
    return sums


ROWS = [
    bill(
        endpoint="abc"[i % 3],
        cost=None if i % 5 == 0 else Decimal(i % 7) / 7_000_000 // Decimal("1e-12") * Decimal("1e-12") - i % 2,
        usage=None if i % 4 == 0 else Usage(i, 2 * i, i // 2, i // 3, None if i % 3 else Decimal("0.01")),
    )
    for i in range(600)
]


def test_totals_are_the_sum_of_all_rows_before_and_after_pruning() -> None:
    """Unknown usage and unknown costs are counted, not taken as zero; credits count too."""
    with closing(SqliteStore(keep=5)) as store:
        for i, row in enumerate(ROWS):
            store.write(answer(str(i)), row)
        assert totals(store) == batch_totals(ROWS)
        kept = on_thread(store, lambda db: db.execute("SELECT count(*) FROM ledger").fetchone()[0])
        assert kept < 100
        assert store.verify() == ()


def test_totals_are_exact_beyond_64_bits_of_picodollars() -> None:
    """Nine million dollars are a sum like any other, pruned or not, down to 1e-12."""
    rows = [bill(cost=Decimal("9000000.999999999999")), *[bill(cost=Decimal("0.999999999999"))] * 3] * 4
    with closing(SqliteStore(keep=1)) as store:
        for part in (rows[:8], rows[8:]):
            store.write(*part).result(10)
            store.write(*(answer(f"{id(part)}-{i}") for i in range(2))).result(10)
            assert store.verify() == ()
        assert store.totals()["a"].cost == sum((row.cost for row in rows if row.cost), Decimal(0))


def test_the_carry_of_many_small_costs_does_not_overflow() -> None:
    """The sums of ten million calls at a dollar each still fit their columns."""
    with closing(SqliteStore()) as store:
        store.write(bill(cost=Decimal("0.999999999999"))).result(10)
        copy = (
            "INSERT INTO ledger_sums SELECT endpoint, 10000000, 0, 0, 0, 10000000 * (cost_pico / 1000000), "
            "10000000 * (cost_pico % 1000000), 0, 0, 0, 0 FROM ledger"
        )
        on_thread(store, lambda db: db.execute(copy))
        assert store.totals()["a"].cost == Decimal("0.999999999999") * 10_000_001


def test_unknown_is_not_zero() -> None:
    """A row without cost is an unpriced call; an endpoint with none else costs what is known: nothing."""
    with closing(SqliteStore()) as store:
        store.write(bill("free", Decimal(0)), bill("unknown", None)).result(10)
        assert totals(store) == {
            "free": LedgerSum("free", calls=1),
            "unknown": LedgerSum("unknown", calls=1, unpriced=1),
        }


def test_the_latest_answers_are_kept_with_their_feedback() -> None:
    """Older ones go, their feedback too; feedback for them is for an unknown answer."""
    with closing(SqliteStore(keep=10)) as store:
        for i in range(100):
            store.write(answer(str(i)), judge(str(i))).result(10)
        kept = [row.id for row, said in store.recent(1000) if said]
        assert kept[-10:] == [str(i) for i in range(90, 100)]
        assert len(kept) < 20
        assert on_thread(store, lambda db: db.execute("SELECT count(*) FROM feedback").fetchone()[0]) == len(kept)
        assert store.answer("0") is None
        with pytest.raises(UnknownAnswer, match="'0'"):
            store.write(judge("0", source="late")).result(10)
        assert store.verify() == ()


def test_the_latest_answers_are_read_in_parts_and_come_in_order() -> None:
    with closing(SqliteStore()) as store:
        for i in range(130):
            store.write(answer(str(i)), *[judge(str(i))] * (i % 2)).result(10)
        found = list(store.recent(120))
    assert [row.id for row, _ in found] == [str(i) for i in range(10, 130)]
    assert [[one.answer_id for one in said] for _, said in found] == [[str(i)] * (i % 2) for i in range(10, 130)]


def test_rows_of_an_earlier_process_are_pruned(tmp_path: Path) -> None:
    """Processes that write a little each do not add up to a file without bounds."""
    for process in range(5):
        with closing(SqliteStore(tmp_path / "s.db", keep=20)) as store:
            store.write(*(answer(f"{process}-{i}") for i in range(15))).result(10)
            assert len(list(store.recent(1000))) <= 35


def test_asks_that_all_fail_do_not_fill_the_ledger() -> None:
    """Bills without answers are pruned as well."""
    with closing(SqliteStore(keep=10)) as store:
        for _ in range(60):
            store.write(*[bill()] * 20).result(10)
        assert store.totals()["a"].calls == 1200
        assert on_thread(store, lambda db: db.execute("SELECT count(*) FROM ledger").fetchone()[0]) <= 80


def test_memory_stays_bounded() -> None:
    """As many pages after many answers as after the first few thousand."""
    with closing(SqliteStore(keep=300)) as store:

        def pages_after(rounds: range) -> int:
            for i in rounds:
                store.write(*(answer(f"{i}-{j}") for j in range(100)), *[bill()] * 100).result(10)
            pages: int = on_thread(store, lambda db: db.execute("PRAGMA page_count").fetchone()[0])
            return pages

        early = pages_after(range(30))
        assert pages_after(range(30, 150)) <= 1.2 * early
        assert store.totals()["a"].calls == 15_000
