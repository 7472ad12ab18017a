"""`focalroute ledger --reconcile` finds balances that differ from the ledger, `--repair` puts them right."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from focalroute.cli.app import app
from focalroute.core.errors import ConfigError
from focalroute.store.accounts import Account, Balance
from focalroute.store.sqlite.store import SqliteStore
from tests.redis_server import redis_server as redis_server  # a fixture
from tests.store.engines import Engine, RedisEngine, SqliteEngine
from tests.store.made import answer, bill, change, edit
from tests.store.test_accounts import hold

TOTAL, TEAM = Account(), Account("team", 86_400)
LIMITS = {TOTAL: Decimal(9), TEAM: Decimal(9)}
RIGHT = "every balance equals the ledger's sum\n"


@pytest.fixture(params=["sqlite", "redis"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return SqliteEngine(tmp_path / "s.db")
    return RedisEngine(request.getfixturevalue("redis_server").url)


def command(engine: Engine, *options: str) -> Result:
    return CliRunner().invoke(app, ["ledger", "--store", engine.where, *options])


def spend(engine: Engine) -> None:
    """USD 0.5 by the ledger, 0.25 of them reserved for the tag's team by a process that died."""
    with closing(engine.open()) as store:
        store.open_accounts(LIMITS)
        store.write(bill(cost=Decimal("0.5"))).result(10)  # of long ago: not of today's
        store.reserve(hold(1, "0.25", ("team",)), LIMITS).result(10)


def damage(engine: Engine, *, spent_pico: int = 125 * 10**9, unreadable: bool = False) -> None:
    """The balance of all calls is 0.125, or what is given, and nothing reserved; or one that cannot be read."""
    if isinstance(engine, SqliteEngine):
        with closing(SqliteStore(engine.path)) as store:
            spent = "x" if unreadable else str(spent_pico)
            change(store, "balances", f"spent = '{spent}', reserved = '0' WHERE tag = ''")
        return
    with closing(engine.open()) as opened:
        text = "0 x" if unreadable else "0 {} {} 0 0".format(*divmod(spent_pico, 10**6))
        opened.run(lambda connection: connection.command("HSET", connection.keys["balances"], "0 ", text))


def test_balances_that_fit_are_said_to(engine: Engine) -> None:
    spend(engine)
    for options in (["--reconcile"], ["--repair"], ["--reconcile", "--repair"]):
        done = command(engine, *options)
        assert (done.exit_code, done.stdout) == (0, RIGHT)
    assert json.loads(command(engine, "--reconcile", "--json").stdout) == []


def test_a_difference_is_printed_and_fails_until_it_is_repaired(engine: Engine) -> None:
    spend(engine)
    damage(engine)
    said: list[dict[str, Any]] = []
    for options in (["--reconcile"], ["--reconcile"], ["--repair"]):
        done = command(engine, *options, "--json")
        assert done.exit_code == (options == ["--reconcile"])
        said += json.loads(done.stdout)
    assert said == 3 * [
        {"tag": "", "period_s": 0, "spent": "0.125", "reserved": "0", "ledger_spent": "0.5", "ledger_reserved": "0.25"}
    ]
    assert command(engine, "--reconcile").stdout == RIGHT
    with closing(engine.open()) as store:
        assert store.balances([TOTAL]).result(10) == {TOTAL: Balance(Decimal("0.5"), Decimal("0.25"))}
        assert store.verify() == ()


def test_a_small_difference_can_be_seen_and_a_repair_says_that_it_was_one(engine: Engine) -> None:
    spend(engine)
    damage(engine, spent_pico=5 * 10**11 - 1)
    table = command(engine, "--reconcile")
    assert table.stdout.splitlines()[1].split() == ["(all)", "0.499999999999", "0", "0.5", "0.25"]
    assert "repaired" not in table.stderr
    assert "repaired: these balances now equal the ledger's sums" in command(engine, "--repair").stderr


def test_a_balance_that_cannot_be_read_is_built_anew(engine: Engine) -> None:
    spend(engine)
    damage(engine, unreadable=True)
    with closing(engine.open()) as store:
        assert any("is damaged" in problem for problem in store.verify())
    table = command(engine, "--reconcile")
    assert table.stdout.splitlines()[1].split() == ["(all)", "damaged", "damaged", "0.5", "0.25"]
    (row,) = csv.DictReader(io.StringIO(command(engine, "--repair", "--csv").stdout))
    assert (row["spent"], row["ledger_spent"]) == ("", "0.5")
    with closing(engine.open()) as store:
        assert store.verify() == ()
        assert store.reserve(hold(2, "0.5"), LIMITS).result(10).granted


def test_a_dead_processs_reservations_are_settled_once_their_calls_must_have_ended(engine: Engine) -> None:
    spend(engine)
    damage(engine)
    with closing(engine.open()) as store:
        engine.later(store, 4000)
    assert command(engine, "--repair").exit_code == 0
    with closing(engine.open()) as store:
        balances = store.balances(LIMITS).result(10)
        assert balances[TOTAL] == Balance(Decimal("0.75"), Decimal(0))
        assert (balances[TEAM].spent, balances[TEAM].reserved) == (Decimal("0.25"), Decimal(0))
        assert store.verify() == ()


def test_a_repair_while_others_spend_loses_nothing(engine: Engine) -> None:
    spend(engine)
    with closing(engine.open()) as store:
        waiting = [store.write(bill(cost=Decimal("0.001"))) for _ in range(50)]
        assert list(store.reconcile(repair=True)) == []
        waiting += [store.write(bill(cost=Decimal("0.001"))) for _ in range(50)]
        for one in waiting:
            one.result(10)
        assert store.balances([TOTAL]).result(10)[TOTAL].spent == Decimal("0.6")
        assert store.verify() == ()


def test_lost_rows_are_accepted(tmp_path: Path) -> None:
    """Then `verify` no longer speaks of them."""
    engine = SqliteEngine(tmp_path / "s.db")
    spend(engine)
    with closing(engine.open()) as store:
        store.write(answer("a")).result(10)
    edit(engine.path, "DELETE FROM ledger")
    edit(engine.path, "DELETE FROM answers")
    with closing(engine.open()) as store:
        assert any(problem.startswith("chain: ") for problem in store.verify())
    assert command(engine, "--repair").exit_code == 0
    with closing(engine.open()) as store:
        assert store.verify() == ()
        store.write(answer("b")).result(10)
        assert store.verify() == ()


def test_saved_does_not_go_with_reconcile_or_repair(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "s.db").close()
    done = command(SqliteEngine(tmp_path / "s.db"), "--repair", "--saved", "pool.toml")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "--saved: cannot be combined with --reconcile or --repair; leave one out"


@pytest.mark.parametrize("other", [["--reconcile"], ["--repair"], ["--saved", "pool.toml"]])
def test_what_to_sum_by_counts_only_for_sums(tmp_path: Path, other: list[str]) -> None:
    SqliteStore(tmp_path / "s.db").close()
    done = command(SqliteEngine(tmp_path / "s.db"), "--by", "tag", *other)
    assert str(done.exception) == "--by: cannot be combined with --saved, --reconcile or --repair; leave it out"
