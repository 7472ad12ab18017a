"""`focalroute ledger`, `stats()` and the receipts add up to the same cents, however they are grouped."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute import Answer, Budget, ConfigError, Endpoint, Ensemble
from focalroute.cli.app import app
from focalroute.core.records import Feedback, Member, Usage
from focalroute.sim import SimulatedPool, stream
from focalroute.sim.process import pool_toml
from focalroute.store.accounts import Account
from focalroute.store.base import PROBE, LedgerRow, Reservation, StoredAnswer
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import until_checked
from tests.serving.pool_files import pool_of

DAY = 86_400.0


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with calls on two days, with tags, an estimate, an unknown cost, and one held by a process that died."""
    rows = [
        LedgerRow("1", "a", DAY, Usage(10, 5), Decimal("0.000000000001"), "price", ("x", "y")),
        LedgerRow("2", "a", 2 * DAY, Usage(20, 5), Decimal("0.5"), "provider", ("x", "x")),
        LedgerRow("3", "b", 2 * DAY, None, Decimal("0.25"), "reserved"),
        LedgerRow("4", "b", 2 * DAY + 1, Usage(1, 1), None, "unknown", ("y",)),
    ]
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.write(*rows).result(10)
        store.reserve(Reservation("r", "5", "b", Decimal("0.125"), ("z",)), {}).result(10)
    return tmp_path / "s.db"


def test_by_endpoint(path: Path) -> None:
    assert json.loads(command("--store", path, "--json")) == [
        {"endpoint": "a", "asks": 2, "calls": 2, "unpriced": 0, "estimated": 0, "prompt_tokens": 30,
         "completion_tokens": 10, "cost": "0.500000000001", "estimated_cost": "0", "held": "0"},
        {"endpoint": "b", "asks": 2, "calls": 2, "unpriced": 1, "estimated": 1, "prompt_tokens": 1,
         "completion_tokens": 1, "cost": "0.25", "estimated_cost": "0.25", "held": "0.125"},
    ]  # fmt: skip


def test_by_tag_each_call_counts_once_for_each_of_its_tags(path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(command("--store", path, "--by", "tag", "--csv"))))
    assert {row["tag"]: (row["calls"], row["cost"], row["held"]) for row in rows} == {
        "": ("1", "0.25", "0"),
        "x": ("2", "0.500000000001", "0"),
        "y": ("2", "0.000000000001", "0"),
        "z": ("0", "0", "0.125"),
    }


@pytest.mark.parametrize(
    ("wrong", "said"), [('window = "abc"', "window: give a whole number"), ("windw = 5", "unknown key 'windw'")]
)
def test_savings_by_a_pool_file_with_a_wrong_setting_are_refused(tmp_path: Path, wrong: str, said: str) -> None:
    SqliteStore(tmp_path / "s.db").close()
    pool_file = pool_of(tmp_path, f"[ensemble]\n{wrong}")
    result = CliRunner().invoke(app, ["ledger", "--store", str(tmp_path / "s.db"), "--saved", str(pool_file)])
    assert isinstance(result.exception, ConfigError)
    assert f"{pool_file}: ensemble: {said}" in str(result.exception)


def test_a_tag_cannot_control_the_terminal(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.write(LedgerRow("1", "a", DAY, None, Decimal(1), "price", ("x\x1b[2J\ny",))).result(10)
    lines = command("--store", tmp_path / "s.db", "--by", "tag").splitlines()
    assert [line[:9].strip() for line in lines] == ["tag", "x\ufffd[2J\ufffdy"]


@pytest.mark.usefixtures("no_period_ends")
def test_by_day_as_a_table(path: Path) -> None:
    lines = [line.split() for line in command("--store", path, "--by", "day").splitlines()]
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert [line[0] for line in lines] == ["day", "1970-01-02", "1970-01-03", today, "not"]
    assert lines[2] == ["1970-01-03", "3", "3", "21", "6", "0.750000", "0.250000", "0.000000"]
    assert lines[3] == [today, *"0000", "0.000000", "0.000000", "0.125000"]
    assert "not in these sums: 1 call of unknown cost" in " ".join(lines[-1])


def test_an_empty_store_and_a_missing_one(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "s.db").close()
    assert command("--store", tmp_path / "s.db", "--json") == "[]\n"
    assert CliRunner().invoke(app, ["ledger", "--store", str(tmp_path / "none.db")]).exit_code == 1
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigError, match=r"empty\.db: is an empty file, and not a store"):
        CliRunner().invoke(app, ["ledger", "--store", str(tmp_path / "empty.db")], catch_exceptions=False)
    assert not (tmp_path / "empty.db").stat().st_size


