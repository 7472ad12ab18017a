"""The store's file holds prompts and answers: only its owner may read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer


@pytest.fixture(autouse=True)
def umask_022() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_store_is_for_its_owner_only(tmp_path: Path) -> None:
    """The file, its logs and its index."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.write(answer("a")).result(10)
        made = {file.name: mode(file) for file in tmp_path.iterdir()}
    assert made == dict.fromkeys(("s.db", "s.db-wal", "s.db-shm", "s.db-commits"), 0o600)
    assert mode(path) == 0o600


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    """SQLite would make the file that it points to."""
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    SqliteStore(tmp_path / "link.db").close()
    assert mode(tmp_path / "s.db") == 0o600


@pytest.mark.parametrize("given", [0o600, 0o640, 0o644])
def test_a_file_that_is_there_keeps_its_mode(given: int, tmp_path: Path) -> None:
    """Its owner chose it."""
    path = tmp_path / "s.db"
    path.touch()
    path.chmod(given)
    SqliteStore(path).close()
    assert mode(path) == mode(tmp_path / "s.db-commits") == given
