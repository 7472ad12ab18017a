"""A SQLite file that is deleted or replaced while it is in use is noticed: no second budget begins beside the first."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute.core.errors import StoreError
from focalroute.store.accounts import Account, Balance
from focalroute.store.sqlite import database
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import bill
from tests.store.test_accounts import hold

TOTAL = Account()
LIMITS = {TOTAL: Decimal(1)}


def unlink(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)


def rename_over(path: Path) -> None:
    other = path.with_name("other.db")
    SqliteStore(other).close()
    other.replace(path)


def copy_over(path: Path) -> None:
    other = path.with_name("other.db")
    SqliteStore(other).close()
    shutil.copyfile(other, path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unlink_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


BY = pytest.mark.parametrize(
    ("lose", "happened"),
    [
        (unlink, "db: was deleted, emptied or moved away"),
        (empty, "db: was deleted, emptied or moved away"),
        (unlink_log, "db-wal: was deleted, emptied or moved away"),
        (rename_over, "db: was replaced by another file"),
        (copy_over, "db: another database was copied over it"),
    ],
)


@BY
def test_no_reservation_is_made_in_a_file_that_is_gone(
    tmp_path: Path, lose: Callable[[Path], None], happened: str
) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.open_accounts(LIMITS)
        assert store.reserve(hold(1, "0.75"), LIMITS).result(10).granted
        lose(path)
        for number in (2, 3):
            with pytest.raises(StoreError, match=rf"s\.{happened} while it was in use"):
                store.reserve(hold(number, "0.125"), LIMITS).result(10)


@BY
def test_writes_and_reads_fail_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], happened: str
) -> None:
    monkeypatch.setattr(database, "_FILE_CHECK_S", 0.0)  # the second is over
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.write(bill()).result(10)
        lose(path)
        with pytest.raises(StoreError, match=happened):
            store.write(bill()).result(10)
        with pytest.raises(StoreError, match=happened):
            store.ledger("all")
        (refused,) = store.write_calls([[bill()]]).result(10)
        assert isinstance(refused, StoreError)


def test_a_file_that_is_put_back_is_used_again(tmp_path: Path) -> None:
    path, away = tmp_path / "s.db", tmp_path / "away.db"
    with closing(SqliteStore(path)) as store:
        store.open_accounts(LIMITS)
        path.rename(away)
        with pytest.raises(StoreError, match="moved away"):
            store.reserve(hold(1, "0.5"), LIMITS).result(10)
        away.rename(path)
        assert store.reserve(hold(2, "0.5"), LIMITS).result(10).granted
        assert store.balances(LIMITS).result(10)[TOTAL] == Balance(Decimal(0), Decimal("0.5"))
        assert store.verify() == ()


def test_an_older_copy_of_itself_is_noticed_too(tmp_path: Path) -> None:
    path, older = tmp_path / "s.db", tmp_path / "older.db"
    with closing(SqliteStore(path)) as store:
        store.open_accounts(LIMITS)
    shutil.copyfile(path, older)
    with closing(SqliteStore(path)) as store:
        store.write(bill()).result(10)
        with closing(sqlite3.connect(path)) as another:
            another.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert store.reserve(hold(1, "0.5"), LIMITS).result(10).granted
        shutil.copyfile(older, path)
        with pytest.raises(StoreError, match="was copied over it"):
            store.reserve(hold(2, "0.5"), LIMITS).result(10)