def test_ledger_stats_receipts_and_the_service_agree_to_the_last_digit(
    simulated_pool: SimulatedPool, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    with Ensemble(simulated_pool.endpoints, store=path, budget=Budget(usd_total=1), probe_share=0) as ensemble:
        asks = [{"query": q.text, "choices": q.choices, "tags": [q.topic]} for q in stream(20, seed=2)]
        answers = [answer for answer in ensemble.ask_many(asks) if isinstance(answer, Answer)]
        until_checked(ensemble)
        stats = ensemble.stats()
    billed = {name: served.usd for name, served in simulated_pool.stats().items()}
    with closing(SqliteStore(path)) as store:
        by = {group: store.ledger(group) for group in ("endpoint", "tag", "day", "all")}
        probes = next(row.cost for row in by["tag"] if row.key == "")
        assert store.open_accounts([Account()])[Account()].spent == stats.cost
    assert {row.key: row.cost for row in by["endpoint"]} == {
        name: endpoint.cost for name, endpoint in stats.endpoints.items() if endpoint.calls
    }
    assert {name: usd for name, usd in billed.items() if usd} == {row.key: row.cost for row in by["endpoint"]}
    for rows in by.values():
        assert sum(row.cost for row in rows) == stats.cost
    assert sum(answer.cost or 0 for answer in answers) + probes == stats.cost


def test_a_total_counts_an_ask_once_and_a_probe_not_as_an_ask(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        store.write(LedgerRow(PROBE, "a", DAY, None, Decimal(0), "price")).result(10)
        store.write(LedgerRow("1", "b", DAY, None, Decimal(0), "price")).result(10)
        (everything,) = store.ledger("all")
    assert (everything.asks, everything.calls, everything.cost) == (4, 6, Decimal("0.750000000001"))


def test_savings_are_against_the_cost_of_asking_all_or_only_the_best(tmp_path: Path) -> None:
    """Two asks: "a" was called twice at 2 cents, "b" once at 1 cent, "c" never: its price for a mean call's tokens."""
    prices = {"a": 1, "b": 1, "c": 50}
    pool = [
        Endpoint(name, model="m", base_url="http://localhost:1/v1", input_usd_per_1m=usd, output_usd_per_1m=2 * usd)
        for name, usd in prices.items()
    ]
    costs = {"1": ["a"], "2": ["a", "b"]}
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        for ask, names in costs.items():
            cents = {"a": Decimal("0.02"), "b": Decimal("0.01")}
            store.write(*(LedgerRow(ask, n, DAY, Usage(100, 50), cents[n], "provider") for n in names)).result(10)
    with Ensemble(pool, store=tmp_path / "s.db") as ensemble:
        stats = ensemble.stats()
    assert (stats.asks, stats.cost) == (2, Decimal("0.05"))
    assert stats.if_all == 2 * (Decimal("0.02") + Decimal("0.01") + Decimal("0.01"))
    assert (stats.best_single, stats.if_best_single) == ("a", Decimal("0.04"))
    (all_, best) = stats.saved
    assert (all_.against, all_.saved, best.against, best.saved) == (
        "all endpoints", Decimal("0.03"), "a", Decimal("-0.01"),
    )  # fmt: skip
    pool_file = tmp_path / "pool.toml"
    pool_file.write_text(
        "".join(
            f'[[endpoint]]\nname = "{name}"\nmodel = "m"\nbase_url = "http://localhost:1/v1"\n'
            f"input_usd_per_1m = {usd}\noutput_usd_per_1m = {2 * usd}\n"
            for name, usd in prices.items()
        )
    )
    given = ("--store", tmp_path / "s.db", "--saved", pool_file)
    assert json.loads(command(*given, "--json")) == [
        {"against": one.against, "asks": 2, "cost": "0.05", "otherwise": f"{one.otherwise or 0:.12f}",
         "saved": f"{one.saved or 0:.12f}"}
        for one in stats.saved
    ]  # fmt: skip
    assert command(*given).splitlines()[1].split() == [*["all", "endpoints", "2", "0.050000", "0.080000", "0.030000"]]
    assert len(list(csv.DictReader(io.StringIO(command(*given, "--csv"))))) == 2
    unpriced = Endpoint("d", model="m", base_url="http://localhost:1/v1")
    with Ensemble([*pool, unpriced], store=tmp_path / "s.db") as ensemble:
        assert ensemble.stats().if_all is None
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.write(LedgerRow("3", "d", DAY, Usage(100, 50), None, "unknown")).result(10)
    with Ensemble(pool, store=tmp_path / "s.db") as ensemble:
        (all_, _) = ensemble.stats().saved
    assert (all_.cost, all_.otherwise, all_.saved) == (Decimal("0.05"), Decimal("0.12"), None)  # what was paid is more


@pytest.mark.parametrize("agreement", [True, False])
def test_the_best_endpoint_is_that_of_the_ensemble_without_feedback_too(
    simulated_pool: SimulatedPool, tmp_path: Path, agreement: bool
) -> None:
    """Agreement says which one it is; without it, and without feedback, the first of the pool file stands for it."""
    store, pool_file = tmp_path / "s.db", tmp_path / "pool.toml"
    setting = f"[ensemble]\nlearn_from_agreement = {str(agreement).lower()}\n"
    pool_file.write_text(pool_toml(simulated_pool.endpoints) + setting)
    with Ensemble(pool_file, store=store, policy="plurality") as ensemble:
        ensemble.ask_many({"query": q.text, "choices": q.choices} for q in stream(30))
    with Ensemble(pool_file, store=store) as ensemble:
        best = ensemble.stats().best_single
    assert (best == simulated_pool.endpoints[0].name) is not agreement
    _, told = json.loads(command("--store", store, "--saved", pool_file, "--json"))
    assert told["against"] == best


def test_the_best_endpoint_is_that_of_the_ensemble_where_labels_correct_agreement(tmp_path: Path) -> None:
    """Two endpoints agree on what is mostly wrong, as labels show; a third, asked alone, is right half the time."""
    store, pool_file = tmp_path / "s.db", tmp_path / "pool.toml"
    pool_file.write_text(
        "".join(f'[[endpoint]]\nname = "{n}"\nmodel = "m"\nbase_url = "http://localhost:1/v1"\n' for n in "abc")
    )
    rows: list[Any] = []
    for n in range(460):
        labelled, alone = n < 160, n % 160 >= 60 and n < 160
        members = {name: Member(1, 0, 9, 0.1, None) for name in ("b" if alone else "ac")}
        keys = ("k0", "k1", "k2", "k3")
        rows.append(StoredAnswer(str(n), DAY + n, keys, "choice", 0, (1.0, 0.0, 0.0, 0.0), members, None, "{}"))
        if labelled:
            wrong = n % (2 if alone else 5) > (0 if alone else 1)
            rows.append(Feedback(str(n), -1.0 if wrong else 1.0, keys[wrong], "user", DAY + n))
    with closing(SqliteStore(store)) as opened:
        opened.write(*rows).result(10)
    with Ensemble(pool_file, store=store) as ensemble:
        assert ensemble.stats().best_single == "b"
    _, told = json.loads(command("--store", store, "--saved", pool_file, "--json"))
    assert told["against"] == "b"


def test_an_unknown_cost_is_unknown_in_every_report(simulated_pool: SimulatedPool, tmp_path: Path) -> None:
    """It is None, "unknown" or empty, and never 0."""
    free = [replace(one, input_usd_per_1m=None, output_usd_per_1m=None) for one in simulated_pool.endpoints[:2]]
    with Ensemble(free, store=tmp_path / "s.db", policy="plurality") as ensemble:
        answer = ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        (row,) = ensemble.ask_many(["What is 6 * 7?"]).rows()
        until_checked(ensemble)
        stats = ensemble.stats()
    assert answer.cost is answer.to_dict()["cost"] is answer.receipt.cost is row["cost_usd"] is stats.cost is None
    told: list[Any] = [*answer.replies, *answer.receipt.calls, *stats.endpoints.values()]
    assert {one.cost for one in told} == {one.cost for one in stats.saved} == {None}
    assert "cost=unknown" in repr(answer)
    assert "$" not in answer._repr_html_()
    store = ("--store", tmp_path / "s.db")
    assert {one["cost"] for one in json.loads(command(*store, "--json"))} == {None}
    assert {one["cost"] for one in csv.DictReader(io.StringIO(command(*store, "--csv")))} == {""}
    assert command(*store).count(" unknown ") == 3  # of each endpoint, and the calls that are in no sum
